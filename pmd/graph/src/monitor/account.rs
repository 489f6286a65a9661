//! From what lcores tell, one after the other, to the status of a run.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pmd_lcore::{Stats, StatsReader};
use pmd_observe::status::{
    Device, Dwell, Fill, Lcore, Node, Qp, Srq, State, StateCount, Status, Times, VERSION,
};
use pmd_observe::{Snapshot, Verdict};
use pmd_roce::histogram::Histogram;
use pmd_roce::qp::state::QpState;
use pmd_verbs::QpStatus;

use super::survey::Told;
use super::{LcoreRole, Live, NodeRole, Subject};
use crate::limits::{STATUS_ENDED, STATUS_QPS};

/// A queue pair of a process: its lcore, its device and its number.
type Key = (usize, usize, u32);

/// What is remembered from one telling to the next.
pub(super) struct Account {
    started: SystemTime,
    lcores: Vec<Heard>,
    moves: HashMap<Key, Moves>,
    /// Those that have ended, the latest at last.
    ended: VecDeque<(Key, QpStatus, u64)>,
    forgotten: u64,
    /// Queue pairs that each lcore and device has made for each node: its device has forgotten them once it has ended.
    made: HashMap<(usize, usize), Vec<u32>>,
}

/// When an lcore was heard of.
struct Heard {
    last: Instant,
    ended: bool,
    /// At the last status.
    stats: Stats,
}

/// Whether a queue pair gets anything done.
#[derive(Clone, Copy)]
struct Moves {
    /// Sends that completed.
    sends: u64,
    /// The same since it was last reset, modulo 2^32.
    completed: u32,
    starts: u32,
    /// Last seen to move, or to have nothing to do.
    at: Instant,
    /// In which telling it was seen.
    seen: Instant,
}

impl Moves {
    fn new(now: Instant) -> Self {
        Self { sends: 0, completed: 0, starts: 0, at: now, seen: now }
    }

    fn see(&mut self, qp: &QpStatus, now: Instant) {
        self.count(qp.send_posted, qp.send_used, qp.stats.starts, now);
    }

    /// So many sends were posted since it was last reset, and so many of them are in flight.
    fn count(&mut self, posted: u32, used: u32, starts: u32, now: Instant) {
        let completed = posted.wrapping_sub(used);
        let before = if self.starts == starts { self.completed } else { 0 };
        // Fewer than before: it was reset, and has not started again.
        let (moved, was_reset) = match completed.wrapping_sub(before) {
            backward if backward > u32::MAX / 2 => (completed, true),
            moved => (moved, self.starts != starts),
        };
        self.sends += u64::from(moved);
        if moved > 0 || used == 0 || was_reset {
            self.at = now;
        }
        (self.completed, self.starts, self.seen) = (completed, starts, now);
    }
}

impl Account {
    pub(super) fn new(subject: &Subject) -> Self {
        let heard = || Heard { last: subject.began, ended: false, stats: Stats::default() };
        Self {
            started: SystemTime::now() - subject.began.elapsed(),
            lcores: subject.askers.iter().map(|_| heard()).collect(),
            moves: HashMap::new(),
            ended: VecDeque::new(),
            forgotten: 0,
            made: HashMap::new(),
        }
    }

    /// An lcore tells no more.
    pub(super) fn ended(&mut self, lcore: usize, now: Instant) {
        (self.lcores[lcore].ended, self.lcores[lcore].last) = (true, now);
    }

    pub(super) fn has_ended(&self, lcore: usize) -> bool {
        self.lcores[lcore].ended
    }

