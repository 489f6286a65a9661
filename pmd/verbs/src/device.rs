//! Devices: what a process opens once and its lcores share.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time;

use pmd_ledger::Switches;
use pmd_mem::{Memlock, RegionError};
use pmd_observe::why::FaultHits;
use pmd_record::Recording;
use pmd_roce::ids::{Gid, Instant, PathMtu, Qpn};
use pmd_roce::limits::{MAX_MESSAGE, QPN_LCORE_BITS};
use pmd_wire::shm::Nonce;
use pmd_wire::tap::CaptureError;
use pmd_wire::udp;

use crate::connect::{HostId, PathWish};
use crate::context::Context;
use crate::disturb::Disturb;
use crate::gid::{RoceVersion, SourceGid};
use crate::journal::{Journal, JournalReader, journal};
use crate::provider::Provider;
use crate::rdma_core::{self, NicChoice, NicError};
use crate::soft;

/// Lcores that can share a device.
pub const MAX_LCORES: u32 = 1 << QPN_LCORE_BITS;
/// Shared receive queues of one lcore.
pub(crate) const MAX_SRQS: usize = 256;
/// Address handles of one lcore.
pub(crate) const MAX_AHS: usize = 4096;

/// How frames and memory reach peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WireChoice {
    /// Shared memory to peers of this host and user, UDP to all others.
    #[default]
    Auto,
    /// Shared memory only: a peer elsewhere is an error.
    Shm,
    /// UDP only, also between processes of this host.
    Udp,
}

/// What a device is opened with.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Its name, for messages.
    pub name: String,
    /// Its address; `None` takes the first free loopback address.
    pub address: Option<IpAddr>,
    /// The index of its address in the table of [`soft_addresses`](crate::soft_addresses).
    pub gid_index: Option<u32>,
    /// How peers are reached.
    pub wire: WireChoice,
    /// Whether peers of this host may map exported memory; without, they get packets.
    pub one_copy: bool,
    /// Whether connections can have an alternate path to migrate to: packets only, shared memory has one path.
    pub auto_path_mig: bool,
    /// Lcores that will use it, 1 to [`MAX_LCORES`].
    pub lcores: u32,
    /// Whether RLIMIT_MEMLOCK bounds registrations, as a NIC driver would have it.
    pub memlock: Memlock,
    /// Capture of frames and faults of the wire; either forces packets.
    pub disturb: Disturb,
    /// What asynchronous events do to the work of endpoints.
    pub switches: Switches,
    /// What every input of its lcores is written to.
    pub record: Option<Arc<Recording>>,
    /// A device of rdma-core instead of the software NIC: a real NIC, or the kernel's RoCE.
    pub nic: Option<NicChoice>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            name: "soft0".into(),
            address: None,
            gid_index: None,
            wire: WireChoice::Auto,
            one_copy: true,
            auto_path_mig: false,
            lcores: 1,
            memlock: Memlock::Check,
            disturb: Disturb::default(),
            switches: Switches::default(),
            record: None,
            nic: None,
        }
    }
}

/// Why a device was not opened, or not for this lcore.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Too many lcores, or none.
    #[error("a device serves 1 to {MAX_LCORES} lcores, not {0}")]
    Lcores(u32),
    /// The address cannot be used.
    #[error("{device}: {reason}")]
    Address {
        /// Name of the device.
        device: String,
        /// Why.
        reason: udp::BindError,
    },
    /// The GID index cannot be used.
    #[error("{device}: {reason}")]
    Gid {
        /// Name of the device.
        device: String,
        /// Why.
        reason: String,
    },
    /// No memory for the device's own tables.
    #[error("{device}: {reason}")]
    Memory {
        /// Name of the device.
        device: String,
        /// Why.
        reason: RegionError,
    },
    /// Shared memory was asked for and cannot be had.
    #[error("{device}: wire = \"shm\" is not possible: {reason}")]
    SharedMemory {
        /// Name of the device.
        device: String,
        /// Why, and what to do.
        reason: String,
    },
    /// Shared memory carries no frames to capture or disturb.
    #[error(
        "{0}: captures and faults need packets, and wire = \"shm\" has none: use wire = \"udp\" or \"auto\""
    )]
    NoPackets(String),
    /// There is no such device of rdma-core, or no library to drive it by.
    #[error("{device}: {reason}")]
    Nic {
        /// Name of the device in the configuration.
        device: String,
        /// Why, and what to do.
        reason: NicError,
    },
    /// Only a software NIC has that.
    #[error("{device}: a device of rdma-core has not {what}: use {fix}")]
    NotOnNic {
        /// Name of the device in the configuration.
        device: String,
        /// What was asked for.
        what: &'static str,
        /// What has it.
        fix: &'static str,
    },
    /// The capture file cannot be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The lcore has its part already, or does not exist.
    #[error("{device}: lcore {lcore} of {lcores} is taken or does not exist")]
    Lcore {
        /// Name of the device.
        device: String,
        /// The lcore.
        lcore: u32,
        /// How many there are.
        lcores: u32,
    },
}

