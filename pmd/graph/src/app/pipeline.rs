//! From the arguments of a command to a checked config and its plan, with every complaint on stderr.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use pmd_lcore::topology::TopologyError;

use super::harmless::harmless;
use super::preflight::{self, Keys};
use super::stderr::say_as_it_is;
use super::{Exit, say};
use crate::config::Config;
use crate::cores::{self, CpuClaims};
use crate::diagnostic::Report;
use crate::plan::Plan;
use crate::plan::machine::Machine;
use crate::registry::Registry;

/// A pipeline that passed every check.
#[derive(Debug)]
pub struct Pipeline {
    /// The config against this machine.
    pub plan: Plan,
    /// This machine.
    pub machine: Machine,
}

/// Reads the config at `path` and plans it for this machine; the keys that it names are looked at as `keys` says. `None` if
/// it was refused: the reasons are on stderr, and the command ends as [`Exit::Usage`].
///
/// # Errors
/// When the kernel does not tell which CPUs there are.
pub fn open(
    registry: &Registry,
    path: &Path,
    sets: &[String],
    keys: Keys,
) -> Result<Option<Pipeline>, TopologyError> {
    let Some(config) = read(registry, Some(path), None, sets) else { return Ok(None) };
    let looked_at = preflight::keys(&config, keys);
    complain(&looked_at);
    if looked_at.errors() > 0 {
        return Ok(None);
    }
    let machine = Machine::detect()?;
    match Plan::resolve(&config, &machine) {
        Ok(plan) => Ok(Some(Pipeline { plan, machine })),
        Err(report) => {
            complain(&report);
            Ok(None)
        }
    }
}

/// The same for a run, of the config at `path` or of `default`, its name and text. It claims the CPUs that it is planned for.
///
/// # Errors
/// As [`open`].
pub(super) fn claim(
    registry: &Registry,
    path: Option<&Path>,
    default: Option<(&str, &str)>,
    sets: &[String],
) -> Result<Option<(Pipeline, CpuClaims)>, TopologyError> {
    let Some(config) = read(registry, path, default, sets) else { return Ok(None) };
    let machine = Machine::detect()?;
    let claimed = cores::claim(&machine.topology, |held| {
        let machine = Machine { held: held.to_vec(), ..machine.clone() };
        let plan = Plan::resolve(&config, &machine)?;
        let cpus = plan.lcores.iter().map(|lcore| lcore.cpu).collect();
        Ok((Pipeline { plan, machine }, cpus))
    });
    claimed.map(Some).or_else(|report: Report| {
        complain(&report);
        Ok(None)
    })
}

/// A checked config, or complaints on stderr.
fn read(
    registry: &Registry,
    path: Option<&Path>,
    default: Option<(&str, &str)>,
    sets: &[String],
) -> Option<Config> {
    let environment =
        |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let config = match (path, default) {
        (Some(path), _) => Config::read(path, sets, &environment, registry),
        (None, Some((name, text))) => {
            Config::parse(name, text.as_bytes(), sets, &environment, registry)
        }
        (None, None) => return None,
    };
    complain(config.as_ref().map_or_else(|report| report, |config| &config.report));
    config.ok()
}

/// Shows a report on stderr.
fn complain(report: &Report) {
    tell(report, "config");
}

/// Shows the report of a file on stderr, which messages call a `what`.
pub fn tell(report: &Report, what: &str) {
    if report.diagnostics.is_empty() {
        return;
    }
    if colour() {
        // The colours are escapes, and all others were replaced but those of one character.
        let one = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
        say_as_it_is(report.render(true).replace(one, "\u{fffd}") + "\n");
    } else {
        say(format_args!("{}\n", report.render(false)));
    }
    match report.errors() {
        0 => {}
        1 => say(format_args!("error: the {what} is refused")),
        errors => say(format_args!("error: the {what} is refused for {errors} reasons")),
    }
}

/// Whether stderr shows colours: a terminal whose user did not ask for none (<https://no-color.org>).
pub fn colour() -> bool {
    io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes a result to stdout, harmless to a terminal.
///
/// # Errors
/// When stdout does not take it.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(harmless(text).as_bytes())?;
    out.flush()
}

/// How a command ends whose result stdout did not take.
pub(super) fn unwritten(error: &io::Error) -> Exit {
    say(format_args!("error: cannot write the result: {error}"));
    Exit::Failed
}
