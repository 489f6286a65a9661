//! The send queue: a ring of posted requests with three cursors.
//!
//! ```text
//!     head          next         tail
//!      | in flight   | waiting    |
//! ```
//!
//! `head` is the oldest request without completion, `next` the one whose packets are sent next, and
//! `tail` where the next one is posted. Going back moves `next` toward `head`.

use crate::ids::{Lkey, PdId, Psn, Rkey, Srqn, WrId};
use crate::local::Source;
use crate::memory::{Memory, MemoryFault};
use crate::work::{Data, Datagram, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};

/// How far a send request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not looked at yet.
    Posted,
    /// Has its PSNs; some of its packets may have been sent.
    Started,
    /// Done without the peer; completes when it is the oldest.
    Done,
    /// Failed on this side; fails the queue pair when it is the oldest.
    Failed(WcStatus),
}

/// What a request does, where it is one of the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verb {
    Send,
    Write,
    Read,
    /// Something else: [`Rare::op`] says what.
    Other,
}

/// A posted send request: all that a SEND, WRITE or READ of one element needs, in one cache line, so that
/// queue pairs by the thousand keep out of each other's way.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct SendWqe {
    pub(crate) wr_id: WrId,
    /// Local path: the ring position that proves that the peer has taken the message.
    pub(crate) position: u64,
    /// WRITE and READ: where at the peer.
    addr: u64,
    rkey: Rkey,
    /// Message bytes.
    pub(crate) len: u32,
    /// PSN of the first packet; from [`Stage::Started`] on.
    pub(crate) first_psn: Psn,
    /// PSNs taken, by the request and by the answer to a READ; from [`Stage::Started`] on.
    pub(crate) packets: u32,
    pub(crate) flags: SendFlags,
    pub(crate) verb: Verb,
    pub(crate) stage: Stage,
    /// How many, or [`INLINE`].
    sges: u8,
    opcode: WcOpcode,
    /// The only element, where there is one.
    sge: Sge,
}

const _: () = assert!(size_of::<SendWqe>() == 64, "the usual request fits a cache line");

/// In place of a number of elements: the bytes were copied at post.
const INLINE: u8 = u8::MAX;

/// What only some requests have. What an earlier one left here means nothing to others.
#[derive(Clone, Copy, Debug)]
struct Rare {
    /// The operation, where the verb does not say it all.
    op: SendOp,
    /// UD only.
    to: Option<Datagram>,
    /// XRC only.
    srqn: Option<Srqn>,
}

impl SendWqe {
    /// Makes it a SEND, WRITE or READ of one element.
    #[inline(always)]
    pub(crate) fn put(
        &mut self,
        wr_id: WrId,
        (verb, at): (Verb, RemoteAddr),
        sge: &Sge,
        flags: SendFlags,
    ) {
        (self.wr_id, self.addr, self.rkey) = (wr_id, at.addr, at.rkey);
        (self.len, self.flags, self.sge) = (sge.len, flags, *sge);
        (self.verb, self.stage, self.sges, self.opcode) =
            (verb, Stage::Posted, 1, verb.wc_opcode());
    }

    const EMPTY: Self = Self {
        wr_id: WrId(0),
        position: 0,
        addr: 0,
        rkey: Rkey(0),
        len: 0,
        first_psn: Psn::new(0),
        packets: 0,
        flags: SendFlags::empty(),
        verb: Verb::Other,
        stage: Stage::Posted,
        sges: 0,
        opcode: WcOpcode::Send,
        sge: Sge { addr: 0, len: 0, lkey: Lkey(0) },
    };

    /// WRITE and READ: where at the peer.
    #[inline]
    pub(crate) const fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr, rkey: self.rkey }
    }

    /// What its completion says.
    #[inline(always)]
    pub(crate) const fn wc_opcode(&self) -> WcOpcode {
        self.opcode
    }

    /// One past the last PSN.
    #[inline]
    pub(crate) const fn end_psn(&self) -> Psn {
        self.first_psn.plus(self.packets)
    }

    /// Whether only a response with data completes it.
    #[inline]
    pub(crate) const fn is_read_or_atomic(&self) -> bool {
        matches!(self.opcode, WcOpcode::Read | WcOpcode::CompareSwap | WcOpcode::FetchAdd)
    }

    /// Whether it is carried out by this side alone.
    #[inline]
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.opcode, WcOpcode::BindWindow | WcOpcode::LocalInvalidate)
    }

    /// Its only element, where there is one.
    #[inline(always)]
    pub(crate) const fn only(&self) -> Option<&Sge> {
        if self.sges == 1 { Some(&self.sge) } else { None }
    }

    /// Whether its completion is to be seen even when all went well.
    #[inline]
    pub(crate) const fn is_signaled(&self) -> bool {
        self.flags.contains(SendFlags::SIGNALED)
    }
}

