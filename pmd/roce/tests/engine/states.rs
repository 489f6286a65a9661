//! The state table against a live engine.

use pmd_roce::engine::{PostRecvError, PostSendError};
use pmd_roce::ids::{Gid, Lkey, PathMtu, Psn, Qpn, WrId, XrcdId};
use pmd_roce::qp::attr::{AddressVector, ModifyQpError, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{self, AttrMask, QpState, Transport};
use pmd_roce::wire::udp;
use pmd_roce::work::{Access, Datagram, RecvWr, SendOp};

use crate::support::{self, Host, attr, group};

const PEER: Qpn = Qpn::new(0x99);

/// A queue pair that can be put into any state.
struct Subject {
    host: Host,
    qpn: Qpn,
    transport: Transport,
}

impl Subject {
    fn new(transport: Transport) -> Self {
        let mut host = Host::new(1);
        let xrcd = (transport == Transport::XrcTgt).then_some(XrcdId(1));
        let qpn = host.engine.create_qp(&QpInit { xrcd, ..support::init(transport) }).unwrap();
        Self { host, qpn, transport }
    }

    /// RESET first, then the shortest legal way.
    fn put(&mut self, state: QpState) {
        self.host.go(self.qpn, QpState::Reset);
        let way: &[QpState] = match state {
            QpState::Reset => &[],
            QpState::Init => &[QpState::Init],
            QpState::Rtr => &[QpState::Init, QpState::Rtr],
            QpState::Rts | QpState::Sqe => &[QpState::Init, QpState::Rtr, QpState::Rts],
            QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
            QpState::Error => &[QpState::Init, QpState::Error],
        };
        for to in way {
            self.host.step(self.qpn, &self.attr(), *to);
        }
        if state == QpState::Sqe {
            self.break_send_queue();
        }
        assert_eq!(self.host.state(self.qpn), state, "{}", self.transport);
    }

    /// A send from memory that is not registered.
    fn break_send_queue(&mut self) {
        let mut sge = support::element(&SendOp::Send, 8);
        sge.lkey = Lkey(0xbad);
        let sges = [sge];
        let mut wr = support::send_wr(1, SendOp::Send, &sges);
        if self.transport == Transport::Ud {
            let ah = self.host.engine.create_ah(&self.attr().av).unwrap();
            wr.to = Some(Datagram { ah, qpn: PEER, qkey: 1 });
        }
        self.host.engine.post_send(self.qpn, &wr).unwrap();
        self.host.poll();
        if let Some(to) = wr.to {
            self.host.engine.destroy_ah(to.ah).unwrap();
        }
    }

    fn attr(&self) -> QpAttr {
        attr(2, PEER)
    }

    /// States this transport can be in: SQE is for UC and UD.
    fn states(&self) -> impl Iterator<Item = QpState> {
        let has_sqe = matches!(self.transport, Transport::Uc | Transport::Ud);
        QpState::ALL.into_iter().filter(move |state| has_sqe || *state != QpState::Sqe)
    }

    /// Asks for an edge and checks that a refusal changes nothing.
    fn try_edge(&mut self, to: QpState, mask: AttrMask) -> Result<(), ModifyQpError> {
        let attr = QpAttr {
            state: to,
            cur_state: self.host.state(self.qpn),
            path_mtu: PathMtu::B256,
            ..self.attr()
        };
        let before = self.host.engine.query_qp(self.qpn);
        let outcome = self.host.modify(self.qpn, &attr, mask);
        if outcome.is_err() {
            assert_eq!(self.host.engine.query_qp(self.qpn), before, "a refusal changes nothing");
        } else {
            assert_eq!(self.host.state(self.qpn), to);
        }
        outcome
    }
}

const ENGINE_TRANSPORTS: [Transport; 5] =
    [Transport::Rc, Transport::Uc, Transport::Ud, Transport::XrcIni, Transport::XrcTgt];

/// Automatic path migration is in the table but not in the device (S1-56).
const APM: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);

/// P02, S0-01 to S0-08, S1-12, S1-14, S1-15, S1-20, S1-21, S1-60, S1-61, S2-02, S2-11: every cell with
/// the exact mask, without each required bit, with each other bit, and with a wrong current state.
#[test]
fn p02_every_cell_and_mask_bit() {
    for transport in ENGINE_TRANSPORTS {
        let mut subject = Subject::new(transport);
        for from in subject.states().collect::<Vec<_>>() {
            for to in QpState::ALL {
                check_cell(&mut subject, from, to);
            }
        }
    }
}

