//! What `spinwire devices` tells of the devices of rdma-core.

use std::fmt::Write as _;

#[cfg(test)]
use pmd_verbs::LibraryError;
use pmd_verbs::gid::GidTable;
use pmd_verbs::{NicError, NicInfo, nics};
use serde_json::{Value, json};

use super::devices::columns;

/// The devices, or why there are none.
#[derive(Debug)]
pub(super) struct Nics(Result<Vec<NicInfo>, NicError>);

#[cfg(test)]
impl Default for Nics {
    /// Of a machine without the library.
    fn default() -> Self {
        Self(Err(LibraryError::Missing("not found".to_owned()).into()))
    }
}

impl Nics {
    /// Asks libibverbs.
    pub(super) fn take() -> Self {
        Self(nics())
    }

    /// Why none can be opened.
    pub(super) fn missing(&self) -> Option<String> {
        match &self.0 {
            Ok(found) if found.is_empty() => Some(NicError::NoDevice.to_string()),
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    fn found(&self) -> &[NicInfo] {
        self.0.as_deref().unwrap_or_default()
    }

    /// An object for each.
    pub(super) fn to_json(&self) -> Vec<Value> {
        self.found().iter().map(device).collect()
    }

    /// A paragraph for each.
    pub(super) fn to_text(&self) -> String {
        if let Some(why) = self.missing() {
            return format!("\nverbs: {why}\n");
        }
        self.found().iter().map(told).collect()
    }
}

/// The largest values that a request can have.
fn limits(nic: &NicInfo) -> [(&'static str, u32); 9] {
    let attr = &nic.attr;
    [
        ("max_qp", attr.max_qp),
        ("max_qp_wr", attr.max_qp_wr),
        ("max_sge", attr.max_sge),
        ("max_inline_data", attr.max_inline_data),
        ("max_cqe", attr.max_cqe),
        ("max_srq", attr.max_srq),
        ("max_srq_wr", attr.max_srq_wr),
        ("max_ah", attr.max_ah),
        ("max_qp_rd_atom", attr.max_qp_rd_atom.into()),
    ]
}

fn device(nic: &NicInfo) -> Value {
    let ports = nic.ports.iter().map(|(number, port)| {
        let gids = port.gids.entries.iter().map(|entry| {
            json!({
                "index": entry.index,
                "gid": entry.gid.to_string(),
                "address": entry.gid.ip().to_string(),
                "type": entry.version.to_string(),
                "form": entry.form().to_string(),
                "standing": entry.standing(),
                "interface": entry.netdev,
            })
        });
        let choice = port.gids.choose(None).ok().map(|choice| {
            json!({
                "index": choice.index,
                "gid": choice.gid.to_string(),
                "address": choice.gid.ip().to_string(),
                "reason": choice.reason,
            })
        });
        json!({
            "port": number,
            "state": port.state.to_string(),
            "active_mtu": port.active_mtu.bytes(),
            "gid_table_len": port.gids.len,
            "gids": gids.collect::<Vec<_>>(),
            "choice": choice,
        })
    });
    let limits: serde_json::Map<String, Value> =
        limits(nic).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    json!({
        "kind": "verbs",
        "name": nic.name,
        "driver": nic.driver,
        "firmware": nic.firmware,
        "limits": limits,
        "ports": ports.collect::<Vec<_>>(),
    })
}

fn told(nic: &NicInfo) -> String {
    let mut text = format!(
        "\nverbs:{}: {}, through rdma-core; firmware {}\n",
        nic.name, nic.driver, nic.firmware
    );
    for (number, port) in &nic.ports {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  port {number}: {}, path MTU {}\n", port.state, port.active_mtu);
        text.push_str(&gids(&port.gids));
        let _ = match port.gids.choose(None) {
            Ok(choice) => writeln!(
                text,
                "\n  automatic choice: GID {}, {}: {}",
                choice.index,
                choice.gid.ip(),
                choice.reason
            ),
            Err(error) => writeln!(text, "\n  automatic choice: none: {error}"),
        };
    }
    let limits = limits(nic).map(|(name, value)| format!("{name} {value}"));
    let _ = writeln!(text, "  limits: {}", limits.join(", "));
    text
}

fn gids(table: &GidTable) -> String {
    let rows = table.entries.iter().map(|entry| {
        [
            entry.index.to_string(),
            entry.gid.to_string(),
            entry.version.to_string(),
            entry.form().to_string(),
            entry.netdev.clone().unwrap_or_else(|| "none that is up".to_owned()),
        ]
    });
    let head = ["GID", "address", "type", "form", "interface"].map(str::to_owned);
    columns(&[head].into_iter().chain(rows).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use pmd_verbs::gid::{GidEntry, RoceVersion};
    use pmd_verbs::roce::ids::{Gid, PathMtu};
    use pmd_verbs::{DeviceAttr, PortAttr, PortState};

    use super::*;

    fn rxe() -> NicInfo {
        let entry = |index, address: &str| GidEntry {
            index,
            gid: Gid::from(address.parse::<IpAddr>().unwrap()),
            version: RoceVersion::V2,
            netdev: Some("eth0".to_owned()),
        };
        let gids =
            GidTable { len: 1024, entries: vec![entry(0, "fe80::2"), entry(1, "10.77.0.2")] };
        let attr = DeviceAttr {
            max_qp: 1000,
            max_qp_wr: 1 << 20,
            max_sge: 32,
            max_inline_data: 512,
            max_cqe: 32767,
            max_srq: 100,
            max_srq_wr: 4096,
            max_ah: 32767,
            max_qp_rd_atom: 128,
            auto_path_mig: false,
        };
        let port = PortAttr { state: PortState::Active, active_mtu: PathMtu::B1024, gids };
        let (name, driver) = ("rxe0".to_owned(), "rxe".to_owned());
        NicInfo { name, driver, firmware: "1".to_owned(), attr, ports: vec![(1, port)] }
    }

    /// P05: a kernel's device is told of as the software NIC is.
    #[test]
    fn p05_a_device_of_the_kernel_with_its_choice() {
        let nics = Nics(Ok(vec![rxe()]));
        let json = &nics.to_json()[0];
        assert_eq!((&json["kind"], &json["name"]), (&json!("verbs"), &json!("rxe0")));
        assert_eq!(json["ports"][0]["choice"]["address"], "10.77.0.2");
        assert_eq!(json["limits"]["max_inline_data"], 512);
        let text = nics.to_text();
        assert!(text.contains("verbs:rxe0: rxe, through rdma-core"), "{text}");
        assert!(
            text.contains("automatic choice: GID 1, 10.77.0.2: RoCE v2 at an IPv4 address of eth0")
        );
        assert_eq!(nics.missing(), None);
    }

    #[test]
    fn without_the_library_the_package_is_named() {
        let text = Nics::default().to_text();
        assert!(text.contains("apt install libibverbs1 ibverbs-providers"), "{text}");
        let none = Nics(Ok(Vec::new()));
        assert!(none.to_text().contains("rdma link add") && none.to_json().is_empty());
    }
}
