//! What is shown of runs: rows of lcores, nodes and queue pairs, with rates from one state to the next.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use clap::ValueEnum;
use pmd_observe::report::{Bytes, BytesPerSecond, Count, Nanos, PerSecond, Percent};
use pmd_observe::status::{Qp, State};

use super::source::{Life, Run};

/// Which queue pairs stand first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// The worst state, then the longest standstill, then the longest time in the state
    #[default]
    Worst,
    /// The longest time in the state
    Dwell,
    /// The most sends per second, else the most sends
    Rate,
    /// By node
    Node,
    /// By number
    Number,
}

impl Sort {
    pub(crate) const ALL: [Self; 5] =
        [Self::Worst, Self::Dwell, Self::Rate, Self::Node, Self::Number];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Worst => "worst",
            Self::Dwell => "dwell",
            Self::Rate => "rate",
            Self::Node => "node",
            Self::Number => "number",
        }
    }

    pub(crate) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// What somebody wants to see.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// What stands first.
    pub(crate) sort: Sort,
    /// What must occur in a row.
    pub(crate) filter: String,
    /// Queue pairs that have ended, too.
    pub(crate) with_ended: bool,
}

/// A queue pair as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    /// The queue pair.
    pub(crate) qp: &'a Qp,
    /// Sends per second since the state before.
    pub(crate) rate: Option<f64>,
}

/// A queue pair among all runs: run, device, lcore, number.
type Key = (usize, String, String, u32);

/// Runs now, and a moment ago.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) runs: Vec<Run>,
    /// When the state before was written (ms), and what was done then.
    before: Vec<Before>,
}

#[derive(Debug, Default)]
struct Before {
    at_ms: u64,
    sends: HashMap<Key, u64>,
    /// Messages and bytes, by node.
    nodes: HashMap<String, (u64, u64)>,
}

impl View {
    pub(crate) fn new(runs: Vec<Run>) -> Self {
        Self { runs, before: Vec::new() }
    }

    /// Goes on to a newer state of the same runs.
    pub(crate) fn update(&mut self, runs: Vec<Run>) {
        let is_newer = |(new, old): (&Run, &Run)| new.status.at_unix_ms != old.status.at_unix_ms;
        if runs.len() != self.runs.len() || runs.iter().zip(&self.runs).any(is_newer) {
            let runs = self.runs.iter().enumerate();
            self.before = runs.map(|(index, run)| Before::of(index, run)).collect();
        }
        self.runs = runs;
    }

    /// The queue pairs that are wanted, in the order that is wanted.
    pub(crate) fn rows(&self, choice: &Choice) -> Vec<Row<'_>> {
        let filter = choice.filter.to_lowercase();
        let mut rows = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            for qp in run.status.qps.iter().filter(|qp| choice.with_ended || !qp.ended) {
                let row = Row { qp, rate: self.rate(index, run, qp) };
                if filter.is_empty() || row.cells().join(" ").to_lowercase().contains(&filter) {
                    rows.push(row);
                }
            }
        }
        rows.sort_by(|a, b| a.order(b, choice.sort));
        rows
    }

    fn rate(&self, index: usize, run: &Run, qp: &Qp) -> Option<f64> {
        let before = self.before.get(index)?;
        let sends = before.sends.get(&key(index, qp))?;
        per_second(qp.sends.saturating_sub(*sends), before.at_ms, run)
    }

    /// A line about each process.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.runs.iter().map(head).collect()
    }

    /// A row for each lcore: name, CPU, busy, loops, naps, longest gap, silence.
    pub(crate) fn lcores(&self) -> Vec<[String; 7]> {
        let lcores = self.runs.iter().flat_map(|run| &run.status.lcores);
        let row = |lcore: &pmd_observe::status::Lcore| {
            [
                lcore.name.clone(),
                lcore.cpu.to_string(),
                Percent(lcore.busy).to_string(),
                Count(lcore.polls).to_string(),
                Count(lcore.naps).to_string(),
                span(lcore.longest_gap_s),
                // Lcores answer once a second, if at all.
                if lcore.silent_s < 1.5 { "-".to_owned() } else { span(lcore.silent_s) },
            ]
        };
        lcores.map(row).collect()
    }

    /// A row for each node: name, kind, lcore, messages, bytes, rates, errors, connections, what it waits for.
    pub(crate) fn nodes(&self) -> Vec<[String; 10]> {
        let mut rows = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            let before = self.before.get(index);
            for node in &run.status.nodes {
                let earlier = before.and_then(|before| {
                    Some((before.at_ms, before.nodes.get(&node.name).copied()?))
                });
                let rates = earlier.and_then(|(at, (messages, bytes))| {
                    let messages = node.messages.saturating_sub(messages);
                    let bytes = node.bytes.saturating_sub(bytes);
                    Some((per_second(messages, at, run)?, per_second(bytes, at, run)?))
                });
                let dash = || "-".to_owned();
                rows.push([
                    node.name.clone(),
                    node.kind.clone(),
                    node.lcore.clone(),
                    Count(node.messages).to_string(),
                    Bytes(node.bytes).to_string(),
                    rates.map_or_else(dash, |(messages, _)| PerSecond(messages).to_string()),
                    rates.map_or_else(dash, |(_, bytes)| BytesPerSecond(bytes).to_string()),
                    Count(node.errors).to_string(),
                    node.connections.to_string(),
                    node.edge.clone().unwrap_or_else(dash),
                ]);
            }
        }
        rows
    }

    /// Queue pairs that live, and those of them that are in another state than RTS or stand still.
    pub(crate) fn tally(&self) -> (usize, usize) {
        let qps = self.runs.iter().flat_map(|run| &run.status.qps).filter(|qp| !qp.ended);
        let bad = qps.clone().filter(|qp| qp.state != State::Rts || qp.stalled_s > 1.0);
        (qps.count(), bad.count())
    }
}

