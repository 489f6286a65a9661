//! What ids of the software NIC are asked to do.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use pmd_roce::cm::{
    Accept, AnswerError, CmState, Connect, Listen, LocalQp, Lookup, LookupAnswer, Negotiated,
    PortSpace, RejectReason, Route, ServiceId, SidrStatus,
};
use pmd_roce::ids::{Gid, Psn, Qpn};
use pmd_roce::port::PortState;
use pmd_roce::qp::attr::{ModifyQpError, QpAttr};
use pmd_roce::qp::state::{QpState, Transport, masks};

use super::books::{Channel, Entry, Role};
use super::desk::{Desk, bring_up, fail, new_entry};
use super::event::{AddrFault, EventKind, Membership};
use super::id::ConnectParams;
use super::id_error::IdError;
use super::managed::ManagedQp;
use super::ports;
use super::provider::{ChannelKey, IdKey, IdState, IdView, Occurrence, Provider, UDP_QKEY};
use crate::sleeper::Sleeper;
use crate::soft::Bell;

/// Turns of the device that one look takes at most, however much there is to do.
const TURNS: usize = 16;
/// Requests that may wait at a listener that sets no limit.
const MAX_BACKLOG: usize = 1024;

impl Provider for Desk {
    fn create_channel(&self) -> io::Result<(ChannelKey, OwnedFd)> {
        let bell = Bell::new()?;
        let sleeper = Rc::new(Sleeper::new(&self.cx, &[&bell, self.bell()?])?);
        let fd = sleeper.fd().try_clone_to_owned()?;
        let mut books = self.books.borrow_mut();
        let key = ChannelKey(books.number());
        books.channels.insert(key, Channel { queue: VecDeque::new(), bell, sleeper });
        Ok((key, fd))
    }

    fn destroy_channel(&self, channel: ChannelKey) {
        let gone = self.books.borrow_mut().channels.remove(&channel);
        let requests = gone.into_iter().flat_map(|channel| channel.queue);
        for request in requests.filter_map(|occurrence| occurrence.request) {
            self.destroy_id(request);
        }
    }

    fn poll(&self, channel: ChannelKey, only: Option<IdKey>) -> Option<Occurrence> {
        for _ in 0..TURNS {
            let work = self.cx.nudge();
            self.pump();
            let mut books = self.books.borrow_mut();
            let channel = books.channels.get_mut(&channel)?;
            let wanted = |occurrence: &Occurrence| only.is_none_or(|id| occurrence.id == id);
            if let Some(at) = channel.queue.iter().position(wanted) {
                return channel.queue.remove(at);
            }
            if channel.queue.is_empty() {
                channel.bell.silence();
            }
            if work == 0 && (self.cx.is_driven() || self.cx.with(|core| core.sleep())) {
                return None;
            }
        }
        // More to do than one look takes: the descriptor says so at once.
        let now = self.cx.device().now();
        self.cx.with(|core| core.wake(now));
        None
    }

    fn sleep(&self, channel: ChannelKey, limit: Duration) -> io::Result<()> {
        // A turn of its own: nobody else drives the device while this thread sleeps.
        let work = self.cx.progress(self.cx.device().now());
        let sleeper = self.books.borrow().channels.get(&channel).map(|c| Rc::clone(&c.sleeper));
        match sleeper {
            Some(sleeper) if work == 0 && self.cx.with(|core| core.sleep()) => sleeper.sleep(limit),
            _ => Ok(()),
        }
    }

    fn create_id(&self, channel: ChannelKey, space: PortSpace) -> IdKey {
        self.pump();
        self.books.borrow_mut().add(new_entry(Some(channel), space, IdState::Idle))
    }

    fn destroy_id(&self, id: IdKey) {
        // Requests that the manager has not told of yet go with their listener, too.
        self.pump();
        // The borrow ends here: each request that goes with the id borrows the books again.
        let requests = self.books.borrow_mut().withdraw(id);
        for request in requests {
            self.destroy_id(request);
        }
        self.books_destroy(id);
    }

    fn view(&self, id: IdKey) -> IdView {
        let books = self.books.borrow();
        let Entry { space, state, local, peer, route, qp, .. } = books.entry(id);
        let (qp, path) = (qp.as_ref().map(|qp| qp.number()), route.map(|route| self.path(&route)));
        let (space, state, local, peer, route) = (*space, *state, *local, *peer, *route);
        IdView { space, state, local, peer, route, path, qp }
    }

