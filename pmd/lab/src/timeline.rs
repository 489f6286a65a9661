//! What the scenario itself does, and when: in order of time, then of entry.

use std::collections::BTreeMap;

use pmd_ledger::recovery::Message;
use pmd_roce::ids::Instant;

use crate::connection::Introduction;

/// Something that the scenario does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// A work begins, or goes on with its next request.
    Work { work: usize, from: usize },
    /// A fault begins.
    Begin(usize),
    /// A fault is over.
    End(usize),
    /// A message of the control channel arrives at an end.
    Deliver { conn: usize, end: usize, message: Message, from: Introduction },
    /// A buffer of a shared receive queue is posted again.
    Refill { pool: usize, slot: u32 },
    /// It may be over.
    Curtain,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    actions: BTreeMap<(Instant, u64), Action>,
    entered: u64,
    /// Of these, the ones that the scenario itself has written down.
    planned: usize,
}

impl Timeline {
    pub(crate) fn enter(&mut self, at: Instant, action: Action) {
        self.planned += usize::from(action.is_planned());
        self.actions.insert((at, self.entered), action);
        self.entered += 1;
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.actions.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn pop(&mut self) -> Option<Action> {
        let (_, action) = self.actions.pop_first()?;
        self.planned -= usize::from(action.is_planned());
        Some(action)
    }

    /// Whether something that the scenario has written down is still to come.
    pub(crate) fn has_plans(&self) -> bool {
        self.planned > 0
    }
}

impl Action {
    const fn is_planned(self) -> bool {
        matches!(self, Self::Work { .. } | Self::Begin(_) | Self::End(_))
    }
}
