//! Every limit and default of the simulated world, by name. Times are nanoseconds of virtual time.

use core::time::Duration;

/// Frames that wait at a host's port before the wire is full.
pub const EGRESS_FRAMES: usize = 256;
/// Frames that wait at a host for its next turn; more are lost, as in a full receive queue.
pub const INGRESS_FRAMES: usize = 8192;
/// Speed of a port, bytes per microsecond: 100 Gb/s.
pub const BYTES_PER_US: u64 = 12_500;
/// Ethernet, IPv4 and UDP headers and Ethernet's gap around a UDP payload, bytes.
pub const FRAME_OVERHEAD: u64 = 14 + 20 + 8 + 24;
/// Largest UDP payload that passes: an Ethernet MTU of 4200.
pub const LARGEST_PAYLOAD: usize = 4200 - 28;
/// Propagation from port to port.
pub const LATENCY: Duration = Duration::from_micros(2);
/// Largest random addition to it; it keeps frames in order.
pub const JITTER: Duration = Duration::from_micros(1);
/// Largest random addition for a frame that a fault reorders.
pub const REORDER_BY: Duration = Duration::from_micros(20);

/// Ring of a link, one direction, bytes.
pub const RING_BYTES: usize = 64 << 10;
/// Part of a ring that only answers may use, bytes.
pub const RING_RESERVE: usize = 4 << 10;
/// Header of a record in a ring, bytes.
pub const RECORD_HEADER: usize = 16;
/// Payloads up to this size travel in the ring; larger ones are pulled.
pub const RECORD_INLINE: usize = 256;
/// From the death of a host until its peers know.
pub const DEATH_NOTICE: Duration = Duration::from_millis(1);
/// Longest time a store waits in a host's store buffer.
pub const STORE_DELAY_NS: u64 = 200;

/// One turn of a host's loop.
pub const TURN_NS: u64 = 50;
/// Longest time until a host that polls sees what a peer on the same machine did.
pub const POLL_NS: u64 = 400;
/// Turns in a row that may do nothing although a timer is due; more mean that the engine is stuck.
pub const IDLE_TURNS: u32 = 1000;

/// Plain messages of a ring that are shown in a row at most.
pub const RUN: usize = 3;

/// Queue pairs, shared receive queues and address handles per host.
pub const OBJECTS: usize = 256;
