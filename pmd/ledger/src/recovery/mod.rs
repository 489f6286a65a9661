//! How a failed connection comes back: a state machine without a device.
//!
//! ```text
//!          failure            drained          backoff over        peer's hello         peer is ready
//!   UP  ------------> DRAINING ------> WAITING ------------> GREETING ----------> READY ------------> UP
//!       SetError, tell        Reset      |  Dial, if the     Refresh, Init,       Rtr, tell       Rts, Resume
//!                                        |  channel is gone  PostReceives, tell
//!                                        +-- so many attempts failed --> DOWN: GiveUp
//! ```
//!
//! Inputs are `handle_*`, each with the time; outputs are taken by [`Recovery::poll_action`], and a device that refuses one
//! is reported by [`Recovery::handle_refusal`]. Every wait ends: [`Recovery::poll_timeout`] says when.
//!
//! **Generations.** Every attempt to connect has a number higher than any before. A side that hears a higher one than its
//! own takes it over; a lower one is answered with [`Message::Behind`]. Both sides go to RTR only with hellos of one
//! generation, so that a PSN of an earlier connection is never used.
//!
//! **Ties.** When both sides fail together the one that *leads* proposes at once, and the other waits for it for a while
//! before it proposes by itself. Proposals that cross all the same are settled by their generations.
//!
//! **Up is not yet well.** A path that is still dead lets both sides reach RTS, where the next request fails again. So a
//! failure before anything was done ([`Recovery::handle_progress`]) goes on with the attempts and the time of the one before.

mod backoff;
mod message;

use std::collections::VecDeque;

use crate::limits::GENERATIONS_AHEAD;

pub use backoff::Backoff;
pub use message::{Message, leads};

/// Bounds of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Attempts before it gives up.
    pub attempts: u32,
    /// How long it tries from the failure on, until something is done again.
    pub limit_ns: u64,
    /// How long flushed completions are waited for.
    pub drain_ns: u64,
    /// How long each answer of the peer is waited for, and the channel to it.
    pub step_ns: u64,
    /// Waits between attempts.
    pub backoff: Backoff,
}

impl Default for Policy {
    /// About half a minute in all.
    fn default() -> Self {
        Self {
            attempts: 16,
            limit_ns: u64::MAX,
            drain_ns: 1_000_000_000,
            step_ns: 1_000_000_000,
            backoff: Backoff { first_ns: 10_000_000, max_ns: 2_000_000_000 },
        }
    }
}

/// Who proposes when both sides want to reconnect; see [`leads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Proposes at once, and opens the control channel again where it is gone.
    Leads,
    /// Waits for a proposal, and for the channel.
    Follows,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The queue pair is in Error, or must go there.
    QueuePair,
    /// Only its send queue failed (SQE, UC and UD): it goes back to RTS by itself.
    SendQueue,
}

/// What the driver must do next, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Close the account, put the queue pair into Error, and read the state back. A refusal is one that shows no Error.
    SetError,
    /// Fail what is left in the account: the wait for completions is over.
    Abandon,
    /// To RESET. What was posted is gone.
    Reset,
    /// Destroy the queue pair and create another one: it refuses to go where it must.
    Recreate,
    /// Open the control channel again, and say so by [`Recovery::handle_channel`].
    Dial,
    /// Look up again what may have changed: GID index, MTU, limits of READs; choose a new PSN.
    Refresh,
    /// To INIT.
    Init,
    /// Post the receives again, before the peer can send.
    PostReceives,
    /// Send this.
    Tell(Message),
    /// To RTR, with the parameters of the last hello that was [accepted](Heard::Accepted).
    Rtr,
    /// To RTS.
    Rts,
    /// From SQE to RTS.
    SqeToRts,
    /// Open the account again, and submit what may be repeated.
    Resume {
        /// Number of the connection.
        generation: u64,
        /// Attempts that it took.
        attempts: u32,
        /// From the failure until now.
        took_ns: u64,
    },
    /// It does not come back: tell the application.
    GiveUp {
        /// Attempts that failed.
        attempts: u32,
        /// From the failure until now.
        took_ns: u64,
    },
}

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A hello whose parameters now count.
    Accepted,
    /// Something of this connection.
    Noted,
    /// Something of a connection that is past: it changes nothing.
    Stale,
    /// Something of a connection that nobody can have proposed: it changes nothing.
    Unknown,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Connected.
    Up,
    /// Failed; completions of what was in flight come in.
    Draining,
    /// In RESET, until the next attempt.
    Waiting,
    /// The control channel is being opened.
    Dialing,
    /// In INIT; the peer knows how to reach us, and we wait to hear the same.
    Greeting,
    /// In RTR, until the peer is, too.
    Ready,
    /// Given up, or closed.
    Down,
}

