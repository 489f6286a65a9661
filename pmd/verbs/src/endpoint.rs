//! The seam between nodes and devices: one connection, whatever is under it.
//!
//! An endpoint moves bytes between memory of this side and of one peer. There is no key, completion
//! queue or signalling in it, so that a verbs queue pair, a DOCA connection and a test double
//! behave alike: every accepted operation settles exactly once, in whatever order the device ends
//! them.

use std::fmt;
use std::sync::Arc;

use pmd_mem::Region;
use pmd_observe::why::{End, Request};

use crate::gid::GidPair;

mod double;
mod meeting;
mod options;
mod pending;
mod queue_pair;
mod reconnect;

pub use double::{Double, double_pair};
pub use meeting::MeetingPoint;
pub use options::EndpointOptions;
pub use pending::QueuePairPending;
pub use pmd_ledger::Replay;
pub use queue_pair::QueuePairEndpoint;
pub use reconnect::Reconnect;

/// What an endpoint can do; constant for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// WRITE, with and without immediate.
    pub write: bool,
    /// READ.
    pub read: bool,
    /// Compare-and-swap and fetch-and-add.
    pub atomics: bool,
    /// Largest message, bytes.
    pub max_message: u32,
    /// Operations, receives apart, that can be in flight.
    pub depth: u32,
    /// Receives that can be posted.
    pub recv_depth: u32,
    /// Bytes a SEND can carry without touching registered memory.
    pub inline: u32,
    /// Whether a failure says why, or only that.
    pub status: StatusDetail,
}

/// How much a failed operation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusDetail {
    /// The cause, as a work completion names it.
    Exact,
    /// Failed or flushed, nothing more.
    Coarse,
}

/// Memory of this side that the endpoint may use; from [`Endpoint::register`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u32);

/// Memory of the peer; from [`Endpoint::import`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// Bytes of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Which registered region.
    pub key: LocalKey,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// A place at the peer: the length comes from the local side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Which imported memory.
    pub key: RemoteKey,
    /// First byte in it.
    pub offset: u64,
}

/// What the peer may do with exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rights {
    /// It may READ.
    pub read: bool,
    /// It may WRITE.
    pub write: bool,
    /// It may run atomics.
    pub atomic: bool,
}

/// Exported memory as bytes to hand to the peer: 16 of them for verbs, a whole descriptor for DOCA.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteRef(pub Box<[u8]>);

impl fmt::Debug for RemoteRef {
    /// Keys are secrets of the connection: only the length is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteRef({} bytes)", self.0.len())
    }
}

/// The caller's name for an operation, returned when it settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// An operation.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Send registered bytes to a receive of the peer.
    Send {
        /// What.
        from: Local,
        /// Four bytes more, delivered with the completion.
        imm: Option<[u8; 4]>,
    },
    /// Send up to `caps().inline` bytes, which are copied now.
    SendInline {
        /// What.
        bytes: &'a [u8],
        /// Four bytes more, delivered with the completion.
        imm: Option<[u8; 4]>,
    },
    /// Wait for a message of the peer.
    Recv {
        /// Where to.
        into: Local,
    },
    /// Write to the peer's memory.
    Write {
        /// What.
        from: Local,
        /// Where to.
        to: Remote,
        /// With it, a receive of the peer is consumed and told.
        imm: Option<[u8; 4]>,
    },
    /// Read the peer's memory.
    Read {
        /// Where to.
        into: Local,
        /// What.
        from: Remote,
    },
    /// Compare eight aligned bytes of the peer and swap them when equal.
    CompareSwap {
        /// Receives the value before; eight bytes.
        into: Local,
        /// Where.
        at: Remote,
        /// Expected value.
        compare: u64,
        /// Value stored when the comparison holds.
        swap: u64,
    },
    /// Add to eight aligned bytes of the peer.
    FetchAdd {
        /// Receives the value before; eight bytes.
        into: Local,
        /// Where.
        at: Remote,
        /// Addend, modulo 2^64.
        add: u64,
    },
}

/// Why an operation was not accepted. It leaves no trace: the token never settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many operations as the depth are in flight: poll, then try again.
    #[error("the queue is full: poll for settled operations first")]
    Full,
    /// The connection has failed and takes no more work.
    #[error("the connection is degraded and takes no more work")]
    Degraded,
    /// The endpoint cannot do this; [`Caps`] said so.
    #[error("this endpoint cannot do that: {0}")]
    Unsupported(&'static str),
    /// The bytes lie outside the registered or imported memory.
    #[error("the range lies outside its region")]
    OutOfRange,
    /// Longer than [`Caps::max_message`] or, inline, than [`Caps::inline`].
    #[error("more than {max} bytes")]
    TooLong {
        /// The limit.
        max: u32,
    },
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done.
    Done,
    /// Not begun, or not known to have ended, when the connection failed or closed.
    Flushed,
    /// Failed, and the device says why.
    Failed(pmd_roce::work::WcStatus),
    /// Failed, and the device does not say why ([`StatusDetail::Coarse`]).
    FailedCoarse,
}

/// An operation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Which.
    pub token: Token,
    /// How.
    pub outcome: Outcome,
    /// Bytes received, read or brought by an atomic; 0 for SENDs and WRITEs. Valid when done.
    pub len: u32,
    /// Immediate data of a received message.
    pub imm: Option<[u8; 4]>,
    /// Whether it may be made again where it is not done: it can have taken effect all the same. What is done is not.
    pub replay: Replay,
}

