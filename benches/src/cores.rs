//! Which cores are measured on.

use std::env;

use anyhow::{Context as _, Result, ensure};
use core_affinity::CoreId;
use pmd_lcore::CpuSet;

/// Names two cores, as in `SPINWIRE_CORES=2,3`.
const CHOICE: &str = "SPINWIRE_CORES";

/// The two cores to measure on: those that `SPINWIRE_CORES` names, else the first two of the
/// affinity mask. Where there is only one, it is both. To be asked before a pin narrows the mask.
///
/// # Errors
/// When the variable is not two numbers, or there is no affinity mask.
pub fn cores() -> Result<[usize; 2]> {
    if let Some(choice) = env::var_os(CHOICE) {
        let choice = choice.to_string_lossy();
        let parsed = choice
            .split_once(',')
            .and_then(|(a, b)| Some([a.trim().parse().ok()?, b.trim().parse().ok()?]));
        return parsed.with_context(|| format!("{CHOICE}={choice}: name two cores, as in 0,1"));
    }
    let mask = CpuSet::allowed().context("the affinity mask cannot be read")?;
    let first = mask.first().context("the affinity mask is empty")?;
    Ok([first, mask.iter().nth(1).unwrap_or(first)])
}

/// Keeps the calling thread on a core, also where the thread that started it was kept on another.
///
/// # Errors
/// When the core is not there, or the kernel refuses.
pub fn pin(core: usize) -> Result<()> {
    ensure!(
        core_affinity::set_for_current(CoreId { id: core }),
        "core {core} cannot be used: {CHOICE} names others"
    );
    Ok(())
}
