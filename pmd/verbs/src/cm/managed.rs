//! What an id needs of its queue pair, whatever its service.

use std::fmt;

use pmd_observe::journal::By;
use pmd_roce::ids::{Gid, Qpn};
use pmd_roce::qp::attr::{ModifyQpError, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};

use crate::qp::{JoinGroupError, Qp};
use crate::transport::Service;

/// A queue pair that an [`Id`](super::Id) moves on behalf of its consumer.
pub trait ManagedQp: fmt::Debug {
    /// Its number.
    fn number(&self) -> Qpn;
    /// Its service.
    fn transport(&self) -> Transport;
    /// Its state.
    fn state(&self) -> QpState;
    /// Whether its receives come from a shared queue.
    fn has_srq(&self) -> bool;
    /// Moves it, on behalf of the connection.
    ///
    /// # Errors
    /// [`ModifyQpError`]: nothing changed.
    fn advance(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError>;
    /// Joins a multicast group.
    ///
    /// # Errors
    /// [`JoinGroupError`]; also where the service has no groups.
    fn join_group(&self, group: Gid) -> Result<(), JoinGroupError>;
    /// Leaves a multicast group.
    ///
    /// # Errors
    /// [`JoinGroupError`]: it is no member.
    fn leave_group(&self, group: Gid) -> Result<(), JoinGroupError>;
}

impl<T: Service> ManagedQp for Qp<T> {
    fn number(&self) -> Qpn {
        Self::number(self)
    }

    fn transport(&self) -> Transport {
        T::TRANSPORT
    }

    fn state(&self) -> QpState {
        Self::state(self)
    }

    fn has_srq(&self) -> bool {
        self.srq().is_some()
    }

    fn advance(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
        self.modify_by(By::Connect, attr, mask)
    }

    fn join_group(&self, group: Gid) -> Result<(), JoinGroupError> {
        self.join(group)
    }

    fn leave_group(&self, group: Gid) -> Result<(), JoinGroupError> {
        self.leave(group)
    }
}
