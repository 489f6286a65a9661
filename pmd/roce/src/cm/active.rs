//! The side that asks: REQ, REP, RTU.

use super::Cm;
use super::config::{ConnParam, Connect, Route};
use super::connection::Connection;
use super::context::CmDrop;
use super::error::{AnswerError, ConnectError};
use super::event::CmEvent;
use super::ip_header::IpHeader;
use super::limits::{CONNECT_PRIVATE_DATA, CONNECT_PRIVATE_DATA_IB, ESTABLISH_PRIVATE_DATA};
use super::message::{Answered, Rej, RejectInfo, Rep, Req, RequestPath, Rtu, ServiceType};
use super::negotiated::Negotiated;
use super::private_data::{PrivateData, PrivateDataTooLong};
use super::reason::RejectReason;
use super::service::{PortSpace, ServiceId};
use super::span;
use super::state::{CmState, ConnId};
use crate::ids::{Instant, Psn, Qpn};
use crate::qp::attr::AddressVector;
use crate::qp::state::Transport;
use crate::sink::Flow;
use crate::wire::Pkey;

impl Cm {
    /// Asks for a connection. [`CmEvent::Reply`] or what went wrong follows.
    ///
    /// # Errors
    /// [`ConnectError`]; nothing was sent.
    pub fn connect(&mut self, now: Instant, request: &Connect<'_>) -> Result<ConnId, ConnectError> {
        let Connect { service, transport, qp, param, .. } = *request;
        let service_type = match transport {
            Transport::Rc => ServiceType::Rc,
            Transport::Uc => ServiceType::Uc,
            other => return Err(ConnectError::Transport(other)),
        };
        if let Some((PortSpace::Udp, _)) = service.port() {
            return Err(ConnectError::Datagrams(service));
        }
        if let Some(fault) = request.route.fault() {
            return Err(ConnectError::Route(fault));
        }
        if let Some((field, value, need)) = param.fault() {
            return Err(ConnectError::Value { field, value, need });
        }
        let header = ip_header(service, request.source_port, &request.route);
        let (room, field) = (Req::PRIVATE_DATA, "REQ");
        let private_data = behind_header(header, request.private_data, room, field)?;
        let Self { connections, numbers, context: cx, .. } = self;
        let slot =
            connections.vacant().ok_or_else(|| ConnectError::TooMany(connections.capacity()))?;
        let route = labelled(request.route, service, request.source_port);
        let (config, id) = (cx.config, ConnId(numbers.number(slot)));
        let path_mtu = request.mtu.unwrap_or(config.mtu).min(config.mtu);
        // A queue pair with a timeout of its own asks for what that would follow from.
        let lifetime = param.ack_timeout.map_or(config.packet_lifetime, |t| t.saturating_sub(1));
        let ack_timeout = span::ack_timeout(config.ack_delay, lifetime);
        let req = Req {
            local_comm_id: id.0,
            service,
            local_ca_guid: config.guid,
            local_qkey: 0,
            local_qpn: qp.qpn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            remote_response_timeout: config.response_timeout,
            service_type,
            flow_control: param.flow_control,
            starting_psn: qp.psn,
            local_response_timeout: config.response_timeout,
            retry_count: param.retry_count,
            pkey: Pkey::DEFAULT,
            path_mtu_code: path_mtu as u8,
            rnr_retry_count: param.rnr_retry_count,
            max_cm_retries: config.max_retries,
            srq: qp.srq,
            primary: primary_path(&route, ack_timeout),
            alternate: None,
            private_data,
        };
        let terms = Negotiated {
            timeout: ack_timeout,
            rnr_retry: 0,
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            ..wanted(transport, &route, &param, qp.psn, path_mtu)
        };
        let response = span::of_code(config.response_timeout);
        let interval = response + 2 * span::of_code(config.packet_lifetime);
        let mut connection = Box::new(Connection {
            id,
            slot,
            state: CmState::Idle,
            orphan: false,
            is_active: true,
            route,
            tid: Connection::own_tid(id),
            remote_id: 0,
            remote_guid: 0,
            qp,
            terms,
            last: [0; super::limits::MAD_LEN],
            interval,
            max_retries: config.max_retries,
            retries_left: 0,
            patience: response * (u32::from(config.max_retries) + 1),
            listener: None,
            ack_timeout: param.ack_timeout,
        });
        let tid = connection.tid;
        connection.ask(cx, now, tid, req, CmState::ReqSent);
        connections.insert(connection);
        Ok(id)
    }