/// Headings of [`View::lcores`].
pub(crate) const LCORES: [&str; 7] = ["lcore", "cpu", "busy", "polls", "naps", "gap", "silent"];
/// Headings of [`View::nodes`].
pub(crate) const NODES: [&str; 10] = [
    "node", "kind", "lcore", "messages", "bytes", "rate", "bytes/s", "errors", "QPs made", "waits",
];
/// Headings of [`Row::cells`].
pub(crate) const QPS: [&str; 13] = [
    "state", "for", "stalled", "node", "peer", "qpn", "remote", "path", "send", "recv", "sends",
    "rate", "trouble",
];

impl Row<'_> {
    /// A cell for each of [`QPS`].
    pub(crate) fn cells(&self) -> [String; 13] {
        let qp = self.qp;
        let dash = || "-".to_owned();
        let path = qp.path.as_deref().unwrap_or("-");
        let fill = |fill: pmd_observe::status::Fill| format!("{}/{}", fill.used, fill.depth);
        [
            if qp.ended {
                format!("({})", qp.state.as_str())
            } else {
                qp.state.as_str().to_owned()
            },
            span(qp.state_s),
            if qp.stalled_s < 1.0 { dash() } else { span(qp.stalled_s) },
            qp.node.clone(),
            qp.peer.clone().or_else(|| qp.remote_gid.clone()).unwrap_or_else(dash),
            format!("{:#08x}", qp.qpn),
            qp.remote_qpn.map_or_else(dash, |qpn| format!("{qpn:#08x}")),
            format!("{} {path}", qp.transport),
            fill(qp.send),
            qp.srq.map_or_else(|| fill(qp.recv), |srq| format!("srq {srq}")),
            Count(qp.sends).to_string(),
            self.rate.map_or_else(dash, |rate| PerSecond(rate).to_string()),
            self.trouble(),
        ]
    }

    /// Counters that speak of trouble, and how often it was connected anew.
    fn trouble(&self) -> String {
        let mut words: Vec<String> =
            self.qp.counters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if self.qp.reconnects > 0 {
            words.insert(0, format!("reconnects={}", self.qp.reconnects));
        }
        words.join(" ")
    }

    fn order(&self, other: &Self, sort: Sort) -> Ordering {
        let (a, b) = (self.qp, other.qp);
        let worse = || a.worse_first(b);
        match sort {
            Sort::Worst => worse(),
            Sort::Dwell => b.state_s.total_cmp(&a.state_s).then_with(worse),
            Sort::Rate => {
                let rate = |row: &Self| row.rate.unwrap_or(0.0);
                let rates = rate(other).total_cmp(&rate(self));
                rates.then_with(|| b.sends.cmp(&a.sends)).then_with(worse)
            }
            Sort::Node => a.node.cmp(&b.node).then_with(worse),
            Sort::Number => a.qpn.cmp(&b.qpn),
        }
    }
}

impl Before {
    fn of(index: usize, run: &Run) -> Self {
        let status = &run.status;
        Self {
            at_ms: status.at_unix_ms,
            sends: status.qps.iter().map(|qp| (key(index, qp), qp.sends)).collect(),
            nodes: status
                .nodes
                .iter()
                .map(|node| (node.name.clone(), (node.messages, node.bytes)))
                .collect(),
        }
    }
}

fn key(index: usize, qp: &Qp) -> Key {
    (index, qp.device.clone(), qp.lcore.clone(), qp.qpn)
}

