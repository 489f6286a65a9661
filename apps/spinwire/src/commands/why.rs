//! `spinwire why`: the diagnosis of a run, from what one end or both have left.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use pmd_graph::app::{Exit, print, say};
use pmd_graph::run_dir::{self, JournalFile, Life, Mark, Opened, REPORT, ReadError, STATUS};
use pmd_observe::journal::{Line, Record};
use pmd_observe::report::Nanos;
use pmd_observe::status::{Lcore, Node, Status};
use pmd_observe::why::{Evidence, Half, Peer, Symptom, diagnose, evidence_of_state};
use pmd_observe::{Code, Owner, Verdict};
use serde_json::{Value, json};

use super::recorded;
use crate::cli::WhyArgs;

/// Judges the runs, and prints the verdict.
///
/// # Errors
/// When stdout does not take it.
pub(crate) fn run(args: &WhyArgs) -> Result<Exit> {
    let sides = match sides(args) {
        Ok(sides) => sides,
        Err(exit) => return Ok(exit),
    };
    let verdict = judge(&sides);
    if args.json {
        let runs: Vec<Value> = sides.iter().map(Side::to_json).collect();
        print(&format!("{}\n", json!({ "verdict": verdict, "runs": runs })))?;
    } else {
        let runs: String = sides.iter().map(|side| format!("run: {}\n", side.in_words())).collect();
        print(&format!("{verdict}\n{runs}"))?;
    }
    Ok(Exit::Done)
}

/// Lcores tell once a second.
const SILENT_S: f64 = 1.5;

/// What one process has left.
struct Side {
    opened: Opened,
    /// What its report says.
    verdict: Option<Verdict>,
    half: Half,
    /// Its last state, while it lives.
    status: Option<Status>,
}

/// Every process of every run that was named.
fn sides(args: &WhyArgs) -> Result<Vec<Side>, Exit> {
    let mut sides = Vec::new();
    let named = match args.run_dirs.as_slice() {
        [] => vec![recorded::place(None)?],
        named => named.to_vec(),
    };
    for path in named {
        let opened = recorded::open(&path)?;
        let parts: Result<Vec<Opened>, Exit> =
            opened.parts.iter().map(|part| recorded::open(part)).collect();
        let parts = parts?;
        // The run of several configs is its processes.
        let is_frame = opened.report.as_ref().is_some_and(|report| report.get("runs").is_some())
            || opened.mark.as_ref().is_some_and(|mark| mark.configs.len() > 1);
        let own = (!is_frame || parts.is_empty()).then_some(opened);
        for opened in own.into_iter().chain(parts) {
            sides.push(Side::read(opened).map_err(|error| recorded::complain(&error))?);
        }
    }
    Ok(sides)
}

impl Side {
    fn read(opened: Opened) -> Result<Self, ReadError> {
        let part = |key: &str| opened.report.as_ref().and_then(|report| report.get(key)).cloned();
        let damaged = |error: serde_json::Error| ReadError::Damaged {
            path: opened.path.join(REPORT),
            reason: error.to_string(),
        };
        let verdict = part("verdict").map(serde_json::from_value::<Verdict>);
        let verdict = verdict.transpose().map_err(damaged)?;
        let evidence = part("evidence").map(serde_json::from_value::<Option<Evidence>>);
        let evidence = evidence.transpose().map_err(damaged)?.flatten();
        let mut records: Vec<Record> = Vec::new();
        let mut journal = JournalFile::open(&opened.path)?;
        journal.read(|line| {
            if let Line::Record(record) = line {
                records.push(*record);
            }
        })?;
        let damaged = journal.damaged(opened.life != Life::Live);
        if damaged > 0 {
            let path = opened.path.display();
            say(format_args!("{damaged} lines of the journal in {path} are damaged, and left out"));
        }
        records.sort_by_key(|record| record.at_us);
        let killed = opened.life == Life::Killed;
        let status = if opened.life == Life::Live { state(&opened)? } else { None };
        if let Some(status) = &status {
            records.retain(|record| !was_replaced(status, record));
        }
        let mut half = Half { evidence, records, killed };
        // What the journal tells is what happened; a queue pair that stands still has no record of it.
        if let Some(status) = &status
            && half.own().symptom == Symptom::None
        {
            half.evidence = Some(evidence_of_state(status));
        }
        // Only a peer whose process is gone is dialled again: what became of requests meanwhile is no news.
        if status.as_ref().is_some_and(|status| status.nodes.iter().any(Node::dials_again)) {
            let symptom = match half.own().symptom {
                Symptom::None => Symptom::Event,
                symptom => symptom,
            };
            half.evidence = Some(Evidence { symptom, peer: Peer::Dead, ..half.own() });
        }
        Ok(Self { verdict, half, status, opened })
    }

