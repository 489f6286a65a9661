//! How blocks travel between the stages of one lcore: as handles of pool buffers, through bounded queues.

mod block;
mod buffers;
mod link;

pub use block::Block;
pub use buffers::{Buffer, Buffers};
pub use link::{Inlet, Outlet};

pub(crate) use link::link;