    /// Takes in what an lcore told.
    pub(super) fn take(&mut self, lcore: usize, told: &Told, now: Instant) {
        self.lcores[lcore].last = now;
        for (device, survey) in told {
            for qp in &survey.qps {
                let key = (lcore, *device, qp.qpn.value());
                self.moves.entry(key).or_insert_with(|| Moves::new(now)).see(qp, now);
            }
            for qp in &survey.ended {
                let key = (lcore, *device, qp.qpn.value());
                let mut moves = self.moves.remove(&key).unwrap_or_else(|| Moves::new(now));
                moves.see(qp, now);
                if self.ended.len() == STATUS_ENDED {
                    self.ended.pop_front();
                    self.forgotten += 1;
                }
                self.ended.push_back((key, *qp, moves.sends));
            }
            self.forgotten += survey.forgotten;
            if !survey.made.is_empty() {
                self.made.insert((lcore, *device), survey.made.clone());
            }
            self.moves.retain(|(at, on, _), moves| {
                (*at, *on) != (lcore, *device) || moves.seen == now || survey.omitted > 0
            });
        }
    }

    /// The run, as far as it is known.
    pub(super) fn status(
        &mut self,
        subject: &Subject,
        now: Instant,
        verdict: Option<Verdict>,
    ) -> Status {
        let ended = verdict.is_some();
        let elapsed = now.saturating_duration_since(subject.began);
        let (mut qps, omitted) = self.queue_pairs(subject, now);
        let states = count_states(subject, &qps);
        qps.sort_by(Qp::worse_first);
        let counted = |qps: &[Qp]| {
            let live = qps.iter().filter(|qp| !qp.ended).count();
            (live as u64, (qps.len() - live) as u64)
        };
        let (live, ended_qps) = counted(&qps);
        let nodes = self.nodes(subject, &qps, ended);
        qps.truncate(STATUS_QPS);
        let (shown, ended_shown) = counted(&qps);
        Status {
            version: VERSION,
            pid: std::process::id(),
            started_unix_ms: unix_ms(self.started),
            at_unix_ms: unix_ms(SystemTime::now()),
            elapsed_s: elapsed.as_secs_f64(),
            ended,
            verdict,
            lcores: self.lcores(subject, now, ended),
            nodes,
            devices: devices(subject),
            srqs: shared_queues(subject),
            qps,
            states,
            qps_omitted: omitted + live - shown,
            qps_forgotten: self.forgotten + ended_qps - ended_shown,
        }
    }

    fn nodes(&self, subject: &Subject, qps: &[Qp], over: bool) -> Vec<Node> {
        let node = |(index, (role, live)): (usize, (&NodeRole, &Arc<Live>))| {
            let (counts, _) = live.read();
            let made = self.made.values().filter_map(|made| made.get(index));
            let made = made.map(|made| u64::from(*made)).sum();
            let lives = qps.iter().any(|qp| !qp.ended && qp.node == role.name);
            Node {
                name: role.name.clone(),
                kind: role.kind.clone(),
                lcore: role.lcore.clone(),
                messages: counts.messages,
                bytes: counts.bytes,
                verified_bytes: counts.verified_bytes,
                errors: counts.errors,
                connections: made,
                edge: if lives || over { None } else { edge(role, made) },
            }
        };
        subject.cast.nodes.iter().zip(&subject.live).enumerate().map(node).collect()
    }

    fn queue_pairs(&self, subject: &Subject, now: Instant) -> (Vec<Qp>, u64) {
        let (mut qps, mut omitted) = (Vec::new(), 0);
        let numbers = self.numbers(subject);
        for (lcore, asker) in subject.askers.iter().enumerate() {
            for (device, survey) in asker.latest() {
                omitted += survey.omitted as u64;
                for qp in &survey.qps {
                    let key = (lcore, *device, qp.qpn.value());
                    // One that ended while the others were looked at is told of twice.
                    let Some(moves) = self.moves.get(&key) else { continue };
                    let stalls = matches!(qp.stats.state, QpState::Rts | QpState::Sqd);
                    let stalled = now.saturating_duration_since(moves.at);
                    let stalled = if stalls && qp.send_used > 0 { stalled } else { Duration::ZERO };
                    // It has grown older since it was told.
                    let late = now.saturating_duration_since(self.lcores[lcore].last);
                    let row = row(subject, &numbers, key, qp);
                    qps.push(Qp {
                        state_s: (qp.age + late).as_secs_f64(),
                        stalled_s: stalled.as_secs_f64(),
                        sends: moves.sends,
                        ..row
                    });
                }
            }
        }
        for (key, qp, sends) in &self.ended {
            let row = row(subject, &numbers, *key, qp);
            qps.push(Qp { ended: true, sends: *sends, ..row });
        }
        (qps, omitted)
    }

