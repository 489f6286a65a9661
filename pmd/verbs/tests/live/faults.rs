//! Faults as the command line states them, and where they are put.

use pmd_verbs::roce::limits::{QPN_GENERATION_BITS, QPN_INDEX_BITS};
use pmd_verbs::{Disturb, FaultText};
use pmd_wire::fault::{Action, Direction, ParseRuleError, QpnMatch};

fn parse(text: &str) -> FaultText {
    FaultText::parse(text).unwrap()
}

/// `acks` is every acknowledging opcode of every transport, and nothing else; other names are single
/// opcodes as packet decoders call them.
#[test]
fn opcodes_by_name() {
    let acks = parse("drop acks").place(None, None).rule.matching.opcodes;
    let in_acks: Vec<u8> = (0..=u8::MAX).filter(|opcode| acks.contains(*opcode)).collect();
    // RC and XRC ACKNOWLEDGE and ATOMIC ACKNOWLEDGE.
    assert_eq!(in_acks, [0x11, 0x12, 0xb1, 0xb2]);
    let one = parse("delay 5ms RC_WRITE_LAST after 3").place(None, None).rule;
    assert_eq!(one.action, Action::Delay { ns: 5_000_000 });
    assert_eq!(one.matching.after, 3);
    let in_one: Vec<u8> =
        (0..=u8::MAX).filter(|opcode| one.matching.opcodes.contains(*opcode)).collect();
    assert_eq!(in_one, [0x08]);
    let error = FaultText::parse("drop ack").unwrap_err();
    assert_eq!(error, ParseRuleError::Word("ack".to_owned()));
    assert!(FaultText::parse("lose all").is_err());
}

/// Where a fault happens: at the sender if it is of this process, else where the frames arrive; once.
#[test]
fn nodes_become_lcores_and_directions() {
    let shift = QPN_GENERATION_BITS + QPN_INDEX_BITS;
    let to_lcore = |lcore: u32| Some(QpnMatch { value: lcore << shift, mask: 7 << shift });
    let placed = |text: &str, to: Option<u32>, from: Option<u32>| {
        let fault = parse(text).place(to, from);
        (fault.lcore, fault.rule.matching.direction, fault.rule.matching.qpn)
    };
    let (tx, rx) = (Direction::Tx, Direction::Rx);
    assert_eq!(placed("drop", None, None), (None, Direction::Both, None));
    assert_eq!(placed("drop from source", None, Some(1)), (Some(1), tx, None));
    assert_eq!(placed("drop from elsewhere", None, None), (None, rx, None));
    assert_eq!(placed("drop to target", Some(2), None), (None, rx, to_lcore(2)));
    assert_eq!(placed("drop to elsewhere", None, None), (None, tx, None));
    let both = "drop from source to target";
    assert_eq!(placed(both, Some(2), Some(1)), (Some(1), tx, to_lcore(2)));
    assert_eq!(placed("drop from elsewhere to target", Some(2), None), (None, rx, to_lcore(2)));
    let parsed = parse(both);
    assert_eq!((parsed.from.as_deref(), parsed.to.as_deref()), (Some("source"), Some("target")));
}

/// A fault without a node hits a frame between two lcores of one device once, although both send and
/// receive it: every third is lost, not five of nine.
#[test]
fn a_fault_hits_a_frame_once() {
    use pmd_verbs::roce::qp::state::QpState;
    use pmd_verbs::{Data, Device, DeviceConfig, Uc, WireChoice, WorkRequest};
    let disturb =
        Disturb { faults: vec![parse("drop every 3").place(None, None)], ..Disturb::default() };
    let config =
        DeviceConfig { wire: WireChoice::Udp, lcores: 2, disturb, ..DeviceConfig::default() };
    let world = crate::support::World::of(&Device::open(&config).unwrap());
    let [a, b] = world.pair::<Uc>(|_, _| {});
    for wr in 0..9 {
        world.sides[1].receive(&b, wr, 64 * wr, 64);
        a.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(wr)).unwrap();
    }
    let [sent, received] = world.complete([9, 6]);
    assert_eq!((sent.len(), received.len()), (9, 6));
    world.nothing_completes();
    assert_eq!(b.state(), QpState::Rts);
}

#[test]
fn a_disturbance_forces_packets() {
    assert!(!Disturb::default().is_active());
    let fault = parse("drop acks").place(None, None);
    assert!(Disturb { faults: vec![fault], ..Disturb::default() }.is_active());
    assert!(Disturb { capture: Some("x.pcapng".into()), ..Disturb::default() }.is_active());
}
