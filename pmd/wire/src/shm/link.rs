//! A link: one lcore of a peer, as one lcore of this device sees it.
//!
//! Each side of a link owns one segment, which the other maps read-only: in its first line the position up to which it has taken
//! the other's records, then the ring toward the other.

use core::sync::atomic::{Ordering, compiler_fence, fence};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pmd_mem::{
    AccessError, Announce, KeyCache, Load, PeerTable, PeerWord, PeerWords, Segment, Word, Words,
};

use super::fdpass;
use super::handshake::Message;
use super::limits::{RECORD_DIVISOR, RESERVE_DIVISOR, RING_BYTES_MAX, RING_BYTES_MIN};
use super::page::{ASLEEP_AT, PeerPage};
use super::payload::Inbound;
use super::port::Shared;
use super::reach::{Own, PeerRegion, Reach};
use super::ring;
use super::short::Ends;
use super::{Garbage, Nonce, Refusal};

/// Where the ring begins in a segment.
pub(crate) const RING_AT: u64 = 128;
const CONSUMED_AT: u64 = 0;

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Process id as this process sees it; 0 when it is not visible from here.
    pub pid: u32,
    /// The device prefix, top bits of its QPNs.
    pub prefix: u8,
    /// The lcore of that device.
    pub lcore: u8,
    /// The device's nonce.
    pub nonce: Nonce,
}

/// Why a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    /// Its process ended without a word.
    #[error("the peer process died")]
    Dead,
    /// It closed its device.
    #[error("the peer closed its device")]
    Closed,
    /// It gave this side up.
    #[error("the peer gave this process up: {0}")]
    GivenUp(Refusal),
    /// It wrote nonsense into its ring.
    #[error("the peer is broken: {0}")]
    Garbage(Garbage),
    /// It broke the protocol of the control socket.
    #[error("the peer broke the control protocol: {0}")]
    Protocol(Refusal),
    /// It was still copying long after the memory was deregistered.
    #[error("the peer did not leave deregistered memory in time")]
    Stuck,
    /// It does not read its control socket.
    #[error("the peer does not read its control socket")]
    Deaf,
    /// This device is closing.
    #[error("this device closed")]
    Shutdown,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) writer: ring::Writer<Words, PeerWord>,
    /// The segment this side owns.
    pub(crate) segment: Arc<Segment>,
    /// Largest record in bytes.
    pub(crate) largest: u64,
    /// Whose queue pairs short headers speak of.
    pub(crate) ends: Ends,
    pub(crate) reach: Arc<Reach>,
    /// The peer's keys that direct operations used before.
    pub(crate) keys: KeyCache,
    pub(crate) page: PeerPage,
    pub(crate) waker: Waker,
    /// Bytes of the ring kept for answers.
    pub(crate) reserve: u64,
    /// Up to where the peer had taken records before the last of its answers that were handed in.
    pub(crate) judged: u64,
    /// What it has taken was not looked at the last time: next time it is.
    pub(crate) is_behind: bool,
    /// Whether the lcore knows that there may be something to publish.
    pub(crate) is_queued: bool,
}

/// Wakes the lcore at the other end.
#[derive(Debug)]
pub(crate) struct Waker {
    /// Not zero while it sleeps.
    asleep: PeerWord,
    bell: Bell,
}

/// How to wake an lcore.
#[derive(Clone, Debug)]
pub(crate) enum Bell {
    /// An lcore of this device.
    Inside(Arc<Shared>, u8),
    /// By the control thread of its process.
    Outside(Arc<OwnedFd>, u8),
}

/// A link with both halves; the receiving one is lent out while records are taken, so that they can be answered.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: PeerInfo,
    /// Names the peer's device toward the control thread; 0 for lcores of this device.
    pub(crate) key: u64,
    pub(crate) out: Outbound,
    pub(crate) inbound: Option<Box<Inbound>>,
}

/// The ring's bytes in a segment of so many.
pub(crate) fn ring_bytes(segment_bytes: u64) -> Option<u64> {
    let capacity = 1 << segment_bytes.checked_sub(RING_AT)?.checked_ilog2()?;
    (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&capacity).then_some(capacity)
}

/// The parts of a link that both ways of making one have to find.
pub(crate) struct Parts<'a> {
    pub(crate) peer: PeerInfo,
    /// This side's device prefix and lcore.
    pub(crate) here: (u8, u8),
    pub(crate) key: u64,
    /// The segment this side writes.
    pub(crate) mine: &'a Arc<Segment>,
    /// The segment the peer writes.
    pub(crate) theirs: &'a Arc<Segment>,
    /// The peer lcore's page.
    pub(crate) page: &'a Arc<Segment>,
    pub(crate) table: PeerTable,
    pub(crate) regions: Vec<Option<PeerRegion>>,
    pub(crate) bell: Bell,
    pub(crate) own: Arc<Own>,
}

