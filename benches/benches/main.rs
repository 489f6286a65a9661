//! Criterion suites, all on one pinned core, some with a second one opposite. `benches/README.md`
//! says how to run them and what each measures.
#![forbid(unsafe_code)]

mod copy;
mod endpoint;
mod frames;
mod histogram;
mod icrc;
mod ledger;
mod memory_table;
mod mempool;
mod paths;
mod poll;
mod reconnect;
mod ring;

use std::time::Duration;

use anyhow::Result;
use benches::{cores, pin};
use criterion::Criterion;
use pmd_lcore::hop_ns;

fn main() -> Result<()> {
    let [here, there] = cores()?;
    let apart =
        hop_ns(there, here).map_or_else(|why| why.to_string(), |ns| format!("one hop {ns:.0} ns"));
    pin(here)?;
    #[expect(clippy::print_stdout, reason = "figures of two cores mean nothing without it")]
    {
        println!("cores {here} and {there}, {apart}");
    }
    // Flags come last: what they say holds.
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    let suites: [fn(&mut Criterion) -> Result<()>; 11] = [
        poll::suite,
        frames::suite,
        icrc::suite,
        memory_table::suite,
        ring::suite,
        mempool::suite,
        reconnect::suite,
        endpoint::suite,
        ledger::suite,
        copy::suite,
        histogram::suite,
    ];
    paths::suite(&mut criterion, there)?;
    for suite in suites {
        suite(&mut criterion)?;
    }
    criterion.final_summary();
    Ok(())
}
