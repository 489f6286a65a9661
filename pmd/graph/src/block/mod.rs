//! The block protocol: how a client stores blocks at a target, reads them, and knows that they are there.
//!
//! **Opening.** A client connects with an [`Open`]: which session the connection belongs to (a client with several queue
//! pairs opens one connection for each), how many bytes it will store, how many requests it wants in flight, and a
//! reference to memory of its own with a buffer for each of them. The target answers with an [`Opened`]: its capacity for
//! this session, the depth it grants, a reference to exported memory, and as [`Held`] where the session's part lies in which
//! store. Both travel as connection data, so that nothing is exported to anybody who was not admitted.
//!
//! **Coming back.** A session whose target was started again opens anew with what it [`Held`]. A target with that store
//! gives it the same part, or nothing while somebody else has it. Another answer than what was held means that what the
//! session stored is gone.
//!
//! **Places.** A store in memory is exported itself ([`Place::Store`]): a range lies at its offset. A store elsewhere has
//! buffers in between ([`Place::Buffers`]): the range of a request lies in the buffer of its tag.
//!
//! **Storing.** The client writes a block to its place by RDMA WRITE, then sends a [`Request`] that commits the range:
//! offset, length, and a CRC-32C if it has one. The target answers each request with a [`Reply`] of the same tag and
//! sequence number; after [`Status::Ok`] the bytes are stored. Requests are answered in any order; a client has no more of
//! them in flight than the granted depth, and no two of one tag.
//!
//! **Reading.** The client sends a request for a range. The target writes it by RDMA WRITE into the client's buffer of the
//! request's tag, and sends the reply behind it. From a store in memory the client may as well READ what it committed.
//!
//! **Keeping alive.** A client that has heard nothing for a while asks for an [`Operation::KeepAlive`], which the target
//! answers by itself, whatever its store does, and says for how long that has had a request; depth does not count it. A client says when it opens how long it would be
//! silent at most: a target that hears nothing for twice as long takes it for dead.
//!
//! **Ending.** [`Operation::Flush`] makes durable what was committed before. [`Operation::Bye`] flushes and ends the
//! session; nothing but a keep-alive may follow it. Its reply carries the number of blocks that the connection has committed.
//!
//! Messages are [`MESSAGE_BYTES`] bytes, little-endian, and start with [`VERSION`].

mod message;
mod open;
mod post;

pub use message::{
    MESSAGE_BYTES, MESSAGE_LEN, MessageError, Operation, Reply, Request, Status, VERSION,
};
pub use open::{BUFFER_BYTES, Held, OPEN_BYTES, Open, Opened, Place};
pub(crate) use post::{Post, forgotten, nonsense, refused, unanswered};

/// What both ends call this protocol when they connect.
pub const PROTOCOL: &str = "block";
