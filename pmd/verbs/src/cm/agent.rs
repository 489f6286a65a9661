//! A device's connection manager.

use pmd_observe::journal::By;
use pmd_roce::cm::{Cm, CmConfig, CmEvent, Negotiated};
use pmd_roce::engine::ResourceError;
use pmd_roce::ids::Instant;
use pmd_roce::qp::state::QpState;

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
    context: Context,
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
        self.with(|core| match core {
            _ if core.cm.is_some() => Err(OpenCmError::Open),
            _ if core.wire.is_none() => Err(OpenCmError::NoPackets),
            core => Ok(core.open_cm(config)?),
        })?;
        Ok(CmAgent { context: self.clone() })
    }
}

impl CmAgent {
    /// The lcore's part of the device.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Gives the manager a command, with the time that it asks for. What it wants sent leaves in the
    /// lcore's next turn.
    ///
    /// # Panics
    /// When the command uses the same device: it is borrowed meanwhile.
    pub fn command<R>(&self, command: impl FnOnce(&mut Cm, Instant) -> R) -> R {
        let device = self.context.device();
        self.context.with(|core| {
            let now = core.time(|| device.now());
            let cm = core.cm.as_mut().expect("an agent has a manager");
            let result = command(cm, now);
            core.post_mads();
            result
        })
    }

    /// The next event of the manager.
    pub fn poll_event(&self) -> Option<CmEvent> {
        self.context.nudge();
        self.context.with(|core| core.cm.as_mut()?.poll_event())
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
        match terms.step(to) {
            Some((attr, mask)) => qp.modify_by(By::Connect, &attr, mask),
            None => Err(ModifyQpError::Value {
                field: "qp_state",
                value: to as u64,
                need: "a connection is brought up by INIT, RTR and RTS",
            }),
        }
    }
}