/// The recovery of one connection, as one of its two sides sees it.
#[derive(Clone, Debug)]
pub struct Recovery {
    policy: Policy,
    role: Role,
    stage: Stage,
    /// When the current stage ends by itself.
    until_ns: u64,
    /// The connection that stands, or is being made.
    generation: u64,
    /// The least number of the next attempt of our own.
    next: u64,
    /// A proposal of the peer that came before we were ready for it.
    offered: Option<u64>,
    attempt: u32,
    failed_ns: u64,
    /// Something was done since it came up.
    proven: bool,
    failure: Failure,
    channel: bool,
    actions: VecDeque<Action>,
}

impl Recovery {
    /// A connection that stands, with its control channel open. Both sides begin with the same generation.
    pub fn new(role: Role, generation: u64, policy: Policy) -> Self {
        Self {
            policy,
            role,
            stage: Stage::Up,
            until_ns: 0,
            generation,
            next: generation.saturating_add(1),
            offered: None,
            attempt: 0,
            failed_ns: 0,
            proven: true,
            failure: Failure::QueuePair,
            channel: true,
            actions: VecDeque::with_capacity(8),
        }
    }

    /// A connection made anew in place of one that failed at `failed_ns`: it has recovered once something is done over it.
    pub fn replacing(role: Role, generation: u64, policy: Policy, failed_ns: u64) -> Self {
        Self { failed_ns, proven: false, ..Self::new(role, generation, policy) }
    }

