//! `spinwire devices`: what there is to run on.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use pmd_graph::app::{self, Exit};
use pmd_verbs::{SoftAddress, SoftAddresses, soft_addresses};
use serde_json::{Value, json};

use super::inventory::{Inventory, WireOutlook, limits};
use super::nics::Nics;
use crate::cli::DevicesArgs;

/// Kinds of device that pipelines can name and this build cannot open.
const ABSENT: [&str; 1] = ["doca"];

/// Lists devices, their ports, their GID tables and the automatic choice.
///
/// # Errors
/// When the kernel does not tell its addresses, or stdout cannot be written.
pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<Exit> {
    let (soft, nics, inventory) = (soft_addresses()?, Nics::take(), Inventory::take());
    let mut object = to_json(&soft, &nics);
    object["machine"] = inventory.to_json();
    if let Some(path) = &args.save {
        save(path, &format!("{object}\n"))?;
    }
    if args.json {
        app::print(&format!("{object}\n"))?;
    } else {
        app::print(&(to_text(&soft, &nics) + &told(&inventory)))?;
    }
    Ok(Exit::Done)
}

/// Keeps the list in a new file: what is there already may be an earlier baseline.
fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot save the list as {}", path.display()))
}

/// Whether anything can be sent at all.
fn port_state(soft: &SoftAddresses) -> String {
    let best = soft.addresses.iter().map(|address| address.state).max_by_key(|state| *state as u8);
    best.map_or_else(|| "PORT_DOWN".to_owned(), |state| state.to_string())
}

/// Who has an address, in words; `None`: nobody.
fn owner(address: &SoftAddress) -> Option<&str> {
    let taken = address.taken.as_ref()?;
    Some(taken.owner.as_deref().unwrap_or("another user's process or a kernel driver"))
}

fn to_json(soft: &SoftAddresses, nics: &Nics) -> Value {
    let gids = soft.addresses.iter().map(|address| {
        json!({
            "index": address.gid.index,
            "gid": address.gid.gid.to_string(),
            "address": address.gid.gid.ip().to_string(),
            "type": address.gid.version.to_string(),
            "form": address.gid.form().to_string(),
            "standing": address.gid.standing(),
            "interface": address.interface,
            "interface_mtu": address.interface_mtu,
            "state": address.state.to_string(),
            "active_mtu": address.active_mtu.map(|mtu| mtu.bytes()),
            "taken": address.taken.is_some(),
            "owner": owner(address),
        })
    });
    let choice = soft.choice.as_ref().map(|choice| {
        json!({
            "index": choice.index,
            "gid": choice.gid.to_string(),
            "address": choice.gid.ip().to_string(),
            "reason": choice.reason,
        })
    });
    let port = json!({
        "port": 1,
        "state": port_state(soft),
        "gids": gids.collect::<Vec<_>>(),
        "choice": choice,
        "auto_address": soft.auto.map(|address| address.to_string()),
    });
    let mut absent =
        ABSENT.map(|kind| json!({ "kind": kind, "reason": "not in this build" })).to_vec();
    absent.extend(nics.missing().map(|reason| json!({ "kind": "verbs", "reason": reason })));
    let software = json!({
            "kind": "soft",
            "name": "soft",
            "wires": ["shm", "udp"],
            "cm_roce_mode": "RoCE v2",
            "limits": limits().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "ports": [port],
    });
    let devices: Vec<Value> = std::iter::once(software).chain(nics.to_json()).collect();
    json!({ "devices": devices, "unavailable": absent })
}

fn to_text(soft: &SoftAddresses, nics: &Nics) -> String {
    let mut text = format!(
        "soft: RoCE v2 in user space, over shared memory and UDP\n  port 1: {}\n\n",
        port_state(soft)
    );
    let rows = soft.addresses.iter().map(|address| {
        [
            address.gid.index.to_string(),
            address.gid.gid.to_string(),
            address.gid.version.to_string(),
            address.gid.form().to_string(),
            address.active_mtu.map_or_else(|| "none".to_owned(), |mtu| mtu.to_string()),
            format!("{} ({}, {})", address.interface, address.interface_mtu, address.state),
            owner(address).map_or_else(|| "free".to_owned(), |owner| format!("taken by {owner}")),
        ]
    });
    let head = ["GID", "address", "type", "form", "path MTU", "interface (MTU, state)", "use"]
        .map(str::to_owned);
    text.push_str(&columns(&[head].into_iter().chain(rows).collect::<Vec<_>>()));
    // Writing to a String does not fail.
    let _ = match &soft.choice {
        Some(choice) => writeln!(
            text,
            "\n  automatic choice: GID {}, {}: {}",
            choice.index,
            choice.gid.ip(),
            choice.reason
        ),
        None => writeln!(text, "\n  automatic choice: none, every address is taken"),
    };
    let _ = match soft.auto {
        Some(address) => writeln!(
            text,
            "  address = \"auto\": {address}, the first free loopback address, toward peers of this host"
        ),
        None => writeln!(
            text,
            "  address = \"auto\": none, somebody has the RoCE port of every address"
        ),
    };
    text.push_str(&nics.to_text());
    let _ = writeln!(text, "\n{}: not in this build", ABSENT.join(", "));
    text
}

