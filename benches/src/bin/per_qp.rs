//! Bytes of memory that an RC queue pair takes: what the engine keeps, and what it shows to peers.

use anyhow::{Context as _, Result};
use benches::{Options, pair};
use pmd_verbs::WireChoice;

/// The line in its lcore's page that peers on this host read.
const SHOWN: usize = 64;

fn main() -> Result<()> {
    for depth in [16, 64, 256] {
        let options = Options { wire: WireChoice::Shm, qps: 1, depth, size: 8 };
        let [one, _two] = pair(&options)?;
        let view = one.qps.first().context("one queue pair")?.query();
        let (kept, resources) = (view.memory_bytes, view.attr.max_dest_rd_atomic);
        #[expect(clippy::print_stdout, reason = "the result")]
        {
            println!(
                "RC, {depth} sends and {depth} receives of one element, {resources} READs and \
                 atomics: {kept} bytes kept, {SHOWN} shown to peers"
            );
        }
    }
    Ok(())
}
