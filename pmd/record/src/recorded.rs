//! An engine that may be on record.

use core::ops::Deref;
use std::sync::Arc;

use pmd_roce::engine::{
    DestroyError, Engine, EngineConfig, PostMadError, PostRecvError, PostSendError, ResourceError,
    SrqInit,
};
use pmd_roce::event::AsyncEvent;
use pmd_roce::gsi::ManagementDatagram;
use pmd_roce::ids::{CqId, Gid, Instant, LinkId, Qpn, Srqn};
use pmd_roce::local::{Arrivals, Arrived, LocalPeer, Record};
use pmd_roce::memory::Memory;
use pmd_roce::qp::attr::{AddressVector, CreateQpError, ModifyQpError, QpAttr, QpInit};
use pmd_roce::qp::state::AttrMask;
use pmd_roce::sink::{CqSink, Frame, FrameOutcome, TxSink};
use pmd_roce::transition::Transition;
use pmd_roce::work::{AhId, RecvWr, SendWr};

use crate::input::Input;
use crate::pack::Blob;
use crate::recording::Recording;
use crate::tape::Tape;
use crate::vocabulary::Receive;

/// An engine, and whoever writes down what it is told. All methods that change an [`Engine`] are here,
/// with its names and meanings; what only asks goes to the engine itself.
///
/// Without a record, each of them is one comparison and the engine's own.
#[derive(Debug)]
pub struct Recorded {
    engine: Engine,
    tape: Option<Box<Tape>>,
}

impl Deref for Recorded {
    type Target = Engine;

    #[inline(always)]
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(tape) = self.tape.take() {
            tape.conclude(&self.engine);
        }
    }
}

/// Commands that ask nothing of the surroundings.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = $input:expr;
    )+) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $($arg: $type),*) -> $result {
            let Self { engine, tape } = self;
            match tape {
                None => engine.$name($($arg),*),
                Some(tape) => tape.command(engine, &$input, |engine| engine.$name($($arg),*)),
            }
        }
    )+};
}

impl Recorded {
    /// An engine that is on no record.
    pub fn new(config: EngineConfig) -> Self {
        Self { engine: Engine::new(config), tape: None }
    }

    /// An engine whose inputs are on record, from its making to its end, under this name.
    pub fn on(recording: &Arc<Recording>, name: &str, config: EngineConfig) -> Self {
        let engine = Engine::new(config);
        let tape = Some(Box::new(Tape::new(&engine, recording, name)));
        Self { engine, tape }
    }

    /// Whether its inputs are written down.
    #[inline]
    pub const fn is_on_record(&self) -> bool {
        self.tape.is_some()
    }

    // Commands ------------------------------------------------------------------------------

