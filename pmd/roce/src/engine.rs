//! The engine: everything a RoCEv2 device does, without doing any I/O.
//!
//! An [`Engine`] belongs to one lcore. Methods come in four kinds: *commands* (`create_*`,
//! `modify_*`, `post_*`, `destroy_*`), *inputs* (`handle_*`), *outputs* (`poll_*`) and getters.
//! Call, in this order and once per turn of the loop: [`Engine::handle_frame`] for every frame,
//! [`Engine::handle_record`] for every record of a link, [`Engine::handle_timeout`],
//! then commands at will, then [`Engine::poll_transmit`], then [`Engine::poll_event`] until empty.
//! [`Engine::poll_timeout`] says how long the loop may sleep.


use crate::counters::Counters;
use crate::event::AsyncEvent;
use crate::ids::{Gid, Instant, LinkId, Qpn, Srqn, XrcdId};
use crate::ids::PdId;
use crate::local::{Arrived, LocalPeer, Record};
use crate::memory::Memory;
use crate::qp::attr::{AddressVector, CreateQpError, ModifyQpError, QpAttr, QpCap, QpInit};
use crate::qp::state::{AttrMask, QpState};
use crate::sink::{CqSink, Frame, FrameOutcome, TxSink};
use crate::work::{AhId, RecvWr, SendWr};

/// What an engine is made with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The process's part of every QPN, below 2^7 and not 0.
    pub process: u32,
    /// The lcore's part of every QPN, below 2^3.
    pub lcore: u32,
    /// Source addresses; address vectors refer to them by index.
    pub gids: Vec<Gid>,
    /// Seed of PSN-like choices the engine makes itself; the caller's source of randomness.
    pub seed: u64,
    /// Queue pairs to make room for.
    pub max_qps: usize,
    /// Shared receive queues to make room for.
    pub max_srqs: usize,
    /// Address handles to make room for.
    pub max_ahs: usize,
    /// Unacknowledged packets per queue pair.
    pub window_packets: u32,
}

/// Why a send request was not accepted. Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostSendError {
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQp(Qpn),
    /// The send queue is full: poll completions first.
    #[error("the send queue is full: poll completions first")]
    Full,
    /// Requests can be posted in RTS, SQD, SQE and Error.
    #[error("a queue pair in {0:?} takes no send requests: bring it to RTS first")]
    NotReady(QpState),
    /// More inline bytes than the queue pair was created for.
    #[error("more than {max} inline bytes: ask for more max_inline_data, or register the memory")]
    InlineTooLong {
        /// The queue pair's `max_inline_data`.
        max: u32,
    },
    /// More elements than the queue pair was created for.
    #[error("more than {max} scatter/gather elements")]
    TooManySges {
        /// The queue pair's `max_send_sge`.
        max: u32,
    },
    /// The transport has no such operation (S1-08), or `max_rd_atomic` is 0.
    #[error("this queue pair cannot do that: {0}")]
    Operation(&'static str),
    /// Longer than the transport's largest message.
    #[error("a message of {len} bytes is longer than {max}")]
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// Largest message.
        max: u32,
    },
    /// UD needs an address handle of this engine; XRC needs a shared receive queue number.
    #[error("the request names no valid destination: {0}")]
    Destination(&'static str),
}

/// Why a receive request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostRecvError {
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQp(Qpn),
    /// No such shared receive queue.
    #[error("there is no shared receive queue {0}")]
    NoSuchSrq(Srqn),
    /// The queue is full.
    #[error("the receive queue is full: poll completions first")]
    Full,
    /// Receives can be posted from INIT on.
    #[error("a queue pair in {0:?} takes no receives: bring it to INIT first")]
    NotReady(QpState),
    /// More elements than the queue was created for.
    #[error("more than {max} scatter/gather elements")]
    TooManySges {
        /// The queue's `max_sge`.
        max: u32,
    },
    /// The queue pair takes its receives from a shared queue, or has none.
    #[error("this queue pair has no receive queue of its own")]
    NoQueue,
}

/// Why an object could not be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestroyError {
    /// No such object.
    #[error("no such object")]
    NotFound,
    /// Queue pairs still use the shared receive queue.
    #[error("{0} queue pairs still use it")]
    InUse(u32),
    /// The queue pair is a member of multicast groups.
    #[error("the queue pair is still attached to {0} multicast groups: detach it first")]
    Attached(u32),
}

