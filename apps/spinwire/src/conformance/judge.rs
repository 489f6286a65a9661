//! Whether what a device did with a modify call is what it had to do.

use pmd_verbs::ModifyQpError;
use pmd_verbs::roce::engine::QpView;
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::QpState;

use super::spec::{self, Bits, Call, Expect};

/// An attribute that a query reads back: its bit and how it is shown.
type Attribute = (Bits, fn(&QpAttr) -> String);

/// All that a query reads back, the state apart.
const ATTRIBUTES: [Attribute; 15] = [
    (spec::ACCESS_FLAGS, |attr| format!("{:?}", attr.access)),
    (spec::PKEY_INDEX, |attr| attr.pkey_index.to_string()),
    (spec::PORT, |attr| attr.port.to_string()),
    (spec::QKEY, |attr| format!("{:#x}", attr.qkey)),
    (spec::AV, |attr| format!("{:?}", attr.av)),
    (spec::PATH_MTU, |attr| attr.path_mtu.to_string()),
    (spec::TIMEOUT, |attr| attr.timeout.to_string()),
    (spec::RETRY_CNT, |attr| attr.retry_cnt.to_string()),
    (spec::RNR_RETRY, |attr| attr.rnr_retry.to_string()),
    (spec::RQ_PSN, |attr| attr.rq_psn.to_string()),
    (spec::MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic.to_string()),
    (spec::MIN_RNR_TIMER, |attr| attr.min_rnr_timer.to_string()),
    (spec::SQ_PSN, |attr| attr.sq_psn.to_string()),
    (spec::MAX_DEST_RD_ATOMIC, |attr| attr.max_dest_rd_atomic.to_string()),
    (spec::DEST_QPN, |attr| attr.dest_qpn.to_string()),
];

/// What a call did.
#[derive(Debug)]
pub(crate) struct Done<'a> {
    /// What the device answered.
    pub(crate) answer: Result<(), ModifyQpError>,
    /// The attributes given.
    pub(crate) attr: &'a QpAttr,
    /// The queue pair when it was new.
    pub(crate) fresh: &'a QpView,
    /// The queue pair before the call.
    pub(crate) before: &'a QpView,
    /// The queue pair after the call.
    pub(crate) after: &'a QpView,
}

/// What went otherwise than expected: what was expected and what came. `None`: nothing.
pub(crate) fn judge(call: &Call, expect: Expect, done: &Done<'_>) -> Option<(String, String)> {
    let wrong = match (&expect, &done.answer) {
        (Expect::Accept(state), Ok(())) => unlike(done, *state, call.given),
        (Expect::Accept(_), Err(error)) => Some(format!("refused: {error}")),
        (_, Ok(())) => Some(format!("accepted, state {}", done.after.attr.state)),
        (_, Err(error)) if done.before != done.after => {
            let state = done.after.attr.state;
            Some(format!("refused ({error}), but something changed: state {state}"))
        }
        (_, Err(error)) => unexplained(call, expect, error),
    };
    wrong.map(|got| (describe(expect), got))
}

/// An expectation in words.
fn describe(expect: Expect) -> String {
    let unchanged = "nothing changed";
    match expect {
        Expect::Accept(state) => format!("accepted: state {state}, every attribute read back"),
        Expect::NoEdge(_) => format!("refused as no edge, with a legal way; {unchanged}"),
        Expect::Bits { missing, illegal } => {
            let name = |what, bits| match bits {
                0 => String::new(),
                bits => format!(", naming {what} {}", spec::names(bits)),
            };
            format!("refused{}{}; {unchanged}", name("missing", missing), name("illegal", illegal))
        }
        Expect::WrongState(claimed) => format!("refused, naming the false {claimed}; {unchanged}"),
        Expect::Unsupported(bits) => {
            format!("refused as unsupported, naming {}; {unchanged}", spec::names(bits))
        }
    }
}

