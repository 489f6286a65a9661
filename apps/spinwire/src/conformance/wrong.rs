//! Devices that are right, and that are made wrong: every check passes on the former, and each one fails on some of the latter.

use std::collections::BTreeSet;

use pmd_verbs::roce::engine::QpView;
use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Completion, Device, DeviceConfig, WcStatus, WireChoice};

use super::lens::{Clear, Lens};
use super::report::Report;
use super::rig::Ground;
use super::{parts, run};
use crate::cli::Part;

fn report(part: Part, wire: WireChoice, lens: &dyn Lens) -> Report {
    let device =
        Device::open(&DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() }).unwrap();
    let ground = Ground::new(&device, lens).unwrap();
    run(&ground, &[part], || {}).unwrap()
}

/// Everything ends with an error that nothing gives.
#[derive(Debug)]
struct Ends;

impl Lens for Ends {
    fn completion(&self, completion: Completion) -> Option<Completion> {
        Some(completion.with_status(WcStatus::General))
    }
}

/// No event ever comes.
#[derive(Debug)]
struct NoEvents;

impl Lens for NoEvents {
    fn event(&self, _: AsyncEvent) -> Option<AsyncEvent> {
        None
    }
}

/// A query answers something else.
#[derive(Debug)]
struct Queries;

impl Lens for Queries {
    fn view(&self, mut view: QpView) -> QpView {
        view.init.cap =
            QpCap { max_inline_data: view.init.cap.max_inline_data / 2, ..view.init.cap };
        view.send_outstanding += 1;
        view.recv_outstanding += 1;
        view.init.cap.max_send_wr = 1;
        let mtu = view.attr.path_mtu;
        view.attr = QpAttr { state: QpState::Init, qkey: !view.attr.qkey, ..view.attr };
        view.attr.timeout ^= 1;
        view.attr.path_mtu = pmd_verbs::roce::ids::PathMtu::B256.max(mtu);
        view
    }
}

/// The path MTU reads as the smallest one.
#[derive(Debug)]
struct Mtu;

impl Lens for Mtu {
    fn view(&self, mut view: QpView) -> QpView {
        view.attr.path_mtu = pmd_verbs::roce::ids::PathMtu::B256;
        view
    }
}

/// Nothing is refused.
#[derive(Debug)]
struct Takes;

impl Lens for Takes {
    fn refuses(&self) -> bool {
        false
    }
}

/// Everything takes a hundredth of its time.
#[derive(Debug)]
struct Early;

impl Lens for Early {
    fn nanoseconds(&self, took: u64) -> u64 {
        took / 100
    }
}

/// Everything takes a hundred times its time.
#[derive(Debug)]
struct Late;

impl Lens for Late {
    fn nanoseconds(&self, took: u64) -> u64 {
        took * 100
    }
}

/// Deviations are none on a device that is right, over both paths; and for every check there is a device that is wrong and
/// that it finds.
fn every_check_of(part: Part) {
    let right = report(part, WireChoice::Auto, &Clear);
    let deviating: Vec<_> = right.findings.iter().filter(|finding| finding.deviates).collect();
    assert!(deviating.is_empty(), "{deviating:#?}");
    let paths: BTreeSet<_> = right.findings.iter().map(|finding| finding.path).collect();
    assert_eq!(paths, BTreeSet::from(["packets", "shared memory"]));
    let all: BTreeSet<_> = right.findings.iter().map(|finding| finding.check.clone()).collect();
    assert!(all.len() > 1 && right.checks == right.findings.len() as u64);
    let mut found = BTreeSet::new();
    let lenses: [&dyn Lens; 7] = [&Ends, &NoEvents, &Queries, &Mtu, &Takes, &Early, &Late];
    for lens in lenses {
        let wrong = report(part, WireChoice::Udp, lens);
        found.extend(wrong.findings.into_iter().filter(|f| f.deviates).map(|f| f.check));
    }
    let never: Vec<_> = all.difference(&found).collect();
    assert!(never.is_empty(), "these checks cannot fail: {never:?}");
}

#[test]
fn every_check_of_flush_can_fail() {
    every_check_of(Part::Flush);
}

#[test]
fn every_check_of_inline_can_fail() {
    every_check_of(Part::Inline);
}

#[test]
fn every_check_of_query_can_fail() {
    every_check_of(Part::Query);
}

#[test]
fn every_check_of_reset_can_fail() {
    every_check_of(Part::Reset);
}

#[test]
fn every_check_of_srq_can_fail() {
    every_check_of(Part::Srq);
}

#[test]
fn every_check_of_timing_can_fail() {
    every_check_of(Part::Timing);
}

#[test]
fn every_check_of_errors_can_fail() {
    every_check_of(Part::Errors);
}

#[test]
fn every_check_of_events_can_fail() {
    every_check_of(Part::Events);
}

/// A device whose queries lie deviates in its states, too.
#[test]
fn lies_about_states_are_found() {
    let wrong = report(Part::States, WireChoice::Udp, &Mtu);
    assert!(!wrong.deviations.is_empty() && !wrong.ok());
}

#[test]
fn without_a_choice_all_parts_are_checked() {
    assert!(parts(None).starts_with(&[Part::States, Part::Flush]));
    assert_eq!(parts(Some(Part::Query)), [Part::Query]);
}
