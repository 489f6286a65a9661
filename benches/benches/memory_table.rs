//! Keys looked up: by their owner, and by an initiator that reads a peer's table in place.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::Result;
use criterion::Criterion;
use pmd_mem::table::Registration;
use pmd_mem::{Access, Key, MemoryTable, PeerTable, Segment};

const ENTRIES: u32 = 1 << 14;
const PD: u32 = 1;
const QPN: u32 = 0x11;
/// Bytes of each registration.
const LEN: u64 = 1 << 20;

pub(crate) fn suite(criterion: &mut Criterion) -> Result<()> {
    let segment = Arc::new(Segment::private(MemoryTable::bytes(ENTRIES))?);
    let table = MemoryTable::new(&segment, ENTRIES, None, pmd_mem::os_entropy)?;
    let peer = PeerTable::import(&segment)?;
    let keys: Vec<Key> = (0..1024).map(|region| register(&table, region)).collect::<Result<_>>()?;
    let rights = Access::REMOTE_WRITE;
    let mut group = criterion.benchmark_group("memory table");
    for (name, keys) in [("1 key", &keys[..1]), ("1024 keys in turn", &keys[..])] {
        let mut turn = keys.iter().cycle();
        let mut next = || *turn.next().unwrap_or(&keys[0]);
        group.bench_function(format!("local key, {name}"), |bencher| {
            bencher.iter(|| table.check_local(next(), PD, black_box(4096), 64, true));
        });
        group.bench_function(format!("remote key, {name}"), |bencher| {
            bencher.iter(|| table.check_remote(next(), PD, QPN, black_box(4096), 64, rights));
        });
        group.bench_function(format!("remote key in a peer's table, {name}"), |bencher| {
            bencher.iter(|| peer.check_remote(next(), PD, QPN, black_box(4096), 64, rights));
        });
    }
    // What is measured is a lookup that succeeds.
    for key in keys {
        table.check_local(key, PD, 4096, 64, true)?;
        peer.check_remote(key, PD, QPN, 4096, 64, rights)?;
    }
    Ok(())
}

fn register(table: &MemoryTable, region: u32) -> Result<Key> {
    Ok(table.register(&Registration {
        region,
        region_len: LEN,
        offset: 0,
        length: LEN,
        va: 0,
        pd: PD,
        access: Access::LOCAL_WRITE | Access::REMOTE,
    })?)
}