fn check_cell(subject: &mut Subject, from: QpState, to: QpState) {
    let required = match state::masks(subject.transport, from, to) {
        Some(edge) => edge.required | AttrMask::STATE,
        None => AttrMask::STATE,
    };
    let masks = AttrMask::all().iter().map(|bit| required ^ bit).chain([required]);
    for mask in masks.filter(|mask| mask.contains(AttrMask::STATE)) {
        subject.put(from);
        let expected = state::check(subject.transport, from, to, mask);
        let got = subject.try_edge(to, mask);
        let context = format!("{} {from} -> {to} with {mask}", subject.transport);
        match (expected, got) {
            (Err(expected), Err(ModifyQpError::Transition(got))) => {
                assert_eq!(got, expected, "{context}");
            }
            (Ok(()), Err(ModifyQpError::Value { field, .. })) => {
                assert!(mask.intersects(APM), "{context}: {field}");
            }
            (Ok(()), Ok(())) => assert!(!mask.intersects(APM), "{context}"),
            (expected, got) => panic!("{context}: {got:?}, not {expected:?}"),
        }
    }
    subject.put(from);
    let claimed = if from == QpState::Rts { QpState::Rtr } else { QpState::Rts };
    let attr = QpAttr { state: to, cur_state: claimed, ..subject.attr() };
    let refused = subject.host.modify(subject.qpn, &attr, required | AttrMask::CUR_STATE);
    assert_eq!(refused, Err(ModifyQpError::WrongCurrentState { claimed, actual: from }));
}

/// S1-16, S1-19: one edge per call, and RESET from everywhere with STATE alone.
#[test]
fn s1_19_reset_from_every_state() {
    for transport in ENGINE_TRANSPORTS {
        let mut subject = Subject::new(transport);
        for from in subject.states().collect::<Vec<_>>() {
            subject.put(from);
            subject.host.go(subject.qpn, QpState::Reset);
            let view = subject.host.engine.query_qp(subject.qpn).unwrap();
            assert_eq!(view.attr, QpAttr::new(QpState::Reset), "S2-18: as new");
        }
    }
}

/// S1-22: what was set can be read back between the steps; S1-23's attributes.
#[test]
fn s1_23_worked_example_reads_back() {
    let mut subject = Subject::new(Transport::Rc);
    let wanted =
        QpAttr { sq_psn: Psn::new(0x20_0000), rq_psn: Psn::new(0x10_0000), ..subject.attr() };
    let read = |subject: &Subject| subject.host.engine.query_qp(subject.qpn).unwrap().attr;
    subject.host.step(subject.qpn, &wanted, QpState::Init);
    assert_eq!(read(&subject).access, wanted.access);
    assert_eq!(read(&subject).dest_qpn, Qpn::new(0), "not set yet");
    subject.host.step(subject.qpn, &wanted, QpState::Rtr);
    let at_rtr = read(&subject);
    assert_eq!((at_rtr.dest_qpn, at_rtr.rq_psn), (PEER, wanted.rq_psn));
    assert_eq!((at_rtr.av.sgid_index, at_rtr.path_mtu), (0, PathMtu::B1024), "S0-10");
    assert_eq!(at_rtr.timeout, 0, "not set yet");
    subject.host.step(subject.qpn, &wanted, QpState::Rts);
    let at_rts = read(&subject);
    assert_eq!((at_rts.timeout, at_rts.retry_cnt, at_rts.rnr_retry), (14, 7, 7));
    assert_eq!((at_rts.sq_psn, at_rts.max_rd_atomic, at_rts.min_rnr_timer), (wanted.sq_psn, 4, 12));
    assert_eq!(at_rts.cur_state, QpState::Rts);
}

/// S0-09: path_mtu is for connections.
#[test]
fn s0_09_ud_refuses_path_mtu() {
    let mut subject = Subject::new(Transport::Ud);
    subject.put(QpState::Init);
    let refused = subject.try_edge(QpState::Rtr, AttrMask::STATE | AttrMask::PATH_MTU);
    let Err(ModifyQpError::Transition(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.illegal, AttrMask::PATH_MTU);
}

/// S0-13: the four retry knobs exist on RC alone.
#[test]
fn s0_13_retry_knobs_are_for_reliable_connections() {
    let knobs = [
        (QpState::Rts, AttrMask::TIMEOUT),
        (QpState::Rts, AttrMask::RETRY_CNT),
        (QpState::Rts, AttrMask::RNR_RETRY),
        (QpState::Rtr, AttrMask::MIN_RNR_TIMER),
    ];
    for transport in [Transport::Uc, Transport::Ud, Transport::Rc] {
        for (to, knob) in knobs {
            let mut subject = Subject::new(transport);
            let from = if to == QpState::Rtr { QpState::Init } else { QpState::Rtr };
            subject.put(from);
            let edge = state::masks(transport, from, to).unwrap();
            let outcome = subject.try_edge(to, edge.required | knob);
            assert_eq!(outcome.is_ok(), transport == Transport::Rc, "{transport} {knob}");
        }
    }
}

/// S1-61: the mask's missing bit is named, in the error and in its text.
#[test]
fn s1_61_rtr_without_dest_qp_num_names_it() {
    let mut subject = Subject::new(Transport::Rc);
    subject.put(QpState::Init);
    let edge = state::masks(Transport::Rc, QpState::Init, QpState::Rtr).unwrap();
    let error = subject.try_edge(QpState::Rtr, edge.required - AttrMask::DEST_QPN).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("missing DEST_QPN"), "{text}");
}

