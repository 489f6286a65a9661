//! Which lcore gets which CPU.

use super::LcorePlan;
use super::machine::{Cpu, Machine};
use crate::config::Config;
use crate::diagnostic::{Diagnostic, Report};

/// A CPU for each lcore. Numbers are taken as they are; `auto` prefers, in this order, a CPU without an lcore, a core
/// without one on its other hardware threads, the lowest NUMA node, the lowest number.
pub(super) fn choose(config: &Config, machine: &Machine, report: &mut Report) -> Vec<LcorePlan> {
    let mut taken: Vec<Cpu> = Vec::new();
    for lcore in &config.lcores {
        let Some(id) = lcore.cpu else { continue };
        match machine.cpu(id) {
            Some(cpu) => taken.push(*cpu),
            None => report.push(
                Diagnostic::error(format!("lcore `{}` cannot run on CPU {id}", lcore.name))
                    .at(
                        lcore.cpu_span.unwrap_or(lcore.span),
                        format!("this process may run on {}", machine.cpu_ranges()),
                    )
                    .help("name one of those, or write cpu = \"auto\""),
            ),
        }
    }
    let mut chosen = Vec::with_capacity(config.lcores.len());
    for lcore in &config.lcores {
        let cpu = match lcore.cpu {
            Some(id) => machine.cpu(id).copied(),
            None => freest(machine, &taken).inspect(|cpu| taken.push(*cpu)),
        };
        let Some(cpu) = cpu else { continue };
        chosen.push(LcorePlan {
            name: lcore.name.clone(),
            cpu: cpu.id,
            numa: cpu.numa,
            idle: lcore.idle,
            shared: false,
        });
    }
    for lcore in &mut chosen {
        lcore.shared = taken.iter().filter(|cpu| cpu.id == lcore.cpu).count() > 1;
    }
    if chosen.len() < config.lcores.len() && report.errors() == 0 {
        report.push(
            Diagnostic::error("this process may run on no CPU at all")
                .help("look at its affinity mask: taskset -p"),
        );
    }
    chosen
}

fn freest(machine: &Machine, taken: &[Cpu]) -> Option<Cpu> {
    let best = machine.cpus.iter().min_by_key(|cpu| {
        let on_cpu = taken.iter().filter(|other| other.id == cpu.id).count();
        let on_core = taken.iter().filter(|other| other.core == cpu.core).count();
        (on_cpu, on_core, cpu.numa, cpu.id)
    });
    best.copied()
}
