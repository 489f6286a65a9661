//! Two sides bring a connection back, over a channel that is slow and breaks, on devices that refuse now and then.
#![cfg(not(loom))]

use std::collections::VecDeque;

use pmd_ledger::recovery::{
    Action, Backoff, Failure, Heard, Message, Policy, Recovery, Role, Stage,
};
use proptest::prelude::*;

const POLICY: Policy = Policy {
    attempts: 30,
    limit_ns: u64::MAX,
    drain_ns: 100,
    step_ns: 400,
    backoff: Backoff { first_ns: 50, max_ns: 300 },
};

/// A hello as it travels: with the first PSN, which is another one each time.
#[derive(Clone, Copy, Debug)]
struct Parcel {
    message: Message,
    psn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Qp {
    Reset,
    Init,
    Rtr,
    Rts,
    Error,
}

struct End {
    recovery: Recovery,
    qp: Qp,
    psn: u64,
    /// The peer's, of the last accepted hello, and the one that the queue pair was brought up with.
    offered: u64,
    peer_psn: u64,
    receives: bool,
    resumed: u32,
    gave_up: bool,
}

impl End {
    fn new(role: Role, psn: u64) -> Self {
        Self {
            recovery: Recovery::new(role, 1, POLICY),
            qp: Qp::Rts,
            psn,
            offered: 0,
            peer_psn: 0,
            receives: true,
            resumed: 0,
            gave_up: false,
        }
    }
}

/// xorshift, so that a seed is a story.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

struct World {
    now: u64,
    ends: [End; 2],
    /// To each end: in order, with the time of arrival.
    mail: [VecDeque<(u64, Parcel)>; 2],
    /// When the channel that was dialled opens.
    opens: Option<u64>,
    chance: Chance,
    next_psn: u64,
    calm: bool,
    log: Vec<(u64, usize, Action)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut ends = [End::new(Role::Leads, 1), End::new(Role::Follows, 2)];
        (ends[0].peer_psn, ends[1].peer_psn) = (2, 1);
        Self {
            now: 0,
            ends,
            mail: [VecDeque::new(), VecDeque::new()],
            opens: None,
            chance: Chance(seed | 1),
            next_psn: 3,
            calm: false,
            log: Vec::new(),
        }
    }

    fn random(&mut self) -> u64 {
        self.chance.next()
    }

    fn cut(&mut self) {
        self.mail.iter_mut().for_each(VecDeque::clear);
        for index in 0..2 {
            let random = self.random();
            self.ends[index].recovery.handle_channel_lost(self.now, random);
        }
        self.opens = None;
    }

    fn act(&mut self, index: usize) {
        while let Some(action) = self.ends[index].recovery.poll_action() {
            self.log.push((self.now, index, action));
            let refuses = !self.calm && self.chance.one_in(40);
            if refuses
                && !matches!(
                    action,
                    Action::Tell(_)
                        | Action::Resume { .. }
                        | Action::GiveUp { .. }
                        | Action::Abandon
                        | Action::Dial
                        | Action::Recreate
                        | Action::Refresh
                )
            {
                let random = self.random();
                self.ends[index].recovery.handle_refusal(self.now, random, action);
                continue;
            }
            let end = &mut self.ends[index];
            let must =
                |from: &[Qp]| assert!(from.contains(&end.qp), "{action:?} from {:?}", end.qp);
            match action {
                Action::SetError => end.qp = Qp::Error,
                Action::Abandon | Action::Refresh => {}
                Action::Reset | Action::Recreate => {
                    end.qp = Qp::Reset;
                    end.receives = false;
                }
                Action::Dial => self.opens = Some(self.now + 60),
                Action::Init => {
                    must(&[Qp::Reset]);
                    end.qp = Qp::Init;
                    end.psn = self.next_psn;
                    self.next_psn += 1;
                }
                Action::PostReceives => end.receives = true,
                Action::Tell(message) => {
                    let parcel = Parcel { message, psn: end.psn };
                    let earliest = self.mail[1 - index].back().map_or(0, |&(at, _)| at);
                    let at = (self.now + 5 + self.chance.next() % 60).max(earliest);
                    self.mail[1 - index].push_back((at, parcel));
                }
                Action::Rtr => {
                    must(&[Qp::Init]);
                    assert!(end.receives, "the peer can send before receives are posted");
                    end.qp = Qp::Rtr;
                    end.peer_psn = end.offered;
                }
                Action::Rts => {
                    must(&[Qp::Rtr]);
                    end.qp = Qp::Rts;
                }
                Action::SqeToRts => {}
                Action::Resume { .. } => {
                    must(&[Qp::Rts]);
                    end.resumed += 1;
                }
                Action::GiveUp { .. } => end.gave_up = true,
            }
        }
    }

