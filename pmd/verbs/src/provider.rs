//! The seam between the objects of this crate and what is under them. Each object of an lcore names itself by what its
//! provider gave it, and asks for one verb at a time; above the seam nothing else is known of a provider.
//!
//! A match instead of a trait object, since messages pass here: which provider it is never changes, so that the branch is
//! always foreseen, and what is called is put in line.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use arrayvec::ArrayVec;
use pmd_roce::engine::{PostRecvError, PostSendError, QpView, ResourceError, SrqInit, SrqView};
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{CqId, Gid, Instant, PdId, Qpn, Srqn};
use pmd_roce::port::PortState;
use pmd_roce::qp::attr::{AddressVector, CreateQpError, ModifyQpError, QpInit};
use pmd_roce::qp::state::QpState;
use pmd_roce::qp::stats::QpStats;
use pmd_roce::work::{AhId, Completion, RecvWr, SendWr};

use crate::cq::CreateCqError;
use crate::event::{Event, Register};
use crate::qp::JoinGroupError;
use crate::rdma_core;
use crate::soft::{self, Armed, Bell};
use crate::survey::{Roll, Survey};
use crate::transition::Attempt;

/// Counters that an lcore's part of a device has at most.
pub(crate) const MAX_COUNTERS: usize = 256;

/// Counters by name.
pub(crate) type Counters = ArrayVec<(&'static str, u64), MAX_COUNTERS>;

/// A queue pair as its provider finds it: by its number, or at its place in the provider's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpAt {
    pub(crate) qpn: Qpn,
    pub(crate) place: u32,
}

/// What is under the objects of one lcore.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an lcore has one, and messages take no detour to it"
)]
pub(crate) enum Provider {
    /// The software NIC.
    Soft(soft::Core),
    /// A device of rdma-core.
    RdmaCore(rdma_core::Core),
}

