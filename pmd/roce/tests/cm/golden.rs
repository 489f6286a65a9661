//! The kernel's connection manager, recorded: ours takes the place of either side and says the same,
//! byte for byte.

use core::time::Duration;

use pmd_roce::cm::message::{Message, Rej, Rep, Req};
use pmd_roce::cm::{
    Accept, Cm, CmConfig, CmEvent, ConnId, ConnParam, Connect, Listen, LocalQp, Route,
};
use pmd_roce::ids::{Gid, Instant, Qpn};
use pmd_roce::qp::state::Transport;
use pmd_roce::sink::Flow;
use pmd_roce::wire::icrc::{self, IcrcHeader};

use super::trace;

/// Where a datagram begins behind BTH and DETH.
const MAD: usize = 20;

/// The management datagrams of all traces, each with how it travelled.
pub(crate) fn mads() -> Vec<(Flow, Vec<u8>)> {
    trace::traces().iter().flat_map(|path| mads_of(path)).collect()
}

fn mads_of(path: &std::path::Path) -> Vec<(Flow, Vec<u8>)> {
    let frames = trace::frames(path).into_iter();
    let managed = frames
        .filter(|frame| frame.payload.len() == MAD + 256 + 4 && frame.payload[5..8] == [0, 0, 1]);
    managed
        .map(|frame| {
            let flow = Flow {
                src: Gid::from(frame.src),
                dst: Gid::from(frame.dst),
                src_port: frame.src_port,
                traffic_class: frame.traffic_class,
                hop_limit: frame.hop_limit,
            };
            let Flow { src, dst, src_port, .. } = flow;
            let header = IcrcHeader { src, dst, src_port, ip_id: frame.ip_id };
            assert!(icrc::verify(&header, &frame.payload), "frame {}", frame.number);
            assert_eq!(frame.ip_header.len(), 20);
            (flow, frame.payload[MAD..MAD + 256].to_vec())
        })
        .collect()
}

/// The connections of a trace, each as its messages.
fn conversations(trace: &str) -> Vec<Vec<(Flow, Vec<u8>)>> {
    let path = trace::traces().into_iter().find(|path| path.file_stem().unwrap() == trace).unwrap();
    let mut all: Vec<Vec<(Flow, Vec<u8>)>> = Vec::new();
    for (flow, mad) in mads_of(&path) {
        let (_, message) = Message::parse(&mad).unwrap();
        if matches!(message, Message::Req(_)) {
            all.push(vec![(flow, mad)]);
            continue;
        }
        let ids = u64::from_be_bytes(mad[24..32].try_into().unwrap());
        let (one, other) = ((ids >> 32) as u32, ids as u32);
        let conversation = all.iter_mut().find(|conversation| {
            let (_, Message::Req(req)) = Message::parse(&conversation[0].1).unwrap() else {
                panic!("it begins with a REQ")
            };
            req.local_comm_id == one || req.local_comm_id == other
        });
        conversation.unwrap().push((flow, mad));
    }
    all
}

/// One side of a recorded connection, played by us.
struct StandIn {
    cm: Cm,
    now: Instant,
    id: Option<ConnId>,
}

impl StandIn {
    /// A manager whose first connection has a given id, on an adapter like the kernel's.
    fn new(id: u32, guid: u64) -> Self {
        let config = CmConfig { packet_lifetime: 18, ..CmConfig::new(guid, id.into()) };
        Self { cm: Cm::new(config), now: Instant(0), id: None }
    }

    fn assert_says(&mut self, expected: &[u8]) {
        let said = self.cm.poll_transmit().expect("it has something to say").mad;
        let (_, ours) = Message::parse(&said).unwrap();
        let (_, theirs) = Message::parse(expected).unwrap();
        assert_eq!(ours, theirs);
        assert_eq!(said[..], *expected);
    }
}

fn param(responder_resources: u8, initiator_depth: u8, flow_control: bool) -> ConnParam {
    ConnParam { responder_resources, initiator_depth, flow_control, ..ConnParam::DEFAULT }
}

fn connect(stand_in: &mut StandIn, flow: &Flow, req: &Req) {
    let header = &req.private_data.as_bytes()[..36];
    let private_data = &req.private_data.as_bytes()[36..];
    let request = Connect {
        service: req.service,
        source_port: u16::from_be_bytes([header[2], header[3]]),
        route: Route::between(flow.src, flow.dst),
        mtu: req.path_mtu(),
        transport: Transport::Rc,
        qp: LocalQp { qpn: req.local_qpn, psn: req.starting_psn, srq: req.srq },
        param: param(req.responder_resources, req.initiator_depth, req.flow_control),
        private_data,
    };
    let param = ConnParam {
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        // `vt` sets a timeout of its own, from which the lifetime in its request follows.
        ack_timeout: (req.primary.ack_timeout == 16).then_some(14),
        ..request.param
    };
    let id = stand_in.cm.connect(stand_in.now, &Connect { param, ..request }).unwrap();
    stand_in.id = Some(id);
}

