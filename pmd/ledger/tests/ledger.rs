//! What the ledger promises, one promise a test.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pmd_ledger::{
    Account, AdmitError, Cause, Depths, Effect, Ended, Event, EventKind, Flushes, Identity, Ledger,
    NoRoom, Outcome, Refused, Replay, Settled, Side, State, Status, Submission, Switches, Ticket,
    TransferId, Transfers,
};

const DEPTHS: Depths = Depths { send: 8, recv: 4 };
const LIMIT_NS: u64 = 1_000;

const fn identity(context: u32, qpn: u32) -> Identity {
    Identity { context, qpn, send_cq: qpn + 100, recv_cq: qpn + 100, srq: None, wq: None }
}

fn account() -> Account {
    Account::new(0, identity(0, 7), DEPTHS, Some(LIMIT_NS))
}

fn admit(account: &mut Account, token: u64) -> Ticket {
    account.admit(Side::Send, Submission::one(token)).unwrap()
}

fn settle(account: &mut Account, ticket: Ticket, status: Status) -> Vec<Settled> {
    let mut settled = Vec::new();
    assert_eq!(account.settle(ticket, status, |end| settled.push(end)), !settled.is_empty());
    settled
}

fn tokens(settled: &[Settled]) -> Vec<u64> {
    settled.iter().map(|end| end.token).collect()
}

/// S3-37: ledger basic.
#[test]
fn s3_24_a_record_holds_what_was_accepted() {
    let mut account = account();
    let ticket = account.admit(Side::Send, Submission::batch(42, 3).replayable()).unwrap();
    let record = account.record(ticket).unwrap();
    assert_eq!((record.token, record.wrs, record.batch), (42, 3, 3));
    assert_eq!((record.signalled, record.orphaned), (true, false));
    assert_eq!(record.replay, Replay::Again);
    let balance = account.balance(Side::Send);
    assert_eq!(
        (balance.admitted, balance.settled, balance.in_flight, balance.posted),
        (1, 0, 1, 3)
    );
    assert!(account.withdraw(ticket), "the device refused it");
    assert_eq!(account.record(ticket), None);
    let balance = account.balance(Side::Send);
    assert_eq!((balance.admitted, balance.in_flight, balance.posted), (0, 0, 0));
}

#[test]
fn s3_25_a_completion_releases_its_record_and_its_count() {
    let mut account = account();
    let big = account.admit(Side::Send, Submission::batch(1, 5)).unwrap();
    let small = account.admit(Side::Send, Submission::batch(2, 3)).unwrap();
    assert_eq!(account.admit(Side::Send, Submission::one(3)), Err(AdmitError::Full));
    let settled = settle(&mut account, small, Status::SUCCESS);
    assert_eq!((settled[0].token, settled[0].wrs, settled.len()), (2, 3, 1));
    assert_eq!(account.balance(Side::Send).posted, 5);
    assert!(account.record(big).is_some());
    let settled = settle(&mut account, big, Status(10));
    assert_eq!(settled[0].outcome, Outcome::Completed(Status(10)));
    let balance = account.balance(Side::Send);
    assert_eq!((balance.admitted, balance.settled, balance.posted), (2, 2, 0));
    account.check();
}