/// What a query after an accepted call does not read as it should.
fn unlike(done: &Done<'_>, state: QpState, given: Bits) -> Option<String> {
    let (after, before) = (&done.after.attr, &done.before.attr);
    if after.state != state {
        return Some(format!("accepted, but the state is {}", after.state));
    }
    // RESET leaves the queue pair as it was created.
    let before = if state == QpState::Reset { &done.fresh.attr } else { before };
    let unset = differences(before, after, !given);
    differences(done.attr, after, given)
        .chain(unset)
        .next()
        .map(|difference| format!("accepted, but {difference}"))
}

/// Where a query does not read as it should, of these attributes.
pub(super) fn differences<'a>(
    wanted: &'a QpAttr,
    read: &'a QpAttr,
    of: Bits,
) -> impl Iterator<Item = String> + use<'a> {
    ATTRIBUTES.iter().filter(move |(bit, _)| of & bit != 0).filter_map(|(bit, show)| {
        let (wanted, read) = (show(wanted), show(read));
        let name = spec::names(*bit);
        (read != wanted).then(|| format!("{name} reads {read} and not {wanted}"))
    })
}

/// What the reason for a refusal lacks.
fn unexplained(call: &Call, expect: Expect, error: &ModifyQpError) -> Option<String> {
    let text = error.to_string();
    let lacks = |what: &str| Some(format!("refused without {what}: {text}"));
    match (expect, error) {
        (Expect::Bits { missing, illegal }, ModifyQpError::Transition(error)) => {
            if (error.missing.bits(), error.illegal.bits()) != (missing, illegal) {
                return lacks("exactly these bits");
            }
            let mut bits = spec::each(missing | illegal);
            bits.find(|bit| !names(&text, bit)).and_then(|bit| lacks(bit.name))
        }
        (Expect::NoEdge(to), ModifyQpError::Transition(error)) => {
            let Some(route) = error.skipped else { return lacks("the step that was skipped") };
            let ends = [&[call.from], route.states(), &[to]].concat();
            let legal = ends.windows(2).all(|step| spec::leads(step[0], step[1]));
            let reachable = spec::is_reached_by_modify(to);
            let unnamed = ends.iter().any(|state| !text.contains(state.name()));
            if legal != reachable || (reachable && route.states().is_empty()) || unnamed {
                return lacks("a legal way");
            }
            None
        }
        (Expect::WrongState(claimed), ModifyQpError::WrongCurrentState { .. }) => {
            let named = [claimed, call.from].iter().all(|state| text.contains(state.name()));
            if named { None } else { lacks("both states") }
        }
        (Expect::Unsupported(bits), _) => {
            // One reason at a time is enough.
            if spec::each(bits).any(|bit| names(&text, bit)) {
                None
            } else {
                lacks("the attribute")
            }
        }
        _ => lacks("the right reason"),
    }
}

/// Whether a text names a bit, as a mask bit or as a field.
fn names(text: &str, bit: &spec::Bit) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|word| word == bit.name || word == bit.field)
}

#[cfg(test)]
mod tests {
    use pmd_verbs::roce::ids::{CqId, PdId, Psn};
    use pmd_verbs::roce::qp::attr::{QpCap, QpInit};
    use pmd_verbs::roce::qp::state::{AttrMask, Transport, check};

    use super::*;

    fn view(attr: QpAttr) -> QpView {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        QpView {
            init: QpInit {
                transport: Transport::Uc,
                pd: PdId(1),
                send_cq: CqId(0),
                recv_cq: CqId(0),
                srq: None,
                xrcd: None,
                cap,
                sq_sig_all: false,
            },
            attr,
            send_outstanding: 0,
            send_posted: 0,
            recv_outstanding: 0,
            recv_posted: 0,
            memory_bytes: 0,
        }
    }

    const CALL: Call = Call {
        transport: Transport::Uc,
        from: QpState::Rtr,
        to: QpState::Rts,
        given: spec::STATE | spec::SQ_PSN,
        claimed: QpState::Rtr,
    };

    fn given() -> QpAttr {
        QpAttr { sq_psn: Psn::new(7), ..QpAttr::new(QpState::Rts) }
    }

