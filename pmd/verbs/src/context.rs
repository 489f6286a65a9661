//! One lcore's part of a device.

use std::cell::RefCell;
use std::rc::Rc;

use pmd_roce::engine::QpView;
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{Gid, Instant, PdId, Qpn};
use pmd_roce::port::PortState;
use pmd_roce::qp::attr::AddressVector;
use pmd_roce::qp::state::QpState;

use crate::connect::PathWish;
use crate::cq::{Cq, CreateCqError};
use crate::device::Device;
use crate::endpoint::ConnectError;
use crate::event::{EVENT_PATIENCE, Event, Unacknowledged};
use crate::pd::Pd;
use crate::provider::Provider;
use crate::rdma_core;
use crate::soft;

/// One lcore's part of a device: everything created through it belongs to this thread. A cheap
/// handle, cloned by every object.
///
/// Progress comes from whoever calls [`Context::progress`]: a lcore's loop, or any poll of a
/// completion queue when no loop does.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) device: Device,
    lcore: u32,
    /// Whom queue pairs are made for.
    owner: Option<u32>,
    core: Rc<RefCell<Provider>>,
}

impl Context {
    pub(crate) fn new(device: Device, lcore: u32, core: Provider) -> Self {
        Self { device, lcore, owner: None, core: Rc::new(RefCell::new(core)) }
    }

    /// A handle whose queue pairs a [`Survey`](crate::Survey) shows as made for `owner`, a number of the
    /// application's.
    #[must_use]
    pub fn on_behalf(&self, owner: u32) -> Self {
        Self { owner: Some(owner), ..self.clone() }
    }

    pub(crate) const fn owner(&self) -> Option<u32> {
        self.owner
    }

    #[inline]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Provider) -> R) -> R {
        act(&mut self.core.borrow_mut())
    }

    /// For what belongs to the software NIC.
    ///
    /// # Panics
    /// Where there is another device.
    pub(crate) fn with_soft<R>(&self, act: impl FnOnce(&mut soft::Core) -> R) -> R {
        self.with(|core| act(core.soft().expect("only a software NIC has that")))
    }

    /// For what belongs to a device of rdma-core.
    ///
    /// # Panics
    /// Where there is another device.
    pub(crate) fn with_nic<R>(&self, act: impl FnOnce(&mut rdma_core::Core) -> R) -> R {
        self.with(|core| act(core.nic().expect("only a device of rdma-core has that")))
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Which of the device's lcores this is, from 0.
    pub const fn lcore(&self) -> u32 {
        self.lcore
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Pd {
        Pd::new(self.clone(), PdId(self.device.next_pd()))
    }

    /// Creates a completion queue of `depth` completions.
    ///
    /// # Errors
    /// [`CreateCqError`] for a depth of 0 or beyond the device's.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, CreateCqError> {
        Cq::create(self, depth)
    }

    /// One turn of the device: receive, run timers, send. Returns how much was done.
    pub fn progress(&self, now: Instant) -> usize {
        self.with(|core| core.progress(now))
    }

    /// The receiving half of a turn, for a loop that runs applications between the halves.
    pub fn receive(&self, now: Instant) -> usize {
        self.with(|core| core.receive(now))
    }

    /// The sending half of a turn.
    pub fn transmit(&self, now: Instant) -> usize {
        self.with(|core| core.transmit(now))
    }

    /// When the next turn is due although nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.with(Provider::next_timeout)
    }

    /// Says that a loop calls [`Context::progress`], so that polling a queue need not.
    pub fn drive(&self) {
        self.with(Provider::drive);
    }

    pub(crate) fn is_driven(&self) -> bool {
        self.with(Provider::is_driven)
    }

    /// A turn on behalf of a caller without a loop; returns how much was done.
    #[inline]
    pub(crate) fn nudge(&self) -> usize {
        self.with(|core| core.nudge(|| self.device.now()))
    }

    /// The oldest asynchronous event that nobody took yet, as `ibv_get_async_event(3)`: until it is
    /// dropped, the object that it is about is not destroyed.
    pub fn get_event(&self) -> Option<Event> {
        self.nudge();
        self.with(Provider::get_event)
    }

    /// Waits until nobody holds an event about an object of this context, up to [`EVENT_PATIENCE`]. The
    /// context is not borrowed meanwhile.
    pub(crate) fn wait_acknowledged(&self, scope: EventScope) -> Result<(), Unacknowledged> {
        self.with(Provider::taken).wait(scope, EVENT_PATIENCE)
    }

    /// Says so where an object ends although somebody holds an event about it.
    pub(crate) fn warn_unacknowledged(&self, scope: EventScope) {
        if let Some(held) = self.with(Provider::taken).oldest(scope) {
            tracing::warn!("{}: an object is destroyed although {held}", self.device.name());
        }
    }

    /// Fails this lcore's part of the device, as hardware does that is beyond repair: every queue pair is
    /// in Error without a completion, and whatever is asked of it later is refused.
    pub fn fail_device(&self) {
        self.with(Provider::fail_device);
    }

    /// Takes the port down or up, for this lcore: packets are dropped meanwhile, and nothing fails by that
    /// alone.
    pub fn set_port(&self, state: PortState) {
        self.with(|core| core.set_port(state));
    }

    /// The queue pairs of this lcore, with their states and since when they are in them: who sorts them by
    /// that finds the one that is stuck.
    pub fn queue_pairs(&self) -> Vec<(Qpn, QpState, Instant)> {
        self.with(Provider::queue_pairs)
    }

    /// The oldest asynchronous event that nobody took yet, acknowledged at once.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.nudge();
        self.with(|core| core.take_event(&|_| true))
    }

    /// By packets toward an address, from the address of this device: with the port and the index that it has now.
    pub fn address(&self, gid: Gid) -> AddressVector {
        let own = self.device.gid();
        let (port, sgid_index) = self.with(|core| core.find_gid(own)).unwrap_or((1, 0));
        AddressVector { port, sgid_index, ..AddressVector::to(gid) }
    }

    /// The path to a queue pair of a peer on this host: shared memory as far as the device's wire
    /// allows it and the peer is found, else packets. Not for the data path: it waits for the peer's
    /// process, bounded.
    ///
    /// # Errors
    /// [`ConnectError::Unreachable`] when there must be shared memory and is none.
    pub fn path_to(&self, gid: Gid, qpn: Qpn) -> Result<AddressVector, ConnectError> {
        let packets = self.address(gid);
        let wish = self.device.path();
        if wish == PathWish::Packets {
            return Ok(packets);
        }
        match self.with_soft(|core| core.peers.attach(gid, qpn, None)) {
            Ok(link) => Ok(AddressVector { link: Some(link), ..packets }),
            Err(reason) if wish == PathWish::SharedMemory => {
                Err(ConnectError::Unreachable { wire: "shared memory", reason })
            }
            Err(reason) => {
                tracing::debug!("no shared memory to {qpn} at {gid}: {reason}");
                Ok(packets)
            }
        }
    }

    /// State of a queue pair of this lcore.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpView> {
        self.with(|core| core.query_qp(qpn))
    }

    /// Every counter of engine and wire by name, and `rx_handed_over`: frames that reached this lcore
    /// although they were for another one of the device.
    pub fn counters(&self, mut each: impl FnMut(&'static str, u64)) {
        // Copied out first: the caller may use other objects of this lcore meanwhile.
        for (name, value) in self.with(Provider::counters) {
            each(name, value);
        }
    }
}
