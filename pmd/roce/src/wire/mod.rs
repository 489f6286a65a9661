//! RoCEv2 on the wire: one header per file, each as a *view* that borrows bytes and a *repr* that
//! holds their meaning. A view exists only over enough bytes, so that reading it cannot fail.
//!
//! ```text
//! IP | UDP 4791 | BTH | extended headers, in the order of HeaderSet | payload | pad | ICRC
//! ```

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub(crate) mod be;
pub mod bth;
pub mod deth;
pub mod grh;
pub mod icrc;
pub(crate) mod icrc_prefix;
pub mod ieth;
pub mod immdt;
pub mod opcode;
pub mod operation;
pub mod packet;
pub mod pkey;
pub mod reth;
pub mod udp;
pub mod xrceth;

pub use aeth::{Aeth, CreditCode, Msn, NakCode, RnrTimer, Syndrome};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use opcode::{Opcode, TransportClass};
pub use operation::{HeaderSet, Operation, PayloadRule, Position};
pub use packet::{DropReason, Headers, Packet};
pub use pkey::Pkey;
pub use reth::Reth;
pub use xrceth::XrcEth;

/// There are fewer bytes than the header takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fewer bytes than the header takes")]
pub struct Truncated;
