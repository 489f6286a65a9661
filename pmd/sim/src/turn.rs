//! One turn of a host's loop, in the order in which a poll-mode loop does it.

use core::fmt::Write;

use pmd_roce::ids::Instant;
use pmd_roce::sink::{Frame, IpId};

use crate::arrivals::Arrivals;
use crate::host::{Host, HostId};
use crate::limits;
use crate::link::Peers;
use crate::memory::Shared;
use crate::network::Egress;
use crate::tape::{self, Input};
use crate::world::World;

impl World {
    /// Runs one turn of a host: frames, records, timers, transmission, events.
    ///
    /// Now and then a peer's turn falls between two of these steps, as it may where both poll at
    /// the same time.
    pub(crate) fn turn(&mut self, id: HostId, nested: bool) {
        let now = self.now();
        self.hosts[id.0].free_at = Instant(now.0 + limits::TURN_NS);
        self.trace.word(now.0);
        self.trace.word(id.0 as u64);
        if let Some(inputs) = &mut self.inputs {
            inputs.push(Input { at: now, host: id, what: "turn".to_owned() });
        }
        self.fabric.drain_stores(id, &self.memory);
        self.fabric.sample(id);
        if !nested {
            self.interleave(id);
        }
        let mut work = self.take_frames(id);
        work += self.take_records(id);
        let host = &mut self.hosts[id.0];
        let mut mem = Shared(&self.memory[id.0]);
        host.engine.handle_timeout(now, &mut mem, &mut host.cqs);
        work += host.manage_connections(now);
        let mut peers = Peers { host: id, now, fabric: &mut self.fabric, memory: &self.memory };
        let (network, trace) = (&mut self.network, &mut self.trace);
        let mut tx = Egress { network, host: id, now, trace };
        work += host.engine.poll_transmit(now, &mut mem, &mut tx, &mut peers, &mut host.cqs);
        self.fabric.show_taken(id);
        self.settle(id, work);
    }

    fn interleave(&mut self, id: HostId) {
        let peers: Vec<_> = self.fabric.links(id).map(|(_, peer)| peer).collect();
        let Some(peer) = peers.get(self.rng.index(peers.len())).copied() else { return };
        if peer != id && self.rng.chance(125_000) && self.can_turn(peer) {
            self.turn(peer, true);
        }
    }

    fn take_frames(&mut self, id: HostId) -> usize {
        let now = self.now();
        let Host { engine, cqs, ingress, longest_wait, .. } = &mut self.hosts[id.0];
        let mut mem = Shared(&self.memory[id.0]);
        let mut work = 0;
        while let Some((at, arrival)) = ingress.pop_front() {
            *longest_wait = now.since(at).max(*longest_wait);
            if let Some(inputs) = &mut self.inputs {
                let what = tape::frame(&arrival.payload);
                inputs.push(Input { at: now, host: id, what });
            }
            let ip_id = IpId::Exact(arrival.ip_id);
            let frame = Frame { flow: arrival.flow, ip_id, payload: &arrival.payload };
            let outcome = engine.handle_frame(now, &frame, &mut mem, cqs);
            self.trace.bytes(&arrival.payload);
            self.trace.word(outcome.dropped.map_or(u64::MAX, |reason| reason as u64));
            work += 1;
        }
        work
    }

    fn take_records(&mut self, id: HostId) -> usize {
        let now = self.now();
        let Host { engine, cqs, .. } = &mut self.hosts[id.0];
        let mut mem = Shared(&self.memory[id.0]);
        let mut work = 0;
        let links: Vec<_> = self.fabric.links(id).map(|(link, _)| link).collect();
        for link in links {
            while self.fabric.may_take(now, id) {
                // Runs of any length: also the usual message must get along without one.
                let budget = self.runs.index(limits::RUN + 1);
                let (fabric, memory, trace) = (&mut self.fabric, &self.memory, &mut self.trace);
                let mut arrivals = Arrivals { host: id, link, now, fabric, memory, trace };
                let taken = match budget {
                    1 => engine.handle_arrival(link, &mut arrivals, cqs).into(),
                    _ => engine.handle_arrivals(link, &mut arrivals, budget, cqs),
                };
                work += taken;
                if taken > 0 {
                    continue;
                }
                let Some(entry) = self.fabric.take(id, link) else {
                    self.fabric.drained(id, link);
                    break;
                };
                let mut payload = self.fabric.arrived(now, id, link, &entry, &self.memory);
                let mut peers =
                    Peers { host: id, now, fabric: &mut self.fabric, memory: &self.memory };
                let record = &entry.record;
                let taken = engine.handle_record(
                    now,
                    link,
                    record,
                    &mut payload,
                    &mut mem,
                    &mut peers,
                    cqs,
                );
                if !taken {
                    self.fabric.put_back(id, link, entry);
                    break;
                }
                write!(self.trace, "{record:?}").expect("a trace takes everything");
                if let Some(inputs) = &mut self.inputs {
                    let what = format!("record {record:?}");
                    inputs.push(Input { at: now, host: id, what });
                }
                self.fabric.rest(now, id);
                work += 1;
            }
        }
        work
    }

    /// After a turn or a command: collects what came out and puts on the agenda what follows.
    pub(crate) fn settle(&mut self, id: HostId, work: usize) {
        let now = self.now();
        let host = &mut self.hosts[id.0];
        while let Some(event) = host.engine.poll_event() {
            write!(self.trace, "{event:?}").expect("a trace takes everything");
            host.events.push_back(event);
        }
        for (cq, completion) in host.cqs.arrived.drain(..) {
            self.trace.word(now.0);
            write!(self.trace, "{cq} {completion:?}").expect("a trace takes everything");
        }
        let due = host.engine.poll_timeout();
        let overdue = work == 0 && due.is_some_and(|due| due <= now);
        host.idle_turns = if overdue { host.idle_turns + 1 } else { 0 };
        assert!(
            host.idle_turns < limits::IDLE_TURNS,
            "{}: a timer of the engine is due and nothing happens",
            host.name
        );
        for (at, to, arrival) in self.network.departed.drain(..) {
            self.agenda.arrive(at, to, arrival);
        }
        let again = (work > 0).then_some(now);
        let room = self.network.room_at(id);
        let management = self.hosts[id.0].management_due();
        for at in
            [again, due, room, management, self.fabric.take_ready_at(id)].into_iter().flatten()
        {
            self.wake(id, at);
        }
        if self.fabric.has_stores(id) {
            let delay = self.rng.between(1, limits::STORE_DELAY_NS);
            self.agenda.drain(Instant(now.0 + delay), id);
        }
        if self.fabric.take_changed(id) {
            let peers: Vec<_> = self.fabric.links(id).map(|(_, peer)| peer).collect();
            for peer in peers {
                let delay = self.rng.between(1, limits::POLL_NS);
                self.wake(peer, Instant(now.0 + delay));
            }
        }
    }
}
