//! The deregistration fence: nobody touches memory after its key was revoked and waited for.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod child;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use child::Child;
use pmd_mem::table::{DeregisterError, RegisterError, Registration, WindowType};
use pmd_mem::{
    Access, Announce, Busy, Fence, Hugepages, Key, LookupError, MapAccess, Mapping, Memlock,
    MemoryTable, Numa, PeerTable, PeerWord, Region, RegionSpec, RevokeError, Seal, Segment, Word,
    memlock_limit, os_entropy,
};
use rustix::process::{Resource, Rlimit, setrlimit};

fn table() -> MemoryTable {
    let segment = Arc::new(Segment::private(MemoryTable::bytes(16)).unwrap());
    let mut state = 1_u64;
    MemoryTable::new(&segment, 16, None, move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.rotate_left(32)
    })
    .unwrap()
}

fn registration() -> Registration {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    Registration { region: 1, region_len: 4096, offset: 0, length: 4096, va: 0, pd: 1, access }
}

#[test]
fn lines_are_odd_inside_and_even_outside() {
    let word = AtomicU64::new(99);
    let mut busy = Busy::new(&word);
    for round in 0..3 {
        assert_eq!(word.load(Ordering::Relaxed), 2 * round);
        let announce = if round == 1 { Announce::FullFence } else { Announce::Plain };
        let inside = busy.enter(announce);
        assert_eq!(word.load(Ordering::Relaxed), 2 * round + 1);
        drop(inside);
    }
}

#[test]
fn idle_and_dead_peers_are_not_waited_for() {
    let table = table();
    let fence = Fence::register();
    let lines = [AtomicU64::new(4), AtomicU64::new(7), AtomicU64::new(u64::MAX)];
    let key = table.register(&registration()).unwrap();
    fence
        .revoke_and_wait(&table, key, &lines, |peer| peer == 0, || panic!("nothing to wait for"))
        .unwrap();
    assert_eq!(table.outstanding().free_entries, 16);
    assert!(matches!(
        fence.revoke_and_wait(&table, key, &lines, |_| true, || true),
        Err(RevokeError::Deregister(DeregisterError::UnknownKey))
    ));
}

/// The wait is over when the peer is in another batch, even a busy one.
#[test]
fn a_later_batch_is_not_waited_for() {
    let line = AtomicU64::new(7);
    let polls = AtomicU32::new(0);
    let moves = || {
        if polls.fetch_add(1, Ordering::Relaxed) == 2 {
            line.store(9, Ordering::Release);
        }
        false
    };
    assert_eq!(Fence::without_membarrier().wait(&[&line], |_| true, moves), Ok(()));
    assert_eq!(polls.load(Ordering::Relaxed), 3);
}

/// A peer that hangs (or lies) inside a batch quarantines the entry: it is not reused before the caller says so.
#[test]
fn a_stuck_peer_is_quarantined_in_bounded_time() {
    let table = table();
    let fence = Fence::register();
    let lines = [AtomicU64::new(2), AtomicU64::new(5)];
    let key = table.register(&registration()).unwrap();
    let mut patience = 3;
    let expired = || {
        patience -= 1;
        patience == 0
    };
    let Err(RevokeError::Quarantined(quarantined)) =
        fence.revoke_and_wait(&table, key, &lines, |_| true, expired)
    else {
        panic!("the peer is stuck");
    };
    assert_eq!(quarantined.peers, [1]);
    assert_eq!(
        table.check_remote(key, 1, 0, 0, 8, Access::REMOTE_WRITE),
        Err(LookupError::Revoked)
    );
    assert_eq!(table.outstanding().free_entries, 15);
    assert_ne!(table.outstanding().registered_bytes, 0);
    // Later the peer is gone.
    fence.reclaim(&table, quarantined.retired, &lines[..1], |_| true, || true).unwrap();
    assert_eq!(table.outstanding().free_entries, 16);
}

#[test]
fn announcements_follow_the_weaker_side() {
    let refused = Fence::without_membarrier();
    assert!(refused.needs_full_fence());
    assert_eq!(refused.announce(false), Announce::FullFence);
    let ours = Fence::register();
    assert_eq!(ours.announce(true), Announce::FullFence);
    assert_eq!(ours.announce(false) == Announce::Plain, !ours.needs_full_fence());
}

/// Waits for the other side, which is dead if this takes long.
fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "the other side is stuck");
        std::thread::yield_now();
    }
}

