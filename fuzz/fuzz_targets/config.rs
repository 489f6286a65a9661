//! Any text is a pipeline or refused with a message that points into it, whatever the command line
//! sets; whatever pipeline it is, a machine can be asked whether it fits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pmd_graph::config::Config;
use pmd_graph::plan::Plan;
use pmd_graph::plan::machine::{Machine, NumaMemory};
use pmd_graph::registry::Registry;
use pmd_lcore::Topology;
use pmd_lcore::topology::{Cpu, Node};

/// Two cores and 4 GiB.
fn machine() -> Machine {
    let bytes = 4 << 30;
    let cpu = |id| Cpu { id, core: id, package: 0, node: 0 };
    Machine {
        held: Vec::new(),
        addresses: Vec::new(),
        auto_address: None,
        topology: Topology::new(vec![cpu(0), cpu(1)], vec![Node { id: 0, bytes }]),
        numa: vec![NumaMemory { id: 0, total: bytes, available: bytes, ..NumaMemory::default() }],
        available: bytes,
        thp: false,
        memlock: Some(8 << 20),
    }
}

// The text ends at the first NUL, so that a config is its own seed. Then follow, each ended by a NUL,
// the value that every environment variable has, and what the command line sets.
fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.split(|byte| *byte == 0);
    let text = parts.next().unwrap_or_default();
    let mut words = parts.map(|part| String::from_utf8_lossy(part).into_owned());
    let variable = words.next();
    let sets: Vec<_> = words.take(4).collect();
    let environment = |_: &str| variable.clone();
    match Config::parse("fuzz.toml", text, &sets, &environment, &Registry::builtin()) {
        Err(report) => {
            assert!(report.errors() > 0, "refused without a word");
            assert!(!report.render(false).is_empty());
        }
        Ok(config) => {
            assert_eq!(config.report.errors(), 0);
            if let Err(report) = Plan::resolve(&config, &machine()) {
                assert!(report.errors() > 0, "refused without a word");
                assert!(!report.render(true).is_empty());
            }
        }
    }
});
