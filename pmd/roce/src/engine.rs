//! The engine: everything a RoCEv2 device does, without doing any I/O.
//!
//! An [`Engine`] belongs to one lcore. Methods come in four kinds: *commands* (`create_*`,
//! `modify_*`, `post_*`, `destroy_*`), *inputs* (`handle_*`), *outputs* (`poll_*`) and getters.
//! Call, in this order and once per turn of the loop: [`Engine::handle_frame`] for every frame,
//! [`Engine::handle_arrivals`] and [`Engine::handle_record`] for what came by a link, [`Engine::handle_timeout`],
//! then commands at will, then [`Engine::poll_transmit`], then [`Engine::poll_event`] until empty.
//! [`Engine::poll_timeout`] says how long the loop may sleep. Where memory is shared with peers,
//! [`Engine::publish`] follows every command and timeout.

mod config;
mod fault;
mod local_path;
mod port;

use crate::address;
use crate::completer;
use crate::counters::Counters;
use crate::device::{Device, Io};
use crate::event::AsyncEvent;
use crate::gsi::{self, Gsi, ManagementDatagram};
use crate::ids::{Gid, Instant, LinkId, Qpn, Srqn};
use crate::limits::{POLL_BUDGET, TURN_BUDGET};
use crate::local::responder::Taken;
use crate::local::{self, Arrivals, Arrived, LocalPeer, Record};
use crate::memory::Memory;
use crate::qp;
use crate::qp::attr::{AddressVector, CreateQpError, ModifyQpError, QpAttr, QpInit};
use crate::qp::state::{AttrMask, QpState, Transport};
use crate::qp::stats::QpStats;
use crate::qp::table::QpTable;
use crate::ready::ReadyList;
use crate::receive;
use crate::responder::reply;
use crate::sink::{CqSink, Frame, FrameOutcome, TxSink};
use crate::transition::Transition;
use crate::turn::{self, End};
use crate::wire::DropReason;
use crate::work::{AhId, RecvWr, SendWr};

pub use config::{EngineConfig, QpView, SrqInit, SrqView};

pub use crate::error::{
    DestroyError, PostMadError, PostRecvError, PostSendError, Refusal, ResourceError,
};

/// A RoCEv2 device of one lcore.
#[derive(Debug)]
pub struct Engine {
    qps: QpTable,
    device: Device,
}

impl Engine {
    /// Makes room for everything that `config` allows. After this, memory is allocated where
    /// objects are created and where a queue pair is given its READ and atomic resources, and
    /// nowhere else.
    pub fn new(config: EngineConfig) -> Self {
        let qps = QpTable::new(&config);
        let device = Device::new(config, qps.capacity());
        Self { qps, device }
    }

