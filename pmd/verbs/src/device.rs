//! Devices: what a process opens once and its lcores share.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time;

use pmd_ledger::Switches;
use pmd_mem::table::Retired;
use pmd_mem::{
    Key, Memlock, MemoryTable, Numa, Region, RegionError, RegionSpec, Seal, memlock_limit,
};
use pmd_observe::why::FaultHits;
use pmd_record::{Recorded, Recording};
use pmd_roce::engine::EngineConfig;
use pmd_roce::ids::{Gid, Instant, PathMtu, PdId, Qpn};
use pmd_roce::limits::{
    ACK_REQUEST_EVERY, MAX_QPS, QPN_GENERATION_BITS, QPN_INDEX_BITS, QPN_LCORE_BITS, WINDOW_PACKETS,
};
use pmd_roce::work::Access;
use pmd_wire::Wire;
use pmd_wire::shm::Nonce;
use pmd_wire::tap::CaptureError;
use pmd_wire::udp::{self, LcoreBits, UdpOptions};

use crate::connect::{HostId, PathWish};
use crate::context::Context;
use crate::discover::{address_at, index_of};
use crate::disturb::{Disturb, Disturbance};
use crate::gid::{RoceVersion, SourceGid};
use crate::journal::{Journal, JournalReader, journal};
use crate::mr::RegisterError;
use crate::provider::Provider;
use crate::soft::{
    Core, CoreParts, Handover, MAX_REGIONS, Peers, Regions, Shm, TableMemory, access,
};

/// Lcores that can share a device.
pub const MAX_LCORES: u32 = 1 << QPN_LCORE_BITS;
/// Entries of a device's memory table.
const TABLE_ENTRIES: u32 = 1 << 14;
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
        matches!(self, Self::Address { reason: udp::BindError::NotLocal(_), .. })
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
    path: PathWish,
    auto_path_mig: bool,
    source: SourceGid,
    /// Why that one.
    reason: &'static str,
    mtu: PathMtu,
    netdev: Option<String>,
    prefix: u32,
    table: Arc<MemoryTable>,
    regions: Arc<Regions>,
    shm: Option<Shm>,
    pds: AtomicU32,
    parts: Mutex<Vec<Option<Part>>>,
    /// What its lcores have written down.
    journal: JournalReader,
    handover: Handover,
    disturbance: Disturbance,
    switches: Switches,
    record: Option<Arc<Recording>>,
    epoch: time::Instant,
    host: HostId,
}