/// S3-25: completions that are taken together release what each alone would: in order, each its own record.
#[test]
fn s3_25_a_row_of_completions_releases_a_row_of_records() {
    let mut account = account();
    let mut rows = Vec::new();
    let mut take = |account: &mut Account, completions: &[(Ticket, bool)]| {
        rows.clear();
        let count = account.settle_row(
            completions,
            |completion| completion.0,
            |completion, token| {
                rows.extend(completion.1.then_some(token));
                completion.1
            },
        );
        assert_eq!(count, rows.len());
        account.check();
        rows.clone()
    };
    // The ring ends between them in some round.
    for round in 0..20 {
        let sends = [10, 11, 12, 13].map(|token| admit(&mut account, token));
        let recv = account.admit(Side::Recv, Submission::one(20)).unwrap();
        let [a, b, c, d] = sends.map(|ticket| (ticket, true));
        let failed = (sends[2], false);
        // Of another queue, out of order, late, forged, not a success: it ends there.
        assert_eq!(take(&mut account, &[b, c, d]), [0_u64; 0]);
        assert_eq!(take(&mut account, &[(Ticket(d.0.0 + 1), true)]), [0_u64; 0]);
        let mut taken = take(&mut account, &[a, b, failed, d]);
        if taken == [10] {
            taken.extend(take(&mut account, &[b, failed, d]));
        }
        assert_eq!(taken, [10, 11], "round {round}");
        assert_eq!(take(&mut account, &[a, b]), [0_u64; 0], "late");
        assert_eq!(take(&mut account, &[c, (recv, true), d]), [12]);
        assert_eq!(take(&mut account, &[(recv, true), d]), [20]);
        assert_eq!(take(&mut account, &[d]), [13]);
        assert_eq!(take(&mut account, &[d, a]), [0_u64; 0], "nothing is in flight");
        let balance = account.balance(Side::Send);
        assert_eq!((balance.settled, balance.in_flight), (4 * (round + 1), 0));
    }
    // An account that drains takes them one by one, and gives nothing more out.
    let last = admit(&mut account, 14);
    account.fail(0, Cause::PeerFailed, Flushes::Within(100), |_| {});
    assert_eq!(take(&mut account, &[(last, true)]), [0_u64; 0]);
    assert_eq!(tokens(&settle(&mut account, last, Status::SUCCESS)), [14]);
    assert!(account.admit(Side::Send, Submission::one(15)).is_err());
}

/// Who is told of a completion may panic: it was told, and is not told again.
#[test]
fn a_row_that_is_cut_short_keeps_what_was_settled() {
    let mut account = account();
    let tickets = [1, 2, 3].map(|token| admit(&mut account, token));
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        account.settle_row(
            &tickets,
            |ticket| *ticket,
            |_, token| if token == 2 { std::panic::resume_unwind(Box::new(())) } else { true },
        )
    }));
    assert!(cut.is_err());
    assert_eq!(account.balance(Side::Send).settled, 1);
    account.check();
}

#[test]
fn a_submission_that_never_fits_says_so() {
    let mut account = account();
    for wrs in [0, 9] {
        let refused = account.admit(Side::Send, Submission::batch(1, wrs));
        assert_eq!(refused, Err(AdmitError::Size { max: 8 }));
    }
}

/// Completions in any order, with a ring that is no larger than it must be.
#[test]
fn an_old_request_that_stays_does_not_lose_its_place() {
    let mut account = account();
    let oldest = admit(&mut account, 0);
    let mut last = 0;
    for token in 1.. {
        let Ok(ticket) = account.admit(Side::Send, Submission::one(token)) else { break };
        assert_eq!(tokens(&settle(&mut account, ticket, Status::SUCCESS)), [token]);
        last = token;
    }
    assert!(last >= 8, "at least the depth: {last}");
    assert_eq!(tokens(&settle(&mut account, oldest, Status::SUCCESS)), [0]);
    for round in 0..3 {
        let tickets: Vec<_> = (0..8).map(|token| admit(&mut account, token)).collect();
        for (token, ticket) in (0..).zip(tickets) {
            assert_eq!(tokens(&settle(&mut account, ticket, Status::SUCCESS)), [token], "{round}");
        }
    }
}

/// S3-26: what was posted in part holds depth until a marker behind it completes, and nothing else is touched.
#[test]
fn s3_26_a_partial_post_is_orphaned_and_recovered() {
    let mut account = account();
    let admission = account.admission();
    let before = admit(&mut account, 1);
    let partial = account.admit(Side::Send, Submission::batch(2, 4)).unwrap();
    assert!(account.orphan(partial, 2) && !account.orphan(partial, 1));
    assert_eq!((account.state(), account.balance(Side::Send).posted), (State::Degraded, 3));
    assert_eq!(admission.stamp(), Err(Refused::Degraded));
    assert_eq!(account.admit(Side::Send, Submission::one(3)), Err(AdmitError::Degraded));
    account.admit(Side::Recv, Submission::one(4)).expect("receives go on");
    let marker = account.admit_marker(99).unwrap();
    assert_eq!(tokens(&settle(&mut account, before, Status::SUCCESS)), [1]);
    assert_eq!(account.state(), State::Degraded, "the orphan is still there");
    let settled = settle(&mut account, marker, Status::SUCCESS);
    assert_eq!(tokens(&settled), [99], "whose post failed has been told by then");
    assert_eq!((account.state(), account.balance(Side::Send).posted), (State::Open, 0));
    assert!(admission.stamp().is_ok());
    admit(&mut account, 5);
    account.check();
}

