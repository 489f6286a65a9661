//! The world: hosts, network, links, clock.

use core::fmt::Write;
use core::time::Duration;
use std::cell::{Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use pmd_record::{Recorded, Recording};
use pmd_roce::counters::Counters;
use pmd_roce::engine::{
    DestroyError, Engine, EngineConfig, PostRecvError, PostSendError, ResourceError, SrqInit,
};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{CqId, Gid, Instant, LinkId, PathMtu, PdId, Qpn, Srqn};
use pmd_roce::qp::attr::{AddressVector, CreateQpError, ModifyQpError, QpAttr, QpInit};
use pmd_roce::qp::state::{AttrMask, QpState};
use pmd_roce::work::{Access, AhId, Completion, RecvWr, SendWr};

use crate::agenda::{Agenda, Happening};
use crate::cq::CqTable;
use crate::fault::{Fault, FaultId};
use crate::host::{Host, HostId};
use crate::limits;
use crate::link::{Fabric, Peers};
use crate::memory::{HostMemory, Mr, Shared};
use crate::network::{Network, Sighting, Wires};
use crate::rng::Rng;
use crate::tape::Input;
use crate::trace::Trace;

/// A deterministic world of engines.
#[derive(Debug)]
pub struct World {
    now: Instant,
    pub(crate) rng: Rng,
    /// How messages of shared memory are taken: something that nobody outside can tell.
    pub(crate) runs: Rng,
    pub(crate) trace: Trace,
    pub(crate) agenda: Agenda,
    pub(crate) hosts: Vec<Host>,
    pub(crate) memory: Vec<RefCell<HostMemory>>,
    pub(crate) network: Network,
    pub(crate) fabric: Fabric,
    /// Inputs of the engines, if anybody wants them.
    pub(crate) inputs: Option<Vec<Input>>,
    /// Where the engines of hosts to come are on record.
    recording: Option<Arc<Recording>>,
}

impl World {
    /// An empty world. The seed drives everything that is left to chance.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let network = Network::new(rng.fork());
        Self {
            now: Instant(0),
            rng,
            runs: Rng::new(!seed),
            trace: Trace::new(seed),
            agenda: Agenda::default(),
            hosts: Vec::new(),
            memory: Vec::new(),
            network,
            fabric: Fabric::default(),
            inputs: None,
            recording: None,
        }
    }

    // Hosts -----------------------------------------------------------------------------------

    /// Adds a host with one address, 10.0.0.n.
    pub fn add_host(&mut self, name: &str) -> HostId {
        let number = u8::try_from(self.hosts.len() + 1).expect("fewer than 255 hosts");
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, number));
        self.add_host_with(name, |config| config.gids = vec![gid])
    }

    /// Adds a host whose engine is configured by `configure`; it starts from one that has room for
    /// [`limits::OBJECTS`] of each kind and no address yet.
    ///
    /// # Panics
    /// When `configure` leaves the host without an address.
    pub fn add_host_with(
        &mut self,
        name: &str,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> HostId {
        let id = HostId(self.hosts.len());
        let process = u32::try_from(id.0 % 127 + 1).expect("below 128");
        let mut config = EngineConfig {
            seed: self.rng.bits(),
            max_qps: limits::OBJECTS,
            max_srqs: limits::OBJECTS,
            max_ahs: limits::OBJECTS,
            mtu: PathMtu::B4096,
            ..EngineConfig::new(process, 0, Vec::new())
        };
        configure(&mut config);
        let gid = config.gids.iter().find(|gid| **gid != Gid::default());
        let gid = *gid.expect("a host has an address");
        let engine = match &self.recording {
            Some(recording) => Recorded::on(recording, name, config.clone()),
            None => Recorded::new(config.clone()),
        };
        self.network.add_port(id);
        let gids = config.gids.iter().chain(&config.second_port);
        for gid in gids.filter(|gid| **gid != Gid::default()) {
            self.network.add_address(*gid, id);
        }
        self.fabric.add_host();
        self.memory.push(RefCell::new(HostMemory::new(id.0, self.rng.fork())));
        self.hosts.push(Host {
            name: name.to_owned(),
            gid,
            engine,
            cm: None,
            cqs: CqTable::default(),
            events: VecDeque::new(),
            ingress: VecDeque::new(),
            longest_wait: Duration::ZERO,
            lost_at_ingress: 0,
            next_turn: None,
            free_at: Instant(0),
            paused_until: Instant(0),
            alive: true,
            idle_turns: 0,
        });
        id
    }

    /// The hosts, in the order in which they were added.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len()).map(HostId)
    }

    /// The name a host was added with.
    pub fn name(&self, host: HostId) -> &str {
        &self.hosts[host.0].name
    }

    /// A host's first address.
    pub fn gid(&self, host: HostId) -> Gid {
        self.hosts[host.0].gid
    }

    /// A host's engine.
    pub fn engine(&self, host: HostId) -> &Engine {
        &self.hosts[host.0].engine
    }

    /// Runs `command` on a host's engine, for what this type has no method for.
    pub fn with_engine<R>(&mut self, host: HostId, command: impl FnOnce(&mut Recorded) -> R) -> R {
        let result = command(&mut self.hosts[host.0].engine);
        self.published(host);
        result
    }

    /// What a host's engine has counted.
    pub fn counters(&self, host: HostId) -> &Counters {
        self.hosts[host.0].engine.counters()
    }

    /// The next asynchronous event of a host.
    pub fn poll_event(&mut self, host: HostId) -> Option<AsyncEvent> {
        self.hosts[host.0].events.pop_front()
    }

    /// A host's memory, as its own CPU sees it.
    pub fn memory(&self, host: HostId) -> Ref<'_, HostMemory> {
        self.memory[host.0].borrow()
    }

    /// A host's memory, for its own CPU to change.
    pub fn memory_mut(&self, host: HostId) -> RefMut<'_, HostMemory> {
        self.memory[host.0].borrow_mut()
    }

    /// Registers `len` zero bytes on a host.
    pub fn register(&mut self, host: HostId, pd: PdId, len: usize, access: Access) -> Mr {
        self.memory_mut(host).register(pd, len, access)
    }

    // Commands --------------------------------------------------------------------------------

    /// Creates a completion queue.
    pub fn create_cq(&mut self, host: HostId, depth: usize) -> CqId {
        self.hosts[host.0].cqs.create(depth)
    }

    /// Takes the oldest completion of a queue.
    pub fn poll_cq(&mut self, host: HostId, cq: CqId) -> Option<Completion> {
        self.hosts[host.0].cqs.poll(cq)
    }

    /// A host's completion queues.
    pub fn cqs(&self, host: HostId) -> &CqTable {
        &self.hosts[host.0].cqs
    }

    /// [`Engine::fail_cq`]: the queue refuses everything from now on.
    pub fn kill_cq(&mut self, host: HostId, cq: CqId) {
        self.command(host, format_args!("kill {cq}"));
        let Host { engine, cqs, .. } = &mut self.hosts[host.0];
        cqs.kill(cq);
        engine.fail_cq(cq, cqs);
        self.published(host);
    }

    /// [`Engine::fail_device`].
    pub fn kill_device(&mut self, host: HostId) {
        self.command(host, format_args!("kill device"));
        let Host { engine, cqs, .. } = &mut self.hosts[host.0];
        engine.fail_device(cqs);
        self.published(host);
    }

    /// [`Engine::create_qp`].
    ///
    /// # Errors
    /// The engine's.
    pub fn create_raw_qp(&mut self, host: HostId, init: &QpInit) -> Result<Qpn, CreateQpError> {
        self.command(host, format_args!("create {init:?}"));
        self.with_engine(host, |engine| engine.create_qp(init))
    }

    /// [`Engine::modify_qp`].
    ///
    /// # Errors
    /// The engine's.
    pub fn modify_qp(
        &mut self,
        host: HostId,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyQpError> {
        let now = self.now;
        let Host { engine, cqs, .. } = &mut self.hosts[host.0];
        let mut mem = Shared(&self.memory[host.0]);
        let result = engine.modify_qp(now, qpn, attr, mask, &mut mem, cqs);
        self.command(host, format_args!("{qpn} {mask:?} {attr:?}"));
        self.published(host);
        result
    }

    /// Moves a queue pair by an edge that needs nothing but the state: to RESET, SQD or Error.
    ///
    /// # Errors
    /// The engine's.
    pub fn set_state(
        &mut self,
        host: HostId,
        qpn: Qpn,
        state: QpState,
    ) -> Result<(), ModifyQpError> {
        self.modify_qp(host, qpn, &QpAttr::new(state), AttrMask::STATE)
    }

    /// A queue pair's current state; `None` when there is no such queue pair.
    pub fn state(&self, host: HostId, qpn: Qpn) -> Option<QpState> {
        self.engine(host).query_qp(qpn).map(|view| view.attr.state)
    }

    /// [`Engine::destroy_qp`].
    ///
    /// # Errors
    /// The engine's.
    pub fn destroy_qp(&mut self, host: HostId, qpn: Qpn) -> Result<(), DestroyError> {
        self.command(host, format_args!("destroy {qpn}"));
        self.with_engine(host, |engine| engine.destroy_qp(qpn))
    }

    /// [`Engine::create_srq`].
    ///
    /// # Errors
    /// The engine's.
    pub fn create_srq(&mut self, host: HostId, init: &SrqInit) -> Result<Srqn, ResourceError> {
        self.command(host, format_args!("create {init:?}"));
        self.with_engine(host, |engine| engine.create_srq(init))
    }

    /// [`Engine::fail_srq`].
    ///
    /// # Errors
    /// The engine's.
    pub fn kill_srq(&mut self, host: HostId, srqn: Srqn) -> Result<(), ResourceError> {
        self.command(host, format_args!("kill {srqn}"));
        let Host { engine, cqs, .. } = &mut self.hosts[host.0];
        engine.fail_srq(srqn, cqs)?;
        self.published(host);
        Ok(())
    }

    /// [`Engine::create_ah`].
    ///
    /// # Errors
    /// The engine's.
    pub fn create_ah(&mut self, host: HostId, av: &AddressVector) -> Result<AhId, ResourceError> {
        self.command(host, format_args!("create {av:?}"));
        self.with_engine(host, |engine| engine.create_ah(av))
    }

    /// [`Engine::attach_multicast`], and the host's port joins the group.
    ///
    /// # Errors
    /// The engine's.
    pub fn attach_multicast(
        &mut self,
        host: HostId,
        qpn: Qpn,
        group: Gid,
    ) -> Result<(), ResourceError> {
        self.command(host, format_args!("attach {qpn} {group}"));
        self.with_engine(host, |engine| engine.attach_multicast(qpn, group))?;
        self.network.join(group, host);
        Ok(())
    }

    /// A host's port leaves a multicast group.
    pub fn leave_multicast(&mut self, host: HostId, group: Gid) {
        self.network.leave(group, host);
    }

    /// [`Engine::post_send`].
    ///
    /// # Errors
    /// The engine's.
    pub fn post_send(
        &mut self,
        host: HostId,
        qpn: Qpn,
        wr: &SendWr<'_>,
    ) -> Result<(), PostSendError> {
        self.command(host, format_args!("{qpn} {wr:?}"));
        self.with_engine(host, |engine| engine.post_send(qpn, wr))
    }

    /// [`Engine::post_recv`].
    ///
    /// # Errors
    /// The engine's.
    pub fn post_recv(
        &mut self,
        host: HostId,
        qpn: Qpn,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostRecvError> {
        self.command(host, format_args!("{qpn} {wr:?}"));
        self.with_engine(host, |engine| engine.post_recv(qpn, wr))
    }

    /// [`Engine::post_srq_recv`].
    ///
    /// # Errors
    /// The engine's.
    pub fn post_srq_recv(
        &mut self,
        host: HostId,
        srqn: Srqn,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostRecvError> {
        self.command(host, format_args!("{srqn} {wr:?}"));
        self.with_engine(host, |engine| engine.post_srq_recv(srqn, wr))
    }

    /// Traces a command, and keeps it for the record.
    fn command(&mut self, host: HostId, what: core::fmt::Arguments<'_>) {
        self.trace.write_fmt(what).expect("a trace takes everything");
        if let Some(inputs) = &mut self.inputs {
            inputs.push(Input { at: self.now, host, what: format!("command {what}") });
        }
    }

    /// After a command: shows peers what changed, and gives the host a turn.
    fn published(&mut self, id: HostId) {
        if !self.hosts[id.0].alive {
            return;
        }
        let now = self.now;
        let mut peers = Peers { host: id, now, fabric: &mut self.fabric, memory: &self.memory };
        self.hosts[id.0].engine.publish(&mut peers);
        self.settle(id, 0);
        self.wake(id, now);
    }

    // Shared memory ---------------------------------------------------------------------------

    /// Lets two hosts share memory, as processes of one machine; returns each end's name for it.
    pub fn link(&mut self, a: HostId, b: HostId) -> (LinkId, LinkId) {
        self.fabric.link(a, b)
    }

    /// The newest link from one host to another.
    pub fn link_between(&self, host: HostId, peer: HostId) -> Option<LinkId> {
        self.fabric.between(host, peer)
    }

    /// How long the first access to each of a peer's regions waits for its mapping.
    pub fn set_map_delay(&mut self, delay: Duration) {
        self.fabric.map_delay = delay;
    }

    /// From now on the host takes no more than one record in so long.
    pub fn set_pace(&mut self, host: HostId, pace: Duration) {
        self.fabric.set_pace(host, pace);
    }

    /// Store-load fences that a host's engine asked for.
    pub fn fences(&self, host: HostId) -> u64 {
        self.fabric.fences(host)
    }

    /// Bytes that a host has written into the rings of its links.
    pub fn ring_bytes(&self, host: HostId) -> u64 {
        self.fabric.pushed(host)
    }

    // Faults ----------------------------------------------------------------------------------

    /// How frames travel.
    pub fn wires_mut(&mut self) -> &mut Wires {
        &mut self.network.wires
    }

    /// Adds a fault to the plan.
    pub fn add_fault(&mut self, fault: Fault) -> FaultId {
        self.network.add_fault(fault)
    }

    /// Takes a fault out of the plan.
    pub fn end_fault(&mut self, fault: FaultId) {
        self.network.end_fault(fault);
    }

    /// How many frames a fault has hit.
    pub fn hits(&self, fault: FaultId) -> u64 {
        self.network.hits(fault)
    }

    /// Loses every frame between two hosts, both ways, from now on.
    pub fn partition(&mut self, a: HostId, b: HostId) -> [FaultId; 2] {
        let lost = Fault::new(crate::Act::Drop, crate::Filter::ALL);
        [self.add_fault(lost.from(a).to(b)), self.add_fault(lost.from(b).to(a))]
    }

    /// Takes a host's first port down or up: frames that it sends or should get are lost while down.
    pub fn set_port(&mut self, host: HostId, up: bool) {
        self.set_port_of(host, 1, up);
    }

    /// The same for one of several ports. Frames on their way to a port that goes down are lost.
    ///
    /// # Panics
    /// When the host has no such port.
    pub fn set_port_of(&mut self, host: HostId, port: u8, up: bool) {
        self.command(host, format_args!("port {port} up: {up}"));
        let done = self.with_engine(host, |engine| match up {
            true => engine.port_up(port),
            false => engine.port_down(port),
        });
        done.expect("a port of this host");
    }

    /// [`Engine::set_gids`] for the first port; the network brings frames for these addresses, and for
    /// no other of the port, to this host.
    ///
    /// # Errors
    /// The engine's.
    pub fn set_gids(&mut self, host: HostId, gids: &[Gid]) -> Result<(), ResourceError> {
        self.command(host, format_args!("gids {gids:?}"));
        let before = self.engine(host).gids(1).to_vec();
        self.with_engine(host, |engine| engine.set_gids(1, gids))?;
        before.into_iter().for_each(|gid| self.network.remove_address(gid));
        let taken = gids.iter().filter(|gid| **gid != Gid::default());
        taken.for_each(|gid| self.network.add_address(*gid, host));
        Ok(())
    }

    /// Frames from and to this address are RoCE v1 from now on. Those of another version are lost: a port
    /// does not look at them.
    pub fn make_old(&mut self, gid: Gid) {
        self.network.make_old(gid);
    }

    /// Moves an address to another host.
    pub fn move_gid(&mut self, gid: Gid, to: Option<HostId>) {
        self.network.remove_address(gid);
        if let Some(host) = to {
            self.network.add_address(gid, host);
        }
    }

    /// The host has no turn for so long; what arrives waits.
    pub fn pause(&mut self, host: HostId, span: Duration) {
        self.hosts[host.0].paused_until = self.now.after(span);
    }

    /// The host dies. Peers on its machine learn of it after [`limits::DEATH_NOTICE`].
    pub fn kill_host(&mut self, host: HostId) {
        self.command(host, format_args!("dies"));
        let dead = &mut self.hosts[host.0];
        dead.alive = false;
        dead.next_turn = None;
        self.agenda.bury(self.now.after(limits::DEATH_NOTICE), host);
    }

    // Observation -----------------------------------------------------------------------------

    /// Keeps every frame that is sent from now on, for [`World::frames`].
    pub fn record_frames(&mut self) {
        self.network.sightings.get_or_insert_default();
    }

    /// The frames that were kept.
    pub fn frames(&self) -> &[Sighting] {
        self.network.sightings.as_deref().unwrap_or_default()
    }

    /// Frames that arrived at a host whose receive queue was full.
    pub fn lost_at_ingress(&self, host: HostId) -> u64 {
        self.hosts[host.0].lost_at_ingress
    }

    /// Keeps every input of every engine from now on.
    pub fn record_inputs(&mut self) {
        self.inputs.get_or_insert_default();
    }

    /// Has the engines of hosts that are added from now on write to this record.
    pub fn record_to(&mut self, recording: &Arc<Recording>) {
        self.recording = Some(Arc::clone(recording));
    }

    /// The inputs that were kept.
    pub fn take_inputs(&mut self) -> Vec<Input> {
        self.inputs.take().unwrap_or_default()
    }

    /// The longest time that a frame waited for its host's next turn.
    pub fn longest_wait(&self, host: HostId) -> Duration {
        self.hosts[host.0].longest_wait
    }

    /// Hash over everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// The world's source of chance, for the scenario's own choices.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    // Time ------------------------------------------------------------------------------------

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// When the next thing happens; `None` when nothing will, whatever the time.
    pub fn next_at(&self) -> Option<Instant> {
        self.agenda.next_at()
    }

    /// Lets the next thing happen. False: nothing will.
    pub fn step(&mut self) -> bool {
        let Some((at, id, what)) = self.agenda.pop() else { return false };
        self.now = self.now.max(at);
        match what {
            Happening::Arrive(arrival) => {
                let host = &mut self.hosts[id.0];
                if !host.alive {
                    return true;
                }
                if host.ingress.len() == limits::INGRESS_FRAMES {
                    host.lost_at_ingress += 1;
                } else {
                    host.ingress.push_back((self.now, arrival));
                    self.wake(id, self.now);
                }
            }
            Happening::Turn => {
                self.hosts[id.0].next_turn = None;
                if self.can_turn(id) {
                    self.turn(id, false);
                } else {
                    self.wake(id, self.hosts[id.0].paused_until);
                }
            }
            Happening::Drain => self.fabric.drain_stores(id, &self.memory),
            Happening::Buried => self.bury(id),
        }
        self.forget_stale();
        true
    }

    /// Takes turns off the agenda that were had earlier, so that the clock does not stop for them.
    fn forget_stale(&mut self) {
        while let Some((at, id)) = self.agenda.next_turn() {
            if self.hosts[id.0].next_turn == Some(at) {
                break;
            }
            self.agenda.pop();
        }
    }

    /// Gives a host a turn now, as if it polled at this very moment. It has none while it is paused
    /// or dead.
    pub fn poll_host(&mut self, host: HostId) {
        if self.can_turn(host) {
            self.turn(host, true);
            self.forget_stale();
        }
    }

    /// Lets everything happen that is due up to `until`, and moves the clock there.
    pub fn run_to(&mut self, until: Instant) {
        while self.next_at().is_some_and(|at| at <= until) {
            self.step();
        }
        self.now = self.now.max(until);
    }

    /// [`World::run_to`] so long from now.
    pub fn run_for(&mut self, span: Duration) {
        self.run_to(self.now.after(span));
    }

    /// Steps until `done`, at most for `limit` of virtual time. Whether it was done.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now.after(limit);
        while !done(self) {
            if self.next_at().is_none_or(|at| at > until) {
                self.now = self.now.max(until);
                return done(self);
            }
            self.step();
        }
        true
    }

    pub(crate) fn can_turn(&self, id: HostId) -> bool {
        let host = &self.hosts[id.0];
        host.alive && host.paused_until <= self.now
    }

    /// Gives a host a turn at `at` or earlier, but not before its last one is over.
    pub(crate) fn wake(&mut self, id: HostId, at: Instant) {
        let host = &mut self.hosts[id.0];
        let at = at.max(host.free_at);
        if host.alive && host.next_turn.is_none_or(|planned| at < planned) {
            host.next_turn = Some(at);
            self.agenda.turn(at, id);
            self.forget_stale();
        }
    }

    /// Peers of a dead host learn of it.
    fn bury(&mut self, id: HostId) {
        self.fabric.bury(id);
        let peers: Vec<_> = self.fabric.links(id).map(|(_, peer)| peer).collect();
        for peer in peers {
            let links: Vec<_> = self.fabric.links(peer).filter(|(_, to)| *to == id).collect();
            for (link, _) in links {
                self.command(peer, format_args!("link {link} down"));
                let Host { engine, cqs, alive, .. } = &mut self.hosts[peer.0];
                if *alive {
                    engine.handle_link_down(self.now, link, cqs);
                    self.published(peer);
                }
            }
        }
    }
}
