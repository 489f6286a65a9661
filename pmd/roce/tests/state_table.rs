//! The queue pair state table against an independent transcription of the kernel's, cell by cell and
//! bit by bit, and what a refused call is told.

use pmd_roce::qp::chart::{Graph, Listing};
use pmd_roce::qp::state::{AttrMask, QpState, TransitionError, Transport, check, masks};

use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use Transport::{RawPacket, Rc, Uc, Ud, XrcIni, XrcTgt};

/// Required and optional bits of one edge for one transport, without STATE.
type Cell = (u32, u32);

const NO_BITS: [Cell; 6] = [(0, 0); 6];

/// From, to, and a cell for each of RC, UC, UD, XRC_INI, XRC_TGT, RAW_PACKET.
#[rustfmt::skip]
const KERNEL: [(QpState, QpState, [Cell; 6]); 22] = [
    (Reset, Reset, NO_BITS),
    (Reset, Init, [(0x38, 0), (0x38, 0), (0x70, 0), (0x38, 0), (0x38, 0), (0x20, 0)]),
    (Init, Reset, NO_BITS),
    (Init, Init, [(0, 0x38), (0, 0x38), (0, 0x70), (0, 0x38), (0, 0x38), (0, 0)]),
    (Init, Rtr, [(0x129180, 0x4018), (0x101180, 0x4018), (0, 0x50), (0x101180, 0x4018), (0x129180, 0x4018), (0, 0)]),
    (Init, Error, NO_BITS),
    (Rtr, Reset, NO_BITS),
    (Rtr, Rts, [(0x12e00, 0x4c00a), (0x10000, 0x4400a), (0x10000, 0x42), (0x12e00, 0x4400a), (0x10200, 0x4c00a), (0, 0)]),
    (Rtr, Error, NO_BITS),
    (Rts, Reset, NO_BITS),
    (Rts, Rts, [(0, 0x4c00a), (0, 0x4400a), (0, 0x42), (0, 0x4400a), (0, 0x4c00a), (0, 0)]),
    (Rts, Sqd, [(0, 0x4), (0, 0x4), (0, 0x4), (0, 0x4), (0, 0x4), (0, 0)]),
    (Rts, Error, NO_BITS),
    (Sqd, Reset, NO_BITS),
    (Sqd, Rts, [(0, 0x4c00a), (0, 0x4400a), (0, 0x42), (0, 0x4400a), (0, 0x4c00a), (0, 0)]),
    (Sqd, Sqd, [(0, 0x6eeb8), (0, 0x44098), (0, 0x50), (0, 0x46eb8), (0, 0x6c2b8), (0, 0)]),
    (Sqd, Error, NO_BITS),
    (Sqe, Reset, NO_BITS),
    (Sqe, Rts, [(0, 0), (0, 0xa), (0, 0x42), (0, 0), (0, 0), (0, 0)]),
    (Sqe, Error, NO_BITS),
    (Error, Reset, NO_BITS),
    (Error, Error, NO_BITS),
];

/// Every transport with every pair of states, and the kernel's cell where there is an edge.
fn cells() -> impl Iterator<Item = (Transport, QpState, QpState, Option<Cell>)> {
    Transport::ALL.into_iter().enumerate().flat_map(|(column, transport)| {
        QpState::ALL.into_iter().flat_map(move |from| {
            QpState::ALL.into_iter().map(move |to| {
                let edge = KERNEL.iter().find(|edge| (edge.0, edge.1) == (from, to));
                (transport, from, to, edge.map(|edge| edge.2[column]))
            })
        })
    })
}

fn bits() -> impl Iterator<Item = AttrMask> {
    AttrMask::all().iter()
}

fn required(transport: Transport, from: QpState, to: QpState) -> u32 {
    masks(transport, from, to).expect("an edge").required.bits()
}

