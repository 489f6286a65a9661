//! The packet network: ports with a bounded queue, paths with delay, and the fault plan.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pmd_roce::ids::{Gid, Instant, Qpn};
use pmd_roce::sink::{Flow, TxSink};

use crate::fault::{Act, Armed, Fault, FaultId};
use crate::host::HostId;
use crate::limits;
use crate::rng::Rng;
use crate::trace::Trace;

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
    /// Lost: by a fault, its length, or an address nobody has.
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
    /// Addresses whose frames are RoCE v1: an Ethertype of its own, which a v2 port does not look at.
    old: BTreeSet<Gid>,
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
            old: BTreeSet::new(),
            plan: Vec::new(),
            latest: BTreeMap::new(),
            departed: Vec::new(),
            sightings: None,
        }
    }

    pub(crate) fn add_port(&mut self, host: HostId) {
        assert_eq!(host.0, self.ports.len());
        let next_ip_id = (self.rng.bits32() >> 16) as u16;
        self.ports.push(Port { next_ip_id, departures: VecDeque::new(), blocked: false });
    }

    pub(crate) fn add_address(&mut self, gid: Gid, host: HostId) {
        self.addresses.insert(gid, host);
    }

    pub(crate) fn make_old(&mut self, gid: Gid) {
        self.old.insert(gid);
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
        let Flow { src, dst, .. } = arrival.flow;
        let is_understood = self.old.contains(&src) == self.old.contains(&dst);
        let receivers: Vec<_> = if !is_understood {
            Vec::new()
        } else if dst.is_multicast() {
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
        if arrival.payload.len() > self.wires.largest_payload {
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
    pub(crate) trace: &'a mut Trace,
}

impl TxSink for Egress<'_> {
    fn send(
        &mut self,
        flow: &Flow,
        _to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
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
        self.trace.bytes(&payload);
        let bytes = len as u64 + limits::FRAME_OVERHEAD;
        let sending = Duration::from_nanos(bytes * 1000 / bytes_per_us.max(1));
        let at = port.departures.back().copied().unwrap_or(self.now).after(sending);
        port.departures.push_back(at);
        self.network.route(at, self.host, &Arrival { flow: *flow, ip_id, payload });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Filter;
    use std::net::Ipv4Addr;

    const A: HostId = HostId(0);
    const B: HostId = HostId(1);

    fn network() -> Network {
        let mut network = Network::new(Rng::new(5));
        for host in [A, B] {
            network.add_port(host);
            network.add_address(gid(host), host);
        }
        network
    }

    fn gid(host: HostId) -> Gid {
        Ipv4Addr::new(10, 0, 0, u8::try_from(host.0).expect("few hosts")).into()
    }

    /// Sends a frame of `len` bytes that begins with `tag`; whether the port took it.
    fn send(network: &mut Network, to: Gid, tag: u8, len: usize) -> bool {
        let flow = Flow { src: gid(A), dst: to, src_port: 1, traffic_class: 0, hop_limit: 64 };
        let mut trace = Trace::new(0);
        let mut egress = Egress { network, host: A, now: Instant(0), trace: &mut trace };
        egress.send(&flow, Qpn::new(0x11), len, &mut |_, out| out[0] = tag)
    }

    /// What arrived, by tag, in order of arrival.
    fn arrivals(network: &mut Network) -> Vec<u8> {
        let mut departed: Vec<_> = network.departed.drain(..).collect();
        departed.sort_by_key(|(at, ..)| *at);
        departed.iter().map(|(.., arrival)| arrival.payload[0]).collect()
    }

    #[test]
    fn jitter_keeps_order_and_a_fault_breaks_it() {
        let mut network = network();
        let sent: Vec<_> = (0..100).collect();
        for tag in &sent {
            assert!(send(&mut network, gid(B), *tag, 64));
        }
        assert_eq!(arrivals(&mut network), sent);
        network.ports[A.0].departures.clear();
        network.add_fault(Fault::random(Act::Reorder, 500_000));
        for tag in &sent {
            assert!(send(&mut network, gid(B), *tag, 64));
        }
        let mut got = arrivals(&mut network);
        assert_ne!(got, sent);
        got.sort_unstable();
        assert_eq!(got, sent, "late, but not lost");
    }

    #[test]
    fn a_port_takes_so_many_frames_and_says_when_it_has_room() {
        let mut network = network();
        network.wires.queue = 3;
        let taken = (0..5).filter(|tag| send(&mut network, gid(B), *tag, 1434)).count();
        assert_eq!(taken, 3);
        // 1434 bytes and 66 around them at 12.5 bytes per nanosecond.
        assert_eq!(network.room_at(A), Some(Instant(120)));
        assert_eq!(network.room_at(A), None, "asked and told");
    }

    #[test]
    fn what_is_too_long_or_goes_nowhere_is_lost() {
        let mut network = network();
        network.sightings = Some(Vec::new());
        network.wires.largest_payload = 100;
        assert!(send(&mut network, gid(B), 1, 101));
        assert!(send(&mut network, Ipv4Addr::new(10, 9, 9, 9).into(), 2, 64));
        assert_eq!(arrivals(&mut network), []);
        let sightings = network.sightings.as_deref().unwrap_or_default();
        let fates: Vec<_> = sightings.iter().map(|sighting| (sighting.to, sighting.fate)).collect();
        assert_eq!(fates, [(Some(B), Fate::Lost), (None, Fate::Lost)]);
    }

    #[test]
    fn faults_double_spoil_and_delay() {
        let mut network = network();
        let double = network.add_fault(Fault::new(Act::Duplicate, Filter::ALL));
        assert!(send(&mut network, gid(B), 7, 64));
        assert_eq!((arrivals(&mut network), network.hits(double)), (vec![7, 7], 1));
        network.end_fault(double);
        let spoil = network.add_fault(Fault::new(Act::Corrupt, Filter::ALL));
        assert!(send(&mut network, gid(B), 0, 64));
        let (.., arrival) = &network.departed[0];
        let ones: u32 = arrival.payload.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(ones, 1, "one bit of a frame of zeros");
        network.departed.clear();
        network.end_fault(spoil);
        network.add_fault(Fault::new(Act::Delay(Duration::from_millis(5)), Filter::ALL));
        assert!(send(&mut network, gid(B), 1, 64));
        assert!(network.departed[0].0 > Instant(5_000_000));
    }

    #[test]
    fn a_group_reaches_its_members() {
        let mut network = network();
        let group = Ipv4Addr::new(239, 0, 0, 1).into();
        network.join(group, A);
        network.join(group, B);
        assert!(send(&mut network, group, 9, 64));
        let to: Vec<_> = network.departed.drain(..).map(|(_, to, _)| to).collect();
        assert_eq!(to, [A, B]);
        network.leave(group, A);
        assert!(send(&mut network, group, 9, 64));
        assert_eq!(network.departed.len(), 1);
    }
}
