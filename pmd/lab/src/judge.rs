//! What was expected, and what was seen.

use core::fmt::Write as _;
use core::time::Duration;
use std::collections::BTreeMap;

use pmd_observe::{Code, Verdict};
use pmd_roce::ids::Instant;
use pmd_roce::qp::state::QpState;
use serde::Serialize;

use crate::build;
use crate::connection::{Conn, FAR, NEAR};
use crate::run::{Lab, concerns};
use crate::scenario::{Expect, Op, Tally};

/// One sentence of what must be, and whether it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expectation {
    /// What must be.
    pub text: String,
    /// Whether it was.
    pub met: bool,
    /// What was seen.
    pub seen: String,
}

impl Expectation {
    fn new(text: impl Into<String>, met: bool, seen: impl Into<String>) -> Self {
        Self { text: text.into(), met, seen: seen.into() }
    }
}

type Counts = BTreeMap<String, u64>;

impl Lab<'_> {
    /// Compares all bytes; what differs is a violation.
    pub(crate) fn compare(&mut self) {
        for conn in &mut self.conns {
            let [near, far] = &conn.ends;
            let mut found = Vec::new();
            for (index, request) in conn.requests.iter().enumerate() {
                let is_done = request.fate.is_some_and(|fate| fate.is_success());
                if !is_done || !request.is_alone {
                    continue;
                }
                let ours = build::bytes(&self.world, near, request.near, request.size);
                let theirs = build::bytes(&self.world, far, request.far, request.size);
                let number =
                    |bytes: &[u8]| bytes.first_chunk().map(|eight| u64::from_ne_bytes(*eight));
                let right = match request.op {
                    Op::Send | Op::SendImm => true,
                    Op::Write | Op::WriteImm | Op::Read => ours == theirs,
                    Op::FetchAdd => (number(&ours), number(&theirs)) == (Some(0), Some(1)),
                    Op::CompareSwap => {
                        (number(&ours), number(&theirs)) == (Some(0), Some(index as u64 + 1))
                    }
                };
                if !right {
                    found.push(format!("the bytes of request {index} differ at the two ends"));
                }
            }
            conn.violations.append(&mut found);
        }
    }

    /// Judges every expectation, the unwritten one that bytes arrive as they were sent included.
    pub(crate) fn judge(&self, verdicts: &[Verdict]) -> Vec<Expectation> {
        let mut all: Vec<Expectation> = Vec::new();
        for expect in &self.scenario.expects {
            self.of_one(expect, &verdicts[expect.qp], &mut all);
        }
        let wrong: Vec<String> = self
            .conns
            .iter()
            .flat_map(|conn| conn.violations.iter().map(|what| format!("`{}`: {what}", conn.name)))
            .collect();
        all.push(Expectation::new(
            "what arrives is what was sent, and nothing arrives twice",
            wrong.is_empty(),
            if wrong.is_empty() { "all bytes compared".to_owned() } else { wrong.join("; ") },
        ));
        all
    }

    fn of_one(&self, expect: &Expect, verdict: &Verdict, all: &mut Vec<Expectation>) {
        let conn = &self.conns[expect.qp];
        let name = &conn.name;
        if let Some(wanted) = &expect.statuses {
            all.push(tallied(&format!("`{name}`: requests end with"), wanted, &conn.statuses()));
        }
        if let Some(wanted) = &expect.receives {
            all.push(tallied(&format!("`{name}`: receives end with"), wanted, &conn.receives()));
        }
        if let Some(wanted) = &expect.events {
            let seen = self.events_of(expect.qp);
            let met =
                wanted.iter().all(|(event, count)| seen.get(event).copied().unwrap_or(0) == *count);
            let text =
                format!("`{name}`: events are {}", show(wanted.iter().map(|(k, v)| (k, *v))));
            all.push(Expectation::new(text, met, show(seen.iter().map(|(k, v)| (k, *v)))));
        }
        if expect.within.is_some() || expect.at_least.is_some() {
            all.push(timed(conn, expect));
        }
        if let Some(code) = expect.verdict {
            let text = format!("`{name}`: the verdict is {code}");
            all.push(Expectation::new(
                text,
                verdict.code == code,
                verdict.to_string().replace('\n', ";"),
            ));
        }
        if expect.recovers.is_some() || expect.recovers_within.is_some() {
            all.push(self.recovered(conn, expect));
        }
        if let Some(within) = expect.rate_within {
            all.push(self.as_fast(conn, within));
        }
        if expect.siblings {
            all.push(self.unaffected());
        }
        for (which, list) in [(NEAR, &expect.counters), (FAR, &expect.to_counters)] {
            for (counter, least) in list {
                let moved = self.moved(conn, which, counter);
                let host = self.world.name(conn.ends[which].host);
                let text = format!("`{name}`: {counter} of {host} is at least {least}");
                all.push(Expectation::new(text, moved >= *least, format!("{counter}={moved}")));
            }
        }
        for counter in &expect.still {
            let moved = self.moved(conn, NEAR, counter);
            let text = format!("`{name}`: {counter} does not move");
            all.push(Expectation::new(text, moved == 0, format!("{counter}={moved}")));
        }
    }

    fn moved(&self, conn: &Conn, which: usize, counter: &str) -> u64 {
        self.counters(&conn.ends[which]).get(counter).unwrap_or(0)
    }

    /// Asynchronous events that concern a connection, by name.
    pub(crate) fn events_of(&self, index: usize) -> Counts {
        let mut counts = Counts::new();
        for heard in &self.events {
            let concerned = self.conns[index]
                .ends
                .iter()
                .any(|end| end.host == heard.host && concerns(heard.event.scope(), end));
            if concerned {
                *counts.entry(heard.event.name().to_owned()).or_default() += 1;
            }
        }
        counts
    }

    fn state(&self, conn: &Conn, which: usize) -> Option<QpState> {
        let end = &conn.ends[which];
        self.world.state(end.host, end.side.qpn)
    }

    /// The states of both ends, as words.
    pub(crate) fn states(&self, conn: &Conn) -> [String; 2] {
        [NEAR, FAR].map(|which| {
            self.state(conn, which).map_or_else(|| "gone".to_owned(), |state| state.to_string())
        })
    }

    fn recovered(&self, conn: &Conn, expect: &Expect) -> Expectation {
        let wanted = expect.recovers.unwrap_or(true);
        let is_up = [NEAR, FAR].iter().all(|end| self.state(conn, *end) == Some(QpState::Rts));
        let repeated = conn
            .requests
            .iter()
            .filter(|request| request.op.is_repeatable() && !request.bad_rkey && !request.bad_lkey);
        let left = repeated.filter(|request| !request.fate.is_some_and(|fate| fate.is_success()));
        let left = left.count();
        let longest = conn.recoveries.iter().max().copied().unwrap_or_default();
        let soon = expect.recovers_within.is_none_or(|within| longest <= within);
        let back =
            !conn.recoveries.is_empty() && is_up && left == 0 && conn.violations.is_empty() && soon;
        let mut text =
            format!("`{}`: it {}", conn.name, if wanted { "recovers" } else { "stays down" });
        if let Some(within) = expect.recovers_within {
            push(&mut text, format_args!(" within {}", millis(within)));
        }
        let [near, far] = self.states(conn);
        let seen = format!(
            "{} recoveries, the longest took {}, states {near} and {far}, {left} repeatable requests not done",
            conn.recoveries.len(),
            millis(longest)
        );
        Expectation::new(text, back == wanted, seen)
    }

    /// Requests succeed at nine tenths of the rate before the first fault, or more, from so long after the last one on.
    fn as_fast(&self, conn: &Conn, within: Duration) -> Expectation {
        let begins = self.scenario.faults.iter().map(|fault| fault.at).min().unwrap_or_default();
        let ends = self.scenario.faults.iter().map(|fault| fault.until.unwrap_or(fault.at)).max();
        let from = build::START.after(ends.unwrap_or_default() + within);
        let good = || conn.endings.iter().filter(|ending| ending.fate.is_success());
        let rate = |from: Instant, to: Instant| {
            let count = good().filter(|ending| (from..=to).contains(&ending.at)).count();
            let span = to.since(from).as_secs_f64();
            if span > 0.0 { count as f64 / span } else { 0.0 }
        };
        let before = rate(conn.first_post.unwrap_or_default(), build::START.after(begins));
        let after = rate(from, good().next_back().map_or(from, |ending| ending.at));
        let text = format!(
            "`{}`: {} after the last fault it is as fast as before the first",
            conn.name,
            millis(within)
        );
        let seen = format!("{before:.0} requests per second before, {after:.0} after");
        Expectation::new(text, before > 0.0 && after >= 0.9 * before, seen)
    }

    /// Nothing happened to connections of which nothing bad is expected.
    fn unaffected(&self) -> Expectation {
        let is_troubled = |index: usize| {
            self.scenario.expects.iter().any(|expect| expect.qp == index && is_bad(expect))
        };
        let mut hurt = Vec::new();
        let mut count = 0;
        for (index, conn) in self.conns.iter().enumerate().filter(|(index, _)| !is_troubled(*index))
        {
            count += 1;
            let open = conn
                .requests
                .iter()
                .filter(|request| !request.fate.is_some_and(|fate| fate.is_success()));
            let states = self.states(conn);
            let fatal = self.events.iter().any(|heard| {
                let of = |end: &crate::connection::End| {
                    end.host == heard.host && concerns(heard.event.scope(), end)
                };
                heard.event.is_fatal() && conn.ends.iter().any(of)
            });
            let open = open.count();
            if open > 0 || fatal || states.iter().any(|state| state != "RTS") {
                let events = self.events_of(index);
                let events = show(events.iter().map(|(k, v)| (k, *v)));
                hurt.push(format!(
                    "`{}`: {open} requests failed, states {states:?}, events {events}",
                    conn.name
                ));
            }
        }
        let seen = if hurt.is_empty() { format!("{count} checked") } else { hurt.join("; ") };
        Expectation::new("siblings are unaffected", hurt.is_empty() && count > 0, seen)
    }
}