    /// Which node each queue pair of this process belongs to, by its number.
    fn numbers(&self, subject: &Subject) -> HashMap<u32, usize> {
        let surveys = subject.askers.iter().flat_map(|asker| asker.latest());
        let live = surveys.flat_map(|(_, survey)| &survey.qps);
        let qps = self.ended.iter().map(|(_, qp, _)| qp).chain(live);
        qps.filter_map(|qp| Some((qp.qpn.value(), qp.owner? as usize))).collect()
    }

    fn lcores(&mut self, subject: &Subject, now: Instant, over: bool) -> Vec<Lcore> {
        let roles = subject.cast.lcores.iter().zip(&subject.stats);
        let lcore = |((role, reader), heard): ((&LcoreRole, &StatsReader), &mut Heard)| {
            let stats = reader.read();
            let before = std::mem::replace(&mut heard.stats, stats);
            let silent = now.saturating_duration_since(heard.last);
            let silent = if heard.ended || over { Duration::ZERO } else { silent };
            Lcore {
                name: role.name.clone(),
                cpu: role.cpu as u64,
                busy: stats.since(&before).busy_share(),
                busy_s: seconds(stats.busy_ns),
                idle_s: seconds(stats.idle_ns),
                polls: stats.polls,
                work: stats.work,
                naps: stats.naps,
                longest_gap_s: seconds(stats.longest_gap_ns),
                silent_s: silent.as_secs_f64(),
            }
        };
        roles.zip(&mut self.lcores).map(lcore).collect()
    }
}

fn row(
    subject: &Subject,
    numbers: &HashMap<u32, usize>,
    (lcore, device, _): Key,
    qp: &QpStatus,
) -> Qp {
    let cast = &subject.cast;
    let owner = qp.owner.and_then(|owner| cast.nodes.get(owner as usize));
    let remote = (qp.peer.value() != 0).then(|| qp.peer.value());
    let gid = Ipv6Addr::from(qp.peer_gid.0);
    let there = remote.and_then(|number| numbers.get(&number)).and_then(|at| cast.nodes.get(*at));
    let elsewhere = owner.and_then(|node| node.peer).map(|address| address.to_string());
    let dwell = QpState::ALL.iter().zip(&qp.dwell).filter(|(_, span)| !span.is_zero());
    Qp {
        device: cast.devices.get(device).cloned().unwrap_or_default(),
        lcore: cast.lcores.get(lcore).map_or_else(String::new, |lcore| lcore.name.clone()),
        qpn: qp.qpn.value(),
        node: owner.map_or_else(String::new, |node| node.name.clone()),
        remote_qpn: remote,
        remote_gid: (!gid.is_unspecified()).then(|| gid.to_string()),
        peer: there.map(|node| node.name.clone()).or(elsewhere),
        transport: qp.transport.to_string().to_lowercase(),
        path: remote.map(|_| if qp.shares_memory { "local" } else { "packet" }.to_owned()),
        state: state(qp.stats.state),
        state_s: qp.age.as_secs_f64(),
        ended: false,
        stalled_s: 0.0,
        sends: 0,
        send: Fill { used: qp.send_used, depth: qp.send_depth },
        recv: Fill { used: qp.recv_used, depth: qp.recv_depth },
        srq: qp.srq.map(|srq| srq.0),
        reconnects: u64::from(qp.stats.starts.saturating_sub(1)),
        counters: qp.stats.counters.iter().collect::<Snapshot>().nonzero(),
        ack_round_trip: times(&qp.stats.ack_round_trip),
        rnr_wait: times(&qp.stats.rnr_wait),
        dwell: dwell
            .map(|(of, span)| Dwell { state: state(*of), seconds: span.as_secs_f64() })
            .collect(),
    }
}

