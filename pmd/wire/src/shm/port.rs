//! A device's port on the shared memory of its host.

use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use pmd_mem::{
    Fence, Hugepages, MemoryTable, Numa, Region, RegionError, RegionSpec, Seal, Segment, Word,
};
use rustix::event::EventfdFlags;

use super::control::Control;
use super::fence::{Busy, Held, Watch, Who};
use super::handshake::{Hello, VERSION, boot_id};
use super::limits::{
    ADDRESSES_MAX, LCORES_MAX, QPS_MAX, REGIONS_MAX, RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN,
};
use super::link::{LinkFault, RING_AT};
use super::links::Links;
use super::mailbox::{Event, Mailbox};
use super::page::{ASLEEP_AT, Page, page_bytes};
use super::reach::{Own, OwnRegion, put};
use super::rendezvous::{Directory, PrefixClaim};
use super::{Nonce, Refusal};

/// How to open a [`Port`].
#[derive(Debug)]
pub struct PortConfig {
    /// Where to meet the other processes.
    pub directory: Directory,
    /// The device's part of every QPN.
    pub prefix: PrefixClaim,
    /// Addresses that the device answers to.
    pub addresses: Vec<IpAddr>,
    /// Lcores that own queue pairs, 1 to [`LCORES_MAX`].
    pub lcores: usize,
    /// Queue pairs that each can show, up to [`QPS_MAX`].
    pub qps: u32,
    /// Bytes of each ring, a power of two.
    pub ring_bytes: u64,
    /// Where rings and pages should lie.
    pub numa: Numa,
    /// The device's memory table.
    pub table: Arc<MemoryTable>,
    /// The region that holds it, owner-written.
    pub table_region: Arc<Region>,
    /// How deregistration reaches initiators; by membarrier(2), unless that is refused.
    pub fence: Fence,
}

impl PortConfig {
    /// With the usual sizes, for one lcore.
    pub fn new(
        directory: Directory,
        prefix: PrefixClaim,
        table: Arc<MemoryTable>,
        table_region: Arc<Region>,
    ) -> Self {
        Self {
            directory,
            prefix,
            addresses: Vec::new(),
            lcores: 1,
            qps: QPS_MAX,
            ring_bytes: RING_BYTES,
            numa: Numa::default(),
            table,
            table_region,
            fence: Fence::register(),
        }
    }
}

/// Why a port was not opened. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A value outside its range.
    #[error("{field} = {value}: {need}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value given.
        value: u64,
        /// What it must be.
        need: &'static str,
    },
    /// No memory for pages.
    #[error("no memory for the queue pair pages: {0}")]
    Memory(#[from] RegionError),
    /// The kernel refused.
    #[error("cannot open the shared-memory port: {step}: {source}")]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Whom to attach to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// Top bits of its QPNs.
    pub prefix: u8,
    /// Its lcore, from the QPN.
    pub lcore: u8,
    /// The address it is known by; it must answer to it.
    pub address: Option<IpAddr>,
    /// Its nonce, where one was exchanged: then it must be this very device.
    pub nonce: Option<Nonce>,
}

/// Why there is no link. All but `NoSuchLcore` and `Full` of these mean: this peer is reached by packets, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Nobody on this host holds the prefix.
    #[error(
        "no process of this user on this host holds the device prefix {0}: the peer is on another host, in another network \
         namespace, or gone"
    )]
    Nobody(u8),
    /// This side found that the process is not the one meant, or not one to share memory with.
    #[error("cannot share memory with process {pid}: {refusal}")]
    Unfit {
        /// The process.
        pid: u32,
        /// Why.
        refusal: Refusal,
    },
    /// The process refused.
    #[error("process {pid} refused to share memory: {refusal}")]
    Refused {
        /// The process.
        pid: u32,
        /// Why.
        refusal: Refusal,
    },
    /// It did not answer in time.
    #[error("the peer process did not answer in time: is it stopped?")]
    Timeout,
    /// It went away while it was being attached to.
    #[error("the peer went away: {0}")]
    Lost(LinkFault),
    /// This device has no such lcore, or nobody polls it.
    #[error("lcore {0} of this device does not exist or has not started")]
    NoSuchLcore(u8),
    /// No room for another link.
    #[error("the lcore has as many links as it can")]
    Full,
    /// The kernel refused a step.
    #[error("cannot attach: {step}: {kind}")]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The kernel's answer.
        kind: io::ErrorKind,
    },
}