    /// What is found when the call is answered so, and a query then reads `after`.
    fn found(
        expect: Expect,
        answer: Result<(), ModifyQpError>,
        after: QpAttr,
    ) -> Option<(String, String)> {
        let fresh = view(QpAttr::new(QpState::Reset));
        let before = view(QpAttr::new(QpState::Rtr));
        let (after, attr) = (view(after), given());
        judge(
            &CALL,
            expect,
            &Done { answer, attr: &attr, fresh: &fresh, before: &before, after: &after },
        )
    }

    fn refusal(from: QpState, to: QpState, bits: Bits) -> Result<(), ModifyQpError> {
        Ok(check(Transport::Uc, from, to, AttrMask::from_bits_retain(bits))?)
    }

    const ACCEPT: Expect = Expect::Accept(QpState::Rts);

    #[test]
    fn a_call_that_did_what_it_had_to_is_no_deviation() {
        assert_eq!(found(ACCEPT, Ok(()), given()), None);
    }

    #[test]
    fn each_lie_about_an_accepted_call_is_found() {
        let got = |answer, after| found(ACCEPT, answer, after).unwrap().1;
        let not_applied = QpAttr { sq_psn: Psn::new(0), ..given() };
        assert!(got(Ok(()), not_applied).contains("SQ_PSN reads 0x000000 and not 0x000007"));
        let other_too = QpAttr { timeout: 3, ..given() };
        assert!(got(Ok(()), other_too).contains("TIMEOUT reads 3 and not 0"));
        let stuck = QpAttr { state: QpState::Rtr, ..given() };
        assert_eq!(got(Ok(()), stuck), "accepted, but the state is RTR");
        let refused = refusal(QpState::Rtr, QpState::Rts, spec::STATE);
        assert!(got(refused, QpAttr::new(QpState::Rtr)).starts_with("refused: "));
    }

    #[test]
    fn each_lie_about_a_refused_call_is_found() {
        let unchanged = QpAttr::new(QpState::Rtr);
        let expect = Expect::Bits { missing: spec::SQ_PSN, illegal: 0 };
        let got = |answer, after| found(expect, answer, after).map(|(_, got)| got);
        let right = || refusal(QpState::Rtr, QpState::Rts, spec::STATE);
        assert_eq!(got(right(), unchanged), None);
        assert_eq!(got(Ok(()), given()).unwrap(), "accepted, state RTS");
        let half = QpAttr { sq_psn: Psn::new(7), ..unchanged };
        assert!(got(right(), half).unwrap().contains("but something changed"));
        let illegal_too = refusal(QpState::Rtr, QpState::Rts, spec::STATE | spec::QKEY);
        assert!(got(illegal_too, unchanged).unwrap().contains("without exactly these bits"));
        let no_edge = refusal(QpState::Rtr, QpState::Sqd, spec::STATE);
        assert!(got(no_edge, unchanged).unwrap().contains("without exactly these bits"));
        let value = ModifyQpError::Value { field: "sq_psn", value: 0, need: "something" };
        assert!(got(Err(value), unchanged).unwrap().contains("without the right reason"));
    }

    #[test]
    fn names_are_whole_words() {
        let bit = |value| spec::BITS.iter().find(|bit| bit.value == value).unwrap();
        assert!(names("missing SQ_PSN | DEST_QPN", bit(spec::SQ_PSN)));
        assert!(!names("illegal here CUR_STATE", bit(spec::STATE)));
        assert!(names("alt_ah_attr = 0: not supported", bit(1 << 14)));
        assert!(names("illegal here 0x2000000", bit(1 << 25)));
    }

    #[test]
    fn expectations_in_words() {
        let both = Expect::Bits { missing: spec::SQ_PSN, illegal: spec::QKEY };
        assert_eq!(
            describe(both),
            "refused, naming missing SQ_PSN, naming illegal QKEY; nothing changed"
        );
        assert_eq!(describe(ACCEPT), "accepted: state RTS, every attribute read back");
    }
}
