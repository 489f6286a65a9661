//! Every limit of the engine, by name.

use core::time::Duration;

/// Scatter/gather elements a work request may carry.
pub const MAX_SGE: u32 = 16;
/// Largest inline payload a queue pair can ask for, bytes.
pub const MAX_INLINE: u32 = 512;
/// Largest message on a connected transport: 2^31 bytes (IBTA 1.4, 9.7.7.1.1).
pub const MAX_MESSAGE: u32 = 1 << 31;
/// READs and atomics a queue pair can have outstanding, in either role.
pub const MAX_RD_ATOMIC: u8 = 128;
/// On the local path, a message of so many bytes has time of its own for its copy beside each ACK timeout,
pub const LONG_MESSAGE: u32 = 1 << 20;
/// so much for each of so many bytes, in nanoseconds: a copy at 1 GB/s, which a core that is shared still does.
pub const SLOWEST_COPY: u64 = 1_000_000;
/// Largest depth of one send or receive queue.
pub const MAX_QP_WR: u32 = 1 << 15;
/// Largest depth of one shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 16;
/// Unacknowledged packets a requester keeps in flight, unless configured otherwise.
pub const WINDOW_PACKETS: u32 = 1024;
/// A requester asks for an acknowledgement at least once in so many packets, unless configured otherwise.
pub const ACK_REQUEST_EVERY: u32 = 64;
/// Addresses a port can have.
pub const MAX_GIDS: usize = 32;
/// Multicast groups one lcore can be a member of.
pub const MAX_GROUPS: usize = 64;

/// Top bits of a QPN: the process, handed out by the rendezvous directory. 0 is never used.
pub const QPN_PROCESS_BITS: u32 = 7;
/// Next bits of a QPN: the lcore that owns the queue pair.
pub const QPN_LCORE_BITS: u32 = 3;
/// Next bits of a QPN: how often the slot was used, so that a reused slot is told apart.
pub const QPN_GENERATION_BITS: u32 = 3;
/// Low bits of a QPN: the slot in the lcore's table.
pub const QPN_INDEX_BITS: u32 = 11;
/// Queue pairs one lcore can own; slot 0 stays empty so that no QPN is 0 or 1.
pub const MAX_QPS: usize = 1 << QPN_INDEX_BITS;

const _: () =
    assert!(QPN_PROCESS_BITS + QPN_LCORE_BITS + QPN_GENERATION_BITS + QPN_INDEX_BITS == 24);

/// Frames or local operations one call of `poll_transmit` works off, so that arrivals are not kept
/// waiting by a long queue.
pub const POLL_BUDGET: usize = 256;
/// Of these, what one queue pair may use before the next one has its turn.
pub const TURN_BUDGET: usize = 64;
/// PSNs that can be outstanding: half of the circle, so that old and new are told apart.
pub const MAX_PSNS: u32 = 1 << 23;
/// Bytes before the payload of every datagram in a receive buffer.
pub const GRH_BYTES: u32 = 40;
/// Bytes of a management datagram, which has one size (IBTA 1.4, 13.4.2).
pub const MAD_BYTES: usize = 256;
/// Management datagrams that wait to be polled; more are dropped, and their senders send them again.
pub const GSI_RECEIVES: usize = 256;
/// Management datagrams that wait for room on the wire.
pub const GSI_SENDS: usize = 256;
/// Messages of one queue pair in a row after which completions are looked for, at the latest.
pub const MARK_EVERY: usize = 16;
/// How long an unreliable message waits for room in a ring before it is lost.
pub const LOCAL_PATIENCE: Duration = Duration::from_millis(1);
/// Asynchronous events one queue pair can have pending.
pub const MAX_QP_EVENTS: usize = 8;
/// State changes of an engine by itself that are kept for whoever polls them: the failure of half of its queue pairs at once.
pub const TRANSITIONS_KEPT: usize = 1 << 10;
/// Those of ports and of the device itself.
pub const MAX_DEVICE_EVENTS: usize = 16;
