//! The source address and the path MTU of a device: what the interface takes that has its address. Two ends use the smaller of theirs, or of what their
//! nodes ask for.

use std::net::IpAddr;

use pmd_verbs::gid::RoceVersion;

use super::machine::{Address, Machine};
use crate::config::Device;

/// Where packets of a device leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPlan {
    /// The interface that has the device's address.
    pub interface: String,
    /// Bytes of the largest IP packet that it takes.
    pub interface_mtu: usize,
    /// The largest path MTU, bytes of payload per packet.
    pub path_mtu: u32,
    /// Where packets come from.
    pub gid: GidPlan,
}

/// The source address of a device, in the GID table that `spinwire devices` lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidPlan {
    /// Its index; `None` where no interface has it, as with most of the loopback network.
    pub index: Option<usize>,
    /// The address; `None`: one that is free when the device is opened.
    pub address: Option<IpAddr>,
    /// Why this one.
    pub reason: String,
}

impl GidPlan {
    /// How packets of the software NIC look.
    pub const TYPE: RoceVersion = RoceVersion::V2;
}

/// Of `device` on `machine`; `None` for one without packets, or whose address is not there.
pub(super) fn resolve(device: &Device, machine: &Machine) -> Option<PathPlan> {
    if device.kind != "soft" || device.settings.text("wire") == "shm" {
        return None;
    }
    let index = device.gid_index();
    let wanted = match index {
        Some(index) => Some(machine.addresses.get(index)?.ip),
        None => device.address(),
    };
    let is_loopback = |ip: IpAddr| ip.is_ipv4() && ip.is_loopback();
    let exact = machine.addresses.iter().find(|known| Some(known.ip) == wanted);
    // All of the loopback network is there without being configured, and what is chosen is one of it.
    let loops_back = wanted.is_none_or(is_loopback);
    let loopback = machine.addresses.iter().find(|known| loops_back && is_loopback(known.ip));
    let Address { interface, interface_mtu, path_mtu, .. } = exact.or(loopback)?;
    let (interface, interface_mtu) = (interface.clone(), *interface_mtu);
    let address = wanted.or_else(|| machine.auto_address.map(IpAddr::V4));
    let gid = GidPlan {
        index: machine.addresses.iter().position(|known| Some(known.ip) == address),
        address,
        reason: match (index, wanted) {
            (Some(index), _) => format!("gid_index = {index} was asked for"),
            (None, Some(_)) => "asked for".to_owned(),
            (None, None) => "the first free loopback address, toward peers of this host".to_owned(),
        },
    };
    Some(PathPlan { interface, interface_mtu, path_mtu: (*path_mtu)?, gid })
}
