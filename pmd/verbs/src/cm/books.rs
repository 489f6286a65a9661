//! What the software NIC knows of its ids and channels.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use pmd_roce::cm::{CmEvent, ConnId, ListenerId, LookupId, Negotiated, PortSpace, Route};
use pmd_roce::ids::Psn;

use super::event::EventKind;
use super::managed::ManagedQp;
use super::provider::{ChannelKey, IdKey, IdState, Occurrence};
use super::{ports, watch::AddressWatch};
use crate::sleeper::Sleeper;
use crate::soft::Bell;

/// What an id is to the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Nothing,
    Listener(ListenerId),
    Connection(ConnId),
    /// A lookup of this side.
    Asking(LookupId),
    /// One of a peer.
    Asked(LookupId),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) space: PortSpace,
    pub(super) state: IdState,
    pub(super) role: Role,
    /// None: nobody wants to know any more.
    pub(super) channel: Option<ChannelKey>,
    pub(super) local: Option<SocketAddr>,
    /// The port is this id's, and not that of the listener it came from.
    pub(super) owns_port: bool,
    pub(super) peer: Option<SocketAddr>,
    pub(super) route: Option<Route>,
    pub(super) tos: u8,
    /// What was agreed on, once it was.
    pub(super) terms: Option<Negotiated>,
    /// First PSN that this side expects.
    pub(super) psn: Psn,
    pub(super) qp: Option<Rc<dyn ManagedQp>>,
    /// The queue pair of a connection that is over, until no packet of it can be under way: so long nobody gets its number.
    pub(super) lingering: Option<Rc<dyn ManagedQp>>,
}

impl Entry {
    pub(super) fn new(channel: Option<ChannelKey>, space: PortSpace, random: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "24 random bits are meant")]
        let psn = Psn::new(random as u32 & 0xff_ffff);
        Self {
            space,
            state: IdState::Idle,
            role: Role::Nothing,
            channel,
            local: None,
            owns_port: false,
            peer: None,
            route: None,
            tos: 0,
            terms: None,
            psn,
            qp: None,
            lingering: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) queue: VecDeque<Occurrence>,
    pub(super) bell: Bell,
    pub(super) sleeper: Rc<Sleeper>,
}

/// Ids and channels, and who is who.
#[derive(Debug)]
pub(super) struct Books {
    entries: BTreeMap<IdKey, Entry>,
    by_role: BTreeMap<Role, IdKey>,
    pub(super) channels: BTreeMap<ChannelKey, Channel>,
    next: u64,
    /// Events of connections that are no id's.
    pub(super) unclaimed: VecDeque<CmEvent>,
    pub(super) watch: AddressWatch,
    /// The ids were told that the device failed.
    pub(super) removed: bool,
}

impl Books {
    pub(super) const fn new(watch: AddressWatch) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_role: BTreeMap::new(),
            channels: BTreeMap::new(),
            next: 1,
            unclaimed: VecDeque::new(),
            watch,
            removed: false,
        }
    }

    pub(super) const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn add(&mut self, entry: Entry) -> IdKey {
        let key = IdKey(self.number());
        self.entries.insert(key, entry);
        key
    }

    /// An id lives as long as its handle.
    pub(super) fn entry(&self, key: IdKey) -> &Entry {
        self.entries.get(&key).expect("a handle keeps its id")
    }

    pub(super) fn entry_mut(&mut self, key: IdKey) -> &mut Entry {
        self.entries.get_mut(&key).expect("a handle keeps its id")
    }

    pub(super) fn find(&self, role: Role) -> Option<IdKey> {
        self.by_role.get(&role).copied()
    }

    pub(super) fn play(&mut self, key: IdKey, role: Role) {
        let entry = self.entry_mut(key);
        let before = std::mem::replace(&mut entry.role, role);
        self.by_role.remove(&before);
        if role != Role::Nothing {
            self.by_role.insert(role, key);
        }
    }

    pub(super) fn remove(&mut self, key: IdKey) {
        if let Some(entry) = self.entries.remove(&key) {
            self.by_role.remove(&entry.role);
        }
    }

    /// Tells an id's channel.
    pub(super) fn tell(&mut self, id: IdKey, kind: EventKind, request: Option<IdKey>) {
        let channel = self.entry(id).channel;
        if let Some(channel) = channel.and_then(|key| self.channels.get_mut(&key)) {
            channel.queue.push_back(Occurrence { id, kind, request });
            channel.bell.ring();
        }
    }

    /// Tells every id that `concerned` picks.
    pub(super) fn tell_all(&mut self, kind: &EventKind, concerned: impl Fn(&Entry) -> bool) {
        let ids: Vec<IdKey> = self
            .entries
            .iter()
            .filter(|(_, entry)| concerned(entry))
            .map(|(key, _)| *key)
            .collect();
        for id in ids {
            self.tell(id, kind.clone(), None);
        }
    }

    /// Takes what was not delivered of an id out of its channel: the ids of requests that nobody answers now.
    pub(super) fn withdraw(&mut self, id: IdKey) -> Vec<IdKey> {
        let channel = self.entry(id).channel;
        let Some(channel) = channel.and_then(|key| self.channels.get_mut(&key)) else {
            return Vec::new();
        };
        let requests =
            channel.queue.iter().filter(|o| o.id == id).filter_map(|o| o.request).collect();
        channel.queue.retain(|occurrence| occurrence.id != id);
        requests
    }

    /// Whether another id has a port.
    pub(super) fn is_taken(&self, space: PortSpace, ip: IpAddr, port: u16) -> bool {
        self.entries.values().filter(|entry| entry.owns_port).any(|entry| {
            entry.local.is_some_and(|local| {
                local.port() == port && ports::overlap((space, ip), (entry.space, local.ip()))
            })
        })
    }
}
