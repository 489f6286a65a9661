//! The key-value protocol: many small requests over connected queue pairs, a SEND each way.
//!
//! **Opening.** A client connects with an [`Open`]: which session the connection belongs to (a client with several queue
//! pairs opens one connection for each), how many keys the session will use, how long their values are at most, and how
//! many requests it wants in flight. The server answers with an [`Opened`]: the first key of a range that belongs to this
//! session alone as long as it lasts, a number of that range, and the depth it grants. A range starts out empty, whoever had
//! it before.
//!
//! **Asking.** A [`Request`] is one message: GET with a key, or PUT with a key and a value behind it. The server answers
//! each with a [`Reply`] of the same tag, a value behind it where one was found. Requests of one connection take effect
//! in the order in which they were sent, and are answered in that order; between connections there is no order. A client
//! has no more of them in flight than the granted depth.
//!
//! **Keeping alive.** A client that has heard nothing for a while sends an [`Operation::KeepAlive`], which depth does not
//! count. A client says when it opens how long it would be silent at most: a server that hears nothing for twice as long
//! takes it for dead.
//!
//! **Coming back.** When a connection breaks and comes back, its requests without a reply are sent again, in their order.
//! That a GET is done twice shows nowhere. Nor does a PUT: it says what a key is to hold, not by how much it changes, and
//! nobody but the connection that sends it touches its keys. So a GET that is done again may find what a later PUT, sent
//! before the break, had put. A server that was started again has another range for the session, and in it nothing.
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

/// Requests beside those that depth counts: a keep-alive.
pub(crate) const MORE_REQUESTS: u32 = 1;

/// Bytes of message buffers at either end of a connection with `depth` requests in flight: those that come in, then as
/// many that go out.
pub(crate) const fn message_bytes(depth: u64, value: u64) -> u64 {
    stride(value).saturating_mul(2 * (depth + MORE_REQUESTS as u64))
}

/// Queues at either end of a connection with `depth` requests in flight.
pub(crate) const fn queues(depth: u64) -> Queues {
    let requests = depth + MORE_REQUESTS as u64;
    Queues { send: requests, receive: requests }
}
