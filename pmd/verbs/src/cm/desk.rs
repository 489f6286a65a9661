//! The software NIC's ids: what its manager says becomes events of theirs, and moves their queue pairs.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use pmd_roce::cm::{
    Cm, CmEvent, ConnId, ConnectRequest, LookupId, LookupRequest, Negotiated, PeerAddress,
    PortSpace, PrivateData, RejectReason, Route, ServiceId,
};
use pmd_roce::ids::{Gid, Instant};
use pmd_roce::qp::attr::{AddressVector, ModifyQpError, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState};

use super::books::{Books, Entry, Role};
use super::event::{ConnectFault, Established, EventKind, Request, Unreached};
use super::managed::ManagedQp;
use super::provider::{ChannelKey, IdKey, IdState, advance};
use super::watch::AddressWatch;
use crate::context::Context;
use crate::soft::Bell;

/// Ids and channels of a device with its manager.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) cx: Context,
    pub(super) books: RefCell<Books>,
    /// Rung when the manager has an event; made with the first channel, for all of them.
    bell: OnceCell<Rc<Bell>>,
}

impl Desk {
    pub(super) fn new(cx: &Context) -> Self {
        let watch = AddressWatch::new(cx.device().netdev(), cx.device().now());
        Self { cx: cx.clone(), books: RefCell::new(Books::new(watch)), bell: OnceCell::new() }
    }

