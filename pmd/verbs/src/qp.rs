//! Queue pairs.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::time::Duration;

use pmd_observe::journal::By;
use pmd_roce::engine::{DestroyError, PostRecvError, PostSendError, QpView, ResourceError};
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{Gid, Qpn, XrcdId};
pub use pmd_roce::qp::attr::{CreateQpError, ModifyQpError};
use pmd_roce::qp::attr::{QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{AttrMask, QpState};
use pmd_roce::qp::stats::QpStats;
use pmd_roce::work::RecvWr;

use crate::cq::Cq;
use crate::event::Stays;
use crate::pd::Pd;
use crate::provider::QpAt;
use crate::srq::Srq;
use crate::transition::Attempt;
use crate::transport::{Connected, Receives, Sends, Service, Ud};
use crate::work_request::WorkRequest;

/// What a queue pair is created with.
#[derive(Clone, Debug)]
pub struct QpOptions<'a> {
    /// Where send requests complete.
    pub send_cq: &'a Cq,
    /// Where receive requests complete.
    pub recv_cq: &'a Cq,
    /// Receives come from here instead of an own queue.
    pub srq: Option<&'a Srq>,
    /// XRC domain, on XRC targets.
    pub xrcd: Option<XrcdId>,
    /// Depths and sizes.
    pub cap: QpCap,
    /// Every send request completes with a completion.
    pub signal_all: bool,
}

/// A post list that stopped at a request. The ones before it are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {posted} of the list: {error}")]
pub struct PostListError {
    /// Requests that were posted; the index of the one that was not.
    pub posted: usize,
    /// Why it was not.
    pub error: PostSendError,
}

/// A list of receives that stopped at one of them. The ones before it are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("receive {posted} of the list: {error}")]
pub struct PostRecvListError {
    /// Receives that were posted; the index of the one that was not.
    pub posted: usize,
    /// Why it was not.
    pub error: PostRecvError,
}

/// A queue pair of one service. Destroyed on drop, with everything outstanding on it.
#[derive(Debug)]
pub struct Qp<T: Service> {
    pd: Pd,
    at: QpAt,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    groups: RefCell<Vec<Gid>>,
    service: PhantomData<T>,
}

impl<T: Service> Qp<T> {
    pub(crate) fn create(pd: &Pd, options: &QpOptions<'_>) -> Result<Self, CreateQpError> {
        let init = QpInit {
            transport: T::TRANSPORT,
            pd: pd.id(),
            send_cq: options.send_cq.id(),
            recv_cq: options.recv_cq.id(),
            srq: options.srq.map(Srq::number),
            xrcd: options.xrcd,
            cap: options.cap,
            sq_sig_all: options.signal_all,
        };
        let owner = pd.context().owner();
        let at = pd.context().with(|core| core.create_qp(&init, owner))?;
        Ok(Self {
            pd: pd.clone(),
            at,
            send_cq: options.send_cq.clone(),
            recv_cq: options.recv_cq.clone(),
            srq: options.srq.cloned(),
            groups: RefCell::default(),
            service: PhantomData,
        })
    }

    /// Its number, unique among the software NICs of this host.
    pub const fn number(&self) -> Qpn {
        self.at.qpn
    }

    /// Where its provider has it.
    #[inline]
    pub(crate) const fn at(&self) -> QpAt {
        self.at
    }

    /// The protection domain.
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Where send requests complete.
    pub const fn send_cq(&self) -> &Cq {
        &self.send_cq
    }

    /// Where receive requests complete.
    pub const fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// The shared receive queue, where receives come from one.
    pub const fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Moves it along one edge of the state table, as `ibv_modify_qp(3)`: all or nothing.
    ///
    /// # Errors
    /// [`ModifyQpError`] names what is missing, what is not allowed, and which step was skipped.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
        self.modify_by(By::Modify, attr, mask)
    }

    /// The same, on behalf of somebody whom the journal shall name.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn modify_by(&self, by: By, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
        let cx = self.pd.context();
        let (device, transport, qpn) = (cx.device().name(), T::TRANSPORT, self.at.qpn);
        let (now, from) = cx.with(|core| (core.time(|| cx.device().now()), core.state(self.at)));
        let attempt = Attempt { device, transport, qpn, from, attr, mask, by };
        let result = cx.with(|core| core.modify(now, self.at, &attempt));
        attempt.log(&result);
        result
    }

    /// Destroys it, with everything outstanding on it, as `ibv_destroy_qp(3)`. Dropping it does the
    /// same without waiting, and leaves its multicast groups first.
    ///
    /// # Errors
    /// [`Stays`] gives it back while it is a member of multicast groups, or somebody holds an event about
    /// it.
    pub fn destroy(self) -> Result<(), Stays<Self>> {
        let groups = u32::try_from(self.groups.borrow().len()).unwrap_or(u32::MAX);
        if groups > 0 {
            return Err(Stays { object: self, error: DestroyError::Attached(groups).into() });
        }
        match self.pd.context().wait_acknowledged(EventScope::Qp(self.at.qpn)) {
            Ok(()) => Ok(()),
            Err(held) => Err(Stays { object: self, error: held.into() }),
        }
    }

    /// Brings it to Error before its end, and waits until its queues are flushed and, with a shared
    /// receive queue, the device has said that it takes no more from there (IBTA 1.4, 10.3.1: otherwise
    /// what it has pulled is lost). Whoever is not told so within `limit` goes on all the same.
    ///
    /// # Errors
    /// [`ModifyQpError`] where Error cannot be entered, as from RESET.
    pub fn retire(&self, limit: Duration) -> Result<Retired, ModifyQpError> {
        if self.state() != QpState::Error {
            self.modify_by(By::Close, &QpAttr::new(QpState::Error), AttrMask::STATE)?;
        }
        let cx = self.pd.context();
        let start = cx.device().now();
        let last = AsyncEvent::LastWqeReached(self.at.qpn);
        loop {
            cx.nudge();
            let told = self.srq.is_none()
                || cx.with(|core| core.take_event(&|event| *event == last)).is_some();
            let view = self.query();
            if told && view.send_outstanding + view.recv_outstanding == 0 {
                return Ok(Retired::Flushed);
            }
            if cx.device().now().since(start) >= limit {
                tracing::warn!(
                    "{}: no QP_LAST_WQE_REACHED on queue pair {} within {limit:?}",
                    cx.device().name(),
                    self.at.qpn
                );
                return Ok(Retired::Untold);
            }
            std::thread::yield_now();
        }
    }

    /// What it has been through since it was created: counters, round trips, waits, time per state.
    ///
    /// # Panics
    /// Never: the queue pair lives as long as this handle.
    pub fn stats(&self) -> QpStats {
        let stats = self.pd.context().with(|core| core.query_qp_stats(self.at.qpn));
        stats.expect("a handle keeps its queue pair alive")
    }

    /// Attributes, caps and state, as `ibv_query_qp(3)`.
    ///
    /// # Panics
    /// Never: the queue pair lives as long as this handle.
    pub fn query(&self) -> QpView {
        self.pd.context().query_qp(self.at.qpn).expect("a handle keeps its queue pair alive")
    }

    /// Current state.
    ///
    /// # Panics
    /// Never: the queue pair lives as long as this handle.
    pub fn state(&self) -> QpState {
        self.pd.context().with(|core| core.state(self.at))
    }
}

