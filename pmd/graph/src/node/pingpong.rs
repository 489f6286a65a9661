//! `pingpong`: two nodes send one message back and forth. The one with a peer begins and measures; the other sends back
//! what it gets.

mod initiator;
mod responder;

use crate::failure::Failure;
use crate::limits::PINGPONG_BUFFERS;
use crate::node::{Node, NodeContext};
use crate::plan::demand::Queues;

/// What both ends call this protocol when they connect. The initiator's payload is the size of the message: a little-endian
/// number of 4 bytes; the answer has none.
const PROTOCOL: &str = "pingpong";

/// One message is under way; the receive for the next one is posted before it is answered.
pub(crate) const QUEUES: Queues =
    Queues { send: PINGPONG_BUFFERS as u64, receive: PINGPONG_BUFFERS as u64 };

/// Bytes of message buffers for one connection: receives, and as many to send from.
pub(crate) const fn message_bytes(size: u64) -> u64 {
    size.saturating_mul(2 * PINGPONG_BUFFERS as u64)
}

/// The end that the config makes of it.
pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
    if cx.is_initiator() { initiator::build(cx) } else { responder::build(cx) }
}
