//! The links of one lcore: what an engine's local path runs on.

use core::fmt;
use core::sync::atomic::{Ordering, fence};
use std::collections::VecDeque;
use std::sync::Arc;

use pmd_mem::{KeyCache, Word};

use super::Garbage;
use super::arrivals::{Each, Take};
use super::limits::{DATAGRAM_MAX, LCORES_MAX, LINKS_MAX, RX_BURST};
use super::link::{Link, LinkFault, PeerInfo};
use super::mailbox::{Event, slot_of};
use super::outgoing::{NotPushed, Outgoing};
use super::page::{Page, ShownQp};
use super::payload::{Inbound, Lying, Payload};
use super::port::{Command, Shared};
use super::reach::{Own, Sge, put};
use super::record::{Kind, Record};
use super::ring::NoRoom;
use super::straight::Pair;

/// What an initiator finds when it looks for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The queue pair exists.
    Qp(ShownQp),
    /// No such queue pair now.
    Absent,
    /// The link is down.
    Gone,
}

/// The bytes of an outgoing record or WRITE.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Registered memory, at most [`SGES_MAX`](super::limits::SGES_MAX) elements.
    Sges(&'a [Sge]),
    /// Bytes that were copied at post.
    Inline(&'a [u8]),
}

/// Outcome of [`Links::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// Written; the peer has taken it once [`Links::consumed`] reaches this position.
    At(u64),
    /// No room: try again at the next poll.
    Full,
    /// The source is not registered for this use; or it is neither exported nor small enough for the ring.
    LocalFault,
    /// The link is down.
    Gone,
}

/// A link that ended, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    /// The link: its number names nothing any more.
    pub link: u32,
    /// Who was there.
    pub peer: PeerInfo,
    /// Why it ended.
    pub fault: LinkFault,
}

/// What a burst of records came to.
#[derive(Clone, Copy, Debug)]
struct Burst {
    taken: usize,
    /// Nothing is left in the ring.
    drained: bool,
}

/// What became of the entry at the front of a ring.
#[derive(Clone, Copy, Debug)]
enum Found {
    Taken,
    Stays,
    /// It was the end of a lap, and nothing follows yet.
    Nothing,
}

/// A link and its number.
pub(super) type Slot = Option<(u32, Box<Link>)>;

/// All links of one lcore, which owns this value.
///
/// Once per turn of the loop: [`turn`](Self::turn), [`next_down`](Self::next_down) until empty, [`rx`](Self::rx) for each of
/// [`active`](Self::active), then operations, then [`publish`](Self::publish). Whoever calls an operation outside the loop ends
/// with `publish` too: it is what lets other sides deregister memory.
pub struct Links {
    pub(super) shared: Arc<Shared>,
    pub(super) lcore: u8,
    pub(super) page: Page,
    pub(super) own: Arc<Own>,
    /// This device's keys that sources of records and direct operations used before.
    pub(super) keys: KeyCache,
    pub(super) busy: super::fence::Busy,
    /// Not zero while this lcore sleeps.
    pub(super) asleep: Word,
    pub(super) slots: Vec<Slot>,
    active: Vec<u32>,
    pub(super) dirty: Vec<u32>,
    downs: VecDeque<Down>,
}

impl Links {
    pub(super) fn new(
        shared: Arc<Shared>,
        lcore: u8,
        page: Page,
        own: Own,
        busy: super::fence::Busy,
        asleep: Word,
    ) -> Self {
        Self {
            shared,
            lcore,
            page,
            keys: own.table.cache(),
            own: Arc::new(own),
            busy,
            asleep,
            slots: Vec::new(),
            active: Vec::with_capacity(LCORES_MAX),
            dirty: Vec::with_capacity(LCORES_MAX),
            downs: VecDeque::new(),
        }
    }

    // Once per turn ---------------------------------------------------------------------------

    /// Takes in what has changed: new links, regions that came or went, peers that died. One load when nothing has. Memory of
    /// dead peers is unmapped here.
    #[inline]
    pub fn turn(&mut self) -> usize {
        if self.shared.mailbox(self.lcore).is_pending() { self.take_news() } else { 0 }
    }