    pub(super) fn bell(&self) -> io::Result<&Bell> {
        if self.bell.get().is_none() {
            let bell = Rc::new(Bell::new()?);
            self.cx.with_soft(|core| core.cm_bell = Some(Rc::clone(&bell)));
            self.bell.get_or_init(|| bell);
        }
        self.bell.get().map(|bell| &**bell).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Gives the manager a command, with the time that it asks for. What it wants sent leaves at once, or where a
    /// loop drives the device, in its next turn.
    pub(super) fn command<R>(&self, command: impl FnOnce(&mut Cm, Instant) -> R) -> R {
        let device = self.cx.device();
        self.cx.with_soft(|core| {
            let now = core.time(|| device.now());
            let cm = core.cm.as_mut().expect("a desk has a manager");
            let result = command(cm, now);
            core.post_mads();
            core.ring_for_management();
            if !core.driven {
                // Who sleeps next shall not keep its peer waiting.
                core.transmit(now);
            }
            result
        })
    }

    /// Port and index of the device's address that the terms begin at.
    pub(super) fn settle(&self, terms: &Negotiated) -> Negotiated {
        Negotiated { av: self.from(terms.source, terms.av), ..*terms }
    }

    fn from(&self, source: Gid, av: AddressVector) -> AddressVector {
        match self.cx.with(|core| core.find_gid(source)) {
            Some((port, sgid_index)) => AddressVector { port, sgid_index, ..av },
            // The device lost the address meanwhile: it refuses what comes of this, and says so.
            None => av,
        }
    }

    pub(super) fn path(&self, route: &Route) -> AddressVector {
        let av = AddressVector {
            flow_label: route.flow_label,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            ..AddressVector::to(route.destination)
        };
        self.from(route.source, av)
    }

    /// Takes in all that the manager and the device have to say.
    pub(super) fn pump(&self) {
        self.bell.get().iter().for_each(|bell| bell.silence());
        let now = self.cx.device().now();
        let mut books = self.books.borrow_mut();
        while let Some(event) = self.cx.with_soft(|core| core.cm.as_mut()?.poll_event()) {
            self.route(&mut books, event);
        }
        if !books.removed && self.cx.with(|core| core.is_fatal()) {
            books.removed = true;
            books.tell_all(&EventKind::DeviceRemoval, |_| true);
        }
        if books.watch.has_changed(now) {
            books.tell_all(&EventKind::AddrChange, |entry| entry.route.is_some());
        }
    }

    fn route(&self, books: &mut Books, event: CmEvent) {
        let connection = |books: &Books, id: &ConnId| books.find(Role::Connection(*id));
        let asking = |books: &Books, id: &LookupId| books.find(Role::Asking(*id));
        let key = match &event {
            CmEvent::ConnectRequest(_, ConnectRequest { listener, .. })
            | CmEvent::LookupRequest(_, LookupRequest { listener, .. }) => {
                books.find(Role::Listener(*listener))
            }
            CmEvent::LookupReply(id, _) | CmEvent::LookupUnreachable(id) => asking(books, id),
            CmEvent::Reply(id, ..)
            | CmEvent::Established(id, _)
            | CmEvent::Rejected(id, _)
            | CmEvent::Unreachable(id, _)
            | CmEvent::Disconnected(id, _)
            | CmEvent::TimewaitExit(id, _) => connection(books, id),
        };
        let Some(key) = key else { return books.unclaimed.push_back(event) };
        match event {
            CmEvent::ConnectRequest(id, request) => {
                let local = local_of(request.service, &request.route);
                let role = Role::Connection(id);
                let kind = EventKind::ConnectRequest(Request::Connection(request));
                requested(books, key, role, (request.peer, request.route, local), kind);
            }
            CmEvent::LookupRequest(id, request) => {
                let local = local_of(request.service, &request.route);
                let kind = EventKind::ConnectRequest(Request::Datagrams(request));
                requested(books, key, Role::Asked(id), (request.peer, request.route, local), kind);
            }
            CmEvent::Reply(id, terms, data) => self.replied(books, key, id, &terms, data),
            CmEvent::Established(id, data) => {
                let terms = books.entry(key).terms;
                debug_assert!(terms.is_some(), "{id} was accepted");
                books.entry_mut(key).state = IdState::Connected;
                if let Some(terms) = terms {
                    let what = Established::Connection(terms);
                    books.tell(key, EventKind::Established(what, data), None);
                }
            }
            CmEvent::Rejected(_, rejection) => {
                let was_connected = books.entry(key).state == IdState::Connected;
                books.entry_mut(key).state = IdState::Over;
                if was_connected {
                    fail(books.entry(key));
                }
                books.tell(key, EventKind::Rejected(rejection), None);
            }
            CmEvent::Unreachable(_, what) => {
                books.entry_mut(key).state = IdState::Over;
                books.tell(key, EventKind::Unreachable(Unreached::Silence(what)), None);
            }
            CmEvent::Disconnected(_, how) => {
                books.entry_mut(key).state = IdState::Disconnected;
                fail(books.entry(key));
                books.tell(key, EventKind::Disconnected(how), None);
            }
            CmEvent::TimewaitExit(id, _) => self.out_of_timewait(books, key, id),
            CmEvent::LookupReply(_, Ok(found)) => {
                let route = books.entry(key).route;
                books.entry_mut(key).state = IdState::Connected;
                books.play(key, Role::Nothing);
                if let Some(route) = route {
                    let (av, qpn, qkey) = (self.path(&route), found.qpn, found.qkey);
                    let what = Established::Datagrams { av, qpn, qkey };
                    let kind = EventKind::Established(what, Some(found.private_data));
                    books.tell(key, kind, None);
                }
            }
            CmEvent::LookupReply(_, Err(status)) => {
                lookup_over(books, key, Unreached::Lookup(status));
            }
            CmEvent::LookupUnreachable(_) => lookup_over(books, key, Unreached::LookupSilence),
        }
    }

    /// The peer accepts: the queue pair goes to RTS before the peer is told that it may send.
    fn replied(
        &self,
        books: &mut Books,
        key: IdKey,
        id: ConnId,
        terms: &Negotiated,
        data: PrivateData,
    ) {
        let terms = self.settle(terms);
        let entry = books.entry_mut(key);
        entry.terms = Some(terms);
        let Some(qp) = entry.qp.clone() else {
            entry.state = IdState::Responded;
            return books.tell(key, EventKind::ConnectResponse(terms, data), None);
        };
        let up = bring_up(&*qp, &terms)
            .map_err(ConnectFault::from)
            .and_then(|()| self.command(|cm, _| cm.establish(id, &[])).map_err(ConnectFault::from));
        match up {
            Ok(()) => {
                entry.state = IdState::Connected;
                let what = Established::Connection(terms);
                books.tell(key, EventKind::Established(what, Some(data)), None);
            }
            Err(fault) => {
                entry.state = IdState::Over;
                let told = self.command(|cm, _| cm.reject(id, RejectReason::CONSUMER, &[]));
                if let Err(error) = told {
                    tracing::debug!(
                        "the peer of {id} is not told that it did not come up: {error}"
                    );
                }
                books.tell(key, EventKind::ConnectError(fault), None);
            }
        }
    }

    /// No packet of a connection can be under way: its queue pair's number may be given out.
    fn out_of_timewait(&self, books: &mut Books, key: IdKey, id: ConnId) {
        let entry = books.entry_mut(key);
        entry.state = IdState::Over;
        entry.lingering = None;
        if entry.channel.is_some() {
            books.tell(key, EventKind::TimewaitExit, None);
        } else {
            self.forget_connection(id);
            books.remove(key);
        }
    }

    pub(super) fn forget_connection(&self, id: ConnId) {
        if let Err(error) = self.command(|cm, now| cm.destroy(now, id)) {
            tracing::debug!("{id}: {error}");
        }
    }
}

/// Somebody asks a listener: an id is made for it.
fn requested(
    books: &mut Books,
    listener: IdKey,
    role: Role,
    (peer, route, local): (Option<PeerAddress>, Route, Option<SocketAddr>),
    kind: EventKind,
) {
    let Entry { space, channel, .. } = *books.entry(listener);
    let entry = new_entry(channel, space, IdState::Requested);
    let peer = peer.map(|peer| SocketAddr::new(peer.ip, peer.port));
    let key = books.add(Entry { local, peer, route: Some(route), ..entry });
    books.play(key, role);
    books.tell(listener, kind, Some(key));
}

pub(super) fn new_entry(channel: Option<ChannelKey>, space: PortSpace, state: IdState) -> Entry {
    Entry { state, ..Entry::new(channel, space, pmd_mem::os_entropy()) }
}

fn local_of(service: ServiceId, route: &Route) -> Option<SocketAddr> {
    let (_, port) = service.port()?;
    Some(SocketAddr::new(route.source.ip(), port))
}

fn lookup_over(books: &mut Books, key: IdKey, what: Unreached) {
    books.entry_mut(key).state = IdState::Over;
    books.play(key, Role::Nothing);
    books.tell(key, EventKind::Unreachable(what), None);
}

/// From INIT, or from wherever its owner left it before, to RTS.
pub(super) fn bring_up(qp: &dyn ManagedQp, terms: &Negotiated) -> Result<(), ModifyQpError> {
    [QpState::Init, QpState::Rtr, QpState::Rts]
        .into_iter()
        .try_for_each(|to| advance(qp, terms, to))
}

/// The connection is over: what is posted is flushed.
pub(super) fn fail(entry: &Entry) {
    let Some(qp) = &entry.qp else { return };
    if matches!(qp.state(), QpState::Reset | QpState::Error) {
        return;
    }
    if let Err(error) = qp.advance(&QpAttr::new(QpState::Error), AttrMask::STATE) {
        tracing::debug!("queue pair {}: {error}", qp.number());
    }
}