    fn is_ok(&self) -> Option<bool> {
        self.opened.report.as_ref()?.get("ok").and_then(Value::as_bool).or_else(|| {
            // A measurement has none: it says so by its verdict.
            self.verdict.as_ref().map(Verdict::is_ok)
        })
    }

    fn process(&self) -> String {
        match &self.opened.mark {
            Some(mark) => format!("process {}", mark.process.pid),
            None => "the process".to_owned(),
        }
    }

    fn in_words(&self) -> String {
        let end = match (self.opened.life, self.is_ok()) {
            (Life::Live, _) => "lives",
            (Life::Killed, _) => "ended without a report",
            (Life::Finished, Some(true)) => "done",
            (Life::Finished, _) => "failed",
        };
        format!("{} ({}: {end})", self.opened.path.display(), self.process())
    }

    fn to_json(&self) -> Value {
        json!({
            "run_dir": self.opened.path.display().to_string(),
            "life": self.opened.life.as_str(),
            "ok": self.is_ok(),
            "verdict": self.verdict,
        })
    }

    /// What the state of a run that lives says, in words.
    fn states(&self) -> Vec<String> {
        let Some(status) = &self.status else { return Vec::new() };
        let mut words: Vec<String> = Vec::new();
        for node in &status.nodes {
            let Node { name, messages, errors, edge, .. } = node;
            let does = edge.as_ref().map_or_else(
                || format!("has done {messages} messages, with {errors} errors"),
                |edge| format!("has no queue pair: it {edge}"),
            );
            words.push(format!("node `{name}` {does}"));
        }
        for lcore in status.lcores.iter().filter(|lcore| lcore.silent_s > SILENT_S) {
            let Lcore { name, silent_s, .. } = lcore;
            words.push(format!("lcore `{name}` has told nothing for {silent_s:.1} s"));
        }
        words
    }

    /// The verdict on this end, with what the other one knows.
    fn judge(&self, other: Option<&Self>) -> Verdict {
        let evidence = match other {
            Some(other) => self.half.with(&other.half),
            None => self.half.own(),
        };
        match (self.opened.life, &self.verdict) {
            (Life::Finished, Some(said)) if said.is_ok() => said.clone(),
            (Life::Finished, Some(said)) => self.anew(said, &evidence),
            (Life::Finished, None) => diagnose(&evidence),
            (Life::Live, _) if evidence.symptom == Symptom::None => {
                let age = self.opened.mark.as_ref().map_or(Duration::ZERO, age);
                let age = Nanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
                let process = self.process();
                let sources =
                    if self.status.is_some() { "journal and state tell" } else { "journal tells" };
                let verdict = Verdict::ok(format!(
                    "{process} lives, for {age} so far; its {sources} of no trouble"
                ));
                self.states().into_iter().fold(verdict, Verdict::because)
            }
            (Life::Live, _) => {
                let verdict = diagnose(&evidence).because(format!("{} lives", self.process()));
                let waits = self.status.iter().flat_map(|status| &status.nodes);
                let waits = waits.filter_map(|node| Some((&node.name, node.edge.as_ref()?)));
                waits.fold(verdict, |verdict, (name, edge)| {
                    verdict.because(format!("node `{name}` has no queue pair: it {edge}"))
                })
            }
            (Life::Killed, _) => self.killed(&evidence),
        }
    }

