//! What the lcores of a process share of a software NIC: its address, its memory table, its wires, and who its peers on this
//! host are.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use pmd_mem::table::Retired;
use pmd_mem::{Key, MemoryTable, Numa, Region, RegionSpec, Seal, memlock_limit};
use pmd_record::{Recorded, Recording};
use pmd_roce::engine::EngineConfig;
use pmd_roce::ids::{Gid, PathMtu, PdId};
use pmd_roce::limits::{
    ACK_REQUEST_EVERY, MAX_QPS, QPN_GENERATION_BITS, QPN_INDEX_BITS, QPN_LCORE_BITS, WINDOW_PACKETS,
};
use pmd_roce::work::Access;
use pmd_wire::Wire;
use pmd_wire::shm::Nonce;
use pmd_wire::udp::{self, LcoreBits, UdpOptions};

use super::core::{Core, CoreParts};
use super::handover::Handover;
use super::memory::{TableMemory, access};
use super::peers::Peers;
use super::regions::{MAX_REGIONS, Regions};
use super::shm::Shm;
use crate::connect::PathWish;
use crate::device::{DeviceConfig, MAX_AHS, MAX_SRQS, OpenError, WireChoice};
use crate::discover::{address_at, index_of};
use crate::disturb::Disturbance;
use crate::gid::{RoceVersion, SourceGid};
use crate::journal::Journal;
use crate::mr::RegisterError;

/// Entries of a device's memory table.
const TABLE_ENTRIES: u32 = 1 << 14;

/// A software NIC, as its lcores share it.
pub(crate) struct Port {
    name: String,
    pub(crate) path: PathWish,
    pub(crate) auto_path_mig: bool,
    pub(crate) source: SourceGid,
    /// Why that one.
    pub(crate) reason: &'static str,
    pub(crate) mtu: PathMtu,
    pub(crate) netdev: Option<String>,
    prefix: u32,
    pub(crate) table: Arc<MemoryTable>,
    regions: Arc<Regions>,
    shm: Option<Shm>,
    wires: Mutex<Vec<Option<Box<dyn Wire>>>>,
    handover: Handover,
    pub(crate) disturbance: Disturbance,
    record: Option<Arc<Recording>>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("gid", &self.source.gid).finish_non_exhaustive()
    }
}

impl Port {
    pub(crate) fn open(config: &DeviceConfig) -> Result<Self, OpenError> {
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
        let wires = (0..config.lcores)
            .map(|lcore| {
                (!wires.is_empty())
                    .then(|| disturbance.wrap(Box::new(wires.remove(0)), lcore, address))
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
            name: config.name.clone(),
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
            wires: Mutex::new(wires),
            handover: Handover::new(prefix, config.lcores),
            disturbance,
            record: config.record.clone(),
        })
    }

    /// Names it among the devices that share memory; none where it shares none.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        self.shm.as_ref().map(Shm::nonce)
    }

    /// One lcore's part; to be taken once.
    pub(crate) fn core(&self, lcore: u32, journal: Journal) -> Core {
        let wire = {
            let mut wires = self.wires.lock().unwrap_or_else(PoisonError::into_inner);
            wires.get_mut(lcore as usize).and_then(Option::take)
        };
        let config = EngineConfig {
            process: self.prefix,
            lcore,
            gids: vec![self.source.gid],
            second_port: Vec::new(),
            seed: pmd_mem::os_entropy(),
            auto_path_mig: self.auto_path_mig,
            max_qps: MAX_QPS,
            max_srqs: MAX_SRQS,
            max_ahs: MAX_AHS,
            window_packets: WINDOW_PACKETS,
            ack_request_every: ACK_REQUEST_EVERY,
            mtu: self.mtu,
            source_port: wire.as_ref().map(|wire| wire.source_port(pmd_wire::ROCE_PORT)),
        };
        let engine = match &self.record {
            Some(record) => Recorded::on(record, &format!("{} lcore {lcore}", self.name), config),
            None => Recorded::new(config),
        };
        let memory = TableMemory::new(Arc::clone(&self.table), Arc::clone(&self.regions));
        let peers = Peers::new(self.shm.as_ref(), lcore);
        let handover = self.handover.of(lcore);
        Core::new(CoreParts { engine, memory, peers, wire, handover, journal })
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
        let regions = &self.regions;
        let number = regions.number(region).ok_or(RegisterError::TooManyRegions(MAX_REGIONS))?;
        let key = self.table.register(&pmd_mem::table::Registration {
            region: number,
            region_len: region.len(),
            offset,
            length,
            va,
            pd: pd.0,
            access: access(rights),
        })?;
        if let Some(shm) = &self.shm
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
        match self.table.deregister(key) {
            Ok(retired) => self.reclaim(retired, Some(region)),
            // Windows still bound to it keep the key alive; the table's leak report names them.
            Err(error) => tracing::warn!(
                "{}: memory region {:#010x} stays registered: {error}",
                self.name,
                key.0
            ),
        }
    }

    pub(crate) fn free_window(&self, key: Key) {
        match self.table.free_window(key) {
            Ok(retired) => self.reclaim(retired, None),
            Err(error) => tracing::warn!(
                "{}: memory window {:#010x} stays allocated: {error}",
                self.name,
                key.0
            ),
        }
    }

    fn reclaim(&self, retired: Retired, region: Option<&Arc<Region>>) {
        let Some(shm) = &self.shm else { return self.table.reclaim(retired) };
        if let Err(error) = shm.reclaim(retired, region.map(|region| region.segment())) {
            tracing::warn!("{}: {error}", self.name);
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
