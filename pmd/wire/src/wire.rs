//! What every wire does, and what passes through it.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// UDP destination port of every RoCEv2 frame (IBTA Annex A17).
pub const ROCE_PORT: u16 = 4791;

/// The IP and UDP fields of a frame that vary; the destination port is always [`ROCE_PORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Sender.
    pub src: IpAddr,
    /// Receiver, or a multicast group.
    pub dst: IpAddr,
    /// UDP source port. To send, give what [`Wire::source_port`] returned.
    pub src_port: u16,
    /// IPv4 type of service or IPv6 traffic class: DSCP in bits 7..2, ECN in bits 1..0.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
}

/// What is known about the IPv4 identification, which the ICRC covers. Meaningless for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpId {
    /// The wire saw the header.
    Exact(u16),
    /// The wire hides the header; a sender like ours would have used this value.
    Likely(u16),
}

impl IpId {
    /// The number, known or supposed.
    pub const fn value(self) -> u16 {
        match self {
            Self::Exact(id) | Self::Likely(id) => id,
        }
    }
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// Addresses, and header fields where the wire shows them (else 0).
    pub flow: Flow,
    /// IPv4 identification.
    pub ip_id: IpId,
    /// Everything after the UDP header, BTH to ICRC; of any length, unchecked.
    pub payload: &'a [u8],
}

/// What the receiver made of a frame; wrappers such as `Tap` record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxVerdict {
    /// The IPv4 identification that satisfied the ICRC; 0 for IPv6, or where none did.
    pub ip_id: u16,
    /// Why the frame had no effect, if so.
    pub dropped: Option<&'static str>,
    /// Bytes of the frame's message that are on their way, as far as the receiver knows; 0 where the
    /// sender waits for an answer.
    pub rest: u64,
}

/// The destination queue pair of a frame; 0 where it is too short to have one.
pub(crate) fn destination(payload: &[u8]) -> u32 {
    match payload {
        [_, _, _, _, _, a, b, c, ..] => u32::from_be_bytes([0, *a, *b, *c]),
        _ => 0,
    }
}

/// Takes received frames one by one.
pub type RxHandler<'a> = dyn FnMut(RxFrame<'_>) -> RxVerdict + 'a;

/// Writes a frame (all bytes, ICRC included), given the IPv4 identification it will carry.
pub type TxFill<'a> = dyn FnMut(u16, &mut [u8]) + 'a;

/// Why a multicast group could not be joined or left.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Not a group, or not of the wire's address family.
    #[error("{0} is not a multicast group of the address family of {1}")]
    NotAGroup(IpAddr, IpAddr),
    /// Every slot is taken.
    #[error("already a member of {0} groups, which is the limit: leave one first")]
    TooMany(usize),
    /// Leaving a group that was not joined.
    #[error("not a member of {0}")]
    NotAMember(IpAddr),
    /// This kind of wire reaches no groups.
    #[error("a {0} wire has no multicast: use a udp wire")]
    Unsupported(&'static str),
    /// The system refused.
    #[error("cannot {what} group {group}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The group.
        group: IpAddr,
        /// The reason.
        source: io::Error,
    },
}