    #[cold]
    fn take_news(&mut self) -> usize {
        let Some(events) = self.shared.mailbox(self.lcore).take() else { return 0 };
        let count = events.len();
        for event in events {
            self.take_in(event);
        }
        count
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Linked { id, mut link } => {
                link.change_own(&self.own);
                self.busy.serve(link.out.reach.table.needs_full_fence());
                let slot = slot_of(id);
                if slot >= self.slots.len() {
                    self.slots.resize_with((slot + 1).min(LINKS_MAX), || None);
                }
                self.slots[slot] = Some((id, link));
                self.active.push(id);
                // Every link may become dirty in one turn, and then nothing shall allocate.
                self.dirty.reserve(self.active.len());
            }
            Event::Own { id, region } => {
                put(&mut Arc::make_mut(&mut self.own).regions, id, region);
                self.keys.clear();
                for (_, link) in self.slots.iter_mut().flatten() {
                    link.change_own(&self.own);
                }
            }
            Event::Mapped { key, id, region } => {
                for (_, link) in self.slots.iter_mut().flatten().filter(|(_, link)| link.key == key)
                {
                    link.change_reach(|regions| put(regions, id, region.clone()));
                }
            }
            Event::Gone { key, fault } => {
                let gone: Vec<u32> = self
                    .slots
                    .iter()
                    .flatten()
                    .filter(|(_, link)| link.key == key)
                    .map(|(id, _)| *id)
                    .collect();
                for id in gone {
                    self.remove(id, fault);
                }
            }
        }
    }

    /// The next link that ended since the last call.
    #[inline]
    pub fn next_down(&mut self) -> Option<Down> {
        self.downs.pop_front()
    }

    /// The links there are.
    #[inline]
    pub fn active(&self) -> &[u32] {
        &self.active
    }

    /// Who is at the other end of a link.
    pub fn peer(&self, link: u32) -> Option<&PeerInfo> {
        self.link(link).map(|link| &link.peer)
    }

    /// Hands the records of a burst, at most [`RX_BURST`], to `take`, which also gets these links to answer with. A record it
    /// returns false for stays and comes again. Returns how many were taken; the peer learns of it by [`publish`](Self::publish).
    /// [`consumed`](Self::consumed) moves here alone.
    ///
    /// A peer that wrote nonsense loses its link, by name.
    #[inline]
    pub fn rx(
        &mut self,
        id: u32,
        take: impl FnMut(&mut Self, &Record, &mut Payload<'_>) -> bool,
    ) -> usize {
        self.rx_with(id, &mut Each(take))
    }

    /// As [`Self::rx`], for whoever takes plain SENDs in runs.
    #[inline]
    pub fn rx_with(&mut self, id: u32, take: &mut impl Take) -> usize {
        let Some(link) = found_mut(&mut self.slots, id) else { return 0 };
        let Some(inbound) = &mut link.inbound else { return 0 };
        // A message that is alone comes before everything else: what the peer has taken is in another line, which it may just be
        // writing, and is looked at next time.
        if inbound.is_alone() && !core::mem::replace(&mut link.out.is_behind, true) {
            let was_inside = self.busy.is_inside();
            self.busy.enter();
            let is_taken = take.alone(&mut inbound.arrivals());
            // Whoever deregisters memory before the turn ends, be it this lcore, does not wait for it.
            if !was_inside {
                self.busy.exit();
            }
            if is_taken {
                if !core::mem::replace(&mut link.out.is_queued, true) {
                    self.dirty.push(id);
                }
                return 1;
            }
        }
        link.out.is_behind = false;
        // Before the peer's records are looked at: what it answered to any of these positions is among them.
        let position = link.out.writer.peek_taken();
        if let Ok(position) = position
            && !inbound.reader.has_next()
        {
            link.out.judged = position;
            return 0;
        }
        self.rx_all(id, position, take)
    }

    /// Takes a burst, before which the peer had taken records up to `position`.
    #[inline(never)]
    fn rx_all(&mut self, id: u32, position: Result<u64, Garbage>, take: &mut impl Take) -> usize {
        let Some(mut inbound) = self.link_mut(id).and_then(|link| link.inbound.take()) else {
            return 0;
        };
        let was_inside = self.busy.is_inside();
        let burst = self.burst(&mut inbound, take);
        if let Some(link) = self.link_mut(id)
            && let (Ok(position), Ok(Burst { drained: true, .. })) = (position, burst)
        {
            link.out.judged = position;
        }
        self.give_back(id, inbound);
        if !was_inside {
            self.busy.exit();
        }
        match (position, burst) {
            (Ok(_), Ok(burst)) => burst.taken,
            (Err(garbage), _) | (_, Err(garbage)) => {
                self.fail(id, LinkFault::Garbage(garbage));
                0
            }
        }
    }

    /// Ends a burst: the peer is to learn of it.
    #[inline(always)]
    fn give_back(&mut self, id: u32, inbound: Box<Inbound>) {
        let Some(link) = found_mut(&mut self.slots, id) else { return };
        if inbound.reader.has_unreported() && !core::mem::replace(&mut link.out.is_queued, true) {
            self.dirty.push(id);
        }
        link.inbound = Some(inbound);
    }

    #[inline]
    fn burst(&mut self, inbound: &mut Inbound, take: &mut impl Take) -> Result<Burst, Garbage> {
        let mut left = RX_BURST;
        self.busy.enter();
        loop {
            left -= take.run(self, &mut inbound.arrivals(), left);
            if left == 0 {
                return Ok(Burst { taken: RX_BURST, drained: false });
            }
            if !inbound.reader.has_next() {
                return Ok(Burst { taken: RX_BURST - left, drained: true });
            }
            match self.record(inbound, take)? {
                Found::Taken => left -= 1,
                Found::Stays => return Ok(Burst { taken: RX_BURST - left, drained: false }),
                Found::Nothing => return Ok(Burst { taken: RX_BURST - left, drained: true }),
            }
        }
    }

    /// Hands over the record at the front.
    #[inline(never)]
    fn record(&mut self, inbound: &mut Inbound, take: &mut impl Take) -> Result<Found, Garbage> {
        let mut lying = Lying::NOTHING;
        if !inbound.next(&mut lying)? {
            return Ok(Found::Nothing);
        }
        if !take.record(self, &lying.record, &mut inbound.payload(&lying)) {
            return Ok(Found::Stays);
        }
        inbound.reader.advance(lying.size);
        Ok(Found::Taken)
    }

    /// Makes everything pushed so far visible, batch by batch, tells peers what was taken, and ends the critical section of this turn's operations.
    #[inline]
    pub fn publish(&mut self) {
        let announce = self.busy.announce();
        while let Some(id) = self.dirty.pop() {
            if let Some(link) = self.link_mut(id) {
                link.publish(announce);
            }
        }
        self.busy.exit();
    }

    /// Store-load fence: before completions of WRITEs are reported, and before a READ that follows a WRITE.
    #[inline]
    pub fn fence(&mut self) {
        fence(Ordering::SeqCst);
    }

    // What queue pairs show -------------------------------------------------------------------

    /// Shows one of this lcore's queue pairs to all peers; `None` when it is gone. False: the number is beyond the page.
    pub fn show(&mut self, qpn: u32, qp: Option<&ShownQp>) -> bool {
        self.page.show(qpn, qp)
    }

    /// Looks at the target's published page.
    #[inline]
    pub fn target(&self, link: u32, qpn: u32) -> Target {
        match self.link(link) {
            Some(link) => link.out.page.look(qpn).map_or(Target::Absent, Target::Qp),
            None => Target::Gone,
        }
    }

    /// A number that changes whenever the target's page does, its receives apart; `None` when the link is down.
    #[inline]
    pub fn glance(&self, link: u32, qpn: u32) -> Option<u64> {
        self.link(link).map(|link| link.out.page.glance(qpn))
    }

    /// Says that a target's receives are looked at soon: a hint, so that they can be brought near.
    #[inline]
    pub fn expect(&self, link: u32, qpn: u32) {
        if let Some(link) = self.link(link) {
            link.out.page.expect(qpn);
        }
    }

    /// Shows that one of this lcore's queue pairs has posted receives. Nothing else of its page, which is shown, has changed.
    #[inline]
    pub fn show_receives(&mut self, qpn: u32, rq_psn: u32, posted: u32) {
        self.page.show_receives(qpn, rq_psn, posted);
    }

    // Records ---------------------------------------------------------------------------------

    /// Appends a record to the ring toward the peer; visible after [`publish`](Self::publish).
    ///
    /// Small payloads, datagrams, and bytes given inline travel in the ring; for others the peer is told where they lie, and they
    /// must stay until it has taken the record.
    #[inline]
    pub fn push(&mut self, link: u32, pd: u32, record: &Record, payload: Source<'_>) -> Push {
        let Record { src: qpn, dst: peer, seq, solicited, len, .. } = *record;
        if record.is_plain()
            && let Some(mut straight) = self.straight(link, Pair { qpn, pd, peer, peer_pd: 0 })
        {
            let sent = match payload {
                Source::Sges([only]) if only.len == len => straight.send(seq, solicited, *only),
                Source::Inline(bytes) if bytes.len() == len as usize => {
                    straight.send_inline(seq, solicited, bytes)
                }
                _ => None,
            };
            if let Some(position) = sent {
                return Push::At(position);
            }
        }
        self.push_any(link, pd, record, payload)
    }

    /// As [`Self::push`], for a record of any kind, and by keys that are not known yet.
    #[inline(never)]
    fn push_any(&mut self, id: u32, pd: u32, record: &Record, payload: Source<'_>) -> Push {
        self.busy.enter();
        if let Source::Sges([sge]) = payload {
            self.own.remember(&mut self.keys, sge.lkey);
        }
        let Some(link) = found_mut(&mut self.slots, id) else { return Push::Gone };
        // Datagrams complete at once: their bytes must not be needed later.
        let is_datagram = matches!(record.kind, Kind::Datagram(_)) && record.len <= DATAGRAM_MAX;
        let is_inside = link.key == 0;
        let pushed = Outgoing::new(&self.own, pd, record, payload, is_datagram, is_inside)
            .and_then(|outgoing| outgoing.append(&mut link.out));
        match pushed {
            Ok(position) => {
                if !core::mem::replace(&mut link.out.is_queued, true) {
                    self.dirty.push(id);
                }
                Push::At(position)
            }
            Err(NotPushed::Fault) => Push::LocalFault,
            Err(NotPushed::NoRoom(NoRoom::Full)) => Push::Full,
            Err(NotPushed::NoRoom(NoRoom::Broken(garbage))) => {
                self.fail(id, LinkFault::Garbage(garbage));
                Push::Gone
            }
        }
    }

    /// Up to which ring position the peer has taken records, as read before those of its records were taken that
    /// [`rx`](Self::rx) took last, and only where it took all: so every answer to these positions has been handed in. 0 when the
    /// link is down.
    #[inline]
    pub fn consumed(&self, link: u32) -> u64 {
        self.link(link).map_or(0, |link| link.out.judged)
    }

    // Inside ----------------------------------------------------------------------------------

    #[inline]
    pub(super) fn link(&self, id: u32) -> Option<&Link> {
        match self.slots.get(slot_of(id)) {
            Some(Some((there, link))) if *there == id => Some(link),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn link_mut(&mut self, id: u32) -> Option<&mut Link> {
        found_mut(&mut self.slots, id)
    }

    /// Ends a link whose peer misbehaved, and lets the control thread end the others with it.
    pub(super) fn fail(&mut self, id: u32, fault: LinkFault) {
        if let Some(key) = self.link(id).map(|link| link.key) {
            if key != 0 {
                self.shared.command(Command::Condemn { key, fault });
            }
            self.remove(id, fault);
        }
    }

    fn remove(&mut self, id: u32, fault: LinkFault) {
        let Some((_, link)) = self.slots.get_mut(slot_of(id)).and_then(Option::take) else {
            return;
        };
        self.downs.push_back(Down { link: id, peer: link.peer, fault });
        self.active.retain(|active| *active != id);
        self.dirty.retain(|dirty| *dirty != id);
        self.shared.mailbox(self.lcore).release(id);
        // The last holder of each mapping unmaps it.
        drop(link);
    }
}

/// The link of this number.
#[inline]
pub(super) fn found_mut(slots: &mut [Slot], id: u32) -> Option<&mut Link> {
    match slots.get_mut(slot_of(id)) {
        Some(Some((there, link))) if *there == id => Some(link),
        _ => None,
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.busy.exit();
        // Its queue pairs end with it.
        self.page.clear();
        self.shared.mailbox(self.lcore).close();
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("lcore", &self.lcore)
            .field("active", &self.active)
            .finish_non_exhaustive()
    }
}