impl AttachError {
    /// Whether the peer may still be reached by packets: then `wire = "auto"` falls back to udp, and `wire = "shm"` fails with
    /// this error.
    pub const fn falls_back(&self) -> bool {
        !matches!(self, Self::NoSuchLcore(_) | Self::Full)
    }
}

/// Why a region was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Its number is too large.
    #[error("region {0}: a device has at most {REGIONS_MAX}")]
    TooMany(u32),
    /// The kernel refused a read-only descriptor.
    #[error("cannot export region {id}: {source}")]
    Io {
        /// The region.
        id: u32,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What travels to a peer.
#[derive(Clone, Debug)]
pub(super) enum Fd {
    Region(Arc<Region>),
    ReadOnly(Arc<OwnedFd>),
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Region(region) => region.fd(),
            Self::ReadOnly(fd) => fd.as_fd(),
        }
    }
}

/// A region of this device, and how peers get it.
#[derive(Clone, Debug)]
pub(super) struct Exported {
    pub(super) segment: Arc<Segment>,
    /// Its descriptor and whether peers may write; `None`: it stays in this process.
    pub(super) fd: Option<(Fd, bool)>,
}

/// What other threads ask of the control thread.
#[derive(Debug)]
pub(super) enum Command {
    Attach {
        lcore: u8,
        peer: PeerName,
        until: Instant,
        reply: SyncSender<Result<u32, AttachError>>,
    },
    Export {
        id: u32,
    },
    Retire {
        id: u32,
    },
    /// A peer misbehaved: end all its links.
    Condemn {
        key: u64,
        fault: LinkFault,
    },
    /// Memory that must stay while somebody may be using it.
    Quarantine(Held),
    Stop,
}

/// What the control thread, the lcores and the port share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) directory: Directory,
    pub(super) prefix: PrefixClaim,
    pub(super) hello: Hello,
    pub(super) ring_bytes: u64,
    pub(super) numa: Numa,
    pub(super) table: Arc<MemoryTable>,
    pub(super) table_region: Arc<Region>,
    pub(super) fence: Fence,
    pub(super) pages: Vec<Arc<Region>>,
    mailboxes: Vec<Mailbox>,
    commands: Mutex<VecDeque<Command>>,
    wake: OwnedFd,
    pub(super) regions: Mutex<BTreeMap<u32, Exported>>,
    /// Whoever may be copying into or out of this device's memory.
    pub(super) watches: Mutex<Vec<Watch>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn mailbox(&self, lcore: u8) -> &Mailbox {
        &self.mailboxes[usize::from(lcore)]
    }

    pub(super) fn mailboxes(&self) -> &[Mailbox] {
        &self.mailboxes
    }

    pub(super) const fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    pub(super) fn command(&self, command: Command) {
        lock(&self.commands).push_back(command);
        // An eventfd refuses a write only when 2^64 - 2 are pending: then the thread is awake.
        if let Err(e) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            debug_assert_eq!(e, rustix::io::Errno::AGAIN);
        }
    }

    pub(super) fn next_command(&self) -> Option<Command> {
        lock(&self.commands).pop_front()
    }

    /// A segment for one lcore's half of a link.
    pub(super) fn link_region(&self) -> Result<Arc<Region>, RegionError> {
        let bytes = RING_AT + self.ring_bytes;
        self.owner_written("spinwire-ring", bytes).map(Arc::new)
    }

    fn owner_written(&self, name: &str, len: u64) -> Result<Region, RegionError> {
        owner_written(name, len, &self.numa)
    }
}