/// The inline bytes of requests in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inline<'a> {
    bytes: &'a [u8],
    each: usize,
}

impl<'a> Inline<'a> {
    /// The same from the request at the place `nth` on.
    #[inline]
    pub(crate) fn behind(self, nth: usize) -> Self {
        Self { bytes: self.bytes.get(nth * self.each..).unwrap_or(&[]), ..self }
    }

    /// Those of the request at the place `nth`, where it has some.
    #[inline(never)]
    pub(crate) fn of(self, nth: usize, wqe: &SendWqe) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(nth * self.each..).filter(|_| wqe.sges == INLINE)?;
        bytes.get(..wqe.len as usize)
    }
}

impl Verb {
    /// What the completion of its requests says.
    #[inline(always)]
    const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::Other => WcOpcode::Send,
            Self::Write => WcOpcode::Write,
            Self::Read => WcOpcode::Read,
        }
    }
}

impl SendOp {
    /// What its completion says.
    #[inline]
    pub(crate) const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) => WcOpcode::Send,
            Self::Write(_) | Self::WriteImm(..) => WcOpcode::Write,
            Self::Read(_) => WcOpcode::Read,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::BindWindow(_) => WcOpcode::BindWindow,
            Self::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
        }
    }

    /// Whether it counts against `max_rd_atomic`.
    pub(crate) const fn is_read_or_atomic(&self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether it is carried out by this side alone.
    #[inline]
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::BindWindow(_) | Self::LocalInvalidate(_))
    }
}

/// The ring. Requests are checked before they come here.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendQueue {
    wqes: Box<[SendWqe]>,
    /// All count on without end and are reduced by the ring's size.
    head: u32,
    next: u32,
    tail: u32,
    /// Where the count was when the ring last began at its beginning, as it does whenever it is empty: as deep as it may be,
    /// what is used of it stays near.
    start: u32,
    rare: Box<[Rare]>,
    /// `max_sge` elements per request, where there may be several.
    sges: Box<[Sge]>,
    max_sge: usize,
    /// `max_inline` bytes per request.
    inline: Box<[u8]>,
    max_inline: usize,
}

impl SendQueue {
    /// A queue for at least `max_wr` requests.
    pub(crate) fn new(max_wr: u32, max_sge: u32, max_inline: u32) -> Self {
        let slots = if max_wr == 0 { 0 } else { max_wr.next_power_of_two() as usize };
        let (max_sge, max_inline) = (max_sge as usize, max_inline as usize);
        Self {
            wqes: vec![SendWqe::EMPTY; slots].into(),
            rare: vec![Rare { op: SendOp::Send, to: None, srqn: None }; slots].into(),
            sges: vec![Sge::default(); if max_sge > 1 { slots * max_sge } else { 0 }].into(),
            max_sge,
            inline: vec![0; slots * max_inline].into(),
            max_inline,
            head: 0,
            next: 0,
            tail: 0,
            start: 0,
        }
    }