/// One wrong value.
struct Wrong {
    field: &'static str,
    edge: (QpState, QpState),
    spoil: fn(&mut QpAttr),
}

const fn wrong(field: &'static str, from: QpState, to: QpState, spoil: fn(&mut QpAttr)) -> Wrong {
    Wrong { field, edge: (from, to), spoil }
}

/// P01, S3-04's widths, S1-15: every value is checked before anything is applied.
#[test]
fn p01_values_out_of_range_are_named_and_change_nothing() {
    use QpState::{Init, Reset, Rtr, Rts};
    let cases = [
        wrong("port_num", Reset, Init, |attr| attr.port = 2),
        wrong("pkey_index", Reset, Init, |attr| attr.pkey_index = 1),
        wrong("qp_access_flags", Reset, Init, |attr| attr.access = Access::MW_BIND),
        wrong("ah_attr.is_global", Init, Rtr, |attr| attr.av.is_global = false),
        wrong("ah_attr.grh.hop_limit", Init, Rtr, |attr| attr.av.hop_limit = 0),
        wrong("ah_attr.grh.flow_label", Init, Rtr, |attr| attr.av.flow_label = 1 << 20),
        wrong("ah_attr.port_num", Init, Rtr, |attr| attr.av.port = 0),
        wrong("ah_attr.sl", Init, Rtr, |attr| attr.av.sl = 16),
        wrong("ah_attr.grh.dgid", Init, Rtr, |attr| attr.av.dgid = Gid([0; 16])),
        wrong("ah_attr.grh.dgid", Init, Rtr, |attr| attr.av.dgid = Gid([0xfe; 16])),
        wrong("ah_attr.grh.dgid", Init, Rtr, |attr| attr.av.dgid = group(1)),
        wrong("dest_qp_num", Init, Rtr, |attr| attr.dest_qpn = Qpn::new(0)),
        wrong("dest_qp_num", Init, Rtr, |attr| attr.dest_qpn = Qpn::MULTICAST),
        wrong("min_rnr_timer", Init, Rtr, |attr| attr.min_rnr_timer = 32),
        wrong("max_dest_rd_atomic", Init, Rtr, |attr| attr.max_dest_rd_atomic = 129),
        wrong("timeout", Rtr, Rts, |attr| attr.timeout = 32),
        wrong("retry_cnt", Rtr, Rts, |attr| attr.retry_cnt = 8),
        wrong("rnr_retry", Rtr, Rts, |attr| attr.rnr_retry = 8),
        wrong("max_rd_atomic", Rtr, Rts, |attr| attr.max_rd_atomic = 129),
    ];
    for Wrong { field, edge: (from, to), spoil } in cases {
        let mut subject = Subject::new(Transport::Rc);
        subject.put(from);
        let mut attr = QpAttr { state: to, ..subject.attr() };
        spoil(&mut attr);
        let before = subject.host.engine.query_qp(subject.qpn);
        let mask = state::masks(Transport::Rc, from, to).unwrap().required;
        let error = subject.host.modify(subject.qpn, &attr, mask).unwrap_err();
        assert!(
            matches!(error, ModifyQpError::Value { field: got, .. } if got == field),
            "{error}"
        );
        assert!(error.to_string().starts_with(field), "{error}");
        assert_eq!(subject.host.engine.query_qp(subject.qpn), before);
        subject.host.step(subject.qpn, &subject.attr(), to);
    }
}

/// P01: the GID index is checked against the table, for connections and for address handles.
#[test]
fn p01_sgid_index_beyond_the_table() {
    let mut subject = Subject::new(Transport::Rc);
    subject.put(QpState::Init);
    let mut attr = QpAttr { state: QpState::Rtr, ..subject.attr() };
    attr.av.sgid_index = 99;
    let mask = state::masks(Transport::Rc, QpState::Init, QpState::Rtr).unwrap().required;
    let error = subject.host.modify(subject.qpn, &attr, mask).unwrap_err();
    assert_eq!(error, ModifyQpError::SgidIndex { index: 99, len: 1 });
    let text = "ah_attr.grh.sgid_index = 99: the GID table has 1 entries";
    assert_eq!(error.to_string(), text);
    assert_eq!(subject.host.engine.create_ah(&attr.av).unwrap_err().to_string(), text);
    attr.av = AddressVector { is_global: false, ..subject.attr().av };
    let error = subject.host.engine.create_ah(&attr.av).unwrap_err().to_string();
    assert!(error.starts_with("ah_attr.is_global = 0: required on RoCE"), "{error}");
}

