//! Devices as command lines name them: `KIND` or `KIND:NAME`.

use std::net::IpAddr;

use pmd_verbs::DeviceConfig;

/// The device that `KIND[:NAME]` means; software NICs are named by their address.
///
/// # Errors
/// What is wrong with the name, and what would be right.
pub(crate) fn config(device: &str) -> Result<DeviceConfig, String> {
    let (kind, name) = match device.split_once(':') {
        Some((kind, name)) => (kind, Some(name)),
        None => (device, None),
    };
    match kind {
        "soft" => {
            let address = name.map(|name| {
                name.parse::<IpAddr>().map_err(|_| {
                    format!(
                        "{name:?} is not an address, by which software NICs are named: soft, or for \
                         instance soft:127.0.0.1"
                    )
                })
            });
            Ok(DeviceConfig { address: address.transpose()?, ..DeviceConfig::default() })
        }
        "verbs" | "doca" => Err(format!("{kind} devices are not available in this build; soft is")),
        kind => Err(format!(
            "{kind:?} is no kind of device: soft is (verbs and doca are not in this build)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_kind_and_name() {
        assert_eq!(config("soft").unwrap().address, None);
        let named = config("soft:127.7.0.1").unwrap().address;
        assert_eq!(named, Some(IpAddr::from([127, 7, 0, 1])));
        assert_eq!(config("soft:::1").unwrap().address, Some("::1".parse().unwrap()));
        for (device, complaint) in [
            ("soft:eth0", "not an address"),
            ("verbs:rxe0", "not available in this build"),
            ("doca", "not available in this build"),
            ("hard", "no kind of device"),
            ("", "no kind of device"),
        ] {
            let text = config(device).unwrap_err();
            assert!(text.contains(complaint), "{text}");
        }
    }
}
