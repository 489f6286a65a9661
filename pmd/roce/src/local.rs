//! The local path: what the engine needs from shared memory.
//!
//! Two lcores on one host see each other through a *link*. One-sided operations are one copy by
//! their initiator; SENDs travel as [`Record`]s through one ring per direction. The trait is
//! implemented by the shared-memory wire and by the simulator, so that the local path is as
//! sans-IO as the packet path.

use crate::ids::{LinkId, PdId, Qpn, Rkey, Srqn};
use crate::memory::AtomicOp;
use crate::qp::state::QpState;
use crate::work::{Access, Imm, RemoteAddr, Sge};

/// What a queue pair shows to peers on the same host, in a page that only its owner writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedQp {
    /// Current state: a target in RESET, INIT or ERR is never written.
    pub state: QpState,
    /// The queue pair it is connected to; for UD, 0.
    pub peer: Qpn,
    /// Which one-sided operations it allows.
    pub access: Access,
    /// Protection domain, for the key check.
    pub pd: PdId,
    /// READs and atomics a peer may have outstanding; 0 forbids them.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code that a peer waits when it finds no receive.
    pub min_rnr_timer: u8,
    /// UD: Q_Key that arriving datagrams must carry.
    pub qkey: u32,
    /// Receives posted since RESET, modulo 2^32. A sender's credit is this less what it has sent.
    /// `None`: receives come from a shared queue and only the owner can tell.
    pub posted: Option<u32>,
}

/// What the initiator finds when it looks for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The queue pair exists.
    Qp(PublishedQp),
    /// No such queue pair now.
    Absent,
    /// The peer is dead.
    Gone,
}

/// Why an operation on the peer's memory did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalFault {
    /// A local element is not registered for this use.
    Local,
    /// The peer's key, rights or bounds forbid it.
    RemoteAccess,
    /// The peer's key is valid but its memory is not mapped here yet: try again at the next poll.
    NotYet,
    /// The peer is dead.
    Gone,
}

/// The bytes of an outgoing record or WRITE.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Bytes that were copied at post.
    Inline(&'a [u8]),
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A SEND, or a datagram.
    Send,
    /// SEND with invalidate.
    SendInvalidate(Rkey),
    /// A WRITE with immediate whose bytes are in place.
    WriteImm,
    /// Answer: the message `seq` was refused; `syndrome` is an AETH syndrome (NAK or RNR NAK).
    Nak {
        /// As in an AETH.
        syndrome: u8,
    },
    /// The initiator broke a rule of the target: its queue pair enters Error with this event.
    Violation {
        /// True: QP_ACCESS_ERR; false: QP_REQ_ERR.
        access: bool,
    },
}

/// The header of one entry of a link's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it says.
    pub kind: RecordKind,
    /// Receiving queue pair.
    pub dst: Qpn,
    /// Sending queue pair.
    pub src: Qpn,
    /// Message number on the sending queue pair since RTR, 24 bits.
    pub seq: u32,
    /// Message bytes.
    pub len: u32,
    /// Immediate data.
    pub imm: Option<Imm>,
    /// The sender asks for a solicited event.
    pub solicited: bool,
    /// Shared receive queue; XRC only.
    pub srqn: Option<Srqn>,
    /// Q_Key; UD only.
    pub qkey: u32,
}

/// Outcome of [`LocalPeer::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// Written; the peer has taken it once [`LocalPeer::consumed`] reaches this position.
    At(u64),
    /// No room: try again at the next poll.
    Full,
    /// The source is not registered for this use.
    LocalFault,
    /// The peer is dead.
    Gone,
}

/// The payload of an arriving record, in the ring or still in the sender's memory.
pub trait Arrived {
    /// Copies message bytes `offset ..` into one local element, at its start; copies
    /// `min(sge.len, len - offset)` bytes.
    ///
    /// # Errors
    /// [`LocalFault::Local`] for the element, [`LocalFault::NotYet`] and [`LocalFault::Gone`] for
    /// the sender's side, [`LocalFault::RemoteAccess`] when the sender's memory is no longer there.
    fn copy_to(&mut self, pd: PdId, offset: u32, sge: &Sge) -> Result<(), LocalFault>;
}

/// Shared memory toward peers on the same host.
pub trait LocalPeer {
    /// Looks at the target's published page: its own state alone, no message.
    fn target(&self, link: LinkId, qpn: Qpn) -> Target;

    /// One-copy WRITE. The implementation checks local keys, and the peer's key table for
    /// `REMOTE_WRITE`; `target_pd` and `target_qpn` come from the published page.
    fn write(
        &mut self,
        link: LinkId,
        pd: PdId,
        from: Source<'_>,
        target: (PdId, Qpn),
        to: RemoteAddr,
    ) -> Result<(), LocalFault>;

    /// One-copy READ into local elements; needs `REMOTE_READ`.
    fn read(
        &mut self,
        link: LinkId,
        pd: PdId,
        into: &[Sge],
        target: (PdId, Qpn),
        from: RemoteAddr,
    ) -> Result<(), LocalFault>;

    /// Atomic on the peer's memory, returns the value before it; needs `REMOTE_ATOMIC`.
    fn atomic(
        &mut self,
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, LocalFault>;

    /// Appends a record to the ring toward the peer. Visible after [`LocalPeer::publish`].
    fn push(&mut self, link: LinkId, pd: PdId, record: &Record, payload: Source<'_>) -> Push;

    /// Up to which ring position the peer has taken records.
    fn consumed(&self, link: LinkId) -> u64;

    /// Shows one of this side's queue pairs to all peers; `None` when it is gone.
    fn show(&mut self, qpn: Qpn, qp: Option<&PublishedQp>);

    /// Makes everything pushed so far visible, batch by batch: once per poll.
    fn publish(&mut self);

    /// Store-load fence before completions of direct WRITEs, and before a READ after a WRITE.
    fn fence(&mut self);
}