    /// Requests that can be posted.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.wqes.len()
    }

    /// Requests posted since the queue was made or cleared, modulo 2^32.
    pub(crate) const fn posted(&self) -> u32 {
        self.tail
    }

    /// Requests without completion.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() as usize == self.capacity()
    }

    /// Whether a request waits for its packets to be sent, or sent again.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.next != self.tail
    }

    /// Requests that wait for their packets to be sent, or sent again.
    #[inline]
    pub(crate) fn waiting_len(&self) -> u32 {
        self.tail.wrapping_sub(self.next)
    }

    /// Whether the request to send next is also the oldest.
    #[inline]
    pub(crate) fn next_is_head(&self) -> bool {
        self.next == self.head
    }

    /// Whether nothing that was started waits for its completion.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.head().is_none_or(|wqe| wqe.stage == Stage::Posted)
    }

    /// Appends requests as long as `put` writes one into the place that it is lent; returns how many. They
    /// end where the queue is full, or its memory ends.
    #[inline(always)]
    pub(crate) fn fill(&mut self, mut put: impl FnMut(&mut SendWqe) -> bool) -> u32 {
        self.begin_anew();
        let at = self.index(self.tail);
        let free = self.wqes.len() - self.len() as usize;
        let count = free.min(self.wqes.len().saturating_sub(at));
        let mut posted = 0;
        for wqe in &mut self.wqes[at..at + count] {
            if !put(wqe) {
                break;
            }
            posted += 1;
        }
        self.tail = self.tail.wrapping_add(posted);
        posted
    }

    /// An empty ring has no places to keep.
    #[inline(always)]
    fn begin_anew(&mut self) {
        if self.is_empty() {
            self.start = self.tail;
        }
    }

    /// Appends a request, if there is room and `put` writes one into the place that it is lent.
    #[inline(always)]
    pub(crate) fn post_only(&mut self, put: impl FnOnce(&mut SendWqe) -> bool) -> bool {
        self.begin_anew();
        let at = self.index(self.tail);
        let is_posted = !self.is_full() && self.wqes.get_mut(at).is_some_and(put);
        self.tail = self.tail.wrapping_add(u32::from(is_posted));
        is_posted
    }

    /// Appends a request; `len` is its message length and `flags` what holds for it.
    #[inline]
    pub(crate) fn post(&mut self, wr: &SendWr<'_>, len: u32, flags: SendFlags) {
        debug_assert!(!self.is_full());
        self.begin_anew();
        let index = self.index(self.tail);
        let wqe = &mut self.wqes[index];
        wqe.wr_id = wr.wr_id;
        wqe.len = len;
        wqe.flags = flags;
        wqe.stage = Stage::Posted;
        wqe.opcode = wr.op.wc_opcode();
        let (verb, at) = match wr.op {
            SendOp::Send => (Verb::Send, RemoteAddr::default()),
            SendOp::Write(at) => (Verb::Write, at),
            SendOp::Read(at) => (Verb::Read, at),
            _ => (Verb::Other, RemoteAddr::default()),
        };
        wqe.verb = verb;
        (wqe.addr, wqe.rkey) = (at.addr, at.rkey);
        if verb == Verb::Other || wr.to.is_some() || wr.srqn.is_some() {
            self.rare[index] = Rare { op: wr.op, to: wr.to, srqn: wr.srqn };
        }
        if let Data::Sges([only]) = wr.data {
            (wqe.sges, wqe.sge) = (1, *only);
        } else {
            self.put_data(index, &wr.data);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline(never)]
    fn put_data(&mut self, index: usize, data: &Data<'_>) {
        let wqe = &mut self.wqes[index];
        match data {
            Data::Sges(sges) => {
                let at = index * self.max_sge;
                #[expect(clippy::cast_possible_truncation, reason = "at most MAX_SGE")]
                let count = sges.len() as u8;
                wqe.sges = count;
                if count > 0 {
                    self.sges[at..at + sges.len()].copy_from_slice(sges);
                }
            }
            Data::Inline(pieces) => {
                wqe.sges = INLINE;
                self.put_inline(index, pieces);
            }
        }
    }

    fn put_inline(&mut self, index: usize, pieces: &[&[u8]]) {
        let mut at = index * self.max_inline;
        for piece in pieces {
            self.inline[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
    }

    /// The oldest request without completion.
    #[inline]
    pub(crate) fn head(&self) -> Option<&SendWqe> {
        (!self.is_empty()).then(|| &self.wqes[self.index(self.head)])
    }

    /// The request whose packets are sent next.
    #[inline]
    pub(crate) fn next(&self) -> Option<&SendWqe> {
        self.has_next().then(|| &self.wqes[self.index(self.next)])
    }

    /// What that is to do.
    #[inline]
    pub(crate) fn next_op(&self) -> Option<SendOp> {
        let wqe = self.next()?;
        Some(match wqe.verb {
            Verb::Send => SendOp::Send,
            Verb::Write => SendOp::Write(wqe.remote()),
            Verb::Read => SendOp::Read(wqe.remote()),
            Verb::Other => self.rare[self.index(self.next)].op,
        })
    }

    /// UD: where it goes.
    pub(crate) fn next_to(&self) -> Option<Datagram> {
        self.rare.get(self.index(self.next)).and_then(|rare| rare.to)
    }

    /// XRC: the shared receive queue that it is for.
    pub(crate) fn next_srqn(&self) -> Option<Srqn> {
        self.rare.get(self.index(self.next)).and_then(|rare| rare.srqn)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn next_mut(&mut self) -> Option<&mut SendWqe> {
        let index = self.has_next().then(|| self.index(self.next))?;
        Some(&mut self.wqes[index])
    }

    /// Requests in a row from the one that is sent next on, at most so many, and their inline bytes.
    #[inline]
    pub(crate) fn waiting(&mut self, most: usize) -> (&mut [SendWqe], Inline<'_>) {
        let at = self.index(self.next);
        let there = self.tail.wrapping_sub(self.next) as usize;
        let count = there.min(most).min(self.wqes.len().saturating_sub(at));
        let bytes = self.inline.get(at * self.max_inline..).unwrap_or(&[]);
        (&mut self.wqes[at..at + count], Inline { bytes, each: self.max_inline })
    }

    /// The request that is sent next, where no other waits behind it.
    #[inline]
    pub(crate) fn next_alone(&mut self) -> Option<&mut SendWqe> {
        if self.tail.wrapping_sub(self.next) != 1 {
            return None;
        }
        let at = self.index(self.next);
        self.wqes.get_mut(at)
    }

    /// The oldest request, where it was sent and no other is posted.
    #[inline]
    pub(crate) fn sent_alone(&self) -> Option<&SendWqe> {
        let is_alone = self.next == self.tail && self.len() == 1;
        if is_alone { self.wqes.get(self.index(self.head)) } else { None }
    }

    /// The oldest requests that lie in a row before the one that is sent next.
    #[inline]
    pub(crate) fn in_flight(&self) -> &[SendWqe] {
        let at = self.index(self.head);
        let there = self.next.wrapping_sub(self.head) as usize;
        let count = there.min(self.wqes.len().saturating_sub(at));
        &self.wqes[at..at + count]
    }

    /// Goes on by so many of those that were [waiting](Self::waiting), and takes so many of the oldest out.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most the capacity")]
    pub(crate) fn pass(&mut self, count: usize, out: usize) {
        self.next = self.next.wrapping_add(count as u32);
        self.head = self.head.wrapping_add(out as u32);
    }

    /// Goes on to the following request.
    #[inline]
    pub(crate) fn advance(&mut self) {
        debug_assert!(self.has_next());
        self.next = self.next.wrapping_add(1);
    }

    /// Goes back to the oldest request.
    pub(crate) fn go_back(&mut self) {
        self.next = self.head;
    }

    /// Takes the oldest request out, which there is. True: the cursor was at it, and is at the next.
    #[inline]
    pub(crate) fn retire(&mut self) -> bool {
        debug_assert!(!self.is_empty());
        let moves = self.next_is_head();
        self.head = self.head.wrapping_add(1);
        if moves {
            self.next = self.head;
        }
        moves
    }

    /// The requests before `next`: sent, and not gone back to.
    pub(crate) fn sent(&self) -> impl Iterator<Item = &SendWqe> {
        let count = self.next.wrapping_sub(self.head);
        (0..count).map(|nth| &self.wqes[self.index(self.head.wrapping_add(nth))])
    }

    /// The bytes of the request `next`.
    #[inline]
    pub(crate) fn next_source(&self) -> Source<'_> {
        self.source(self.next)
    }

    /// The elements that the oldest request reads into.
    pub(crate) fn head_sges(&self) -> &[Sge] {
        match self.source(self.head) {
            Source::Sges(sges) => sges,
            Source::Inline(_) => &[],
        }
    }

    /// Forgets everything posted.
    pub(crate) fn clear(&mut self) {
        self.head = 0;
        self.next = 0;
        self.tail = 0;
        self.start = 0;
    }

    /// Bytes of the ring and what belongs to it.
    pub(crate) fn memory_bytes(&self) -> usize {
        let rings = size_of_val(&*self.wqes) + size_of_val(&*self.rare);
        rings + size_of_val(&*self.sges) + self.inline.len()
    }

    #[inline]
    fn source(&self, counter: u32) -> Source<'_> {
        let index = self.index(counter);
        let wqe = &self.wqes[index];
        match wqe.sges {
            1 => Source::Sges(core::slice::from_ref(&wqe.sge)),
            INLINE => {
                let at = index * self.max_inline;
                Source::Inline(&self.inline[at..at + wqe.len as usize])
            }
            0 => Source::Sges(&[]),
            count => {
                let at = index * self.max_sge;
                Source::Sges(&self.sges[at..at + usize::from(count)])
            }
        }
    }

    #[inline]
    fn index(&self, counter: u32) -> usize {
        counter.wrapping_sub(self.start) as usize & self.wqes.len().wrapping_sub(1)
    }
}

/// Copies message bytes `offset ..` into a packet.
pub(crate) fn gather(
    mem: &impl Memory,
    pd: PdId,
    source: Source<'_>,
    mut offset: u32,
    mut into: &mut [u8],
) -> Result<(), MemoryFault> {
    let sges = match source {
        Source::Inline(bytes) => {
            let at = offset as usize;
            into.copy_from_slice(&bytes[at..at + into.len()]);
            return Ok(());
        }
        Source::Sges(sges) => sges,
    };
    for sge in sges {
        if into.is_empty() {
            break;
        }
        if offset >= sge.len {
            offset -= sge.len;
            continue;
        }
        let (now, rest) = into.split_at_mut(into.len().min((sge.len - offset) as usize));
        mem.gather(pd, sge, offset, now)?;
        into = rest;
        offset = 0;
    }
    Ok(())
}