    // Commands ------------------------------------------------------------------------------

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// [`CreateQpError`] names the wish that cannot be granted.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, CreateQpError> {
        let granted = qp::create::check(init, &self.device)?;
        let max = self.qps.capacity();
        let qpn =
            self.qps.create(granted, self.device.now).ok_or(CreateQpError::TooMany { max })?;
        if let Some(srqn) = init.srq {
            self.device.srqs.count_user(srqn, true);
        }
        Ok(qpn)
    }

    /// Caps as granted, state, attributes and fill of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpView> {
        self.qps.get(qpn).map(|qp| QpView {
            init: qp.init,
            attr: QpAttr { cur_state: qp.state(), ..qp.attr },
            send_outstanding: qp.sq.len(),
            send_posted: qp.sq.posted(),
            recv_outstanding: qp.rq.len() + u32::from(qp.receive.open),
            recv_posted: qp.rq.posted(),
            memory_bytes: qp.memory_bytes(),
        })
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        self.qps.get(qpn).map(qp::Qp::state)
    }

    /// What a queue pair has been through since it was created.
    pub fn query_qp_stats(&self, qpn: Qpn) -> Option<QpStats> {
        self.qps.get(qpn).map(|qp| qp.book.stats(qp.state()))
    }

    /// The queue pairs there are, with their states and since when they are in them.
    pub fn queue_pairs(&self) -> impl Iterator<Item = (Qpn, QpState, Instant)> + '_ {
        self.qps.iter().map(|qp| (qp.qpn, qp.state(), qp.book.since()))
    }

    /// The first queue pair at a place in the engine's table or behind it, and the place that comes next: for
    /// who looks at all of them, a few at a time.
    pub fn queue_pair_from(&self, place: u32) -> Option<(Qpn, u32)> {
        self.qps.first_from(place).map(|(slot, qp)| (qp.qpn, slot + 1))
    }

    /// Moves a queue pair along one edge of the state table; all or nothing.
    ///
    /// # Errors
    /// [`ModifyQpError`] names what is missing, what does not belong, or which value is wrong.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> Result<(), ModifyQpError> {
        let qp = self.qps.get_mut(qpn).ok_or(ModifyQpError::NoSuchQp(qpn))?;
        let to = qp::modify::check(qp, &self.device, attr, mask)?;
        self.device.now = now;
        let mut io = Io { now, mem, cq };
        qp::modify::apply(qp, &mut self.device, &mut io, attr, mask, to);
        self.fail_overrun(io.cq);
        Ok(())
    }

    /// Destroys a queue pair; what is outstanding is forgotten, as `ibv_destroy_qp(3)`.
    ///
    /// # Errors
    /// [`DestroyError::Attached`] while it is a member of multicast groups.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        let dev = &mut self.device;
        match dev.groups.memberships(qpn) {
            0 => {}
            groups => return Err(DestroyError::Attached(groups)),
        }
        let qp = self.qps.remove(qpn).ok_or(DestroyError::NotFound)?;
        dev.dismiss(&qp);
        dev.events.forget(qpn);
        dev.pages.forget(qp.slot, qpn);
        if let Some(srqn) = qp.init.srq {
            dev.srqs.count_user(srqn, false);
        }
        Ok(())
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`ResourceError`] when a size is out of range or every slot is taken.
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<Srqn, ResourceError> {
        self.device.check_alive()?;
        self.device.srqs.create(init)
    }

    /// Arms the limit event: it fires once when fewer than `limit` requests are left. 0 disarms.
    ///
    /// # Errors
    /// [`ResourceError`] when there is no such queue or it cannot hold so many.
    pub fn arm_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), ResourceError> {
        self.device.srqs.arm(srqn, limit)
    }

    /// Keeps the last `receives` of a shared queue for queue pairs that have had none of it since they
    /// were made or reset: so a new connection's first message finds a receive, however dry others have
    /// drunk the queue. 0 keeps none.
    ///
    /// # Errors
    /// [`ResourceError`] when there is no such queue or it cannot hold so many.
    pub fn reserve_srq(&mut self, srqn: Srqn, receives: u32) -> Result<(), ResourceError> {
        self.device.srqs.reserve(srqn, receives)
    }

    /// Fill, limit and history of a shared receive queue.
    pub fn query_srq(&self, srqn: Srqn) -> Option<SrqView> {
        self.device.srqs.query(srqn)
    }

    /// The shared receive queues there are, each as [`Engine::query_srq`] shows it.
    pub fn shared_receive_queues(&self) -> impl Iterator<Item = (Srqn, SrqView)> + '_ {
        self.device.srqs.numbers().filter_map(|srqn| Some((srqn, self.query_srq(srqn)?)))
    }

    /// Destroys a shared receive queue that no queue pair uses.
    ///
    /// # Errors
    /// [`DestroyError::InUse`] while a queue pair was created with it.
    pub fn destroy_srq(&mut self, srqn: Srqn) -> Result<(), DestroyError> {
        self.device.srqs.destroy(srqn)
    }

    /// Creates an address handle.
    ///
    /// # Errors
    /// [`ResourceError`] names the field of the address vector that is wrong.
    pub fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, ResourceError> {
        self.device.check_alive()?;
        let src = address::check(av, &self.device.ports)?;
        self.device.ahs.create(av, src)
    }

    /// Destroys an address handle. Datagrams that still refer to it fail.
    ///
    /// # Errors
    /// [`DestroyError::NotFound`].
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), DestroyError> {
        self.device.ahs.destroy(ah)
    }

    /// Makes a UD queue pair a member of a group; a second time changes nothing.
    ///
    /// # Errors
    /// [`ResourceError`] when the queue pair is not UD, the address is no group, or there are too
    /// many groups.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        let qp = self.qps.get(qpn).ok_or(ResourceError::NotFound)?;
        if qp.transport() != Transport::Ud {
            let (field, value) = ("qp_type", qp.transport() as u64);
            return Err(ResourceError::Value { field, value, need: "multicast is for UD only" });
        }
        self.device.groups.attach(qpn, group)
    }

    /// Ends a membership.
    ///
    /// # Errors
    /// [`ResourceError::NotFound`].
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        self.device.groups.detach(qpn, group)
    }

    /// Appends to a send queue. Starts at the next [`Engine::poll_transmit`].
    ///
    /// # Errors
    /// [`PostSendError`]; nothing was posted.
    #[inline]
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if let Some(qp) = self.qps.get_mut(qpn)
            && qp::post::send_usual(qp, &mut self.device, wr)
        {
            return Ok(());
        }
        self.post_send_any(qpn, wr)
    }

    #[inline(never)]
    fn post_send_any(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.post_send_list(qpn, [wr]).map_err(|(_, error)| error)
    }

    /// Appends a list of requests, each as [`Engine::post_send`] does.
    ///
    /// # Errors
    /// How many were posted, and why the next one was not.
    #[inline]
    pub fn post_send_list<'a, 'b: 'a>(
        &mut self,
        qpn: Qpn,
        list: impl IntoIterator<Item = &'a SendWr<'b>>,
    ) -> Result<(), (usize, PostSendError)> {
        match self.qps.get_mut(qpn) {
            Some(qp) => qp::post::send(qp, &mut self.device, list),
            None => Err((0, PostSendError::NoSuchQp(qpn))),
        }
    }

    /// Appends to a receive queue.
    ///
    /// # Errors
    /// [`PostRecvError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if let Some(qp) = self.qps.get_mut(qpn)
            && qp::post::recv_usual(qp, &mut self.device, wr)
        {
            return Ok(());
        }
        self.post_recv_any(qpn, wr)
    }

    #[inline(never)]
    fn post_recv_any(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.post_recv_list(qpn, [wr]).map_err(|(_, error)| error)
    }

    /// Appends a list of receives, each as [`Engine::post_recv`] does.
    ///
    /// # Errors
    /// How many were posted, and why the next one was not.
    #[inline]
    pub fn post_recv_list<'a, 'b: 'a>(
        &mut self,
        qpn: Qpn,
        list: impl IntoIterator<Item = &'a RecvWr<'b>>,
    ) -> Result<(), (usize, PostRecvError)> {
        match self.qps.get_mut(qpn) {
            Some(qp) => qp::post::recv(qp, &mut self.device, list),
            None => Err((0, PostRecvError::NoSuchQp(qpn))),
        }
    }

    /// Appends to a shared receive queue.
    ///
    /// # Errors
    /// [`PostRecvError`]; nothing was posted.
    pub fn post_srq_recv(&mut self, srqn: Srqn, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if self.device.fatal {
            return Err(PostRecvError::DeviceFatal);
        }
        self.device.srqs.post(srqn, wr)
    }

    /// Makes queue pair 1, the general services interface: from now on management datagrams that arrive
    /// here wait for [`Engine::poll_mad`]. A second time changes nothing.
    ///
    /// # Errors
    /// [`ResourceError::DeviceFatal`].
    pub fn open_gsi(&mut self) -> Result<(), ResourceError> {
        self.device.check_alive()?;
        self.device.gsi.get_or_insert_with(|| Box::new(Gsi::new()));
        Ok(())
    }

    /// Appends a management datagram to what queue pair 1 sends to queue pair 1 of another device, at the
    /// next [`Engine::poll_transmit`].
    ///
    /// # Errors
    /// [`PostMadError`]; nothing was posted.
    pub fn post_mad(&mut self, datagram: &ManagementDatagram) -> Result<(), PostMadError> {
        gsi::post(&mut self.device, datagram)
    }

    /// Shows peers on the same host what has changed since the last time. Call it after commands,
    /// arrivals and timeouts, before the consumer sees the completions they caused: once it knows that a queue
    /// pair is in Error, it may reuse memory that a peer would still use. The other methods that
    /// get `peers` do this themselves.
    pub fn publish(&mut self, peers: &mut impl LocalPeer) {
        self.device.pages.publish(&mut self.qps, peers);
    }

    // Inputs --------------------------------------------------------------------------------

    /// Takes one frame from a wire.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> FrameOutcome {
        self.device.now = now;
        let mut io = Io { now, mem, cq };
        let outcome = receive::frame(&mut self.qps, &mut self.device, &mut io, frame);
        self.fail_overrun(io.cq);
        outcome
    }

    /// Takes the usual messages at the front of a link's ring, at most `budget` of them; returns how
    /// many. What is at the front then is for [`Engine::handle_record`], and after it this can go on.
    #[inline]
    pub fn handle_arrivals(
        &mut self,
        link: LinkId,
        arrivals: &mut impl Arrivals,
        budget: usize,
        cq: &mut impl CqSink,
    ) -> usize {
        let Self { qps, device } = self;
        let taken = local::arrivals::take(qps, device, cq, link, arrivals, budget);
        self.fail_overrun(cq);
        taken
    }

    /// Takes the message at the front of a link's ring, if it is a usual one with its bytes behind it; whether it was. As
    /// [`Engine::handle_arrivals`], for one that is alone there.
    #[inline]
    pub fn handle_arrival(
        &mut self,
        link: LinkId,
        arrivals: &mut impl Arrivals,
        cq: &mut impl CqSink,
    ) -> bool {
        let Self { qps, device } = self;
        let is_taken = local::arrivals::take_alone(qps, device, cq, link, arrivals);
        self.fail_overrun(cq);
        is_taken
    }

    /// Takes one record from a link. False: the record must stay in the ring and come again, since
    /// an answer to it has no room or its bytes are not mapped yet.
    #[expect(clippy::too_many_arguments, reason = "what a caller lends is an argument each")]
    pub fn handle_record(
        &mut self,
        now: Instant,
        link: LinkId,
        record: &Record,
        payload: &mut impl Arrived,
        mem: &mut impl Memory,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> bool {
        let mut io = Io { now, mem, cq };
        let dev = &mut self.device;
        let taken = match self.qps.get_mut(record.dst) {
            Some(qp) => local::responder::handle(qp, dev, &mut io, peers, link, record, payload),
            None => {
                let reason = DropReason::UnknownQp;
                local::responder::turn_away(dev, peers, link, record, reason)
            }
        };
        self.fail_overrun(io.cq);
        if self.device.pages.has_changed() {
            self.publish(peers);
        }
        taken == Taken::Yes
    }

    /// Runs every timer that is due.
    pub fn handle_timeout(&mut self, now: Instant, mem: &mut impl Memory, cq: &mut impl CqSink) {
        let mut io = Io { now, mem, cq };
        self.device.now = now;
        self.device.timers.arm(now);
        while let Some(slot) = self.device.timers.due(now) {
            let Some(qp) = self.qps.at(slot) else { continue };
            if qp.is_local() || qp.transport() == Transport::Ud {
                // Judged in its next turn, which can look at the peer first.
                qp.local.lapse();
                self.device.wake(qp);
            } else {
                completer::handle_timeout(qp, &mut self.device, &mut io);
            }
        }
        self.fail_overrun(io.cq);
    }

    // Outputs -------------------------------------------------------------------------------

    /// Sends what is due: responses, then requests, then acknowledgements, and runs the local path. Budgeted and resumable: stops where the wire is full. Returns how much was done; 0
    /// means that nothing is left to do, or that the wire is full.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mem: &mut impl Memory,
        tx: &mut impl TxSink,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> usize {
        self.device.now = now;
        let mut io = Io { now, mem, cq };
        let mut sent = self.send_packets(&mut io, tx, peers);
        sent += self.transmit_acks(&mut io, tx);
        sent += gsi::transmit(&mut self.device, tx, POLL_BUDGET.saturating_sub(sent));
        let done = sent + self.run_local(&mut io, peers, POLL_BUDGET.saturating_sub(sent));
        self.device.timers.arm(now);
        done
    }

    /// The part of [`Engine::poll_transmit`] that is for the local path, and needs no time: deadlines
    /// it sets count from the next call that is told the time. Polls without a clock may be many
    /// between two that read it.
    #[inline]
    pub fn poll_local(
        &mut self,
        mem: &mut impl Memory,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> usize {
        let mut io = Io { now: Instant::default(), mem, cq };
        self.run_local(&mut io, peers, POLL_BUDGET)
    }

    /// Whether a queue pair waits for [`Engine::poll_transmit`] with something that
    /// [`Engine::poll_local`] does not do.
    #[inline]
    pub fn has_packets(&self) -> bool {
        let dev = &self.device;
        !dev.ready.is_empty() || !dev.acks.is_empty() || self.has_mads_to_send()
    }

    fn send_packets<M: Memory, C: CqSink>(
        &mut self,
        io: &mut Io<'_, M, C>,
        tx: &mut impl TxSink,
        peers: &mut impl LocalPeer,
    ) -> usize {
        let dev = &mut self.device;
        let mut done = 0;
        // In rounds: a round in which nobody got anywhere is the last one.
        let (mut turns_left, mut done_before) = (dev.ready.len(), 0);
        while done < POLL_BUDGET {
            if turns_left == 0 {
                if done == done_before {
                    break;
                }
                (turns_left, done_before) = (dev.ready.len(), done);
            }
            let Some(slot) = dev.ready.pop() else { break };
            turns_left = turns_left.saturating_sub(1);
            let Some(qp) = self.qps.at(slot) else { continue };
            let budget = TURN_BUDGET.min(POLL_BUDGET - done);
            let turn = turn::take(qp, dev, io, tx, peers, budget);
            done += turn.done;
            match turn.end {
                End::Idle => {}
                End::More => dev.ready.push(slot),
                End::WireFull => {
                    dev.ready.push_front(slot);
                    break;
                }
            }
        }
        done
    }

    /// Sends the ACKs that queue pairs owe beside nothing else, as far as the wire has room.
    fn transmit_acks<M: Memory, C: CqSink>(
        &mut self,
        io: &mut Io<'_, M, C>,
        tx: &mut impl TxSink,
    ) -> usize {
        let dev = &mut self.device;
        let mut done = 0;
        while let Some(slot) = dev.acks.pop() {
            let Some(qp) = self.qps.at(slot) else { continue };
            let turn = reply::transmit(qp, dev, io, tx, TURN_BUDGET);
            done += turn.done;
            match turn.end {
                End::Idle => {}
                End::More => dev.ready.push(slot),
                End::WireFull => {
                    dev.acks.push_front(slot);
                    break;
                }
            }
        }
        done
    }

    /// When [`Engine::handle_timeout`] is due next, as far as it is known: a deadline that
    /// [`Engine::poll_local`] set counts from the next call that is told the time.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.device.timers.next()
    }

    /// Whether [`Engine::poll_mad`] has something.
    #[inline]
    pub fn has_mads(&self) -> bool {
        self.device.gsi.as_ref().is_some_and(|gsi| gsi.has_received())
    }

    #[inline]
    fn has_mads_to_send(&self) -> bool {
        self.device.gsi.as_ref().is_some_and(|gsi| gsi.has_sends())
    }

    /// The next management datagram that arrived.
    pub fn poll_mad(&mut self) -> Option<ManagementDatagram> {
        self.device.gsi.as_mut()?.poll()
    }

    /// Whether an asynchronous event waits.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.device.events.is_empty()
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.device.events.poll()
    }

    /// Whether [`Engine::poll_transition`] has something.
    #[inline]
    pub fn has_transitions(&self) -> bool {
        !self.device.transitions.is_empty()
    }

    /// The next state change that nobody asked for.
    pub fn poll_transition(&mut self) -> Option<Transition> {
        self.device.transitions.poll()
    }

    /// How many of them there was no room for since this was asked last.
    pub fn take_lost_transitions(&mut self) -> u64 {
        self.device.transitions.take_lost()
    }

    // Getters -------------------------------------------------------------------------------

    /// The last reading of the clock that the engine was told.
    pub fn now(&self) -> Instant {
        self.device.now
    }

    /// Whether a turn at this time finds nothing to do: no deadline has come and no queue pair waits for
    /// its turn. All that it can change then is what the engine knows of the time, and, where memory is
    /// shared, what follows from what peers have taken meanwhile.
    pub fn is_idle(&self, now: Instant) -> bool {
        let dev = &self.device;
        let lists = [&dev.ready, &dev.acks, &dev.local, &dev.unsettled];
        lists.into_iter().all(ReadyList::is_empty)
            && dev.timers.is_idle(now)
            && dev.pages.is_current()
            && !dev.lanes.has_blocked()
            && !dev.unfenced
            && dev.overrun.is_empty()
            && !self.has_mads_to_send()
    }

    /// What the engine was made with; what can change since is asked for by other names.
    pub fn config(&self) -> &EngineConfig {
        &self.device.config
    }

    /// What the engine has counted.
    pub fn counters(&self) -> &Counters {
        &self.device.counters
    }
}
