//! Shared memory between the lcores of one host, in one process or several.
//!
//! A device opens a [`Port`]: it claims a prefix of queue pair numbers in the rendezvous [`Directory`] of its user, and lets other
//! devices of that user in. Its lcores take their [`Links`], one link per lcore of a peer, on which the engine's local path runs:
//! records through a ring per direction, and one-sided operations by one copy into the peer's memory.
//!
//! What a peer can write is checked whenever it is used: a hostile one can spoil the bytes it was granted, never crash, hang or
//! misdirect this side.

mod arrivals;
mod control;
mod cpu;
mod direct;
mod fdpass;
mod fence;
mod handshake;
pub mod limits;
mod link;
mod links;
mod mailbox;
mod outgoing;
mod page;
mod payload;
mod peer;
mod port;
mod reach;
mod record;
mod rendezvous;
mod ring;
mod short;
mod sleep;
mod straight;
#[cfg(test)]
mod tests;

pub use arrivals::{Arrivals, Messages, Plain, Take};
pub use cpu::{CpuClaim, CpuHolder};
pub use direct::AtomicOp;
pub use fdpass::PeerCred;
pub use fence::StillUsed;
pub use handshake::{Nonce, Refusal, VERSION};
pub use link::{LinkFault, PeerInfo};
pub use links::{Down, Links, Push, Source, Target};
pub use page::ShownQp;
pub use payload::Payload;
pub use port::{AttachError, ExportError, OpenError, PeerName, Port, PortConfig};
pub use reach::{MemoryFault, Remote, Sge};
pub use record::{Datagram, Garbage, Kind, Record};
pub use rendezvous::{Directory, DirectoryError, PortClaim, PortError, PrefixClaim, PrefixError};
pub use straight::{Alone, Pair, Straight};
