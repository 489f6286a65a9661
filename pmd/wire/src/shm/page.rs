//! The page of an lcore: what its queue pairs show to initiators on the same host.
//!
//! Only the owning lcore writes it, peers map it read-only. A queue pair has a cache line at the slot that the low bits of its
//! number name, and another one, behind all of these, for what moves all the time:
//!
//! ```text
//! word 0   own QPN 24 | peer QPN 24 | state 3 | counts receives 1 | one-sided rights 3 | change counter 9; 0: no queue pair
//! word 1   protection domain 32 | max_dest_rd_atomic 8 | min_rnr_timer 8
//!
//! receives   first PSN expected 32 | receives posted 32
//! ```
//!
//! So an initiator that has credits left, and looks only whether word 0 is as it was, finds it in its own cache.
//!
//! Word 0 is stored last, so what a state needs is visible before the state; and a slot shows nothing before it shows another
//! queue pair, so a reader that finds word 0 unchanged after reading the others knows that they belong to it. No reader ever
//! waits for a writer.

use core::sync::atomic::Ordering;
#[cfg(not(loom))]
use core::sync::atomic::fence;
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::fence;
use pmd_mem::{Load, PeerWordRef, PeerWords, Segment, Store, Words};

use super::limits::{QPN_INDEX_BITS, QPS_MAX};

/// What a queue pair shows. The fields are those of the engine's `PublishedQp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownQp {
    /// State, in the order RESET, INIT, RTR, RTS, SQD, SQE, ERR from 0.
    pub state: u8,
    /// The queue pair it is connected to, 24 bits; for UD, 0.
    pub peer: u32,
    /// One-sided operations it allows: values of `enum ibv_access_flags`, remote rights only.
    pub access: u32,
    /// Protection domain.
    pub pd: u32,
    /// READs and atomics a peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// PSN that it expected first, 24 bits, so that another idea of the connection is noticed.
    pub rq_psn: u32,
    /// Receives posted since RESET, modulo 2^32; `None` where they come from a shared queue.
    pub posted: Option<u32>,
}

/// The highest state there is.
const STATE_MAX: u8 = 6;
pub(crate) const LINE: u64 = 64;
const WORDS: usize = (LINE / 8) as usize;
/// Where the slots begin; before them lie two lines for the owner's announcements.
const SLOTS_AT: u64 = 256;
const LOW_24: u64 = 0xff_ffff;
const COUNTS: u64 = 1 << 51;
const VERSION_SHIFT: u32 = 55;
const CONTENT: u64 = (1 << VERSION_SHIFT) - 1;

/// Where in a page the owner announces that it is copying.
pub(crate) const BUSY_AT: u64 = 0;

/// Where in a page the owner says that it sleeps.
pub(crate) const ASLEEP_AT: u64 = 128;

/// Bytes of a page for `qps` queue pairs.
pub(crate) const fn page_bytes(qps: u32) -> u64 {
    SLOTS_AT + qps as u64 * 2 * LINE
}

/// Slots in a page of so many bytes, up to what a QPN can name.
fn slots(bytes: u64) -> u32 {
    u32::try_from(bytes.saturating_sub(SLOTS_AT) / (2 * LINE)).unwrap_or(u32::MAX).min(QPS_MAX)
}

fn slot_of(qpn: u32) -> u32 {
    qpn & ((1 << QPN_INDEX_BITS) - 1)
}

/// The word `i` of a slot's line.
#[inline]
const fn word_of(slot: u32, i: usize) -> usize {
    slot as usize * WORDS + i
}

/// The word in a slot's other line.
#[inline]
const fn receives_of(slots: u32, slot: u32) -> usize {
    word_of(slots + slot, 0)
}