    commands! {
        /// [`Engine::create_qp`].
        ///
        /// # Errors
        /// The engine's.
        fn create_qp(init: &QpInit) -> Result<Qpn, CreateQpError> = Input::CreateQp(*init);

        /// [`Engine::open_gsi`].
        ///
        /// # Errors
        /// The engine's.
        fn open_gsi() -> Result<(), ResourceError> = Input::OpenGsi;

        /// [`Engine::post_mad`].
        ///
        /// # Errors
        /// The engine's.
        fn post_mad(datagram: &ManagementDatagram) -> Result<(), PostMadError>
            = Input::PostMad { flow: datagram.flow, bytes: Blob(datagram.bytes.to_vec()) };

        /// [`Engine::destroy_qp`].
        ///
        /// # Errors
        /// The engine's.
        fn destroy_qp(qpn: Qpn) -> Result<(), DestroyError> = Input::DestroyQp(qpn);

        /// [`Engine::create_srq`].
        ///
        /// # Errors
        /// The engine's.
        fn create_srq(init: &SrqInit) -> Result<Srqn, ResourceError> = Input::CreateSrq(*init);

        /// [`Engine::arm_srq_limit`].
        ///
        /// # Errors
        /// The engine's.
        fn arm_srq_limit(srqn: Srqn, limit: u32) -> Result<(), ResourceError>
            = Input::ArmSrqLimit { srqn, limit };

        /// [`Engine::reserve_srq`].
        ///
        /// # Errors
        /// The engine's.
        fn reserve_srq(srqn: Srqn, receives: u32) -> Result<(), ResourceError>
            = Input::ReserveSrq { srqn, receives };

        /// [`Engine::destroy_srq`].
        ///
        /// # Errors
        /// The engine's.
        fn destroy_srq(srqn: Srqn) -> Result<(), DestroyError> = Input::DestroySrq(srqn);

        /// [`Engine::create_ah`].
        ///
        /// # Errors
        /// The engine's.
        fn create_ah(av: &AddressVector) -> Result<AhId, ResourceError> = Input::CreateAh(*av);

        /// [`Engine::destroy_ah`].
        ///
        /// # Errors
        /// The engine's.
        fn destroy_ah(ah: AhId) -> Result<(), DestroyError> = Input::DestroyAh(ah);

        /// [`Engine::attach_multicast`].
        ///
        /// # Errors
        /// The engine's.
        fn attach_multicast(qpn: Qpn, group: Gid) -> Result<(), ResourceError>
            = Input::AttachMulticast { qpn, group };

        /// [`Engine::detach_multicast`].
        ///
        /// # Errors
        /// The engine's.
        fn detach_multicast(qpn: Qpn, group: Gid) -> Result<(), ResourceError>
            = Input::DetachMulticast { qpn, group };

        /// [`Engine::post_srq_recv`].
        ///
        /// # Errors
        /// The engine's.
        fn post_srq_recv(srqn: Srqn, wr: &RecvWr<'_>) -> Result<(), PostRecvError>
            = Input::PostSrqRecv { srqn, wr: Receive::of(wr) };

        /// [`Engine::port_down`].
        ///
        /// # Errors
        /// The engine's.
        fn port_down(port: u8) -> Result<(), ResourceError> = Input::PortDown(port);

        /// [`Engine::port_up`].
        ///
        /// # Errors
        /// The engine's.
        fn port_up(port: u8) -> Result<(), ResourceError> = Input::PortUp(port);

        /// [`Engine::set_gids`].
        ///
        /// # Errors
        /// The engine's.
        fn set_gids(port: u8, gids: &[Gid]) -> Result<(), ResourceError>
            = Input::SetGids { port, gids: gids.to_vec() };
    }

    /// [`Engine::modify_qp`].
    ///
    /// # Errors
    /// The engine's.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> Result<(), ModifyQpError> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.modify_qp(now, qpn, attr, mask, mem, cq),
            Some(tape) => tape.modify_qp(engine, now, qpn, attr, mask, mem, cq),
        }
    }

    /// [`Engine::post_send`].
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.post_send(qpn, wr),
            Some(tape) => tape.post_send(engine, qpn, wr),
        }
    }

    /// [`Engine::post_send_list`].
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn post_send_list<'a, 'b: 'a>(
        &mut self,
        qpn: Qpn,
        list: impl IntoIterator<Item = &'a SendWr<'b>>,
    ) -> Result<(), (usize, PostSendError)> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.post_send_list(qpn, list),
            Some(tape) => tape.post_send_list(engine, qpn, list),
        }
    }

    /// [`Engine::post_recv`].
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.post_recv(qpn, wr),
            Some(tape) => tape.post_recv(engine, qpn, wr),
        }
    }

    /// [`Engine::post_recv_list`].
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn post_recv_list<'a, 'b: 'a>(
        &mut self,
        qpn: Qpn,
        list: impl IntoIterator<Item = &'a RecvWr<'b>>,
    ) -> Result<(), (usize, PostRecvError)> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.post_recv_list(qpn, list),
            Some(tape) => tape.post_recv_list(engine, qpn, list),
        }
    }

    /// [`Engine::publish`].
    #[inline]
    pub fn publish(&mut self, peers: &mut impl LocalPeer) {
        let Self { engine, tape } = self;
        match tape {
            None => engine.publish(peers),
            Some(tape) => tape.publish(engine, peers),
        }
    }

    /// [`Engine::fail_cq`].
    pub fn fail_cq(&mut self, cq: CqId, sink: &mut impl CqSink) {
        let Self { engine, tape } = self;
        match tape {
            None => engine.fail_cq(cq, sink),
            Some(tape) => tape.fail_cq(engine, cq, sink),
        }
    }

    /// [`Engine::fail_srq`].
    ///
    /// # Errors
    /// The engine's.
    pub fn fail_srq(&mut self, srqn: Srqn, cq: &mut impl CqSink) -> Result<(), ResourceError> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.fail_srq(srqn, cq),
            Some(tape) => tape.fail_srq(engine, srqn, cq),
        }
    }

    /// [`Engine::fail_device`].
    pub fn fail_device(&mut self, cq: &mut impl CqSink) {
        let Self { engine, tape } = self;
        match tape {
            None => engine.fail_device(cq),
            Some(tape) => tape.fail_device(engine, cq),
        }
    }

    /// [`Engine::handle_link_down`].
    pub fn handle_link_down(&mut self, now: Instant, link: LinkId, cq: &mut impl CqSink) {
        let Self { engine, tape } = self;
        match tape {
            None => engine.handle_link_down(now, link, cq),
            Some(tape) => tape.handle_link_down(engine, now, link, cq),
        }
    }

    // Inputs --------------------------------------------------------------------------------

    /// [`Engine::handle_frame`].
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> FrameOutcome {
        let Self { engine, tape } = self;
        match tape {
            None => engine.handle_frame(now, frame, mem, cq),
            Some(tape) => tape.handle_frame(engine, now, frame, mem, cq),
        }
    }

    /// [`Engine::handle_arrivals`]. On record it takes none: each comes as a record.
    #[inline(always)]
    pub fn handle_arrivals(
        &mut self,
        link: LinkId,
        arrivals: &mut impl Arrivals,
        budget: usize,
        cq: &mut impl CqSink,
    ) -> usize {
        match self.tape {
            None => self.engine.handle_arrivals(link, arrivals, budget, cq),
            Some(_) => 0,
        }
    }

    /// [`Engine::handle_arrival`]. On record it takes none.
    #[inline(always)]
    pub fn handle_arrival(
        &mut self,
        link: LinkId,
        arrivals: &mut impl Arrivals,
        cq: &mut impl CqSink,
    ) -> bool {
        match self.tape {
            None => self.engine.handle_arrival(link, arrivals, cq),
            Some(_) => false,
        }
    }

    /// [`Engine::handle_record`].
    #[expect(clippy::too_many_arguments, reason = "what a caller lends is an argument each")]
    #[inline]
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
        let Self { engine, tape } = self;
        match tape {
            None => engine.handle_record(now, link, record, payload, mem, peers, cq),
            Some(tape) => tape.handle_record(engine, (now, link, record), payload, mem, peers, cq),
        }
    }

    /// [`Engine::handle_timeout`].
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant, mem: &mut impl Memory, cq: &mut impl CqSink) {
        let Self { engine, tape } = self;
        match tape {
            None => engine.handle_timeout(now, mem, cq),
            Some(on_record) => {
                on_record.handle_timeout(engine, now, mem, cq);
                // A record that was cut is done with; a turn is soon enough for that.
                if on_record.has_stopped() {
                    *tape = None;
                }
            }
        }
    }

    // Outputs -------------------------------------------------------------------------------

    /// [`Engine::poll_transmit`].
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mem: &mut impl Memory,
        tx: &mut impl TxSink,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> usize {
        let Self { engine, tape } = self;
        match tape {
            None => engine.poll_transmit(now, mem, tx, peers, cq),
            Some(tape) => tape.poll_transmit(engine, now, mem, tx, peers, cq),
        }
    }

    /// [`Engine::poll_local`].
    #[inline]
    pub fn poll_local(
        &mut self,
        mem: &mut impl Memory,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> usize {
        let Self { engine, tape } = self;
        match tape {
            None => engine.poll_local(mem, peers, cq),
            Some(tape) => tape.poll_local(engine, mem, peers, cq),
        }
    }

    /// [`Engine::poll_timeout`].
    #[inline]
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        // On record it is asked after every input, and changes nothing now.
        self.engine.poll_timeout()
    }

    /// [`Engine::poll_event`].
    #[inline]
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.poll_event(),
            Some(tape) => tape.poll_event(engine),
        }
    }

    /// [`Engine::poll_mad`].
    #[inline]
    pub fn poll_mad(&mut self) -> Option<ManagementDatagram> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.poll_mad(),
            Some(tape) => tape.poll_mad(engine),
        }
    }

    /// [`Engine::poll_transition`].
    #[inline]
    pub fn poll_transition(&mut self) -> Option<Transition> {
        let Self { engine, tape } = self;
        match tape {
            None => engine.poll_transition(),
            Some(tape) => tape.poll_transition(engine),
        }
    }

    /// [`Engine::take_lost_transitions`].
    #[inline]
    pub fn take_lost_transitions(&mut self) -> u64 {
        let Self { engine, tape } = self;
        match tape {
            None => engine.take_lost_transitions(),
            Some(tape) => tape.take_lost_transitions(engine),
        }
    }
}
