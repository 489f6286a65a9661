//! The laboratory: scenarios of faults, in a deterministic world, with what must come of them.
//!
//! A [`Scenario`] is a TOML file that was checked. [`run`](fn@run) builds its world from [`pmd_sim`], lets it run in virtual
//! time, and [reports](Report) which expectations were met and what each connection's diagnosis is. One seed drives
//! everything: the same seed gives the same trace, hash for hash.
#![forbid(unsafe_code)]

mod build;
mod connection;
mod deeds;
mod evidence;
mod judge;
pub mod limits;
mod message;
mod recover;
mod report;
mod run;
pub mod scenario;
pub mod tape;
mod timeline;

use pmd_observe::Verdict;
use pmd_observe::why::diagnose;

pub use judge::Expectation;
pub use report::{Diagnosis, Event, Report, Summary};
pub use run::SetupError;
pub use scenario::Scenario;

/// Runs a scenario from a seed.
///
/// # Errors
/// When a device refuses what the scenario asks for.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Report, SetupError> {
    run_recorded(scenario, seed, false).map(|(report, _)| report)
}

/// Runs a scenario from a seed, and keeps every input of its engines if `records`.
///
/// # Errors
/// When a device refuses what the scenario asks for.
pub fn run_recorded(
    scenario: &Scenario,
    seed: u64,
    records: bool,
) -> Result<(Report, tape::Tape), SetupError> {
    let mut lab = run::Lab::new(scenario, seed, records)?;
    lab.run();
    lab.compare();
    let verdicts: Vec<Verdict> =
        (0..lab.conns.len()).map(|index| diagnose(&lab.evidence(index))).collect();
    let expectations = lab.judge(&verdicts);
    let names = lab.conns.iter().map(|conn| conn.name.clone());
    let report = Report {
        ok: expectations.iter().all(|expectation| expectation.met),
        seed,
        trace_hash: format!("{:016x}", lab.world.trace_hash()),
        elapsed_virtual_s: lab.world.now().since(build::START).as_secs_f64(),
        expectations,
        verdicts: names.zip(verdicts).map(|(qp, verdict)| Diagnosis { qp, verdict }).collect(),
        qps: lab
            .conns
            .iter()
            .enumerate()
            .map(|(index, conn)| Summary {
                name: conn.name.clone(),
                statuses: conn.statuses(),
                receives: conn.receives(),
                events: lab.events_of(index),
                states: lab.states(conn),
                recoveries_s: conn
                    .recoveries
                    .iter()
                    .map(core::time::Duration::as_secs_f64)
                    .collect(),
            })
            .collect(),
        events: lab
            .events
            .iter()
            .map(|heard| Event {
                at_s: heard.at.since(build::START).as_secs_f64(),
                host: lab.world.name(heard.host).to_owned(),
                event: heard.event.to_string(),
            })
            .collect(),
    };
    let inputs = lab.world.take_inputs();
    let tape = tape::Tape::new(scenario, seed, &report.trace_hash, &inputs);
    Ok((report, tape))
}
