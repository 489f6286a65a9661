//! All accounts of an lcore.

use crate::account::{Account, Depths, Flushes};
use crate::event::{Event, Identity, Switches};
use crate::limits::MAX_ACCOUNTS;
use crate::outcome::{Cause, Settled, Status};
use crate::submission::Ticket;

/// Names an account of a ledger. A name outlives its account without harm: it then finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    index: usize,
    generation: u32,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Events are switched off, or the monitor was stopped: nobody looked.
    Ignored,
    /// Told, and nothing failed: log it.
    Noted,
    /// Accounts were closed.
    Failed {
        /// How many.
        accounts: u32,
        /// Records that ended at once; the others end with their completions, or when the wait for these is over.
        settled: u64,
    },
}

/// No account was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// Every place is taken.
    #[error("all {0} accounts of this lcore are open: close a connection first")]
    Full(usize),
    /// There is an account for this queue pair.
    #[error("queue pair {qpn:#x} of context {context} has an account: close it first")]
    Twice {
        /// Its context.
        context: u32,
        /// Its number.
        qpn: u32,
    },
}

#[derive(Debug)]
struct Slot {
    account: Option<Account>,
    generation: u32,
    /// Where tickets go on with the next account.
    next: [u64; 2],
}

/// The accounts of one lcore, and what concerns several of them.
#[derive(Debug)]
pub struct Ledger {
    slots: Box<[Slot]>,
    switches: Switches,
    monitored: bool,
}

impl Ledger {
    /// Room for `accounts` queue pairs, at most [`MAX_ACCOUNTS`].
    pub fn new(accounts: usize, switches: Switches) -> Self {
        let slot = |index: usize| Slot {
            account: None,
            generation: 0,
            next: [Ticket::first(2 * index), Ticket::first(2 * index + 1)],
        };
        let slots = (0..accounts.min(MAX_ACCOUNTS)).map(slot).collect();
        Self { slots, switches, monitored: true }
    }

    /// Opens an account; see [`Account::new`].
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn open(
        &mut self,
        identity: Identity,
        depths: Depths,
        limit_ns: Option<u64>,
    ) -> Result<Member, NoRoom> {
        let Identity { context, qpn, .. } = identity;
        let same = |account: &Account| {
            (account.identity().context, account.identity().qpn) == (context, qpn)
        };
        if self.accounts().any(|(_, account)| same(account)) {
            return Err(NoRoom::Twice { context, qpn });
        }
        let full = NoRoom::Full(self.slots.len());
        let index = self.slots.iter().position(|slot| slot.account.is_none()).ok_or(full)?;
        let slot = &mut self.slots[index];
        slot.account = Some(Account::continuing(slot.next, identity, depths, limit_ns));
        Ok(Member { index, generation: slot.generation })
    }

    /// An account.
    pub fn account(&self, member: Member) -> Option<&Account> {
        let slot = self.slots.get(member.index)?;
        slot.account.as_ref().filter(|_| slot.generation == member.generation)
    }

    /// An account, to submit to it.
    #[inline]
    pub fn account_mut(&mut self, member: Member) -> Option<&mut Account> {
        let slot = self.slots.get_mut(member.index)?;
        slot.account.as_mut().filter(|_| slot.generation == member.generation)
    }

    /// Every account that exists.
    pub fn accounts(&self) -> impl Iterator<Item = (Member, &Account)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let member = Member { index, generation: slot.generation };
            slot.account.as_ref().map(|account| (member, account))
        })
    }

    /// Takes a completion from any completion queue: the ticket knows where it belongs. Whether it settled anything.
    #[inline]
    pub fn settle(&mut self, ticket: Ticket, status: Status, sink: impl FnMut(Settled)) -> bool {
        let slot = self.slots.get_mut(ticket.queue() / 2);
        let account = slot.and_then(|slot| slot.account.as_mut());
        account.is_some_and(|account| account.settle(ticket, status, sink))
    }

    /// Takes an event, and closes every account that it concerns. What ends at once goes to `sink`.
    pub fn handle_event(
        &mut self,
        now_ns: u64,
        event: &Event,
        mut sink: impl FnMut(Member, Settled),
    ) -> Effect {
        if !self.switches.events || !self.monitored {
            return Effect::Ignored;
        }
        let (mut accounts, mut settled) = (0, 0);
        let switches = self.switches;
        self.each(|member, account| {
            let failed = account.handle_event(now_ns, event, switches, |end| sink(member, end));
            accounts += u32::from(failed.is_some());
            settled += failed.unwrap_or(0);
        });
        match accounts {
            0 => Effect::Noted,
            accounts => Effect::Failed { accounts, settled },
        }
    }

    /// Ends every wait that is over; see [`Account::handle_timeout`].
    pub fn handle_timeout(&mut self, now_ns: u64, mut sink: impl FnMut(Member, Settled)) -> u64 {
        let mut settled = 0;
        self.each(|member, account| {
            settled += account.handle_timeout(now_ns, |end| sink(member, end));
        });
        settled
    }

    fn each(&mut self, mut visit: impl FnMut(Member, &mut Account)) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let member = Member { index, generation: slot.generation };
            slot.account.iter_mut().for_each(|account| visit(member, account));
        }
    }

    /// When [`Ledger::handle_timeout`] has something to do; see [`Account::poll_timeout`].
    pub fn poll_timeout(&self) -> Option<u64> {
        self.accounts().filter_map(|(_, account)| account.poll_timeout()).min()
    }

    /// Ends the delivery of events: the first step of a teardown, so that nothing runs on what is being taken down.
    pub fn stop_monitor(&mut self) {
        self.monitored = false;
    }

    /// Ends an account. What is in flight fails as closed. Late completions of it find nothing, also when its place is
    /// taken by another one.
    pub fn retire(&mut self, now_ns: u64, member: Member, sink: impl FnMut(Settled)) -> bool {
        let Some(account) = self.account_mut(member) else { return false };
        account.fail(now_ns, Cause::Closed, Flushes::Never, sink);
        account.check();
        let next = account.next_tickets();
        let slot = &mut self.slots[member.index];
        *slot = Slot { account: None, generation: slot.generation.wrapping_add(1), next };
        true
    }
}