/// The low 32 bits.
fn low(word: u64) -> u32 {
    let [.., a, b, c, d] = word.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Receives posted, as the word says that counts them.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half")]
pub(crate) const fn posted(receives: u64) -> u32 {
    receives as u32
}

impl ShownQp {
    fn encode(&self, qpn: u32) -> [u64; 3] {
        let counts = if self.posted.is_some() { COUNTS } else { 0 };
        [
            u64::from(qpn) & LOW_24
                | (u64::from(self.peer) & LOW_24) << 24
                | u64::from(self.state & 7) << 48
                | counts
                | u64::from(self.access >> 1 & 7) << 52,
            u64::from(self.pd) << 32
                | u64::from(self.max_dest_rd_atomic) << 8
                | u64::from(self.min_rnr_timer),
            u64::from(self.rq_psn) << 32 | u64::from(self.posted.unwrap_or(0)),
        ]
    }

    /// `None` where the words show another queue pair, or none.
    fn decode(qpn: u32, words: [u64; 3]) -> Option<Self> {
        let [first, second, third] = words;
        let state = first.to_be_bytes()[1] & 7;
        if first & CONTENT == 0 || low(first & LOW_24) != qpn || state > STATE_MAX {
            return None;
        }
        let [.., max_dest_rd_atomic, min_rnr_timer] = second.to_be_bytes();
        Some(Self {
            state,
            peer: low(first >> 24 & LOW_24),
            access: low(first >> 52 & 7) << 1,
            pd: low(second >> 32),
            max_dest_rd_atomic,
            min_rnr_timer,
            rq_psn: low(third >> 32),
            posted: (first & COUNTS != 0).then_some(posted(third)),
        })
    }
}

/// An lcore's own page.
#[derive(Debug)]
pub(crate) struct Page {
    words: Words,
    slots: u32,
}

impl Page {
    /// The page that lies in a zeroed segment.
    pub(crate) fn new(segment: &Arc<Segment>) -> Result<Self, pmd_mem::AccessError> {
        let slots = slots(segment.len());
        Ok(Self { words: Words::new(segment, SLOTS_AT, word_of(2 * slots, 0))?, slots })
    }

    /// Shows a queue pair, or that it is gone. Returns false when the page has no slot for it.
    pub(crate) fn show(&self, qpn: u32, qp: Option<&ShownQp>) -> bool {
        let slot = slot_of(qpn);
        if slot >= self.slots {
            return false;
        }
        let place = [
            self.words.at(word_of(slot, 0)),
            self.words.at(word_of(slot, 1)),
            self.words.at(receives_of(self.slots, slot)),
        ];
        show_in(place, qp.map(|qp| qp.encode(qpn)), || fence(Ordering::Release));
        true
    }

    /// Shows how many receives a queue pair has posted, which moves all the time.
    #[inline]
    pub(crate) fn show_receives(&self, qpn: u32, rq_psn: u32, posted: u32) {
        let slot = slot_of(qpn);
        if slot < self.slots {
            let word = u64::from(rq_psn) << 32 | u64::from(posted);
            self.words.at(receives_of(self.slots, slot)).store(word, Ordering::Release);
        }
    }

    /// Shows nothing any more.
    pub(crate) fn clear(&self) {
        for slot in 0..self.slots {
            self.words.at(word_of(slot, 0)).store(0, Ordering::Release);
        }
    }
}

/// Another lcore's page.
#[derive(Clone, Debug)]
pub(crate) struct PeerPage {
    words: PeerWords,
    slots: u32,
}

impl PeerPage {
    /// The page that lies in a segment. All of its content is only a claim.
    pub(crate) fn new(segment: &Arc<Segment>) -> Result<Self, pmd_mem::AccessError> {
        let slots = slots(segment.len());
        Ok(Self { words: PeerWords::new(segment, SLOTS_AT, word_of(2 * slots, 0))?, slots })
    }

    /// The word that changes with all that is shown of a queue pair, its receives apart; 0 beyond the page.
    #[inline]
    pub(crate) fn glance(&self, qpn: u32) -> u64 {
        self.word(qpn).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// What [`Self::glance`] looks at, if the page has such a place.
    #[inline]
    pub(crate) fn word(&self, qpn: u32) -> Option<PeerWordRef<'_>> {
        let slot = slot_of(qpn);
        if slot < self.slots { self.words.word(word_of(slot, 0)) } else { None }
    }

    /// The word that counts its receives; [`posted`] reads it.
    #[inline]
    pub(crate) fn receives(&self, qpn: u32) -> Option<PeerWordRef<'_>> {
        let slot = slot_of(qpn);
        if slot < self.slots { self.words.word(receives_of(self.slots, slot)) } else { None }
    }

    /// Has the word that counts the receives of a queue pair brought near.
    #[inline]
    pub(crate) fn expect(&self, qpn: u32) {
        if let Some(word) = self.receives(qpn) {
            word.prefetch();
        }
    }

    /// The queue pair with this number, if it exists now.
    pub(crate) fn look(&self, qpn: u32) -> Option<ShownQp> {
        let slot = slot_of(qpn);
        if slot >= self.slots {
            return None;
        }
        let load = |i: usize, order| match i {
            2 => self.words.load(receives_of(self.slots, slot), order),
            i => self.words.load(word_of(slot, i), order),
        };
        look_at(load).and_then(|words| ShownQp::decode(qpn, words))
    }
}

