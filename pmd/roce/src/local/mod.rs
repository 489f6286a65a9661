//! The local path: what the engine needs from shared memory.
//!
//! Two lcores on one host see each other through a *link*. One-sided operations are one copy by
//! their initiator; SENDs travel as [`Record`]s through one ring per direction. The trait is
//! implemented by the shared-memory wire and by the simulator, so that the local path is as
//! sans-IO as the packet path.

pub(crate) mod ahead;
pub(crate) mod arrivals;
mod attempt;
pub(crate) mod datagram;
pub(crate) mod lane;
pub(crate) mod lone;
mod nobody;
pub(crate) mod page;
pub(crate) mod requester;
pub(crate) mod responder;
mod straight;

pub use nobody::Nobody;

use crate::ids::{LinkId, Lkey, PdId, Psn, Qpn, Rkey, Srqn};
use crate::memory::AtomicOp;
use crate::qp::state::QpState;
use crate::sink::Flow;
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
    /// PSN that it expected first, so that an initiator with another idea of the connection is
    /// noticed, as it is on packets.
    pub rq_psn: Psn,
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
    /// A SEND.
    Send,
    /// A datagram. Its payload is copied when it is pushed, since it completes at once.
    Datagram(DatagramRecord),
    /// SEND with invalidate.
    SendInvalidate(Rkey),
    /// A WRITE with immediate whose bytes are in place.
    WriteImm,
    /// Answer: the message `seq` was refused; `syndrome` is an AETH syndrome (NAK or RNR NAK).
    Nak {
        /// As in an AETH.
        syndrome: u8,
    },
    /// Answer: the bytes of the message `seq` could no longer be read from its sender's memory.
    SourceFault,
    /// The initiator broke a rule of the target: its queue pair enters Error with this event.
    Violation {
        /// True: QP_ACCESS_ERR; false: QP_REQ_ERR.
        access: bool,
        /// The AETH syndrome that a packet would have been answered with.
        syndrome: u8,
    },
    /// The initiator holds a message back because no receive is posted: the target counts that.
    Starved,
}

impl RecordKind {
    /// Whether it carries no message of the consumer: such records may use a ring's reserve.
    pub const fn is_answer(&self) -> bool {
        match self {
            Self::Send | Self::Datagram(_) | Self::SendInvalidate(_) | Self::WriteImm => false,
            Self::Nak { .. } | Self::SourceFault | Self::Violation { .. } | Self::Starved => true,
        }
    }
}

/// What a datagram carries beside its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRecord {
    /// Q_Key.
    pub qkey: u32,
    /// What the IP header of a packet would say: the receiver finds it in the GRH area.
    pub flow: Flow,
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
    /// Number of the message among those of the sending queue pair that travel in the ring, 24
    /// bits, counted from the queue pair's first PSN. A receiver takes them in order, or answers
    /// with a NAK and drops what follows until the refused one comes again. 0 for datagrams.
    pub seq: Psn,
    /// Message bytes.
    pub len: u32,
    /// Immediate data.
    pub imm: Option<Imm>,
    /// The sender asks for a solicited event.
    pub solicited: bool,
    /// Shared receive queue; XRC only.
    pub srqn: Option<Srqn>,
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

    /// Whether the bytes are still in the sender's memory. Its consumer may change them as soon as
    /// its queue pair has left RTS and SQD, so that what was copied counts only if the published
    /// page says afterwards that it has not.
    fn is_borrowed(&self) -> bool;
}

/// What there is to say of a plain message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Message bytes.
    pub len: u32,
    /// The sender asks for a solicited event.
    pub solicited: bool,
}

/// The plain messages at the front of a ring, for whoever takes usual ones one after the other: SENDs of
/// at least one byte, with neither immediate data nor a shared receive queue.
///
/// It may refuse to show any of them. Whatever is at the front then is a [`Record`] like any other.
pub trait Arrivals {
    /// Those for one queue pair, with their bytes behind them in the ring, or
    /// [borrowed](Arrived::is_borrowed).
    type Messages<'a, const BORROWED: bool>: Messages
    where
        Self: 'a;

    /// The queue pair that the message at the front is for, and whether its bytes are borrowed.
    fn front(&self) -> Option<(Qpn, bool)>;

    /// The queue pair that a message some way behind the front is for, as far as it can be guessed at no cost.
    #[inline(always)]
    fn coming(&self) -> Option<Qpn> {
        None
    }

