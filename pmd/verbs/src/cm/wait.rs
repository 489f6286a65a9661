//! Whole steps with a bounded wait, for programs that do one thing after the other.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use pmd_roce::cm::{PortSpace, PrivateData};

use super::channel::EventChannel;
use super::event::{Established, EventKind, Request};
use super::id::{ConnectParams, Id};
use super::id_error::IdError;

/// Why a step did not end well.
#[derive(Debug, thiserror::Error)]
pub enum CmFailure {
    /// It could not begin.
    #[error(transparent)]
    Id(#[from] IdError),
    /// It failed, and why.
    #[error("{0}")]
    Failed(Box<EventKind>),
    /// Nothing happened for so long.
    #[error("{wanted} has not come within {limit:?}")]
    Late {
        /// What was waited for.
        wanted: &'static str,
        /// How long.
        limit: Duration,
    },
    /// Something else happened.
    #[error("{got} instead of {wanted}")]
    Unexpected {
        /// What was waited for.
        wanted: &'static str,
        /// What came.
        got: Box<EventKind>,
    },
    /// The system cannot wait.
    #[error("waiting failed: {0}")]
    Io(#[from] io::Error),
}

impl EventChannel {
    /// The next event of an id, whatever else happens meanwhile; that can still be taken.
    ///
    /// # Errors
    /// [`CmFailure::Failed`] where the event says that something failed; [`CmFailure::Late`].
    pub fn outcome(
        &self,
        id: &Id,
        wanted: &'static str,
        limit: Duration,
    ) -> Result<EventKind, CmFailure> {
        match self.wait_for(Some(id.key()), limit)? {
            None => Err(CmFailure::Late { wanted, limit }),
            Some(event) if event.kind().is_failure() => {
                Err(CmFailure::Failed(event.kind().clone().into()))
            }
            Some(event) => Ok(event.kind().clone()),
        }
    }

    /// Creates an id with address and route to a peer. Each of the two may take so long.
    ///
    /// # Errors
    /// [`CmFailure`].
    pub fn open(&self, space: PortSpace, to: SocketAddr, limit: Duration) -> Result<Id, CmFailure> {
        let id = self.create_id(space);
        id.resolve_addr(to)?;
        self.outcome(&id, "ADDR_RESOLVED", limit)?;
        id.resolve_route()?;
        self.outcome(&id, "ROUTE_RESOLVED", limit)?;
        Ok(id)
    }

    /// Connects: with the terms of the connection, or where the datagram service is, and the peer's data.
    ///
    /// # Errors
    /// [`CmFailure`]; a peer that refuses says why.
    pub fn connect(
        &self,
        id: &Id,
        params: &ConnectParams<'_>,
        limit: Duration,
    ) -> Result<(Established, PrivateData), CmFailure> {
        id.connect(params)?;
        self.established(id, limit)
    }

    /// The next request of a listener, with the id to answer it.
    ///
    /// # Errors
    /// [`CmFailure`].
    pub fn request(&self, listener: &Id, limit: Duration) -> Result<(Id, Request), CmFailure> {
        let wanted = "CONNECT_REQUEST";
        let late = CmFailure::Late { wanted, limit };
        let mut event = self.wait_for(Some(listener.key()), limit)?.ok_or(late)?;
        match (event.take_id(), event.kind()) {
            (Some(id), EventKind::ConnectRequest(request)) => Ok((id, *request)),
            (_, failed) if failed.is_failure() => Err(CmFailure::Failed(failed.clone().into())),
            (_, got) => Err(CmFailure::Unexpected { wanted, got: got.clone().into() }),
        }
    }

    /// Accepts a request for a connection, until it is established; with the peer's data.
    ///
    /// # Errors
    /// [`CmFailure`].
    pub fn accept(
        &self,
        id: &Id,
        params: &ConnectParams<'_>,
        limit: Duration,
    ) -> Result<(Established, PrivateData), CmFailure> {
        id.accept(params)?;
        self.established(id, limit)
    }

    /// Ends a connection, and waits until the peer knows or is given up.
    ///
    /// # Errors
    /// [`CmFailure`].
    pub fn disconnect(&self, id: &Id, limit: Duration) -> Result<(), CmFailure> {
        id.disconnect()?;
        let wanted = "DISCONNECTED";
        match self.outcome(id, wanted, limit)? {
            EventKind::Disconnected(_) | EventKind::TimewaitExit => Ok(()),
            got => Err(CmFailure::Unexpected { wanted, got: got.into() }),
        }
    }

    fn established(
        &self,
        id: &Id,
        limit: Duration,
    ) -> Result<(Established, PrivateData), CmFailure> {
        let wanted = "ESTABLISHED";
        match self.outcome(id, wanted, limit)? {
            EventKind::Established(what, data) => Ok((what, data.unwrap_or_default())),
            got => Err(CmFailure::Unexpected { wanted, got: got.into() }),
        }
    }
}
