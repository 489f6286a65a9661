//! How a broken connection comes back: [`Recovery`] decides, this does, and the node hears of it.

use std::collections::VecDeque;
use std::time::Duration;

use pmd_verbs::connect::{Channel, Message};
use pmd_verbs::endpoint::{ConnectError, Endpoint, Reconnect, Replay, Token};
use pmd_verbs::ledger::limits::DRAIN_NS;
use pmd_verbs::ledger::recovery::{self, Action, Backoff, Heard, Policy, Recovery, Role, Stage};

use crate::limits::{RECONNECT_BACKOFF, RECONNECT_STEP};

/// What has become of a connection that comes back after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It broke: nothing is taken, and what is in flight ends.
    Broken,
    /// Everything that was in flight has ended. Post all receives again: the peer cannot send before.
    Renewed,
    /// It takes work again.
    Resumed {
        /// Submissions that ended without success since it broke.
        failed: u64,
    },
    /// The first submission since has succeeded.
    Recovered {
        /// From the failure until then, in nanoseconds.
        took_ns: u64,
    },
    /// The peer's process is gone: [`Line::redial`](super::Line::redial).
    PeerGone,
}

/// A submission that ended without success when the connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Which.
    pub token: Token,
    /// Whether it may be made again although it may have taken effect.
    pub replay: Replay,
}

/// The way back of one connection, at one end.
#[derive(Debug)]
pub(super) struct Comeback {
    recovery: Recovery,
    /// From the failure until it takes work again.
    broken: bool,
    /// How to reach the peer, of its last hello that counts.
    peer: Vec<u8>,
    /// Actions wait until the node has posted its receives.
    waits_for_node: bool,
    channel_lost: bool,
    peer_gone: bool,
    failed: u64,
    /// Messages of the peer about connections that are none.
    ignored: u64,
    changes: VecDeque<Change>,
    lost: Vec<Lost>,
}

/// It does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp {
    pub(super) attempts: u32,
    pub(super) took_ns: u64,
}

/// The number of a connection that was just made.
const FIRST: u64 = 1;

pub(super) fn nanoseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits between attempts.
pub(super) fn backoff() -> Backoff {
    let [first_ns, max_ns] = RECONNECT_BACKOFF.map(nanoseconds);
    Backoff { first_ns, max_ns }
}

impl Comeback {
    /// For a connection that was just made; `since`: in place of one that failed then.
    pub(super) fn new(role: Role, limit: Duration, since: Option<u64>) -> Self {
        let policy = Policy {
            attempts: u32::MAX,
            limit_ns: nanoseconds(limit),
            drain_ns: DRAIN_NS,
            step_ns: nanoseconds(RECONNECT_STEP),
            backoff: backoff(),
        };
        let recovery = match since {
            None => Recovery::new(role, FIRST, policy),
            Some(since) => Recovery::replacing(role, FIRST, policy, since),
        };
        let resumed = since.map(|_| Change::Resumed { failed: 0 });
        Self {
            recovery,
            broken: false,
            peer: Vec::new(),
            waits_for_node: false,
            channel_lost: false,
            peer_gone: false,
            failed: 0,
            ignored: 0,
            changes: resumed.into_iter().collect(),
            lost: Vec::new(),
        }
    }

