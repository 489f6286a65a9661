//! The side that is asked: REQ, REP, RTU.

use super::Cm;
use super::active::wanted;
use super::config::{Accept, ConnParam, LocalQp, Route};
use super::connection::Connection;
use super::context::{CmDrop, Context};
use super::error::AnswerError;
use super::event::{CmEvent, ConnectRequest, PeerAddress};
use super::ip_header::IpHeader;
use super::limits::ACCEPT_PRIVATE_DATA;
use super::listener::ListenerId;
use super::message::{Answered, Rej, RejectInfo, Rep, Req, Rtu};
use super::negotiated::Negotiated;
use super::private_data::PrivateData;
use super::reason::RejectReason;
use super::service::{PortSpace, ServiceId};
use super::span;
use super::state::{CmState, ConnId};
use crate::ids::{Instant, PathMtu, Psn, Qpn};
use crate::qp::state::Transport;
use crate::sink::Flow;
use crate::wire::Pkey;

/// Why a request is refused without asking a consumer.
type Refusal = (RejectReason, RejectInfo);

/// A request that a consumer can be asked about.
struct Sound {
    listener: ListenerId,
    transport: Transport,
    path_mtu: PathMtu,
    peer: Option<PeerAddress>,
    private_data: PrivateData,
}

impl Cm {
    /// Takes a request.
    pub(super) fn handle_req(
        &mut self,
        now: Instant,
        from: &Flow,
        tid: u64,
        req: &Req,
    ) -> Result<(), CmDrop> {
        if req.local_comm_id == 0 {
            return Err(CmDrop::Nonsense("a REQ without a communication id"));
        }
        let known = (from.src, req.local_ca_guid, req.local_comm_id);
        if let Some(&slot) = self.context.by_remote.get(&known) {
            return self.handle_req_again(now, from, tid, req, slot);
        }
        let sound = match judge(&self.context, from, req) {
            Ok(sound) => sound,
            Err(refusal) => return self.turn_away(from, tid, req, refusal),
        };
        let queue_pair = (from.src, req.local_ca_guid, req.local_qpn);
        if let Some(&older) = self.context.by_qpn.get(&queue_pair) {
            self.end_stale(now, older);
            return self.turn_away(from, tid, req, (RejectReason::STALE, RejectInfo::NONE));
        }
        let full = (RejectReason::NO_RESOURCES, RejectInfo::NONE);
        let Some(slot) = self.connections.vacant() else {
            return self.turn_away(from, tid, req, full);
        };
        if !self.context.listeners.enter(sound.listener) {
            return self.turn_away(from, tid, req, full);
        }
        let id = ConnId(self.numbers.number(slot));
        let mut connection = Box::new(asked(id, slot, from, tid, req, &sound));
        connection.enter_indices(&mut self.context);
        connection.await_consumer(&mut self.context, now, CmState::ReqRcvd);
        let request = request_of(&connection, req, &sound);
        connection.raise(&mut self.context, CmEvent::ConnectRequest(id, request));
        self.connections.insert(connection);
        Ok(())
    }

    /// A request that came before.
    fn handle_req_again(
        &mut self,
        now: Instant,
        from: &Flow,
        tid: u64,
        req: &Req,
        slot: u32,
    ) -> Result<(), CmDrop> {
        let Some(connection) = self.connections.get_mut(slot) else {
            return Err(CmDrop::UnknownId);
        };
        match connection.state {
            CmState::ReqRcvd | CmState::MraReqSent => {
                connection.ask_for_patience(&mut self.context, now, Answered::Req);
                Err(CmDrop::OutOfState)
            }
            CmState::Timewait => {
                self.turn_away(from, tid, req, (RejectReason::STALE, RejectInfo::NONE))
            }
            // The REP is sent again in its own time.
            _ => Err(CmDrop::OutOfState),
        }
    }

    fn turn_away(
        &mut self,
        from: &Flow,
        tid: u64,
        req: &Req,
        (reason, info): Refusal,
    ) -> Result<(), CmDrop> {
        let rej = Rej {
            local_comm_id: 0,
            remote_comm_id: req.local_comm_id,
            message: Answered::Req,
            reason,
            info,
            private_data: PrivateData::EMPTY,
        };
        self.context.send(Route::back(from), tid, rej);
        Err(CmDrop::Refused)
    }