/// Attributes of a shared receive queue, as `struct ibv_srq_init_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Protection domain.
    pub pd: PdId,
    /// Requests that can be outstanding.
    pub max_wr: u32,
    /// Elements per request.
    pub max_sge: u32,
    /// XRC domain and completion queue, when XRC targets deliver here.
    pub xrc: Option<(XrcdId, crate::ids::CqId)>,
}

/// Why a shared receive queue, address handle or group membership was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// Every slot is taken.
    #[error("all {0} slots are in use")]
    TooMany(usize),
    /// A value outside its range.
    #[error("{field} = {value}: {need}")]
    Value {
        /// Name of the attribute.
        field: &'static str,
        /// Value given.
        value: u64,
        /// What it must be.
        need: &'static str,
    },
    /// No such object.
    #[error("no such object")]
    NotFound,
}

/// State of a queue pair as `query` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpView {
    /// What it was created with, caps as granted.
    pub init: QpInit,
    /// Attributes; `attr.state` is the current state.
    pub attr: QpAttr,
    /// Send requests not yet completed.
    pub send_outstanding: u32,
    /// Receive requests not yet completed; 0 with a shared queue.
    pub recv_outstanding: u32,
}

/// A RoCEv2 device of one lcore.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
}

impl Engine {
    /// Makes room for everything that `config` allows; nothing allocates afterwards.
    pub fn new(config: EngineConfig) -> Self {
        Self { config }
    }

    // Commands ------------------------------------------------------------------------------

    /// Creates a queue pair in RESET.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, CreateQpError> {
        unimplemented!()
    }

    /// Caps as granted, state, attributes and fill of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpView> {
        unimplemented!()
    }

    /// Moves a queue pair along one edge of the state table; all or nothing.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> Result<(), ModifyQpError> {
        unimplemented!()
    }

    /// Destroys a queue pair; what is outstanding is forgotten, as `ibv_destroy_qp(3)`.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        unimplemented!()
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<Srqn, ResourceError> {
        unimplemented!()
    }

    /// Arms the limit event: it fires once when fewer than `limit` requests are left. 0 disarms.
    pub fn arm_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), ResourceError> {
        unimplemented!()
    }

    /// Requests in the queue, and the armed limit.
    pub fn query_srq(&self, srqn: Srqn) -> Option<(u32, u32)> {
        unimplemented!()
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srqn: Srqn) -> Result<(), DestroyError> {
        unimplemented!()
    }

    /// Creates an address handle.
    pub fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, ResourceError> {
        unimplemented!()
    }

    /// Destroys an address handle.
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), DestroyError> {
        unimplemented!()
    }

    /// Makes a UD queue pair a member of a group; a second time changes nothing.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        unimplemented!()
    }

    /// Ends a membership.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        unimplemented!()
    }

    /// Appends to a send queue. Starts at the next [`Engine::poll_transmit`].
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        unimplemented!()
    }

    /// Appends to a receive queue.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        unimplemented!()
    }

    /// Appends to a shared receive queue.
    pub fn post_srq_recv(&mut self, srqn: Srqn, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        unimplemented!()
    }

    // Inputs --------------------------------------------------------------------------------

    /// Takes one frame from a wire.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> FrameOutcome {
        unimplemented!()
    }

    /// Takes one record from a link. False: the record must stay in the ring and come again, since
    /// an answer to it has no room or its bytes are not mapped yet.
    pub fn handle_record(
        &mut self,
        now: Instant,
        link: LinkId,
        record: &Record,
        payload: &mut impl Arrived,
        mem: &mut impl Memory,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> bool {
        unimplemented!()
    }

    /// The peer behind a link is dead: its queue pairs end with `RetryExc` and flush.
    pub fn handle_link_down(&mut self, now: Instant, link: LinkId, cq: &mut impl CqSink) {
        unimplemented!()
    }

    /// Runs every timer that is due.
    pub fn handle_timeout(&mut self, now: Instant, mem: &mut impl Memory, cq: &mut impl CqSink) {
        unimplemented!()
    }

    // Outputs -------------------------------------------------------------------------------

    /// Sends what is due: responses and acknowledgements first, then requests, and runs the local
    /// path. Budgeted and resumable: stops where the wire is full. Returns how much was done.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mem: &mut impl Memory,
        tx: &mut impl TxSink,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> usize {
        unimplemented!()
    }

    /// When [`Engine::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        unimplemented!()
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        unimplemented!()
    }

    // Getters -------------------------------------------------------------------------------

    /// What the engine was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What the engine has counted.
    pub fn counters(&self) -> &Counters {
        unimplemented!()
    }
}
