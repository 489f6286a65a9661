//! Why an id did not do what it was asked to.

use std::net::SocketAddr;

use pmd_roce::cm::{AnswerError, ConnectError, ListenError, PortSpace};
use pmd_roce::ids::Gid;
use pmd_roce::qp::attr::{CreateQpError, ModifyQpError};
use pmd_roce::qp::state::Transport;

use super::held::HeldEvent;
use super::id::Id;
use super::provider::IdState;
use crate::qp::JoinGroupError;

/// Why an id did not do what it was asked to: nothing was sent, and it stands where it stood.
#[derive(Debug, thiserror::Error)]
pub enum IdError {
    /// It stands somewhere else; meanwhile the peer may have given up, refused, or disconnected.
    #[error("{operation} is not for an id that is {state}: {need}")]
    State {
        /// What was asked for.
        operation: &'static str,
        /// Where it stands.
        state: IdState,
        /// What it needs.
        need: &'static str,
    },
    /// The device does not have the address.
    #[error(
        "{address} is no address of this device, which has {has}: bind to that, or open another device"
    )]
    NoSuchAddress {
        /// Address asked for.
        address: SocketAddr,
        /// The device's.
        has: Gid,
    },
    /// Another id has the port.
    #[error("{space} port {port} is taken at this address: choose another port, or 0 for any")]
    PortInUse {
        /// Name space of the port.
        space: PortSpace,
        /// The port.
        port: u16,
    },
    /// Every port that can be chosen is taken.
    #[error("no {0} port is free")]
    NoPort(PortSpace),
    /// The id has neither a queue pair nor its number.
    #[error(
        "the id has no queue pair: create one with it, or give its number in ConnectParams::qp"
    )]
    NoQueuePair,
    /// One id, one queue pair.
    #[error("the id has a queue pair already")]
    HasQueuePair,
    /// The queue pair is of another service than the id.
    #[error("a queue pair of service {transport:?} is not for {space}")]
    Service {
        /// Its service.
        transport: Transport,
        /// The id's port space.
        space: PortSpace,
    },
    /// No queue pair was created.
    #[error(transparent)]
    CreateQp(#[from] CreateQpError),
    /// It was not moved.
    #[error("the queue pair was not moved: {0}")]
    ModifyQp(#[from] ModifyQpError),
    /// Nobody listens.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No request was sent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No answer was sent.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The group was not left.
    #[error(transparent)]
    Group(#[from] JoinGroupError),
    /// Somebody holds an event of it.
    #[error(transparent)]
    Held(#[from] HeldEvent),
    /// The device failed.
    #[error("the device failed beyond repair: open it anew")]
    DeviceRemoved,
}

/// An id that was not destroyed since somebody holds an event about it.
#[derive(Debug, thiserror::Error)]
#[error("the id stays: {held}")]
pub struct IdStays {
    /// The id, as it was.
    pub id: Id,
    /// The event that it waits for, and for how long it has been held.
    pub held: HeldEvent,
}