/// An unsignalled request succeeded when a later one completes, in whatever way that does: its own failure would show.
#[test]
fn silent_requests_settle_with_the_next_that_speaks() {
    let mut account = account();
    let silent = Submission { signalled: false, ..Submission::one(1) };
    account.admit(Side::Send, silent).unwrap();
    let failing = account.admit(Side::Send, Submission { token: 2, ..silent }).unwrap();
    let speaking = admit(&mut account, 3);
    let settled = settle(&mut account, failing, Status(10));
    assert_eq!(tokens(&settled), [1, 2]);
    assert!(settled[0].outcome.is_success());
    assert_eq!(settled[1].outcome, Outcome::Completed(Status(10)));
    let settled = settle(&mut account, speaking, Status::FLUSH);
    assert_eq!((settled.len(), settled[0].outcome), (1, Outcome::Completed(Status::FLUSH)));
    assert_eq!(account.balance(Side::Send).in_flight, 0);
}

/// S3-27: transfers of several records fail once each.
#[test]
fn s3_27_fail_all_fails_each_transfer_once() {
    let (mut account, mut transfers) = (account(), Transfers::new(4));
    let two = transfers.begin(2, 2).unwrap();
    let three = transfers.begin(3, 3).unwrap();
    let first = admit(&mut account, two.token());
    for id in [three, two, three, three] {
        admit(&mut account, id.token());
    }
    let done = settle(&mut account, first, Status::SUCCESS);
    assert_eq!(transfers.settle(two, done[0].outcome), None, "one of its two parts");
    let mut ended = Vec::new();
    account.fail(0, Cause::PeerDead, Flushes::Never, |end| {
        ended.extend(transfers.settle(TransferId::from_token(end.token), end.outcome));
    });
    let failed = |tag| Ended { tag, outcome: Outcome::Failed(Cause::PeerDead) };
    assert_eq!(ended, [failed(3), failed(2)]);
    assert_eq!(transfers.in_flight(), 0);
}

#[test]
fn s3_28_fail_all_drains_orphans_and_releases_depth() {
    let mut account = account();
    admit(&mut account, 1);
    let partial = account.admit(Side::Send, Submission::batch(2, 4)).unwrap();
    account.orphan(partial, 3);
    let mut failed = Vec::new();
    let records = account.fail(0, Cause::PeerDead, Flushes::Never, |end| failed.push(end));
    assert_eq!((records, tokens(&failed)), (2, vec![1]));
    let balance = account.balance(Side::Send);
    assert_eq!((balance.in_flight, balance.posted), (0, 0));
}

/// S3-29, S3-30, S3-31: failed with the cause, empty, closed, and late completions find nothing.
#[test]
fn s3_30_closed_after_fail_all() {
    let mut account = account();
    let ticket = admit(&mut account, 1);
    let cause = Cause::Event(EventKind::DeviceFatal);
    let mut failed = Vec::new();
    account.fail(0, cause, Flushes::Never, |end| failed.push(end.outcome));
    assert_eq!(failed, [Outcome::Failed(cause)]);
    assert_eq!(account.state(), State::Closed { cause });
    assert!(settle(&mut account, ticket, Status::SUCCESS).is_empty());
    assert!(settle(&mut account, ticket, Status::FLUSH).is_empty());
    let refused = account.admit(Side::Send, Submission::one(2)).unwrap_err();
    assert_eq!(refused, AdmitError::Closed(cause));
    assert_eq!(
        refused.to_string(),
        "the endpoint is degraded, rejecting: asynchronous event DEVICE_FATAL"
    );
    assert_eq!(account.admit(Side::Recv, Submission::one(2)), Err(AdmitError::Closed(cause)));
    assert_eq!(account.admit_marker(3), None);
    let balance = account.balance(Side::Send);
    assert_eq!((balance.admitted, balance.settled), (1, 1));
}

