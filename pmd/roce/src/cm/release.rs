//! The end of connections: DREQ, DREP, timewait, and consumers that leave.

use super::connection::Connection;
use super::context::{CmDrop, Context};
use super::error::AnswerError;
use super::event::{CmEvent, Disconnection};
use super::limits::DISCONNECT_PRIVATE_DATA;
use super::message::{Answered, Drep, Dreq, RejectInfo};
use super::private_data::PrivateData;
use super::reason::RejectReason;
use super::state::{CmState, ConnId};
use super::{Cm, config::Route};
use crate::ids::Instant;
use crate::sink::Flow;

impl Cm {
    /// Ends a connection: move the queue pair to Error first. [`CmEvent::Disconnected`] follows; where the
    /// connection is at its end already, nothing happens.
    ///
    /// # Errors
    /// [`AnswerError`]; nothing was sent. A connection that is not established yet is rejected or destroyed.
    pub fn disconnect(
        &mut self,
        now: Instant,
        id: ConnId,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        let private_data = PrivateData::new(private_data, DISCONNECT_PRIVATE_DATA, "DREQ")?;
        let (connection, cx) = self.connection_mut(id)?;
        match connection.state {
            CmState::Established => {
                connection.ask_for_end(cx, now, private_data);
                Ok(())
            }
            CmState::DreqSent | CmState::Timewait => Ok(()),
            state => Err(AnswerError::State(state)),
        }
    }

    /// Forgets a connection: no event of it comes any more, and its name means nothing. The peer is told;
    /// the place is free at once, or where packets may still be under way, after timewait.
    ///
    /// # Errors
    /// [`AnswerError::NoSuchConnection`].
    pub fn destroy(&mut self, now: Instant, id: ConnId) -> Result<(), AnswerError> {
        let (connection, cx) = self.connection_mut(id)?;
        connection.orphan = true;
        let none = PrivateData::EMPTY;
        match connection.state {
            CmState::ReqSent | CmState::MraReqRcvd => {
                let info = RejectInfo::new(&cx.config.guid.to_be_bytes());
                connection.send_rej(cx, Answered::Other, RejectReason::TIMEOUT, info, none);
                connection.enter_idle(cx);
            }
            CmState::ReqRcvd | CmState::MraReqSent => {
                let consumer = RejectReason::CONSUMER;
                connection.send_rej(cx, Answered::Req, consumer, RejectInfo::NONE, none);
                connection.enter_idle(cx);
            }
            CmState::RepRcvd | CmState::MraRepSent => {
                let consumer = RejectReason::CONSUMER;
                connection.send_rej(cx, Answered::Rep, consumer, RejectInfo::NONE, none);
                connection.enter_idle(cx);
            }
            CmState::RepSent | CmState::MraRepRcvd => {
                let consumer = RejectReason::CONSUMER;
                connection.send_rej(cx, Answered::Other, consumer, RejectInfo::NONE, none);
                connection.enter_timewait(cx, now);
            }
            CmState::Established => connection.ask_for_end(cx, now, none),
            CmState::Idle | CmState::DreqSent | CmState::Timewait => {}
        }
        cx.events.retain(|event| event.connection() != Some(id));
        let slot = connection.slot;
        self.release(slot);
        Ok(())
    }

    /// Takes the wish to end a connection. It is granted at once, whatever the consumer does: the peer
    /// does not wait for it.
    pub(super) fn handle_dreq(
        &mut self,
        now: Instant,
        from: &Flow,
        tid: u64,
        dreq: &Dreq,
    ) -> Result<(), CmDrop> {
        let drep = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: PrivateData::EMPTY,
        };
        let (connection, cx) = match self.addressed(dreq.remote_comm_id, from) {
            Err(CmDrop::UnknownId) => {
                // Forgotten here: so it is over, and the peer may know.
                self.context.send(Route::back(from), tid, drep);
                return Err(CmDrop::UnknownId);
            }
            found => found?,
        };
        if connection.remote_id != dreq.local_comm_id || connection.qp.qpn != dreq.remote_qpn {
            return Err(CmDrop::UnknownId);
        }
        match connection.state {
            CmState::Established | CmState::RepSent | CmState::MraRepRcvd | CmState::DreqSent => {
                cx.send(connection.route, tid, drep);
                connection.enter_timewait(cx, now);
                let by_peer = Disconnection::ByPeer(dreq.private_data);
                connection.raise(cx, CmEvent::Disconnected(connection.id, by_peer));
                Ok(())
            }
            CmState::Timewait => {
                cx.send(connection.route, tid, drep);
                Err(CmDrop::OutOfState)
            }
            _ => Err(CmDrop::OutOfState),
        }
    }

    /// Takes the confirmation of the end.
    pub(super) fn handle_drep(
        &mut self,
        now: Instant,
        from: &Flow,
        drep: &Drep,
    ) -> Result<(), CmDrop> {
        let (connection, cx) = self.addressed(drep.remote_comm_id, from)?;
        if connection.remote_id != drep.local_comm_id {
            return Err(CmDrop::UnknownId);
        }
        if connection.state != CmState::DreqSent {
            return Err(CmDrop::OutOfState);
        }
        connection.enter_timewait(cx, now);
        let answered = Disconnection::Answered(drep.private_data);
        connection.raise(cx, CmEvent::Disconnected(connection.id, answered));
        Ok(())
    }

    /// The peer uses the queue pair of a connection for another one: it has lost this one.
    pub(super) fn end_stale(&mut self, now: Instant, slot: u32) {
        let stale = self.connections.get_mut(slot);
        if let Some(connection) = stale.filter(|stale| stale.state == CmState::Established) {
            connection.ask_for_end(&mut self.context, now, PrivateData::EMPTY);
        }
    }
}

impl Connection {
    fn ask_for_end(&mut self, cx: &mut Context, now: Instant, private_data: PrivateData) {
        let dreq = Dreq {
            local_comm_id: self.id.0,
            remote_comm_id: self.remote_id,
            remote_qpn: self.terms.dest_qpn,
            private_data,
        };
        self.ask(cx, now, Self::own_tid(self.id), dreq, CmState::DreqSent);
    }
}
