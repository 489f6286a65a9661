//! What runs on an lcore: nodes, what they are built from, and what they leave behind.
//!
//! A kind of node is a [`NodeFactory`](crate::registry::NodeFactory); [`build`](crate::registry::NodeFactory::build) makes
//! the [`Node`] on the thread of its lcore, from a [`NodeContext`]. From then on the lcore calls [`Node::run`] again and
//! again; nothing else calls into a node, and it calls nothing that waits.

mod context;
mod hosted;
mod record;

pub(crate) mod block_client;
pub(crate) mod block_load;
pub(crate) mod block_target;
pub(crate) mod clientele;
pub(crate) mod crc32c;
pub(crate) mod deadline;
pub(crate) mod discovery;
pub(crate) mod file_source;
pub(crate) mod generator;
pub(crate) mod kv_client;
pub(crate) mod kv_server;
pub(crate) mod outbox;
pub(crate) mod pattern;
pub(crate) mod pingpong;
pub(crate) mod sink;

pub use context::NodeContext;
pub use record::Record;

pub(crate) use context::{Edges, Inherited};
pub(crate) use hosted::{Hosted, NodeResult, Place};
pub(crate) use record::Recoveries;
pub use record::{Counts, Live};

use pmd_lcore::Doorbells;

use crate::failure::Failure;

/// What a turn of a node came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// So many units of work were done; with 0, it has nothing to do at the moment.
    Worked(usize),
    /// All that was asked of it is done. It is not called again.
    Done,
}

/// A stage of a pipeline, or one end of an RDMA edge, on its lcore.
pub trait Node {
    /// Does what can be done at `now` (nanoseconds of the lcore's clock), within a budget, without waiting.
    ///
    /// # Errors
    /// [`Failure`], when it gives up: it is dropped then, and the run fails.
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure>;

    /// Asks it to end soon: begin nothing new, finish what is in flight, then be done.
    fn stop(&mut self);

    /// Prepares for a nap of its lcore: names the descriptors, other than its device's, that become readable when it has
    /// something to do.
    fn arm<'a>(&'a mut self, _doorbells: &mut Doorbells<'a>) {}

    /// When it will have something to do though nothing arrives.
    fn next_timeout(&self) -> Option<u64> {
        None
    }
}
