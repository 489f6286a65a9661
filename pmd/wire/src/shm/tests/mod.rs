//! The shared-memory wire as its users see it: within a process, between processes, and with peers that misbehave.

mod alone;
mod arrivals;
mod crossing;
mod fencing;
mod hostile;
mod local;
mod plain;
mod processes;
mod sleeping;
mod strangers;

use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pmd_mem::table::Registration;
use pmd_mem::{Access, Hugepages, Key, MemoryTable, Numa, Region, RegionSpec, Seal};

use super::*;

/// How long anything in these tests may take: far longer than it does, so that only a hang is told from slowness.
const LIMIT: Duration = Duration::from_secs(20);

/// A directory of one test's own, removed at its end.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("spinwire-test-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).expect("make a scratch directory");
        Self(path)
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    fn directory(&self) -> Directory {
        Directory::open(&self.join("d")).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left over: {e}", self.0.display());
        }
    }
}

/// Turns `step` until it says true.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

const PD: u32 = 7;
const TABLE_ENTRIES: u32 = 64;

/// A device with one protection domain.
struct Device {
    port: Port,
    table: Arc<MemoryTable>,
    links: Vec<Links>,
}

/// A region, registered as a whole.
#[derive(Clone)]
struct Buffer {
    region: Arc<Region>,
    key: Key,
}

impl Buffer {
    fn va(&self) -> u64 {
        self.region.address()
    }

    /// An element of these bytes.
    fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.va() + offset, len, lkey: self.key.0 }
    }

    /// These bytes as somebody else's target.
    fn remote(&self, offset: u64, qpn: u32) -> Remote {
        Remote { addr: self.va().wrapping_add(offset), rkey: self.key.0, pd: PD, qpn }
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

impl Device {
    fn new(directory: &Directory, lcores: usize) -> Self {
        Self::with(directory, lcores, |_| {})
    }

    fn with(directory: &Directory, lcores: usize, change: impl FnOnce(&mut PortConfig)) -> Self {
        let spec = RegionSpec {
            name: "spinwire-table",
            len: MemoryTable::bytes(TABLE_ENTRIES),
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::OwnerWritten,
        };
        let region = Arc::new(Region::create(&spec).unwrap());
        let entropy = pmd_mem::os_entropy;
        let table =
            Arc::new(MemoryTable::new(region.segment(), TABLE_ENTRIES, None, entropy).unwrap());
        let prefix = directory.claim_prefix().unwrap();
        let mut config = PortConfig::new(directory.clone(), prefix, Arc::clone(&table), region);
        config.lcores = lcores;
        config.qps = 64;
        change(&mut config);
        let port = Port::open(config).unwrap();
        let links = (0..lcores).map(|lcore| port.links(lcore).unwrap()).collect();
        Self { port, table, links }
    }

    /// A zeroed region `id` that peers may reach with these rights; not exported, with none at all.
    fn buffer(&mut self, id: u32, len: u64, rights: Access) -> Buffer {
        let spec = RegionSpec {
            name: "spinwire-data",
            len,
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::Data,
        };
        let region = Arc::new(Region::create(&spec).unwrap());
        if rights.is_empty() {
            self.port.keep(id, region.segment()).unwrap();
        } else {
            let writable = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            self.port.export(id, &region, writable).unwrap();
        }
        let key = self
            .table
            .register(&Registration {
                region: id,
                region_len: region.len(),
                offset: 0,
                length: len,
                va: region.address(),
                pd: PD,
                access: rights | Access::LOCAL_WRITE,
            })
            .unwrap();
        self.turn();
        Buffer { region, key }
    }

    fn turn(&mut self) {
        for links in &mut self.links {
            links.turn();
        }
    }

    fn name(&self, lcore: u8) -> PeerName {
        PeerName {
            prefix: self.port.prefix(),
            lcore,
            address: None,
            nonce: Some(self.port.nonce()),
        }
    }

    /// The number that queue pair `index` of an lcore has.
    fn qpn(&self, lcore: u32, index: u32) -> u32 {
        u32::from(self.port.prefix()) << limits::QPN_PREFIX_SHIFT
            | lcore << limits::QPN_LCORE_SHIFT
            | index
    }
}

/// Links an lcore of `a` with one of `b`, and returns both numbers.
fn link(a: &mut Device, la: u8, b: &mut Device, lb: u8) -> (u32, u32) {
    let from_a = a.port.attach(la.into(), b.name(lb), LIMIT).unwrap();
    let from_b = b.port.attach(lb.into(), a.name(la), LIMIT).unwrap();
    a.turn();
    b.turn();
    assert!(a.links[usize::from(la)].active().contains(&from_a));
    assert!(b.links[usize::from(lb)].active().contains(&from_b));
    (from_a, from_b)
}

/// A SEND of `len` bytes.
fn send(src: u32, dst: u32, seq: u32, len: u32) -> Record {
    Record { kind: Kind::Send, dst, src, seq, len, imm: None, solicited: false, srqn: None }
}

/// What a connected queue pair in RTS shows.
fn rts(peer: u32) -> ShownQp {
    ShownQp {
        state: 3,
        peer,
        access: 0b1110,
        pd: PD,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        rq_psn: 0,
        posted: Some(0),
    }
}

/// Bytes that tell where they belong.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        })
        .collect()
}

