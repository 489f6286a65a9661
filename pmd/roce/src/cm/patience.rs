//! MRA: the peer needs more time.

use super::Cm;
use super::context::CmDrop;
use super::message::{Answered, Mra};
use super::span;
use super::state::CmState;
use crate::ids::Instant;
use crate::sink::Flow;

impl Cm {
    /// Waits longer for an answer, once per message: a peer can delay, not hold up for ever.
    pub(super) fn handle_mra(
        &mut self,
        now: Instant,
        from: &Flow,
        mra: &Mra,
    ) -> Result<(), CmDrop> {
        let (connection, cx) = self.addressed(mra.remote_comm_id, from)?;
        connection.state = match (connection.state, mra.message) {
            (CmState::ReqSent, Answered::Req) => CmState::MraReqRcvd,
            (CmState::RepSent, Answered::Rep) if connection.remote_id == mra.local_comm_id => {
                CmState::MraRepRcvd
            }
            _ => return Err(CmDrop::OutOfState),
        };
        let wait = span::of_code(mra.service_timeout) + connection.interval;
        cx.timers.set(connection.slot, now.after(wait));
        Ok(())
    }
}
