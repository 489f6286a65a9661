//! Connections that the connection manager makes, between two devices over UDP.

use std::time::Duration;

use pmd_verbs::cm::{
    Accept, AnswerError, CmAgent, CmEvent, CmState, ConnId, ConnParam, Connect, Listen, LocalQp,
    OpenCmError, PortSpace, RejectReason, Route, ServiceId,
};
use pmd_verbs::roce::ids::{Psn, WrId};
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::roce::qp::state::{QpState, Transport};
use pmd_verbs::{
    Access, Cq, Data, Device, DeviceConfig, Mr, Pd, Qp, QpOptions, Rc, RecvWr, WcStatus,
    WireChoice, WorkRequest,
};

use crate::support::region;

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7471);

/// One device with its manager, and what a connection needs.
struct Side {
    agent: CmAgent,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl Side {
    fn new() -> Self {
        let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
        let context = Device::open(&config).unwrap().context(0).unwrap();
        let agent = context.open_cm(|_| {}).unwrap();
        let (pd, cq) = (context.alloc_pd(), context.create_cq(64).unwrap());
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&region(64 << 10), 0, 64 << 10, rights).unwrap();
        Self { agent, pd, cq, mr }
    }

    fn qp(&self) -> Qp<Rc> {
        let cap = QpCap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let (send_cq, recv_cq) = (&self.cq, &self.cq);
        let options = QpOptions { send_cq, recv_cq, srq: None, xrcd: None, cap, signal_all: true };
        self.pd.create_qp(&options).unwrap()
    }

    fn gid(&self) -> pmd_verbs::roce::ids::Gid {
        self.agent.context().device().gid()
    }
}

fn local(qp: &Qp<Rc>) -> LocalQp {
    LocalQp { qpn: qp.number(), psn: Psn::new(0xff_fff0), srq: false }
}

/// The next event of one side, while both make progress.
fn event(sides: &[Side; 2], side: usize) -> CmEvent {
    let start = sides[0].agent.context().device().now();
    loop {
        sides[1 - side].agent.context().progress(sides[1 - side].agent.context().device().now());
        if let Some(event) = sides[side].agent.poll_event() {
            return event;
        }
        let waited = sides[0].agent.context().device().now().since(start);
        assert!(waited < Duration::from_secs(30), "no event");
    }
}

fn connect(sides: &[Side; 2], qp: &Qp<Rc>) -> ConnId {
    let connect = Connect {
        service: SERVICE,
        source_port: 40_000,
        route: Route::between(sides[0].gid(), sides[1].gid()),
        mtu: None,
        transport: Transport::Rc,
        qp: local(qp),
        param: ConnParam { ack_timeout: Some(14), ..ConnParam::DEFAULT },
        private_data: b"from here",
    };
    sides[0].agent.command(|cm, now| cm.connect(now, &connect)).unwrap()
}

fn listen(side: &Side) {
    let listen = Listen { service: SERVICE, address: Some(side.gid()), backlog: 4 };
    side.agent.command(|cm, _| cm.listen(listen)).unwrap();
}

