//! Devices against the specification.
//!
//! What must happen is written down here, from the specification and not from any device; what does happen is found out on
//! live queue pairs through the public API, so that every kind of device is judged alike. A deviation that is known of a
//! driver has an answer in [`pmd_verbs::quirks`].

mod errors;
mod events;
mod finding;
mod flush;
mod inline;
mod judge;
pub(crate) mod lens;
mod query;
pub(crate) mod report;
mod reset;
pub(crate) mod rig;
mod spec;
mod srq;
mod states;
mod subject;
mod timing;
#[cfg(test)]
mod wrong;

use clap::ValueEnum as _;

use crate::cli::Part;

use finding::{Findings, question};
use report::Report;
use rig::{Ground, Way};

/// The parts of a check, all where none is named.
pub(crate) fn parts(only: Option<Part>) -> Vec<Part> {
    only.map_or_else(|| Part::value_variants().to_vec(), |part| vec![part])
}

/// Steps that [`run`] tells of, to measure progress by.
pub(crate) fn steps(ground: &Ground<'_>, parts: &[Part]) -> u64 {
    let ways = ground.ways().len() as u64;
    parts.iter().map(|part| if *part == Part::States { states::CELLS } else { ways }).sum()
}

/// Checks a device, telling `progress` after each step.
///
/// # Errors
/// When the device lacks the objects that queue pairs are made from.
pub(crate) fn run(
    ground: &Ground<'_>,
    parts: &[Part],
    mut progress: impl FnMut(),
) -> anyhow::Result<Report> {
    let mut report = Report::new(ground.device().driver());
    for part in parts {
        let check: fn(&Ground<'_>, Way, &mut Findings) -> anyhow::Result<()> = match part {
            Part::States => {
                states::run(ground, &mut report, &mut progress)?;
                continue;
            }
            Part::Flush => flush::run,
            Part::Inline => inline::run,
            Part::Query => query::run,
            Part::Reset => reset::run,
            Part::Srq => srq::run,
            Part::Timing => timing::run,
            Part::Errors => errors::run,
            Part::Events => events::run,
        };
        for way in ground.ways() {
            let mut found = Findings::new(*part, way.name());
            if let Err(error) = check(ground, *way, &mut found) {
                let whole = question("run", "the checks of this part");
                found.same(whole, "every step is possible", format_args!("{error:#}"));
            }
            report.enter(found.into_list());
            progress();
        }
    }
    Ok(report)
}