    /// One step of time.
    fn step(&mut self) {
        self.now += 1;
        if !self.calm && self.chance.one_in(400) {
            self.cut();
        }
        if self.opens.is_some_and(|at| at <= self.now) {
            self.opens = None;
            self.ends.iter_mut().for_each(|end| end.recovery.handle_channel(self.now));
        }
        for index in 0..2 {
            let random = self.random();
            if !self.calm && self.chance.one_in(300) && self.ends[index].qp != Qp::Reset {
                // Whether something was done since it came up is chance, too.
                if random.is_multiple_of(2) {
                    self.ends[index].recovery.handle_progress(self.now);
                }
                self.ends[index].qp = Qp::Error;
                self.ends[index].recovery.handle_failure(self.now, random, Failure::QueuePair);
            }
            if self.ends[index].recovery.stage() == Stage::Draining && self.chance.one_in(20) {
                self.ends[index].recovery.handle_drained(self.now, random);
            }
            self.act(index);
            while let Some(&(at, parcel)) =
                self.mail[index].front().filter(|&&(at, _)| at <= self.now)
            {
                assert!(at <= self.now);
                self.mail[index].pop_front();
                let end = &mut self.ends[index];
                if end.recovery.handle_message(self.now, random, parcel.message) == Heard::Accepted
                {
                    end.offered = parcel.psn;
                }
                self.act(index);
            }
            // One wait that is over can be followed by one that is over at once.
            for _ in 0..2 {
                self.ends[index].recovery.handle_timeout(self.now, random);
                self.act(index);
            }
            let recovery = &self.ends[index].recovery;
            assert!(recovery.poll_timeout().is_none_or(|at| at > self.now), "{recovery:?}");
        }
    }

    fn is_up(&self) -> bool {
        self.ends.iter().all(|end| end.recovery.stage() == Stage::Up)
            && self.mail.iter().all(VecDeque::is_empty)
    }
}

