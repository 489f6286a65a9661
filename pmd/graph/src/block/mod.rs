//! The block protocol: how a client stores blocks in a target's memory and knows that they are there.
//!
//! **Opening.** A client connects with an [`Open`]: which session the connection belongs to (a client with several queue
//! pairs opens one connection for each), how many bytes it will store, and how many blocks it wants in flight. The target
//! answers with an [`Opened`]: its capacity for this session, the depth it grants, and a reference to exported memory of
//! exactly that capacity. Both travel as connection data, so that nothing is exported to a client that was not admitted.
//!
//! **Storing.** The client writes a block into the exported memory by RDMA WRITE, then sends a [`Request`] that commits
//! the range: offset, length, and a CRC-32C if it has one. The target answers each request with a [`Reply`] of the same
//! tag and sequence number; after [`Status::Ok`] the bytes are stored, and the client may READ them back. Requests are
//! answered in any order; a client has no more of them in flight than the granted depth.
//!
//! **Ending.** [`Operation::Bye`] flushes what was committed and ends the session; nothing may follow it. The reply
//! carries the number of blocks that the connection has committed.
//!
//! Messages are [`MESSAGE_BYTES`] bytes, little-endian, and start with [`VERSION`]. Operation numbers 4 and 5 are kept for
//! requests of few KiB that a client sends without a preceding WRITE: read (answered by WRITE and SEND) and write (data
//! behind the request).

mod message;
mod open;

pub use message::{
    MESSAGE_BYTES, MESSAGE_LEN, MessageError, Operation, Reply, Request, Status, VERSION,
};
pub use open::{OPEN_BYTES, Open, Opened};

/// What both ends call this protocol when they connect.
pub const PROTOCOL: &str = "block";