/// P04: a path MTU above the port's is refused.
#[test]
fn p04_path_mtu_above_the_port() {
    let mut host = Host::with(1, |config| config.mtu = PathMtu::B1024);
    let qpn = host.create(Transport::Uc);
    let mut wanted = attr(2, PEER);
    host.step(qpn, &wanted, QpState::Init);
    wanted.path_mtu = PathMtu::B4096;
    wanted.state = QpState::Rtr;
    let mask = state::masks(Transport::Uc, QpState::Init, QpState::Rtr).unwrap().required;
    let error = host.modify(qpn, &wanted, mask).unwrap_err();
    assert!(error.to_string().starts_with("path_mtu = 4096: no more than"), "{error}");
    wanted.path_mtu = PathMtu::B1024;
    host.modify(qpn, &wanted, mask).unwrap();
}

/// S1-17: sends are refused before RTS; S2-18, E-21: receives are taken from INIT on.
#[test]
fn s1_17_what_can_be_posted_where() {
    let mut subject = Subject::new(Transport::Rc);
    for state in subject.states().collect::<Vec<_>>() {
        subject.put(state);
        let sges = [support::element(&SendOp::Send, 1)];
        let sent =
            subject.host.engine.post_send(subject.qpn, &support::send_wr(1, SendOp::Send, &sges));
        let expected = match state {
            QpState::Reset | QpState::Init | QpState::Rtr => Err(PostSendError::NotReady(state)),
            _ => Ok(()),
        };
        assert_eq!(sent, expected, "{state}");
        let wr = RecvWr { wr_id: WrId(2), sges: &[] };
        let received = subject.host.engine.post_recv(subject.qpn, &wr);
        let expected = match state {
            QpState::Reset => Err(PostRecvError::NotReady(state)),
            _ => Ok(()),
        };
        assert_eq!(received, expected, "{state}");
        subject.host.cqs.got.clear();
    }
}

/// P07: what is granted is at least what was asked, or the call names the field.
#[test]
fn p07_caps_are_granted_or_refused_by_name() {
    let mut host = Host::new(1);
    for inline in [0, 64, 220, 512] {
        let mut init = support::init(Transport::Rc);
        init.cap = QpCap { max_inline_data: inline, max_send_wr: 33, ..init.cap };
        let qpn = host.engine.create_qp(&init).unwrap();
        let cap = host.engine.query_qp(qpn).unwrap().init.cap;
        assert!(cap.max_inline_data >= inline && cap.max_send_wr >= 33);
    }
    let mut init = support::init(Transport::Rc);
    init.cap.max_inline_data = 4096;
    let error = host.engine.create_qp(&init).unwrap_err();
    assert_eq!(error.to_string(), "max_inline_data = 4096 is outside 0..=512");
}

/// S0-10: the address vector decides addresses, UDP source port and DSCP of every packet: by the flow label where there
/// is one, else by both numbers, and on UD by the sender's alone (the formulas of Linux).
#[test]
fn s0_10_the_address_vector_fixes_the_flow() {
    let flow_of = |transport, flow_label: u32| {
        let mut host = Host::new(1);
        let qpn = host.create(transport);
        let mut wanted = attr(2, PEER);
        (wanted.av.flow_label, wanted.av.traffic_class, wanted.av.hop_limit) =
            (flow_label, 0x6a, 3);
        host.bring_up(qpn, &wanted);
        let sges = [support::element(&SendOp::Send, 8)];
        let mut wr = support::send_wr(1, SendOp::Send, &sges);
        if transport == Transport::Ud {
            let ah = host.engine.create_ah(&wanted.av).unwrap();
            wr.to = Some(Datagram { ah, qpn: PEER, qkey: 1 });
        }
        host.engine.post_send(qpn, &wr).unwrap();
        host.poll();
        (qpn, host.out.frames.pop_front().unwrap().flow)
    };
    let (qpn, flow) = flow_of(Transport::Rc, 0);
    assert_eq!((flow.src, flow.dst), (support::gid(1), support::gid(2)));
    assert_eq!((flow.traffic_class, flow.hop_limit), (0x6a, 3));
    assert_eq!(flow.src_port, udp::source_port_of_pair(qpn, PEER));
    assert_eq!(flow_of(Transport::Uc, 0x4_0001).1.src_port, 0xc011);
    let (qpn, flow) = flow_of(Transport::Ud, 0x4_0001);
    assert_eq!(flow.src_port, udp::source_port_of_sender(qpn));
    assert_eq!((flow.traffic_class, flow.hop_limit), (0x6a, 3));
}
