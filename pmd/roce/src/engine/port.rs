//! Ports that go down and come up, and addresses that move.

use super::Engine;
use crate::error::ResourceError;
use crate::event::AsyncEvent;
use crate::ids::Gid;
use crate::limits::MAX_GIDS;
use crate::port::PortState;

impl Engine {
    /// A port goes down: it raises `PortErr`, and from now on packets from and to its addresses are
    /// dropped, as a device's port does without a link. No queue pair fails by that: what is in flight
    /// is tried again for as long as its retries last, and nothing of this concerns shared memory. A
    /// port that is down already stays so without a word.
    ///
    /// # Errors
    /// [`ResourceError::Value`] when there is no such port.
    pub fn port_down(&mut self, port: u8) -> Result<(), ResourceError> {
        if self.device.ports.set_state(port, PortState::Down).ok_or_else(|| no_port(port))? {
            self.device.counters.link_downed += 1;
            self.device.events.raise(AsyncEvent::PortErr(port));
        }
        Ok(())
    }

    /// A port comes up: it raises `PortActive`, and packets pass again.
    ///
    /// # Errors
    /// [`ResourceError::Value`] when there is no such port.
    pub fn port_up(&mut self, port: u8) -> Result<(), ResourceError> {
        if self.device.ports.set_state(port, PortState::Active).ok_or_else(|| no_port(port))? {
            self.device.events.raise(AsyncEvent::PortActive(port));
        }
        Ok(())
    }

    /// What a port is doing; `None` when there is no such port.
    pub fn port_state(&self, port: u8) -> Option<PortState> {
        self.device.ports.get(port).map(|port| port.state)
    }

    /// Gives a port another table of source addresses, and raises `GidChange`. An entry of zeros is
    /// vacant. A connection keeps the address that it was given with its address vector, and so does an
    /// address handle: an index means nothing to them once it was looked up. Datagrams are taken for
    /// the addresses in the table. The same table again changes nothing.
    ///
    /// # Errors
    /// [`ResourceError::Value`] when there is no such port, or the table is longer than [`MAX_GIDS`].
    pub fn set_gids(&mut self, port: u8, gids: &[Gid]) -> Result<(), ResourceError> {
        let table = &mut self.device.ports.get_mut(port).ok_or_else(|| no_port(port))?.gids;
        if gids.len() > MAX_GIDS {
            let (field, value) = ("gid_tbl_len", gids.len() as u64);
            return Err(ResourceError::Value { field, value, need: "at most 32 addresses" });
        }
        if table != gids {
            table.clear();
            table.extend_from_slice(gids);
            self.device.events.raise(AsyncEvent::GidChange(port));
        }
        Ok(())
    }

    /// The source addresses of a port, by index; an address of zeros is a vacant entry. Empty when there
    /// is no such port.
    pub fn gids(&self, port: u8) -> &[Gid] {
        self.device.ports.get(port).map_or(&[], |port| &port.gids)
    }

    /// Port number and index of one of this side's addresses, as they are now: after `GidChange` an
    /// index is to be looked up again.
    pub fn find_gid(&self, gid: Gid) -> Option<(u8, u8)> {
        self.device.ports.find(gid)
    }
}

fn no_port(port: u8) -> ResourceError {
    let need = "must be a port of the device, counted from 1";
    ResourceError::Value { field: "port_num", value: port.into(), need }
}
