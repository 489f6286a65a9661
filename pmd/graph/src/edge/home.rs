//! The end of a node's connections that is here, as evidence and reports need it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pmd_lcore::StatsReader;
use pmd_observe::Snapshot;
use pmd_observe::why::End;
use pmd_verbs::connect::{Channel, Inquiry, Message};
use pmd_verbs::gid::GidPair;

use crate::limits::{GID_PAIRS_MAX, PARTINGS_MAX, PLACES_MAX};

/// What all connections of a node share: a name, an lcore, and what their peers have told. A cheap handle.
#[derive(Clone)]
pub struct Home {
    name: Rc<str>,
    lcore: StatsReader,
    told: Rc<RefCell<Told>>,
    /// How long requests may be under way without one that ends.
    stall: Option<Duration>,
}

/// What peers have told.
#[derive(Default)]
struct Told {
    /// Counters before and after, by place: the lcores that peers run on count for all their connections together.
    places: BTreeMap<String, [Snapshot; 2]>,
    /// Of places beyond the limit, all together.
    others: Option<[Snapshot; 2]>,
    /// Connections that have ended, and wait for their peers' last words.
    parting: Vec<(Channel, Inquiry)>,
    partings: usize,
    /// The addresses of connections, each pair once.
    gids: Vec<GidPair>,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Home {
    /// The home of `name`'s connections, on the lcore that `lcore` reads.
    pub fn new(name: &str, lcore: StatsReader) -> Self {
        Self { name: name.into(), lcore, told: Rc::default(), stall: None }
    }

    /// The same, whose connections are given up once requests were under way for so long without one that ends.
    #[must_use]
    pub fn impatient(self, stall: Option<Duration>) -> Self {
        Self { stall, ..self }
    }

    /// How long requests may be under way without one that ends.
    pub(super) fn stall(&self) -> Option<Duration> {
        self.stall
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long the lcore did not poll lately, and how long ago that ended, at `now`.
    pub(super) fn gap(&self, now: u64) -> (u64, u64) {
        let gap = self.lcore.read().recent_gap;
        (gap.ns, now.saturating_sub(gap.ended))
    }

    /// Keeps what a peer has told of its counters.
    pub(super) fn hear(&self, end: &End) {
        let mut told = self.told.borrow_mut();
        if let Some(known) = told.places.get_mut(&end.place) {
            known[1] = end.after.clone();
        } else {
            if told.places.len() == PLACES_MAX {
                told.give_up_a_place();
            }
            told.places.insert(end.place.clone(), [end.before.clone(), end.after.clone()]);
        }
    }

    /// Keeps the addresses of a connection.
    pub(super) fn meets(&self, gids: Option<GidPair>) {
        let mut told = self.told.borrow_mut();
        if let Some(pair) = gids
            && told.gids.len() < GID_PAIRS_MAX
            && !told.gids.contains(&pair)
        {
            told.gids.push(pair);
        }
    }

    /// The addresses of its connections, each pair once, in the order in which they were met.
    pub(crate) fn gids(&self) -> Vec<GidPair> {
        self.told.borrow().gids.clone()
    }

    /// Waits for a peer's last words, for as long as `inquiry` does, where not too many were waited for already: they would
    /// only tell the same.
    pub(super) fn part(&self, channel: Channel, inquiry: Inquiry) {
        self.told.borrow_mut().parting.push((channel, inquiry));
    }

    /// Whether a connection that ends asks its peer for its last words.
    pub(super) fn wants_last_words(&self) -> bool {
        let mut told = self.told.borrow_mut();
        told.partings += 1;
        told.partings <= PARTINGS_MAX
    }

    /// Looks for last words. Whether some are still waited for.
    pub(crate) fn is_parting(&self, now: u64) -> bool {
        let mut parting = std::mem::take(&mut self.told.borrow_mut().parting);
        parting.retain_mut(|(channel, inquiry)| {
            while !inquiry.is_over(now) {
                match channel.poll() {
                    Some(Message::Lost(_)) => return false,
                    Some(message) => inquiry.hear(&message, now),
                    None => return true,
                }
            }
            if let Some(end) = inquiry.told() {
                self.hear(end);
            }
            false
        });
        let waits = !parting.is_empty();
        self.told.borrow_mut().parting = parting;
        waits
    }

    /// When the last words are waited for no longer.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.told.borrow().parting.iter().map(|(_, inquiry)| inquiry.deadline()).min()
    }

    /// The counters of all peers that have told them, before and after.
    pub(crate) fn remote(&self) -> Option<[Snapshot; 2]> {
        let told = self.told.borrow();
        let mut sums = told.others.clone();
        for place in told.places.values() {
            add(sums.get_or_insert_default(), place);
        }
        sums
    }
}

impl Told {
    /// Makes room for another place. One that comes again is another one: its counters go on from a new baseline.
    fn give_up_a_place(&mut self) {
        if let Some((_, place)) = self.places.pop_first() {
            add(self.others.get_or_insert_default(), &place);
        }
    }
}

fn add(sums: &mut [Snapshot; 2], place: &[Snapshot; 2]) {
    for (sum, one) in sums.iter_mut().zip(place) {
        sum.extend(one.iter().map(|(name, value)| (name.to_owned(), value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(place: &str, before: u64, after: u64) -> End {
        let counters = |value| [("rx_packets", value)].into_iter().collect();
        let place = place.to_owned();
        End { place, before: counters(before), after: counters(after), ..End::default() }
    }

    fn sums(home: &Home) -> [u64; 2] {
        home.remote().unwrap().map(|counters| counters.get("rx_packets").unwrap())
    }

    #[test]
    fn connections_to_one_lcore_count_once() {
        let home = Home::new("client", StatsReader::default());
        assert_eq!(home.remote(), None);
        home.hear(&end("a", 10, 15));
        home.hear(&end("a", 12, 18));
        home.hear(&end("b", 1, 2));
        assert_eq!(sums(&home), [11, 20]);
    }

    #[test]
    fn any_number_of_places_is_kept_in_little_room() {
        let home = Home::new("target", StatsReader::default());
        for place in 0..3 * PLACES_MAX {
            home.hear(&end(&place.to_string(), 1, 3));
        }
        assert_eq!(home.told.borrow().places.len(), PLACES_MAX);
        assert_eq!(sums(&home), [3 * PLACES_MAX as u64, 9 * PLACES_MAX as u64]);
    }

    #[test]
    fn last_words_are_waited_for_and_not_for_ever() {
        let home = Home::new("client", StatsReader::default());
        let (mut here, mut there) = pmd_verbs::connect::channel_pair("client", "target");
        let inquiry = Inquiry::leave(&mut here, &End::default(), 0);
        home.part(here, inquiry);
        assert!(home.is_parting(0) && home.next_timeout().is_some());
        pmd_verbs::connect::tell(&mut there, &end("a", 1, 2));
        assert!(!home.is_parting(1));
        assert_eq!(sums(&home), [1, 2]);
        let (mut here, _there) = pmd_verbs::connect::channel_pair("client", "target");
        let inquiry = Inquiry::leave(&mut here, &End::default(), 0);
        let deadline = inquiry.deadline();
        home.part(here, inquiry);
        assert!(home.is_parting(deadline - 1) && !home.is_parting(deadline));
    }
}
