//! Devices as command lines name them: `KIND` or `KIND:NAME`.

use std::net::{IpAddr, Ipv6Addr};

use pmd_verbs::{DeviceConfig, NicChoice, SoftAddress, SoftAddresses, soft_addresses};

/// The device that `KIND[:NAME]` means. Software NICs are named by their address, devices of rdma-core by their name, and
/// where another GID than the best one is meant, `@` and its index.
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
        "verbs" => {
            let (name, index) = match name.and_then(|name| name.split_once('@')) {
                Some((name, index)) => (Some(name), Some(index)),
                None => (name, None),
            };
            let index = index.map(|index| {
                let wrong =
                    |_| format!("{index:?} is no index of a GID: verbs:mlx5_0@3, for instance");
                index.parse::<u8>().map_err(wrong)
            });
            let nic = NicChoice {
                name: name.filter(|name| !name.is_empty()).map(str::to_owned),
                port: None,
                gid_index: index.transpose()?.map(u32::from),
            };
            let name = nic.name.clone().unwrap_or_else(|| "verbs".to_owned());
            Ok(DeviceConfig { name, nic: Some(nic), ..DeviceConfig::default() })
        }
        "doca" => {
            Err("doca devices are not available in this build; soft and verbs are".to_owned())
        }
        kind => Err(format!(
            "{kind:?} is no kind of device: soft and verbs are (doca is not in this build)"
        )),
    }
}

/// The device whose address has this index in the GID table that `spinwire devices` lists, or an IPv6 one. `device` where
/// neither is asked for. `far`: the peer is on another host, where no loopback address leads.
///
/// # Errors
/// What is wrong with the choice.
pub(crate) fn chosen(
    device: &str,
    index: Option<u32>,
    ipv6: bool,
    far: bool,
) -> Result<String, String> {
    if index.is_none() && !ipv6 {
        return Ok(device.to_owned());
    }
    if config(device)?.nic.is_some() {
        return match index {
            Some(index) if !ipv6 && !device.contains('@') => {
                let colon = if device.contains(':') { "" } else { ":" };
                Ok(format!("{device}{colon}@{index}"))
            }
            _ => Err(format!(
                "--device {device}: name its GID by -x alone; `spinwire devices` lists them"
            )),
        };
    }
    let found = soft_addresses().map_err(|error| format!("cannot list addresses: {error}"))?;
    choose(&found, device, index, ipv6, far)
}

fn choose(
    found: &SoftAddresses,
    device: &str,
    index: Option<u32>,
    ipv6: bool,
    far: bool,
) -> Result<String, String> {
    if device != "soft" {
        return Err(format!("--device {device} names an address: leave out -x and --ipv6"));
    }
    let addresses = &found.addresses;
    let address = match index {
        Some(index) => addresses.iter().find(|one| one.gid.index == index).ok_or_else(|| {
            format!(
                "-x {index}: the GID table has {} entries: see `spinwire devices`",
                addresses.len()
            )
        })?,
        None => free_ipv6(found, |ip| !far || !ip.is_loopback())
            .ok_or("--ipv6: no IPv6 address is free: see `spinwire devices`")?,
    };
    let ip = address.gid.gid.ip();
    match ipv6 && !ip.is_ipv6() {
        true => Err(format!("--ipv6: -x {} is {ip}: leave out one of both", address.gid.index)),
        false => Ok(format!("soft:{ip}")),
    }
}

/// The device of a second process of this machine, which must be of the same family: an address belongs to one process,
/// unless both need no socket.
///
/// # Errors
/// Where there is no second address.
pub(crate) fn beside(device: &str, needs_no_socket: bool) -> Result<String, String> {
    let config = config(device)?;
    if config.nic.is_some() {
        // Any number of processes share a NIC.
        return Ok(device.to_owned());
    }
    let Some(IpAddr::V6(own)) = config.address else {
        return Ok(device.split(':').next().unwrap_or(device).to_owned());
    };
    if needs_no_socket {
        return Ok(device.to_owned());
    }
    let found = soft_addresses().map_err(|error| format!("cannot list addresses: {error}"))?;
    let other = free_ipv6(&found, |ip| *ip != own).ok_or_else(|| {
        format!(
            "the second process needs an IPv6 address of its own beside {own}: add one, as in `sudo ip -6 address add \
             fd00::77/128 dev lo`, or use --wire shm or --processes 1"
        )
    })?;
    Ok(format!("soft:{}", other.gid.gid.ip()))
}

/// The first IPv6 address that nobody has, that needs no interface beside it and that will do.
fn free_ipv6(found: &SoftAddresses, will_do: impl Fn(&Ipv6Addr) -> bool) -> Option<&SoftAddress> {
    found.addresses.iter().find(|one| {
        let IpAddr::V6(ip) = one.gid.gid.ip() else { return false };
        one.taken.is_none() && !ip.is_unicast_link_local() && will_do(&ip)
    })
}

