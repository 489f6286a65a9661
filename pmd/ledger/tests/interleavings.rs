//! Random orders of everything that can happen to an account, against a device that is trivially right.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use pmd_ledger::{
    Account, AdmitError, Cause, Depths, Event, EventKind, Flushes, Identity, Settled, Side, State,
    Status, Submission, Switches, Ticket,
};
use proptest::prelude::*;

const SEND_DEPTH: u32 = 6;
const LIMIT_NS: u64 = 50;
const IDENTITY: Identity =
    Identity { context: 0, qpn: 7, send_cq: 1, recv_cq: 2, srq: None, wq: None };

#[derive(Clone, Debug)]
enum Step {
    Submit {
        side: Side,
        wrs: u16,
        signalled: bool,
    },
    /// The device refuses the newest, or takes only a part of it.
    Refuse,
    Partial(u16),
    Marker,
    /// The device completes the n-th that it holds.
    Complete {
        nth: usize,
        status: u8,
    },
    /// The device completes what it holds, oldest first and queue by queue as it was submitted, up to so many; of these,
    /// one may fail. They are taken as a poll takes them.
    Row {
        count: usize,
        fails: usize,
    },
    /// A completion that came before comes again.
    Again(usize),
    Event(EventKind),
    PeerDead,
    Time(u64),
    /// The device flushes all it holds.
    Fault,
    Reset,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let side = prop_oneof![3 => Just(Side::Send), 1 => Just(Side::Recv)];
    prop_oneof![
        8 => (side, 1..4_u16, prop::bool::weighted(0.8))
            .prop_map(|(side, wrs, signalled)| Step::Submit { side, wrs, signalled }),
        1 => Just(Step::Refuse),
        1 => (1..4_u16).prop_map(Step::Partial),
        1 => Just(Step::Marker),
        6 => (0..4_usize, prop_oneof![3 => Just(0), 1 => Just(12)])
            .prop_map(|(nth, status)| Step::Complete { nth, status }),
        4 => (1..7_usize, 0..20_usize).prop_map(|(count, fails)| Step::Row { count, fails }),
        2 => (0..64_usize).prop_map(Step::Again),
        1 => prop::sample::select(EventKind::ALL).prop_map(Step::Event),
        1 => Just(Step::PeerDead),
        3 => (0..40_u64).prop_map(Step::Time),
        1 => Just(Step::Fault),
        1 => Just(Step::Reset),
        3 => Just(Step::Reopen),
    ]
}

/// The world around an account: what the device holds, and what the caller knows.
struct World {
    account: Account,
    now_ns: u64,
    held: Vec<Ticket>,
    reported: Vec<Ticket>,
    next_token: u64,
    /// Admitted and neither settled nor told otherwise.
    open: BTreeSet<u64>,
    settled: u64,
    admitted: u64,
    orphans: u64,
}

impl World {
    fn new() -> Self {
        let depths = Depths { send: SEND_DEPTH, recv: 4 };
        Self {
            account: Account::new(3, IDENTITY, depths, Some(LIMIT_NS)),
            now_ns: 0,
            held: Vec::new(),
            reported: Vec::new(),
            next_token: 0,
            open: BTreeSet::new(),
            settled: 0,
            admitted: 0,
            orphans: 0,
        }
    }

    /// Runs something of the account and takes note of what it settles.
    fn run<R>(&mut self, call: impl FnOnce(&mut Account, u64, &mut dyn FnMut(Settled)) -> R) -> R {
        let (open, settled) = (&mut self.open, &mut self.settled);
        call(&mut self.account, self.now_ns, &mut |end: Settled| {
            assert!(open.remove(&end.token), "{end:?} settles a second time");
            *settled += 1;
        })
    }

    /// Takes completions as whoever polls does: rows of successes, and what is not in a row one by one.
    fn poll(&mut self, mut completions: &[Ticket], fails: usize) {
        let mut nth = 0;
        while let Some(&first) = completions.first() {
            let (open, settled) = (&mut self.open, &mut self.settled);
            let row = self.account.settle_row(
                completions,
                |ticket| *ticket,
                |_, token| {
                    let is_success = nth != fails;
                    if is_success {
                        assert!(open.remove(&token), "{token} settles a second time");
                        (*settled, nth) = (*settled + 1, nth + 1);
                    }
                    is_success
                },
            );
            if row == 0 {
                let status = if nth == fails { Status::RETRY_EXC } else { Status::SUCCESS };
                self.run(|account, _, sink| account.settle(first, status, sink));
                nth += 1;
            }
            completions = &completions[row.max(1)..];
        }
    }

    fn admitted(&mut self, ticket: Ticket) {
        self.open.insert(self.next_token);
        self.next_token += 1;
        self.admitted += 1;
        self.held.push(ticket);
    }

