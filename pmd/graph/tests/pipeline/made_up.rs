//! Pipelines to break, and machines to plan them for.

use pmd_graph::config::Config;
use pmd_graph::diagnostic::Report;
use pmd_graph::plan::machine::{Address, Machine, NumaMemory};
use pmd_graph::registry::Registry;
use pmd_lcore::Topology;
use pmd_lcore::topology::{Cpu, Node};

/// The quickstart that the binary carries.
pub(crate) const QUICKSTART: &str = include_str!("../../../../configs/quickstart.toml");

/// The quickstart with each first `.0` replaced by its `.1`.
///
/// # Panics
/// When there is nothing to replace: the test would test nothing.
pub(crate) fn quickstart(changes: &[(&str, &str)]) -> String {
    let mut text = QUICKSTART.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "the quickstart has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    text
}

/// Reads `text` with `sets`, and variables from `environment`.
pub(crate) fn parse(
    text: &str,
    sets: &[&str],
    environment: &[(&str, &str)],
) -> Result<Config, Report> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let lookup = |name: &str| {
        environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Config::parse("pipeline.toml", text.as_bytes(), &sets, &lookup, &Registry::builtin())
}

/// A pipeline that must be taken, without a warning.
pub(crate) fn taken(text: &str, sets: &[&str]) -> Config {
    let config = parse(text, sets, &[]).unwrap_or_else(|report| panic!("{report}"));
    assert!(config.report.diagnostics.is_empty(), "{}", config.report);
    config
}

/// The report of a pipeline that must be refused.
pub(crate) fn refused(text: &str, sets: &[&str]) -> Report {
    match parse(text, sets, &[]) {
        Ok(_) => panic!("the config was taken"),
        Err(report) => report,
    }
}

/// What a report complains about, in the order it is shown.
pub(crate) fn titles(report: &Report) -> Vec<&str> {
    let mut diagnostics: Vec<_> = report.diagnostics.iter().collect();
    diagnostics.sort_by_key(|diagnostic| diagnostic.span());
    diagnostics.into_iter().map(|diagnostic| diagnostic.title()).collect()
}

/// Memory of a NUMA node with `gib` GiB, all of it available and none in hugepages.
pub(crate) fn memory(id: usize, gib: u64) -> NumaMemory {
    NumaMemory { id, total: gib << 30, available: gib << 30, ..NumaMemory::default() }
}

/// A machine whose CPUs are `cpus` in order, each given by its core and NUMA node.
pub(crate) fn machine(cpus: &[(usize, usize)], numa: Vec<NumaMemory>) -> Machine {
    let cpus = cpus
        .iter()
        .enumerate()
        .map(|(id, &(core, node))| Cpu { id, core, package: node, node })
        .collect();
    let nodes = numa.iter().map(|node| Node { id: node.id, bytes: node.total }).collect();
    Machine {
        topology: Topology::new(cpus, nodes),
        available: numa.iter().map(|node| node.available).sum(),
        numa,
        held: Vec::new(),
        thp: false,
        memlock: None,
        addresses: vec![Address {
            ip: std::net::IpAddr::from([127, 0, 0, 1]),
            interface: "lo".into(),
            interface_mtu: 65_536,
            path_mtu: Some(4096),
        }],
        auto_address: Some(std::net::Ipv4Addr::LOCALHOST),
    }
}

/// Two cores and 8 GiB.
pub(crate) fn laptop() -> Machine {
    machine(&[(0, 0), (1, 0)], vec![memory(0, 8)])
}
