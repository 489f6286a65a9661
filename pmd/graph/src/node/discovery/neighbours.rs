//! Whom a node has heard of: a table that never grows.

use std::time::Duration;

use crate::discovery::{Announcement, NAME_LONGEST, Who};

/// A name without a place on the heap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    len: usize,
    bytes: [u8; NAME_LONGEST],
}

impl Name {
    /// Of a text of up to [`NAME_LONGEST`] bytes; a longer one is cut.
    pub(super) fn new(text: &str) -> Self {
        let mut len = text.len().min(NAME_LONGEST);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; NAME_LONGEST];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { len, bytes }
    }

    pub(super) fn as_str(&self) -> &str {
        // It was a text, and ends at the boundary of a character.
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Somebody who was heard.
#[derive(Debug)]
pub(super) struct Neighbour<H> {
    pub(super) name: Name,
    pub(super) who: Who,
    /// How it is reached.
    pub(super) handle: H,
    /// Whether it has answered, and so has heard this node.
    pub(super) confirmed: bool,
    /// When it is forgotten, unless it is heard again.
    until: u64,
}

/// What an announcement was to the one who heard it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The first of this name, or the first since it started anew.
    New,
    /// A repetition.
    Again,
    /// Older than what is known.
    Stale,
    /// The table has no room.
    Full,
    /// There is no way to reach it.
    Unreachable,
}

/// Everybody that was heard and has not expired.
#[derive(Debug)]
pub(super) struct Neighbours<H> {
    list: Vec<Neighbour<H>>,
    capacity: usize,
}

impl<H> Neighbours<H> {
    /// Room for so many.
    pub(super) fn new(capacity: usize) -> Self {
        Self { list: Vec::with_capacity(capacity), capacity }
    }

    /// Takes an announcement in; `reach` makes the way to a new announcer.
    pub(super) fn hear(
        &mut self,
        now: u64,
        announcement: &Announcement<'_>,
        reach: impl FnOnce() -> Option<H>,
    ) -> Heard {
        let (name, who) = (Name::new(announcement.name), announcement.who);
        let until = now.saturating_add(nanoseconds(announcement.ttl));
        let is_full = self.list.len() == self.capacity;
        match self.list.iter_mut().find(|known| known.name == name) {
            Some(known) if known.who == who => {
                known.until = until;
                Heard::Again
            }
            Some(known) if known.who.generation > who.generation => Heard::Stale,
            Some(known) => match reach() {
                None => Heard::Unreachable,
                Some(handle) => {
                    *known = Neighbour { name, who, handle, confirmed: false, until };
                    Heard::New
                }
            },
            None if is_full => Heard::Full,
            None => match reach() {
                None => Heard::Unreachable,
                Some(handle) => {
                    self.list.push(Neighbour { name, who, handle, confirmed: false, until });
                    Heard::New
                }
            },
        }
    }

    /// Somebody has answered. Returns whether that was not known.
    pub(super) fn confirm(&mut self, who: &Who) -> bool {
        let known = self.list.iter_mut().find(|known| known.who == *who && !known.confirmed);
        known.map(|known| known.confirmed = true).is_some()
    }

    /// Forgets those that were not heard for longer than they asked to be remembered. Returns how many.
    pub(super) fn expire(&mut self, now: u64) -> usize {
        let before = self.list.len();
        self.list.retain(|known| known.until > now);
        before - self.list.len()
    }

    /// When the next one is forgotten.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.list.iter().map(|known| known.until).min()
    }

    /// Everybody.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Neighbour<H>> {
        self.list.iter()
    }

    /// The one of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Neighbour<H>> {
        self.list.iter().find(|known| known.name.as_str() == name)
    }
}

/// A time in nanoseconds.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use pmd_verbs::roce::ids::{Gid, Qpn};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn announcement(name: &str, qpn: u32, generation: u64) -> Announcement<'_> {
        let who = Who { gid: Gid([1; 16]), qpn: Qpn::new(qpn), generation };
        let ttl = Duration::from_secs(2);
        Announcement { who, name, ttl, looking: false, answers: None }
    }

    #[test]
    fn a_neighbour_is_known_until_it_expires() {
        let mut table = Neighbours::new(4);
        let alpha = announcement("alpha", 5, 1);
        assert_eq!(table.hear(0, &alpha, || Some("way")), Heard::New);
        assert_eq!(table.hear(SECOND, &alpha, || None), Heard::Again);
        assert_eq!((table.expire(3 * SECOND - 1), table.next_expiry()), (0, Some(3 * SECOND)));
        assert_eq!((table.expire(3 * SECOND), table.next_expiry()), (1, None));
        assert_eq!(table.hear(4 * SECOND, &alpha, || Some("way")), Heard::New);
    }

    #[test]
    fn one_that_starts_anew_replaces_itself_and_is_not_replaced_by_its_past() {
        let mut table = Neighbours::new(4);
        let (first, second) = (announcement("alpha", 5, 1), announcement("alpha", 6, 2));
        table.hear(0, &first, || Some(1));
        assert!(table.confirm(&first.who) && !table.confirm(&first.who));
        assert_eq!(table.hear(1, &second, || Some(2)), Heard::New);
        assert_eq!(table.hear(2, &first, || Some(3)), Heard::Stale);
        let known = table.find("alpha").unwrap();
        assert_eq!((known.who, known.handle, known.confirmed), (second.who, 2, false));
        assert!(!table.confirm(&first.who), "an answer of the past");
        assert!(table.confirm(&second.who));
        assert_eq!(table.iter().count(), 1);
    }

    #[test]
    fn a_full_table_keeps_whom_it_knows() {
        let mut table = Neighbours::new(2);
        assert_eq!(table.hear(0, &announcement("a", 1, 1), || Some(())), Heard::New);
        assert_eq!(table.hear(0, &announcement("b", 2, 1), || None), Heard::Unreachable);
        assert_eq!(table.hear(0, &announcement("b", 2, 1), || Some(())), Heard::New);
        assert_eq!(table.hear(0, &announcement("c", 3, 1), || Some(())), Heard::Full);
        assert_eq!(table.hear(0, &announcement("a", 1, 1), || Some(())), Heard::Again);
        table.expire(u64::MAX);
        assert_eq!(table.hear(0, &announcement("c", 3, 1), || Some(())), Heard::New);
    }

    #[test]
    fn names_are_cut_between_characters() {
        let long = "\u{20ac}".repeat(30);
        assert_eq!(Name::new(&long).as_str(), "\u{20ac}".repeat(21));
        assert_eq!(Name::new("alpha").as_str(), "alpha");
    }
}