/// Methods that all providers have.
macro_rules! verbs {
    ($($(#[$meta:meta])* fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {
        impl Provider {$(
            $(#[$meta])*
            #[inline]
            pub(crate) fn $name(&mut self $(, $arg: $type)*) $(-> $out)? {
                match self {
                    Self::Soft(core) => core.$name($($arg),*),
                    Self::RdmaCore(core) => core.$name($($arg),*),
                }
            }
        )*}
    };
}

verbs! {
    // Turns ---------------------------------------------------------------------------------

    fn progress(&mut self, now: Instant) -> usize;
    /// The receiving half of a turn.
    fn receive(&mut self, now: Instant) -> usize;
    /// The sending half of a turn.
    fn transmit(&mut self, now: Instant) -> usize;
    fn next_timeout(&mut self) -> Option<Instant>;
    /// A loop makes progress from now on, so that polling a queue need not.
    fn drive(&mut self);
    fn is_driven(&mut self) -> bool;
    /// Has whoever can wake a sleeper do so from now on, until the next turn. False: something has come already.
    fn sleep(&mut self) -> bool;
    /// Wakes a sleeper at once.
    fn wake(&mut self, now: Instant);
    /// The descriptors that are readable when something may have come, and for one who `sleeps` in place of a loop also
    /// when a deadline has.
    fn watch(
        &mut self,
        sleeps: bool,
        each: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>
    ) -> io::Result<()>;

    // Events and faults ---------------------------------------------------------------------

    /// The oldest event that nobody took yet; it is to be acknowledged.
    fn get_event(&mut self) -> Option<Event>;
    /// The oldest event that is `wanted`.
    fn take_event(&mut self, wanted: &dyn Fn(&AsyncEvent) -> bool) -> Option<AsyncEvent>;
    /// Drops the events about an object that is no more.
    fn forget(&mut self, scope: EventScope);
    /// Events that consumers took and did not acknowledge yet.
    fn taken(&mut self) -> Arc<Register>;
    fn is_fatal(&mut self) -> bool;
    fn fail_device(&mut self);
    fn set_port(&mut self, state: PortState);

    // Completion queues ---------------------------------------------------------------------

    fn create_cq(&mut self, depth: u32) -> Result<CqId, CreateCqError>;
    fn destroy_cq(&mut self, cq: CqId);
    fn arm(&mut self, cq: CqId, armed: Armed);
    /// Whether an armed queue has fired since the last call.
    fn take_fired(&mut self, cq: CqId) -> bool;
    /// What is rung when it fires.
    fn attach_bell(&mut self, cq: CqId, bell: &Rc<Bell>);
    fn is_overrun(&mut self, cq: CqId) -> bool;
    /// Completions that nobody has taken, where the provider can tell.
    fn waiting(&mut self, cq: CqId) -> Option<u64>;
    fn fail_cq(&mut self, cq: CqId);

    /// Of a protection domain that nothing is in any more.
    fn free_pd(&mut self, pd: PdId);

    // Queue pairs ---------------------------------------------------------------------------

    /// A queue pair in RESET, made for `owner`.
    fn create_qp(&mut self, init: &QpInit, owner: Option<u32>) -> Result<QpAt, CreateQpError>;
    /// Of a handle that ends.
    fn destroy_qp(&mut self, qp: QpAt);
    fn modify(
        &mut self,
        now: Instant,
        qp: QpAt,
        attempt: &Attempt<'_>
    ) -> Result<(), ModifyQpError>;
    /// Of a queue pair that a handle keeps alive.
    fn state(&mut self, qp: QpAt) -> QpState;
    fn query_qp(&mut self, qpn: Qpn) -> Option<QpView>;
    fn query_qp_stats(&mut self, qpn: Qpn) -> Option<QpStats>;
    /// All there are, with their states and since when they are in them.
    fn queue_pairs(&mut self) -> Vec<(Qpn, QpState, Instant)>;
    fn post_send(&mut self, qp: QpAt, wr: &SendWr<'_>) -> Result<(), PostSendError>;
    fn post_recv(&mut self, qp: QpAt, wr: &RecvWr<'_>) -> Result<(), PostRecvError>;
    /// Makes a queue pair a member of a multicast group.
    fn join(&mut self, qp: QpAt, group: Gid) -> Result<(), JoinGroupError>;
    fn leave(&mut self, qp: QpAt, group: Gid) -> Result<(), JoinGroupError>;

    // Shared receive queues and address handles ---------------------------------------------

    fn create_srq(&mut self, init: &SrqInit) -> Result<Srqn, ResourceError>;
    fn destroy_srq(&mut self, srqn: Srqn);
    fn post_srq_recv(&mut self, srqn: Srqn, wr: &RecvWr<'_>) -> Result<(), PostRecvError>;
    fn arm_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Result<(), ResourceError>;
    fn reserve_srq(&mut self, srqn: Srqn, receives: u32) -> Result<(), ResourceError>;
    fn query_srq(&mut self, srqn: Srqn) -> Option<SrqView>;
    fn fail_srq(&mut self, srqn: Srqn);
    fn create_ah(&mut self, pd: PdId, av: &AddressVector) -> Result<AhId, ResourceError>;
    fn destroy_ah(&mut self, ah: AhId);

    // What there is to see ------------------------------------------------------------------

    /// Port and index of an address.
    fn find_gid(&mut self, gid: Gid) -> Option<(u8, u8)>;
    fn counters(&mut self) -> Counters;
    /// What is known of queue pairs beside what the device knows.
    fn roll(&mut self) -> &mut Roll;
    /// Begins a survey, or goes on with it; whether it is complete.
    fn survey(&mut self, now: Instant, survey: &mut Survey, budget: usize) -> bool;
}

/// Those with arguments of any type.
impl Provider {
    /// A turn by a caller without a loop; the clock is read where it is needed.
    #[inline]
    pub(crate) fn nudge(&mut self, clock: impl FnOnce() -> Instant) -> usize {
        match self {
            Self::Soft(core) => core.nudge(clock),
            Self::RdmaCore(core) => core.nudge(clock),
        }
    }

    /// The time of a command. An lcore's loop has read the clock in this turn.
    pub(crate) fn time(&mut self, clock: impl FnOnce() -> Instant) -> Instant {
        match self {
            Self::Soft(core) => core.time(clock),
            Self::RdmaCore(core) => core.time(clock),
        }
    }

    /// Takes up to `room` completions, oldest first, as far as they fit.
    #[inline]
    pub(crate) fn take<const N: usize>(
        &mut self,
        cq: CqId,
        room: usize,
        into: &mut ArrayVec<Completion, N>,
    ) {
        match self {
            Self::Soft(core) => core.cqs.take(cq, room, into),
            Self::RdmaCore(core) => core.take(cq, room, into),
        }
    }

    #[inline]
    pub(crate) fn post_send_list<'a, 'b: 'a>(
        &mut self,
        qp: QpAt,
        list: impl IntoIterator<Item = &'a SendWr<'b>>,
    ) -> Result<(), (usize, PostSendError)> {
        match self {
            Self::Soft(core) => core.engine.post_send_list(qp.qpn, list),
            Self::RdmaCore(core) => core.post_send_list(qp, list),
        }
    }

    #[inline]
    pub(crate) fn post_recv_list<'a, 'b: 'a>(
        &mut self,
        qp: QpAt,
        list: impl IntoIterator<Item = &'a RecvWr<'b>>,
    ) -> Result<(), (usize, PostRecvError)> {
        match self {
            Self::Soft(core) => core.engine.post_recv_list(qp.qpn, list),
            Self::RdmaCore(core) => core.post_recv_list(qp, list),
        }
    }

    /// The software NIC, where it is that.
    pub(crate) fn soft(&mut self) -> Option<&mut soft::Core> {
        match self {
            Self::Soft(core) => Some(core),
            Self::RdmaCore(_) => None,
        }
    }

    /// The device of rdma-core, where it is that.
    pub(crate) const fn nic(&mut self) -> Option<&mut rdma_core::Core> {
        match self {
            Self::Soft(_) => None,
            Self::RdmaCore(core) => Some(core),
        }
    }
}