/// What one lcore takes with it.
struct Part {
    wire: Option<Box<dyn Wire>>,
    journal: Journal,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.shared.name)
            .field("gid", &self.shared.source.gid)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Opens a software NIC.
    ///
    /// # Errors
    /// [`OpenError`]; its text names the fix.
    pub fn open(config: &DeviceConfig) -> Result<Self, OpenError> {
        if config.lcores == 0 || config.lcores > MAX_LCORES {
            return Err(OpenError::Lcores(config.lcores));
        }
        let config = &with_address(config)?;
        let packets = config.disturb.is_active();
        if packets && config.wire == WireChoice::Shm {
            return Err(OpenError::NoPackets(config.name.clone()));
        }
        let (table, table_region) = memory_table(config)?;
        let regions = Arc::new(Regions::new());
        let (mut wires, choice) = open_wires(config, packets)?;
        let address = wires.first().map(|wire| wire.address());
        let mtu = match wires.first() {
            Some(wire) => PathMtu::largest_within(wire.max_payload()).unwrap_or(PathMtu::B256),
            None => PathMtu::B4096,
        };
        let netdev = wires.first().map(|wire| wire.interface().name.clone());
        let gid = address
            .or(config.address)
            .map_or_else(|| Gid::from(IpAddr::from([127, 0, 0, 1])), Gid::from);
        let shares = config.one_copy && !packets && config.wire != WireChoice::Udp;
        let shm = match shares.then(|| Shm::open(config.lcores, gid.ip(), &table, table_region)) {
            None => None,
            Some(Ok(shm)) => Some(shm),
            Some(Err(reason)) if choice == WireChoice::Shm => {
                return Err(OpenError::SharedMemory { device: config.name.clone(), reason });
            }
            Some(Err(reason)) => {
                tracing::warn!("{}: no shared memory, packets only: {reason}", config.name);
                None
            }
        };
        let disturbance = Disturbance::start(&config.disturb)?;
        let mut readers = Vec::with_capacity(config.lcores as usize);
        let parts = (0..config.lcores)
            .map(|lcore| {
                let wire = (!wires.is_empty())
                    .then(|| disturbance.wrap(Box::new(wires.remove(0)), lcore, address));
                let (journal, reader) = journal();
                readers.push(reader);
                Some(Part { wire, journal })
            })
            .collect();
        let path = match choice {
            WireChoice::Shm => PathWish::SharedMemory,
            _ if shares && shm.is_some() => PathWish::Any,
            _ => PathWish::Packets,
        };
        // A number for people, which nothing depends on.
        let index = config.gid_index.or_else(|| index_of(gid.ip()).ok().flatten());
        let source = SourceGid { index, gid, version: RoceVersion::V2 };
        let reason = match (config.gid_index, config.address) {
            (Some(_), _) => "its index was asked for",
            (None, Some(_)) => "asked for",
            (None, None) => "the first free loopback address",
        };
        let name = &config.name;
        tracing::debug!("{name}: {source}: {reason}; path MTU {mtu}, path {path:?}");
        let prefix = shm.as_ref().map_or_else(|| 1 + std::process::id() % 127, Shm::prefix);
        Ok(Self {
            shared: Arc::new(Shared {
                name: config.name.clone(),
                lcores: config.lcores,
                path,
                auto_path_mig: config.auto_path_mig,
                source,
                reason,
                mtu,
                netdev,
                prefix,
                table,
                regions,
                shm,
                pds: AtomicU32::new(1),
                parts: Mutex::new(parts),
                journal: JournalReader::new(name, time::SystemTime::now(), readers),
                handover: Handover::new(prefix, config.lcores),
                disturbance,
                switches: config.switches,
                record: config.record.clone(),
                epoch: time::Instant::now(),
                host: HostId::of_this_process(),
            }),
        })
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.shared.source.gid
    }

    /// The same with its place in the table that [`soft_addresses`](crate::soft_addresses) had when it was opened.
    pub fn source(&self) -> SourceGid {
        self.shared.source
    }

    /// Why it has this address and no other, in words.
    pub fn source_reason(&self) -> &'static str {
        self.shared.reason
    }

    /// The largest path MTU that its wire carries.
    pub fn mtu(&self) -> PathMtu {
        self.shared.mtu
    }

    /// The network interface under its wire; none where only memory is shared.
    pub(crate) fn netdev(&self) -> Option<&str> {
        self.shared.netdev.as_deref()
    }

    /// Lcores it was opened for.
    pub fn lcores(&self) -> u32 {
        self.shared.lcores
    }

    /// How it wants to be reached.
    pub fn path(&self) -> PathWish {
        self.shared.path
    }

    /// Which host and user it runs on.
    pub fn host(&self) -> HostId {
        self.shared.host
    }

    /// Names it among the devices that share memory; none where it shares none.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        self.shared.shm.as_ref().map(Shm::nonce)
    }

    /// One lcore's part; to be taken once, by the thread that will run it.
    ///
    /// # Errors
    /// [`OpenError::Lcore`] when it was taken before.
    pub fn context(&self, lcore: u32) -> Result<Context, OpenError> {
        let part = {
            let mut parts = self.shared.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.get_mut(lcore as usize).and_then(Option::take)
        };
        let Part { wire, journal } = part.ok_or_else(|| OpenError::Lcore {
            device: self.shared.name.clone(),
            lcore,
            lcores: self.shared.lcores,
        })?;
        let config = EngineConfig {
            process: self.shared.prefix,
            lcore,
            gids: vec![self.shared.source.gid],
            second_port: Vec::new(),
            seed: pmd_mem::os_entropy(),
            auto_path_mig: self.shared.auto_path_mig,
            max_qps: MAX_QPS,
            max_srqs: MAX_SRQS,
            max_ahs: MAX_AHS,
            window_packets: WINDOW_PACKETS,
            ack_request_every: ACK_REQUEST_EVERY,
            mtu: self.shared.mtu,
            source_port: wire.as_ref().map(|wire| wire.source_port(pmd_wire::ROCE_PORT)),
        };
        let engine = match &self.shared.record {
            Some(record) => Recorded::on(record, &format!("{} lcore {lcore}", self.name()), config),
            None => Recorded::new(config),
        };
        let memory =
            TableMemory::new(Arc::clone(&self.shared.table), Arc::clone(&self.shared.regions));
        let peers = Peers::new(self.shared.shm.as_ref(), lcore);
        let handover = self.shared.handover.of(lcore);
        Ok(Context::new(
            self.clone(),
            lcore,
            Provider::Soft(Core::new(CoreParts { engine, memory, peers, wire, handover, journal })),
        ))
    }

    /// Nanoseconds since the device was opened.
    pub fn now(&self) -> Instant {
        Instant(u64::try_from(self.shared.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// How often each fault of its frames has acted, at all its lcores.
    pub fn faults(&self) -> Vec<FaultHits> {
        self.shared.disturbance.hits()
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
        self.shared.disturbance.finish()
    }

    /// What asynchronous events do to the work of endpoints.
    pub(crate) fn switches(&self) -> Switches {
        self.shared.switches
    }

    pub(crate) fn table(&self) -> &MemoryTable {
        &self.shared.table
    }

    pub(crate) fn auto_path_mig(&self) -> bool {
        self.shared.auto_path_mig
    }

    pub(crate) fn next_pd(&self) -> u32 {
        self.shared.pds.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn register(
        &self,
        region: &Arc<Region>,
        offset: u64,
        length: u64,
        va: u64,
        pd: PdId,
        rights: Access,
    ) -> Result<Key, RegisterError> {
        let regions = &self.shared.regions;
        let number = regions.number(region).ok_or(RegisterError::TooManyRegions(MAX_REGIONS))?;
        let key = self.shared.table.register(&pmd_mem::table::Registration {
            region: number,
            region_len: region.len(),
            offset,
            length,
            va,
            pd: pd.0,
            access: access(rights),
        })?;
        if let Some(shm) = &self.shared.shm
            && regions.widens(number, rights)
            && let Err(error) = shm.export(number, region, rights)
        {
            regions.untold(number);
            self.deregister(key, region);
            return Err(RegisterError::Share(error.to_string()));
        }
        Ok(key)
    }

    /// Revokes a key and waits, bounded, until no peer uses the memory behind it.
    pub(crate) fn deregister(&self, key: Key, region: &Arc<Region>) {
        match self.shared.table.deregister(key) {
            Ok(retired) => self.reclaim(retired, Some(region)),
            // Windows still bound to it keep the key alive; the table's leak report names them.
            Err(error) => tracing::warn!(
                "{}: memory region {:#010x} stays registered: {error}",
                self.name(),
                key.0
            ),
        }
    }

    pub(crate) fn free_window(&self, key: Key) {
        match self.shared.table.free_window(key) {
            Ok(retired) => self.reclaim(retired, None),
            Err(error) => tracing::warn!(
                "{}: memory window {:#010x} stays allocated: {error}",
                self.name(),
                key.0
            ),
        }
    }

    fn reclaim(&self, retired: Retired, region: Option<&Arc<Region>>) {
        let Some(shm) = &self.shared.shm else { return self.shared.table.reclaim(retired) };
        if let Err(error) = shm.reclaim(retired, region.map(|region| region.segment())) {
            tracing::warn!("{}: {error}", self.name());
        }
    }
}

/// The same, with the address that its index means.
fn with_address(config: &DeviceConfig) -> Result<DeviceConfig, OpenError> {
    let Some(index) = config.gid_index else { return Ok(config.clone()) };
    let gid = |reason| OpenError::Gid { device: config.name.clone(), reason };
    let found = address_at(index, config.address)
        .map_err(|error| gid(format!("the kernel does not tell its addresses: {error}")))?;
    let address = found.map_err(|error| gid(error.to_string()))?;
    Ok(DeviceConfig { address: Some(address), ..config.clone() })
}

fn memory_table(config: &DeviceConfig) -> Result<(Arc<MemoryTable>, Region), OpenError> {
    let memory = |reason| OpenError::Memory { device: config.name.clone(), reason };
    let region = Region::create(&RegionSpec {
        name: "spinwire-keys",
        len: MemoryTable::bytes(TABLE_ENTRIES),
        hugepages: pmd_mem::Hugepages::None,
        numa: &Numa::default(),
        seal: Seal::OwnerWritten,
    })
    .map_err(memory)?;
    let bound = config.memlock.bound(memlock_limit());
    let table = MemoryTable::new(region.segment(), TABLE_ENTRIES, bound, pmd_mem::os_entropy);
    // The capacity is a constant and the region was made for it.
    let table = table.expect("the table fits its own region");
    Ok((Arc::new(table), region))
}

/// The UDP wires, and what is left of the choice: a socket of everybody's address leaves only shared memory.
fn open_wires(
    config: &DeviceConfig,
    packets: bool,
) -> Result<(Vec<udp::UdpWire>, WireChoice), OpenError> {
    let may_share = config.wire == WireChoice::Auto && config.one_copy && !packets;
    match open_udp(config) {
        Ok(wires) => Ok((wires, config.wire)),
        Err(OpenError::Address { reason: reason @ udp::BindError::Wildcard { .. }, .. })
            if may_share && config.address.is_none() =>
        {
            tracing::warn!("{}: no packets, shared memory only: {reason}", config.name);
            Ok((Vec::new(), WireChoice::Shm))
        }
        Err(error) => Err(error),
    }
}

/// The UDP wires, one per lcore; none where only shared memory was asked for.
fn open_udp(config: &DeviceConfig) -> Result<Vec<udp::UdpWire>, OpenError> {
    if config.wire == WireChoice::Shm {
        return Ok(Vec::new());
    }
    #[expect(clippy::cast_possible_truncation, reason = "bit counts of a 24-bit number")]
    let lcore_bits = LcoreBits {
        shift: (QPN_GENERATION_BITS + QPN_INDEX_BITS) as u8,
        width: QPN_LCORE_BITS as u8,
    };
    let options =
        UdpOptions { lcores: config.lcores as usize, lcore_bits, ..UdpOptions::default() };
    let bound = match config.address {
        Some(address) => udp::bind(address, &options),
        None => udp::bind_auto(&options),
    };
    bound.map_err(|reason| OpenError::Address { device: config.name.clone(), reason })
}
