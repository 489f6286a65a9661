//! CPUs on which no other process polls, and the claims that keep others away.
//!
//! Two lcores that poll on one CPU take turns by the scheduler's time slices, so each process claims the CPUs of its lcores
//! in the rendezvous directory, as it does with ports. A claim is gone with its process. Processes with another such
//! directory, or in another network namespace, are not seen.

use std::collections::BTreeSet;
use std::io;

use pmd_lcore::{CpuSet, Topology};
use pmd_verbs::{CpuClaim, CpuHolder, Rendezvous};

use crate::limits::CPU_CLAIM_TRIES;

/// The claims of a process, which hold as long as this lives.
#[derive(Debug, Default)]
pub struct CpuClaims {
    claims: Vec<CpuClaim>,
}

impl CpuClaims {
    /// How many lcores have one.
    pub const fn len(&self) -> usize {
        self.claims.len()
    }

    /// Whether no lcore has one.
    pub const fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }
}

/// The lcores of all processes that poll on the CPUs of `topology` now. None where that cannot be told.
pub fn holders(topology: &Topology) -> Vec<CpuHolder> {
    let Ok(rendezvous) = Rendezvous::open_default() else { return Vec::new() };
    holders_in(&rendezvous, topology).unwrap_or_default()
}

fn holders_in(rendezvous: &Rendezvous, topology: &Topology) -> io::Result<Vec<CpuHolder>> {
    let each = topology.cpus().iter().map(|cpu| rendezvous.cpu_holders(cpu.id));
    Ok(each.collect::<io::Result<Vec<_>>>()?.concat())
}

/// Has `choose` choose a CPU for each lcore, knowing who polls where, and claims them. If another process takes one of them
/// in between, it chooses again.
///
/// # Errors
/// Those of `choose`. Where nothing can be claimed a warning says so.
pub fn claim<T, E>(
    topology: &Topology,
    choose: impl FnMut(&[CpuHolder]) -> Result<(T, Vec<usize>), E>,
) -> Result<(T, CpuClaims), E> {
    let rendezvous = Rendezvous::open_default().map_err(|error| error.to_string());
    claim_in(rendezvous.as_ref(), topology, choose)
}

fn claim_in<T, E>(
    rendezvous: Result<&Rendezvous, &String>,
    topology: &Topology,
    mut choose: impl FnMut(&[CpuHolder]) -> Result<(T, Vec<usize>), E>,
) -> Result<(T, CpuClaims), E> {
    let reason = 'claimed: {
        let rendezvous = match rendezvous {
            Ok(rendezvous) => rendezvous,
            Err(reason) => break 'claimed reason.clone(),
        };
        for _ in 0..CPU_CLAIM_TRIES {
            let holders = match holders_in(rendezvous, topology) {
                Ok(holders) => holders,
                Err(error) => break 'claimed error.to_string(),
            };
            let (chosen, cpus) = choose(&holders)?;
            match take(rendezvous, &cpus, &holders) {
                Ok(Some(claims)) => return Ok((chosen, claims)),
                Ok(None) => {}
                Err(error) => break 'claimed error.to_string(),
            }
        }
        "other processes take them as fast".to_owned()
    };
    tracing::warn!(
        "two processes may poll on one CPU, since none can be claimed for this one: {reason}"
    );
    choose(&[]).map(|(chosen, _)| (chosen, CpuClaims::default()))
}

/// Claims a place on each of `cpus`. `None` if one is taken by somebody who is not among the `holders`: of two that come at
/// once the one with the later place gives way.
fn take(
    rendezvous: &Rendezvous,
    cpus: &[usize],
    holders: &[CpuHolder],
) -> io::Result<Option<CpuClaims>> {
    let mut claims: Vec<CpuClaim> = Vec::with_capacity(cpus.len());
    for cpu in cpus {
        // Where all places are taken, one more is neither seen nor the worst that happens there.
        let Some(claim) = rendezvous.claim_cpu(*cpu)? else { continue };
        let known = holders.iter().filter(|holder| holder.cpu == *cpu).count()
            + claims.iter().filter(|own| own.cpu() == *cpu).count();
        if claim.place() > known {
            return Ok(None);
        }
        claims.push(claim);
    }
    Ok(Some(CpuClaims { claims }))
}