/// One story: trouble for a while, then calm, after which the connection is back in bounded time, both sides with the
/// parameters of each other.
fn story(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..3_000 {
        world.step();
    }
    world.calm = true;
    let gave_up = |world: &World| world.ends.iter().any(|end| end.gave_up);
    let mut steps = 0;
    while !world.is_up() && !gave_up(&world) {
        world.step();
        steps += 1;
        assert!(
            steps < 20_000,
            "seed {seed}: it does not come back: {:#?}",
            &world.log[world.log.len().saturating_sub(30)..]
        );
    }
    if !gave_up(&world) {
        let [a, b] = &world.ends;
        assert_eq!((a.qp, b.qp), (Qp::Rts, Qp::Rts), "seed {seed}");
        assert_eq!(
            (a.peer_psn, b.peer_psn),
            (b.psn, a.psn),
            "seed {seed}: a PSN of another connection"
        );
        assert_eq!(a.recovery.generation(), b.recovery.generation(), "seed {seed}");
        assert!(a.receives && b.receives);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_connection_comes_back_from_any_trouble(seed in any::<u64>()) {
        story(seed);
    }
}

fn actions(recovery: &mut Recovery) -> Vec<Action> {
    std::iter::from_fn(|| recovery.poll_action()).collect()
}

/// S2-18, S2-19, S4-21 and P19: drained first, then RESET, INIT, RTR, RTS on the same queue pair, with refreshed
/// attributes and receives posted before the peer can send.
#[test]
fn p19_drain_comes_before_reset_and_receives_before_the_peer() {
    let mut recovery = Recovery::new(Role::Leads, 4, POLICY);
    recovery.handle_failure(1_000, 0, Failure::QueuePair);
    let failed = Action::Tell(Message::Failed { generation: 4 });
    assert_eq!(actions(&mut recovery), [failed, Action::SetError]);
    assert_eq!((recovery.stage(), recovery.poll_timeout()), (Stage::Draining, Some(1_100)));
    recovery.handle_drained(1_010, 0);
    assert_eq!(actions(&mut recovery), [Action::Reset]);
    recovery.handle_timeout(1_010, 0);
    let hello = Message::Hello { generation: 5 };
    assert_eq!(
        actions(&mut recovery),
        [Action::Refresh, Action::Init, Action::PostReceives, Action::Tell(hello)]
    );
    assert_eq!(recovery.handle_message(1_020, 0, hello), Heard::Accepted);
    let ready = Message::Ready { generation: 5 };
    assert_eq!(actions(&mut recovery), [Action::Rtr, Action::Tell(ready)]);
    assert_eq!(recovery.handle_message(1_030, 0, ready), Heard::Noted);
    let resume = Action::Resume { generation: 5, attempts: 1, took_ns: 30 };
    assert_eq!(actions(&mut recovery), [Action::Rts, resume]);
    assert_eq!(recovery.stage(), Stage::Up);
}

/// Completions that never come are given up, and what is left fails before RESET discards it.
#[test]
fn a_drain_that_does_not_end_is_abandoned() {
    let mut recovery = Recovery::new(Role::Leads, 1, POLICY);
    recovery.handle_failure(0, 0, Failure::QueuePair);
    actions(&mut recovery);
    recovery.handle_timeout(99, 0);
    assert_eq!(actions(&mut recovery), []);
    recovery.handle_timeout(100, 0);
    assert_eq!(actions(&mut recovery), [Action::Abandon, Action::Reset]);
}

/// S2-20: what belongs to an earlier connection changes nothing, and who is behind is told.
#[test]
fn s2_20_messages_of_another_generation_are_fenced() {
    let mut recovery = Recovery::new(Role::Leads, 4, POLICY);
    for message in [
        Message::Failed { generation: 3 },
        Message::Failed { generation: 5 },
        Message::Ready { generation: 4 },
        Message::Hello { generation: 4 },
        Message::Behind { generation: 9 },
    ] {
        assert_eq!(recovery.handle_message(0, 0, message), Heard::Stale, "{message:?}");
    }
    assert_eq!(actions(&mut recovery), []);
    assert_eq!(recovery.handle_message(0, 0, Message::Hello { generation: 2 }), Heard::Stale);
    assert_eq!(actions(&mut recovery), [Action::Tell(Message::Behind { generation: 4 })]);
    assert_eq!(recovery.stage(), Stage::Up);
}

/// The same while the connection is being made: only a hello of this attempt leads to RTR, only its ready to RTS.
#[test]
fn s2_20_an_attempt_is_not_joined_by_messages_of_another() {
    let mut recovery = Recovery::new(Role::Leads, 4, POLICY);
    recovery.handle_failure(0, 0, Failure::QueuePair);
    recovery.handle_drained(0, 0);
    recovery.handle_timeout(0, 0);
    actions(&mut recovery);
    assert_eq!((recovery.stage(), recovery.generation()), (Stage::Greeting, 5));
    assert_eq!(recovery.handle_message(1, 0, Message::Hello { generation: 4 }), Heard::Stale);
    assert_eq!(actions(&mut recovery), [Action::Tell(Message::Behind { generation: 5 })]);
    // A later proposal makes this one void: its queue pair starts over, for the peer's number.
    assert_eq!(recovery.handle_message(1, 0, Message::Hello { generation: 8 }), Heard::Accepted);
    assert_eq!((recovery.stage(), recovery.generation()), (Stage::Ready, 8));
    assert_eq!(actions(&mut recovery)[..3], [Action::Reset, Action::Refresh, Action::Init]);
    for generation in [5, 7, 9] {
        assert_eq!(recovery.handle_message(2, 0, Message::Ready { generation }), Heard::Stale);
    }
    assert_eq!(recovery.stage(), Stage::Ready);
}

/// Who follows gives the leading side time, and takes up its proposal; both ends in the connection that was proposed.
#[test]
fn the_side_that_follows_takes_up_a_proposal() {
    let mut recovery = Recovery::new(Role::Follows, 1, POLICY);
    recovery.handle_message(0, 0, Message::Failed { generation: 1 });
    recovery.handle_drained(10, 0);
    assert_eq!(actions(&mut recovery), [Action::SetError, Action::Reset]);
    assert_eq!(recovery.poll_timeout(), Some(10 + POLICY.step_ns));
    let heard = recovery.handle_message(20, 0, Message::Hello { generation: 6 });
    assert_eq!((heard, recovery.generation()), (Heard::Accepted, 6));
    let told = actions(&mut recovery);
    assert_eq!(told.last(), Some(&Action::Tell(Message::Ready { generation: 6 })));
    assert!(told.contains(&Action::Tell(Message::Hello { generation: 6 })));
    // When nobody proposes, it does so itself.
    let mut alone = Recovery::new(Role::Follows, 1, POLICY);
    alone.handle_failure(0, 0, Failure::QueuePair);
    alone.handle_drained(10, 0);
    alone.handle_timeout(10 + POLICY.step_ns, 0);
    assert_eq!((alone.stage(), alone.generation()), (Stage::Greeting, 2));
}

/// E-23: SQE is left for RTS, without the peer; where the device refuses that, by RESET.
#[test]
fn e23_sqe_goes_back_to_rts_by_itself() {
    let mut recovery = Recovery::new(Role::Leads, 1, POLICY);
    recovery.handle_failure(0, 0, Failure::SendQueue);
    assert_eq!(actions(&mut recovery), []);
    recovery.handle_drained(10, 0);
    let resume = Action::Resume { generation: 1, attempts: 1, took_ns: 10 };
    assert_eq!(actions(&mut recovery), [Action::SqeToRts, resume]);

    recovery.handle_failure(20, 0, Failure::SendQueue);
    recovery.handle_drained(30, 0);
    assert_eq!(recovery.poll_action(), Some(Action::SqeToRts));
    recovery.handle_refusal(30, 0, Action::SqeToRts);
    let failed = Action::Tell(Message::Failed { generation: 1 });
    assert_eq!(actions(&mut recovery), [failed, Action::SetError]);
    assert_eq!(recovery.stage(), Stage::Draining);
}

/// P24: a device that ignores the way to Error is found out by reading back, and gets another queue pair.
#[test]
fn p24_a_queue_pair_that_does_not_go_to_error_is_replaced() {
    let mut recovery = Recovery::new(Role::Leads, 1, POLICY);
    recovery.handle_failure(0, 0, Failure::QueuePair);
    actions(&mut recovery);
    recovery.handle_refusal(1, 0, Action::SetError);
    assert_eq!(actions(&mut recovery), [Action::Abandon, Action::Recreate]);
    recovery.handle_timeout(1, 0);
    assert!(actions(&mut recovery).contains(&Action::Init));
    // Nothing helps a device that makes none.
    recovery.handle_refusal(2, 0, Action::Recreate);
    assert_eq!(actions(&mut recovery), [Action::GiveUp { attempts: 0, took_ns: 2 }]);
    assert_eq!((recovery.stage(), recovery.poll_timeout()), (Stage::Down, None));
}

/// P24: a target that comes back after a while is dialled again, and one that does not is given up in bounded time.
#[test]
fn p24_attempts_are_counted_and_end() {
    let mut recovery = Recovery::new(Role::Leads, 1, POLICY);
    recovery.handle_channel_lost(0, 7);
    recovery.handle_failure(0, 7, Failure::QueuePair);
    recovery.handle_drained(0, 7);
    let mut dials = 0;
    let mut now = 0;
    while let Some(at) = recovery.poll_timeout() {
        now = at.max(now);
        recovery.handle_timeout(now, 7);
        dials += actions(&mut recovery).iter().filter(|&&action| action == Action::Dial).count();
    }
    assert_eq!(dials, usize::try_from(POLICY.attempts).unwrap());
    let most = u64::from(POLICY.attempts) * (POLICY.step_ns + POLICY.backoff.max_ns);
    assert!(now <= most, "{now}");
}

/// Brings a connection that failed up again at once, by what the peer says.
fn comes_up(recovery: &mut Recovery, now: u64) {
    recovery.handle_drained(now, 0);
    let at = recovery.poll_timeout().expect("it waits for its next attempt");
    recovery.handle_timeout(at, 0);
    let generation = recovery.generation();
    recovery.handle_message(at, 0, Message::Hello { generation });
    recovery.handle_message(at, 0, Message::Ready { generation });
    assert_eq!(recovery.stage(), Stage::Up);
    actions(recovery);
}

/// RTS alone is no recovery: what fails again before anything was done counts on, and the time to recover is that of the
/// first failure.
#[test]
fn a_connection_that_fails_again_has_not_recovered() {
    let mut recovery = Recovery::new(Role::Leads, 1, POLICY);
    assert_eq!(recovery.handle_progress(0), None, "nothing had failed");
    recovery.handle_failure(1_000, 0, Failure::QueuePair);
    comes_up(&mut recovery, 1_010);
    recovery.handle_failure(1_500, 0, Failure::QueuePair);
    recovery.handle_drained(1_500, u64::MAX);
    let waits = recovery.poll_timeout().unwrap() - 1_500;
    assert!(
        waits >= POLICY.backoff.first_ns / 2,
        "the second attempt is not made at once: {waits}"
    );
    comes_up(&mut recovery, 1_500);
    assert_eq!(recovery.handle_progress(2_000), Some(1_000));
    assert_eq!(recovery.handle_progress(2_001), None, "once");
    // From then on it is another failure.
    recovery.handle_failure(9_000, 0, Failure::QueuePair);
    recovery.handle_drained(9_000, u64::MAX);
    assert_eq!(recovery.poll_timeout(), Some(9_000), "the first attempt is made at once");
    comes_up(&mut recovery, 9_000);
    assert_eq!(recovery.handle_progress(9_030), Some(30));
}

/// However often it comes up: after the limit it is given up, unless something was done.
#[test]
fn a_recovery_ends_at_its_limit() {
    let policy = Policy { limit_ns: 5_000, ..POLICY };
    let mut recovery = Recovery::new(Role::Leads, 1, policy);
    let mut now = 1_000;
    while recovery.stage() != Stage::Down {
        recovery.handle_failure(now, 7, Failure::QueuePair);
        recovery.handle_drained(now, 7);
        if let Some(at) = recovery.poll_timeout() {
            recovery.handle_timeout(at, 7);
            if recovery.stage() == Stage::Greeting {
                let generation = recovery.generation();
                recovery.handle_message(at, 7, Message::Hello { generation });
                recovery.handle_message(at, 7, Message::Ready { generation });
            }
        }
        now += 500;
        assert!(now <= 7_000, "{recovery:?}");
    }
    let given_up = actions(&mut recovery).pop();
    assert!(matches!(given_up, Some(Action::GiveUp { took_ns: 5_000.., .. })), "{given_up:?}");
}

/// Whatever a peer says of connections that nobody can have proposed leaves the one that stands alone, and the numbers that
/// are left for the next ones.
#[test]
fn a_connection_that_nobody_proposed_changes_nothing() {
    let mut recovery = Recovery::new(Role::Follows, 1, POLICY);
    for generation in [u64::MAX, u64::MAX - 1, 1 << 40] {
        for message in [
            Message::Hello { generation },
            Message::Ready { generation },
            Message::Failed { generation },
            Message::Behind { generation },
        ] {
            let heard = recovery.handle_message(0, 0, message);
            assert!(matches!(heard, Heard::Unknown | Heard::Stale), "{message:?}: {heard:?}");
            assert_eq!((recovery.stage(), recovery.poll_action()), (Stage::Up, None));
        }
    }
    // While this side proposes one itself, a number without end does not make its next one absurd.
    recovery.handle_failure(0, 0, Failure::QueuePair);
    recovery.handle_drained(0, 0);
    recovery.handle_timeout(10_000, 0);
    assert_eq!(recovery.stage(), Stage::Greeting);
    let behind = Message::Behind { generation: u64::MAX };
    assert_eq!(recovery.handle_message(10_000, 0, behind), Heard::Unknown);
    let told = std::iter::from_fn(|| recovery.poll_action());
    assert!(
        told.into_iter().any(|action| action == Action::Tell(Message::Hello { generation: 2 }))
    );
}
