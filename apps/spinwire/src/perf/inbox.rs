//! The receiving half of an lcore: takes what arrives, and posts receives again.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use pmd_verbs::{Completion, Data, Imm, RecvWr, WcStatus};

use super::desk::Desk;
use super::ends::receive_id;
use super::failure::Failure;
use super::limits::{CHUNK, POLL_BATCH};
use super::service::{Act, Flavour};

/// Set in the immediate of a message that only tells how far its sender's peer is.
const NEWS: u32 = 1 << 31;
/// Names the requests that carry news.
pub(super) const NEWS_ID: u64 = u64::MAX;

/// The receives of one queue pair, or of all that share them.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// Taken, and not posted again yet.
    owed: u32,
    /// The slot that is posted next.
    next: u32,
}

/// What the peer said about one queue pair's unreliable messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    /// Messages that have arrived there, or were passed over.
    pub(super) credited: u64,
    /// What has arrived here and the peer does not know of yet.
    unsaid: Option<u32>,
}

/// The receiving half of an lcore.
#[derive(Debug)]
pub(super) struct Inbox<'a> {
    lists: Vec<RecvWr<'a>>,
    lanes: Box<[Lane]>,
    /// Requests in `lists` per lane.
    per_lane: usize,
    slots: u32,
    repost: u32,
    /// Per queue pair.
    pub(super) words: Box<[Word]>,
    pub(super) received: u64,
    /// Whether news of unreliable messages go back and forth.
    has_words: bool,
}

impl<'a> Inbox<'a> {
    /// Of an lcore whose receives have been posted for the first time.
    pub(super) fn new<T: Flavour>(desk: &Desk<'a, T>) -> Self {
        let ends = desk.ends;
        let lanes = ends.lanes();
        let slots = ends.receives.len() / lanes.max(1);
        let repost = desk.params.repost();
        let mut lists = Vec::new();
        if slots > 0 {
            for (lane, sges) in ends.receives.chunks(slots).enumerate() {
                let cycle = sges.iter().enumerate().cycle().take(slots + repost as usize - 1);
                lists.extend(cycle.map(|(slot, sge)| RecvWr {
                    wr_id: receive_id(lane, slot),
                    sges: std::slice::from_ref(sge),
                }));
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "slots of queue pairs, a few thousand each"
        )]
        let slots = slots as u32;
        let next = if slots == 0 { 0 } else { desk.params.rx_depth % slots };
        Self {
            per_lane: lists.len() / lanes.max(1),
            lists,
            lanes: vec![Lane { owed: 0, next }; lanes].into(),
            slots,
            repost,
            words: vec![Word::default(); ends.qps.len()].into(),
            received: 0,
            has_words: !desk.params.transport.is_reliable(),
        }
    }

