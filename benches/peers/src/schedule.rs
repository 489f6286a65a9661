//! Runs the pairs, round by round, so that no row has all its pairs in the same bad minute.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use pmd_lcore::hop_ns;

use crate::row::{Peer, Row, Unit, Want};
use crate::{Options, fio, libfabric, sockets, spinwire, ucx};

/// First of the ports that peers listen on.
const PORTS: u16 = 14_300;
/// Two probes that differ by more than this factor are of different machines, so to speak.
const SAME: f64 = 1.4;
/// One hop below this is the fast regime: both cores share a cache.
const FAST_NS: f64 = 120.0;

/// Which distance the cores had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Regime {
    Fast,
    Slow,
}

/// What a pair found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    pub(crate) probe_ns: f64,
    pub(crate) regime: Regime,
}

/// A row and its pairs, those dropped counted.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) row: Row,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) dropped: usize,
    /// Why there are fewer pairs than rounds, if a command failed.
    pub(crate) failure: Option<String>,
}

/// The medians of a row in one regime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Medians {
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    pub(crate) ratio: f64,
    pub(crate) above: f64,
    pub(crate) probe_ns: f64,
    pub(crate) pairs: usize,
}

impl Measured {
    /// Medians over the pairs of a regime.
    pub(crate) fn medians(&self, regime: Regime) -> Option<Medians> {
        let pairs: Vec<_> = self.pairs.iter().filter(|pair| pair.regime == regime).collect();
        let middle = |figure: fn(&Pair) -> f64| {
            let mut values: Vec<f64> = pairs.iter().map(|pair| figure(pair)).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Some(Medians {
            ours: middle(|pair| pair.ours)?,
            peer: middle(|pair| pair.peer)?,
            ratio: middle(|pair| pair.ours / pair.peer)?,
            above: middle(|pair| pair.ours - pair.peer)?,
            probe_ns: middle(|pair| pair.probe_ns)?,
            pairs: pairs.len(),
        })
    }

    /// Whether it is as good as wanted; `None` where nothing is.
    pub(crate) fn is_met(&self, medians: &Medians) -> Option<bool> {
        match (self.row.want, self.row.unit) {
            (Want::Nothing, _) => None,
            (Want::Ratio(want), Unit::Latency) => Some(medians.ratio <= want),
            (Want::Ratio(want), _) => Some(medians.ratio >= want),
            (Want::Above(want), _) => Some(medians.above <= want),
        }
    }
}

/// Measures every row `rounds` times.
pub(crate) fn run(rows: &[Row], options: &Options) -> Result<Vec<Measured>> {
    let cpus = <[usize; 2]>::try_from(&options.cpus[..]).context("--cpus takes two numbers")?;
    let mut measured: Vec<_> = rows
        .iter()
        .map(|row| Measured { row: row.clone(), pairs: Vec::new(), dropped: 0, failure: None })
        .collect();
    let count = rows.len() * options.rounds;
    let mut port = PORTS;
    for round in 0..options.rounds {
        for (nth, row) in measured.iter_mut().enumerate() {
            port = if port < PORTS + 4000 { port + 1 } else { PORTS };
            let before = hop_ns(cpus[0], cpus[1])?;
            let pair = pair(&row.row, options, port, cpus);
            let after = hop_ns(cpus[0], cpus[1])?;
            let outcome = match pair {
                Err(error) => {
                    let text = format!("{error:#}");
                    row.failure = Some(text.clone());
                    text
                }
                Ok(_) if before.max(after) > SAME * before.min(after) => {
                    row.dropped += 1;
                    format!("dropped: the probe went from {before:.0} to {after:.0} ns")
                }
                Ok((ours, peer)) => {
                    let probe_ns = before.midpoint(after);
                    let regime = if probe_ns < FAST_NS { Regime::Fast } else { Regime::Slow };
                    let peer = if matches!(row.row.peer, Peer::Probe) { probe_ns } else { peer };
                    row.pairs.push(Pair { ours, peer, probe_ns, regime });
                    let unit = row.row.unit.name();
                    format!("{ours:.4} {unit} to {peer:.4} {unit}, probe {probe_ns:.0} ns")
                }
            };
            say(&format!("{}/{count} {}: {outcome}", round * rows.len() + nth + 1, row.row.name));
        }
    }
    Ok(measured)
}

/// One of ours and one of theirs.
fn pair(row: &Row, options: &Options, port: u16, cpus: [usize; 2]) -> Result<(f64, f64)> {
    let mine = |ours| spinwire::measure(&options.spinwire, ours, row.unit, cpus);
    let peer = match &row.peer {
        Peer::Ucx { tls, test, size } => {
            ucx::measure(&options.ucx, (tls, test, *size), row.unit, port, cpus)?
        }
        Peer::Socket(kind, size) => sockets::measure(*kind, *size, cpus)?,
        Peer::Libfabric { provider, size } => libfabric::measure(provider, *size, port, cpus)?,
        Peer::Fio(kind) => fio::measure(*kind, cpus[1])?,
        Peer::Spinwire(ours) => mine(ours)?,
        Peer::Probe => f64::NAN,
        Peer::Fixed(value) => *value,
    };
    Ok((mine(&row.ours)?, peer))
}

/// Progress goes to stderr; on a terminal, each line over the last.
fn say(line: &str) {
    let mut stderr = std::io::stderr();
    let written = if stderr.is_terminal() {
        write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush())
    } else {
        writeln!(stderr, "{line}")
    };
    // Nobody reads it: the table is still to come.
    written.unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(want: Want, unit: Unit, pairs: &[(f64, f64)]) -> Measured {
        let mut row = crate::row::all().swap_remove(0);
        (row.want, row.unit) = (want, unit);
        let pair =
            |&(ours, peer): &(f64, f64)| Pair { ours, peer, probe_ns: 55.0, regime: Regime::Fast };
        let pairs = pairs.iter().map(pair).collect();
        Measured { row, pairs, dropped: 0, failure: None }
    }

    #[test]
    fn the_ratio_is_the_median_of_ratios() {
        let row = measured(Want::Ratio(2.0), Unit::Rate, &[(4.0, 1.0), (10.0, 5.0), (9.0, 3.0)]);
        let medians = row.medians(Regime::Fast).expect("pairs");
        assert_eq!((medians.ratio, medians.ours, medians.peer), (3.0, 9.0, 3.0));
        assert_eq!(row.is_met(&medians), Some(true));
        assert_eq!(row.medians(Regime::Slow), None);
    }

    #[test]
    fn less_is_better_for_a_latency() {
        let row = measured(Want::Ratio(1.9), Unit::Latency, &[(2.0, 1.0)]);
        assert_eq!(row.is_met(&row.medians(Regime::Fast).expect("a pair")), Some(false));
        let row = measured(Want::Above(25.0), Unit::Latency, &[(80.0, 55.0)]);
        assert_eq!(row.is_met(&row.medians(Regime::Fast).expect("a pair")), Some(true));
    }
}
