//! One lcore's opening of a device: its objects, its turns and its events.

use ::core::mem::MaybeUninit;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{CqId, Gid, Instant, PdId, Qpn, Srqn};
use pmd_roce::port::PortState;
use pmd_roce::transition::Cause;

use super::abi::{
    ibv_ah, ibv_async_event, ibv_comp_channel, ibv_cq, ibv_mr, ibv_mw, ibv_pd, ibv_qp,
};
use super::counters::HardwareCounters;
use super::cq::Queue;
use super::library::{Library, Owned};
use super::nic::{NicError, Open, refusal};
use super::port::Port;
use super::qp::QueuePair;
use super::srq::SharedQueue;
use crate::event::{Event, Register};
use crate::journal::Journal;
use crate::provider::Counters;
use crate::survey::{Roll, Survey};

/// Events kept for a consumer that does not take them; the oldest go first.
const MAX_EVENTS: usize = 4096;
/// How often the kernel is asked for events, which is a call.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Polls between two that read the clock, for callers that have no time of their own.
const QUICK_POLLS: u32 = 63;

/// An open device with the objects of one lcore. What refers to others is dropped before them.
#[derive(Debug)]
pub(crate) struct Core {
    pub(super) qps: Vec<Option<QueuePair>>,
    /// Places of queue pairs by their numbers, in order.
    pub(super) numbers: Vec<(u32, u32)>,
    pub(super) srqs: Vec<Option<SharedQueue>>,
    pub(super) ahs: Vec<Option<Owned<ibv_ah>>>,
    pub(super) cqs: Vec<Option<Queue>>,
    pub(super) windows: BTreeMap<u32, Owned<ibv_mw>>,
    pub(super) regions: BTreeMap<u32, Owned<ibv_mr>>,
    pds: BTreeMap<PdId, Owned<ibv_pd>>,
    /// Tells of all completion queues.
    pub(super) channel: Owned<ibv_comp_channel>,
    pub(super) open: Open,
    pub(super) library: &'static Library,
    pub(super) port: Arc<Port>,
    counters: HardwareCounters,
    pub(super) journal: Journal,
    pub(super) roll: Roll,
    pub(super) now: Instant,
    pub(super) fatal: bool,
    events: VecDeque<AsyncEvent>,
    taken: Arc<Register>,
    driven: bool,
    look_at: Instant,
    quick: u32,
    /// Whether completion queues may have fired.
    pub(super) listening: bool,
}