fn owner_written(name: &str, len: u64, numa: &Numa) -> Result<Region, RegionError> {
    Region::create(&RegionSpec {
        name,
        len,
        hugepages: Hugepages::None,
        numa,
        seal: Seal::OwnerWritten,
    })
}

/// A device's port on the shared memory of its host: its place in the rendezvous, its pages, what it exports, its peers.
///
/// A control thread sleeps until a peer knocks, says something or dies; it never touches message data. Dropping the port says
/// goodbye to all peers and ends the thread.
pub struct Port {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Opens the port and lets peers in.
    pub fn open(config: PortConfig) -> Result<Self, OpenError> {
        let PortConfig {
            directory,
            prefix,
            addresses,
            lcores,
            qps,
            ring_bytes,
            numa,
            table,
            table_region,
            fence,
        } = config;
        let value = |field, value, need| Err(OpenError::Value { field, value, need });
        if !(1..=LCORES_MAX).contains(&lcores) {
            return value("lcores", lcores as u64, "1 to 8");
        }
        if !(1..=QPS_MAX).contains(&qps) {
            return value("qps", qps.into(), "1 to 2048");
        }
        if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
        {
            return value("ring_bytes", ring_bytes, "a power of two from 2 KiB to 16 MiB");
        }
        if addresses.len() > ADDRESSES_MAX {
            return value("addresses", addresses.len() as u64, "at most 32");
        }
        let io = |step| move |source| OpenError::Io { step, source };
        let pages: Vec<_> = (0..lcores)
            .map(|_| owner_written("spinwire-page", page_bytes(qps), &numa).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let hello = Hello {
            version: VERSION,
            boot_id: boot_id().map_err(io("read the boot id"))?,
            uid: rustix::process::geteuid().as_raw(),
            prefix: prefix.prefix(),
            lcores: u8::try_from(lcores).unwrap_or(u8::MAX),
            nonce: Nonce::random(),
            wants: None,
            addresses: addresses.into_iter().map(gid).collect(),
        };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| OpenError::Io { step: "eventfd", source: e.into() })?;
        if fence.needs_full_fence() {
            table.require_full_fence();
        }
        let never = Arc::new(AtomicBool::new(false));
        let watches = pages
            .iter()
            .zip(0..)
            .map(|(page, lcore)| Watch::new(page.segment(), Who::Lcore(lcore), &never))
            .collect::<Result<_, _>>()
            .map_err(|e| OpenError::Io { step: "watch pages", source: io::Error::other(e) })?;
        let mailboxes = pages
            .iter()
            .map(|_| Mailbox::new())
            .collect::<Result<_, _>>()
            .map_err(io("eventfd"))?;
        let shared = Arc::new(Shared {
            directory,
            prefix,
            hello,
            ring_bytes,
            numa,
            table,
            table_region,
            fence,
            mailboxes,
            pages,
            commands: Mutex::default(),
            wake,
            regions: Mutex::default(),
            watches: Mutex::new(watches),
        });
        let control = Control::new(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name(format!("shm-control-{}", shared.prefix.prefix()))
            .spawn(move || control.run())
            .map_err(io("start the control thread"))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The device's part of every QPN.
    pub fn prefix(&self) -> u8 {
        self.shared.prefix.prefix()
    }

    /// What peers can be told to make sure that they attach to this device and no other.
    pub fn nonce(&self) -> Nonce {
        self.shared.hello.nonce
    }

    /// The links of an lcore, to be polled by it. `None`: no such lcore, or it has them already.
    pub fn links(&self, lcore: usize) -> Option<Links> {
        let page_region = self.shared.pages.get(lcore)?;
        let page = Page::new(page_region.segment()).ok()?;
        let busy = Busy::new(page_region.segment(), self.shared.fence).ok()?;
        let asleep = Word::new(page_region.segment(), ASLEEP_AT).ok()?;
        let lcore = u8::try_from(lcore).ok()?;
        // Holding the regions, so that none is added between what is copied here and what is posted.
        let regions = lock(&self.shared.regions);
        if !self.shared.mailbox(lcore).open() {
            return None;
        }
        let mut own = Own { table: Arc::clone(&self.shared.table), regions: Vec::new() };
        for (id, region) in regions.iter() {
            put(&mut own.regions, *id, Some(region.own()));
        }
        drop(regions);
        Some(Links::new(Arc::clone(&self.shared), lcore, page, own, busy, asleep))
    }

    /// Makes a region reachable for this device's lcores and exports it to all peers, present and future; again, to change
    /// whether they may write. `id` is the number that registrations in the memory table name it by.
    ///
    /// Peers map it in their own time: until then their operations say [`MemoryFault::NotYet`](super::MemoryFault::NotYet).
    pub fn export(&self, id: u32, region: &Arc<Region>, writable: bool) -> Result<(), ExportError> {
        let fd = if writable {
            Fd::Region(Arc::clone(region))
        } else {
            Fd::ReadOnly(Arc::new(
                region.read_only_fd().map_err(|source| ExportError::Io { id, source })?,
            ))
        };
        self.put(id, Exported { segment: Arc::clone(region.segment()), fd: Some((fd, writable)) })
    }

    /// Makes memory reachable for this device's lcores, and so for peers on the same device, but for no other process: those are
    /// told, and their operations say [`MemoryFault::Private`](super::MemoryFault::Private).
    pub fn keep(&self, id: u32, segment: &Arc<Segment>) -> Result<(), ExportError> {
        self.put(id, Exported { segment: Arc::clone(segment), fd: None })
    }

    fn put(&self, id: u32, exported: Exported) -> Result<(), ExportError> {
        if id >= REGIONS_MAX {
            return Err(ExportError::TooMany(id));
        }
        let mut regions = lock(&self.shared.regions);
        let own = exported.own();
        regions.insert(id, exported);
        self.tell_lcores(id, Some(&own));
        self.shared.command(Command::Export { id });
        Ok(())
    }

    /// Takes a region back, after all of its registrations have been. Peers unmap it when their lcores next turn.
    pub fn retire(&self, id: u32) {
        let mut regions = lock(&self.shared.regions);
        if regions.remove(&id).is_some() {
            self.tell_lcores(id, None);
            self.shared.command(Command::Retire { id });
        }
    }

    fn tell_lcores(&self, id: u32, region: Option<&OwnRegion>) {
        for mailbox in &self.shared.mailboxes {
            mailbox.post(Event::Own { id, region: region.cloned() });
        }
    }

    /// Makes sure that there is a link between `lcore` and a peer's lcore, and returns its number. Waits for the peer's control
    /// thread, at most `limit`; the lcore sees the link from its next turn on.
    pub fn attach(
        &self,
        lcore: usize,
        peer: PeerName,
        limit: Duration,
    ) -> Result<u32, AttachError> {
        let lcore_number = u8::try_from(lcore).unwrap_or(u8::MAX);
        if lcore >= self.shared.pages.len() {
            return Err(AttachError::NoSuchLcore(lcore_number));
        }
        let (reply, answer) = sync_channel(1);
        let until = Instant::now() + limit;
        self.shared.command(Command::Attach { lcore: lcore_number, peer, until, reply });
        // The control thread keeps the limit; the rest is for a machine that does not let it run.
        match answer.recv_timeout(limit + Duration::from_secs(1)) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(AttachError::Timeout),
            Err(RecvTimeoutError::Disconnected) => Err(AttachError::Lost(LinkFault::Shutdown)),
        }
    }

    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Exported {
    fn own(&self) -> OwnRegion {
        OwnRegion { segment: Arc::clone(&self.segment), exported: self.fd.is_some() }
    }
}

/// An address as a GID.
pub(super) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.shared.command(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            debug_assert!(false, "the control thread panicked");
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("prefix", &self.prefix()).finish_non_exhaustive()
    }
}
