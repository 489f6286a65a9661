//! Block backends: where a target keeps the blocks that its clients write and read.
//!
//! [`Memory`] keeps them in a region that peers reach themselves; [`FileBackend`] in a file, through io_uring, with the
//! buffers of a region on the way. Both are polled by their lcore and never wait: a request is submitted, started together
//! with the others of its turn, and reported when it is done.
//!
//! `unsafe` is confined to the ring (`file/ring.rs`): the kernel reads and writes memory while a request is in flight, so
//! the ring holds that memory until every request has ended.

mod backend;
mod file;
pub mod limits;
mod memory;

pub use backend::{Backend, Done, IoError, Kind, Layout, Request, SubmitError, Submitted};
pub use file::{Direct, FileBackend, FileSpec, OpenError, Place};
pub use memory::Memory;
