//! Which lcore gets which CPU.

use pmd_lcore::assign::shared;
use pmd_lcore::{CpuChoice, assign};

use super::LcorePlan;
use super::machine::Machine;
use crate::config::Config;
use crate::diagnostic::{Diagnostic, Report};

/// A CPU for each lcore, as [`assign()`] chooses.
pub(super) fn choose(config: &Config, machine: &Machine, report: &mut Report) -> Vec<LcorePlan> {
    let before = report.errors();
    for lcore in &config.lcores {
        let Some(id) = lcore.cpu else { continue };
        if machine.topology.cpu(id).is_none() {
            report.push(
                Diagnostic::error(format!("lcore `{}` cannot run on CPU {id}", lcore.name))
                    .at(
                        lcore.cpu_span.unwrap_or(lcore.span),
                        format!("this process may run on {}", machine.topology.allowed()),
                    )
                    .help("name one of those, or write cpu = \"auto\""),
            );
        }
    }
    if report.errors() > before {
        return Vec::new();
    }
    let choices: Vec<CpuChoice> = config
        .lcores
        .iter()
        .map(|lcore| lcore.cpu.map_or(CpuChoice::Auto, CpuChoice::Core))
        .collect();
    let held: Vec<usize> = machine.held.iter().map(|holder| holder.cpu).collect();
    let cpus = match assign(&choices, &machine.topology, &held) {
        Ok(cpus) => cpus,
        Err(error) => {
            report.push(
                Diagnostic::error(error.to_string())
                    .help("look at the affinity mask: taskset -p $$"),
            );
            return Vec::new();
        }
    };
    let shared = shared(&cpus);
    let chosen = config.lcores.iter().zip(cpus).map(|(lcore, cpu)| LcorePlan {
        name: lcore.name.clone(),
        cpu,
        numa: machine.topology.cpu(cpu).map_or(0, |cpu| cpu.node),
        idle: lcore.idle,
        shared: shared.contains(cpu) || held.contains(&cpu),
        others: machine.held.iter().copied().filter(|holder| holder.cpu == cpu).collect(),
    });
    chosen.collect()
}
