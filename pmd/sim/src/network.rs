//! The packet network: ports with a bounded queue, paths with delay, and the fault plan.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pmd_roce::ids::{Gid, Instant};
use pmd_roce::sink::{Flow, TxSink};

use crate::fault::{Act, Armed, Fault, FaultId};
use crate::host::HostId;
use crate::limits;
use crate::rng::Rng;

/// A frame on its way to a host.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) flow: Flow,
    pub(crate) ip_id: u16,
    pub(crate) payload: Vec<u8>,
}

/// How frames travel; the same for every pair of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wires {
    /// Propagation from port to port.
    pub latency: Duration,
    /// Largest random addition to it; it keeps frames in order.
    pub jitter: Duration,
    /// Speed of a port, bytes per microsecond.
    pub bytes_per_us: u64,
    /// Frames that wait at a port before the wire is full.
    pub queue: usize,
    /// Longer UDP payloads vanish, bytes.
    pub largest_payload: usize,
}

impl Default for Wires {
    fn default() -> Self {
        Self {
            latency: limits::LATENCY,
            jitter: limits::JITTER,
            bytes_per_us: limits::BYTES_PER_US,
            queue: limits::EGRESS_FRAMES,
            largest_payload: limits::LARGEST_PAYLOAD,
        }
    }
}

/// What became of a frame at the sender's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Under way, untouched.
    Sent,
    /// Under way, after this fault.
    Hit(Act),
    /// Lost: by a fault, a port that is down, its length, or an address nobody has.
    Lost,
}

/// A frame that a sender put on the wire, kept when [`crate::World::record_frames`] was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// When its last bit left.
    pub at: Instant,
    /// Sender.
    pub from: HostId,
    /// Receiver; `None` for an address nobody has.
    pub to: Option<HostId>,
    /// Addresses.
    pub flow: Flow,
    /// IPv4 identification.
    pub ip_id: u16,
    /// BTH to ICRC, as the sender made it.
    pub payload: Vec<u8>,
    /// What became of it.
    pub fate: Fate,
}

#[derive(Debug)]
struct Port {
    up: bool,
    next_ip_id: u16,
    /// When the frames in the queue will have left, in order.
    departures: VecDeque<Instant>,
    /// The engine was told that the wire is full.
    blocked: bool,
}

/// All ports and paths.
#[derive(Debug)]
pub(crate) struct Network {
    rng: Rng,
    pub(crate) wires: Wires,
    ports: Vec<Port>,
    addresses: BTreeMap<Gid, HostId>,
    groups: BTreeSet<(Gid, HostId)>,
    plan: Vec<Armed>,
    /// Latest arrival per path, so that jitter keeps order.
    latest: BTreeMap<(HostId, HostId), Instant>,
    /// Frames on their way, for the agenda.
    pub(crate) departed: Vec<(Instant, HostId, Arrival)>,
    pub(crate) sightings: Option<Vec<Sighting>>,
}

