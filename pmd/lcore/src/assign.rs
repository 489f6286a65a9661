//! Which lcore gets which core.

use std::str::FromStr;

use crate::cpuset::CpuSet;
use crate::pin::PinError;
use crate::topology::{Cpu, Topology};

/// What the configuration asks for: `cpu = "auto"` or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuChoice {
    /// Any, and a core of its own while there are some.
    #[default]
    Auto,
    /// This one.
    Core(usize),
}

/// Neither `auto` nor a number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no core: write \"auto\" or a number such as 3")]
pub struct CpuChoiceError(String);

impl FromStr for CpuChoice {
    type Err = CpuChoiceError;

    fn from_str(text: &str) -> Result<Self, CpuChoiceError> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::Core).map_err(|_| CpuChoiceError(text.to_owned())),
        }
    }
}

/// Chooses a CPU for each lcore, in order.
///
/// `held` are the CPUs that lcores of other processes poll on, each as often as there are such lcores.
///
/// Numbers are taken as they are, even twice. `auto` prefers, in this order: a CPU without an lcore, a core without
/// one on its other hardware threads, the lowest NUMA node, the lowest id. Where cores run out, lcores share them
/// evenly.
///
/// # Errors
/// [`PinError::NoSuchCore`] for a number that is not in `topology`, or where `topology` has no CPU at all.
pub fn assign(
    choices: &[CpuChoice],
    topology: &Topology,
    held: &[usize],
) -> Result<Vec<usize>, PinError> {
    // Others may be where this process may not.
    let mut taken: Vec<&Cpu> = held.iter().filter_map(|cpu| topology.cpu(*cpu)).collect();
    let named = choices.iter().filter_map(|choice| match choice {
        CpuChoice::Core(cpu) => Some(*cpu),
        CpuChoice::Auto => None,
    });
    for cpu in named {
        taken.push(
            topology
                .cpu(cpu)
                .ok_or_else(|| PinError::NoSuchCore { cpu, available: topology.allowed() })?,
        );
    }
    let mut assigned = Vec::with_capacity(choices.len());
    for choice in choices {
        assigned.push(match choice {
            CpuChoice::Core(cpu) => *cpu,
            CpuChoice::Auto => {
                let cpu = freest(topology, &taken);
                let cpu = cpu.ok_or_else(|| PinError::NoSuchCore {
                    cpu: 0,
                    available: topology.allowed(),
                })?;
                taken.push(cpu);
                cpu.id
            }
        });
    }
    Ok(assigned)
}

fn freest<'t>(topology: &'t Topology, taken: &[&Cpu]) -> Option<&'t Cpu> {
    topology.cpus().iter().min_by_key(|cpu| {
        let on_cpu = taken.iter().filter(|other| other.id == cpu.id).count();
        let on_core = taken.iter().filter(|other| other.core == cpu.core).count();
        (on_cpu, on_core, cpu.node, cpu.id)
    })
}

/// The CPUs that appear more than once among those assigned.
pub fn shared(assigned: &[usize]) -> CpuSet {
    let times = |cpu| assigned.iter().filter(|&&other| other == cpu).count();
    assigned.iter().copied().filter(|&cpu| times(cpu) > 1).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::CpuChoice::{Auto, Core};
    use super::*;
    use crate::topology::Node;

    /// Every CPU a core of its own.
    fn flat(allowed: &str) -> Topology {
        Topology::from_sysfs(Path::new("/nonexistent"), &allowed.parse().unwrap()).unwrap()
    }

    #[test]
    fn distinct_cores_while_they_last_then_shared_evenly() {
        assert_eq!(assign(&[Auto; 5], &flat("2-3"), &[]).unwrap(), [2, 3, 2, 3, 2]);
        assert_eq!(assign(&[Auto; 3], &flat("0"), &[]).unwrap(), [0, 0, 0]);
        assert!(assign(&[], &flat("0"), &[]).unwrap().is_empty());
    }

    #[test]
    fn named_cores_are_kept_clear_of_automatic_ones() {
        assert_eq!(assign(&[Auto, Core(0), Auto], &flat("0-2"), &[]).unwrap(), [1, 0, 2]);
        assert_eq!(assign(&[Core(1), Core(1), Auto], &flat("0-1"), &[]).unwrap(), [1, 1, 0]);
    }

    #[test]
    fn whole_cores_before_sibling_threads_and_near_nodes_first() {
        let cpu = |id, core, node| Cpu { id, core, package: node, node };
        let cpus = vec![cpu(0, 0, 1), cpu(1, 1, 0), cpu(2, 2, 0), cpu(3, 0, 1), cpu(4, 1, 0)];
        let topology = Topology::new(cpus, vec![Node { id: 0, bytes: 0 }]);
        assert_eq!(assign(&[Auto; 6], &topology, &[]).unwrap(), [1, 2, 0, 4, 3, 2]);
    }

    #[test]
    fn cpus_of_other_processes_are_left_to_them() {
        assert_eq!(assign(&[Auto], &flat("0-1"), &[0]).unwrap(), [1]);
        assert_eq!(assign(&[Auto; 3], &flat("0-2"), &[1]).unwrap(), [0, 2, 0]);
        // All are held: the one that the fewest poll on.
        assert_eq!(assign(&[Auto; 2], &flat("0-1"), &[0, 0, 1]).unwrap(), [1, 0]);
        assert_eq!(assign(&[Core(0), Auto], &flat("0-1"), &[0, 1]).unwrap(), [0, 1]);
        // One outside of the mask takes nothing from what is inside.
        assert_eq!(assign(&[Auto], &flat("2-3"), &[0, 7]).unwrap(), [2]);
        // The other hardware thread of a core that is held comes after a core of its own.
        let cpu = |id, core| Cpu { id, core, package: 0, node: 0 };
        let cpus = vec![cpu(0, 0), cpu(1, 0), cpu(2, 2), cpu(3, 2)];
        let topology = Topology::new(cpus, vec![Node { id: 0, bytes: 0 }]);
        assert_eq!(assign(&[Auto; 2], &topology, &[0]).unwrap(), [2, 1]);
    }

    #[test]
    fn a_missing_core_is_refused() {
        let error = assign(&[Auto, Core(7)], &flat("0-1,4"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("core 7 does not exist"), "{error}");
        assert!(error.ends_with("available: 0-1,4"), "{error}");
        assert!(assign(&[Auto], &flat(""), &[]).is_err());
    }

    #[test]
    fn sharing_is_seen() {
        assert_eq!(shared(&[0, 1, 0, 2, 2]).to_string(), "0,2");
        assert!(shared(&[0, 1]).is_empty());
    }

    #[test]
    fn reads_the_configuration() {
        assert_eq!("auto".parse(), Ok(Auto));
        assert_eq!("12".parse(), Ok(Core(12)));
        let error = "fast".parse::<CpuChoice>().unwrap_err().to_string();
        assert_eq!(error, "`fast` is no core: write \"auto\" or a number such as 3");
    }
}