    /// What the evidence says now. Where a report has none, its words are the best there is, unless the journal knows which
    /// step was refused.
    fn anew(&self, said: &Verdict, evidence: &Evidence) -> Verdict {
        let refused = matches!(evidence.symptom, Symptom::Transition(_));
        if self.half.evidence.is_none() && !(refused && said.code == Code::Unknown) {
            let lines =
                evidence.local.journal.iter().map(|line| format!("journal of this end: {line}"));
            let new = lines.filter(|line| !said.evidence.contains(line)).collect::<Vec<_>>();
            return new.into_iter().fold(said.clone(), Verdict::because);
        }
        let verdict = diagnose(evidence);
        match verdict.code {
            Code::Ok | Code::Unknown if said.code != Code::Unknown => said.clone(),
            code if code != said.code => {
                verdict.because(format!("the run itself said: {}: {}", said.code, said.summary))
            }
            _ => verdict,
        }
    }

    /// Nobody was left to say anything.
    fn killed(&self, evidence: &Evidence) -> Verdict {
        let summary = format!(
            "{} ended without a report: it was killed, or the machine stopped",
            self.process()
        );
        // To everybody else, it is the peer that is gone.
        let mut verdict = Verdict::new(Code::PeerDead, Owner::Local, summary);
        if let Some(last) = self.half.records.last() {
            verdict = verdict.because(format!("the last record of its journal: {last}"));
        }
        for line in &evidence.local.journal {
            verdict = verdict.because(format!("journal of this end: {line}"));
        }
        verdict
    }
}

/// Whether the record is of a queue pair that has ended, while its node goes on with another one.
fn was_replaced(status: &Status, record: &Record) -> bool {
    let goes_on = |name: &str| {
        status.nodes.iter().any(|node| node.name == name && node.edge.is_none())
            && status.qps.iter().any(|qp| qp.node == name && !qp.ended)
    };
    let mut own = status.qps.iter();
    own.any(|qp| {
        qp.device == record.device && qp.qpn == record.qpn && qp.ended && goes_on(&qp.node)
    })
}

/// The last state that a run has written.
fn state(opened: &Opened) -> Result<Option<Status>, ReadError> {
    let path = opened.path.join(STATUS);
    let Some(value) = run_dir::json(&path)? else { return Ok(None) };
    let status = serde_json::from_value(value);
    status.map(Some).map_err(|error| ReadError::Damaged { path, reason: error.to_string() })
}

/// Of the verdicts on all ends, the one that says most: an end that was left alone knows only that it was.
fn judge(sides: &[Side]) -> Verdict {
    let verdicts = sides.iter().enumerate().map(|(at, side)| {
        let others = sides.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<&Side> = others.map(|(_, other)| other).collect();
        let joined = |other: &&&Side| side.half.with(&other.half).remote.is_some();
        let other = others.iter().find(joined).or_else(|| others.first());
        side.judge(other.copied())
    });
    let weight = |verdict: &Verdict| match verdict.code {
        Code::PeerDead if verdict.owner == Owner::Remote => 1,
        // It was killed itself: who was left alone may know more.
        Code::PeerDead => 2,
        Code::Unknown => 3,
        Code::Ok => 4,
        _ => 0,
    };
    // Of equals the first.
    let best = verdicts.min_by_key(weight);
    best.unwrap_or_else(|| Verdict::ok("there is no run to judge"))
}

fn age(mark: &Mark) -> Duration {
    let began = SystemTime::UNIX_EPOCH + Duration::from_micros(mark.at_us);
    SystemTime::now().duration_since(began).unwrap_or_default()
}
