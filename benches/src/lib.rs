//! Two connected lcores to measure messages on, the traffic between them, and the cores to do it on.
#![forbid(unsafe_code)]

mod bookless;
mod cores;
mod ends;
mod opposite;
mod packets;
mod ping_pong;
mod reconnect;
mod side;
mod traffic;
mod work;

pub use cores::{cores, pin};
pub use ends::{Books, Ends};
pub use opposite::Opposite;
pub use packets::Packets;
pub use ping_pong::{Player, rally};
pub use reconnect::{Queues, Reconnect};
pub use side::{Options, Side, Wish, connect, pair};
pub use traffic::{BATCH, Kind, Sink, Source, stream};
pub use work::Work;