/// S3-32: who passed the gate before it closed is refused behind it, also when the connection is back by then.
#[test]
fn s3_32_a_submission_that_lost_the_race_is_refused_cleanly() {
    let mut account = account();
    let stamp = account.admission().stamp().unwrap();
    admit(&mut account, 1);
    let cause = Cause::Event(EventKind::QpFatal);
    account.fail(0, cause, Flushes::Never, |_| {});
    let late = account.admit_stamped(stamp, Side::Send, Submission::one(2));
    assert_eq!(late, Err(AdmitError::Closed(cause)));
    account.reopen(identity(0, 7)).unwrap();
    let late = account.admit_stamped(stamp, Side::Send, Submission::one(2));
    assert_eq!(late, Err(AdmitError::Stale));
    assert_eq!(account.balance(Side::Send).in_flight, 0);
    let stamp = account.admission().stamp().unwrap();
    account.admit_stamped(stamp, Side::Send, Submission::one(3)).unwrap();
}

#[test]
fn s3_33_completions_do_not_reopen_a_closed_account() {
    let mut account = account();
    let partial = account.admit(Side::Send, Submission::batch(1, 4)).unwrap();
    account.orphan(partial, 2);
    let marker = account.admit_marker(2).unwrap();
    account.fail(0, Cause::PeerFailed, Flushes::Within(100), |_| {});
    assert_eq!(tokens(&settle(&mut account, marker, Status::FLUSH)), [2]);
    assert!(account.is_empty());
    assert!(matches!(account.state(), State::Draining { cause: Cause::PeerFailed, .. }));
    assert_eq!(account.admission().stamp(), Err(Refused::Closed));
    account.handle_timeout(1, |_| {});
    assert_eq!(account.state(), State::Closed { cause: Cause::PeerFailed });
}

/// S3-34: the first of completion, event and deadline decides, each in its turn.
#[test]
fn s3_34_the_first_of_completion_event_and_deadline_wins() {
    let event = Event { context: 0, kind: EventKind::CqErr, on: 107 };
    for first in 0..3 {
        let mut account = account();
        let ticket = admit(&mut account, 1);
        let mut ends = Vec::new();
        account.handle_timeout(0, |_| {});
        for step in [first, (first + 1) % 3, (first + 2) % 3] {
            let mut sink = |end: Settled| ends.push(end.outcome);
            match step {
                0 => drop(account.settle(ticket, Status::SUCCESS, &mut sink)),
                1 => drop(account.handle_event(5, &event, Switches::default(), &mut sink)),
                _ => drop(account.handle_timeout(LIMIT_NS, &mut sink)),
            }
        }
        let expected = [
            Outcome::Completed(Status::SUCCESS),
            Outcome::Failed(Cause::Event(EventKind::CqErr)),
            Outcome::Failed(Cause::Deadline { limit_ns: LIMIT_NS }),
        ];
        assert_eq!(ends, [expected[first]]);
    }
}

/// S3-35: what a transfer was told is final.
#[test]
fn s3_35_a_status_never_flips() {
    let mut transfers = Transfers::new(1);
    let success = Outcome::Completed(Status::SUCCESS);
    let failure = Outcome::Failed(Cause::Deadline { limit_ns: 1 });
    let id = transfers.begin(7, 2).unwrap();
    assert_eq!(transfers.begin(8, 1), None, "no place");
    assert_eq!(transfers.claim(id, failure), Some(Ended { tag: 7, outcome: failure }));
    assert_eq!(transfers.claim(id, success), None);
    assert_eq!(transfers.settle(id, success), None);
    assert_eq!(transfers.settle(id, success), None, "all parts succeeded, too late");
    let next = transfers.begin(9, 1).unwrap();
    assert_eq!(transfers.settle(id, failure), None, "a name of the past");
    assert_eq!(transfers.settle(next, success), Some(Ended { tag: 9, outcome: success }));
    assert_eq!(transfers.settle(next, Outcome::Completed(Status::FLUSH)), None);
}

fn two_devices() -> (Ledger, [pmd_ledger::Member; 3]) {
    let mut ledger = Ledger::new(4, Switches::default());
    let members = [(0, 7), (0, 8), (1, 7)]
        .map(|(context, qpn)| ledger.open(identity(context, qpn), DEPTHS, None).unwrap());
    for member in members {
        ledger.account_mut(member).unwrap().admit(Side::Send, Submission::one(1)).unwrap();
    }
    (ledger, members)
}

