//! What the graph asks of a device, whatever its kind.
//!
//! A kind is opened once by the control thread ([`DeviceKind::open`]); each lcore that has nodes on it takes its part on
//! its own thread ([`Device::lcore`]), polls its progress, and makes endpoints from it. The built-in kinds stand in
//! `soft` and `verbs`; other crates register theirs with [`Registry::register_device`](crate::registry::Registry::register_device).

mod open;
mod soft;
mod verbs;

use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use pmd_lcore::Progress;
use pmd_mem::Memlock;
use pmd_observe::Snapshot;
use pmd_observe::why::FaultHits;
use pmd_verbs::endpoint::{EndpointOptions, Pending};
use pmd_verbs::ledger::Switches;
use pmd_verbs::record::Recording;
use pmd_verbs::{DeviceConfig, Disturb, JournalReader, PlacedFault, Survey};
use thiserror::Error;

use crate::config::schema::Settings;
use crate::registry::DeviceSchema;

pub use soft::Soft;
pub use verbs::Verbs;

/// What asynchronous events do to the work of endpoints.
fn switches(settings: &Settings) -> Switches {
    Switches {
        events: settings.flag("async_events"),
        fail: settings.flag("fail_on_async_event"),
        ..Switches::default()
    }
}

/// What a device is opened with.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest<'a> {
    /// Its name in the config.
    pub name: &'a str,
    /// The keys of its kind.
    pub settings: &'a Settings,
    /// How many lcores will use it.
    pub lcores: u32,
    /// What RLIMIT_MEMLOCK means for registered memory.
    pub memlock: Memlock,
    /// File that every frame is written to.
    pub capture: Option<&'a Path>,
    /// What every input of its lcores is written to.
    pub record: Option<&'a Arc<Recording>>,
    /// Faults of its frames, by its own lcore numbers.
    pub faults: &'a [PlacedFault],
}

impl DeviceRequest<'_> {
    /// What devices of `pmd-verbs` are opened with, whatever is under them.
    fn config(&self) -> DeviceConfig {
        DeviceConfig {
            name: self.name.to_owned(),
            lcores: self.lcores,
            memlock: self.memlock,
            disturb: Disturb {
                capture: self.capture.map(Into::into),
                faults: self.faults.to_vec(),
                ..Disturb::default()
            },
            switches: switches(self.settings),
            record: self.record.map(Arc::clone),
            ..DeviceConfig::default()
        }
    }
}

/// Why a device cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceError {
    /// This machine does not have what the device needs; the text says what would help.
    #[error("{0}")]
    Unfit(String),
    /// What is asked of the device does not go together; the text says with what.
    #[error("{0}")]
    Contradiction(String),
    /// The device refused something it was asked for.
    #[error("{0}")]
    Refused(String),
}

/// A kind of device.
pub trait DeviceKind: fmt::Debug + Send + Sync {
    /// Its keys.
    fn schema(&self) -> &DeviceSchema;

    /// Opens a device.
    ///
    /// # Errors
    /// [`DeviceError`], with the fix.
    fn open(&self, request: &DeviceRequest<'_>) -> Result<Arc<dyn Device>, DeviceError>;
}

/// An open device, shared by the lcores of the process.
pub trait Device: Send + Sync {
    /// One lcore's part, numbered from 0; taken once, by the thread that will poll it.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] when that part is taken.
    fn lcore(&self, index: u32) -> Result<Rc<dyn DeviceLcore>, DeviceError>;

    /// How often each fault of its frames has acted.
    fn faults(&self) -> Vec<FaultHits> {
        Vec::new()
    }

    /// Ends what the device wrote beside its work, such as a capture, once no lcore polls it any more.
    ///
    /// # Errors
    /// What was not written, and why.
    fn finish(&self) -> Result<(), DeviceError>;

    /// The transition journal of all its lcores, for the control thread. `None` for a kind of device that keeps none.
    fn journal(&self) -> Option<JournalReader> {
        None
    }
}

/// One lcore's part of a device.
pub trait DeviceLcore {
    /// What the lcore polls for it. `now` is the clock of the lcore's loop, in nanoseconds, at this moment.
    fn progress(&self, now: u64) -> Box<dyn Progress>;

    /// Makes an endpoint that is not connected yet.
    ///
    /// # Errors
    /// [`DeviceError::Refused`], with the limit that was met.
    fn prepare(&self, options: &EndpointOptions) -> Result<Box<dyn Pending>, DeviceError>;

    /// The same part for one node, named by its number: what is made from it is told of as the node's. `None` for a kind of
    /// device that does not tell.
    fn on_behalf(&self, _node: u32) -> Option<Rc<dyn DeviceLcore>> {
        None
    }

    /// Begins to tell of its queue pairs and counters, or goes on with it, by at most `budget` queue pairs and without
    /// allocation. Returns whether that was all.
    fn survey(&self, _survey: &mut Survey, _budget: usize) -> bool {
        true
    }

    /// The counters of its port, by name.
    fn counters(&self) -> Snapshot {
        Snapshot::default()
    }

    /// Its verbs objects, for what no endpoint does: datagrams by address handle, and groups. `None` for a kind of device
    /// that has none.
    fn verbs(&self) -> Option<pmd_verbs::Context> {
        None
    }
}