/// P02: the verdict of every cell equals the kernel's, for the exact mask, for every required bit
/// left out, for every optional bit added and for every other bit added.
#[test]
fn p02_every_cell_and_every_bit() {
    let (mut edges, mut refused) = (0, 0);
    for (transport, from, to, cell) in cells() {
        let Some((required, optional)) = cell else {
            let error = check(transport, from, to, AttrMask::STATE).unwrap_err();
            assert!(error.skipped.is_some());
            refused += 1;
            continue;
        };
        edges += 1;
        let mut required = AttrMask::from_bits(required).unwrap();
        let mut optional = AttrMask::from_bits(optional).unwrap();
        if from == to { &mut optional } else { &mut required }.insert(AttrMask::STATE);
        assert_eq!(check(transport, from, to, required), Ok(()));
        assert_eq!(check(transport, from, to, required | optional), Ok(()));
        for bit in bits() {
            let error = |missing, illegal| TransitionError {
                transport,
                from,
                to,
                missing,
                illegal,
                skipped: None,
            };
            if required.contains(bit) {
                let missing = error(bit, AttrMask::empty());
                assert_eq!(check(transport, from, to, required - bit), Err(missing));
            } else if optional.contains(bit) {
                assert_eq!(check(transport, from, to, required | bit), Ok(()));
            } else {
                let illegal = error(AttrMask::empty(), bit);
                assert_eq!(check(transport, from, to, required | bit), Err(illegal));
            }
        }
        // Bits that nobody defined are no exception.
        let unknown = AttrMask::from_bits_retain(1 << 30);
        assert_eq!(check(transport, from, to, required | unknown).unwrap_err().illegal, unknown);
    }
    assert_eq!((edges, refused), (22 * 6, 27 * 6));
}

/// S0-01, S1-16: one call per edge takes every transport through its life.
#[test]
fn s0_01_one_call_per_edge() {
    let walk = [Reset, Init, Rtr, Rts, Sqd, Rts, Error, Reset];
    for transport in Transport::ALL {
        for edge in walk.windows(2) {
            let mask = masks(transport, edge[0], edge[1]).unwrap().required;
            assert_eq!(check(transport, edge[0], edge[1], mask), Ok(()));
        }
    }
}

#[test]
fn s0_02_ud_init() {
    assert_eq!(required(Ud, Reset, Init), 0x71);
}

#[test]
fn s0_03_rc_and_uc_init_refuse_a_qkey() {
    for transport in [Rc, Uc] {
        assert_eq!(required(transport, Reset, Init), 0x39);
        let given = AttrMask::from_bits_retain(0x39) | AttrMask::QKEY;
        let error = check(transport, Reset, Init, given).unwrap_err();
        assert_eq!(error.illegal, AttrMask::QKEY);
    }
}

#[test]
fn s0_04_ud_rtr() {
    assert_eq!(required(Ud, Init, Rtr), 0x1);
}

#[test]
fn s0_05_uc_rtr() {
    assert_eq!(required(Uc, Init, Rtr), 0x10_1181);
}

#[test]
fn s0_06_rc_rtr() {
    assert_eq!(required(Rc, Init, Rtr), 0x12_9181);
}

#[test]
fn s0_07_uc_and_ud_rts() {
    assert_eq!(required(Uc, Rtr, Rts), 0x1_0001);
    assert_eq!(required(Ud, Rtr, Rts), 0x1_0001);
}

#[test]
fn s0_08_rc_rts() {
    assert_eq!(required(Rc, Rtr, Rts), 0x1_2e01);
}

/// E-34: the masks that no document gives.
#[test]
fn s0_08_xrc_and_raw_packet() {
    assert_eq!(required(XrcIni, Init, Rtr), 0x10_1181);
    assert_eq!(required(XrcIni, Rtr, Rts), 0x1_2e01);
    assert_eq!(required(XrcTgt, Init, Rtr), 0x12_9181);
    assert_eq!(required(XrcTgt, Rtr, Rts), 0x1_0201);
    assert_eq!(required(RawPacket, Reset, Init), 0x21);
}