fn accept(stand_in: &mut StandIn, rep: &Rep) {
    let qp = LocalQp { qpn: rep.local_qpn, psn: rep.starting_psn, srq: rep.srq };
    let param = ConnParam {
        rnr_retry_count: rep.rnr_retry_count,
        ..param(rep.responder_resources, rep.initiator_depth, rep.flow_control)
    };
    let accept = Accept { qp, param, private_data: rep.private_data.as_bytes() };
    stand_in.cm.accept(stand_in.now, stand_in.id.unwrap(), &accept).unwrap();
}

/// The consumer does what the recorded one did to say this.
fn act(stand_in: &mut StandIn, flow: &Flow, message: &Message) {
    let (now, id) = (stand_in.now, stand_in.id);
    match message {
        Message::Req(req) => connect(stand_in, flow, req),
        Message::Rep(rep) => accept(stand_in, rep),
        Message::Rtu(rtu) => {
            stand_in.cm.establish(id.unwrap(), rtu.private_data.as_bytes()).unwrap();
        }
        Message::Rej(Rej { reason, private_data, .. }) => {
            stand_in.cm.reject(id.unwrap(), *reason, private_data.as_bytes()).unwrap();
        }
        Message::Dreq(dreq) => {
            let data = dreq.private_data.as_bytes();
            stand_in.cm.disconnect(now, id.unwrap(), data).unwrap();
        }
        // It answers that by itself.
        Message::Drep(_) => {}
        other => panic!("{} is in no trace", other.name()),
    }
}

fn replay(trace: &str, expected_events: [&[&str]; 2]) {
    for conversation in conversations(trace) {
        let (request_flow, first) = &conversation[0];
        let (_, Message::Req(req)) = Message::parse(first).unwrap() else { panic!("a REQ") };
        let answer =
            conversation.iter().find_map(|(_, mad)| match Message::parse(mad).unwrap().1 {
                Message::Rep(rep) => Some((rep.local_comm_id, rep.local_ca_guid)),
                Message::Rej(rej) => Some((rej.local_comm_id, 1)),
                _ => None,
            });
        let (passive_id, passive_guid) = answer.unwrap();
        for is_active in [true, false] {
            let mut stand_in = match is_active {
                true => StandIn::new(req.local_comm_id, req.local_ca_guid),
                false => StandIn::new(passive_id, passive_guid),
            };
            let listen = Listen { service: req.service, address: None, backlog: 1 };
            stand_in.cm.listen(listen).unwrap();
            let mut events = Vec::new();
            for (flow, mad) in &conversation {
                let (_, message) = Message::parse(mad).unwrap();
                if (flow.src == request_flow.src) == is_active {
                    act(&mut stand_in, flow, &message);
                    stand_in.assert_says(mad);
                } else {
                    stand_in.cm.handle_mad(stand_in.now, flow, mad).unwrap();
                }
                while let Some(event) = stand_in.cm.poll_event() {
                    events.push(judge(&mut stand_in, &req, &event));
                }
                stand_in.now = stand_in.now.after(Duration::from_millis(5));
            }
            assert_eq!(events, expected_events[usize::from(!is_active)], "{trace}");
            assert_eq!(stand_in.cm.poll_transmit(), None);
        }
    }
}

/// The event's name; what it says of the connection is checked.
fn judge(stand_in: &mut StandIn, req: &Req, event: &CmEvent) -> &'static str {
    match event {
        CmEvent::ConnectRequest(id, request) => {
            stand_in.id = Some(*id);
            let offered = (request.responder_resources, request.initiator_depth);
            assert_eq!(offered, (req.initiator_depth, req.responder_resources));
            assert_eq!(request.remote_qpn, req.local_qpn);
            "request"
        }
        CmEvent::Reply(_, negotiated, _) => {
            // As Linux has it: from the target's delay and the lifetime.
            assert_eq!(negotiated.timeout, req.primary.ack_timeout);
            assert_eq!(negotiated.rq_psn, req.starting_psn);
            assert_ne!(negotiated.dest_qpn, Qpn::new(0));
            "reply"
        }
        CmEvent::Established(..) => "established",
        CmEvent::Rejected(_, rejection) => {
            assert_eq!(rejection.reason.0, 28);
            assert_eq!(rejection.private_data.without_padding(), b"no");
            "rejected"
        }
        CmEvent::Disconnected(..) => "disconnected",
        other => panic!("{other:?}"),
    }
}

#[test]
fn rping_as_the_kernel_does() {
    replay("rping", [&["reply", "disconnected"], &["request", "established", "disconnected"]]);
}

#[test]
fn nvme_rdma_as_the_kernel_does() {
    let events: [&[&str]; 2] =
        [&["reply", "disconnected"], &["request", "established", "disconnected"]];
    replay("nvme-rdma-cm", events);
}

#[test]
fn cm_reject_as_the_kernel_does() {
    replay("cm-reject", [&["rejected"], &["request"]]);
}
