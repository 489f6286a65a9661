//! Why a command was refused: nothing was sent.

use super::private_data::PrivateDataTooLong;
use super::service::ServiceId;
use super::state::CmState;
use crate::qp::state::Transport;

/// Why nobody listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The same service at the same address, or at all of them.
    #[error("{0} is taken at this address: choose another port")]
    InUse(ServiceId),
    /// Every place is taken.
    #[error("all {0} listeners are in use")]
    TooMany(usize),
}

/// Why no request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Every place is taken.
    #[error("all {0} connections are in use, those in timewait included")]
    TooMany(usize),
    /// The addresses do not fit.
    #[error("no route: {0}")]
    Route(&'static str),
    /// Datagrams are looked up, connections are not.
    #[error("{0} is for datagrams: look it up instead of connecting")]
    Datagrams(ServiceId),
    /// A connection has a path and a peer; two messages of a kind connect RC and UC.
    #[error("{0:?} queue pairs are not connected this way")]
    Transport(Transport),
    /// A value outside its range.
    #[error("{field} = {value}: {need}")]
    Value {
        /// Name of the parameter.
        field: &'static str,
        /// Value given.
        value: u8,
        /// What it must be.
        need: &'static str,
    },
    /// More private data than there is room for.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// Why a connection or lookup did not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No such connection.
    #[error("no such connection")]
    NoSuchConnection,
    /// It stands somewhere else; meanwhile the peer may have given up, refused, or disconnected.
    #[error("the connection is in {0}, where that cannot be done")]
    State(CmState),
    /// A value outside its range.
    #[error("{field} = {value}: {need}")]
    Value {
        /// Name of the parameter.
        field: &'static str,
        /// Value given.
        value: u8,
        /// What it must be.
        need: &'static str,
    },
    /// More private data than there is room for.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}
