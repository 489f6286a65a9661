//! What happens in each state when nothing does.

use super::Cm;
use super::connection::Connection;
use super::context::Context;
use super::event::{Awaited, CmEvent, Disconnection};
use super::message::{Answered, RejectInfo};
use super::private_data::PrivateData;
use super::reason::RejectReason;
use super::state::CmState;
use crate::ids::Instant;

impl Cm {
    /// A connection's deadline has come.
    pub(super) fn run_timer(&mut self, now: Instant, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let cx = &mut self.context;
        match connection.state {
            CmState::ReqSent | CmState::MraReqRcvd => {
                if !connection.ask_again(cx, now) {
                    connection.end_unreachable(cx, Awaited::Reply);
                }
            }
            CmState::RepSent | CmState::MraRepRcvd => {
                if !connection.ask_again(cx, now) {
                    connection.end_unreachable(cx, Awaited::Rtu);
                }
            }
            CmState::ReqRcvd | CmState::MraReqSent => {
                connection.give_up_on_consumer(cx, Answered::Req);
            }
            CmState::RepRcvd | CmState::MraRepSent => {
                connection.give_up_on_consumer(cx, Answered::Rep);
            }
            CmState::DreqSent => {
                if !connection.ask_again(cx, now) {
                    connection.enter_timewait(cx, now);
                    let unanswered = Disconnection::Unanswered;
                    connection.raise(cx, CmEvent::Disconnected(connection.id, unanswered));
                }
            }
            CmState::Timewait => {
                connection.enter_idle(cx);
                connection.raise(cx, CmEvent::TimewaitExit(connection.id, connection.qp.qpn));
            }
            CmState::Idle | CmState::Established => {}
        }
        self.release(slot);
    }
}

impl Connection {
    /// Sends the last message again, byte for byte. False: often enough.
    fn ask_again(&mut self, cx: &mut Context, now: Instant) -> bool {
        if self.retries_left == 0 {
            return false;
        }
        self.retries_left -= 1;
        cx.counters.resent += 1;
        cx.send_mad(self.route, self.last);
        cx.timers.set(self.slot, now.after(self.interval));
        true
    }

    fn end_unreachable(&mut self, cx: &mut Context, awaited: Awaited) {
        self.enter_idle(cx);
        self.raise(cx, CmEvent::Unreachable(self.id, awaited));
    }

    /// The consumer has not answered in the time that the peer waits.
    fn give_up_on_consumer(&mut self, cx: &mut Context, message: Answered) {
        let info = RejectInfo::new(&cx.config.guid.to_be_bytes());
        self.send_rej(cx, message, RejectReason::TIMEOUT, info, PrivateData::EMPTY);
        self.end_unreachable(cx, Awaited::Consumer);
    }
}
