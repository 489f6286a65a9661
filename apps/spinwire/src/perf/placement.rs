//! Which CPU each lcore of either end gets.

use pmd_lcore::{CpuChoice, Topology, assign};

use super::args::PerfArgs;
use super::refusal::Refusal;

/// CPUs of this end, and of the other where it runs here too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cpus {
    pub(super) ours: Vec<usize>,
    pub(super) theirs: Vec<usize>,
    /// Some CPU has more than one lcore: they must let each other run.
    pub(super) shared: bool,
}

/// Gives every lcore a CPU: those named, or one each while there are some.
///
/// # Errors
/// A CPU that does not exist, and a machine with one CPU that nobody said to share.
pub(super) fn place(
    args: &PerfArgs,
    topology: &Topology,
    both_here: bool,
) -> Result<Cpus, Refusal> {
    let lcores = args.lcores as usize;
    let wanted = if both_here { 2 * lcores } else { lcores };
    if !args.cpu.is_empty() && args.cpu.len() != wanted {
        let ends = if both_here { ", for this end and then for the other" } else { "" };
        return Err(Refusal::usage(format!(
            "--cpu names {} CPUs, and there are {wanted} lcores: name one for each{ends}",
            args.cpu.len()
        )));
    }
    if args.cpu.is_empty() && both_here && topology.cpus().len() == 1 {
        let cpu = topology.cpus()[0].id;
        return Err(Refusal::usage(format!(
            "two ends that poll need two CPUs, and this process may use CPU {cpu} only: give it more (taskset, cpuset), \
             or let both share it, which measures the scheduler: --cpu {cpu},{cpu}"
        )));
    }
    let choices: Vec<CpuChoice> = if args.cpu.is_empty() {
        vec![CpuChoice::Auto; wanted]
    } else {
        args.cpu.iter().copied().map(CpuChoice::Core).collect()
    };
    let mut ours =
        assign(&choices, topology).map_err(|error| Refusal::usage(format!("--cpu: {error}")))?;
    let shared = !assign::shared(&ours).is_empty();
    let theirs = if both_here { ours.split_off(lcores) } else { Vec::new() };
    Ok(Cpus { ours, theirs, shared })
}
