//! What all queue pairs of an engine share.

use crate::address::AddressHandles;
use crate::counters::Counters;
use crate::engine::EngineConfig;
use crate::error::ResourceError;
use crate::event::EventQueue;
use crate::gsi::Gsi;
use crate::ids::{CqId, Instant};
use crate::limits::{MAX_DEVICE_EVENTS, MAX_QP_EVENTS};
use crate::local::lane::Lanes;
use crate::local::page::Pages;
use crate::multicast::Groups;
use crate::port::Ports;
use crate::qp::Qp;
use crate::ready::ReadyList;
use crate::srq::Srqs;
use crate::timer::Timers;
use crate::transition::Transitions;
use crate::wire::icrc_prefix::IcrcPrefixes;

/// Everything of an engine but its queue pairs, so that one of these can be borrowed beside it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) config: EngineConfig,
    pub(crate) ports: Ports,
    pub(crate) srqs: Srqs,
    pub(crate) ahs: AddressHandles,
    pub(crate) groups: Groups,
    /// Queue pair 1, where this lcore has it.
    pub(crate) gsi: Option<Box<Gsi>>,
    /// One deadline per queue pair.
    pub(crate) timers: Timers,
    /// Queue pairs with something to do at the next `poll_transmit`: those that send packets, and
    /// datagrams by any path.
    pub(crate) ready: ReadyList,
    /// Queue pairs that owe their peer an ACK and nothing else: it leaves after everybody's requests,
    /// so that a wire carries both as runs of frames of one size.
    pub(crate) acks: ReadyList,
    /// The same of connections on the local path.
    pub(crate) local: ReadyList,
    /// The links that these use.
    pub(crate) lanes: Lanes,
    /// What peers on the same host see of the queue pairs.
    pub(crate) pages: Pages,
    /// Queue pairs whose turn on the local path is to be ended after the fence.
    pub(crate) unsettled: ReadyList,
    /// Direct WRITEs were made since the last fence.
    pub(crate) unfenced: bool,
    /// For the ICRCs of frames sent, and of frames received.
    pub(crate) sealed: IcrcPrefixes,
    pub(crate) checked: IcrcPrefixes,
    /// The last reading of the clock that the engine was told.
    pub(crate) now: Instant,
    pub(crate) events: EventQueue,
    pub(crate) counters: Counters,
    /// Completion queues that overran in this call; their queue pairs fail at its end.
    pub(crate) overrun: Vec<CqId>,
    /// The device failed as a whole: no queue pair of it lives any more.
    pub(crate) fatal: bool,
    /// What queue pairs fell into by themselves.
    pub(crate) transitions: Transitions,
}

impl Device {
    /// Makes room for `slots` queue pairs and for all that `config` allows.
    pub(crate) fn new(config: EngineConfig, slots: usize) -> Self {
        // Every queue pair has two completion queues, an XRC queue one more.
        let cqs = 2 * slots + config.max_srqs;
        let second = Some(config.second_port.clone()).filter(|gids| !gids.is_empty());
        let ports = Ports::new([config.gids.clone()].into_iter().chain(second));
        Self {
            ports,
            srqs: Srqs::new(config.max_srqs),
            ahs: AddressHandles::new(config.max_ahs),
            groups: Groups::new(),
            gsi: None,
            timers: Timers::new(slots),
            ready: ReadyList::new(slots),
            acks: ReadyList::new(slots),
            local: ReadyList::new(slots),
            lanes: Lanes::new(slots),
            pages: Pages::new(slots),
            unsettled: ReadyList::new(slots),
            unfenced: false,
            now: Instant::default(),
            events: EventQueue::new(
                MAX_QP_EVENTS * slots + 2 * config.max_srqs + cqs + MAX_DEVICE_EVENTS,
            ),
            sealed: IcrcPrefixes::new(),
            checked: IcrcPrefixes::new(),
            counters: Counters::default(),
            overrun: Vec::with_capacity(cqs),
            fatal: false,
            transitions: Transitions::new(),
            config,
        }
    }

    /// Has a queue pair take its turn at the next poll.
    #[inline]
    pub(crate) fn wake(&mut self, qp: &Qp) {
        if qp.is_local() {
            self.local.push(qp.slot);
        } else {
            self.ready.push(qp.slot);
        }
    }

    /// A queue pair has nothing to do any more: it is gone, or back in RESET.
    pub(crate) fn dismiss(&mut self, qp: &Qp) {
        self.ready.remove(qp.slot);
        self.acks.remove(qp.slot);
        self.local.remove(qp.slot);
        self.unsettled.remove(qp.slot);
        self.timers.clear(qp.slot);
        self.lanes.leave(qp.local.lane, qp.slot, qp.sq.capacity());
    }

    /// Whether anything can still be made on it.
    pub(crate) const fn check_alive(&self) -> Result<(), ResourceError> {
        if self.fatal { Err(ResourceError::DeviceFatal) } else { Ok(()) }
    }

    /// Notes that a completion queue overran.
    #[cold]
    pub(crate) fn note_overrun(&mut self, cq: CqId) {
        self.counters.cq_overruns += 1;
        self.lose(cq);
    }

    /// A completion queue takes nothing any more: its queue pairs fail at the end of this call.
    pub(crate) fn lose(&mut self, cq: CqId) {
        if !self.overrun.contains(&cq) {
            self.overrun.push(cq);
        }
    }
}

/// What the caller lends for one call: the time, memory and the completion queues.
pub(crate) struct Io<'a, M, C> {
    pub(crate) now: Instant,
    pub(crate) mem: &'a mut M,
    pub(crate) cq: &'a mut C,
}
