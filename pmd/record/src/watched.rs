//! The engine's own methods, with all that comes of them written down. Each is out of the way of who is on no
//! record.

use pmd_roce::engine::{Engine, PostRecvError, PostSendError, ResourceError};
use pmd_roce::event::AsyncEvent;
use pmd_roce::gsi::ManagementDatagram;
use pmd_roce::ids::{CqId, Instant, LinkId, Qpn, Srqn};
use pmd_roce::local::{Arrived, LocalPeer, Record};
use pmd_roce::memory::Memory;
use pmd_roce::qp::attr::{ModifyQpError, QpAttr};
use pmd_roce::qp::state::AttrMask;
use pmd_roce::sink::{CqSink, Frame, FrameOutcome, TxSink};
use pmd_roce::transition::Transition;
use pmd_roce::work::{RecvWr, SendWr};

use crate::input::{Input, Outcome};
use crate::pack::Blob;
use crate::tape::Tape;
use crate::vocabulary::{Receive, Request};
use crate::witness::Witness;

impl Tape {
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "what a caller lends is an argument each")]
    pub(crate) fn modify_qp(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> Result<(), ModifyQpError> {
        self.turn(engine, &Input::ModifyQp { now, qpn, attr: *attr, mask }, |engine, log| {
            let (mut mem, mut cq) = (Witness::of(mem, log), Witness::of(cq, log));
            let modified = engine.modify_qp(now, qpn, attr, mask, &mut mem, &mut cq);
            let outcome = Outcome::of_result(modified.as_ref().copied().map_err(|e| e as _));
            (modified, outcome)
        })
    }

    #[cold]
    pub(crate) fn post_send(
        &mut self,
        engine: &mut Engine,
        qpn: Qpn,
        wr: &SendWr<'_>,
    ) -> Result<(), PostSendError> {
        let input = Input::PostSend { qpn, wr: Request::of(wr) };
        self.command(engine, &input, |engine| engine.post_send(qpn, wr))
    }

    #[cold]
    pub(crate) fn post_send_list<'a, 'b: 'a>(
        &mut self,
        engine: &mut Engine,
        qpn: Qpn,
        list: impl IntoIterator<Item = &'a SendWr<'b>>,
    ) -> Result<(), (usize, PostSendError)> {
        for (posted, wr) in list.into_iter().enumerate() {
            self.post_send(engine, qpn, wr).map_err(|error| (posted, error))?;
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn post_recv(
        &mut self,
        engine: &mut Engine,
        qpn: Qpn,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostRecvError> {
        let input = Input::PostRecv { qpn, wr: Receive::of(wr) };
        self.command(engine, &input, |engine| engine.post_recv(qpn, wr))
    }

    #[cold]
    pub(crate) fn post_recv_list<'a, 'b: 'a>(
        &mut self,
        engine: &mut Engine,
        qpn: Qpn,
        list: impl IntoIterator<Item = &'a RecvWr<'b>>,
    ) -> Result<(), (usize, PostRecvError)> {
        for (posted, wr) in list.into_iter().enumerate() {
            self.post_recv(engine, qpn, wr).map_err(|error| (posted, error))?;
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn publish(&mut self, engine: &mut Engine, peers: &mut impl LocalPeer) {
        // What changes by it is what it shows.
        self.spin(engine, &Input::Publish, true, |engine, log| {
            engine.publish(&mut Witness::of(peers, log));
            0
        });
    }

    #[cold]
    pub(crate) fn fail_cq(&mut self, engine: &mut Engine, cq: CqId, sink: &mut impl CqSink) {
        self.turn(engine, &Input::FailCq(cq), |engine, log| {
            engine.fail_cq(cq, &mut Witness::of(sink, log));
            ((), Outcome::Done(0))
        });
    }

    #[cold]
    pub(crate) fn fail_srq(
        &mut self,
        engine: &mut Engine,
        srqn: Srqn,
        cq: &mut impl CqSink,
    ) -> Result<(), ResourceError> {
        self.turn(engine, &Input::FailSrq(srqn), |engine, log| {
            let failed = engine.fail_srq(srqn, &mut Witness::of(cq, log));
            let outcome = Outcome::of_result(failed.as_ref().copied().map_err(|e| e as _));
            (failed, outcome)
        })
    }

    #[cold]
    pub(crate) fn fail_device(&mut self, engine: &mut Engine, cq: &mut impl CqSink) {
        self.turn(engine, &Input::FailDevice, |engine, log| {
            engine.fail_device(&mut Witness::of(cq, log));
            ((), Outcome::Done(0))
        });
    }

    #[cold]
    pub(crate) fn handle_link_down(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        link: LinkId,
        cq: &mut impl CqSink,
    ) {
        self.turn(engine, &Input::LinkDown(link), |engine, log| {
            engine.handle_link_down(now, link, &mut Witness::of(cq, log));
            ((), Outcome::Done(0))
        });
    }

    #[cold]
    pub(crate) fn handle_frame(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        frame: &Frame<'_>,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) -> FrameOutcome {
        let Frame { flow, ip_id, payload } = *frame;
        let input = Input::Frame { now, flow, ip_id, payload: Blob(payload.to_vec()) };
        self.turn(engine, &input, |engine, log| {
            let (mut mem, mut cq) = (Witness::of(mem, log), Witness::of(cq, log));
            let outcome = engine.handle_frame(now, frame, &mut mem, &mut cq);
            (outcome, Outcome::of(outcome))
        })
    }

    #[cold]
    pub(crate) fn handle_record(
        &mut self,
        engine: &mut Engine,
        (now, link, record): (Instant, LinkId, &Record),
        payload: &mut impl Arrived,
        mem: &mut impl Memory,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> bool {
        self.turn(engine, &Input::Record { now, link, record: *record }, |engine, log| {
            let (mem, cq) = (&mut Witness::of(mem, log), &mut Witness::of(cq, log));
            let (peers, payload) = (&mut Witness::of(peers, log), &mut Witness::of(payload, log));
            let taken = engine.handle_record(now, link, record, payload, mem, peers, cq);
            (taken, Outcome::Done(taken.into()))
        })
    }

    #[cold]
    pub(crate) fn handle_timeout(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        mem: &mut impl Memory,
        cq: &mut impl CqSink,
    ) {
        let is_idle = engine.is_idle(now);
        self.spin(engine, &Input::Timeout { now }, is_idle, |engine, log| {
            engine.handle_timeout(now, &mut Witness::of(mem, log), &mut Witness::of(cq, log));
            0
        });
    }

    #[cold]
    pub(crate) fn poll_transmit(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        mem: &mut impl Memory,
        tx: &mut impl TxSink,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> usize {
        let is_idle = engine.is_idle(now);
        self.spin(engine, &Input::Transmit { now }, is_idle, |engine, log| {
            let (mem, cq) = (&mut Witness::of(mem, log), &mut Witness::of(cq, log));
            let (tx, peers) = (&mut Witness::of(tx, log), &mut Witness::of(peers, log));
            engine.poll_transmit(now, mem, tx, peers, cq)
        })
    }

    #[cold]
    pub(crate) fn poll_local(
        &mut self,
        engine: &mut Engine,
        mem: &mut impl Memory,
        peers: &mut impl LocalPeer,
        cq: &mut impl CqSink,
    ) -> usize {
        // It is told no time, so that no deadline comes by it.
        let is_idle = engine.is_idle(engine.now());
        self.spin(engine, &Input::Local, is_idle, |engine, log| {
            let (mem, cq) = (&mut Witness::of(mem, log), &mut Witness::of(cq, log));
            engine.poll_local(mem, &mut Witness::of(peers, log), cq)
        })
    }

    #[cold]
    pub(crate) fn poll_event(&mut self, engine: &mut Engine) -> Option<AsyncEvent> {
        if !engine.has_events() {
            return None;
        }
        self.turn(engine, &Input::PollEvent, |engine, _| {
            let event = engine.poll_event();
            (event, event.map_or(Outcome::Done(0), Outcome::Event))
        })
    }

    #[cold]
    pub(crate) fn poll_mad(&mut self, engine: &mut Engine) -> Option<ManagementDatagram> {
        if !engine.has_mads() {
            return None;
        }
        self.turn(engine, &Input::PollMad, |engine, _| {
            let datagram = engine.poll_mad();
            (datagram, Outcome::managed(datagram.as_ref()))
        })
    }

    #[cold]
    pub(crate) fn poll_transition(&mut self, engine: &mut Engine) -> Option<Transition> {
        self.begin(engine, &Input::PollTransition);
        let transition = engine.poll_transition()?;
        self.end(engine, &Outcome::fell(&transition));
        Some(transition)
    }

    #[cold]
    pub(crate) fn take_lost_transitions(&mut self, engine: &mut Engine) -> u64 {
        self.begin(engine, &Input::TakeLostTransitions);
        let lost = engine.take_lost_transitions();
        if lost > 0 {
            self.end(engine, &Outcome::Done(lost));
        }
        lost
    }
}