/// The rest of this machine, in words.
fn told(inventory: &Inventory) -> String {
    let listed = |pairs: &[(&str, u64)]| {
        let pairs: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{name} {value}")).collect();
        pairs.join(", ")
    };
    let mut text = format!(
        "\nlimits: {}\nconnection manager: RoCE v2\nUDP so far: {}\nkernel RDMA devices: {}\n",
        listed(&limits()),
        listed(&inventory.counters),
        if inventory.kernel_devices.is_empty() {
            "none".to_owned()
        } else {
            inventory.kernel_devices.join(", ")
        },
    );
    for WireOutlook { wire, lacks } in inventory.outlook() {
        let machine = match lacks.is_empty() {
            true => "this machine has what it takes".to_owned(),
            false => format!("this machine lacks {}", lacks.join(", ")),
        };
        text.push_str(&format!("wire {wire}: not in this build; {machine}\n"));
    }
    for (what, fix) in inventory.missing() {
        text.push_str(&format!("missing: {what}; {fix}\n"));
    }
    text
}

/// Lines whose columns stand under each other.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use pmd_verbs::gid::{GidChoice, GidEntry, RoceVersion};
    use pmd_verbs::roce::ids::{Gid, PathMtu};
    use pmd_verbs::{PortState, Taken};

    use super::*;

    fn address(index: u32, address: &str, name: &str, taken: Option<Taken>) -> SoftAddress {
        let gid = Gid::from(address.parse::<IpAddr>().unwrap());
        let netdev = Some(name.to_owned());
        SoftAddress {
            gid: GidEntry { index, gid, version: RoceVersion::V2, netdev },
            interface: name.to_owned(),
            interface_mtu: 1500,
            state: PortState::Active,
            active_mtu: Some(PathMtu::B1024),
            taken,
        }
    }

    fn found() -> SoftAddresses {
        let owner = Some("process 7 (spinwire)".to_owned());
        let addresses = vec![
            address(0, "10.0.0.7", "eth0", Some(Taken { owner })),
            address(1, "fe80::7", "eth0", None),
        ];
        let gid = addresses[1].gid.gid;
        let choice = Some(GidChoice { index: 1, gid, reason: "it is the only free one".into() });
        SoftAddresses { addresses, choice, auto: Some(Ipv4Addr::LOCALHOST) }
    }

    /// P05: programs find the table, the choice and its reason.
    #[test]
    fn p05_the_choice_and_its_reason_as_json() {
        let json = to_json(&found(), &Nics::default());
        let port = &json["devices"][0]["ports"][0];
        assert_eq!((&port["port"], &port["state"]), (&json!(1), &json!("PORT_ACTIVE")));
        assert_eq!(
            port["gids"][0],
            json!({
                "index": 0, "gid": "::ffff:10.0.0.7", "address": "10.0.0.7", "type": "RoCE v2",
                "form": "IPv4-mapped", "standing": "RoCE v2 at an IPv4 address",
                "interface": "eth0", "interface_mtu": 1500, "state": "PORT_ACTIVE",
                "active_mtu": 1024, "taken": true, "owner": "process 7 (spinwire)",
            })
        );
        assert_eq!(port["gids"][1]["owner"], Value::Null);
        assert_eq!(port["choice"]["index"], 1);
        assert_eq!(port["choice"]["reason"], "it is the only free one");
        assert_eq!(port["auto_address"], "127.0.0.1");
        let unavailable = &json["unavailable"];
        assert_eq!(
            (&unavailable[0]["kind"], &unavailable[1]["kind"]),
            (&json!("doca"), &json!("verbs"))
        );
    }

    #[test]
    fn people_see_who_has_what() {
        let text = to_text(&found(), &Nics::default());
        let line = text.lines().find(|line| line.contains("::ffff:10.0.0.7")).unwrap();
        assert!(
            line.ends_with("eth0 (1500, PORT_ACTIVE)  taken by process 7 (spinwire)"),
            "{line}"
        );
        assert!(text.contains("automatic choice: GID 1, fe80::7: it is the only free one\n"));
        let nothing = SoftAddresses { addresses: Vec::new(), choice: None, auto: None };
        let text = to_text(&nothing, &Nics::default());
        assert!(text.contains("port 1: PORT_DOWN") && text.contains("automatic choice: none"));
    }
}