/// Whether an expectation names trouble.
fn is_bad(expect: &Expect) -> bool {
    let fails = expect.statuses.iter().flatten().any(|(name, count)| name != "0" && *count > 0);
    fails || expect.recovers.is_some() || expect.verdict.is_some_and(|code| code != Code::Ok)
}

impl Conn {
    /// How requests ended, by the names of expectations.
    pub(crate) fn statuses(&self) -> Counts {
        let mut counts = Counts::new();
        for ending in &self.endings {
            *counts.entry(ending.fate.name()).or_default() += 1;
        }
        let open = self.requests.iter().filter(|request| request.fate.is_none()).count() as u64;
        if open > 0 {
            counts.insert("open".to_owned(), open);
        }
        counts
    }

    /// How receives ended.
    pub(crate) fn receives(&self) -> Counts {
        let mut counts = Counts::new();
        for (_, status) in &self.receipts {
            *counts.entry((*status as u8).to_string()).or_default() += 1;
        }
        counts
    }
}

/// Whether each named count is right, and nothing else failed.
fn tallied(what: &str, wanted: &Tally, seen: &Counts) -> Expectation {
    let named =
        |name: &str| wanted.iter().find(|(wanted, _)| wanted == name).map(|(_, count)| *count);
    let right = wanted.iter().all(|(name, count)| seen.get(name).copied().unwrap_or(0) == *count);
    let nothing_else = seen.iter().all(|(name, _)| name == "0" || named(name).is_some());
    let text = format!("{what} {}", show(wanted.iter().map(|(k, v)| (k, *v))));
    Expectation::new(text, right && nothing_else, show(seen.iter().map(|(k, v)| (k, *v))))
}

