//! Queue pairs: attributes, the state table, and the queues of a pair.

pub mod attr;
pub mod chart;
mod complete;
pub(crate) mod create;
pub(crate) mod modify;
pub(crate) mod post;
mod route;
pub(crate) mod rq;
pub(crate) mod sq;
pub mod state;
pub mod stats;
pub(crate) mod table;

use attr::{PathMigState, QpAttr, QpInit};
use route::Route;
use rq::{Receive, RecvQueue};
use sq::SendQueue;
use state::{QpState, Transport};
use stats::Book;

use crate::ids::{Gid, Instant, Psn, Qpn};
use crate::local::requester::Local;
use crate::memory::Asker;
use crate::migration::Alternate;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::sink::Flow;
use crate::wire::TransportClass;

pub(crate) use complete::sent_completion;

/// A queue pair. What a usual message on the local path needs comes first and lies together: where queue pairs by the
/// thousand take turns, lines are what a message costs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Qp {
    /// What both directions ask.
    route: Route,
    /// Its place in the tables of the engine.
    pub(crate) slot: u32,
    pub(crate) qpn: Qpn,
    /// The completion queue for sends has overrun and takes no more.
    pub(crate) send_cq_lost: bool,
    /// The same for receives.
    pub(crate) recv_cq_lost: bool,
    /// SQD: an event is wanted when the send queue is drained.
    pub(crate) notify_drained: bool,
    /// Whether the peer's first packet has been seen since RTR.
    pub(crate) heard: bool,
    pub(crate) rq: RecvQueue,
    /// The receive that the message in progress fills.
    pub(crate) receive: Receive,
    /// What the local path needs beside requester and responder.
    pub(crate) local: Local,
    pub(crate) requester: Requester,
    pub(crate) sq: SendQueue,
    /// What it was created with, caps as granted.
    pub(crate) init: QpInit,
    /// Attributes; `attr.state` is its state, changed by [`Qp::enter`] alone. Whoever changes something has it
    /// [copied](Qp::renew_route).
    pub(crate) attr: QpAttr,
    pub(crate) responder: Responder,
    /// Toward the peer; set at RTR. UD: only the source port is meant.
    pub(crate) flow: Flow,
    /// Toward the peer over the alternate path, while one is loaded.
    pub(crate) alternate: Option<Box<Alternate>>,
    /// What it has been through.
    pub(crate) book: Box<Book>,
}

impl Qp {
    pub(crate) fn new(slot: u32, qpn: Qpn, init: QpInit, now: Instant) -> Self {
        let cap = &init.cap;
        let attr = QpAttr::new(QpState::Reset);
        Self {
            route: Route::new(&init, &attr),
            slot,
            qpn,
            attr,
            alternate: None,
            flow: NOWHERE,
            requester: Requester::new(),
            responder: Responder::new(),
            local: Local::new(Psn::new(0)),
            sq: SendQueue::new(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data),
            rq: RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge),
            receive: Receive::new(),
            notify_drained: false,
            heard: false,
            send_cq_lost: false,
            recv_cq_lost: false,
            init,
            book: Box::new(Book::new(now)),
        }
    }

    pub(crate) const fn state(&self) -> QpState {
        self.attr.state
    }

    pub(crate) const fn transport(&self) -> Transport {
        self.init.transport
    }

    /// Changes the state. Every change comes through here.
    pub(crate) fn enter(&mut self, state: QpState, now: Instant) {
        if state != self.attr.state {
            self.book.leave(self.attr.state, now);
            self.attr.state = state;
            self.renew_route();
        }
    }

    /// Attributes have changed.
    pub(crate) fn renew_route(&mut self) {
        self.route = Route::new(&self.init, &self.attr);
    }

    /// What a usual message asks.
    #[inline(always)]
    pub(crate) fn route(&self) -> &Route {
        debug_assert_eq!(self.route, Route::new(&self.init, &self.attr));
        &self.route
    }

    /// Leaves the queue pair as it was created: queues emptied without completions, PSNs and
    /// attributes gone, queue memory kept.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.enter(QpState::Reset, now);
        self.attr = QpAttr::new(QpState::Reset);
        self.renew_route();
        self.alternate = None;
        self.flow = NOWHERE;
        self.requester = Requester::new();
        self.responder.reset();
        self.local = Local::new(Psn::new(0));
        self.sq.clear();
        self.rq.clear();
        self.receive.open = false;
        self.receive.had_shared = false;
        self.notify_drained = false;
        self.heard = false;
        self.send_cq_lost = false;
        self.recv_cq_lost = false;
    }

    /// Whether its peer is reached through shared memory instead of packets. UD: each address
    /// handle says so.
    pub(crate) const fn is_local(&self) -> bool {
        self.route.is_local
    }

    /// What its packets say of automatic path migration.
    pub(crate) fn mig_req(&self) -> bool {
        self.attr.path_mig_state == PathMigState::Migrated
    }

    /// The class of its packets.
    pub(crate) const fn class(&self) -> TransportClass {
        match self.init.transport {
            Transport::Rc => TransportClass::Rc,
            Transport::Uc => TransportClass::Uc,
            // RAW_PACKET queue pairs are never created.
            Transport::Ud | Transport::RawPacket => TransportClass::Ud,
            Transport::XrcIni | Transport::XrcTgt => TransportClass::Xrc,
        }
    }

    /// Packets that carry a message of `len` bytes: one even when it is empty.
    pub(crate) fn packets_of(&self, len: u32) -> u32 {
        len.div_ceil(self.attr.path_mtu.bytes_u32()).max(1)
    }

    /// Where in its message packet `number` starts.
    pub(crate) const fn offset_of(&self, number: u32) -> u32 {
        number * self.attr.path_mtu.bytes_u32()
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + size_of::<Book>()
            + self.receive.memory_bytes()
            + self.sq.memory_bytes()
            + self.rq.memory_bytes()
            + self.responder.replies.memory_bytes()
    }

    /// Who asks for memory on a peer's behalf.
    pub(crate) const fn asker(&self) -> Asker {
        Asker { pd: self.init.pd, qpn: self.qpn }
    }
}

const NOWHERE: Flow =
    Flow { src: Gid([0; 16]), dst: Gid([0; 16]), src_port: 0, traffic_class: 0, hop_limit: 0 };