    fn migrate(&self, id: IdKey, channel: ChannelKey) {
        let mut books = self.books.borrow_mut();
        let before = books.entry_mut(id).channel.replace(channel);
        let Some(before) = before.and_then(|key| books.channels.get_mut(&key)) else { return };
        let all = std::mem::take(&mut before.queue);
        let (moved, left): (VecDeque<_>, _) =
            all.into_iter().partition(|occurrence| occurrence.id == id);
        before.queue = left;
        if let Some(after) = books.channels.get_mut(&channel)
            && !moved.is_empty()
        {
            after.queue.extend(moved);
            after.bell.ring();
        }
    }

    fn set_type_of_service(&self, id: IdKey, tos: u8) {
        self.books.borrow_mut().entry_mut(id).tos = tos;
    }

    fn bind(&self, id: IdKey, local: SocketAddr) -> Result<(), IdError> {
        self.stands("bind", id, &[IdState::Idle], "one is bound once, and first")?;
        let has = self.cx.device().gid();
        if !local.ip().is_unspecified() && Gid::from(local.ip()) != has {
            return Err(IdError::NoSuchAddress { address: local, has });
        }
        self.take_port(id, local)
    }

    fn listen(&self, id: IdKey, backlog: usize) -> Result<(), IdError> {
        let wanted = "bind it first, and it can be used for nothing else";
        self.stands("listen", id, &[IdState::Bound], wanted)?;
        let mut books = self.books.borrow_mut();
        let Entry { space, local: Some(local), .. } = *books.entry(id) else {
            return Err(IdError::NoPort(books.entry(id).space));
        };
        let address = (!local.ip().is_unspecified()).then(|| Gid::from(local.ip()));
        let service = ServiceId::new(space, local.port());
        let backlog = if backlog == 0 { MAX_BACKLOG } else { backlog };
        let listener = self.command(|cm, _| cm.listen(Listen { service, address, backlog }))?;
        books.play(id, Role::Listener(listener));
        books.entry_mut(id).state = IdState::Listening;
        Ok(())
    }

    fn resolve_addr(&self, id: IdKey, to: SocketAddr) -> Result<(), IdError> {
        let wanted = "an address is resolved once, before all else";
        self.stands("resolve_addr", id, &[IdState::Idle, IdState::Bound], wanted)?;
        let (from, target) = (self.cx.device().gid(), Gid::from(to.ip()));
        let fault = leads(from, target);
        if fault.is_none() && self.view(id).local.is_none() {
            self.take_port(id, SocketAddr::new(from.ip(), 0))?;
        }
        let mut books = self.books.borrow_mut();
        let entry = books.entry_mut(id);
        let kind = match fault {
            Some(fault) => EventKind::AddrError(fault),
            None => {
                entry.peer = Some(to);
                entry.local = entry.local.map(|local| SocketAddr::new(from.ip(), local.port()));
                entry.state = IdState::AddrResolved;
                EventKind::AddrResolved
            }
        };
        books.tell(id, kind, None);
        Ok(())
    }

    fn resolve_route(&self, id: IdKey) -> Result<(), IdError> {
        let wanted = "resolve the address first, and the route once";
        self.stands("resolve_route", id, &[IdState::AddrResolved], wanted)?;
        let mut books = self.books.borrow_mut();
        let source = self.cx.device().gid();
        let port = self.cx.with_soft(|core| {
            let (port, _) = core.engine.find_gid(source)?;
            core.engine.port_state(port)
        });
        let entry = books.entry_mut(id);
        let kind = match (port, entry.peer) {
            (Some(PortState::Active), Some(peer)) => {
                let route = Route::between(source, Gid::from(peer.ip()));
                entry.route = Some(Route { traffic_class: entry.tos, ..route });
                entry.state = IdState::RouteResolved;
                EventKind::RouteResolved
            }
            _ => EventKind::RouteError,
        };
        books.tell(id, kind, None);
        Ok(())
    }