impl Core {
    pub(super) fn new(port: &Arc<Port>, journal: Journal) -> Result<Self, NicError> {
        let library = Library::get()?;
        let open = Open::named(&port.device)?;
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(open.context.get()) };
        // SAFETY: it was made just now.
        let channel = unsafe { Owned::new(channel, library.ibv_destroy_comp_channel) };
        let refused = |call| move |error| (call, error);
        let made = channel.map_err(refused("ibv_create_comp_channel")).and_then(|channel| {
            for fd in [channel.fields().fd, open.context.fields().async_fd] {
                never_waits(borrow(fd)).map_err(refused("fcntl"))?;
            }
            Ok(channel)
        });
        let channel = made.map_err(|(call, error)| open.failed(refusal(call, &error)))?;
        Ok(Self {
            qps: Vec::new(),
            numbers: Vec::new(),
            srqs: Vec::new(),
            ahs: Vec::new(),
            cqs: Vec::new(),
            windows: BTreeMap::new(),
            regions: BTreeMap::new(),
            pds: BTreeMap::new(),
            channel,
            counters: HardwareCounters::of(&port.device, port.number),
            open,
            library,
            port: Arc::clone(port),
            journal,
            roll: Roll::default(),
            now: Instant::default(),
            fatal: false,
            events: VecDeque::with_capacity(MAX_EVENTS),
            taken: Arc::default(),
            driven: false,
            look_at: Instant::default(),
            quick: 0,
            listening: false,
        })
    }

    /// A protection domain, made when it is first used.
    pub(super) fn pd(&mut self, id: PdId) -> io::Result<*mut ibv_pd> {
        if let Some(pd) = self.pds.get(&id) {
            return Ok(pd.get());
        }
        // SAFETY: the context is open.
        let raw = unsafe { (self.library.ibv_alloc_pd)(self.open.context.get()) };
        // SAFETY: it was made just now.
        let pd = unsafe { Owned::new(raw, self.library.ibv_dealloc_pd) }?;
        Ok(self.pds.entry(id).or_insert(pd).get())
    }

    /// Of a domain that nothing is in any more.
    pub(crate) fn free_pd(&mut self, id: PdId) {
        self.pds.remove(&id);
    }

    // Turns ---------------------------------------------------------------------------------

    /// The device works by itself; what is left is to see what it has to say beside completions.
    #[inline]
    pub(crate) fn progress(&mut self, now: Instant) -> usize {
        self.now = now;
        if now < self.look_at { 0 } else { self.look(now) }
    }

    #[inline]
    pub(crate) fn receive(&mut self, now: Instant) -> usize {
        self.progress(now)
    }

    pub(crate) const fn transmit(&mut self, _: Instant) -> usize {
        0
    }

    #[inline]
    pub(crate) fn nudge(&mut self, clock: impl FnOnce() -> Instant) -> usize {
        if self.driven {
            return 0;
        }
        if self.quick == 0 {
            self.quick = QUICK_POLLS;
            return self.progress(clock());
        }
        self.quick -= 1;
        0
    }

    pub(crate) const fn next_timeout(&self) -> Option<Instant> {
        None
    }

    pub(crate) const fn drive(&mut self) {
        self.driven = true;
    }

    #[inline]
    pub(crate) const fn is_driven(&self) -> bool {
        self.driven
    }

    pub(crate) fn time(&self, clock: impl FnOnce() -> Instant) -> Instant {
        if self.driven { self.now } else { clock() }
    }

    /// Completion queues of a loop are armed here; who sleeps on a channel has armed those that matter.
    pub(crate) fn sleep(&mut self) -> bool {
        self.hear();
        if !self.driven {
            return true;
        }
        for at in 0..self.cqs.len() {
            if let Some(queue) = &self.cqs[at] {
                queue.notify(false);
            }
        }
        self.listening = true;
        // What came before does not tell.
        (0..self.cqs.len()).all(|at| !self.peek(at))
    }

    /// Nothing that this device has to do makes a sleeper late.
    pub(crate) const fn wake(&mut self, _: Instant) {}

    pub(crate) fn watch(
        &mut self,
        _: bool,
        each: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        each(borrow(self.channel.fields().fd))?;
        each(borrow(self.open.context.fields().async_fd))
    }

    // Events --------------------------------------------------------------------------------

    #[inline(never)]
    fn look(&mut self, now: Instant) -> usize {
        self.look_at = now.after(LOOK_EVERY);
        let mut heard = 0;
        while let Some(event) = self.next_event() {
            self.note(event);
            heard += 1;
        }
        for place in 0..self.qps.len() {
            if self.qps[place].as_ref().is_some_and(|qp| qp.fell.is_some()) {
                self.refresh(place);
            }
        }
        heard
    }

    /// Takes an event from the kernel, and acknowledges it: who holds it is known here, so that no call of the library waits.
    fn next_event(&mut self) -> Option<AsyncEvent> {
        let mut raw = MaybeUninit::<ibv_async_event>::uninit();
        let context = self.open.context.get();
        // SAFETY: the context is open, and there is room for an event.
        let status = unsafe { (self.library.ibv_get_async_event)(context, raw.as_mut_ptr()) };
        if status != 0 {
            return None;
        }
        // SAFETY: the call succeeded, so that there is one.
        let mut event = unsafe { raw.assume_init() };
        let number = u32::try_from(event.event_type).unwrap_or(u32::MAX);
        let element = match AsyncEvent::from_number(number, 0).scope() {
            EventScope::Qp(_) => {
                let qp = event.element.cast::<ibv_qp>();
                // SAFETY: an event of a queue pair names one that is alive: destroying it takes its events back.
                unsafe { (*qp).qp_num }
            }
            EventScope::Cq(_) => place(&self.cqs, |queue| queue.raw() == event.element.cast()),
            EventScope::Srq(_) => place(&self.srqs, |srq| srq.raw() == event.element.cast()),
            // A union of pointers and a port's number, of which the rest is not written.
            EventScope::Port(_) => u32::try_from(event.element.addr() & 0xff).unwrap_or(0),
            EventScope::Wq(_) | EventScope::Device => 0,
        };
        // SAFETY: it was taken, and is acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Some(AsyncEvent::from_number(number, element))
    }

    fn note(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::DeviceFatal => self.fatal = true,
            AsyncEvent::CqErr(cq) => self.overrun(cq),
            event if event.is_fatal() => {
                if let Some(qp) = event.qpn().and_then(|qpn| self.qp_mut(qpn)) {
                    qp.fell.get_or_insert(Cause::Event(event));
                }
            }
            _ => {}
        }
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(crate) fn get_event(&mut self) -> Option<Event> {
        self.events.pop_front().map(|event| self.taken.hand_out(event))
    }

    pub(crate) fn take_event(
        &mut self,
        wanted: &dyn Fn(&AsyncEvent) -> bool,
    ) -> Option<AsyncEvent> {
        let at = self.events.iter().position(wanted)?;
        self.events.remove(at)
    }

    pub(crate) fn forget(&mut self, scope: EventScope) {
        self.events.retain(|event| event.scope() != scope);
    }

    pub(crate) fn taken(&self) -> Arc<Register> {
        Arc::clone(&self.taken)
    }

    pub(crate) const fn is_fatal(&self) -> bool {
        self.fatal
    }

    // Faults that are the software NIC's ----------------------------------------------------

    fn cannot_fail(&self, what: &str) {
        tracing::error!(
            "{}: {what} cannot be made to fail on a real device: use kind = \"soft\" for that",
            self.port.device
        );
    }

    pub(crate) fn fail_device(&mut self) {
        self.cannot_fail("the device");
    }

    pub(crate) fn set_port(&mut self, _: PortState) {
        self.cannot_fail("a port");
    }

    pub(crate) fn fail_cq(&mut self, _: CqId) {
        self.cannot_fail("a completion queue");
    }

    pub(crate) fn fail_srq(&mut self, _: Srqn) {
        self.cannot_fail("a shared receive queue");
    }

    // What there is to see ------------------------------------------------------------------

    /// Looked up each time: indices move when addresses do.
    pub(crate) fn find_gid(&mut self, gid: Gid) -> Option<(u8, u8)> {
        let number = self.port.number;
        let table = self.open.port(number).ok()?.gids;
        let version = self.port.version;
        let is_meant = |index: u32| {
            table
                .entries
                .iter()
                .any(|one| one.index == index && one.gid == gid && one.version == version)
        };
        // An address may be there more than once: as long as the index that was chosen has it, that counts.
        let chosen = u32::from(self.port.gid_index);
        let index = if is_meant(chosen) {
            chosen
        } else {
            table.entries.iter().map(|one| one.index).find(|index| is_meant(*index))?
        };
        Some((number, u8::try_from(index).ok()?))
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::new();
        self.counters.read(&mut counters);
        counters
    }

    pub(crate) const fn roll(&mut self) -> &mut Roll {
        &mut self.roll
    }

    /// Without the device's own counters: to read those takes calls, which a poll loop does not make.
    pub(crate) fn survey(&mut self, now: Instant, survey: &mut Survey, budget: usize) -> bool {
        let Self { qps, srqs, roll, .. } = self;
        let mut place = survey.begin(now, |survey| {
            let known = (0..)
                .zip(srqs.iter())
                .filter_map(|(number, srq)| Some((Srqn(number), srq.as_ref()?.view_from_books())));
            survey.put_srqs(known);
        }) as usize;
        for _ in 0..budget {
            let Some(at) = (place..qps.len()).find(|at| qps[*at].is_some()) else {
                survey.end(roll);
                return true;
            };
            place = at + 1;
            survey.put_qp(|| {
                let qp = qps[at].as_ref()?;
                Some(roll.status(qp.qpn, &qp.view_from_books(), qp.stats, now))
            });
        }
        survey.go_on_at(u32::try_from(place).unwrap_or(u32::MAX));
        false
    }

    /// The queue pair of a number.
    pub(super) fn place_of(&self, qpn: Qpn) -> Option<usize> {
        let at = self.numbers.binary_search_by_key(&qpn.value(), |(number, _)| *number).ok()?;
        Some(self.numbers[at].1 as usize)
    }

    pub(super) fn qp_mut(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        let place = self.place_of(qpn)?;
        self.qps.get_mut(place)?.as_mut()
    }
}

