//! Transfers: what an application wants done, in one submission or many, and hears of once.

use crate::outcome::Outcome;

/// Names a transfer; a name of one that has ended finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferId(u64);

impl TransferId {
    /// As a token of submissions.
    pub const fn token(self) -> u64 {
        self.0
    }

    /// From the token of a submission that settled.
    pub const fn from_token(token: u64) -> Self {
        Self(token)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is the index")]
    const fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

/// A transfer that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The application's name for it.
    pub tag: u64,
    /// How: success when all its submissions succeeded, else the first failure of any.
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    generation: u32,
    tag: u64,
    /// Submissions that have not settled; 0 marks a free place.
    pending: u32,
    claimed: bool,
}

/// Transfers in flight, of fixed number. The status of each is claimed once.
#[derive(Debug)]
pub struct Transfers {
    places: Box<[Transfer]>,
    free: Vec<u32>,
}

impl Transfers {
    /// Room for `count` transfers at a time.
    pub fn new(count: u32) -> Self {
        let free = Transfer { generation: 0, tag: 0, pending: 0, claimed: false };
        Self { places: vec![free; count as usize].into(), free: (0..count).rev().collect() }
    }

    /// Starts a transfer of `submissions` parts. None if all places are taken, or it has no part.
    pub fn begin(&mut self, tag: u64, submissions: u32) -> Option<TransferId> {
        let index = (submissions > 0).then(|| self.free.pop()).flatten()?;
        let place = &mut self.places[index as usize];
        *place = Transfer { tag, pending: submissions, claimed: false, ..*place };
        Some(TransferId(u64::from(place.generation) << 32 | u64::from(index)))
    }

    /// How many have parts in flight.
    pub fn in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn place(&mut self, id: TransferId) -> Option<&mut Transfer> {
        let place = self.places.get_mut(id.index())?;
        (u64::from(place.generation) == id.0 >> 32 && place.pending > 0).then_some(place)
    }

    /// Counts one part as settled. The end of the transfer is told once: with its first failure, else with its last part.
    pub fn settle(&mut self, id: TransferId, outcome: Outcome) -> Option<Ended> {
        let place = self.place(id)?;
        place.pending -= 1;
        let over = place.pending == 0;
        let ended = (!place.claimed && (over || !outcome.is_success()))
            .then_some(Ended { tag: place.tag, outcome });
        place.claimed |= ended.is_some();
        if over {
            place.generation = place.generation.wrapping_add(1);
            self.free.push(u32::try_from(id.index()).unwrap_or(u32::MAX));
        }
        ended
    }

    /// Claims the status for a reason that is not one of its parts: a deadline, or what could not be submitted any more.
    /// None if it was claimed before.
    pub fn claim(&mut self, id: TransferId, outcome: Outcome) -> Option<Ended> {
        let place = self.place(id).filter(|place| !place.claimed)?;
        place.claimed = true;
        Some(Ended { tag: place.tag, outcome })
    }
}