fn open(ledger: &Ledger, members: [pmd_ledger::Member; 3]) -> [bool; 3] {
    members.map(|member| ledger.account(member).unwrap().state() == State::Open)
}

/// S3-14 and S3-18: (context, qpn) names a queue pair; its own completions are waited for, and say more than the event.
#[test]
fn s3_14_a_queue_pair_event_fails_that_one_alone() {
    for kind in [EventKind::QpFatal, EventKind::QpReqErr, EventKind::QpAccessErr] {
        let (mut ledger, members) = two_devices();
        let event = Event { context: 0, kind, on: 7 };
        let effect = ledger.handle_event(10, &event, |_, end| panic!("{end:?} before its time"));
        assert_eq!(effect, Effect::Failed { accounts: 1, settled: 0 });
        assert_eq!(open(&ledger, members), [false, true, true]);
        let refused = ledger.account_mut(members[0]).unwrap().admit(Side::Send, Submission::one(2));
        assert_eq!(refused, Err(AdmitError::Closed(Cause::Event(kind))));
        let until_ns = ledger.poll_timeout().unwrap();
        let mut failed = Vec::new();
        assert_eq!(ledger.handle_timeout(until_ns - 1, |_, _| {}), 0);
        ledger.handle_timeout(until_ns, |member, end| failed.push((member, end.outcome)));
        assert_eq!(failed, [(members[0], Outcome::Failed(Cause::Event(kind)))]);
    }
}

#[test]
fn s3_14_completions_that_come_in_time_keep_their_status() {
    let (mut ledger, members) = two_devices();
    let account = ledger.account_mut(members[0]).unwrap();
    let second = admit(account, 2);
    let event = Event { context: 0, kind: EventKind::QpFatal, on: 7 };
    ledger.handle_event(10, &event, |_, _| {});
    let mut ends = Vec::new();
    ledger.settle(Ticket(second.0 - 1), Status::RETRY_EXC, |end| ends.push(end.outcome));
    ledger.settle(second, Status::FLUSH, |end| ends.push(end.outcome));
    assert_eq!(ends, [Status::RETRY_EXC, Status::FLUSH].map(Outcome::Completed));
    assert_eq!(ledger.poll_timeout(), Some(0), "nothing to wait for");
    assert_eq!(ledger.handle_timeout(11, |_, _| {}), 0);
    let state = ledger.account(members[0]).unwrap().state();
    assert_eq!(state, State::Closed { cause: Cause::Event(EventKind::QpFatal) });
}

/// S3-15: nothing can complete to a dead completion queue, so nothing is waited for.
#[test]
fn s3_15_a_dead_completion_queue_fails_all_on_it_at_once() {
    let (mut ledger, members) = two_devices();
    let sibling = Identity { recv_cq: 107, ..identity(0, 9) };
    let sibling = ledger.open(sibling, DEPTHS, None).unwrap();
    ledger.account_mut(sibling).unwrap().admit(Side::Recv, Submission::one(5)).unwrap();
    let event = Event { context: 0, kind: EventKind::CqErr, on: 107 };
    let mut failed = Vec::new();
    let effect = ledger.handle_event(10, &event, |member, _| failed.push(member));
    assert_eq!(effect, Effect::Failed { accounts: 2, settled: 2 });
    assert_eq!(failed, [members[0], sibling]);
    assert_eq!(open(&ledger, members), [false, true, true]);
}

/// S3-16 and S3-39: all endpoints of the context are degraded, what is in flight fails, the next submission is refused.
#[test]
fn s3_16_a_dead_device_fails_its_context() {
    let (mut ledger, members) = two_devices();
    let admissions = members.map(|member| ledger.account(member).unwrap().admission());
    let event = Event { context: 0, kind: EventKind::DeviceFatal, on: 0 };
    let effect = ledger.handle_event(10, &event, |_, _| {});
    assert_eq!(effect, Effect::Failed { accounts: 2, settled: 2 });
    assert_eq!(open(&ledger, members), [false, false, true]);
    assert_eq!(admissions.map(|admission| admission.stamp().is_ok()), [false, false, true]);
}

