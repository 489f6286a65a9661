//! REJ: one side does not want the connection.

use super::Cm;
use super::connection::Connection;
use super::context::{CmDrop, Context};
use super::error::AnswerError;
use super::event::{CmEvent, Rejection};
use super::limits::REJECT_PRIVATE_DATA;
use super::message::{Answered, Message, Rej, RejectInfo};
use super::private_data::PrivateData;
use super::reason::RejectReason;
use super::state::{CmState, ConnId};
use crate::ids::Instant;
use crate::sink::Flow;

impl Cm {
    /// Refuses a request, or an acceptance. Consumers give [`RejectReason::CONSUMER`]. The connection is
    /// in Idle then.
    ///
    /// # Errors
    /// [`AnswerError`]; nothing was sent.
    pub fn reject(
        &mut self,
        id: ConnId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        let private_data = PrivateData::new(private_data, REJECT_PRIVATE_DATA, "REJ")?;
        let (connection, cx) = self.connection_mut(id)?;
        let message = match connection.state {
            CmState::ReqRcvd | CmState::MraReqSent => Answered::Req,
            CmState::RepRcvd | CmState::MraRepSent => Answered::Rep,
            state => return Err(AnswerError::State(state)),
        };
        connection.send_rej(cx, message, reason, RejectInfo::NONE, private_data);
        connection.enter_idle(cx);
        Ok(())
    }

    /// Takes a refusal.
    pub(super) fn handle_rej(
        &mut self,
        now: Instant,
        from: &Flow,
        rej: &Rej,
    ) -> Result<(), CmDrop> {
        let (connection, cx) = match self.addressed(rej.remote_comm_id, from) {
            Err(CmDrop::UnknownId) => self.given_up(from, rej)?,
            found => found?,
        };
        let knows_us = connection.remote_id == rej.local_comm_id;
        match connection.state {
            CmState::ReqSent | CmState::MraReqRcvd
                if rej.reason == RejectReason::INVALID_MTU && rej.info.path_mtu().is_some() =>
            {
                return connection.ask_for_smaller_packets(cx, now, rej);
            }
            // Who refuses a request may not have a name for it.
            CmState::ReqSent | CmState::MraReqRcvd => connection.end_refused(cx, now, rej.reason),
            _ if !knows_us => return Err(CmDrop::UnknownId),
            CmState::RepSent | CmState::MraRepRcvd | CmState::ReqRcvd | CmState::MraReqSent => {
                connection.end_refused(cx, now, rej.reason);
            }
            CmState::RepRcvd | CmState::MraRepSent | CmState::Established | CmState::DreqSent => {
                connection.enter_timewait(cx, now);
            }
            CmState::Idle | CmState::Timewait => return Err(CmDrop::OutOfState),
        }
        let Rej { reason, message, info, private_data, .. } = *rej;
        let rejection = Rejection { reason, message, info, private_data };
        connection.raise(cx, CmEvent::Rejected(connection.id, rejection));
        let slot = connection.slot;
        self.release(slot);
        Ok(())
    }

    /// The connection of a peer that gave up without knowing how this side calls it.
    fn given_up(
        &mut self,
        from: &Flow,
        rej: &Rej,
    ) -> Result<(&mut Connection, &mut Context), CmDrop> {
        let guid = rej.info.guid().filter(|_| rej.reason == RejectReason::TIMEOUT);
        let known = (from.src, guid.ok_or(CmDrop::UnknownId)?, rej.local_comm_id);
        let slot = self.context.by_remote.get(&known).ok_or(CmDrop::UnknownId)?;
        let connection = self.connections.get_mut(*slot).ok_or(CmDrop::UnknownId)?;
        if !connection.is_with(from) {
            return Err(CmDrop::WrongPeer);
        }
        Ok((connection, &mut self.context))
    }
}

impl Connection {
    /// No packet of the connection was sent, but for one that the peer has not forgotten yet.
    fn end_refused(&mut self, cx: &mut Context, now: Instant, reason: RejectReason) {
        if reason == RejectReason::STALE {
            self.enter_timewait(cx, now);
        } else {
            self.enter_idle(cx);
        }
    }

    /// The peer's port carries smaller packets than this one's: asks again for such a path.
    fn ask_for_smaller_packets(
        &mut self,
        cx: &mut Context,
        now: Instant,
        rej: &Rej,
    ) -> Result<(), CmDrop> {
        let mtu = rej.info.path_mtu().filter(|mtu| *mtu < self.terms.path_mtu);
        // An answer to what was asked before, or one that does not know what it wants.
        let mtu = mtu.ok_or(CmDrop::OutOfState)?;
        let Ok((tid, Message::Req(req))) = Message::parse(&self.last) else {
            return Err(CmDrop::OutOfState);
        };
        self.terms.path_mtu = mtu;
        let req = super::message::Req { path_mtu_code: mtu as u8, ..req };
        self.ask(cx, now, tid, req, CmState::ReqSent);
        Ok(())
    }
}
