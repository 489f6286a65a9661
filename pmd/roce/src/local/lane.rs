//! A link as the engine uses it: which messages are under way on it, and who waits for room in its
//! ring. So what the peer has taken is found without looking at every queue pair, and a full ring
//! costs one look per poll, however many wait.

use std::collections::VecDeque;

use crate::ids::LinkId;
use crate::ready::ReadyList;

/// Where to look for completions when the peer has taken records up to `position`.
#[derive(Clone, Copy, Debug)]
struct Mark {
    position: u64,
    slot: u32,
}

#[derive(Debug)]
struct Lane {
    link: LinkId,
    /// Queue pairs on it; 0: it can serve another link.
    users: u32,
    /// Requests that all of them can have outstanding: so many marks have room.
    requests: usize,
    /// In ring order.
    marks: VecDeque<Mark>,
    /// Queue pairs that found the ring full.
    blocked: ReadyList,
    /// The ring was found full in this poll.
    full: bool,
}

/// The links that connected queue pairs use.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    /// One of them was found full in this poll.
    any_full: bool,
    slots: usize,
}

impl Lanes {
    /// No lane is this one.
    pub(crate) const NONE: u32 = u32::MAX;

    /// For queue pairs in slots `0..slots`.
    pub(crate) const fn new(slots: usize) -> Self {
        Self { lanes: Vec::new(), any_full: false, slots }
    }

    /// A queue pair that can have so many requests outstanding joins the lane of its link.
    pub(crate) fn join(&mut self, link: LinkId, requests: usize) -> u32 {
        let known = self.lanes.iter().position(|lane| lane.users > 0 && lane.link == link);
        let index = known.or_else(|| self.lanes.iter().position(|lane| lane.users == 0));
        let index = index.unwrap_or_else(|| {
            self.lanes.push(Lane {
                link,
                users: 0,
                requests: 0,
                marks: VecDeque::new(),
                blocked: ReadyList::new(self.slots),
                full: false,
            });
            self.lanes.len() - 1
        });
        let lane = &mut self.lanes[index];
        if lane.users == 0 {
            lane.link = link;
            lane.marks.clear();
        }
        lane.users += 1;
        lane.requests += requests;
        lane.marks.reserve(lane.requests.saturating_sub(lane.marks.len()));
        u32::try_from(index).unwrap_or(Self::NONE)
    }

    /// The queue pair in `slot` leaves it, if it is on one.
    pub(crate) fn leave(&mut self, lane: u32, slot: u32, requests: usize) {
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.users -= 1;
            lane.requests -= requests;
            lane.blocked.remove(slot);
        }
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.lanes.len()).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(crate) fn link(&self, lane: u32) -> LinkId {
        self.lanes[lane as usize].link
    }

    /// The queue pair has messages under way up to `position`. False: there is no room to note it,
    /// for all the marks of requests that were taken back; then it is to be looked at anyway.
    #[inline]
    pub(crate) fn mark(&mut self, lane: u32, position: u64, slot: u32) -> bool {
        let lane = &mut self.lanes[lane as usize];
        let has_room = lane.marks.len() < lane.requests;
        if has_room {
            lane.marks.push_back(Mark { position, slot });
        }
        has_room
    }

    /// The next queue pair with messages among what the peer has taken.
    #[inline]
    pub(crate) fn next_taken(&mut self, lane: u32, taken: u64) -> Option<u32> {
        let marks = &mut self.lanes[lane as usize].marks;
        if marks.front()?.position > taken {
            return None;
        }
        marks.pop_front().map(|mark| mark.slot)
    }

    /// The queue pair found the ring full. It is the first to try again, unless it had its share.
    pub(crate) fn block(&mut self, lane: u32, slot: u32, had_share: bool) {
        let lane = &mut self.lanes[lane as usize];
        lane.full = true;
        self.any_full = true;
        if had_share {
            lane.blocked.push(slot);
        } else {
            lane.blocked.push_front(slot);
        }
    }

    /// A new poll: every ring is worth a try.
    #[inline]
    pub(crate) fn reopen(&mut self) {
        if core::mem::take(&mut self.any_full) {
            self.lanes.iter_mut().for_each(|lane| lane.full = false);
        }
    }

    /// Whether anybody waits for room in a ring.
    pub(crate) fn has_blocked(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.blocked.is_empty())
    }

    /// The next queue pair that waits for a ring which was not found full in this poll.
    #[inline]
    pub(crate) fn next_blocked(&mut self) -> Option<u32> {
        self.lanes.iter_mut().find_map(|lane| if lane.full { None } else { lane.blocked.pop() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_found_in_ring_order() {
        let mut lanes = Lanes::new(4);
        let lane = lanes.join(LinkId(7), 2);
        assert_eq!((lanes.join(LinkId(7), 1), lanes.link(lane)), (lane, LinkId(7)));
        assert!(lanes.mark(lane, 10, 0) && lanes.mark(lane, 20, 3) && lanes.mark(lane, 30, 0));
        assert!(!lanes.mark(lane, 40, 0), "no more than requests can be outstanding");
        assert_eq!(lanes.next_taken(lane, 9), None);
        assert_eq!(lanes.next_taken(lane, 20), Some(0));
        assert_eq!(lanes.next_taken(lane, 20), Some(3));
        assert_eq!(lanes.next_taken(lane, 20), None);
        lanes.leave(lane, 0, 2);
        lanes.leave(lane, 3, 1);
        assert_eq!(lanes.join(LinkId(8), 1), lane, "a lane that nobody uses serves another link");
        assert_eq!(lanes.next_taken(lane, 100), None, "and forgets");
    }

    #[test]
    fn one_look_tells_that_a_ring_is_full() {
        let mut lanes = Lanes::new(4);
        let (one, other) = (lanes.join(LinkId(1), 4), lanes.join(LinkId(2), 4));
        for slot in 0..3 {
            lanes.block(one, slot, true);
        }
        lanes.block(other, 3, true);
        assert_eq!(lanes.next_blocked(), None);
        lanes.reopen();
        assert_eq!(lanes.next_blocked(), Some(0));
        lanes.block(one, 0, false);
        assert_eq!(lanes.next_blocked(), Some(3), "another ring may have room");
        assert_eq!(lanes.next_blocked(), None);
        lanes.reopen();
        assert_eq!(lanes.next_blocked(), Some(0), "nothing was sent: still the first");
        lanes.leave(one, 1, 4);
        assert_eq!(lanes.next_blocked(), Some(2));
    }
}