#[test]
fn s3_17_port_and_unknown_events_fail_nothing() {
    let (mut ledger, members) = two_devices();
    for kind in [EventKind::PortErr, EventKind::GidChange, EventKind::from_number(20)] {
        let event = Event { context: 0, kind, on: 7 };
        assert_eq!(ledger.handle_event(10, &event, |_, _| {}), Effect::Noted);
    }
    assert_eq!(open(&ledger, members), [true; 3]);
}

/// Whoever is told of a failure finds the gate closed, be it by a completion's owner, an event or a deadline.
#[test]
fn s3_20_admission_is_closed_before_anything_fails() {
    type Fail = fn(&mut Account, &mut dyn FnMut(Settled)) -> u64;
    let fails: [Fail; 3] = [
        |account, sink| account.fail(0, Cause::PeerDead, Flushes::Never, sink),
        |account, sink| {
            let event = Event { context: 0, kind: EventKind::CqErr, on: 107 };
            account.handle_event(0, &event, Switches::default(), sink).unwrap()
        },
        |account, sink| account.handle_timeout(LIMIT_NS, sink),
    ];
    for fail in fails {
        let mut account = account();
        admit(&mut account, 1);
        account.handle_timeout(0, |_| {});
        let admission = account.admission();
        let mut seen = Vec::new();
        assert_eq!(fail(&mut account, &mut |_| seen.push(admission.stamp())), 1);
        assert_eq!(seen, [Err(Refused::Closed)]);
    }
}

#[test]
fn s3_21_switches_turn_events_and_failing_off() {
    let event = Event { context: 0, kind: EventKind::DeviceFatal, on: 0 };
    for (switches, expected) in [
        (Switches { events: false, ..Switches::default() }, Effect::Ignored),
        (Switches { fail: false, ..Switches::default() }, Effect::Noted),
    ] {
        let mut ledger = Ledger::new(1, switches);
        let member = ledger.open(identity(0, 7), DEPTHS, None).unwrap();
        assert_eq!(ledger.handle_event(1, &event, |_, _| {}), expected);
        assert_eq!(ledger.account(member).unwrap().state(), State::Open);
    }
}

#[test]
fn s3_22_no_event_is_handled_once_the_monitor_is_stopped() {
    let (mut ledger, members) = two_devices();
    ledger.stop_monitor();
    let event = Event { context: 0, kind: EventKind::DeviceFatal, on: 0 };
    assert_eq!(ledger.handle_event(10, &event, |_, _| {}), Effect::Ignored);
    assert_eq!(open(&ledger, members), [true; 3]);
}

/// S3-23 and S4-15: all on a shared receive queue fail, and their own completions come.
#[test]
fn s3_23_a_dead_shared_receive_queue_fails_all_on_it() {
    let mut ledger = Ledger::new(3, Switches::default());
    let on = |qpn, srq| Identity { srq, ..identity(0, qpn) };
    let members = [on(1, Some(5)), on(2, Some(5)), on(3, None)]
        .map(|identity| ledger.open(identity, Depths { send: 4, recv: 0 }, None).unwrap());
    for member in members {
        ledger.account_mut(member).unwrap().admit(Side::Send, Submission::one(1)).unwrap();
    }
    let event = Event { context: 0, kind: EventKind::SrqErr, on: 5 };
    let effect = ledger.handle_event(1, &event, |_, _| {});
    assert_eq!(effect, Effect::Failed { accounts: 2, settled: 0 });
    assert_eq!(open(&ledger, members), [false, false, true]);
}