    /// Where it stands.
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Number of the connection that stands, or is being made.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// When it failed, if nothing was done since.
    pub const fn failed_since(&self) -> Option<u64> {
        if self.proven { None } else { Some(self.failed_ns) }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Recovery::handle_timeout`] has something to do; none while up or down.
    pub const fn poll_timeout(&self) -> Option<u64> {
        match self.stage {
            Stage::Up | Stage::Down => None,
            _ => Some(self.until_ns),
        }
    }

    /// This side failed. While it is being made, that ends the attempt. `random` is any 64 bits.
    pub fn handle_failure(&mut self, now_ns: u64, random: u64, failure: Failure) {
        match self.stage {
            Stage::Up => {
                if failure == Failure::QueuePair {
                    self.tell(Message::Failed { generation: self.generation });
                }
                if self.proven {
                    self.begin(now_ns);
                } else {
                    self.attempt += 1;
                }
                self.drain(now_ns, failure);
            }
            Stage::Greeting | Stage::Ready => self.fail_attempt(now_ns, random, true),
            Stage::Draining if failure == Failure::QueuePair => self.escalate(),
            Stage::Draining | Stage::Waiting | Stage::Dialing | Stage::Down => {}
        }
    }

    /// Another failure than any before: attempts and time count from here.
    fn begin(&mut self, now_ns: u64) {
        self.failed_ns = now_ns;
        self.attempt = 0;
        self.proven = false;
    }

    fn drain(&mut self, now_ns: u64, failure: Failure) {
        self.failure = failure;
        if failure == Failure::QueuePair {
            self.actions.push_back(Action::SetError);
        }
        self.enter(Stage::Draining, now_ns.saturating_add(self.policy.drain_ns));
    }

    /// What began as a failure of the send queue takes the whole queue pair.
    fn escalate(&mut self) {
        if self.failure == Failure::SendQueue {
            self.failure = Failure::QueuePair;
            self.tell(Message::Failed { generation: self.generation });
            self.actions.push_back(Action::SetError);
        }
    }

    fn enter(&mut self, stage: Stage, until_ns: u64) {
        self.stage = stage;
        self.until_ns = until_ns;
    }

    fn tell(&mut self, message: Message) {
        if self.channel {
            self.actions.push_back(Action::Tell(message));
        }
    }

    /// Nothing is in flight any more: the account is empty, and where there is a shared receive queue, the last event
    /// has come or was given up.
    pub fn handle_drained(&mut self, now_ns: u64, random: u64) {
        if self.stage != Stage::Draining {
            return;
        }
        if self.failure == Failure::SendQueue {
            self.actions.push_back(Action::SqeToRts);
            self.resume(now_ns);
            return;
        }
        self.actions.push_back(Action::Reset);
        self.wait(now_ns, random);
    }

    /// Something was done over the connection. How long after the failure that was, if it is the first since.
    pub fn handle_progress(&mut self, now_ns: u64) -> Option<u64> {
        if self.proven || self.stage != Stage::Up {
            return None;
        }
        self.proven = true;
        Some(now_ns.saturating_sub(self.failed_ns))
    }

    const fn is_spent(&self, now_ns: u64) -> bool {
        self.attempt >= self.policy.attempts
            || now_ns.saturating_sub(self.failed_ns) >= self.policy.limit_ns
    }

    /// In RESET: takes up what the peer proposed, or waits for the next attempt, if there is to be one.
    fn wait(&mut self, now_ns: u64, random: u64) {
        if self.is_spent(now_ns) {
            self.give_up(now_ns);
            return;
        }
        if let Some(generation) = self.offered.take().filter(|&offer| offer > self.generation) {
            self.greet(now_ns, generation);
            self.answer(now_ns);
            return;
        }
        let backoff = self.policy.backoff.delay_ns(self.attempt, random);
        // Who follows leaves the leading side the time for a whole attempt.
        let patience = match self.role {
            Role::Leads => 0,
            Role::Follows => self.policy.step_ns,
        };
        let until = now_ns.saturating_add(backoff).saturating_add(patience);
        let limit = self.failed_ns.saturating_add(self.policy.limit_ns);
        self.enter(Stage::Waiting, until.min(limit));
    }

    /// To INIT, and tells the peer.
    fn greet(&mut self, now_ns: u64, generation: u64) {
        self.generation = generation;
        self.next = self.next.max(generation.saturating_add(1));
        self.actions.extend([Action::Refresh, Action::Init, Action::PostReceives]);
        self.tell(Message::Hello { generation });
        self.enter(Stage::Greeting, now_ns.saturating_add(self.policy.step_ns));
    }

    /// To RTR: both hellos of this generation are there.
    fn answer(&mut self, now_ns: u64) {
        self.actions.push_back(Action::Rtr);
        self.tell(Message::Ready { generation: self.generation });
        self.enter(Stage::Ready, now_ns.saturating_add(self.policy.step_ns));
    }

    fn resume(&mut self, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(self.failed_ns);
        let (generation, attempts) = (self.generation, self.attempt + 1);
        self.actions.push_back(Action::Resume { generation, attempts, took_ns });
        self.enter(Stage::Up, 0);
    }

    /// Ends an attempt, and gives up after the last one.
    fn fail_attempt(&mut self, now_ns: u64, random: u64, tell: bool) {
        let began = matches!(self.stage, Stage::Greeting | Stage::Ready);
        // What an attempt still wanted to do is void.
        self.actions.clear();
        if began && tell {
            self.tell(Message::Failed { generation: self.generation });
        }
        self.attempt += 1;
        if began {
            self.actions.push_back(Action::Reset);
        }
        self.wait(now_ns, random);
    }

    fn give_up(&mut self, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(self.failed_ns);
        self.actions.push_back(Action::GiveUp { attempts: self.attempt, took_ns });
        self.enter(Stage::Down, 0);
    }

    /// The stage may be over by time.
    pub fn handle_timeout(&mut self, now_ns: u64, random: u64) {
        if self.poll_timeout().is_none_or(|until_ns| now_ns < until_ns) {
            return;
        }
        match self.stage {
            Stage::Up | Stage::Down => {}
            Stage::Draining => {
                self.actions.push_back(Action::Abandon);
                self.handle_drained(now_ns, random);
            }
            Stage::Waiting if self.is_spent(now_ns) => self.give_up(now_ns),
            Stage::Waiting if self.channel => self.greet(now_ns, self.next),
            Stage::Waiting if self.role == Role::Leads => {
                self.actions.push_back(Action::Dial);
                self.enter(Stage::Dialing, now_ns.saturating_add(self.policy.step_ns));
            }
            Stage::Waiting | Stage::Dialing | Stage::Greeting | Stage::Ready => {
                self.fail_attempt(now_ns, random, true);
            }
        }
    }

    /// The device refused an action.
    pub fn handle_refusal(&mut self, now_ns: u64, random: u64, refused: Action) {
        match refused {
            // It does not go to Error or RESET: only another queue pair helps, and what was in flight is lost with this one.
            Action::SetError => {
                self.actions.extend([Action::Abandon, Action::Recreate]);
                self.wait(now_ns, random);
            }
            Action::Reset => self.actions.push_front(Action::Recreate),
            Action::SqeToRts => {
                self.actions.clear();
                self.tell(Message::Failed { generation: self.generation });
                self.drain(now_ns, Failure::QueuePair);
            }
            Action::Recreate => {
                self.actions.clear();
                self.give_up(now_ns);
            }
            Action::Rts => {
                // The peer may be up already: it must hear of this.
                self.actions.clear();
                self.enter(Stage::Ready, now_ns);
                self.fail_attempt(now_ns, random, true);
            }
            _ => self.fail_attempt(now_ns, random, true),
        }
    }

    /// The control channel is gone, and so perhaps the peer. A connection that stands does not need it.
    pub fn handle_channel_lost(&mut self, now_ns: u64, random: u64) {
        self.channel = false;
        self.offered = None;
        if matches!(self.stage, Stage::Greeting | Stage::Ready) {
            self.fail_attempt(now_ns, random, false);
        }
    }

    /// The control channel is open again.
    pub fn handle_channel(&mut self, now_ns: u64) {
        self.channel = true;
        if self.stage == Stage::Dialing {
            self.greet(now_ns, self.next);
        }
    }

    /// Takes a message of the peer. Keep the parameters of a hello only if it was [accepted](Heard::Accepted).
    pub fn handle_message(&mut self, now_ns: u64, random: u64, message: Message) -> Heard {
        match message {
            Message::Hello { generation } => self.handle_hello(now_ns, random, generation),
            Message::Ready { generation } => {
                if self.stage != Stage::Ready || generation != self.generation {
                    return Heard::Stale;
                }
                self.actions.push_back(Action::Rts);
                self.resume(now_ns);
                Heard::Noted
            }
            Message::Failed { generation } => {
                if generation != self.generation {
                    return Heard::Stale;
                }
                match self.stage {
                    // The peer counts its own attempts.
                    Stage::Up => {
                        self.begin(now_ns);
                        self.drain(now_ns, Failure::QueuePair);
                    }
                    Stage::Greeting | Stage::Ready => self.fail_attempt(now_ns, random, false),
                    Stage::Draining | Stage::Waiting | Stage::Dialing | Stage::Down => {}
                }
                Heard::Noted
            }
            Message::Behind { generation } => {
                if self.stage != Stage::Greeting || generation < self.generation {
                    return Heard::Stale;
                }
                if !self.can_be_proposed(generation) {
                    return Heard::Unknown;
                }
                self.next = self.next.max(generation.saturating_add(1));
                self.fail_attempt(now_ns, random, false);
                Heard::Noted
            }
        }
    }

    /// Whether a peer that counts as this side does can have come to this number. A larger one would leave no number for the
    /// next attempt in the end.
    const fn can_be_proposed(&self, generation: u64) -> bool {
        generation <= self.next.saturating_add(GENERATIONS_AHEAD)
    }

    fn handle_hello(&mut self, now_ns: u64, random: u64, generation: u64) -> Heard {
        let matches = self.stage == Stage::Greeting && generation == self.generation;
        if matches {
            self.answer(now_ns);
            return Heard::Accepted;
        }
        if generation <= self.generation {
            if generation < self.generation && self.stage != Stage::Down {
                self.tell(Message::Behind { generation: self.generation });
            }
            return Heard::Stale;
        }
        if !self.can_be_proposed(generation) {
            return Heard::Unknown;
        }
        match self.stage {
            Stage::Down => return Heard::Stale,
            // The peer has noticed what we have not.
            Stage::Up => {
                self.offered = Some(generation);
                self.begin(now_ns);
                self.drain(now_ns, Failure::QueuePair);
            }
            Stage::Draining => {
                self.offered = Some(generation);
                self.escalate();
            }
            Stage::Waiting | Stage::Dialing => {
                self.offered = Some(generation);
                self.wait(now_ns, random);
            }
            // A later proposal than ours: ours is void.
            Stage::Greeting | Stage::Ready => {
                self.actions.clear();
                self.actions.push_back(Action::Reset);
                self.offered = Some(generation);
                self.wait(now_ns, random);
            }
        }
        Heard::Accepted
    }

    /// The application closes the connection: nothing comes back any more.
    pub fn close(&mut self) {
        self.actions.clear();
        self.enter(Stage::Down, 0);
    }
}
