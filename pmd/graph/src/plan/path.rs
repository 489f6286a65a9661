//! The path MTU of a device: what the interface takes that has its address. Two ends use the smaller of theirs, or of what their
//! nodes ask for.

use std::net::IpAddr;

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
}

/// Of `device` on `machine`; `None` for one without packets, or whose address is not there.
pub(super) fn resolve(device: &Device, machine: &Machine) -> Option<PathPlan> {
    if device.kind != "soft" || device.settings.text("wire") == "shm" {
        return None;
    }
    let wanted = device.address();
    let is_loopback = |ip: IpAddr| ip.is_ipv4() && ip.is_loopback();
    let exact = machine.addresses.iter().find(|known| Some(known.ip) == wanted);
    // All of the loopback network is there without being configured, and what is chosen is one of it.
    let loops_back = wanted.is_none_or(is_loopback);
    let loopback = machine.addresses.iter().find(|known| loops_back && is_loopback(known.ip));
    let Address { interface, interface_mtu, path_mtu, .. } = exact.or(loopback)?;
    let (interface, interface_mtu) = (interface.clone(), *interface_mtu);
    Some(PathPlan { interface, interface_mtu, path_mtu: (*path_mtu)? })
}