/// S3-40: a request whose completion never comes fails in bounded time; one that merely waits its turn does not.
#[test]
fn s3_40_the_oldest_request_is_waited_for_in_bounded_time() {
    let mut account = account();
    assert_eq!(account.poll_timeout(), None, "nothing waits");
    account.admit(Side::Recv, Submission::one(1)).unwrap();
    assert_eq!(account.poll_timeout(), None, "a receive waits for the peer, for ever");
    let first = admit(&mut account, 2);
    admit(&mut account, 3);
    assert_eq!(account.poll_timeout(), Some(0));
    account.handle_timeout(100, |_| {});
    assert_eq!(account.poll_timeout(), Some(100 + LIMIT_NS));
    settle(&mut account, first, Status::SUCCESS);
    assert_eq!(account.handle_timeout(100 + LIMIT_NS, |_| {}), 0, "another one is the oldest now");
    assert_eq!(account.state(), State::Open);
    let mut failed = Vec::new();
    account.handle_timeout(100 + 2 * LIMIT_NS, |end| failed.push(end));
    let cause = Cause::Deadline { limit_ns: LIMIT_NS };
    assert_eq!(tokens(&failed), [3, 1], "both queues are empty");
    assert_eq!(
        (failed[0].outcome, account.state()),
        (Outcome::Failed(cause), State::Closed { cause })
    );
}

#[test]
fn the_first_cause_stays_when_another_follows() {
    let mut account = account();
    admit(&mut account, 1);
    account.fail(0, Cause::PeerFailed, Flushes::Within(100), |_| {});
    let mut failed = Vec::new();
    account.fail(5, Cause::PeerDead, Flushes::Never, |end| failed.push(end.outcome));
    assert_eq!(failed, [Outcome::Failed(Cause::PeerFailed)]);
}

/// P19: what RESET discards is cancelled, and a late completion of it does no harm to the next connection.
#[test]
fn p19_reset_cancels_what_was_not_reported() {
    let mut account = account();
    let old = admit(&mut account, 1);
    assert_eq!(account.reopen(identity(0, 7)), Err(Refused::Degraded), "not while it is open");
    let mut cancelled = Vec::new();
    account.reset(9, |end| cancelled.push((end.token, end.outcome)));
    assert_eq!(cancelled, [(1, Outcome::Failed(Cause::Reset))]);
    assert_eq!(account.reopen(identity(0, 7)), Ok(1));
    let new = admit(&mut account, 2);
    assert_ne!(old, new);
    assert!(settle(&mut account, old, Status::SUCCESS).is_empty());
    assert_eq!(tokens(&settle(&mut account, new, Status::SUCCESS)), [2]);
    assert!(settle(&mut account, Ticket(new.0 + 1), Status::SUCCESS).is_empty(), "never given out");
}

/// A reused queue pair number or place of the ledger is told apart.
#[test]
fn a_successor_is_not_taken_for_what_was_before() {
    let mut ledger = Ledger::new(1, Switches::default());
    let first = ledger.open(identity(0, 7), DEPTHS, None).unwrap();
    let twice = ledger.open(identity(0, 7), DEPTHS, None);
    assert_eq!(twice, Err(NoRoom::Twice { context: 0, qpn: 7 }));
    assert_eq!(ledger.open(identity(0, 8), DEPTHS, None), Err(NoRoom::Full(1)));
    let old = ledger.account_mut(first).unwrap().admit(Side::Send, Submission::one(1)).unwrap();
    let mut failed = Vec::new();
    assert!(ledger.retire(0, first, |end| failed.push(end.outcome)));
    assert_eq!(failed, [Outcome::Failed(Cause::Closed)]);
    let second = ledger.open(identity(0, 7), DEPTHS, None).unwrap();
    assert!(ledger.account(first).is_none() && !ledger.retire(0, first, |_| {}));
    let account = ledger.account_mut(second).unwrap();
    let new = admit(account, 2);
    assert!(!ledger.settle(old, Status::SUCCESS, |end| panic!("{end:?}")));
    let mut settled = Vec::new();
    assert!(ledger.settle(new, Status::SUCCESS, |end| settled.push(end.token)));
    assert_eq!(settled, [2]);
    assert!(!ledger.settle(Ticket(u64::MAX), Status::SUCCESS, |end| panic!("{end:?}")));
}

/// What may be made again is said by who submits, and comes back with the failure.
#[test]
fn a_failure_tells_what_may_be_made_again() {
    let mut account = account();
    admit(&mut account, 1);
    account.admit(Side::Send, Submission::one(2).replayable()).unwrap();
    let mut failed = Vec::new();
    account.fail(0, Cause::PeerDead, Flushes::Never, |end| failed.push((end.token, end.replay)));
    assert_eq!(failed, [(1, Replay::Never), (2, Replay::Again)]);
}