    /// Takes an acceptance.
    pub(super) fn handle_rep(
        &mut self,
        now: Instant,
        from: &Flow,
        tid: u64,
        rep: &Rep,
    ) -> Result<(), CmDrop> {
        let (connection, cx) = self.addressed(rep.remote_comm_id, from)?;
        match connection.state {
            CmState::ReqSent | CmState::MraReqRcvd => {}
            _ if connection.remote_id != rep.local_comm_id => return Err(CmDrop::UnknownId),
            CmState::RepRcvd | CmState::MraRepSent => {
                connection.ask_for_patience(cx, now, Answered::Rep);
                return Err(CmDrop::OutOfState);
            }
            CmState::Established if connection.is_active => {
                // It has not had the RTU.
                cx.send_mad(connection.route, connection.last);
                return Err(CmDrop::OutOfState);
            }
            _ => return Err(CmDrop::OutOfState),
        }
        if rep.local_comm_id == 0 {
            return Err(CmDrop::Nonsense("a REP without a communication id"));
        }
        let (guid, route) = (rep.local_ca_guid, connection.route);
        if cx.by_remote.contains_key(&(from.src, guid, rep.local_comm_id)) {
            return Err(CmDrop::Nonsense("a REP with the communication id of another connection"));
        }
        if let Some(&older) = cx.by_qpn.get(&(from.src, guid, rep.local_qpn)) {
            let rej = Rej {
                local_comm_id: rep.remote_comm_id,
                remote_comm_id: rep.local_comm_id,
                message: Answered::Rep,
                reason: RejectReason::STALE,
                info: RejectInfo::NONE,
                private_data: PrivateData::EMPTY,
            };
            cx.send(route, tid, rej);
            self.end_stale(now, older);
            return Err(CmDrop::Refused);
        }
        connection.remote_id = rep.local_comm_id;
        connection.remote_guid = guid;
        let terms = &mut connection.terms;
        terms.dest_qpn = rep.local_qpn;
        terms.sq_psn = rep.starting_psn;
        // Crosswise: what one side serves bounds what the other may have outstanding.
        terms.max_rd_atomic = terms.max_rd_atomic.min(rep.responder_resources);
        terms.max_dest_rd_atomic = terms.max_dest_rd_atomic.min(rep.initiator_depth);
        terms.rnr_retry = rep.rnr_retry_count;
        terms.timeout = connection.ack_timeout.unwrap_or_else(|| {
            span::ack_timeout(rep.target_ack_delay, terms.timeout.saturating_sub(1))
        });
        let reply = CmEvent::Reply(connection.id, *terms, rep.private_data);
        connection.enter_indices(cx);
        connection.await_consumer(cx, now, CmState::RepRcvd);
        connection.raise(cx, reply);
        Ok(())
    }

    /// Tells the peer that the connection is ready: the queue pair is in RTS.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub fn establish(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), AnswerError> {
        let private_data = PrivateData::new(private_data, ESTABLISH_PRIVATE_DATA, "RTU")?;
        let (connection, cx) = self.connection_mut(id)?;
        if !matches!(connection.state, CmState::RepRcvd | CmState::MraRepSent) {
            return Err(AnswerError::State(connection.state));
        }
        let rtu = Rtu { local_comm_id: id.0, remote_comm_id: connection.remote_id, private_data };
        connection.last = super::Message::from(rtu).emit(connection.tid);
        connection.state = CmState::Established;
        cx.timers.clear(connection.slot);
        cx.send_mad(connection.route, connection.last);
        Ok(())
    }
}

/// What this side wants of a connection.
pub(super) fn wanted(
    transport: Transport,
    route: &Route,
    param: &ConnParam,
    rq_psn: Psn,
    path_mtu: crate::ids::PathMtu,
) -> Negotiated {
    Negotiated {
        transport,
        source: route.source,
        av: AddressVector {
            flow_label: route.flow_label,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            ..AddressVector::to(route.destination)
        },
        path_mtu,
        dest_qpn: Qpn::new(0),
        rq_psn,
        sq_psn: Psn::new(0),
        max_rd_atomic: param.initiator_depth,
        max_dest_rd_atomic: param.responder_resources,
        min_rnr_timer: param.min_rnr_timer,
        timeout: 0,
        retry_cnt: param.retry_count,
        rnr_retry: 0,
    }
}

/// The addresses of a request, on services that have ports of IP.
pub(super) fn ip_header(service: ServiceId, source_port: u16, route: &Route) -> Option<IpHeader> {
    let (source, destination) = (route.source.ip(), route.destination.ip());
    match service.port() {
        Some((PortSpace::Ib, _)) | None => None,
        Some(_) => Some(IpHeader { source_port, source, destination }),
    }
}

/// Private data as a request carries it, behind the header where there is one.
pub(super) fn behind_header(
    header: Option<IpHeader>,
    data: &[u8],
    room: usize,
    message: &'static str,
) -> Result<PrivateData, PrivateDataTooLong> {
    let Some(header) = header else { return PrivateData::new(data, room, message) };
    let max = room - IpHeader::LEN;
    PrivateData::new(data, max, message)?;
    let mut field = [0; Req::PRIVATE_DATA];
    let mut long_field = [0; super::message::SidrReq::PRIVATE_DATA];
    let field = if room > field.len() { &mut long_field[..] } else { &mut field[..] };
    if let Some((head, rest)) = field.split_first_chunk_mut() {
        header.emit(head);
        rest[..data.len()].copy_from_slice(data);
    }
    Ok(PrivateData::of_field(field))
}

/// A route whose flow label follows from the ports, as Linux has it, where it was left open.
pub(super) fn labelled(route: Route, service: ServiceId, source_port: u16) -> Route {
    match service.port() {
        Some((PortSpace::Tcp | PortSpace::Udp, port)) if route.flow_label == 0 => {
            let label = u32::from(source_port) * 31 + u32::from(port);
            Route { flow_label: label & 0xf_ffff, ..route }
        }
        _ => route,
    }
}

fn primary_path(route: &Route, ack_timeout: u8) -> RequestPath {
    RequestPath {
        local_lid: RequestPath::NO_LID,
        remote_lid: RequestPath::NO_LID,
        local_gid: route.source,
        remote_gid: route.destination,
        flow_label: route.flow_label,
        packet_rate: 0,
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        sl: 0,
        subnet_local: route.hop_limit <= 1,
        ack_timeout,
    }
}

const _: () = assert!(Req::PRIVATE_DATA - IpHeader::LEN == CONNECT_PRIVATE_DATA);
const _: () = assert!(Req::PRIVATE_DATA == CONNECT_PRIVATE_DATA_IB);