    fn attach(&self, id: IdKey, qp: Rc<dyn ManagedQp>) -> Result<(), IdError> {
        let mut books = self.books.borrow_mut();
        let entry = books.entry_mut(id);
        if entry.qp.is_some() {
            return Err(IdError::HasQueuePair);
        }
        let (space, transport) = (entry.space, qp.transport());
        let serves = match space {
            PortSpace::Udp => transport == Transport::Ud,
            _ => matches!(transport, Transport::Rc | Transport::Uc),
        };
        if !serves {
            return Err(IdError::Service { transport, space });
        }
        let source = self.cx.device().gid();
        let (port, _) = self.cx.with(|core| core.find_gid(source)).unwrap_or((1, 0));
        prepare(&*qp, port)?;
        entry.qp = Some(qp);
        Ok(())
    }

    fn detach(&self, id: IdKey) {
        let mut books = self.books.borrow_mut();
        let entry = books.entry_mut(id);
        let qp = entry.qp.take();
        // Its number is no other's before no packet of the connection can be under way.
        if entry.state == IdState::Disconnected {
            entry.lingering = qp;
        }
    }

    fn connect(&self, id: IdKey, params: &ConnectParams<'_>) -> Result<(), IdError> {
        let wanted = "resolve the route first";
        self.stands("connect", id, &[IdState::RouteResolved], wanted)?;
        let mut books = self.books.borrow_mut();
        let entry = books.entry(id);
        let (Some(route), Some(local), Some(peer)) = (entry.route, entry.local, entry.peer) else {
            return Err(IdError::NoPort(entry.space));
        };
        let (service, source_port) = (ServiceId::new(entry.space, peer.port()), local.port());
        let private_data = params.private_data;
        let role = if entry.space == PortSpace::Udp {
            let lookup = Lookup { service, source_port, route, private_data };
            Role::Asking(self.command(|cm, now| cm.lookup(now, &lookup))?)
        } else {
            let (qp, transport) = queue_pair(entry, params)?;
            let ConnectParams { param, .. } = *params;
            let connect = Connect {
                service,
                source_port,
                route,
                mtu: None,
                transport,
                qp,
                param,
                private_data,
            };
            Role::Connection(self.command(|cm, now| cm.connect(now, &connect))?)
        };
        books.play(id, role);
        books.entry_mut(id).state = IdState::Connecting;
        Ok(())
    }

    fn negotiate(&self, id: IdKey, params: &ConnectParams<'_>) -> Result<Negotiated, IdError> {
        self.stands("negotiate", id, &[IdState::Requested], "it answers a request")?;
        let books = self.books.borrow();
        let entry = books.entry(id);
        let Role::Connection(connection) = entry.role else {
            return Err(AnswerError::NoSuchConnection.into());
        };
        let (qp, _) = queue_pair(entry, params)?;
        let ConnectParams { param, private_data, .. } = *params;
        let accept = Accept { qp, param, private_data };
        Ok(self.settle(&self.command(|cm, _| cm.negotiate(connection, &accept))?))
    }

    fn accept(&self, id: IdKey, params: &ConnectParams<'_>) -> Result<(), IdError> {
        self.stands("accept", id, &[IdState::Requested], "it answers a request")?;
        let role = self.books.borrow().entry(id).role;
        let Role::Asked(lookup) = role else { return self.accept_connection(id, params) };
        let qpn = self.view(id).qp.or_else(|| params.qp.map(|qp| qp.qpn));
        let qpn = qpn.ok_or(IdError::NoQueuePair)?;
        let private_data = params.private_data;
        let found = LookupAnswer::Found { qpn, qkey: UDP_QKEY, private_data };
        self.command(|cm, now| cm.answer_lookup(now, lookup, &found))?;
        let mut books = self.books.borrow_mut();
        books.play(id, Role::Nothing);
        books.entry_mut(id).state = IdState::Connected;
        Ok(())
    }