/// What a node without queue pairs waits for.
fn edge(role: &NodeRole, made: u64) -> Option<String> {
    let again = if made > 0 { Node::AGAIN } else { "" };
    match (role.peer, role.listen) {
        (Some(address), _) => Some(format!("dials {address}{again}")),
        (None, Some(address)) => Some(format!("listens on {address}")),
        _ => None,
    }
}

fn devices(subject: &Subject) -> Vec<Device> {
    let device = |(index, name): (usize, &String)| {
        let surveys = || {
            let told = subject.askers.iter().flat_map(|asker| asker.latest());
            told.filter(move |(at, _)| *at == index).map(|(_, survey)| survey)
        };
        let engine = || surveys().flat_map(|survey| survey.counters.iter().copied());
        let drops = engine().filter_map(|(name, value)| Some((name.strip_prefix("drop_")?, value)));
        Device {
            name: name.clone(),
            port: 1,
            counters: engine().filter(|(name, _)| !name.starts_with("drop_")).collect(),
            drops: drops.collect::<Snapshot>().nonzero(),
            wire: surveys().flat_map(|survey| survey.wire.iter().copied()).collect(),
        }
    };
    subject.cast.devices.iter().enumerate().map(device).collect()
}

fn shared_queues(subject: &Subject) -> Vec<Srq> {
    let mut srqs = Vec::new();
    for (lcore, asker) in subject.cast.lcores.iter().zip(&subject.askers) {
        for (device, survey) in asker.latest() {
            srqs.extend(survey.srqs.iter().map(|(number, view)| Srq {
                device: subject.cast.devices[*device].clone(),
                lcore: lcore.name.clone(),
                srqn: number.0,
                receives: view.len,
                depth: view.depth,
                limit: view.limit,
                reserve: view.reserve,
                users: view.users,
                dry: view.dry,
                failed: view.failed,
            }));
        }
    }
    srqs
}

fn count_states(subject: &Subject, qps: &[Qp]) -> Vec<StateCount> {
    let mut counts = Vec::new();
    for device in &subject.cast.devices {
        for state in State::ALL {
            let of_it = |qp: &&Qp| !qp.ended && qp.state == state && qp.device == *device;
            let qps = qps.iter().filter(of_it).count() as u64;
            if qps > 0 {
                counts.push(StateCount { device: device.clone(), state, qps });
            }
        }
    }
    counts
}

fn state(state: QpState) -> State {
    State::ALL[state as usize]
}

fn times(histogram: &Histogram) -> Times {
    let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let quantile = |part| histogram.quantile(part).map_or(0, ns);
    Times {
        count: histogram.count(),
        sum_s: histogram.sum().as_secs_f64(),
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        max_ns: ns(histogram.max()),
    }
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S2-28: a queue pair in RTS that gets nothing done is told apart from one that has nothing to do.
    #[test]
    fn s2_28_standing_still_is_noticed() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut moves = Moves::new(start);
        moves.count(10, 4, 1, at(1));
        assert_eq!((moves.sends, moves.at), (6, at(1)));
        // More is posted, nothing completes.
        moves.count(14, 8, 1, at(2));
        moves.count(14, 8, 1, at(3));
        assert_eq!((moves.sends, moves.at), (6, at(1)));
        moves.count(14, 0, 1, at(4));
        assert_eq!((moves.sends, moves.at), (14, at(4)));
        // Nothing to do for long, then something.
        moves.count(14, 0, 1, at(60));
        moves.count(15, 1, 1, at(61));
        assert_eq!((moves.sends, moves.at), (14, at(60)));
        // A new beginning counts on, and from zero.
        moves.count(2, 1, 2, at(62));
        assert_eq!((moves.sends, moves.at), (15, at(62)));
        // Positions are modulo 2^32.
        moves.count(1 << 31, 0, 2, at(63));
        moves.count(u32::MAX, 0, 2, at(64));
        moves.count(4, 0, 2, at(65));
        assert_eq!(moves.sends, 14 + u64::from(u32::MAX) + 5);
        // A reset takes nothing back.
        moves.count(0, 0, 2, at(66));
        moves.count(3, 0, 2, at(67));
        assert_eq!(moves.sends, 14 + u64::from(u32::MAX) + 5 + 3);
    }
}