/// S0-09: no edge of UD takes a path MTU.
#[test]
fn s0_09_ud_has_no_path_mtu() {
    for (transport, from, to, cell) in cells().filter(|(_, _, _, cell)| cell.is_some()) {
        let edge = masks(transport, from, to).unwrap();
        let takes = (edge.required | edge.optional).contains(AttrMask::PATH_MTU);
        let connects = (from, to) == (Init, Rtr) && transport.is_connected();
        assert_eq!(takes, connects, "{transport} {from} -> {to} {cell:?}");
    }
}

/// S0-13: the retry knobs exist only where there are acknowledgements.
#[test]
fn s0_13_retry_knobs_are_for_reliable_transports() {
    let knobs = AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
    for (transport, from, to, _) in cells() {
        let Some(edge) = masks(transport, from, to) else { continue };
        let takes = edge.required | edge.optional;
        let has_knob = takes.intersects(knobs | AttrMask::MIN_RNR_TIMER);
        assert!(!has_knob || transport.is_reliable(), "{transport} {from} -> {to}");
    }
}

/// S1-12, S2-01: seven states with the numbers of verbs.
#[test]
fn s1_12_seven_states() {
    assert!(QpState::ALL.into_iter().map(|state| state as u8).eq(0..7));
    assert_eq!(
        QpState::ALL.map(QpState::name),
        ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
    );
}

/// S1-13, S1-17, S2-15: what works in which state.
#[test]
fn s1_13_what_works_in_which_state() {
    let states = |works: fn(QpState) -> bool| QpState::ALL.into_iter().filter(move |s| works(*s));
    assert!(states(QpState::receives_packets).eq([Rtr, Rts, Sqd, Sqe]));
    assert!(states(QpState::starts_sends).eq([Rts]));
    assert!(states(QpState::accepts_post_send).eq([Rts, Sqd, Sqe, Error]));
    assert!(states(QpState::accepts_post_recv).eq([Init, Rtr, Rts, Sqd, Sqe, Error]));
    assert!(states(QpState::flushes_sends).eq([Sqe, Error]));
    assert!(states(QpState::flushes_receives).eq([Error]));
}

/// S1-14, S1-60: INIT cannot be skipped, whatever attributes are given.
#[test]
fn s1_14_reset_to_rtr_is_refused() {
    for transport in Transport::ALL {
        for given in [AttrMask::STATE, AttrMask::from_bits_retain(0x12_9181), AttrMask::all()] {
            let error = check(transport, Reset, Rtr, given).unwrap_err();
            assert_eq!(error.skipped.unwrap().states(), [Init]);
            assert_eq!((error.missing, error.illegal), (AttrMask::empty(), AttrMask::empty()));
        }
    }
}

#[test]
fn s1_19_any_state_to_reset_with_state_only() {
    for (transport, from, _, _) in cells() {
        assert_eq!(check(transport, from, Reset, AttrMask::STATE), Ok(()));
    }
}

/// S1-18, E-12: any state but RESET can be sent to ERR.
#[test]
fn s1_18_any_state_but_reset_to_err() {
    for (transport, from, _, _) in cells() {
        assert_eq!(check(transport, from, Error, AttrMask::STATE).is_ok(), from != Reset);
    }
}

/// S1-20, S1-70, S2-16: out of ERR there is only RESET.
#[test]
fn s1_20_out_of_err_only_reset() {
    for transport in Transport::ALL {
        for (to, walk) in [(Init, &[Reset][..]), (Rtr, &[Reset, Init]), (Rts, &[Reset, Init, Rtr])]
        {
            let error = check(transport, Error, to, AttrMask::STATE).unwrap_err();
            assert_eq!(error.skipped.unwrap().states(), walk);
        }
    }
}

