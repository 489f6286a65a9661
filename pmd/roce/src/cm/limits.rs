//! Every limit of connection management, by name.

use core::time::Duration;

/// Bytes of a management datagram.
pub const MAD_LEN: usize = crate::limits::MAD_BYTES;

/// Private data of a request on [`Tcp`](super::PortSpace::Tcp), behind the IP header (man rdma_connect).
pub const CONNECT_PRIVATE_DATA: usize = 56;
/// Private data of a request on [`Ib`](super::PortSpace::Ib), which has no IP header.
pub const CONNECT_PRIVATE_DATA_IB: usize = 92;
/// Private data of a reply.
pub const ACCEPT_PRIVATE_DATA: usize = 196;
/// Private data of a rejection.
pub const REJECT_PRIVATE_DATA: usize = 148;
/// Private data of the message that makes a connection ready to use.
pub const ESTABLISH_PRIVATE_DATA: usize = 224;
/// Private data of a disconnection.
pub const DISCONNECT_PRIVATE_DATA: usize = 220;
/// Private data of a lookup, behind the IP header.
pub const LOOKUP_PRIVATE_DATA: usize = 180;
/// Private data of a lookup's answer.
pub const LOOKUP_REPLY_PRIVATE_DATA: usize = 136;

/// Longest wait that a peer can talk us into, whatever its messages say.
pub const LONGEST_SPAN: Duration = Duration::from_millis(1 << 16);
/// How long a peer is asked to wait for a consumer that has not answered yet: 65.5 s, as Linux does.
pub const SERVICE_TIMEOUT: u8 = 24;
/// How long an answered lookup is remembered, so that the same question has the same answer.
pub const LOOKUP_MEMORY: Duration = Duration::from_millis(2 * 4096);
/// Messages that wait for room on the wire; more are lost, as the wire loses them.
pub const OUTBOX: usize = 1024;
/// Services that can be listened for.
pub const MAX_LISTENERS: usize = 256;
/// Connections that can be numbered: 16 bits of a communication id, the other 16 tell reuses apart.
pub const MAX_CONNECTIONS: usize = 1 << 16;