    /// What a connection would be like if it was accepted so: the queue pair must be in RTS, its
    /// receives posted, before it is.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub fn negotiate(&self, id: ConnId, accept: &Accept<'_>) -> Result<Negotiated, AnswerError> {
        accept.param.check()?;
        PrivateData::new(accept.private_data, ACCEPT_PRIVATE_DATA, "REP")?;
        let connection = self.connection(id).ok_or(AnswerError::NoSuchConnection)?;
        match connection.state {
            CmState::ReqRcvd | CmState::MraReqSent => Ok(connection.accepted(accept)),
            state => Err(AnswerError::State(state)),
        }
    }

    /// Accepts a request. [`CmEvent::Established`] or what went wrong follows.
    ///
    /// # Errors
    /// [`AnswerError`]; nothing was sent.
    pub fn accept(
        &mut self,
        now: Instant,
        id: ConnId,
        accept: &Accept<'_>,
    ) -> Result<(), AnswerError> {
        let terms = self.negotiate(id, accept)?;
        let private_data = PrivateData::new(accept.private_data, ACCEPT_PRIVATE_DATA, "REP")?;
        let (connection, cx) = self.connection_mut(id)?;
        let LocalQp { qpn, psn, srq } = accept.qp;
        connection.qp = accept.qp;
        connection.terms = terms;
        let rep = Rep {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_id,
            local_qkey: 0,
            local_qpn: qpn,
            local_eecn: 0,
            starting_psn: psn,
            responder_resources: terms.max_dest_rd_atomic,
            initiator_depth: terms.max_rd_atomic,
            target_ack_delay: cx.config.ack_delay,
            failover: 0,
            flow_control: accept.param.flow_control,
            rnr_retry_count: accept.param.rnr_retry_count,
            srq,
            local_ca_guid: cx.config.guid,
            private_data,
        };
        connection.leave_backlog(cx);
        let tid = connection.tid;
        connection.ask(cx, now, tid, rep, CmState::RepSent);
        Ok(())
    }

    /// Takes the word that a connection is ready.
    pub(super) fn handle_rtu(&mut self, from: &Flow, rtu: &Rtu) -> Result<(), CmDrop> {
        let (connection, cx) = self.addressed(rtu.remote_comm_id, from)?;
        if connection.remote_id != rtu.local_comm_id {
            return Err(CmDrop::UnknownId);
        }
        match connection.state {
            CmState::RepSent | CmState::MraRepRcvd => {
                connection.open(cx, Some(rtu.private_data));
                Ok(())
            }
            _ => Err(CmDrop::OutOfState),
        }
    }

    /// The queue pair has had a packet of the peer, whose word that it is ready may come late or never
    /// ([`AsyncEvent::CommEst`](crate::event::AsyncEvent::CommEst)).
    ///
    /// # Errors
    /// [`AnswerError::NoSuchConnection`]; where it is established already, nothing changes.
    pub fn communication_established(&mut self, id: ConnId) -> Result<(), AnswerError> {
        let (connection, cx) = self.connection_mut(id)?;
        if matches!(connection.state, CmState::RepSent | CmState::MraRepRcvd) {
            connection.open(cx, None);
        }
        Ok(())
    }

    /// The same, for whoever knows the queue pair and not its connection. False: nobody waits for that.
    pub fn communication_established_at(&mut self, qpn: Qpn) -> bool {
        let waits = |connection: &&mut Box<Connection>| {
            let is_open = matches!(connection.state, CmState::RepSent | CmState::MraRepRcvd);
            is_open && connection.qp.qpn == qpn
        };
        let found = self.connections.iter_mut().find(waits);
        let Some(connection) = found else { return false };
        connection.open(&mut self.context, None);
        true
    }
}

impl Connection {
    fn open(&mut self, cx: &mut Context, private_data: Option<PrivateData>) {
        self.state = CmState::Established;
        cx.timers.clear(self.slot);
        self.raise(cx, CmEvent::Established(self.id, private_data));
    }

    fn accepted(&self, accept: &Accept<'_>) -> Negotiated {
        let offered = self.terms;
        let ConnParam { responder_resources, initiator_depth, .. } = accept.param;
        Negotiated {
            rq_psn: accept.qp.psn,
            max_rd_atomic: offered.max_rd_atomic.min(initiator_depth),
            max_dest_rd_atomic: offered.max_dest_rd_atomic.min(responder_resources),
            min_rnr_timer: accept.param.min_rnr_timer,
            timeout: accept.param.ack_timeout.unwrap_or(offered.timeout),
            ..offered
        }
    }
}

