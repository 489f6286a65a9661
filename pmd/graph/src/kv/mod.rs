//! The key-value protocol: many small requests over connected queue pairs, a SEND each way.
//!
//! **Opening.** A client connects with an [`Open`]: which session the connection belongs to (a client with several queue
//! pairs opens one connection for each), how many keys the session will use, how long their values are at most, and how
//! many requests it wants in flight. The server answers with an [`Opened`]: the first key of a range that belongs to this
//! session alone as long as it lasts, and the depth it grants. A range starts out empty, whoever had it before.
//!
//! **Asking.** A [`Request`] is one message: GET with a key, or PUT with a key and a value behind it. The server answers
//! each with a [`Reply`] of the same tag, a value behind it where one was found. Requests of one connection take effect
//! in the order in which they were sent, and are answered in that order; between connections there is no order. A client
//! has no more of them in flight than the granted depth.
//!
//! **Refusing.** A request that cannot be served is answered by its [`Status`]. A message that is no request ends its
//! connection, and no other.
//!
//! **Ending.** A client that has its last reply leaves; nothing is said before.
//!
//! Messages are little-endian and start with [`VERSION`]. No memory is opened to the peer.

mod message;
mod open;

use crate::limits::BUFFER_ALIGN;
use crate::plan::demand::Queues;

pub use message::{
    MessageError, Operation, REPLY_BYTES, REQUEST_BYTES, Reply, Request, Status, VERSION,
};
pub use open::{OPEN_BYTES, OPENED_BYTES, Open, Opened};

/// What both ends call this protocol when they connect.
pub const PROTOCOL: &str = "kv";

/// Bytes from one buffer of a message to the next, for values of up to `value` bytes.
pub(crate) const fn stride(value: u64) -> u64 {
    (REQUEST_BYTES as u64).saturating_add(value).next_multiple_of(BUFFER_ALIGN as u64)
}

/// Bytes of message buffers at either end of a connection with `depth` requests in flight: those that come in, then as
/// many that go out.
pub(crate) const fn message_bytes(depth: u64, value: u64) -> u64 {
    stride(value).saturating_mul(2 * depth)
}

/// Queues at either end of a connection with `depth` requests in flight.
pub(crate) const fn queues(depth: u64) -> Queues {
    Queues { send: depth, receive: depth }
}