#[cfg(test)]
mod tests {
    use pmd_verbs::gid::{GidEntry, RoceVersion};
    use pmd_verbs::roce::ids::{Gid, PathMtu};
    use pmd_verbs::{PortState, Taken};

    use super::*;

    fn table(addresses: &[(&str, bool)]) -> SoftAddresses {
        let entry = |(index, (address, taken)): (u32, &(&str, bool))| SoftAddress {
            gid: GidEntry {
                index,
                gid: Gid::from(address.parse::<IpAddr>().unwrap()),
                version: RoceVersion::V2,
                netdev: None,
            },
            interface: "lo".into(),
            interface_mtu: 65536,
            state: PortState::Active,
            active_mtu: Some(PathMtu::B4096),
            taken: taken.then_some(Taken { owner: None }),
        };
        let addresses = (0..).zip(addresses).map(entry).collect();
        SoftAddresses { addresses, choice: None, auto: None }
    }

    #[test]
    fn an_index_means_the_entry_that_is_listed() {
        let found =
            table(&[("127.0.0.1", false), ("fe80::1", false), ("::1", true), ("fd00::2", false)]);
        let chosen = |index, ipv6| choose(&found, "soft", index, ipv6, false);
        assert_eq!(chosen(Some(0), false).unwrap(), "soft:127.0.0.1");
        assert_eq!(chosen(Some(3), true).unwrap(), "soft:fd00::2");
        assert_eq!(chosen(None, true).unwrap(), "soft:fd00::2", "free, and of no interface alone");
        assert!(chosen(Some(4), false).unwrap_err().contains("the GID table has 4 entries"));
        assert!(chosen(Some(0), true).unwrap_err().contains("-x 0 is 127.0.0.1"));
        let both = choose(&found, "soft:::1", Some(0), false, false).unwrap_err();
        assert!(both.contains("leave out -x"), "{both}");
        let free = table(&[("::1", false), ("fd00::2", false)]);
        assert_eq!(choose(&free, "soft", None, true, false).unwrap(), "soft:::1");
        assert_eq!(choose(&free, "soft", None, true, true).unwrap(), "soft:fd00::2");
    }

    #[test]
    fn the_second_process_has_an_address_of_the_same_family() {
        assert_eq!(beside("soft:127.0.0.9", false).unwrap(), "soft");
        assert_eq!(beside("soft", false).unwrap(), "soft");
        assert_eq!(beside("soft:::1", true).unwrap(), "soft:::1");
        let found = table(&[("::1", false), ("fd00::2", false)]);
        let other = free_ipv6(&found, |ip| *ip != Ipv6Addr::LOCALHOST).unwrap();
        assert_eq!(other.gid.gid.ip().to_string(), "fd00::2");
    }

    #[test]
    fn devices_by_kind_and_name() {
        assert_eq!(config("soft").unwrap().address, None);
        let named = config("soft:127.7.0.1").unwrap().address;
        assert_eq!(named, Some(IpAddr::from([127, 7, 0, 1])));
        assert_eq!(config("soft:::1").unwrap().address, Some("::1".parse().unwrap()));
        let nic = |name: Option<&str>, gid_index| {
            Some(NicChoice { name: name.map(str::to_owned), port: None, gid_index })
        };
        assert_eq!(config("verbs").unwrap().nic, nic(None, None));
        assert_eq!(config("verbs:mlx5_0").unwrap().nic, nic(Some("mlx5_0"), None));
        assert_eq!(config("verbs:rxe0@3").unwrap().nic, nic(Some("rxe0"), Some(3)));
        assert_eq!(config("verbs:@3").unwrap().nic, nic(None, Some(3)));
        assert_eq!(chosen("verbs", Some(3), false, true).unwrap(), "verbs:@3");
        assert_eq!(chosen("verbs:rxe0", Some(3), false, true).unwrap(), "verbs:rxe0@3");
        assert_eq!(chosen("verbs:rxe0@1", None, false, true).unwrap(), "verbs:rxe0@1");
        assert!(chosen("verbs:rxe0@1", Some(3), false, true).is_err());
        assert_eq!(beside("verbs:rxe0@1", false).unwrap(), "verbs:rxe0@1");
        for (device, complaint) in [
            ("soft:eth0", "not an address"),
            ("doca", "not available in this build"),
            ("verbs:rxe0@x", "no index"),
            ("hard", "no kind of device"),
            ("", "no kind of device"),
        ] {
            let text = config(device).unwrap_err();
            assert!(text.contains(complaint), "{text}");
        }
    }
}
