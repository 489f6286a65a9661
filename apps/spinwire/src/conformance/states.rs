//! The state table against live queue pairs: every transport, every pair of states, and for each
//! the exact mask, every required bit left out, every other bit added, and every false
//! `cur_qp_state`. Each call is made on a queue pair of its own.

use pmd_verbs::CreateQpError;
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::{QpState, Transport};

use super::judge::{Done, judge};
use super::lens::Lens;
use super::report::{Cell, Deviation, Report, Unreachable};
use super::rig::Ground;
use super::spec::{self, Bits, Call, Expect};
use super::subject::Bench;

/// One call on one edge.
#[derive(Debug)]
struct Case {
    name: String,
    given: Bits,
    claimed: QpState,
}

/// Pairs of states that [`run`] goes through, to measure progress by.
pub(crate) const CELLS: u64 = 5 * 7 * 7;

/// Checks a device, telling `progress` after each pair of states.
///
/// # Errors
/// When the device lacks the objects that queue pairs are made from.
pub(crate) fn run(
    ground: &Ground<'_>,
    report: &mut Report,
    mut progress: impl FnMut(),
) -> anyhow::Result<()> {
    let bench = Bench::new(&ground.cxs[0])?;
    let migrates = ground.device().attr().auto_path_mig;
    for transport in spec::TRANSPORTS {
        if let Err(error) = bench.subject(transport) {
            let Some(CreateQpError::Transport(_)) = error.downcast_ref() else { return Err(error) };
            report.absent.push(transport);
            (0..7 * 7).for_each(|_| progress());
            continue;
        }
        for from in QpState::ALL {
            let arrives = arrive(&bench, transport, from, report)?;
            for to in QpState::ALL {
                if arrives {
                    let cell =
                        check_cell(&bench, ground.lens, transport, (from, to), migrates, report)?;
                    report.cells.push(cell);
                }
                progress();
            }
        }
    }
    Ok(())
}

/// Whether queue pairs of the transport can be brought into `from`; where they must not, or cannot
/// although they must, that is what is checked and reported.
fn arrive(
    bench: &Bench,
    transport: Transport,
    from: QpState,
    report: &mut Report,
) -> anyhow::Result<bool> {
    let subject = bench.subject(transport)?;
    let fall = spec::falls_into(transport);
    let (to, case, expected, got) = if from != QpState::Sqe || fall == Some(QpState::Sqe) {
        let outcome = subject.put(from);
        (
            from,
            "bring-up",
            format!("a queue pair in {from}"),
            outcome.err().map(|e| format!("{e:#}")),
        )
    } else {
        let why = match fall {
            Some(state) => format!("a send that fails leads to {state}"),
            None => "it has no send queue, so no send of its can fail".to_owned(),
        };
        report.unreachable.push(Unreachable { transport, state: from, why });
        let Some(fall) = fall else { return Ok(false) };
        subject.put(QpState::Rts)?;
        subject.fail_a_send()?;
        let state = subject.query().attr.state;
        let got = (state != fall).then(|| state.to_string());
        (fall, "failed send", fall.to_string(), got)
    };
    report.checks += 1;
    let arrives = got.is_none() && to == from;
    if let Some(got) = got {
        let case = case.to_owned();
        report.deviations.push(Deviation {
            transport,
            from: QpState::Reset,
            to,
            case,
            expected,
            got,
        });
    }
    Ok(arrives)
}

fn check_cell(
    bench: &Bench,
    lens: &dyn Lens,
    transport: Transport,
    (from, to): (QpState, QpState),
    migrates: bool,
    report: &mut Report,
) -> anyhow::Result<Cell> {
    let mut cell = Cell { transport, from, to, checks: 0, deviations: 0 };
    for Case { name, given, claimed } in cases(transport, from, to, migrates) {
        let subject = bench.subject(transport)?;
        subject.put(from)?;
        let call = Call { transport, from, to, given, claimed };
        let attr = QpAttr { state: to, cur_state: claimed, ..bench.other() };
        let before = lens.view(subject.query());
        let answer = subject.modify(&attr, given);
        let after = lens.view(subject.query());
        let (fresh, attr) = (&subject.fresh, &attr);
        let done = Done { answer, attr, fresh, before: &before, after: &after };
        cell.checks += 1;
        if let Some((expected, got)) = judge(&call, spec::expected(&call, migrates), &done) {
            cell.deviations += 1;
            report.deviations.push(Deviation { transport, from, to, case: name, expected, got });
        }
    }
    report.checks += cell.checks;
    Ok(cell)
}

