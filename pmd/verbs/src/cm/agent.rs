//! A device's connection manager.

use std::rc::Rc;

use pmd_roce::cm::{Cm, CmConfig, CmEvent, Negotiated};
use pmd_roce::engine::ResourceError;
use pmd_roce::ids::Instant;
use pmd_roce::qp::state::QpState;

use super::desk::Desk;
use super::held::Held;
use super::provider::{Provider, advance};
use crate::context::Context;
use crate::qp::{ModifyQpError, Qp};
use crate::transport::Connected;

/// A locally administered EUI-64: no adapter with a burnt-in address has it.
const LOCAL_GUID: u64 = 0x0200_0000_0000_0000;
const GUID_FLAGS: u64 = 0x0300_0000_0000_0000;

/// Why a device manages no connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenCmError {
    /// Queue pair 1 of a device belongs to its first lcore.
    #[error("connections are managed by lcore 0 of a device, this is lcore {0}")]
    Lcore(u32),
    /// Managers talk in packets.
    #[error(
        "connections are managed by packets, and this device only shares memory: open it with another wire"
    )]
    NoPackets,
    /// A device of rdma-core has its connections managed by the kernel.
    #[error(
        "connections of this kind of device are the kernel's to manage, by librdmacm, which is not used yet: connect = \"oob\""
    )]
    OtherProvider,
    /// One manager per device.
    #[error("the device's connections are managed already")]
    Open,
    /// The device refused.
    #[error(transparent)]
    Device(#[from] ResourceError),
}

/// The connection manager of a device. A cheap handle, for the thread of the device's first lcore.
#[derive(Clone, Debug)]
pub struct CmAgent {
    desk: Rc<Desk>,
    held: Rc<Held>,
}

impl Context {
    /// Opens queue pair 1 with a connection manager, as `configure` wants it; it starts from one with the
    /// times of Linux that agrees to the MTU of the device.
    ///
    /// # Errors
    /// [`OpenCmError`].
    pub fn open_cm(&self, configure: impl FnOnce(&mut CmConfig)) -> Result<CmAgent, OpenCmError> {
        if self.lcore() != 0 {
            return Err(OpenCmError::Lcore(self.lcore()));
        }
        let guid = pmd_mem::os_entropy() & !GUID_FLAGS | LOCAL_GUID;
        let mtu = self.device().mtu();
        let mut config = CmConfig { mtu, ..CmConfig::new(guid, pmd_mem::os_entropy()) };
        configure(&mut config);
        if self.device().soft().is_none() {
            return Err(OpenCmError::OtherProvider);
        }
        self.with_soft(|core| match core {
            _ if core.cm.is_some() => Err(OpenCmError::Open),
            _ if core.wire.is_none() => Err(OpenCmError::NoPackets),
            core => Ok(core.open_cm(config)?),
        })?;
        Ok(CmAgent { desk: Rc::new(Desk::new(self)), held: Rc::default() })
    }
}

impl CmAgent {
    /// The lcore's part of the device.
    pub fn context(&self) -> &Context {
        &self.desk.cx
    }

    /// Gives the manager a command, with the time that it asks for. What it wants sent leaves at once, or where a loop
    /// drives the device, in its next turn.
    ///
    /// # Panics
    /// When the command uses the same device: it is borrowed meanwhile.
    pub fn command<R>(&self, command: impl FnOnce(&mut Cm, Instant) -> R) -> R {
        self.desk.command(command)
    }

    /// The next event of the manager that is no [`Id`](super::Id)'s.
    pub fn poll_event(&self) -> Option<CmEvent> {
        self.desk.cx.nudge();
        self.desk.pump();
        self.desk.books.borrow_mut().unclaimed.pop_front()
    }

    /// The terms, from the port and index that the device has for its address.
    #[must_use]
    pub fn settle(&self, terms: &Negotiated) -> Negotiated {
        self.desk.settle(terms)
    }

    /// Moves a queue pair one step on its way to RTS, as both sides have agreed: INIT, RTR or RTS.
    /// Between INIT and RTR receives are posted, so that they are there before the peer can send.
    ///
    /// # Errors
    /// [`ModifyQpError`]: nothing changed.
    pub fn step<T: Connected>(
        &self,
        qp: &Qp<T>,
        terms: &Negotiated,
        to: QpState,
    ) -> Result<(), ModifyQpError> {
        advance(qp, &self.settle(terms), to)
    }

    pub(super) fn provider(&self) -> (Rc<dyn Provider>, Rc<Held>) {
        (Rc::clone(&self.desk) as Rc<dyn Provider>, Rc::clone(&self.held))
    }
}
