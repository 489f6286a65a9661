//! Regions against the running kernel: seals, import, page rungs, NUMA, fork, and nothing left behind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod child;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use child::Child;
use pmd_mem::{
    AccessError, Hugepages, ImportError, MapAccess, Mapping, Numa, NumaPolicy, Placement, Region,
    RegionError, RegionSpec, Rung, Seal, ladder, page_size,
};
use rustix::fs::{MemfdFlags, SealFlags};

const MIB: u64 = 1 << 20;

fn spec(len: u64, hugepages: Hugepages, seal: Seal) -> RegionSpec<'static> {
    static ANYWHERE: Numa = Numa { nodes: Vec::new(), policy: NumaPolicy::Prefer };
    RegionSpec { name: "test", len, hugepages, numa: &ANYWHERE, seal }
}

fn region(len: u64, seal: Seal) -> Region {
    Region::create(&spec(len, Hugepages::None, seal)).unwrap()
}

#[test]
fn a_region_is_rounded_up_zeroed_sealed_and_close_on_exec() {
    let region = region(page_size() + 1, Seal::Data);
    assert_eq!(region.len(), 2 * page_size());
    assert_eq!(region.rung(), Rung::Base);
    assert!(region.falls().is_empty());
    assert!(region.eq_at(0, &vec![0; usize::try_from(region.len()).unwrap()]).unwrap());
    let seals = rustix::fs::fcntl_get_seals(region.fd()).unwrap();
    assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    assert!(rustix::io::fcntl_getfd(region.fd()).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    assert!(
        rustix::io::fcntl_getfd(region.read_only_fd().unwrap())
            .unwrap()
            .contains(rustix::io::FdFlags::CLOEXEC)
    );
    let file = File::from(region.fd().try_clone_to_owned().unwrap());
    assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(file.set_len(1 << 30).unwrap_err().raw_os_error(), Some(libc::EPERM));
}

/// Every page is there before the first touch.
#[test]
fn p08_a_region_is_populated() {
    let region = region(MIB, Seal::Data);
    let stat = rustix::fs::fstat(region.fd()).unwrap();
    assert_eq!(stat.st_blocks * 512, 1 << 20);
}

#[test]
fn two_mappings_of_one_memfd_share_bytes() {
    let region = region(64 << 10, Seal::Data);
    let peer = Mapping::import(region.fd(), MapAccess::ReadWrite, region.len()).unwrap();
    assert_ne!(peer.address(), region.address());
    region.write_at(1000, b"from the owner").unwrap();
    assert!(peer.eq_at(1000, b"from the owner").unwrap());
    peer.write_at(2000, b"from the peer").unwrap();
    assert!(region.eq_at(2000, b"from the peer").unwrap());
    peer.atomic_u64(4096).unwrap().fetch_add(5, Ordering::SeqCst);
    region.atomic_u64(4096).unwrap().fetch_add(6, Ordering::SeqCst);
    assert_eq!(peer.atomic_u64(4096).unwrap().load(Ordering::SeqCst), 11);
    // Overlapping copies through two addresses are still moves.
    region.write_at(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
    region.copy_to(0, &peer, 2, 8).unwrap();
    assert!(region.eq_at(0, &[1, 2, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap());
}

#[test]
fn a_read_only_import_cannot_write() {
    let region = region(4096, Seal::Data);
    let fd = region.read_only_fd().unwrap();
    assert!(matches!(
        Mapping::import(&fd, MapAccess::ReadWrite, region.len()),
        Err(ImportError::ReadOnly)
    ));
    let peer = Mapping::import(&fd, MapAccess::Read, region.len()).unwrap();
    region.write_at(7, b"seen").unwrap();
    assert!(peer.eq_at(7, b"seen").unwrap());
    assert_eq!(peer.write_at(7, b"no"), Err(AccessError::ReadOnly));
    assert_eq!(peer.fill(0, 1, 1), Err(AccessError::ReadOnly));
    assert_eq!(region.copy_to(0, &peer, 0, 4), Err(AccessError::ReadOnly));
    assert_eq!(peer.atomic_u64(0).unwrap_err(), AccessError::ReadOnly);
}

#[test]
fn an_owner_written_region_is_written_by_its_first_mapping_only() {
    let region = region(4096, Seal::OwnerWritten);
    assert!(matches!(
        Mapping::import(region.fd(), MapAccess::ReadWrite, region.len()),
        Err(ImportError::ReadOnly)
    ));
    // The kernel enforces it, not only this crate: write(2) and a shared writable mapping are refused.
    let mut file = File::from(region.fd().try_clone_to_owned().unwrap());
    assert_eq!(file.write(b"x").unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(
        memmap2::MmapOptions::new().map_raw(&file).unwrap_err().raw_os_error(),
        Some(libc::EPERM),
        "F_SEAL_FUTURE_WRITE"
    );
    let peer =
        Mapping::import(region.read_only_fd().unwrap(), MapAccess::Read, region.len()).unwrap();
    region.write_at(0, b"still mine").unwrap();
    assert!(peer.eq_at(0, b"still mine").unwrap());
}

#[test]
fn imports_refuse_what_is_not_a_sealed_memfd_of_the_announced_size() {
    let memfd = |flags, len| {
        let file = File::from(rustix::fs::memfd_create("foreign", flags).unwrap());
        file.set_len(len).unwrap();
        file
    };
    let (shrink, grow, seal) = (SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL);
    for seals in [SealFlags::empty(), shrink | grow, shrink | seal, grow | seal] {
        let half_sealed = memfd(MemfdFlags::ALLOW_SEALING, 4096);
        rustix::fs::fcntl_add_seals(&half_sealed, seals).unwrap();
        let error = Mapping::import(&half_sealed, MapAccess::Read, 4096).unwrap_err();
        assert!(
            matches!(error, ImportError::Unsealed { have } if have == seals.bits()),
            "{seals:?}: {error}"
        );
    }
    let unsealable = memfd(MemfdFlags::empty(), 4096);
    let error = Mapping::import(&unsealable, MapAccess::Read, 4096).unwrap_err();
    assert!(matches!(error, ImportError::Unsealed { have: 1 }), "{error}");

    let region = region(8192, Seal::Data);
    let error = Mapping::import(region.fd(), MapAccess::Read, 4096).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the peer's memfd has {}, announced were 4 KiB", pmd_mem::Size(region.len()))
    );
    let (_reader, writer) = std::io::pipe().unwrap();
    assert!(matches!(Mapping::import(&writer, MapAccess::Read, 4096), Err(ImportError::NotMemfd)));
    let on_disk = File::open("/proc/self/exe").unwrap();
    assert!(matches!(Mapping::import(&on_disk, MapAccess::Read, 4096), Err(ImportError::NotMemfd)));
}

#[test]
fn impossible_lengths_are_refused() {
    assert!(matches!(
        Region::create(&spec(0, Hugepages::Auto, Seal::Data)),
        Err(RegionError::Length(0))
    ));
    assert!(matches!(
        Region::create(&spec(u64::MAX, Hugepages::Auto, Seal::Data)),
        Err(RegionError::Length(_))
    ));
    let error = Region::create(&spec(1 << 50, Hugepages::None, Seal::Data)).unwrap_err();
    assert!(matches!(error, RegionError::Memory { len, .. } if len == 1 << 50), "{error}");
}

#[test]
fn the_pages_of_a_strict_region_are_on_its_node() {
    let numa = Numa::on(0, NumaPolicy::Strict);
    let region =
        Region::create(&RegionSpec { numa: &numa, ..spec(MIB, Hugepages::None, Seal::Data) })
            .unwrap();
    assert_eq!(region.placement(), &Placement::Bound(numa));
    assert_eq!(region.node_of(MIB / 2).unwrap(), 0);
}

#[test]
fn p09_a_strict_region_on_a_missing_node_is_refused_by_name() {
    let numa = Numa::on(900, NumaPolicy::Strict);
    let error =
        Region::create(&RegionSpec { numa: &numa, ..spec(MIB, Hugepages::None, Seal::Data) })
            .unwrap_err();
    assert!(matches!(&error, RegionError::Numa { nodes, .. } if nodes == &[900]), "{error}");
    assert!(error.to_string().contains("NUMA node [900]"), "{error}");
}

/// Transparent hugepages are taken exactly where the kernel offers them to shared memory.
#[test]
fn the_rung_without_reserved_pages_is_what_the_kernel_offers() {
    let _quiet = POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let reserved = free_2m();
    let region = Region::create(&spec(4 * MIB, Hugepages::Auto, Seal::Data)).unwrap();
    if reserved < 2 {
        assert_eq!(region.rung(), if ladder::thp_offered() { Rung::Thp } else { Rung::Base });
        assert_eq!(region.falls()[0].rung, Rung::Huge2M);
    } else {
        assert_eq!(region.rung(), Rung::Huge2M);
    }
}

/// The pool of 2 MiB pages is one for the machine: tests that look at it take turns.
static POOL: Mutex<()> = Mutex::new(());
const NR_2M: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn read_number(path: &str) -> u64 {
    fs::read_to_string(path).map_or(0, |text| text.trim().parse().unwrap())
}

fn free_2m() -> u64 {
    let pool = |name| read_number(&NR_2M.replace("nr_", name));
    pool("free_") - pool("resv_")
}

/// Two-megabyte pages reserved for a test, given back after it.
struct Reserved {
    before: u64,
    got: u64,
}

impl Reserved {
    fn more(pages: u64) -> Self {
        let before = read_number(NR_2M);
        let written = fs::write(NR_2M, (before + pages).to_string());
        let got = if written.is_ok() { read_number(NR_2M) - before } else { 0 };
        Self { before, got }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.got > 0 {
            fs::write(NR_2M, self.before.to_string()).unwrap();
        }
    }
}

/// P08: reserved pages are used and given back; one page short, `auto` falls down the ladder and `require` fails with the
/// command. Where nothing can be reserved (not root), the same fallbacks are asserted with an empty pool.
#[test]
fn p08_hugepages_are_taken_given_back_and_fallen_from() {
    let _turn = POOL.lock().unwrap();
    let reserved = Reserved::more(4);
    let free = free_2m();
    if reserved.got == 4 {
        let region = Region::create(&spec(4 * MIB, Hugepages::Auto, Seal::Data)).unwrap();
        assert_eq!(region.rung(), Rung::Huge2M);
        assert_eq!(free_2m(), free - 2);
        region.write_at(3 * MIB, b"huge").unwrap();
        let peer = Mapping::import(region.fd(), MapAccess::ReadWrite, region.len()).unwrap();
        assert!(peer.eq_at(3 * MIB, b"huge").unwrap());
        let table = Region::create(&spec(1, Hugepages::Require, Seal::OwnerWritten)).unwrap();
        assert_eq!((table.rung(), table.len()), (Rung::Huge2M, 2 * MIB));
        assert!(matches!(
            Mapping::import(table.fd(), MapAccess::ReadWrite, table.len()),
            Err(ImportError::ReadOnly)
        ));
        Mapping::import(table.read_only_fd().unwrap(), MapAccess::Read, table.len()).unwrap();
        drop((region, table));
        assert_eq!(free_2m(), free - 2, "the peer's mapping keeps the pages");
        drop(peer);
        assert_eq!(free_2m(), free);
    }
    let too_much = (free + 1) * 2 * MIB;
    let region = Region::create(&spec(too_much, Hugepages::Auto, Seal::Data)).unwrap();
    assert!(!region.rung().is_reserved());
    assert!(region.falls().iter().any(|fall| fall.rung == Rung::Huge2M));
    region.write_at(too_much - 4, b"base").unwrap();
    assert_eq!(free_2m(), free, "a rung that was fallen from keeps nothing");
    for choice in [Hugepages::Require, Hugepages::Size2M] {
        let error = Region::create(&spec(too_much, choice, Seal::Data)).unwrap_err().to_string();
        assert!(error.contains("no hugepages for"), "{error}");
        assert!(error.contains(&format!("{NR_2M}; echo $(($(cat $f) + {}))", free + 1)), "{error}");
    }
}

/// P08: after `kill -9` the pages are back, whatever the process was doing.
#[test]
fn p08_nothing_is_left_after_kill_9() {
    let _turn = POOL.lock().unwrap();
    let reserved = Reserved::more(2);
    let free = free_2m();
    let hugepages = if reserved.got == 2 { Hugepages::Size2M } else { Hugepages::None };
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = Child::run(|| {
        let region = Region::create(&spec(4 * MIB, hugepages, Seal::Data));
        rustix::io::write(&writer, &[u8::from(region.is_ok())]).unwrap();
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    });
    let mut made = [0];
    rustix::io::read(&reader, &mut made).unwrap();
    assert_eq!(made, [1]);
    if reserved.got == 2 {
        assert_eq!(free_2m(), free - 2);
    }
    child.kill();
    assert_eq!(free_2m(), free);
}

#[test]
fn use_after_fork_is_an_error_and_the_parent_is_unharmed() {
    let region = region(8192, Seal::Data);
    region.write_at(0, b"parent").unwrap();
    let maps = || fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps().contains(&format!("{:x}-", region.address())));
    assert!(
        Child::run(|| {
            let mut bytes = [0; 6];
            region.read_at(0, &mut bytes) == Err(AccessError::Forked)
                && region.write_at(0, b"child!") == Err(AccessError::Forked)
                && region.atomic_u64(0).err() == Some(AccessError::Forked)
                && region.check_process() == Err(AccessError::Forked)
                && region.read_only_fd().is_err_and(|e| e.to_string().contains("fork"))
                && !maps().contains(&format!("{:x}-", region.address()))
        })
        .succeeded()
    );
    assert!(region.eq_at(0, b"parent").unwrap());
}

/// The child may use the descriptor, its own regions, and addresses that the parent's region has in the parent.
#[test]
fn a_child_makes_regions_of_its_own() {
    let parents = region(8192, Seal::Data);
    parents.write_at(0, b"parent").unwrap();
    assert!(
        Child::run(move || {
            let Ok(mapped) = Mapping::import(parents.fd(), MapAccess::Read, 8192) else {
                return false;
            };
            let Ok(own) = Region::create(&spec(8192, Hugepages::None, Seal::Data)) else {
                return false;
            };
            let wrote = own.write_at(0, b"child").is_ok();
            // Dropping the parent's region here must not unmap what the child put at the same address.
            drop(parents);
            wrote && own.eq_at(0, b"child") == Ok(true) && mapped.eq_at(0, b"parent") == Ok(true)
        })
        .succeeded()
    );
}

#[test]
fn descriptors_and_mappings_go_with_the_region() {
    let maps =
        || fs::read_to_string("/proc/self/maps").unwrap().matches("/memfd:left-over").count();
    let region = Region::create(&RegionSpec {
        name: "left-over",
        ..spec(8192, Hugepages::None, Seal::Data)
    })
    .unwrap();
    let number = region.fd().as_raw_fd();
    let copy: OwnedFd = region.fd().try_clone_to_owned().unwrap();
    let peer = Mapping::import(copy.as_fd(), MapAccess::Read, 8192).unwrap();
    drop(copy);
    assert_eq!(maps(), 2);
    let held = peer.segment().clone();
    drop(peer);
    assert_eq!(maps(), 2, "a holder of the segment keeps it mapped");
    drop(held);
    drop(region);
    assert_eq!(maps(), 0);
    let link = fs::read_link(format!("/proc/self/fd/{number}"));
    assert!(!link.is_ok_and(|target| target.to_string_lossy().contains("left-over")));
}
