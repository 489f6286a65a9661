//! Every limit of this crate.

/// Bytes of the largest RoCEv2 frame after the UDP header, rounded up to a cache line: BTH 12,
/// XRCETH 4, RETH 16, ImmDt 4, a payload of the largest path MTU 4096, ICRC 4.
pub const MAX_PAYLOAD: usize = 4160;

/// Datagrams (each up to a whole GRO buffer) that one receive call may return.
pub const RX_MESSAGES: usize = 16;

/// Datagrams (each up to a whole GSO super-packet) that can wait for the kernel.
pub const TX_MESSAGES: usize = 16;

/// Bytes of one receive or send buffer: a UDP datagram is never longer.
pub const MESSAGE_BYTES: usize = 65_536;

/// Bytes of payload in one GSO super-packet: with Ethernet, IPv6 and UDP headers it must stay
/// within the `gso_max_size` of 65536, or the kernel cuts it up before the device sees it.
pub const GSO_MAX_BYTES: usize = 65_536 - 14 - 40 - 8;

/// Segments in one GSO super-packet that any kernel with UDP_SEGMENT takes; newer ones take
/// [`GSO_MAX_SEGMENTS`].
pub const GSO_MIN_SEGMENTS: usize = 64;

/// UDP_MAX_SEGMENTS of newer kernels.
pub const GSO_MAX_SEGMENTS: usize = 128;

/// A received datagram of at least so many bytes belongs to a stream that keeps its sender busy,
pub const BULK_BYTES: usize = 49_152;

/// and a receiver that has caught up with the stream looks again after so many nanoseconds,
pub const GATHER_NS: u64 = 100_000;

/// or when the rest of the message can have come, at so many bytes per nanosecond.
pub const BYTES_PER_NS: u64 = 6;

/// Multicast groups one wire can join.
pub const MAX_GROUPS: usize = 64;

/// Lcores that can share one address.
pub const MAX_LCORES: usize = 64;

/// Loopback addresses tried when looking for a free one.
pub const AUTO_ADDRESS_TRIES: u32 = 1024;

/// Bytes of encoded frames that a tap holds before it writes: room for a frame of any size, and
/// for the burst of one turn.
pub const TAP_BUFFER_BYTES: usize = 1 << 20;

/// A tap writes at a flush when it holds this much,
pub const TAP_WRITE_BYTES: usize = 1 << 16;

/// or when so many nanoseconds have passed, so that a killed process leaves what it saw.
pub const TAP_WRITE_NS: u64 = 10_000_000;

/// Frames that a fault plan can hold back, per direction.
pub const FAULT_FRAMES: usize = 1024;

/// Nanoseconds that a frame waits to be passed by another before it goes on in its old place.
pub const FAULT_REORDER_NS: u64 = 1_000_000;