/// Every call that is made on one pair of states.
fn cases(transport: Transport, from: QpState, to: QpState, migrates: bool) -> Vec<Case> {
    let edge = spec::edge(transport, from, to);
    let exact = edge.map_or(spec::STATE, |edge| edge.required);
    let case = |name: String, given| Case { name, given, claimed: from };
    let mut cases = vec![case("exact mask".to_owned(), exact)];
    for bit in &spec::BITS {
        cases.push(if exact & bit.value != 0 {
            case(format!("without {}", bit.name), exact & !bit.value)
        } else {
            case(format!("with {}", bit.name), exact | bit.value)
        });
    }
    // All that is allowed at once.
    let takes = |bit: &Bits| {
        let call = Call { transport, from, to, given: exact | *bit, claimed: from };
        matches!(spec::expected(&call, migrates), Expect::Accept(_))
    };
    let optional =
        spec::BITS.iter().map(|bit| bit.value).filter(takes).fold(0, |all, bit| all | bit);
    if edge.is_some() && optional & !exact != 0 {
        cases.push(case("with every optional bit".to_owned(), exact | optional));
    }
    let others = QpState::ALL.into_iter().filter(|state| *state != from);
    cases.extend(others.map(|claimed| Case {
        name: format!("CUR_STATE says {claimed}"),
        given: exact | spec::CUR_STATE,
        claimed,
    }));
    cases
}

#[cfg(test)]
mod tests {
    use pmd_verbs::{Device, DeviceConfig};

    use super::*;
    use crate::conformance::lens::Clear;

    /// P02: what is tried on an edge with required and optional bits, and where there is no edge.
    #[test]
    fn p02_the_cases_of_a_pair_of_states() {
        let all = cases(Transport::Rc, QpState::Init, QpState::Rtr, false);
        let count = |cases: &[Case], start: &str| {
            cases.iter().filter(|case| case.name.starts_with(start)).count()
        };
        assert_eq!(count(&all, "exact mask"), 1);
        assert_eq!(count(&all, "without "), 7, "RC needs seven bits there");
        assert_eq!(count(&all, "with "), 22 - 7 + 1);
        assert_eq!(count(&all, "CUR_STATE says "), 6);
        let every = all.iter().find(|case| case.name == "with every optional bit").unwrap();
        assert_eq!(every.given, 0x12_9181 | spec::ACCESS_FLAGS | spec::PKEY_INDEX);
        let none = cases(Transport::Rc, QpState::Init, QpState::Rts, false);
        assert_eq!((count(&none, "without "), count(&none, "with ")), (1, 21));
        let mut given: Vec<_> = all.iter().map(|case| (case.given, case.claimed as u8)).collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), all.len(), "no case twice");
    }

    /// P02: the software NIC deviates nowhere, and everything was really checked.
    #[test]
    fn p02_the_software_nic_deviates_nowhere() {
        let device = Device::open(&DeviceConfig::default()).unwrap();
        let ground = Ground::new(&device, &Clear).unwrap();
        let (mut cells, mut report) = (0, Report::default());
        run(&ground, &mut report, || cells += 1).unwrap();
        assert_eq!(report.deviations, []);
        assert_eq!(cells, CELLS);
        // SQE of RC, XRC_INI and XRC_TGT cannot be reached.
        assert_eq!(report.cells.len(), 245 - 3 * 7);
        assert_eq!(report.unreachable.len(), 3);
        let in_cells: u64 = report.cells.iter().map(|cell| cell.checks).sum();
        assert!(report.cells.iter().all(|cell| cell.checks >= 29), "bits and false states");
        // Bring-up of 35 states less three, and two sends that must be fatal.
        assert_eq!(report.checks, in_cells + 34);
    }
}
