//! Which CPU each lcore of either end gets.

use pmd_graph::cores::{self, CpuClaims};
use pmd_lcore::{CpuChoice, CpuSet, Topology, assign};
use pmd_verbs::CpuHolder;

use super::args::PerfArgs;
use super::refusal::Refusal;

/// CPUs of this end, and of the other where it runs here too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cpus {
    pub(super) ours: Vec<usize>,
    pub(super) theirs: Vec<usize>,
    /// Some CPU has more than one lcore: they must let each other run.
    pub(super) shared: bool,
    /// The lcores of other processes on these CPUs.
    pub(super) others: Vec<CpuHolder>,
}

/// Gives every lcore a CPU as [`place`] does, and claims them for as long as the claims live, those of the other end
/// too. Warns where others are there already.
///
/// # Errors
/// Those of [`place`].
pub(super) fn claim(
    args: &PerfArgs,
    topology: &Topology,
    both_here: bool,
) -> Result<(Cpus, CpuClaims), Refusal> {
    let choose = |held: &[CpuHolder]| {
        let cpus = place(args, topology, held, both_here)?;
        let all = [&cpus.ours[..], &cpus.theirs].concat();
        Ok::<_, Refusal>(((cpus, held.to_vec()), all))
    };
    let ((cpus, held), claims) = cores::claim(topology, choose)?;
    if !cpus.others.is_empty() {
        tracing::warn!("{}", warning(&cpus, topology, &held));
    }
    Ok((cpus, claims))
}

/// That others poll on these CPUs too.
fn warning(cpus: &Cpus, topology: &Topology, held: &[CpuHolder]) -> String {
    let taken = |cpu: usize| {
        held.iter().any(|holder| holder.cpu == cpu)
            || cpus.ours.contains(&cpu)
            || cpus.theirs.contains(&cpu)
    };
    let free: CpuSet = topology.allowed().iter().filter(|cpu| !taken(*cpu)).collect();
    cores::costs("lcores of this measurement are", &cpus.others, &free, &format!("--cpu {free}"))
}

/// Gives every lcore a CPU: those named, or one each while there are some.
///
/// # Errors
/// A CPU that does not exist, and a machine with one CPU that nobody said to share.
pub(super) fn place(
    args: &PerfArgs,
    topology: &Topology,
    held: &[CpuHolder],
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
    let taken: Vec<usize> = held.iter().map(|holder| holder.cpu).collect();
    let mut ours = assign(&choices, topology, &taken)
        .map_err(|error| Refusal::usage(format!("--cpu: {error}")))?;
    let others: Vec<CpuHolder> =
        held.iter().copied().filter(|holder| ours.contains(&holder.cpu)).collect();
    let shared = !assign::shared(&ours).is_empty() || !others.is_empty();
    let theirs = if both_here { ours.split_off(lcores) } else { Vec::new() };
    Ok(Cpus { ours, theirs, shared, others })
}
