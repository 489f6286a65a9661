//! Ports: whether packets pass, and which addresses there are.

use core::fmt;

use crate::ids::Gid;
use crate::limits::MAX_GIDS;

/// What a port is doing; values of `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortState {
    /// Nothing passes: the interface is down, or has no carrier.
    Down = 1,
    /// Packets pass.
    Active = 4,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Down => "PORT_DOWN",
            Self::Active => "PORT_ACTIVE",
        })
    }
}

/// A port.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) state: PortState,
    /// Source addresses by index; an address of zeros is a vacant entry.
    pub(crate) gids: Vec<Gid>,
}

/// The ports of an engine, by number from 1.
#[derive(Debug)]
pub(crate) struct Ports {
    ports: Vec<Port>,
    /// Whether one of them is down.
    pub(crate) some_down: bool,
}

impl Ports {
    /// Active ports with these addresses.
    pub(crate) fn new(tables: impl IntoIterator<Item = Vec<Gid>>) -> Self {
        let port = |mut gids: Vec<Gid>| {
            gids.reserve_exact(MAX_GIDS.saturating_sub(gids.len()));
            Port { state: PortState::Active, gids }
        };
        Self { ports: tables.into_iter().map(port).collect(), some_down: false }
    }

    pub(crate) fn get(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number).wrapping_sub(1))
    }

    pub(crate) fn get_mut(&mut self, number: u8) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number).wrapping_sub(1))
    }

    /// Port number and index of an address.
    pub(crate) fn find(&self, gid: Gid) -> Option<(u8, u8)> {
        (1..).zip(&self.ports).find_map(|(number, port)| {
            let index = port.gids.iter().position(|known| *known == gid)?;
            Some((number, u8::try_from(index).ok()?))
        })
    }

    /// Whether packets from or to this address cannot pass. One that is in no table any more, or a
    /// group, passes as long as some port is up.
    #[cold]
    pub(crate) fn is_down(&self, gid: Gid) -> bool {
        let is_down = |port: &Port| port.state == PortState::Down;
        match self.find(gid).and_then(|(number, _)| self.get(number)) {
            Some(port) => is_down(port),
            None => self.ports.iter().all(is_down),
        }
    }

    /// Changes the state of a port; whether it was another one.
    pub(crate) fn set_state(&mut self, number: u8, state: PortState) -> Option<bool> {
        let before = core::mem::replace(&mut self.get_mut(number)?.state, state);
        self.some_down = self.ports.iter().any(|port| port.state == PortState::Down);
        Some(before != state)
    }
}