impl Link {
    /// Joins two segments whose sizes [`ring_bytes`] accepts.
    pub(crate) fn new(parts: Parts<'_>) -> Result<Self, AccessError> {
        let Parts { peer, here, key, mine, theirs, page, table, regions, bell, own } = parts;
        let size = |segment: &Segment| {
            let outside = AccessError::OutOfBounds {
                offset: RING_AT,
                len: RING_BYTES_MIN,
                size: segment.len(),
            };
            ring_bytes(segment.len()).ok_or(outside)
        };
        let words = |bytes: u64| usize::try_from(bytes / 8).unwrap_or(usize::MAX);
        let (out_bytes, in_bytes) = (size(mine)?, size(theirs)?);
        let (keys, sources) = (table.cache(), table.cache());
        let ends = Ends::new((peer.prefix, peer.lcore), here);
        let reach = Arc::new(Reach { table, regions });
        let out = Outbound {
            writer: ring::Writer::new(
                Words::new(mine, RING_AT, words(out_bytes))?,
                PeerWord::new(theirs, CONSUMED_AT)?,
                out_bytes,
            ),
            segment: Arc::clone(mine),
            keys,
            ends,
            largest: out_bytes / RECORD_DIVISOR,
            reach: Arc::clone(&reach),
            page: PeerPage::new(page)?,
            waker: Waker { asleep: PeerWord::new(page, ASLEEP_AT)?, bell },
            reserve: out_bytes / RESERVE_DIVISOR,
            judged: 0,
            is_behind: false,
            is_queued: false,
        };
        let inbound = Inbound {
            reader: ring::Reader::new(
                PeerWords::new(theirs, RING_AT, words(in_bytes))?,
                Word::new(mine, CONSUMED_AT)?,
                in_bytes,
            ),
            segment: Arc::clone(theirs),
            largest: in_bytes / RECORD_DIVISOR,
            ends: ends.reversed(),
            reach,
            sources,
            keys: own.table.cache(),
            own,
        };
        Ok(Self { peer, key, out, inbound: Some(Box::new(inbound)) })
    }

    /// Makes visible what was pushed, and then what was taken.
    ///
    /// In this order: a peer that sees what was taken finds the answers to it, and a store to the index, which the peer has looked
    /// at and so takes long, does not hold up the records.
    #[inline]
    pub(crate) fn publish(&mut self, announce: Announce) {
        self.out.is_queued = false;
        let has_records = self.out.writer.publish();
        let has_room = self.inbound.as_mut().is_some_and(|inbound| inbound.reader.report());
        if has_records || has_room {
            self.out.waker.wake(announce);
        }
    }

    /// Changes what is known of the peer's regions.
    pub(crate) fn change_reach(&mut self, change: impl FnOnce(&mut Vec<Option<PeerRegion>>)) {
        change(&mut Arc::make_mut(&mut self.out.reach).regions);
        self.out.keys.clear();
        if let Some(inbound) = &mut self.inbound {
            inbound.sources.clear();
            inbound.reach = Arc::clone(&self.out.reach);
        }
    }

    /// Changes what is known of this device's regions.
    pub(crate) fn change_own(&mut self, own: &Arc<Own>) {
        if let Some(inbound) = &mut self.inbound {
            inbound.keys.clear();
            inbound.own = Arc::clone(own);
        }
        if self.key == 0 {
            let regions = own
                .regions
                .iter()
                .map(|r| r.as_ref().map(|r| PeerRegion::Mapped(Arc::clone(&r.segment))))
                .collect();
            self.change_reach(|reach| *reach = regions);
        }
    }
}

impl Waker {
    /// Wakes the peer, if it sleeps: to be called after what it should see was stored.
    #[inline]
    pub(crate) fn wake(&self, announce: Announce) {
        // The sleeper says that it sleeps and then looks at the rings; here it is the other way round. One of the two sees the
        // other, by the sleeper's membarrier or by this fence.
        match announce {
            Announce::Plain => compiler_fence(Ordering::SeqCst),
            Announce::FullFence => fence(Ordering::SeqCst),
        }
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        match &self.bell {
            Bell::Inside(shared, lcore) => shared.mailbox(*lcore).ring(),
            Bell::Outside(socket, lcore) => {
                // Without room in the socket the peer's control thread is awake, and far behind; its lcore's timer helps.
                fdpass::send(socket, &Message::Wake { lcore: *lcore }.encode(), &[])
                    .unwrap_or_default();
            }
        }
    }
}

impl ring::Words for PeerWords {
    #[inline]
    fn load(&self, at: u64, order: Ordering) -> u64 {
        Self::load(self, index(at), order)
    }
}

impl ring::WordsMut for Words {
    #[inline]
    fn store(&self, at: u64, value: u64, order: Ordering) {
        self.at(index(at)).store(value, order);
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "below the capacity of a ring")]
pub(crate) const fn index(at: u64) -> usize {
    at as usize / 8
}