    pub(super) fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    pub(super) fn lost(&mut self) -> std::vec::Drain<'_, Lost> {
        self.lost.drain(..)
    }

    pub(super) fn lose(&mut self, token: Token, replay: Replay) {
        self.failed += 1;
        self.lost.push(Lost { token, replay });
    }

    pub(super) fn is_up(&self) -> bool {
        !self.broken
    }

    /// Whether the queue pair takes receives, and nothing else. A node that has not heard of this yet means the queue before.
    pub(super) fn takes_receives(&self) -> bool {
        matches!(self.recovery.stage(), Stage::Greeting | Stage::Ready)
            && !self.changes.contains(&Change::Renewed)
    }

    /// When it failed, if nothing was done since.
    pub(super) fn failed_since(&self) -> Option<u64> {
        self.recovery.failed_since()
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        if self.peer_gone { None } else { self.recovery.poll_timeout() }
    }

    /// Something was done over the connection.
    pub(super) fn progress(&mut self, now: u64) {
        if let Some(took_ns) = self.recovery.handle_progress(now) {
            self.changes.push_back(Change::Recovered { took_ns });
        }
    }

    /// This end noticed a failure.
    pub(super) fn fail(&mut self, now: u64, failure: recovery::Failure) {
        self.with(|recovery, random| recovery.handle_failure(now, random, failure));
    }

    /// The control channel is gone, and with it the peer. Whether that is news.
    pub(super) fn lose_channel(&mut self, now: u64) -> bool {
        if std::mem::replace(&mut self.channel_lost, true) {
            return false;
        }
        self.with(|recovery, random| {
            recovery.handle_channel_lost(now, random);
            recovery.handle_failure(now, random, recovery::Failure::QueuePair);
        });
        true
    }

    /// The peer speaks of the connection. What speaks of one that nobody can have proposed, or for somebody else, changes
    /// nothing.
    pub(super) fn hear(
        &mut self,
        now: u64,
        message: recovery::Message,
        hello: Vec<u8>,
        endpoint: &mut dyn Endpoint,
    ) {
        let is_hello = matches!(message, recovery::Message::Hello { .. });
        let fits =
            !is_hello || endpoint.reconnect().is_none_or(|steps| steps.is_of_the_peer(&hello));
        if !fits {
            self.ignore(message);
            return;
        }
        let heard = self.with(|recovery, random| recovery.handle_message(now, random, message));
        tracing::debug!("{message:?} of the peer: {heard:?}");
        match heard {
            Heard::Accepted => self.peer = hello,
            Heard::Unknown => self.ignore(message),
            Heard::Noted | Heard::Stale => {}
        }
    }

    fn ignore(&mut self, message: recovery::Message) {
        self.ignored += 1;
        if self.ignored.is_power_of_two() {
            let count = self.ignored;
            tracing::warn!(
                "ignored {message:?}, which is of no connection of this peer; {count} so far"
            );
        }
    }

    /// How much the peer has said of connections that are none.
    pub(super) fn ignored(&self) -> u64 {
        self.ignored
    }

    fn with<R>(&mut self, input: impl FnOnce(&mut Recovery, u64) -> R) -> R {
        let result = input(&mut self.recovery, pmd_mem::os_entropy());
        if !self.broken && self.recovery.stage() != Stage::Up {
            self.broken = true;
            self.failed = 0;
            self.changes.push_back(Change::Broken);
        }
        result
    }

    /// Does what is to be done. Returns whether the connection takes work again.
    pub(super) fn run(
        &mut self,
        now: u64,
        endpoint: &mut dyn Endpoint,
        channel: &mut Channel,
    ) -> Result<bool, GivenUp> {
        if self.peer_gone {
            return Ok(false);
        }
        if self.waits_for_node && self.changes.is_empty() {
            self.waits_for_node = false;
        }
        let mut resumed = self.perform_all(now, endpoint, channel)?;
        if self.recovery.stage() == Stage::Draining
            && endpoint.reconnect().is_none_or(|steps| steps.is_drained())
        {
            self.with(|recovery, random| recovery.handle_drained(now, random));
            resumed |= self.perform_all(now, endpoint, channel)?;
        }
        if self.recovery.poll_timeout().is_some_and(|due| due <= now) && !self.waits_for_node {
            self.with(|recovery, random| recovery.handle_timeout(now, random));
            resumed |= self.perform_all(now, endpoint, channel)?;
        }
        Ok(resumed)
    }

    fn perform_all(
        &mut self,
        now: u64,
        endpoint: &mut dyn Endpoint,
        channel: &mut Channel,
    ) -> Result<bool, GivenUp> {
        let mut resumed = false;
        while !self.waits_for_node
            && !self.peer_gone
            && let Some(action) = self.recovery.poll_action()
        {
            match action {
                Action::PostReceives => {
                    self.changes.push_back(Change::Renewed);
                    self.waits_for_node = true;
                }
                Action::Dial => {
                    self.changes.push_back(Change::PeerGone);
                    self.peer_gone = true;
                }
                Action::Tell(message) => {
                    let hello = match (message, endpoint.reconnect()) {
                        (recovery::Message::Hello { .. }, Some(steps)) => steps.hello(),
                        _ => Vec::new(),
                    };
                    // A channel that is gone says so when it is polled.
                    drop(channel.send(&Message::Recovery(message, hello)));
                }
                Action::Resume { .. } => {
                    self.broken = false;
                    let failed = self.failed;
                    self.changes.push_back(Change::Resumed { failed });
                    resumed = true;
                }
                Action::GiveUp { attempts, took_ns } => return Err(GivenUp { attempts, took_ns }),
                step => {
                    let Some(steps) = endpoint.reconnect() else {
                        let took_ns = now.saturating_sub(self.failed_since().unwrap_or(now));
                        return Err(GivenUp { attempts: 0, took_ns });
                    };
                    if let Err(error) = self.take(step, steps) {
                        tracing::debug!("{step:?} of a connection that comes back: {error}");
                        self.with(|recovery, random| recovery.handle_refusal(now, random, step));
                    }
                }
            }
        }
        Ok(resumed)
    }

    /// A step of the device.
    fn take(&self, step: Action, steps: &mut dyn Reconnect) -> Result<(), ConnectError> {
        match step {
            Action::SetError => steps.set_error(),
            Action::Abandon => {
                steps.abandon();
                Ok(())
            }
            Action::Reset => steps.reset(),
            Action::Recreate => steps.recreate(),
            Action::Refresh => steps.refresh(),
            Action::Init => steps.init(),
            Action::Rtr => steps.rtr(&self.peer),
            Action::Rts => steps.rts(&self.peer),
            Action::SqeToRts => steps.sqe_to_rts(),
            Action::PostReceives
            | Action::Dial
            | Action::Tell(_)
            | Action::Resume { .. }
            | Action::GiveUp { .. } => Ok(()),
        }
    }
}