impl<T: Sends> Qp<T> {
    /// Appends one request to the send queue, as `ibv_post_send(3)`.
    ///
    /// # Errors
    /// [`PostSendError`]; nothing was posted.
    #[inline]
    pub fn post_send(&self, wr: &WorkRequest<'_, T>) -> Result<(), PostSendError> {
        self.pd.context().with(|core| core.post_send(self.at, wr.as_wr()))
    }

    /// Appends a list of requests.
    ///
    /// # Errors
    /// [`PostListError`] says how many were posted.
    #[inline]
    pub fn post_send_list(&self, list: &[WorkRequest<'_, T>]) -> Result<(), PostListError> {
        let list = list.iter().map(WorkRequest::as_wr);
        self.pd
            .context()
            .with(|core| core.post_send_list(self.at, list))
            .map_err(|(posted, error)| PostListError { posted, error })
    }
}

impl<T: Receives> Qp<T> {
    /// Appends a receive, as `ibv_post_recv(3)`; possible from INIT on.
    ///
    /// # Errors
    /// [`PostRecvError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.pd.context().with(|core| core.post_recv(self.at, wr))
    }

    /// Appends a list of receives.
    ///
    /// # Errors
    /// [`PostRecvListError`] says how many were posted.
    #[inline]
    pub fn post_recv_list(&self, list: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        self.pd
            .context()
            .with(|core| core.post_recv_list(self.at, list))
            .map_err(|(posted, error)| PostRecvListError { posted, error })
    }
}

impl<T: Connected> Qp<T> {
    /// The peer's queue pair, once known.
    pub fn peer(&self) -> Qpn {
        self.query().attr.dest_qpn
    }
}

impl<T: Service> Qp<T> {
    /// Joins a multicast group, if the service has such.
    pub(crate) fn join(&self, group: Gid) -> Result<(), JoinGroupError> {
        if self.groups.borrow().contains(&group) {
            return Ok(());
        }
        self.pd.context().with(|core| core.join(self.at, group))?;
        self.groups.borrow_mut().push(group);
        Ok(())
    }

    pub(crate) fn leave(&self, group: Gid) -> Result<(), JoinGroupError> {
        self.pd.context().with(|core| core.leave(self.at, group))?;
        self.groups.borrow_mut().retain(|member| *member != group);
        Ok(())
    }
}

impl Qp<Ud> {
    /// Joins a multicast group, as `ibv_attach_mcast(3)`. A second time changes nothing.
    ///
    /// # Errors
    /// [`JoinGroupError`].
    pub fn attach_multicast(&self, group: Gid) -> Result<(), JoinGroupError> {
        self.join(group)
    }

    /// Leaves a multicast group, as `ibv_detach_mcast(3)`.
    ///
    /// # Errors
    /// [`JoinGroupError::Device`] when it is no member.
    pub fn detach_multicast(&self, group: Gid) -> Result<(), JoinGroupError> {
        self.leave(group)
    }
}

/// How a queue pair was prepared for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// Everything is flushed, and nothing more will come from its shared receive queue.
    Flushed,
    /// The device never said so; whoever destroys it now may lose a receive that it has pulled.
    Untold,
}

/// Why a multicast group was not joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinGroupError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] ResourceError),
    /// The wire refused.
    #[error("{0}")]
    Wire(String),
}

impl<T: Service> Drop for Qp<T> {
    fn drop(&mut self) {
        self.pd.context().warn_unacknowledged(EventScope::Qp(self.at.qpn));
        self.pd.context().with(|core| {
            for group in self.groups.get_mut().drain(..) {
                // Membership ends with the queue pair; it was checked when it began.
                let left = core.leave(self.at, group);
                debug_assert!(left.is_ok(), "{left:?}");
            }
            core.destroy_qp(self.at);
        });
    }
}