/// An initiator on another thread writes whenever it sees the key valid; after the fence the owner's bytes stay as they are.
fn no_access_after_the_fence(fence: Fence, rounds: u64) {
    let table = table();
    let memory = Segment::private(4096).unwrap();
    let line = AtomicU64::new(0);
    let key = AtomicU32::new(0);
    let writes = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut busy = Busy::new(&line);
            for busy_rounds in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let key = Key(key.load(Ordering::Relaxed));
                let inside = busy.enter(fence.announce(false));
                if let Ok(Some(place)) = table.check_remote(key, 1, 0, 8, 8, Access::REMOTE_WRITE) {
                    memory.write_at(place.offset, &[0xff; 8]).unwrap();
                    writes.fetch_add(1, Ordering::Relaxed);
                }
                drop(inside);
                if busy_rounds.is_multiple_of(64) {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=rounds {
            let registered = table.register(&registration()).unwrap();
            let before = writes.load(Ordering::Relaxed);
            key.store(registered.0, Ordering::Relaxed);
            until(|| writes.load(Ordering::Relaxed) != before);
            fence.revoke_and_wait(&table, registered, &[&line], |_| true, || false).unwrap();
            memory.write_at(8, &round.to_ne_bytes()).unwrap();
            for _ in 0..50 {
                assert!(
                    memory.eq_at(8, &round.to_ne_bytes()).unwrap(),
                    "written after deregistration {round}"
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn nothing_is_written_after_the_fence_with_membarrier() {
    no_access_after_the_fence(Fence::register(), 60);
}

#[test]
fn nothing_is_written_after_the_fence_without_membarrier() {
    no_access_after_the_fence(Fence::without_membarrier(), 60);
}

/// Two processes: the initiator's line and the target's table are each written by their owner and mapped read-only by the
/// other; the target's memory is writable by both. A killed initiator leaves its line odd and is told apart by its death.
#[test]
fn a_peer_process_is_fenced_and_its_death_ends_the_wait() {
    let anywhere = Numa::default();
    let make = |name, seal| {
        let spec =
            RegionSpec { name, len: 4096, hugepages: Hugepages::None, numa: &anywhere, seal };
        Region::create(&spec).unwrap()
    };
    let (table_region, data) = (make("table", Seal::OwnerWritten), make("data", Seal::Data));
    let table = MemoryTable::new(table_region.segment(), 16, None, os_entropy).unwrap();
    let key = table.register(&registration()).unwrap();
    // Stands for the handshake: the child makes its line, tells where it is, and goes on until it is killed.
    let lines = make("lines", Seal::Data);
    let line = PeerWord::new(lines.segment(), 0).unwrap();
    let fence = Fence::register();
    if fence.needs_full_fence() {
        table.require_full_fence();
    }
    let mut child = Child::run(|| initiate(&table_region, &data, &lines, key));
    let written = data.atomic_u64(0).unwrap();
    until(|| written.load(Ordering::Acquire) != 0);
    fence.revoke_and_wait(&table, key, std::slice::from_ref(&line), |_| true, || false).unwrap();
    written.store(7, Ordering::SeqCst);
    for _ in 0..1000 {
        assert_eq!(written.load(Ordering::SeqCst), 7);
    }
    // Now it enters a batch that it never leaves.
    lines.atomic_u64(128).unwrap().store(1, Ordering::Release);
    let stuck = lines.atomic_u64(0).unwrap();
    until(|| stuck.load(Ordering::Acquire) % 2 == 1 && written.load(Ordering::Acquire) == 8);
    let key = table.register(&registration()).unwrap();
    let mut polls = 0;
    let alive = |_| {
        polls += 1;
        if polls == 2 {
            child.kill();
        }
        polls < 3
    };
    fence.revoke_and_wait(&table, key, &[line], alive, || false).unwrap();
    assert_eq!(polls, 3);
}

/// The child's side: imports everything anew, since a fork inherits no mapping.
fn initiate(table: &Region, data: &Region, lines: &Region, key: Key) -> bool {
    let fence = Fence::register();
    let import = |region: &Region, access| Mapping::import(region.fd(), access, 4096).unwrap();
    let table = PeerTable::import(import(table, MapAccess::Read).segment()).unwrap();
    let data = import(data, MapAccess::ReadWrite);
    let lines = import(lines, MapAccess::ReadWrite);
    let mut busy = Busy::new(Word::new(lines.segment(), 0).unwrap());
    let announce = fence.announce(table.needs_full_fence());
    while lines.atomic_u64(128).unwrap().load(Ordering::Acquire) == 0 {
        let inside = busy.enter(announce);
        if let Ok(Some(place)) = table.check_remote(key, 1, 0, 0, 8, Access::REMOTE_WRITE) {
            data.write_at(place.offset, &1_u64.to_ne_bytes()).unwrap();
        }
        drop(inside);
    }
    let _stuck = busy.enter(announce);
    data.write_at(0, &8_u64.to_ne_bytes()).unwrap();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_forked_child_cannot_change_its_parents_table() {
    let table = table();
    let key = table.register(&registration()).unwrap();
    let child = Child::run(|| {
        table.register(&registration()) == Err(RegisterError::Forked)
            && table.alloc_window(1, WindowType::Type1) == Err(RegisterError::Forked)
            && matches!(table.deregister(key), Err(DeregisterError::Forked))
            && matches!(table.free_window(key), Err(DeregisterError::Forked))
    });
    assert!(child.succeeded());
    assert!(table.check_local(key, 1, 0, 8, true).is_ok());
}

/// P10: the limit of this process itself, lowered in a child so that no other test meets it.
#[test]
fn p10_a_child_with_a_low_limit_cannot_register_more_in_strict_mode() {
    const MIB: u64 = 1 << 20;
    let child = Child::run(|| {
        let low = Rlimit { current: Some(8 * MIB), maximum: Some(8 * MIB) };
        setrlimit(Resource::Memlock, low).unwrap();
        let register = |memlock: Memlock| {
            let segment = Arc::new(Segment::private(MemoryTable::bytes(4)).unwrap());
            let table =
                MemoryTable::new(&segment, 4, memlock.bound(memlock_limit()), os_entropy).unwrap();
            table.register(&Registration {
                region_len: 64 * MIB,
                length: 64 * MIB,
                ..registration()
            })
        };
        let refused = register(Memlock::Strict).map_err(|e| e.to_string());
        refused.is_err_and(|text| text.starts_with("locked memory limit 8 MiB < 64 MiB requested"))
            && register(Memlock::Check).is_ok()
    });
    assert!(child.succeeded());
}