impl Route {
    /// The way back of a message.
    pub(super) const fn back(from: &Flow) -> Self {
        let Flow { src, dst, traffic_class, hop_limit: _, .. } = *from;
        Self { traffic_class, ..Self::between(dst, src) }
    }
}

/// Whether a request makes sense, and who listens.
fn judge(cx: &Context, from: &Flow, req: &Req) -> Result<Sound, Refusal> {
    let refuse = |reason| Err((reason, RejectInfo::NONE));
    let Some(listener) = cx.listeners.find(req.service, from.dst) else {
        return refuse(RejectReason::INVALID_SERVICE_ID);
    };
    let Some(transport) = req.service_type.transport() else {
        return refuse(RejectReason::INVALID_TRANSPORT);
    };
    // Packets to another address than the one that asks would be at somebody else's cost.
    if req.primary.local_gid != from.src || req.primary.remote_gid != from.dst {
        return Err((RejectReason::INVALID_GID, RejectInfo::new(&from.dst.0)));
    }
    let Some(path_mtu) = req.path_mtu().filter(|mtu| *mtu <= cx.config.mtu) else {
        return Err((RejectReason::INVALID_MTU, RejectInfo::new(&[cx.config.mtu as u8])));
    };
    if !Pkey::DEFAULT.matches(req.pkey) {
        return refuse(RejectReason::UNSUPPORTED);
    }
    match sender(req.service, &req.private_data, from) {
        Some((peer, private_data)) => {
            Ok(Sound { listener, transport, path_mtu, peer, private_data })
        }
        None => refuse(RejectReason::UNSUPPORTED),
    }
}

/// Who sent a request, and its private data proper. `None`: the header makes no sense, or claims another
/// address than the request came from.
pub(super) fn sender(
    service: ServiceId,
    field: &PrivateData,
    from: &Flow,
) -> Option<(Option<PeerAddress>, PrivateData)> {
    match service.port() {
        Some((PortSpace::Ib, _)) | None => Some((None, *field)),
        Some(_) => {
            let (head, rest) = field.as_bytes().split_first_chunk()?;
            let header = IpHeader::parse(head)?;
            let peer = PeerAddress { ip: header.source, port: header.source_port };
            let is_true = header.is_between(from.src, from.dst);
            is_true.then(|| (Some(peer), PrivateData::of_field(rest)))
        }
    }
}

/// The connection that a request asks for.
fn asked(id: ConnId, slot: u32, from: &Flow, tid: u64, req: &Req, sound: &Sound) -> Connection {
    let path = &req.primary;
    let route = Route {
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit.max(1),
        ..Route::back(from)
    };
    // What the peer serves bounds what may be outstanding here, and the other way round.
    let offered = ConnParam {
        initiator_depth: req.responder_resources,
        responder_resources: req.initiator_depth,
        retry_count: req.retry_count,
        ..ConnParam::DEFAULT
    };
    let terms = Negotiated {
        dest_qpn: req.local_qpn,
        sq_psn: req.starting_psn,
        timeout: path.ack_timeout,
        rnr_retry: req.rnr_retry_count,
        ..wanted(sound.transport, &route, &offered, Psn::new(0), sound.path_mtu)
    };
    let max_retries = req.max_cm_retries;
    Connection {
        id,
        slot,
        state: CmState::Idle,
        orphan: false,
        is_active: false,
        route,
        tid,
        remote_id: req.local_comm_id,
        remote_guid: req.local_ca_guid,
        qp: LocalQp { qpn: Qpn::new(0), psn: Psn::new(0), srq: false },
        terms,
        last: [0; super::limits::MAD_LEN],
        interval: span::of_code(req.local_response_timeout),
        max_retries,
        retries_left: 0,
        patience: span::of_code(req.remote_response_timeout) * (u32::from(max_retries) + 1),
        listener: Some(sound.listener),
        ack_timeout: None,
    }
}

fn request_of(connection: &Connection, req: &Req, sound: &Sound) -> ConnectRequest {
    ConnectRequest {
        listener: sound.listener,
        service: req.service,
        peer: sound.peer,
        route: connection.route,
        transport: sound.transport,
        remote_qpn: req.local_qpn,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        path_mtu: sound.path_mtu,
        private_data: sound.private_data,
    }
}