/// S2-02: every jump is refused, and the way to walk instead is itself legal.
#[test]
fn s2_02_jumps_are_refused_with_a_legal_route() {
    for (transport, from, to, _) in cells().filter(|(_, _, _, cell)| cell.is_none()) {
        let route = check(transport, from, to, AttrMask::STATE).unwrap_err().skipped.unwrap();
        if to == Sqe {
            // Only a failed send leads there.
            assert_eq!(route.states(), []);
            continue;
        }
        let walk: Vec<_> = [&[from], route.states(), &[to]].concat();
        assert!(walk.len() > 2, "{transport} {from} -> {to}");
        for edge in walk.windows(2) {
            assert!(masks(transport, edge[0], edge[1]).is_some(), "{walk:?}");
        }
    }
    let states = |from, to| check(Rc, from, to, AttrMask::STATE).unwrap_err().skipped.unwrap();
    assert_eq!(states(Reset, Rts).states(), [Init, Rtr]);
    assert_eq!(states(Init, Rts).states(), [Rtr]);
    assert_eq!(states(Reset, Error).states(), [Init]);
    assert_eq!(states(Rts, Init).states(), [Reset]);
    assert_eq!(states(Rtr, Rtr).states(), [Reset, Init]);
}

/// S2-11: a wrong state, a missing attribute and an attribute from elsewhere are told apart.
#[test]
fn s2_11_three_kinds_of_refusal() {
    let wrong_state = check(Rc, Reset, Rtr, AttrMask::STATE).unwrap_err();
    assert!(wrong_state.skipped.is_some());
    let given = (AttrMask::from_bits_retain(0x12_9181) - AttrMask::RQ_PSN) | AttrMask::SQ_PSN;
    let both = check(Rc, Init, Rtr, given).unwrap_err();
    assert_eq!(both.skipped, None);
    assert_eq!(both.missing, AttrMask::RQ_PSN);
    assert_eq!(both.illegal, AttrMask::SQ_PSN);
}

/// S1-61, S2-14: the text alone says which step was skipped, which attribute is missing and which
/// does not belong.
#[test]
fn s2_14_the_text_names_step_and_attributes() {
    let text = |from, to, given| {
        check(Rc, from, to, AttrMask::from_bits_retain(given)).unwrap_err().to_string()
    };
    assert_eq!(text(Reset, Rts, 1), "RC RESET -> RTS: skips INIT; go RESET -> INIT -> RTR -> RTS");
    assert_eq!(text(Init, Rtr, 0x2_9181), "RC INIT -> RTR: missing DEST_QPN");
    assert_eq!(text(Init, Rtr, 0x12_91c1), "RC INIT -> RTR: illegal here QKEY");
    assert_eq!(
        text(Init, Rtr, 0x3_8181),
        "RC INIT -> RTR: missing RQ_PSN | DEST_QPN; illegal here SQ_PSN"
    );
    assert_eq!(text(Rts, Sqe, 1), "RC RTS -> SQE: no modify call leads there");
}

/// S1-68: the fields of C that a bare EINVAL at INIT -> RTR hides.
#[test]
fn s1_68_missing_attributes_by_their_field_names() {
    let error = check(Rc, Init, Rtr, AttrMask::STATE).unwrap_err();
    let fields: Vec<_> = error.missing.fields().collect();
    assert_eq!(
        fields,
        ["ah_attr", "path_mtu", "rq_psn", "min_rnr_timer", "max_dest_rd_atomic", "dest_qp_num"]
    );
    assert_eq!(AttrMask::all().fields().count(), 21);
    assert!(AttrMask::all().fields().all(|field| field != "unknown"));
}

/// The whole table, for people to review.
#[test]
fn table_as_text() {
    let listings = Transport::ALL.map(|transport| Listing(transport).to_string());
    insta::assert_snapshot!("table", listings.join("\n"));
    insta::assert_snapshot!("graph", Graph.to_string());
}