/// `None` where no time has passed.
fn per_second(amount: u64, since_ms: u64, run: &Run) -> Option<f64> {
    let passed = Duration::from_millis(run.status.at_unix_ms.checked_sub(since_ms)?);
    (!passed.is_zero()).then(|| pmd_observe::report::per_second(amount, passed))
}

fn head(run: &Run) -> String {
    let status = &run.status;
    let life = match run.life {
        Life::Running => "running".to_owned(),
        Life::Silent(silent) => {
            format!("running, but its state is {:.0} s old", silent.as_secs_f64())
        }
        Life::Gone => "gone: it was killed, and this is the last that it told".to_owned(),
        Life::Ended => match &status.verdict {
            Some(verdict) => format!("ended: {} ({})", verdict.code, verdict.summary),
            None => "ended".to_owned(),
        },
    };
    let (pid, dir) = (status.pid, run.dir.display());
    let mut text = format!("process {pid}, {:.1} s, {life}  [{dir}]", status.elapsed_s);
    if status.qps_omitted > 0 {
        text += &format!("; {} queue pairs more", status.qps_omitted);
    }
    text
}

/// A time for people.
pub(crate) fn span(seconds: f64) -> String {
    Nanos::from(Duration::try_from_secs_f64(seconds).unwrap_or_default()).to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use pmd_observe::status::{Lcore, Node, Status};

    use super::*;

    pub(crate) fn qp(qpn: u32, state: State, state_s: f64) -> Qp {
        let json = format!(
            r#"{{"device":"soft0","qpn":{qpn},"state":"RTS","node":"client","transport":"rc"}}"#
        );
        Qp { state, state_s, ..serde_json::from_str(&json).unwrap() }
    }

    pub(crate) fn run(qps: Vec<Qp>) -> Run {
        let status = Status {
            version: 1,
            pid: 4711,
            at_unix_ms: 10_000,
            elapsed_s: 12.5,
            lcores: vec![Lcore {
                name: "lc0".into(),
                busy: 0.5,
                silent_s: 3.0,
                ..Lcore::default()
            }],
            nodes: vec![Node { name: "client".into(), messages: 1000, ..Node::default() }],
            qps,
            ..Status::default()
        };
        Run { dir: PathBuf::from("/run"), status, life: Life::Running, peers: Vec::new() }
    }

    fn numbers(view: &View, choice: &Choice) -> Vec<u32> {
        view.rows(choice).iter().map(|row| row.qp.qpn).collect()
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let view = View::new(vec![run(vec![
            qp(1, State::Rts, 9.0),
            Qp { node: "server".into(), sends: 5, ..qp(2, State::Rts, 8.0) },
            qp(3, State::Rtr, 700.0),
            Qp { ended: true, ..qp(4, State::Error, 1.0) },
            Qp { node: "a".into(), ..qp(5, State::Error, 0.5) },
        ])]);
        let by = |sort| numbers(&view, &Choice { sort, ..Choice::default() });
        assert_eq!(by(Sort::Worst), [5, 3, 1, 2]);
        assert_eq!(by(Sort::Dwell), [3, 1, 2, 5]);
        assert_eq!(by(Sort::Rate), [2, 5, 3, 1]);
        assert_eq!(by(Sort::Node), [5, 3, 1, 2]);
        assert_eq!(by(Sort::Number), [1, 2, 3, 5]);
        let only = |filter: &str, with_ended| {
            numbers(&view, &Choice { filter: filter.into(), with_ended, ..Choice::default() })
        };
        assert_eq!(only("SERVER", false), [2]);
        assert_eq!(only("err", false), [5]);
        assert_eq!(only("err", true), [5, 4]);
        assert_eq!(only("0x000003", false), [3]);
        assert_eq!(view.tally(), (4, 2));
    }

    #[test]
    fn rates_are_of_the_time_between_two_states() {
        let mut view = View::new(vec![run(vec![Qp { sends: 100, ..qp(1, State::Rts, 1.0) }])]);
        assert_eq!(view.rows(&Choice::default())[0].rate, None);
        let mut later = run(vec![Qp { sends: 600, ..qp(1, State::Rts, 3.0) }]);
        later.status.at_unix_ms += 2000;
        later.status.nodes[0].messages += 3000;
        view.update(vec![later.clone()]);
        assert_eq!(view.rows(&Choice::default())[0].rate, Some(250.0));
        assert_eq!(view.nodes()[0][5], "1.50 k/s");
        // The same state, read once more.
        view.update(vec![later]);
        assert_eq!(view.rows(&Choice::default())[0].rate, Some(250.0));
    }

    #[test]
    fn sorts_go_round() {
        let mut sort = Sort::Worst;
        for expected in ["dwell", "rate", "node", "number", "worst"] {
            sort = sort.next();
            assert_eq!(sort.as_str(), expected);
        }
    }
}
