//! Submitters on threads of their own against a completion poller and an event monitor; also run under ThreadSanitizer.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pmd_lcore::mailbox::{Receiver, SendError, mailbox};
use pmd_ledger::{
    Admission, Cause, Depths, Effect, Event, EventKind, Identity, Ledger, Side, Stamp, State,
    Status, Submission, Switches, Ticket,
};

const SUBMITTERS: u64 = 3;
const EACH: u64 = 40;
const ROUNDS: u64 = 400;

enum Message {
    Submit { stamp: Stamp, token: u64 },
    Complete(Ticket),
    Event(Event),
}

/// What became of each submission, by token: one claim each.
struct Fate {
    claims: Vec<AtomicU64>,
}

impl Fate {
    const ACCEPTED: u64 = 1;
    const REFUSED: u64 = 2;
    const SETTLED: u64 = 4;

    fn add(&self, token: u64, what: u64) {
        let before =
            self.claims[usize::try_from(token).unwrap()].fetch_add(what, Ordering::Relaxed);
        assert_eq!(before & what, 0, "{token} a second time");
    }
}

/// Submits while the gate is open; returns how many were refused by it.
fn submit(
    submitter: u64,
    admission: &Admission,
    mailbox: &pmd_lcore::mailbox::Sender<Message>,
    fate: &Fate,
) {
    for n in 0..EACH {
        let token = submitter * EACH + n;
        match admission.stamp() {
            Err(_) => fate.add(token, Fate::REFUSED),
            Ok(stamp) => {
                let mut message = Message::Submit { stamp, token };
                while let Err(SendError::Full(back)) = mailbox.send(message) {
                    message = back;
                    thread::yield_now();
                }
            }
        }
    }
}

/// The lcore: owner of the ledger, until everybody has finished.
fn own(
    mut ledger: Ledger,
    member: pmd_ledger::Member,
    mut inbox: Receiver<Message>,
    device: &std::sync::mpsc::Sender<Ticket>,
    fate: &Fate,
    finished: &AtomicU64,
) -> (Ledger, u64) {
    let mut events = 0;
    loop {
        let over = finished.load(Ordering::Acquire) == SUBMITTERS + 1;
        let taken = inbox.drain(|message| match message {
            Message::Submit { stamp, token } => {
                let account = ledger.account_mut(member).unwrap();
                match account.admit_stamped(stamp, Side::Send, Submission::one(token)) {
                    Ok(ticket) => {
                        fate.add(token, Fate::ACCEPTED);
                        // A device that is gone completes nothing.
                        device.send(ticket).unwrap_or(());
                    }
                    Err(_) => fate.add(token, Fate::REFUSED),
                }
            }
            Message::Complete(ticket) => {
                ledger.settle(ticket, Status::SUCCESS, |end| fate.add(end.token, Fate::SETTLED));
            }
            Message::Event(event) => {
                events += 1;
                let effect = ledger
                    .handle_event(events, &event, |_, end| fate.add(end.token, Fate::SETTLED));
                assert!(matches!(effect, Effect::Failed { accounts: 1, .. }));
            }
        });
        if taken == 0 {
            if over {
                return (ledger, events);
            }
            thread::yield_now();
        }
    }
}

/// S3-36 and S3-37, close race stress: what was accepted and what was refused are all there is, what was accepted settled
/// once, and it ends closed.
#[test]
fn s3_36_close_race_stress() {
    for round in 0..ROUNDS {
        let mut ledger = Ledger::new(1, Switches::default());
        let identity = Identity { context: 0, qpn: 7, send_cq: 1, recv_cq: 1, srq: None, wq: None };
        let depths = Depths { send: 1024, recv: 0 };
        let member = ledger.open(identity, depths, None).unwrap();
        let admission = ledger.account(member).unwrap().admission();
        let (to_lcore, inbox) = mailbox(64);
        let (to_device, device) = std::sync::mpsc::channel();
        let tokens = usize::try_from(SUBMITTERS * EACH).unwrap();
        let fate = Arc::new(Fate { claims: (0..tokens).map(|_| AtomicU64::new(0)).collect() });
        let finished = Arc::new(AtomicU64::new(0));

        let (ledger, events) = thread::scope(|scope| {
            for submitter in 0..SUBMITTERS {
                let (admission, mailbox) = (admission.clone(), to_lcore.clone());
                let (fate, finished) = (&fate, &finished);
                scope.spawn(move || {
                    submit(submitter, &admission, &mailbox, fate);
                    finished.fetch_add(1, Ordering::Release);
                });
            }
            // The device, which completes what it got, until the lcore is gone.
            let completions = to_lcore.clone();
            scope.spawn(move || {
                for ticket in device {
                    let mut message = Message::Complete(ticket);
                    while let Err(SendError::Full(back)) = completions.send(message) {
                        message = back;
                        thread::yield_now();
                    }
                }
            });
            let (monitor, done) = (to_lcore.clone(), &finished);
            scope.spawn(move || {
                for _ in 0..round % 50 {
                    thread::yield_now();
                }
                let kind = EventKind::DeviceFatal;
                let mut message = Message::Event(Event { context: 0, kind, on: 0 });
                while let Err(SendError::Full(back)) = monitor.send(message) {
                    message = back;
                    thread::yield_now();
                }
                done.fetch_add(1, Ordering::Release);
            });
            let owner = own(ledger, member, inbox, &to_device, &fate, &finished);
            drop(to_device);
            owner
        });

        assert_eq!(events, 1);
        let (accepted, refused) = (Fate::ACCEPTED | Fate::SETTLED, Fate::REFUSED);
        for (token, claim) in fate.claims.iter().enumerate() {
            let claim = claim.load(Ordering::Relaxed);
            assert!(claim == accepted || claim == refused, "round {round}: {token} is {claim:#b}");
        }
        let account = ledger.account(member).unwrap();
        let cause = Cause::Event(EventKind::DeviceFatal);
        assert_eq!((account.state(), account.is_empty()), (State::Closed { cause }, true));
        assert!(admission.stamp().is_err(), "later inserts are refused");
        account.check();
    }
}