    /// Takes everything that has arrived; `each` sees a completion before its buffer can be used again.
    ///
    /// # Errors
    /// Receives that ended in error, and what `each` says.
    #[inline]
    pub(super) fn take<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        mut each: impl FnMut(&Completion) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        if self.slots == 0 {
            return Ok(0);
        }
        let mut taken = 0;
        loop {
            let mut batch = ArrayVec::<Completion, POLL_BATCH>::new();
            let count = desk.ends.recv_cq.poll_batch(&mut batch);
            for completion in &batch {
                if completion.status != WcStatus::Success {
                    return Err(Failure::of(completion));
                }
                each(completion)?;
                let at = (completion.wr_id.0 >> 32) as usize;
                let lane = &mut self.lanes[at];
                lane.owed += 1;
                if lane.owed == self.repost {
                    let first = at * self.per_lane + lane.next as usize;
                    let list = &self.lists[first..first + self.repost as usize];
                    lane.owed = 0;
                    lane.next = (lane.next + self.repost) % self.slots;
                    desk.ends.post_list(at, list)?;
                }
            }
            taken += count;
            if count < POLL_BATCH {
                return Ok(taken);
            }
        }
    }

    /// One turn of an end that only receives: counts, reads where the application would, and tells
    /// senders of unreliable messages how far this end is.
    ///
    /// # Errors
    /// As [`Inbox::take`].
    #[inline]
    pub(super) fn serve<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        reads: Option<u32>,
    ) -> Result<usize, Failure> {
        let before = self.received;
        let taken = match reads {
            None if !self.has_words => {
                let taken = self.take(desk, |_| Ok(()))?;
                self.received += taken as u64;
                taken
            }
            _ => self.messages(desk, |completion| read(desk, reads, completion))?,
        };
        if self.received != before {
            desk.shared.done.store(self.received, Ordering::Relaxed);
        }
        Ok(taken)
    }

    /// As [`Inbox::take`], where news may come between messages: `each` sees messages only, and the
    /// peer is told of them.
    ///
    /// # Errors
    /// As [`Inbox::take`].
    pub(super) fn messages<T: Flavour>(
        &mut self,
        desk: &Desk<'_, T>,
        mut each: impl FnMut(&Completion) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let mut words = std::mem::take(&mut self.words);
        let mut received = 0;
        let taken = self.take(desk, |completion| {
            if !hear(desk, &mut words, completion) {
                return Ok(());
            }
            received += 1;
            each(completion)
        });
        self.words = words;
        self.received += received;
        if self.has_words {
            self.speak(desk)?;
        }
        taken
    }

    /// Forgets how far messages were, before they are counted from 0.
    pub(super) fn forget(&mut self) {
        self.words.fill(Word::default());
    }

    /// Tells the peer what has arrived.
    fn speak<T: Flavour>(&mut self, desk: &Desk<'_, T>) -> Result<(), Failure> {
        for (at, word) in self.words.iter_mut().enumerate() {
            let Some(unsaid) = word.unsaid else { continue };
            let imm = Imm((NEWS | unsaid).to_be_bytes());
            let target = &desk.ends.peers[at].target;
            let Some(wr) = T::request(Act::SendImm(imm), Data::Sges(&[]), target) else { continue };
            match desk.ends.qps[at].post_send(&wr.id(NEWS_ID).signaled()) {
                Ok(()) => word.unsaid = None,
                // Later news covers it.
                Err(pmd_verbs::roce::engine::PostSendError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The number that a message carries, if it is no news.
pub(super) fn number_of(completion: &Completion) -> Option<u32> {
    let imm = u32::from_be_bytes(completion.imm()?.0);
    (imm & NEWS == 0).then_some(imm)
}

/// The immediate of a message with a number.
pub(super) fn numbered(number: u64) -> Imm {
    #[expect(clippy::cast_possible_truncation, reason = "counts on a circle")]
    let number = number as u32;
    Imm((number & !NEWS).to_be_bytes())
}

/// Whether it is a message; what it says is noted.
fn hear<T: Flavour>(desk: &Desk<'_, T>, words: &mut [Word], completion: &Completion) -> bool {
    let Some(imm) = completion.imm() else { return true };
    let imm = u32::from_be_bytes(imm.0);
    let lane = (completion.wr_id.0 >> 32) as usize;
    let word = &mut words[desk.ends.owner(lane, completion.qpn) as usize];
    if imm & NEWS == 0 {
        word.unsaid = Some((imm + 1) & !NEWS);
        return true;
    }
    // The number nearest to what is known, on a circle of 2^31.
    #[expect(clippy::cast_possible_truncation, reason = "counts on a circle")]
    let ahead = imm.wrapping_sub(word.credited as u32) & !NEWS;
    if ahead < NEWS / 2 {
        word.credited += u64::from(ahead);
    }
    false
}

/// Reads every byte of a message, as an application would.
#[inline]
fn read<T: Flavour>(
    desk: &Desk<'_, T>,
    reads: Option<u32>,
    completion: &Completion,
) -> Result<(), Failure> {
    let (Some(size), Some(sink)) = (reads, &desk.ends.memory.sink) else { return Ok(()) };
    let [_, _, _, _, low @ ..] = completion.wr_id.0.to_be_bytes();
    let lane = (completion.wr_id.0 >> 32) as u32;
    let (lane, slot) = (lane, u32::from_be_bytes(low));
    // Shared receives number their slots through all queue pairs.
    let (qp, slot) = (lane + slot / sink.slots(), slot % sink.slots());
    read_all(desk, sink.at(qp, slot), size)
}

/// Reads every byte from a place in the region.
#[inline]
pub(super) fn read_all<T: Flavour>(desk: &Desk<'_, T>, at: u64, size: u32) -> Result<(), Failure> {
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while done < u64::from(size) {
        #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
        let len = (u64::from(size) - done).min(CHUNK as u64) as usize;
        desk.ends.memory.region.read_at(at + done, &mut chunk[..len])?;
        std::hint::black_box(&chunk);
        done += len as u64;
    }
    Ok(())
}
