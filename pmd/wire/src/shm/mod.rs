//! Shared memory between the lcores of one host, in one process or several.

mod fdpass;
mod handshake;
pub mod limits;
mod record;
mod rendezvous;
mod ring;

pub use fdpass::PeerCred;
pub use handshake::{Nonce, Refusal, VERSION};
pub use record::{Garbage, Kind, Record};
pub use rendezvous::{Directory, DirectoryError, PortClaim, PortError, PrefixClaim, PrefixError};