/// Where something is in a table; beyond all of it where it is not.
fn place<T>(table: &[Option<T>], is_it: impl Fn(&T) -> bool) -> u32 {
    let at = table.iter().position(|entry| entry.as_ref().is_some_and(&is_it));
    at.and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX)
}

/// Puts something where there is room in a table, and says where.
pub(super) fn put<T>(table: &mut Vec<Option<T>>, entry: T) -> u32 {
    let at = table.iter().position(Option::is_none).unwrap_or(table.len());
    if at == table.len() {
        table.push(None);
    }
    table[at] = Some(entry);
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// A descriptor of an object that is alive.
fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: the library's object has it open until it is destroyed, and callers use it only while it is there.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn never_waits(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

/// The queue that a channel told of, if one did.
pub(super) fn told(library: &Library, channel: &Owned<ibv_comp_channel>) -> Option<*mut ibv_cq> {
    let (mut cq, mut context) = (::core::ptr::null_mut(), ::core::ptr::null_mut());
    // SAFETY: the channel is alive, and both places are there to be written.
    let status =
        unsafe { (library.ibv_get_cq_event)(channel.get(), &raw mut cq, &raw mut context) };
    if status != 0 {
        return None;
    }
    // SAFETY: the queue told just now, so that it is alive, and this is the event that it waits for.
    unsafe { (library.ibv_ack_cq_events)(cq, 1) };
    Some(cq)
}