/// What it costs that lcores poll on a CPU on which `holders` do, and what helps: `free` are the CPUs that nobody polls on,
/// and `choice` is how an automatic choice is asked for.
pub fn costs(lcores: &str, holders: &[CpuHolder], free: &CpuSet, choice: &str) -> String {
    let cpus: CpuSet = holders.iter().map(|holder| holder.cpu).collect();
    let pids: BTreeSet<u32> = holders.iter().filter_map(|holder| holder.pid).collect();
    let who = match pids.iter().map(u32::to_string).collect::<Vec<_>>() {
        pids if pids.is_empty() => "another process".to_owned(),
        pids if pids.len() == 1 => format!("process {}", pids[0]),
        pids => format!("processes {}", pids.join(", ")),
    };
    let help = if free.is_empty() {
        "no CPU is free: end some process, or use fewer lcores".to_owned()
    } else {
        format!("CPU {free} is free: {choice}")
    };
    format!(
        "{lcores} on CPU {cpus}, where {who} polls too: they take turns, and a message waits milliseconds for its turn \
         instead of microseconds; {help}"
    )
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;
    use std::os::unix::fs::DirBuilderExt;
    use std::path::{Path, PathBuf};

    use pmd_lcore::{CpuChoice, assign};

    use super::*;

    /// A rendezvous of its own, removed when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> (Self, Rendezvous) {
            let path =
                std::env::temp_dir().join(format!("spinwire-cores-{name}-{}", std::process::id()));
            drop(fs::remove_dir_all(&path));
            fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            let rendezvous = Rendezvous::open(&path).unwrap();
            (Self(path), rendezvous)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn two_cpus() -> Topology {
        Topology::from_sysfs(Path::new("/nonexistent"), &"0-1".parse().unwrap()).unwrap()
    }

    /// What a process gets that wants `lcores`, and its claims.
    fn start(rendezvous: &Rendezvous, choices: &[CpuChoice]) -> (Vec<usize>, CpuClaims) {
        let topology = two_cpus();
        let choose = |holders: &[CpuHolder]| {
            let held: Vec<usize> = holders.iter().map(|holder| holder.cpu).collect();
            let cpus = assign(choices, &topology, &held).unwrap();
            Ok::<_, Infallible>((cpus.clone(), cpus))
        };
        let Ok(got) = claim_in(Ok(rendezvous), &topology, choose);
        got
    }

    #[test]
    fn processes_get_cpus_of_their_own_while_there_are_some() {
        let (_place, rendezvous) = Place::new("own");
        let (first, of_first) = start(&rendezvous, &[CpuChoice::Auto]);
        let (second, _of_second) = start(&rendezvous, &[CpuChoice::Auto]);
        assert_eq!((first, second), (vec![0], vec![1]));
        // More than there are CPUs: evenly.
        let (third, of_third) = start(&rendezvous, &[CpuChoice::Auto; 3]);
        assert_eq!((third, of_third.len()), (vec![0, 1, 0], 3));
        drop((of_first, of_third));
        assert_eq!(start(&rendezvous, &[CpuChoice::Auto]).0, [0]);
    }

    #[test]
    fn of_two_that_come_at_once_one_chooses_again() {
        let (_place, rendezvous) = Place::new("race");
        let topology = two_cpus();
        let mut others = Vec::new();
        let mut told = Vec::new();
        let choose = |holders: &[CpuHolder]| {
            let held: Vec<usize> = holders.iter().map(|holder| holder.cpu).collect();
            let cpus = assign(&[CpuChoice::Auto], &topology, &held).unwrap();
            told.push(held);
            if others.is_empty() {
                // Between looking and claiming.
                others.push(rendezvous.claim_cpu(cpus[0]).unwrap().unwrap());
            }
            Ok::<_, Infallible>((cpus.clone(), cpus))
        };
        let Ok((cpus, claims)) = claim_in(Ok(&rendezvous), &topology, choose);
        assert_eq!((cpus, claims.len()), (vec![1], 1));
        assert_eq!(told, [vec![], vec![0]]);
    }

    #[test]
    fn one_that_names_a_cpu_gets_it_whoever_is_there() {
        let (_place, rendezvous) = Place::new("named");
        let (_, _first) = start(&rendezvous, &[CpuChoice::Core(1)]);
        let (second, claims) = start(&rendezvous, &[CpuChoice::Core(1), CpuChoice::Auto]);
        assert_eq!((second, claims.len()), (vec![1, 0], 2));
    }

    #[test]
    fn nothing_is_claimed_where_nothing_can_be() {
        let choose = |holders: &[CpuHolder]| Ok::<_, Infallible>((holders.len(), vec![0]));
        let Ok((holders, claims)) = claim_in(Err(&"no directory".into()), &two_cpus(), choose);
        assert_eq!((holders, claims.is_empty()), (0, true));
    }

    #[test]
    fn the_cost_is_named_with_cpus_and_processes() {
        let holder = |cpu, pid| CpuHolder { cpu, pid };
        let text = costs("lcore `lc0` is", &[holder(0, Some(7))], &CpuSet::default(), "");
        assert!(text.starts_with("lcore `lc0` is on CPU 0, where process 7 polls too:"), "{text}");
        assert!(text.ends_with("no CPU is free: end some process, or use fewer lcores"), "{text}");
        let both = [holder(1, Some(9)), holder(0, Some(7)), holder(0, Some(7))];
        let text = costs("x are", &both, &CpuSet::from_iter([3]), "--cpu 3");
        assert!(text.contains("x are on CPU 0-1, where processes 7, 9 polls too"), "{text}");
        assert!(text.ends_with("CPU 3 is free: --cpu 3"), "{text}");
        assert!(costs("", &[holder(0, None)], &CpuSet::default(), "").contains("another process"));
    }
}
