//! What was set is read back, whatever its value, and values that no field holds are refused.

use pmd_verbs::roce::ids::{PathMtu, Psn, Qpn};
use pmd_verbs::roce::qp::attr::{AddressVector, QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{Access, Qp, Rc, Service, Uc, Ud};

use super::finding::{Findings, Question, question};
use super::judge::differences;
use super::rig::{Ground, Rig, Way, step};
use super::spec;

const CAPS: Question = question("caps", "man ibv_create_qp");
const LOWEST: Question = question("lowest-values", "man ibv_query_qp, ibv_modify_qp");
const HIGHEST: Question = question("highest-values", "man ibv_query_qp, ibv_modify_qp");
const MTUS: Question = question("path-mtu", "man ibv_modify_qp (enum ibv_mtu)");
const BEYOND: Question = question("beyond-a-field", "man ibv_modify_qp (fields of 5 and 3 bits)");
const NO_GRH: Question = question("no-grh", "IBTA 1.4, annex A17 (RoCEv2)");
const PORT: Question = question("no-such-port", "man ibv_modify_qp");

const AS_SET: &str = "every attribute as set";

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    let rig = ground.rig(way)?;
    caps(&rig, found)?;
    for (question, lowest) in [(LOWEST, true), (HIGHEST, false)] {
        set_and_read::<Rc>(&rig, question, lowest, found)?;
        set_and_read::<Uc>(&rig, question, lowest, found)?;
        set_and_read::<Ud>(&rig, question, lowest, found)?;
    }
    mtus(&rig, found)?;
    refusals(&rig, found)
}

fn caps(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let asked = QpCap {
        max_send_wr: 5,
        max_recv_wr: 7,
        max_send_sge: 3,
        max_recv_sge: 2,
        max_inline_data: 33,
    };
    let qp: Qp<Rc> = rig.qp(0, |options| options.cap = asked)?;
    let got = rig.view(&qp).init.cap;
    let enough = got.max_send_wr >= asked.max_send_wr
        && got.max_recv_wr >= asked.max_recv_wr
        && got.max_send_sge >= asked.max_send_sge
        && got.max_recv_sge >= asked.max_recv_sge
        && got.max_inline_data >= asked.max_inline_data;
    let expected = "at least what was asked for";
    let seen = if enough { expected.to_owned() } else { format!("{got:?}") };
    found.same(CAPS, expected, seen);
    Ok(())
}

/// Attributes at the low or at the high end of their fields.
fn extreme(rig: &Rig<'_>, lowest: bool) -> anyhow::Result<QpAttr> {
    let device = rig.sides[0].cx.device();
    // Toward the other lcore itself, so that shared memory is found; nothing is sent.
    let av = rig.attr(0, rig.qp::<Rc>(1, |_| {})?.number())?.av;
    let depth = device.attr().max_qp_rd_atom;
    Ok(if lowest {
        QpAttr {
            access: Access::empty(),
            qkey: 0,
            av: AddressVector { hop_limit: 1, ..av },
            path_mtu: PathMtu::B256,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            dest_qpn: Qpn::new(2),
            ..QpAttr::new(QpState::Reset)
        }
    } else {
        QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            qkey: 0x7fff_ffff,
            av: AddressVector {
                hop_limit: 255,
                traffic_class: 0xfc,
                flow_label: 0xf_ffff,
                sl: 7,
                ..av
            },
            path_mtu: device.mtu(),
            timeout: 31,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 31,
            sq_psn: Psn::new(0xff_ffff),
            rq_psn: Psn::new(0xff_fffe),
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            dest_qpn: Qpn::new(0xff_fffe),
            ..QpAttr::new(QpState::Reset)
        }
    })
}

/// Walks to RTS with these values, and reads after each step what was set so far.
fn set_and_read<T: Service>(
    rig: &Rig<'_>,
    question: Question,
    lowest: bool,
    found: &mut Findings,
) -> anyhow::Result<()> {
    let attr = extreme(rig, lowest)?;
    let qp: Qp<T> = rig.qp(0, |_| {})?;
    let (mut given, mut wrong) = (0, Vec::new());
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        given |= spec::edge(T::TRANSPORT, qp.state(), to).map_or(0, |edge| edge.required);
        if let Err(error) = step(&qp, &attr, to) {
            wrong.push(format!("{to} refused: {error}"));
            break;
        }
        let read = rig.view(&qp).attr;
        if read.state != to {
            wrong.push(format!("in {} after a step to {to}", read.state));
        }
        wrong.extend(
            differences(&attr, &read, given).map(|difference| format!("in {to}: {difference}")),
        );
    }
    let (service, first) = (T::TRANSPORT, wrong.first().map_or(AS_SET, |first| first));
    found.same(question, format_args!("{service}: {AS_SET}"), format_args!("{service}: {first}"));
    Ok(())
}

/// Each path MTU that the port carries is taken, and each beyond it refused.
fn mtus(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let max = rig.sides[0].cx.device().mtu();
    let all = [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];
    for mtu in all {
        let attr = QpAttr { path_mtu: mtu, ..rig.attr(0, rig.qp::<Rc>(1, |_| {})?.number())? };
        let qp: Qp<Rc> = rig.qp(0, |_| {})?;
        step(&qp, &attr, QpState::Init)?;
        let answer = step(&qp, &attr, QpState::Rtr);
        let expected =
            if mtu <= max { format!("{mtu} read back") } else { format!("{mtu} refused") };
        let seen = match &answer {
            Ok(()) => format!("{} read back", rig.view(&qp).attr.path_mtu),
            Err(_) => format!("{mtu} {}", rig.refused(&answer)),
        };
        found.same(MTUS, expected, seen);
    }
    Ok(())
}

/// Values that no field holds: refused, and nothing changes.
fn refusals(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    type Change = fn(&mut QpAttr);
    let cases: [(Question, &str, QpState, Change); 7] = [
        (BEYOND, "timeout 32", QpState::Rts, |attr| attr.timeout = 32),
        (BEYOND, "retry_cnt 8", QpState::Rts, |attr| attr.retry_cnt = 8),
        (BEYOND, "rnr_retry 8", QpState::Rts, |attr| attr.rnr_retry = 8),
        (BEYOND, "min_rnr_timer 32", QpState::Rtr, |attr| attr.min_rnr_timer = 32),
        (NO_GRH, "is_global 0", QpState::Rtr, |attr| attr.av.is_global = false),
        (PORT, "port 0", QpState::Init, |attr| attr.port = 0),
        (PORT, "port 77", QpState::Init, |attr| attr.port = 77),
    ];
    let peer: Qp<Rc> = rig.qp(1, |_| {})?;
    for (question, name, at, change) in cases {
        let good = rig.attr(0, peer.number())?;
        let qp: Qp<Rc> = rig.qp(0, |_| {})?;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().take_while(|to| *to != at)
        {
            step(&qp, &good, to)?;
        }
        let before = rig.view(&qp);
        let mut wrong = QpAttr { state: at, ..good };
        change(&mut wrong);
        let mask = spec::edge(Rc::TRANSPORT, before.attr.state, at).map_or(0, |edge| edge.required);
        let answer = qp.modify(&wrong, AttrMask::from_bits_retain(mask));
        let changed = if rig.view(&qp) == before { "nothing changed" } else { "something changed" };
        found.same(
            question,
            format_args!("{name} refused, nothing changed"),
            format_args!("{name} {}, {changed}", rig.refused(&answer)),
        );
    }
    Ok(())
}