impl OpenError {
    /// Whether this machine has no such device.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Address { reason: udp::BindError::NotLocal(_), .. } | Self::Nic { .. })
    }
}

/// An open device. A cheap handle, shared between threads; each lcore takes its part by
/// [`Device::context`].
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    lcores: u32,
    under: Under,
    pds: AtomicU32,
    /// What each lcore writes to, until it takes it.
    journals: Mutex<Vec<Option<Journal>>>,
    /// What its lcores have written down.
    journal: JournalReader,
    switches: Switches,
    epoch: time::Instant,
    host: HostId,
}

/// What is under a device.
enum Under {
    Soft(Box<soft::Port>),
    RdmaCore(Arc<rdma_core::Port>),
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.shared.name)
            .field("gid", &self.gid())
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Opens a software NIC, or the device of rdma-core that [`DeviceConfig::nic`] names.
    ///
    /// # Errors
    /// [`OpenError`]; its text names the fix.
    pub fn open(config: &DeviceConfig) -> Result<Self, OpenError> {
        if config.lcores == 0 || config.lcores > MAX_LCORES {
            return Err(OpenError::Lcores(config.lcores));
        }
        let under = match &config.nic {
            None => Under::Soft(Box::new(soft::Port::open(config)?)),
            Some(nic) => {
                config.suits_a_nic()?;
                let gid_index = nic.gid_index.or(config.gid_index);
                let port = rdma_core::Port::open(&NicChoice { gid_index, ..nic.clone() });
                let port =
                    port.map_err(|reason| OpenError::Nic { device: config.name.clone(), reason })?;
                let (name, device, number) = (&config.name, &port.device, port.number);
                tracing::debug!("{name}: {device} port {number}, {}: {}", port.gid, port.reason);
                Under::RdmaCore(Arc::new(port))
            }
        };
        let (journals, readers) = (0..config.lcores)
            .map(|_| {
                let (journal, reader) = journal();
                (Some(journal), reader)
            })
            .unzip();
        Ok(Self {
            shared: Arc::new(Shared {
                name: config.name.clone(),
                lcores: config.lcores,
                under,
                pds: AtomicU32::new(1),
                journals: Mutex::new(journals),
                journal: JournalReader::new(&config.name, time::SystemTime::now(), readers),
                switches: config.switches,
                epoch: time::Instant::now(),
                host: HostId::of_this_process(),
            }),
        })
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What drives it, in one word: `soft` of the software NIC, else the kernel's driver, as in `rxe` or `mlx5`.
    pub fn driver(&self) -> &str {
        match &self.shared.under {
            Under::Soft(_) => "soft",
            Under::RdmaCore(port) => &port.driver,
        }
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        match &self.shared.under {
            Under::Soft(port) => port.source.gid,
            Under::RdmaCore(port) => port.gid,
        }
    }

    /// The same with its place in the table of its port: that of [`soft_addresses`](crate::soft_addresses) when a software NIC
    /// was opened, that of the device else.
    pub fn source(&self) -> SourceGid {
        match &self.shared.under {
            Under::Soft(port) => port.source,
            Under::RdmaCore(port) => {
                let index = Some(port.gid_index.into());
                SourceGid { index, gid: port.gid, version: port.version }
            }
        }
    }

    /// Why it has this address and no other, in words.
    pub fn source_reason(&self) -> &str {
        match &self.shared.under {
            Under::Soft(port) => port.reason,
            Under::RdmaCore(port) => &port.reason,
        }
    }

    /// How its packets look.
    pub fn roce_version(&self) -> RoceVersion {
        match &self.shared.under {
            Under::Soft(_) => RoceVersion::V2,
            Under::RdmaCore(port) => port.version,
        }
    }

    /// The largest path MTU that its wire carries.
    pub fn mtu(&self) -> PathMtu {
        match &self.shared.under {
            Under::Soft(port) => port.mtu,
            Under::RdmaCore(port) => port.mtu,
        }
    }

    /// Bytes of the largest message on a connection.
    pub fn max_message(&self) -> u32 {
        match &self.shared.under {
            Under::Soft(_) => MAX_MESSAGE,
            Under::RdmaCore(port) => port.max_message,
        }
    }

    /// The network interface under its wire; none where only memory is shared.
    pub(crate) fn netdev(&self) -> Option<&str> {
        match &self.shared.under {
            Under::Soft(port) => port.netdev.as_deref(),
            Under::RdmaCore(port) => port.netdev.as_deref(),
        }
    }

    /// Lcores it was opened for.
    pub fn lcores(&self) -> u32 {
        self.shared.lcores
    }

    /// How it wants to be reached.
    pub fn path(&self) -> PathWish {
        match &self.shared.under {
            Under::Soft(port) => port.path,
            Under::RdmaCore(_) => PathWish::Packets,
        }
    }

    /// Which host and user it runs on.
    pub fn host(&self) -> HostId {
        self.shared.host
    }

    /// Names it among the devices that share memory; none where it shares none.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        self.soft().and_then(soft::Port::nonce)
    }

    /// The software NIC, where it is that.
    pub(crate) fn soft(&self) -> Option<&soft::Port> {
        match &self.shared.under {
            Under::Soft(port) => Some(port),
            Under::RdmaCore(_) => None,
        }
    }

    /// The port of a device of rdma-core, where it is that.
    pub(crate) fn nic(&self) -> Option<&rdma_core::Port> {
        match &self.shared.under {
            Under::Soft(_) => None,
            Under::RdmaCore(port) => Some(port),
        }
    }

    /// One lcore's part; to be taken once, by the thread that will run it.
    ///
    /// # Errors
    /// [`OpenError::Lcore`] when it was taken before.
    pub fn context(&self, lcore: u32) -> Result<Context, OpenError> {
        let journal = {
            let mut journals = self.shared.journals.lock().unwrap_or_else(PoisonError::into_inner);
            journals.get_mut(lcore as usize).and_then(Option::take)
        };
        let journal = journal.ok_or_else(|| OpenError::Lcore {
            device: self.shared.name.clone(),
            lcore,
            lcores: self.shared.lcores,
        })?;
        let core = match &self.shared.under {
            Under::Soft(port) => Provider::Soft(port.core(lcore, journal)),
            Under::RdmaCore(port) => {
                let device = self.name().to_owned();
                let core = port.core(journal);
                Provider::RdmaCore(core.map_err(|reason| OpenError::Nic { device, reason })?)
            }
        };
        Ok(Context::new(self.clone(), lcore, core))
    }

    /// Nanoseconds since the device was opened.
    pub fn now(&self) -> Instant {
        Instant(u64::try_from(self.shared.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// How often each fault of its frames has acted, at all its lcores.
    pub fn faults(&self) -> Vec<FaultHits> {
        self.soft().map(|port| port.disturbance.hits()).unwrap_or_default()
    }

    /// The transition journal of all its lcores, for a thread of its own: from the oldest record that is left, each
    /// reader for itself.
    pub fn journal(&self) -> JournalReader {
        self.shared.journal.clone()
    }

    /// Lines of the journal that tell what became of a queue pair.
    pub(crate) fn trouble_of(&self, lcore: u32, qpn: Qpn) -> Vec<String> {
        self.shared.journal.trouble_of(lcore, qpn)
    }

    /// Ends the capture, if there is one, and reports whether all of it was written.
    ///
    /// # Errors
    /// What went wrong with the file, such as a full disk.
    pub fn finish_capture(&self) -> Result<(), CaptureError> {
        self.soft().map_or(Ok(()), |port| port.disturbance.finish())
    }

    /// What asynchronous events do to the work of endpoints.
    pub(crate) fn switches(&self) -> Switches {
        self.shared.switches
    }

    pub(crate) fn next_pd(&self) -> u32 {
        self.shared.pds.fetch_add(1, Ordering::Relaxed)
    }
}

impl DeviceConfig {
    /// Refuses what only a software NIC has.
    fn suits_a_nic(&self) -> Result<(), OpenError> {
        let refused = |what, fix| Err(OpenError::NotOnNic { device: self.name.clone(), what, fix });
        if self.disturb.capture.is_some() {
            return refused(
                "a capture of its frames",
                "tcpdump on its network interface, where that shows RoCE, or kind = \"soft\"",
            );
        }
        if !self.disturb.faults.is_empty() {
            return refused("faults of its frames", "tc netem at the peer, or kind = \"soft\"");
        }
        if self.record.is_some() {
            return refused("a record of its inputs", "kind = \"soft\"");
        }
        if self.address.is_some() {
            return refused("an address of its own choice", "gid_index");
        }
        match self.wire {
            WireChoice::Auto => Ok(()),
            WireChoice::Shm | WireChoice::Udp => {
                refused("a choice of wires", "no wire, or kind = \"soft\"")
            }
        }
    }
}
