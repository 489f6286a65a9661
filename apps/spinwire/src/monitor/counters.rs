//! The counters of ports and queue pairs, of both ends where both are at hand.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::Duration;

use pmd_graph::app;
use pmd_graph::run_dir::ReadError;
use pmd_observe::Snapshot;
use pmd_observe::counters::definition;
use pmd_observe::report::{Align, Table};
use pmd_observe::status::Qp;
use serde_json::{Value, json};

use super::args::CountersArgs;
use super::ends::Ends;
use super::source::{Life, Run, Source};

/// The time that `--delta` counts in.
const DELTA: Duration = Duration::from_secs(1);

/// How soon it is looked again for a state that is not written yet.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Why there are no counters.
#[derive(Debug)]
pub(crate) enum Error {
    Unread(ReadError),
    Output(io::Error),
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        Self::Unread(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Prints what was counted, or what moves.
///
/// # Errors
/// When there is no run, or stdout takes nothing.
pub(crate) fn run(source: &Source, args: &CountersArgs) -> Result<(), Error> {
    let mut runs = source.read()?;
    let every = args.watch.or_else(|| args.delta.then_some(DELTA));
    let Some(every) = every else { return print(&runs, None, args) };
    loop {
        let before = runs;
        runs = later(source, &before, every)?;
        print(&runs, Some(&before), args)?;
        let is_over = runs.iter().all(|run| matches!(run.life, Life::Ended | Life::Gone));
        if args.delta || is_over {
            return Ok(());
        }
    }
}

/// The runs after a time, with states that are newer than those before, where they live to write any.
fn later(source: &Source, before: &[Run], after: Duration) -> Result<Vec<Run>, Error> {
    let is_written = |run: &Run| {
        let old = before.iter().find(|old| old.status.pid == run.status.pid);
        run.life != Life::Running
            || old.is_none_or(|old| old.status.at_unix_ms != run.status.at_unix_ms)
    };
    thread::sleep(after);
    loop {
        let runs = source.read()?;
        if runs.iter().all(is_written) {
            return Ok(runs);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

fn print(runs: &[Run], before: Option<&[Run]>, args: &CountersArgs) -> Result<(), Error> {
    let moved = before.map(|before| moved(runs, before));
    let runs = moved.as_deref().unwrap_or(runs);
    let text = if args.json {
        format!("{}\n", to_json(runs, before.is_some()))
    } else {
        to_text(runs, args.all)
    };
    app::print(&text)?;
    Ok(())
}

/// The same runs, with how far each counter moved.
fn moved(runs: &[Run], before: &[Run]) -> Vec<Run> {
    let mut moved = runs.to_vec();
    for run in &mut moved {
        let Some(old) = before.iter().find(|old| old.status.pid == run.status.pid) else {
            continue;
        };
        for device in &mut run.status.devices {
            let Some(old) = old.status.devices.iter().find(|old| old.name == device.name) else {
                continue;
            };
            device.counters = device.counters.since(&old.counters);
            device.drops = device.drops.since(&old.drops);
            device.wire = device.wire.since(&old.wire);
        }
        for qp in &mut run.status.qps {
            let is_same = |old: &&Qp| (old.qpn, &old.device) == (qp.qpn, &qp.device);
            if let Some(old) = old.status.qps.iter().find(is_same) {
                qp.counters = qp.counters.since(&old.counters).nonzero();
                qp.sends = qp.sends.saturating_sub(old.sends);
            }
        }
    }
    moved
}

fn to_json(runs: &[Run], is_delta: bool) -> Value {
    let ends = Ends::of(runs);
    let qp = |qp: &Qp| {
        json!({
            "device": qp.device,
            "qpn": qp.qpn,
            "node": qp.node,
            "remote_qpn": qp.remote_qpn,
            "peer": qp.peer,
            "state": qp.state,
            "ended": qp.ended,
            "sends": qp.sends,
            "local": qp.counters,
            "remote": ends.other(qp),
        })
    };
    let run = |run: &Run| {
        json!({
            "run_dir": run.dir.display().to_string(),
            "pid": run.status.pid,
            "process": run.life.as_str(),
            "elapsed_s": run.status.elapsed_s,
            "ports": run.status.devices,
            "qps": run.status.qps.iter().map(qp).collect::<Vec<_>>(),
            "peers": run.peers.iter().map(|peer| json!({
                "name": peer.name,
                "counters": peer.counters,
            })).collect::<Vec<_>>(),
        })
    };
    json!({ "delta": is_delta, "runs": runs.iter().map(run).collect::<Vec<_>>() })
}

fn to_text(runs: &[Run], all: bool) -> String {
    let mut text = String::new();
    for run in runs {
        let (pid, life) = (run.status.pid, run.life.as_str());
        for device in &run.status.devices {
            let title = format!("process {pid} ({life}), {} port {}", device.name, device.port);
            let kept = |counters: &Snapshot| {
                if all { counters.clone() } else { counters.nonzero() }
            };
            let drops = device.drops.iter().map(|(name, value)| (format!("drop {name}"), value));
            let wire = device.wire.iter().map(|(name, value)| (format!("wire {name}"), value));
            let mut counters = kept(&device.counters);
            counters.extend(drops.chain(wire).filter(|(_, value)| all || *value > 0));
            text += &format!("{title}\n{}\n", counters.table());
        }
        for peer in &run.peers {
            let counters = if all { peer.counters.clone() } else { peer.counters.nonzero() };
            text += &format!("{}\n{}\n", peer.name, counters.table());
        }
    }
    text + &queue_pairs(runs)
}

/// A row for each counter of each queue pair, with what the other end says.
fn queue_pairs(runs: &[Run]) -> String {
    let ends = Ends::of(runs);
    let mut table = Table::new(&[
        ("qpn", Align::Left),
        ("node", Align::Left),
        ("state", Align::Left),
        ("remote", Align::Left),
        ("counter", Align::Left),
        ("local", Align::Right),
        ("remote", Align::Right),
        ("meaning", Align::Left),
    ]);
    let mut quiet = 0;
    for qp in runs.iter().flat_map(|run| &run.status.qps) {
        let other = ends.other(qp);
        let here = qp.counters.iter().map(|(name, _)| name);
        let there = other.into_iter().flat_map(Snapshot::iter).map(|(name, _)| name);
        let names: BTreeSet<&str> = here.chain(there).collect();
        quiet += usize::from(names.is_empty());
        for name in names {
            let remote = qp.remote_qpn.map_or_else(|| "-".to_owned(), |qpn| format!("{qpn:#08x}"));
            let told = |other: &Snapshot| other.get(name).unwrap_or(0).to_string();
            table.row([
                format!("{:#08x}", qp.qpn),
                qp.node.clone(),
                if qp.ended {
                    format!("({})", qp.state.as_str())
                } else {
                    qp.state.as_str().to_owned()
                },
                remote,
                name.to_owned(),
                qp.counters.get(name).unwrap_or(0).to_string(),
                other.map_or_else(|| "unknown".to_owned(), told),
                definition(name).map_or("", |counter| counter.meaning).to_owned(),
            ]);
        }
    }
    let mut text = if table.is_empty() { String::new() } else { table.to_string() };
    if quiet > 0 {
        text += &format!(
            "{quiet} queue pairs whose counters, and those of their peers, are all zero\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use pmd_observe::status::{Device, State};

    use super::super::told::Peer;
    use super::super::view::tests::{qp, run};
    use super::*;

    fn counters(pairs: &[(&'static str, u64)]) -> Snapshot {
        pairs.iter().copied().collect()
    }

    fn pair() -> Vec<Run> {
        let of = |qpn, remote, pairs: &[(&'static str, u64)]| Qp {
            remote_qpn: Some(remote),
            counters: counters(pairs),
            ..qp(qpn, State::Rts, 1.0)
        };
        let mut near = run(vec![of(1, 2, &[("rnr_nak_retry_err", 7)]), of(5, 6, &[])]);
        near.status.devices = vec![Device {
            name: "soft0".into(),
            port: 1,
            counters: counters(&[("rnr_nak_retry_err", 7), ("packet_seq_err", 0)]),
            drops: counters(&[("icrc", 2)]),
            wire: counters(&[("tx_frames", 9), ("tx_full", 0)]),
        }];
        let mut far = run(vec![of(2, 1, &[("out_of_buffer", 7)])]);
        far.status.pid = 4712;
        vec![near, far]
    }

    /// S2-25, S0-20: what this end and the other counted, side by side, tells which of them to look at.
    #[test]
    fn s2_25_local_beside_remote() {
        let text = to_text(&pair(), false);
        let has = |line: &str| {
            let found =
                text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            assert!(found.clone().any(|other| other.starts_with(line)), "{line}\n{text}");
        };
        has("process 4711 (running), soft0 port 1");
        has("rnr_nak_retry_err 7 an RNR NAK arrived");
        has("drop icrc 2");
        has("wire tx_frames 9");
        has("0x000001 client RTS 0x000002 rnr_nak_retry_err 7 0 ");
        has("0x000001 client RTS 0x000002 out_of_buffer 0 7 ");
        has("0x000002 client RTS 0x000001 out_of_buffer 7 0 ");
        has("1 queue pairs whose counters");
        assert!(!text.contains("packet_seq_err") && !text.contains("tx_full"), "{text}");
        assert!(to_text(&pair(), true).contains("packet_seq_err"));
        // Without the other run directory, the remote half is unknown, not zero.
        let alone = to_text(&pair()[..1], false);
        assert!(alone.contains("unknown"), "{alone}");
        let json = to_json(&pair(), false);
        assert_eq!(json["runs"][0]["qps"][0]["remote"]["out_of_buffer"], 7);
        assert_eq!(json["runs"][0]["qps"][1]["remote"], Value::Null);
    }

    #[test]
    fn what_peers_have_told_is_shown() {
        let mut runs = vec![pair().swap_remove(0)];
        runs[0].peers = vec![Peer {
            name: "peers of node `client`".into(),
            counters: counters(&[("rx_packets", 12), ("rx_bytes", 0)]),
            qp: Some((2, counters(&[("out_of_buffer", 7)]))),
        }];
        let text = to_text(&runs, false);
        assert!(text.contains("peers of node `client`\n") && text.contains("rx_packets"), "{text}");
        assert!(!text.contains("rx_bytes") && !text.contains("unknown"), "{text}");
        let json = to_json(&runs, false);
        assert_eq!(json["runs"][0]["peers"][0]["counters"]["rx_packets"], 12);
        assert_eq!(json["runs"][0]["qps"][0]["remote"]["out_of_buffer"], 7);
    }

    #[test]
    fn what_moved_is_the_difference() {
        let before = pair();
        let mut now = pair();
        now[0].status.devices[0].counters = counters(&[("rnr_nak_retry_err", 10)]);
        now[0].status.qps[0].counters = counters(&[("rnr_nak_retry_err", 10)]);
        let moved = moved(&now, &before);
        assert_eq!(moved[0].status.devices[0].counters.get("rnr_nak_retry_err"), Some(3));
        assert_eq!(moved[0].status.qps[0].counters.get("rnr_nak_retry_err"), Some(3));
        assert!(moved[1].status.qps[0].counters.is_empty());
        assert_eq!(to_json(&moved, true)["delta"], true);
    }
}