impl Network {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            wires: Wires::default(),
            ports: Vec::new(),
            addresses: BTreeMap::new(),
            groups: BTreeSet::new(),
            plan: Vec::new(),
            latest: BTreeMap::new(),
            departed: Vec::new(),
            sightings: None,
        }
    }

    pub(crate) fn add_port(&mut self, host: HostId) {
        assert_eq!(host.0, self.ports.len());
        let next_ip_id = (self.rng.bits32() >> 16) as u16;
        self.ports.push(Port { up: true, next_ip_id, departures: VecDeque::new(), blocked: false });
    }

    pub(crate) fn add_address(&mut self, gid: Gid, host: HostId) {
        self.addresses.insert(gid, host);
    }

    pub(crate) fn remove_address(&mut self, gid: Gid) {
        self.addresses.remove(&gid);
    }

    pub(crate) fn join(&mut self, group: Gid, host: HostId) {
        self.groups.insert((group, host));
    }

    pub(crate) fn leave(&mut self, group: Gid, host: HostId) {
        self.groups.remove(&(group, host));
    }

    pub(crate) fn set_up(&mut self, host: HostId, up: bool) {
        self.ports[host.0].up = up;
    }

    pub(crate) fn is_up(&self, host: HostId) -> bool {
        self.ports[host.0].up
    }

    pub(crate) fn add_fault(&mut self, fault: Fault) -> FaultId {
        self.plan.push(Armed::new(fault));
        FaultId(self.plan.len() - 1)
    }

    pub(crate) fn end_fault(&mut self, fault: FaultId) {
        self.plan[fault.0].over = true;
    }

    pub(crate) fn hits(&self, fault: FaultId) -> u64 {
        self.plan[fault.0].hits()
    }

    /// When a port that was full has room again; asking forgets it.
    pub(crate) fn room_at(&mut self, host: HostId) -> Option<Instant> {
        let port = &mut self.ports[host.0];
        core::mem::take(&mut port.blocked).then(|| port.departures.front().copied()).flatten()
    }

    /// Puts one frame on its way to every receiver.
    fn route(&mut self, at: Instant, from: HostId, arrival: &Arrival) {
        let dst = arrival.flow.dst;
        let receivers: Vec<_> = if dst.is_multicast() {
            self.groups.iter().filter(|(group, _)| *group == dst).map(|(_, host)| *host).collect()
        } else {
            self.addresses.get(&dst).copied().into_iter().collect()
        };
        if receivers.is_empty() {
            self.sight(at, from, None, arrival, Fate::Lost);
        }
        for to in receivers {
            let fate = self.travel(at, from, to, arrival);
            self.sight(at, from, Some(to), arrival, fate);
        }
    }

    fn travel(&mut self, at: Instant, from: HostId, to: HostId, arrival: &Arrival) -> Fate {
        let passes = self.ports[from.0].up && arrival.payload.len() <= self.wires.largest_payload;
        if !passes {
            return Fate::Lost;
        }
        let mut copies = 1;
        let mut extra = Duration::ZERO;
        let mut payload = None;
        let mut fate = Fate::Sent;
        for armed in &mut self.plan {
            let rng = &mut self.rng;
            let hit = armed.judge(at, from, to, &arrival.payload, |parts| rng.chance(parts));
            let Some(act) = hit else { continue };
            fate = Fate::Hit(act);
            match act {
                Act::Drop => return Fate::Lost,
                Act::Delay(by) => extra += by,
                Act::Duplicate => copies += 1,
                Act::Reorder => extra += random_up_to(&mut self.rng, limits::REORDER_BY),
                Act::Corrupt => {
                    let bytes: &mut Vec<u8> =
                        payload.get_or_insert_with(|| arrival.payload.clone());
                    let byte = self.rng.index(bytes.len());
                    bytes[byte] ^= 1 << self.rng.below(8);
                }
            }
        }
        for _ in 0..copies {
            let jitter = random_up_to(&mut self.rng, self.wires.jitter);
            let mut due = at.after(self.wires.latency + jitter);
            let latest = self.latest.entry((from, to)).or_default();
            if extra.is_zero() {
                due = due.max(*latest);
                *latest = due;
            } else {
                due = due.after(extra);
            }
            let mut arrival = arrival.clone();
            if let Some(payload) = &payload {
                arrival.payload.clone_from(payload);
            }
            self.departed.push((due, to, arrival));
        }
        fate
    }

    fn sight(
        &mut self,
        at: Instant,
        from: HostId,
        to: Option<HostId>,
        arrival: &Arrival,
        fate: Fate,
    ) {
        if let Some(sightings) = &mut self.sightings {
            let Arrival { flow, ip_id, payload } = arrival.clone();
            sightings.push(Sighting { at, from, to, flow, ip_id, payload, fate });
        }
    }
}

fn random_up_to(rng: &mut Rng, span: Duration) -> Duration {
    Duration::from_nanos(rng.below(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

/// A host's port, as its engine sees it during one turn.
#[derive(Debug)]
pub(crate) struct Egress<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) host: HostId,
    pub(crate) now: Instant,
}

impl TxSink for Egress<'_> {
    fn send(&mut self, flow: &Flow, len: usize, fill: &mut dyn FnMut(u16, &mut [u8])) -> bool {
        let Wires { bytes_per_us, queue, .. } = self.network.wires;
        let port = &mut self.network.ports[self.host.0];
        while port.departures.front().is_some_and(|gone| *gone <= self.now) {
            port.departures.pop_front();
        }
        if port.departures.len() >= queue {
            port.blocked = true;
            return false;
        }
        let ip_id = port.next_ip_id;
        port.next_ip_id = ip_id.wrapping_add(1);
        let mut payload = vec![0; len];
        fill(ip_id, &mut payload);
        let bytes = len as u64 + limits::FRAME_OVERHEAD;
        let sending = Duration::from_nanos(bytes * 1000 / bytes_per_us.max(1));
        let at = port.departures.back().copied().unwrap_or(self.now).after(sending);
        port.departures.push_back(at);
        self.network.route(at, self.host, &Arrival { flow: *flow, ip_id, payload });
        true
    }
}