/// Stores the words of a queue pair, or that it is gone, in their order. `sealed` keeps what this side does next behind that: memory
/// that a sender has taken back is not written before it is seen to have.
fn show_in<W: Store + ?Sized>(
    [zero, one, receives]: [&W; 3],
    words: Option<[u64; 3]>,
    sealed: impl FnOnce(),
) {
    let before = zero.load(Ordering::Relaxed);
    let mut version = (before >> VERSION_SHIFT).wrapping_add(1);
    let Some([first, second, third]) = words else {
        zero.store(version << VERSION_SHIFT, Ordering::Release);
        return sealed();
    };
    if before & CONTENT == first && one.load(Ordering::Relaxed) == second {
        // The one thing that moves all the time: receives posted.
        return receives.store(third, Ordering::Release);
    }
    if before & LOW_24 != first & LOW_24 {
        zero.store(version << VERSION_SHIFT, Ordering::Relaxed);
        version = version.wrapping_add(1);
    }
    // Who sees one of the following words of another queue pair sees word 0 changed too.
    fence(Ordering::Release);
    one.store(second, Ordering::Relaxed);
    receives.store(third, Ordering::Relaxed);
    zero.store(first | version << VERSION_SHIFT, Ordering::Release);
    sealed();
}

/// Loads the words of a queue pair that belong together. What this side has read before, such as bytes out of a sender's memory, is
/// older than the second look at word 0.
fn look_at(load: impl Fn(usize, Ordering) -> u64) -> Option<[u64; 3]> {
    /// An honest owner changes a queue pair a few times in its life.
    const TRIES: u32 = 8;

    let mut first = load(0, Ordering::Acquire);
    for _ in 0..TRIES {
        let words = [first, load(1, Ordering::Relaxed), load(2, Ordering::Relaxed)];
        fence(Ordering::Acquire);
        let again = load(0, Ordering::Relaxed);
        if again == first {
            return Some(words);
        }
        first = again;
        fence(Ordering::Acquire);
    }
    // Somebody writes without end: that is no queue pair to write to.
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qp(state: u8) -> ShownQp {
        ShownQp {
            state,
            peer: 0xab_cdef,
            access: 0b1110,
            pd: u32::MAX - 1,
            max_dest_rd_atomic: 128,
            min_rnr_timer: 31,
            rq_psn: 0x8001_0000,
            posted: Some(u32::MAX),
        }
    }

    fn page(qps: u32) -> (Page, PeerPage, Arc<Segment>) {
        let segment = Arc::new(Segment::private(page_bytes(qps)).unwrap());
        (Page::new(&segment).unwrap(), PeerPage::new(&segment).unwrap(), segment)
    }

    #[test]
    fn what_is_shown_is_seen() {
        let (own, peer, _segment) = page(64);
        assert_eq!(peer.look(0x02_0005), None);
        for state in 0..=STATE_MAX {
            for access in [0, 0b10, 0b100, 0b1000, 0b1110] {
                for posted in [None, Some(0), Some(7)] {
                    let shown = ShownQp { access, posted, ..qp(state) };
                    assert!(own.show(0x02_0005, Some(&shown)));
                    assert_eq!(peer.look(0x02_0005), Some(shown));
                }
            }
        }
        assert!(own.show(0x02_0005, None));
        assert_eq!(peer.look(0x02_0005), None);
    }

    /// A reused slot is told apart by the generation in the number.
    #[test]
    fn another_generation_is_another_queue_pair() {
        let (own, peer, _segment) = page(64);
        own.show(0x02_0805, Some(&qp(3)));
        assert_eq!(peer.look(0x02_0005), None);
        assert_eq!(peer.look(0x02_1005), None);
        assert_eq!(peer.look(0x02_0805), Some(qp(3)));
        assert_eq!(peer.look(0x02_0806), None);
    }

    #[test]
    fn numbers_beyond_the_page_do_not_exist() {
        let (own, peer, _segment) = page(8);
        let slots = own.slots;
        assert!(!own.show(slots, Some(&qp(3))));
        assert_eq!(peer.look(slots), None);
    }

    #[test]
    fn nonsense_in_a_page_is_no_queue_pair() {
        let (_, peer, segment) = page(8);
        let first = segment.atomic_u64(SLOTS_AT + 64).unwrap();
        first.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(peer.look(1), None, "another number");
        first.store(7 << 48 | 1, Ordering::Relaxed);
        assert_eq!(peer.look(1), None, "a state that does not exist");
        first.store(6 << 48 | 1, Ordering::Relaxed);
        assert_eq!(peer.look(1).unwrap().state, 6);
    }

    /// Receives are counted without a change that a glance would notice; anything else is noticed.
    #[test]
    fn a_glance_notices_all_but_receives() {
        let (own, peer, _segment) = page(64);
        own.show(0x02_0005, Some(&qp(3)));
        let seen = peer.glance(0x02_0005);
        own.show_receives(0x02_0005, 0x8001_0000, 77);
        assert_eq!(peer.look(0x02_0005), Some(ShownQp { posted: Some(77), ..qp(3) }));
        assert_eq!(peer.glance(0x02_0005), seen);
        own.show(0x02_0005, Some(&ShownQp { max_dest_rd_atomic: 1, ..qp(3) }));
        assert_ne!(peer.glance(0x02_0005), seen);
    }

    /// Two queue pairs take turns in one slot: a reader sees the one or the other, never a mixture.
    #[test]
    fn a_reader_never_sees_a_mixture() {
        let (own, peer, _segment) = page(8);
        let one = ShownQp {
            state: 3,
            peer: 1,
            pd: 1,
            rq_psn: 1,
            posted: Some(1),
            max_dest_rd_atomic: 1,
            ..qp(3)
        };
        let two = ShownQp {
            state: 3,
            peer: 2,
            pd: 2,
            rq_psn: 2,
            posted: Some(2),
            max_dest_rd_atomic: 2,
            ..qp(3)
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..20_000 {
                    own.show(1, Some(&one));
                    own.show(1, None);
                    own.show(1, Some(&two));
                    own.show(1, None);
                }
            });
            let mut seen = 0_u32;
            while !writer.is_finished() {
                if let Some(shown) = peer.look(1) {
                    assert!(shown == one || shown == two, "{shown:?}");
                    seen += 1;
                }
            }
            writer.join().unwrap();
            own.show(1, Some(&one));
            assert_eq!(peer.look(1), Some(one), "after {seen} looks");
        });
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p pmd-wire --release --lib model`
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    const RTS: u64 = 3 << 48 | 1;
    const ERR: u64 = 6 << 48 | 1;

    /// A sender gives a message up and uses its memory for something else, while its receiver copies the message and then looks whether
    /// it was given up: bytes that count are those of the message. A machine that keeps stores in order does so by itself; Arm is
    /// none.
    fn taken_back(sealed: fn()) {
        loom::model(move || {
            let page: Arc<[AtomicU64; 3]> = Arc::new([RTS, 0, 0].map(AtomicU64::new));
            let message = Arc::new(AtomicU64::new(1));
            let sender = {
                let (page, message) = (Arc::clone(&page), Arc::clone(&message));
                loom::thread::spawn(move || {
                    let [zero, one, receives] = &*page;
                    show_in([zero, one, receives], Some([ERR, 0, 0]), sealed);
                    message.store(2, Ordering::Relaxed);
                })
            };
            let copied = message.load(Ordering::Relaxed);
            let words = look_at(|i, order| page[i].load(order));
            if words.is_some_and(|words| words[0] & CONTENT == RTS) {
                assert_eq!(copied, 1, "bytes of something else count");
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn bytes_that_were_taken_back_do_not_count() {
        taken_back(|| fence(Ordering::Release));
    }

    #[test]
    #[should_panic(expected = "bytes of something else count")]
    fn a_sender_that_does_not_seal_is_found() {
        taken_back(|| ());
    }
}