/// Something that concerns the connection as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// It failed on this side or by the peer's requests; what is in flight settles as flushed.
    Failed(&'static str),
    /// The peer's process is gone.
    PeerDead,
}

/// Why memory was not registered, exported or imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The device refused; the text names the limit and the fix.
    #[error("{0}")]
    Refused(String),
    /// The range lies outside the region.
    #[error("bytes {offset}..{end} lie outside a region of {region} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// First byte after.
        end: u64,
        /// Size of the region.
        region: u64,
    },
    /// No region was registered under this key.
    #[error("no region was registered under this key")]
    UnknownKey,
    /// The bytes are no reference of this kind of device.
    #[error("this is no memory reference of a {kind} device: {reason}")]
    Malformed {
        /// Kind of the device that was asked.
        kind: &'static str,
        /// What is wrong with the bytes.
        reason: &'static str,
    },
}

/// One connection to one peer.
pub trait Endpoint {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Makes a region usable as local side of operations. A second time returns the same key.
    fn register(&mut self, region: &Arc<Region>) -> Result<LocalKey, MemoryError>;

    /// Opens `len` bytes from `offset` of a registered region to the peer.
    fn export(
        &mut self,
        key: LocalKey,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteRef, MemoryError>;

    /// Takes what the peer's `export` returned.
    fn import(&mut self, bytes: &[u8]) -> Result<RemoteKey, MemoryError>;

    /// Queues an operation; it may start at once, and starts at the latest with the next
    /// [`Endpoint::doorbell`].
    fn submit(&mut self, op: Op<'_>, token: Token) -> Result<(), SubmitError>;

    /// Starts everything submitted so far.
    fn doorbell(&mut self);

    /// Reports operations that ended; returns how many.
    fn poll(&mut self, sink: &mut dyn FnMut(Settled)) -> usize;

    /// Operations, receives apart, that have not settled; 0 where the device does not count them.
    fn in_flight(&self) -> usize {
        0
    }

    /// The next event of the connection.
    fn event(&mut self) -> Option<EndpointEvent>;

    /// Ends the connection: everything in flight settles as flushed at the next polls.
    fn close(&mut self);

    /// The steps by which it comes back after a failure; none where it cannot.
    fn reconnect(&mut self) -> Option<&mut dyn Reconnect> {
        None
    }

    /// Why the connection failed, in words, where the device knows more than a status.
    fn failure(&self) -> Option<String> {
        None
    }

    /// What this end knows of itself, as far as the device knows anything: attributes, counters, receives. Taken when the
    /// connection is made, it is the baseline of what is taken later.
    fn evidence(&self) -> End {
        End::default()
    }

    /// The first operation that failed of itself, as far as the device knows more of it than its status.
    fn first_failure(&self) -> Option<Request> {
        None
    }

    /// How bytes reach the peer: `local`, `packet`, or as the device calls it. Known once connected.
    fn path(&self) -> &'static str;

    /// The addresses of both ends, where the device has a GID table. Known once connected.
    fn gids(&self) -> Option<GidPair> {
        None
    }
}

/// An endpoint that is not connected yet: receives can be posted, the peer cannot reach it.
pub trait Pending {
    /// The endpoint, to register memory and post receives.
    fn endpoint(&mut self) -> &mut dyn Endpoint;

    /// What the peer needs to connect: bytes for any channel that the application trusts, with up
    /// to 4096 bytes of its own.
    fn hello(&self, private: &[u8]) -> Vec<u8>;

    /// Connects to the peer whose `hello` this is, and returns the peer's private bytes.
    /// Connecting side: the peer has answered. Accepting side: afterwards `hello` returns the
    /// answer, with what was negotiated. Post receives before: the peer may send at once.
    fn connect(&mut self, peer: &[u8]) -> Result<Vec<u8>, ConnectError>;

    /// Goes on with it after [`Pending::connect`]. Returns whether it is connected: at once, but where the two queue pairs meet
    /// by the connection manager.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn meet(&mut self) -> Result<bool, ConnectError> {
        Ok(true)
    }

    /// The connected endpoint.
    fn into_endpoint(self: Box<Self>) -> Box<dyn Endpoint>;
}

/// Why two endpoints did not connect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The peer's bytes are no connection data.
    #[error("the peer sent no connection data: {0}")]
    Malformed(&'static str),
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {theirs} of the connection data, this side {ours}: update the older side"
    )]
    Version {
        /// The peer's.
        theirs: u16,
        /// This side's.
        ours: u16,
    },
    /// Both sides' values of something that must agree.
    #[error("{what}: this side has {ours}, the peer {theirs}")]
    Mismatch {
        /// What must agree.
        what: &'static str,
        /// This side's value.
        ours: String,
        /// The peer's value.
        theirs: String,
    },
    /// The wire that was asked for does not lead to the peer.
    #[error("{wire} does not lead to the peer: {reason}")]
    Unreachable {
        /// Kind of wire.
        wire: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// The device refused a step.
    #[error("{0}")]
    Device(String),
    /// The peer refused, in its own words.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The peer did not answer in time, or the channel to it failed.
    #[error("{0}")]
    Channel(String),
}