/// A way to move frames. It belongs to one lcore; nothing allocates after construction except
/// joining and leaving groups.
///
/// `now_ns` is the caller's monotonic clock in nanoseconds, read once per turn of its loop.
pub trait Wire: Send {
    /// Hands over received frames, a bounded burst of them, and returns how many.
    fn rx_burst(&mut self, now_ns: u64, handle: &mut RxHandler<'_>) -> usize;

    /// Queues one frame to queue pair `to`: lends `len` bytes and has `fill` write all of them.
    /// False, and `fill` not called, when the queue is full: flush, and try again on the next turn.
    /// Frames of one flow to one queue pair leave in the order they were queued.
    ///
    /// # Panics
    /// `len` beyond [`MAX_PAYLOAD`](crate::limits::MAX_PAYLOAD) is an error of the caller. One
    /// that only exceeds [`Wire::max_payload`] is queued, then lost and counted as too big.
    fn send(&mut self, flow: &Flow, to: u32, len: usize, fill: &mut TxFill<'_>) -> bool;

    /// Rings the doorbell: what is queued goes out. What the system does not take now stays
    /// queued ([`Wire::pending`]) and goes out first next time.
    fn flush(&mut self, now_ns: u64);

    /// Frames queued and not yet sent. A loop that means to sleep must not while this is not 0.
    fn pending(&self) -> usize;

    /// When the wire wants its next [`Wire::rx_burst`] and [`Wire::flush`] although nothing
    /// arrives: wrappers that hold frames back.
    fn poll_timeout(&self) -> Option<u64> {
        None
    }

    /// The UDP source port that a frame will really carry where `wanted` is asked for. The ICRC
    /// covers it, so ask before building frames. Wires that build their own headers return
    /// `wanted`; a socket has only one.
    fn source_port(&self, wanted: u16) -> u16;

    /// Bytes after the UDP header that fit the path's first hop, at most
    /// [`MAX_PAYLOAD`](crate::limits::MAX_PAYLOAD).
    fn max_payload(&self) -> usize;

    /// Readable when [`Wire::rx_burst`] has something; for lcores that sleep. May be an epoll.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Receives frames sent to `group` too. Not for the data path.
    ///
    /// # Errors
    /// [`JoinError`]. Joining twice is not an error.
    fn join(&mut self, group: IpAddr) -> Result<(), JoinError>;

    /// Ends what [`Wire::join`] began.
    ///
    /// # Errors
    /// [`JoinError::NotAMember`].
    fn leave(&mut self, group: IpAddr) -> Result<(), JoinError>;

    /// Totals since construction.
    fn counters(&self) -> WireCounters;

    /// Kind of wire, as in `wire = "udp"`.
    fn name(&self) -> &'static str;
}

impl<W: Wire + ?Sized> Wire for Box<W> {
    fn rx_burst(&mut self, now_ns: u64, handle: &mut RxHandler<'_>) -> usize {
        (**self).rx_burst(now_ns, handle)
    }

    fn send(&mut self, flow: &Flow, to: u32, len: usize, fill: &mut TxFill<'_>) -> bool {
        (**self).send(flow, to, len, fill)
    }

    fn flush(&mut self, now_ns: u64) {
        (**self).flush(now_ns);
    }

    fn pending(&self) -> usize {
        (**self).pending()
    }

    fn poll_timeout(&self) -> Option<u64> {
        (**self).poll_timeout()
    }

    fn source_port(&self, wanted: u16) -> u16 {
        (**self).source_port(wanted)
    }

    fn max_payload(&self) -> usize {
        (**self).max_payload()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        (**self).join(group)
    }

    fn leave(&mut self, group: IpAddr) -> Result<(), JoinError> {
        (**self).leave(group)
    }

    fn counters(&self) -> WireCounters {
        (**self).counters()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Totals of one wire. A frame given to `send` ends in `tx_frames` or in one of the
        /// `tx_*` losses, or is still pending.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct WireCounters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl WireCounters {
            /// Every counter by name, in declaration order.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Frames the system took.
    tx_frames,
    /// Bytes in them, BTH to ICRC.
    tx_bytes,
    /// Datagrams that carried them: `tx_frames / tx_datagrams` is what segmentation saves.
    tx_datagrams,
    /// Times `send` refused a frame because the queue was full; the frame is not lost.
    tx_full,
    /// Frames lost: no room in a queue of the system (ENOBUFS, ENOMEM).
    tx_no_buffers,
    /// Frames lost: larger than the path takes (EMSGSIZE).
    tx_too_big,
    /// Frames lost: no way to the destination (ENETUNREACH, EHOSTUNREACH, ENETDOWN).
    tx_unreachable,
    /// Frames lost: nobody listens on port 4791 there (ECONNREFUSED).
    tx_refused,
    /// Frames lost: a firewall or policy forbids them (EPERM, EACCES).
    tx_denied,
    /// Frames lost for any other error.
    tx_other,
    /// Frames received.
    rx_frames,
    /// Bytes in them, BTH to ICRC.
    rx_bytes,
    /// Datagrams, or buffers of merged ones, that carried them.
    rx_datagrams,
    /// Datagrams the system dropped because the receive buffer was full.
    rx_overflow,
    /// Datagrams dropped because they did not fit a buffer.
    rx_truncated,
    /// Receive calls that failed.
    rx_errors,
}

impl WireCounters {
    /// Frames given to `send` and lost before the network.
    pub fn tx_lost(&self) -> u64 {
        self.tx_no_buffers
            + self.tx_too_big
            + self.tx_unreachable
            + self.tx_refused
            + self.tx_denied
            + self.tx_other
    }
}