/// Takes exactly one record, whose payload goes to `into`; `None` when there is none.
fn take_one(links: &mut Links, link: u32, into: &Sge) -> Option<Record> {
    let mut got = None;
    links.rx(link, |_, record, payload| {
        if got.is_some() {
            return false;
        }
        payload.copy_to(PD, 0, into).unwrap();
        got = Some(*record);
        true
    });
    links.publish();
    got
}

/// Up to where the peer has taken records, as far as that is known when all of its own were taken.
fn taken_up_to(links: &mut Links, link: u32) -> u64 {
    while links.rx(link, |_, _, _| true) > 0 {}
    links.consumed(link)
}

// Children ------------------------------------------------------------------------------------

const ROLE: &str = "SPINWIRE_TEST_ROLE";
const DIRECTORY: &str = "SPINWIRE_TEST_DIRECTORY";

/// A process that plays a role against the test that started it; killed at the latest with this value.
struct Player(Child);

impl Player {
    fn start(role: &str, scratch: &Scratch) -> Self {
        let child = Process::new(std::env::current_exe().unwrap())
            .args(["--exact", "shm::tests::player", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIRECTORY, scratch.join("d"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it ends by itself, and well.
    fn finish(mut self) {
        let mut status = None;
        until("the other process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }

    /// The prefix it claimed, once it has.
    fn prefix(&self, directory: &Directory) -> u8 {
        let mut found = None;
        until("the other process opens its device", || {
            found = (1..=limits::PREFIX_MAX).find(|prefix| {
                directory.prefix_owner(*prefix).is_some_and(|owner| owner.pid == self.pid())
            });
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // Already ended, where the test was as it should be.
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            self.0.kill().unwrap_or_default();
            self.0.wait().unwrap_or_default();
        }
    }
}

/// What a [`Player`] runs; nothing, in the process of the tests themselves.
#[test]
fn player() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let directory = Directory::open(Path::new(&std::env::var_os(DIRECTORY).unwrap())).unwrap();
    match role.as_str() {
        "echo" => processes::echo(&directory),
        "writer" => fencing::writer(&directory),
        "scribbler" => hostile::scribbler(&directory),
        "claimer" => processes::claimer(&directory),
        "leaks" => processes::leaks(),
        other => panic!("no role {other}"),
    }
}

/// Descriptors and shared-memory mappings of this process: what a leak would add to.
fn footprint() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (fds, maps.lines().filter(|line| line.contains("/memfd:")).count())
}