    /// A hint that what this refers to is looked at soon, so that it can be brought near: nothing comes of it.
    #[inline(always)]
    fn fetch<T: ?Sized>(&self, _soon: &T) {}

    /// Those from `src` to `dst`, into memory of one key.
    fn messages<const BORROWED: bool>(
        &mut self,
        dst: Qpn,
        src: Qpn,
        pd: PdId,
        lkey: Lkey,
    ) -> Option<Self::Messages<'_, BORROWED>>;

    /// Takes the message at the front out of the ring, if [`Messages::copy`] copies it: one with its bytes behind it.
    #[inline(always)]
    fn take(&mut self, dst: Qpn, src: Qpn, pd: PdId, seq: Psn, into: &Sge) -> Option<Plain> {
        let mut messages = self.messages::<false>(dst, src, pd, into.lkey)?;
        let plain = messages.copy(seq, into)?;
        messages.advance();
        Some(plain)
    }
}

/// The plain messages from one queue pair to another, as long as nothing else lies between them.
pub trait Messages {
    /// Copies the message at the front to the start of a local element, if it has this number, there is
    /// room for it, and nothing is special about it. Else, what was copied does not count.
    fn copy(&mut self, seq: Psn, into: &Sge) -> Option<Plain>;

    /// Takes the message that was copied last out of the ring.
    fn advance(&mut self);

    /// As [`LocalPeer::target`], of the queue pair that they come from.
    fn sender(&self) -> Target;
}

/// Two queue pairs that are connected, and the protection domain of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// This side's.
    pub qpn: Qpn,
    /// Its domain.
    pub pd: PdId,
    /// The peer's.
    pub peer: Qpn,
    /// The domain of that one, from its published page.
    pub peer_pd: PdId,
}

/// A SEND which is alone, with neither immediate data nor a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct Alone<'a> {
    /// What a [glance](LocalPeer::glance) must find: else the target is no longer as it was.
    pub seen: u64,
    /// Its number.
    pub seq: Psn,
    /// A solicited event is asked for.
    pub solicited: bool,
    /// Its bytes, at least one.
    pub from: &'a Sge,
    /// To be visible now, instead of at the end of the poll.
    pub now: bool,
}

/// A message that waits in a [row](Straight::send_row).
pub trait Outgoing {
    /// Its bytes, in one piece, and whether a solicited event is asked for. `None`: it is not one for [`Straight::send`].
    fn says(&self) -> Option<(&Sge, bool)>;

    /// It was sent with this number and reaches to this position.
    fn is_at(&mut self, seq: Psn, position: u64);
}

/// A WRITE or READ that waits in a [row](Straight::copy_row).
pub trait Direct {
    /// Where its bytes are here, in one piece, and where at the peer. `None`: it is not one for [`Straight::write`] or, where
    /// `READ` is set, [`Straight::read`].
    fn places<const READ: bool>(&self) -> Option<(&Sge, RemoteAddr)>;
}

/// The way from one queue pair to its peer, for usual operations one after the other: what they have in
/// common was looked up when it was opened.
///
/// Each operation is that of [`LocalPeer`], with bytes in one piece and at least one of them. It may
/// refuse whatever is special about it, without a reason and with nothing done.
pub trait Straight {
    /// As [`LocalPeer::glance`], of the peer's queue pair.
    fn glance(&self) -> u64;

    /// Receives that it has posted, as [`PublishedQp::posted`], if its page counts them: as long as a later glance finds it
    /// unchanged.
    fn posted(&self) -> u32;

    /// Appends a SEND with neither immediate data nor a shared receive queue; returns the position that
    /// [`LocalPeer::consumed`] reaches once the peer has taken it.
    fn send(&mut self, seq: Psn, solicited: bool, from: &Sge) -> Option<u64>;

    /// As [`Self::send`], of messages in a row, up to the first that is refused; returns how many.
    fn send_row<T: Outgoing>(&mut self, first: Psn, row: &mut [T]) -> usize {
        let mut seq = first;
        for each in &mut *row {
            let Some((from, solicited)) = each.says() else { break };
            let Some(position) = self.send(seq, solicited, from) else { break };
            each.is_at(seq, position);
            seq = seq.plus(1);
        }
        seq.minus(first.value()).value() as usize
    }

    /// As [`Self::send`], of bytes that were copied at post.
    fn send_inline(&mut self, seq: Psn, solicited: bool, from: &[u8]) -> Option<u64>;