fn timed(conn: &Conn, expect: &Expect) -> Expectation {
    let first = |at| conn.resumed_at.is_none_or(|resumed| at <= resumed);
    let failed = conn.endings.iter().rev();
    let failed = failed.clone().find(|ending| !ending.fate.is_success() && first(ending.at));
    let span = match failed {
        Some(ending) => conn.last_life().map(|life| ending.at.since(life)),
        None => conn.endings.last().zip(conn.first_post).map(|(last, first)| last.at.since(first)),
    };
    let span = span.unwrap_or_default();
    let met = expect.within.is_none_or(|within| span <= within)
        && expect.at_least.is_none_or(|least| span >= least)
        && !conn.endings.is_empty();
    let mut text = format!("`{}`: all ended", conn.name);
    if let Some(least) = expect.at_least {
        push(&mut text, format_args!(" no sooner than {}", millis(least)));
    }
    if let Some(within) = expect.within {
        push(&mut text, format_args!(" within {}", millis(within)));
    }
    text.push_str(if failed.is_some() {
        " of the last sign of life"
    } else {
        " of the first request"
    });
    Expectation::new(text, met, format!("after {}", millis(span)))
}

fn push(text: &mut String, more: core::fmt::Arguments<'_>) {
    // A String takes everything.
    let written = text.write_fmt(more);
    debug_assert!(written.is_ok());
}

fn millis(span: Duration) -> String {
    format!("{:.3} ms", span.as_secs_f64() * 1e3)
}

fn show<'a>(counts: impl Iterator<Item = (&'a String, u64)>) -> String {
    let list: Vec<String> = counts.map(|(name, count)| format!("{count} x {name}")).collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}