    fn reject(&self, id: IdKey, private_data: &[u8]) -> Result<(), IdError> {
        let answers = [IdState::Requested, IdState::Responded];
        self.stands("reject", id, &answers, "it answers a request, or an acceptance")?;
        let mut books = self.books.borrow_mut();
        match books.entry(id).role {
            Role::Asked(lookup) => {
                let status = SidrStatus::REJECT;
                let refused = LookupAnswer::Refused { status, private_data };
                self.command(|cm, now| cm.answer_lookup(now, lookup, &refused))?;
                books.play(id, Role::Nothing);
            }
            Role::Connection(connection) => {
                let reason = RejectReason::CONSUMER;
                self.command(|cm, _| cm.reject(connection, reason, private_data))?;
            }
            _ => return Err(AnswerError::NoSuchConnection.into()),
        }
        books.entry_mut(id).state = IdState::Over;
        Ok(())
    }

    fn establish(&self, id: IdKey, private_data: &[u8]) -> Result<(), IdError> {
        let wanted = "CONNECT_RESPONSE comes first; an id with a queue pair does this itself";
        self.stands("establish", id, &[IdState::Responded], wanted)?;
        let mut books = self.books.borrow_mut();
        let Role::Connection(connection) = books.entry(id).role else {
            return Err(AnswerError::NoSuchConnection.into());
        };
        self.command(|cm, _| cm.establish(connection, private_data))?;
        books.entry_mut(id).state = IdState::Connected;
        Ok(())
    }

    fn disconnect(&self, id: IdKey, private_data: &[u8]) -> Result<(), IdError> {
        self.pump();
        let may = [IdState::Connecting, IdState::Connected, IdState::Disconnected, IdState::Over];
        self.stands("disconnect", id, &may, "it has no connection yet: reject or destroy it")?;
        let mut books = self.books.borrow_mut();
        let entry = books.entry(id);
        let Role::Connection(connection) = entry.role else {
            return Err(AnswerError::NoSuchConnection.into());
        };
        if entry.state == IdState::Over {
            return Ok(());
        }
        self.command(|cm, now| cm.disconnect(now, connection, private_data))?;
        fail(entry);
        books.entry_mut(id).state = IdState::Disconnected;
        Ok(())
    }

    fn join(&self, id: IdKey, group: Gid) -> Result<(), IdError> {
        let mut books = self.books.borrow_mut();
        let qp = books.entry(id).qp.clone().ok_or(IdError::NoQueuePair)?;
        let kind = match qp.join_group(group) {
            Ok(()) => {
                let source = self.cx.device().gid();
                let av = self.path(&Route::between(source, group));
                let (qpn, qkey) = (Qpn::MULTICAST, UDP_QKEY);
                EventKind::MulticastJoin(Membership { group, av, qpn, qkey })
            }
            Err(error) => EventKind::MulticastError(group, error),
        };
        books.tell(id, kind, None);
        Ok(())
    }

    fn leave(&self, id: IdKey, group: Gid) -> Result<(), IdError> {
        let qp = self.books.borrow().entry(id).qp.clone().ok_or(IdError::NoQueuePair)?;
        Ok(qp.leave_group(group)?)
    }
}

impl Desk {
    /// Whether an id is where an operation begins.
    fn stands(
        &self,
        operation: &'static str,
        id: IdKey,
        may: &[IdState],
        need: &'static str,
    ) -> Result<(), IdError> {
        let books = self.books.borrow();
        let state = books.entry(id).state;
        match may.contains(&state) {
            true if books.removed => Err(IdError::DeviceRemoved),
            true => Ok(()),
            false => Err(IdError::State { operation, state, need }),
        }
    }

    fn take_port(&self, id: IdKey, local: SocketAddr) -> Result<(), IdError> {
        let mut books = self.books.borrow_mut();
        let (space, ip) = (books.entry(id).space, local.ip());
        let port = match local.port() {
            0 => ports::choose(pmd_mem::os_entropy(), |port| books.is_taken(space, ip, port))
                .ok_or(IdError::NoPort(space))?,
            port if books.is_taken(space, ip, port) => {
                return Err(IdError::PortInUse { space, port });
            }
            port => port,
        };
        let entry = books.entry_mut(id);
        entry.local = Some(SocketAddr::new(ip, port));
        entry.owns_port = true;
        entry.state = IdState::Bound;
        Ok(())
    }