    /// The newest submission of the send queue, if the device still holds it.
    fn newest(&self) -> Option<Ticket> {
        let newest = self.held.iter().copied().filter(|ticket| ticket.queue() % 2 == 0).max()?;
        self.account.record(newest).map(|_| newest)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Submit { side, wrs, signalled } => {
                let mut submission = Submission::batch(self.next_token, wrs);
                submission.signalled = signalled;
                match self.account.admit(side, submission) {
                    Ok(ticket) => self.admitted(ticket),
                    // Records that wait for an older one may take up places, so that it is full before its depth is used.
                    Err(AdmitError::Full) => assert_ne!(self.account.balance(side).in_flight, 0),
                    Err(AdmitError::Degraded) => assert_eq!(self.account.state(), State::Degraded),
                    Err(AdmitError::Closed(cause)) => {
                        assert_eq!(self.account.state().cause(), Some(cause));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Refuse => {
                let newest = self.newest();
                let is_last = |ticket: &Ticket| {
                    let balance = self.account.balance(Side::Send);
                    ticket.position() + 1 == balance.admitted
                };
                if let Some(ticket) = newest.filter(is_last) {
                    let record = self.account.record(ticket).unwrap();
                    assert_eq!(self.account.withdraw(ticket), !record.orphaned);
                    if !record.orphaned {
                        assert!(self.open.remove(&record.token));
                        self.held.retain(|&held| held != ticket);
                        self.admitted -= 1;
                    }
                }
            }
            Step::Partial(posted) => {
                if let Some(ticket) = self.newest() {
                    let token = self.account.record(ticket).unwrap().token;
                    if self.account.orphan(ticket, posted) {
                        self.open.remove(&token);
                        self.orphans += 1;
                    }
                }
            }
            Step::Marker => {
                if let Some(ticket) = self.account.admit_marker(self.next_token) {
                    self.admitted(ticket);
                }
            }
            Step::Complete { nth, status } => {
                if nth < self.held.len() {
                    let ticket = self.held.remove(nth);
                    self.reported.push(ticket);
                    self.run(|account, _, sink| account.settle(ticket, Status(status), sink));
                }
            }
            Step::Row { count, fails } => {
                let row: Vec<_> = self.held.drain(..count.min(self.held.len())).collect();
                self.reported.extend(&row);
                self.poll(&row, fails);
            }
            Step::Again(nth) => {
                if let Some(&ticket) = self.reported.get(nth) {
                    let sums = |world: &Self| {
                        [Side::Send, Side::Recv].map(|side| world.account.balance(side))
                    };
                    let before = sums(self);
                    let found =
                        self.run(|account, _, sink| account.settle(ticket, Status::SUCCESS, sink));
                    assert!(!found && sums(self) == before);
                    self.poll(&[ticket], 1);
                    assert!(sums(self) == before, "a row of what came before");
                }
            }
            Step::Event(kind) => {
                let on = match kind {
                    EventKind::CqErr => 2,
                    _ => 7,
                };
                let event = Event { context: 0, kind, on };
                let switches = Switches { drain_ns: 30, ..Switches::default() };
                self.run(|account, now, sink| account.handle_event(now, &event, switches, sink));
            }
            Step::PeerDead => {
                let flushes = Flushes::Within(20);
                self.run(|account, now, sink| account.fail(now, Cause::PeerDead, flushes, sink));
            }
            Step::Time(ns) => {
                self.now_ns += ns;
                self.run(|account, now, sink| account.handle_timeout(now, sink));
            }
            Step::Fault => {
                for ticket in std::mem::take(&mut self.held) {
                    self.reported.push(ticket);
                    self.run(|account, _, sink| account.settle(ticket, Status::FLUSH, sink));
                }
            }
            Step::Reset => {
                // The device forgets what it holds; half of it had been reported to a queue nobody has polled.
                self.reported.append(&mut self.held);
                self.run(|account, now, sink| account.reset(now, sink));
                assert!(self.account.is_empty());
            }
            Step::Reopen => {
                if matches!(self.account.state(), State::Closed { .. }) {
                    self.reported.append(&mut self.held);
                    self.account.reopen(IDENTITY).unwrap();
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        self.account.check();
        let sums = [Side::Send, Side::Recv].map(|side| self.account.balance(side));
        assert!(sums.iter().all(|sum| sum.admitted == sum.settled + sum.in_flight));
        let (admitted, in_flight) =
            (sums[0].admitted + sums[1].admitted, sums[0].in_flight + sums[1].in_flight);
        assert_eq!(admitted, self.admitted);
        let open = self.open.len() as u64;
        assert!((open..=open + self.orphans).contains(&in_flight), "{in_flight} of {open}");
        assert!(sums[0].posted <= SEND_DEPTH + 1 + u32::try_from(in_flight).unwrap());
        assert_eq!(self.account.admission().stamp().is_ok(), self.account.state() == State::Open);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    /// S3-34 to S3-36 and P19: whatever happens in whatever order, every submission settles once, and the depth is back.
    #[test]
    fn every_interleaving_balances(steps in prop::collection::vec(step(), 1..50)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.step(&Step::PeerDead);
        world.step(&Step::Time(1_000));
        prop_assert!(world.account.state().cause().is_some());
        prop_assert!(world.account.is_empty());
        prop_assert!(world.open.is_empty(), "{:?} never settled", world.open);
        for side in [Side::Send, Side::Recv] {
            let sum = world.account.balance(side);
            prop_assert_eq!((sum.in_flight, sum.posted), (0, 0));
            prop_assert_eq!(sum.admitted, sum.settled);
        }
    }
}
