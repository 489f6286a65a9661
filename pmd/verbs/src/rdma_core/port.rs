//! What the lcores of a process share of a device: which it is, which port and which address of it.

use std::sync::Arc;

use pmd_roce::ids::{Gid, PathMtu};

use super::core::Core;
use super::nic::{NicChoice, NicError, Open, driver};
use crate::attr::{DeviceAttr, PortAttr};
use crate::gid::{GidError, RoceVersion};
use crate::journal::Journal;

/// A port of a device, as this process uses it.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) device: String,
    pub(crate) driver: String,
    pub(crate) number: u8,
    pub(crate) gid: Gid,
    pub(crate) gid_index: u8,
    pub(crate) version: RoceVersion,
    /// Why this address.
    pub(crate) reason: String,
    pub(crate) netdev: Option<String>,
    pub(crate) mtu: PathMtu,
    pub(crate) attr: DeviceAttr,
    pub(crate) max_message: u32,
}

impl Port {
    /// Finds the port and the address that a choice means.
    pub(crate) fn open(choice: &NicChoice) -> Result<Self, NicError> {
        let (open, number) = Open::chosen(choice)?;
        let device = open.name.clone();
        if !open.is_ethernet(number)? {
            return Err(NicError::LinkLayer { device, port: number });
        }
        let PortAttr { active_mtu, gids, .. } = open.port(number)?;
        let no_gid = |reason| NicError::Gid { device: device.clone(), port: number, reason };
        let chosen = gids.choose(choice.gid_index).map_err(no_gid)?;
        let beyond = GidError::OutOfRange { index: chosen.index, len: 256 };
        let gid_index = u8::try_from(chosen.index).map_err(|_| no_gid(beyond))?;
        let entry = gids.entries.iter().find(|entry| entry.index == chosen.index);
        Ok(Self {
            driver: driver(&device),
            number,
            gid: chosen.gid,
            gid_index,
            version: entry.map_or(RoceVersion::V2, |entry| entry.version),
            reason: chosen.reason,
            netdev: entry.and_then(|entry| entry.netdev.clone()),
            mtu: active_mtu,
            attr: open.attr()?,
            max_message: open.max_message(number)?,
            device: device.clone(),
        })
    }

    /// As it is now.
    pub(crate) fn query(&self) -> Result<PortAttr, NicError> {
        Open::named(&self.device)?.port(self.number)
    }

    /// One lcore's opening of the device.
    pub(crate) fn core(self: &Arc<Self>, journal: Journal) -> Result<Core, NicError> {
        Core::new(self, journal)
    }
}