    fn accept_connection(&self, id: IdKey, params: &ConnectParams<'_>) -> Result<(), IdError> {
        let terms = self.negotiate(id, params)?;
        let mut books = self.books.borrow_mut();
        let entry = books.entry_mut(id);
        let Role::Connection(connection) = entry.role else {
            return Err(AnswerError::NoSuchConnection.into());
        };
        let (local, _) = queue_pair(entry, params)?;
        if let Some(qp) = &entry.qp {
            bring_up(&**qp, &terms)?;
        }
        let ConnectParams { param, private_data, .. } = *params;
        let accept = Accept { qp: local, param, private_data };
        self.command(|cm, now| cm.accept(now, connection, &accept))?;
        entry.terms = Some(terms);
        entry.state = IdState::Connecting;
        Ok(())
    }

    /// The handle of an id is gone, or nobody ever took it.
    fn books_destroy(&self, id: IdKey) {
        let mut books = self.books.borrow_mut();
        match books.entry(id).role {
            Role::Nothing => {}
            Role::Listener(listener) => self.command(|cm, _| cm.unlisten(listener)),
            Role::Asking(lookup) => self.command(|cm, _| {
                if let Err(error) = cm.destroy_lookup(lookup) {
                    tracing::debug!("a lookup that is over: {error}");
                }
            }),
            Role::Asked(lookup) => {
                let status = SidrStatus::REJECT;
                let refused = LookupAnswer::Refused { status, private_data: &[] };
                let told = self.command(|cm, now| cm.answer_lookup(now, lookup, &refused));
                if let Err(error) = told {
                    tracing::debug!("a lookup that is over: {error}");
                }
            }
            Role::Connection(connection) => {
                let state = self.command(|cm, now| {
                    if cm.state(connection) == Some(CmState::Established)
                        && let Err(error) = cm.disconnect(now, connection, &[])
                    {
                        tracing::debug!("{connection}: {error}");
                    }
                    cm.state(connection)
                });
                let ends = matches!(state, Some(CmState::DreqSent | CmState::Timewait));
                let entry = books.entry_mut(id);
                let qp = entry.qp.take().or_else(|| entry.lingering.take());
                if let Some(qp) = qp.filter(|_| ends) {
                    entry.qp = Some(qp);
                    fail(entry);
                    (entry.lingering, entry.channel) = (entry.qp.take(), None);
                    entry.owns_port = false;
                    return;
                }
                self.forget_connection(connection);
            }
        }
        books.remove(id);
    }
}

/// The queue pair of an id, or the one that its owner names.
fn queue_pair(entry: &Entry, params: &ConnectParams<'_>) -> Result<(LocalQp, Transport), IdError> {
    match (&entry.qp, params.qp) {
        (Some(qp), None) => {
            let local = LocalQp { qpn: qp.number(), psn: entry.psn, srq: qp.has_srq() };
            Ok((local, qp.transport()))
        }
        (None, Some(local)) => Ok((local, params.transport)),
        (Some(_), Some(_)) => Err(IdError::HasQueuePair),
        (None, None) => Err(IdError::NoQueuePair),
    }
}

/// To where receives can be posted; datagrams need no more than that to be sent, too.
fn prepare(qp: &dyn ManagedQp, port: u8) -> Result<(), ModifyQpError> {
    let transport = qp.transport();
    let steps = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    let last = if transport == Transport::Ud { 3 } else { 1 };
    for (from, to) in steps.into_iter().zip(steps.into_iter().skip(1)).take(last) {
        let Some(masks) = masks(transport, from, to) else { continue };
        let attr = QpAttr { port, qkey: UDP_QKEY, sq_psn: Psn::new(0), ..QpAttr::new(to) };
        qp.advance(&attr, masks.required)?;
    }
    Ok(())
}

/// Whether packets can go from one address to another; `None`: they can.
fn leads(from: Gid, to: Gid) -> Option<AddrFault> {
    if from.is_ipv4() != to.is_ipv4() {
        return Some(AddrFault::Family { from, to });
    }
    if to.is_multicast() || to.ip().is_unspecified() {
        return Some(AddrFault::NotUnicast(to));
    }
    // Nothing is sent: the kernel looks the way up.
    let way = UdpSocket::bind((from.ip(), 0)).and_then(|socket| socket.connect((to.ip(), PROBED)));
    way.err().map(|error| AddrFault::NoRoute { from, to, reason: error.to_string() })
}

/// The port of RoCEv2.
const PROBED: u16 = 4791;