/// S0-28, S2-21, S1-26: the consumer owns the queue pairs, the manager's terms lead them from RESET to
/// RTS, and what is sent first arrives.
#[test]
fn s0_28_queue_pairs_of_the_consumer_are_connected_and_carry_data() {
    let sides = [Side::new(), Side::new()];
    listen(&sides[1]);
    let client = sides[0].qp();
    let connection = connect(&sides, &client);
    let CmEvent::ConnectRequest(asked, request) = event(&sides, 1) else { panic!("a request") };
    assert_eq!(request.peer.unwrap().ip, sides[0].gid().ip());
    assert_eq!(request.private_data.without_padding(), b"from here");

    let server = sides[1].qp();
    let accept =
        Accept { qp: local(&server), param: ConnParam::DEFAULT, private_data: b"from there" };
    let terms = sides[1].agent.command(|cm, _| cm.negotiate(asked, &accept)).unwrap();
    sides[1].agent.step(&server, &terms, QpState::Init).unwrap();
    let sges = [sides[1].mr.sge(0, 64)];
    server.post_recv(&RecvWr { wr_id: WrId(7), sges: &sges }).unwrap();
    for to in [QpState::Rtr, QpState::Rts] {
        sides[1].agent.step(&server, &terms, to).unwrap();
    }
    sides[1].agent.command(|cm, now| cm.accept(now, asked, &accept)).unwrap();

    let CmEvent::Reply(id, terms, data) = event(&sides, 0) else { panic!("a reply") };
    assert_eq!((id, data.without_padding()), (connection, &b"from there"[..]));
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        sides[0].agent.step(&client, &terms, to).unwrap();
    }
    assert_eq!(client.peer(), server.number());
    sides[0].agent.command(|cm, _| cm.establish(id, &[])).unwrap();
    assert!(matches!(event(&sides, 1), CmEvent::Established(of, Some(_)) if of == asked));

    client.post_send(&WorkRequest::send(Data::Inline(&[b"the first"])).id(8)).unwrap();
    let mut ends = Vec::new();
    while ends.len() < 2 {
        for side in &sides {
            side.cq.poll(4, |completion| ends.push((completion.wr_id.0, completion.status)));
        }
    }
    ends.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(ends, [(7, WcStatus::Success), (8, WcStatus::Success)]);
    let mut text = [0; 9];
    sides[1].mr.region().read_at(0, &mut text).unwrap();
    assert_eq!(&text, b"the first");

    sides[0].agent.command(|cm, now| cm.disconnect(now, id, &[])).unwrap();
    assert!(matches!(event(&sides, 1), CmEvent::Disconnected(of, _) if of == asked));
    assert!(matches!(event(&sides, 0), CmEvent::Disconnected(of, _) if of == id));
    let state = |side: usize, id| sides[side].agent.command(|cm, _| cm.state(id));
    assert_eq!([state(0, id), state(1, asked)], [Some(CmState::Timewait); 2]);
    for (side, id) in [(0, id), (1, asked)] {
        sides[side].agent.command(|cm, now| cm.destroy(now, id)).unwrap();
        assert_eq!(state(side, id), None);
        let again = sides[side].agent.command(|cm, now| cm.destroy(now, id));
        assert_eq!(again, Err(AnswerError::NoSuchConnection));
    }
}

/// S0-31: nobody listens, which the client is told at once and in words.
#[test]
fn s0_31_a_service_that_nobody_listens_for_is_refused() {
    let sides = [Side::new(), Side::new()];
    let client = sides[0].qp();
    let connection = connect(&sides, &client);
    let CmEvent::Rejected(id, rejection) = event(&sides, 0) else { panic!("a rejection") };
    assert_eq!((id, rejection.reason), (connection, RejectReason::INVALID_SERVICE_ID));
    assert_eq!(client.state(), QpState::Reset);
}

/// One manager per device, at its first lcore, on a wire that has packets.
#[test]
fn a_device_has_one_manager() {
    let open = |wire, lcores| {
        let config = DeviceConfig { wire, lcores, ..DeviceConfig::default() };
        Device::open(&config).unwrap()
    };
    let device = open(WireChoice::Udp, 2);
    let [first, second] = [0, 1].map(|lcore| device.context(lcore).unwrap());
    assert_eq!(second.open_cm(|_| {}).unwrap_err(), OpenCmError::Lcore(1));
    first.open_cm(|_| {}).unwrap();
    assert_eq!(first.open_cm(|_| {}).unwrap_err(), OpenCmError::Open);
    let shared = open(WireChoice::Shm, 1).context(0).unwrap();
    assert_eq!(shared.open_cm(|_| {}).unwrap_err(), OpenCmError::NoPackets);
}
