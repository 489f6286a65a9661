//! A device's port on the shared memory of its host.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pmd_mem::table::Retired;
use pmd_mem::{MemoryTable, Region, Segment};
use pmd_roce::ids::Gid;
use pmd_roce::work::Access;
use pmd_wire::shm::{self, Directory, Links, Nonce, PeerName, Port, PortConfig};

/// How long a peer's control thread may take to answer.
const ATTACH_LIMIT: Duration = Duration::from_secs(3);
/// How long a peer may go on using deregistered memory before its connections fail.
const RECLAIM_LIMIT: Duration = Duration::from_secs(2);

/// The port, shared by the lcores of a device.
#[derive(Clone, Debug)]
pub(crate) struct Shm {
    port: Arc<Port>,
}

impl Shm {
    /// Claims a prefix of queue pair numbers and lets peers in.
    pub(crate) fn open(
        lcores: u32,
        address: IpAddr,
        table: &Arc<MemoryTable>,
        table_region: Region,
    ) -> Result<Self, String> {
        let directory = Directory::open_default().map_err(|e| e.to_string())?;
        let prefix = directory.claim_prefix().map_err(|e| e.to_string())?;
        let config = PortConfig {
            addresses: vec![address],
            lcores: lcores as usize,
            ..PortConfig::new(directory, prefix, Arc::clone(table), Arc::new(table_region))
        };
        let port = Port::open(config).map_err(|e| e.to_string())?;
        Ok(Self { port: Arc::new(port) })
    }

    pub(crate) fn prefix(&self) -> u32 {
        self.port.prefix().into()
    }

    /// Names the device to its peers.
    pub(crate) fn nonce(&self) -> Nonce {
        self.port.nonce()
    }

    pub(crate) fn links(&self, lcore: u32) -> Option<Links> {
        self.port.links(lcore as usize)
    }

    /// The link between an lcore of this device and the lcore that owns the peer's queue pair.
    pub(crate) fn attach(
        &self,
        lcore: u32,
        gid: Gid,
        (prefix, peer): (u32, u32),
        nonce: Option<Nonce>,
    ) -> Result<u32, String> {
        let impossible = |_| "the peer's queue pair number names no lcore".to_string();
        let peer = PeerName {
            prefix: u8::try_from(prefix).map_err(impossible)?,
            lcore: u8::try_from(peer).map_err(impossible)?,
            address: Some(gid.ip()),
            nonce,
        };
        self.port.attach(lcore as usize, peer, ATTACH_LIMIT).map_err(|e| e.to_string())
    }

    /// Lets peers map a region: writable where some registration of it lets them write.
    ///
    /// # Errors
    /// Where there is no descriptor for them. No lcore of this device reaches the region then.
    pub(crate) fn export(
        &self,
        number: u32,
        region: &Arc<Region>,
        access: Access,
    ) -> Result<(), shm::ExportError> {
        let writable = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        self.port.export(number, region, writable)
    }

    /// Makes a revoked key final for peers that copy without asking.
    pub(crate) fn reclaim(
        &self,
        retired: Retired,
        memory: Option<&Arc<Segment>>,
    ) -> Result<(), shm::StillUsed> {
        self.port.reclaim(retired, memory, RECLAIM_LIMIT)
    }
}