    /// As [`LocalPeer::write`]. False: nothing was written.
    fn write(&mut self, from: &Sge, to: RemoteAddr) -> bool;

    /// As [`Self::write`], of bytes that were copied at post.
    fn write_inline(&mut self, from: &[u8], to: RemoteAddr) -> bool;

    /// As [`LocalPeer::read`]. False: nothing was read.
    fn read(&mut self, into: &Sge, from: RemoteAddr) -> bool;

    /// As [`Self::write`] or, where `READ` is set, [`Self::read`], of operations in a row: up to the first that is refused, and as
    /// long as a [glance](Self::glance) finds what was `seen`; returns how many.
    fn copy_row<const READ: bool, T: Direct>(&mut self, row: &[T], seen: u64) -> usize {
        let mut done = 0;
        for (here, there) in row.iter().map_while(T::places::<READ>) {
            let is_done = self.glance() == seen
                && if READ { self.read(here, there) } else { self.write(here, there) };
            if !is_done {
                break;
            }
            done += 1;
        }
        done
    }

    /// As [`LocalPeer::fence`].
    fn fence(&mut self);

    /// Makes what was sent visible now, instead of at the end of the poll.
    fn publish(&mut self);
}

/// Shared memory toward peers on the same host.
pub trait LocalPeer {
    /// The way to one queue pair.
    type Straight<'a>: Straight
    where
        Self: 'a;

    /// Opens the way between two queue pairs, if there is one. It is closed by dropping it.
    fn straight(&mut self, link: LinkId, pair: Pair) -> Option<Self::Straight<'_>>;

    /// As [`Straight::send`] of one message alone, and [`Straight::publish`] where it is to be visible now. `None`: nothing has
    /// happened.
    #[inline(always)]
    fn send_alone(&mut self, link: LinkId, pair: Pair, message: &Alone<'_>) -> Option<u64> {
        let mut straight = self.straight(link, pair)?;
        if straight.glance() != message.seen {
            return None;
        }
        let position = straight.send(message.seq, message.solicited, message.from)?;
        if message.now {
            straight.publish();
        }
        Some(position)
    }

    /// A hint that a target's receives are looked at soon, so that they can be brought near: nothing comes of it.
    #[inline(always)]
    fn expect(&self, _link: LinkId, _qpn: Qpn) {}

    /// Looks at the target's published page: its own state alone, no message.
    fn target(&self, link: LinkId, qpn: Qpn) -> Target;

    /// A number that changes whenever the target's page does, its receives apart: so an initiator
    /// that has looked at the page need not do so again for every operation. `None`: the peer is
    /// dead.
    fn glance(&self, link: LinkId, qpn: Qpn) -> Option<u64>;

    /// One-copy WRITE. The implementation checks local keys, and the peer's key table for
    /// `REMOTE_WRITE` on behalf of `target`: the domain from the published page, and the number,
    /// of the queue pair there. Whoever sees it finds the records that were pushed toward the peer
    /// before: they become visible first.
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

    /// Atomic on the peer's memory, returns the value before it; needs `REMOTE_ATOMIC`. Records
    /// become visible before it as before a WRITE.
    fn atomic(
        &mut self,
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    ) -> Result<u64, LocalFault>;

    /// Appends a record to the ring toward the peer. Visible after [`LocalPeer::publish`].
    ///
    /// A part of the ring is kept for records without message
    /// ([`RecordKind::is_answer`]), so that two peers with full rings can still answer each other.
    fn push(&mut self, link: LinkId, pd: PdId, record: &Record, payload: Source<'_>) -> Push;

    /// Up to which ring position the peer has taken records, as far as it can be judged: as read
    /// before the records from the peer were handed in, and only once all of these were taken. Then
    /// an answer to any of the positions came first.
    fn consumed(&self, link: LinkId) -> u64;

    /// Shows one of this side's queue pairs to all peers; `None` when it is gone.
    fn show(&mut self, qpn: Qpn, qp: Option<&PublishedQp>);

    /// Shows that one of this side's queue pairs has posted receives, of a page that is shown and
    /// otherwise unchanged.
    fn show_receives(&mut self, qpn: Qpn, rq_psn: Psn, posted: u32);

    /// Makes everything pushed so far visible, each ring at once, at the end of a poll. Direct WRITEs
    /// before it become visible no later.
    fn publish(&mut self);

    /// Store-load fence before completions of direct WRITEs, and before a READ after a WRITE.
    fn fence(&mut self);
}
