//! Answers on their way out: READ responses and atomic results from a ring of the newest requests,
//! ACKs and NAKs between them, all in order of their PSNs.

use super::{Answer, Responder, credits, inbound::Fault, refuse};
use crate::device::{Device, Io};
use crate::frame::{self, Sent};
use crate::ids::{PathMtu, Psn};
use crate::limits::MAX_RD_ATOMIC;
use crate::memory::Memory;
use crate::qp::Qp;
use crate::sink::{CqSink, TxSink};
use crate::turn::Turn;
use crate::wire::{Aeth, AtomicAckEth, Bth, Headers, Msn, Opcode, Operation, Reth, Syndrome};
use crate::work::RemoteAddr;

/// What a READ or atomic is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Memory as it is when the responses leave.
    Read { at: RemoteAddr, len: u32 },
    /// The value before the one and only execution.
    Atomic { original: u64 },
}

/// A READ or atomic that was accepted, kept until as many newer ones have come as may be
/// outstanding: so long can the peer ask for it again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    psn: Psn,
    packets: u32,
    msn: Msn,
    what: What,
    /// First packet of the responses under way, and the next one of them.
    begin: u32,
    next: u32,
    /// One past the last byte they bring.
    end: u32,
    /// Whether the peer asked for it before: then it may be forgotten for a newer one.
    again: bool,
}

impl Reply {
    pub(crate) const fn new(psn: Psn, packets: u32, msn: Msn, what: What) -> Self {
        let end = match what {
            What::Read { len, .. } => len,
            What::Atomic { .. } => 0,
        };
        Self { psn, packets, msn, what, begin: 0, next: 0, end, again: false }
    }
}

/// The newest READs and atomics, and which of them have responses due.
#[derive(Debug)]
pub(crate) struct Replies {
    ring: Box<[Reply]>,
    /// READs and atomics accepted since the ring was made.
    accepted: usize,
    /// By place in the ring.
    due: u128,
}

const _: () = assert!(MAX_RD_ATOMIC as u32 <= u128::BITS);

impl Replies {
    pub(crate) fn new() -> Self {
        Self { ring: Box::default(), accepted: 0, due: 0 }
    }

    /// Forgets every request; the room for them stays.
    pub(crate) const fn clear(&mut self) {
        self.accepted = 0;
        self.due = 0;
    }

    /// Makes room for `depth` requests. The newest ones stay.
    pub(crate) fn resize(&mut self, depth: u8) {
        let depth = usize::from(depth);
        if depth == self.ring.len() {
            return;
        }
        let old = core::mem::replace(self, Self::new());
        let empty = Reply::new(Psn::new(0), 0, Msn::new(0), What::Atomic { original: 0 });
        self.ring = vec![empty; depth].into();
        for place in old.places().skip(old.known().saturating_sub(depth)) {
            let to = self.push(old.ring[place]);
            self.due |= (old.due >> place & 1) << to;
        }
    }

    /// Whether another READ or atomic may come: the peer keeps to `max_dest_rd_atomic` as long as
    /// the oldest one has been answered, at least once.
    pub(crate) fn has_room(&self) -> bool {
        let Some(oldest) = self.accepted.checked_rem(self.ring.len()) else { return false };
        self.due >> oldest & 1 == 0 || self.ring[oldest].again
    }

    /// Keeps a request; its responses are due.
    pub(crate) fn accept(&mut self, reply: Reply) {
        let place = self.push(reply);
        self.due |= 1 << place;
    }

    fn push(&mut self, reply: Reply) -> usize {
        let place = self.accepted % self.ring.len();
        self.ring[place] = reply;
        self.accepted += 1;
        place
    }

    /// Has a READ, or its rest from `psn` on, answered again. False: not known, or not the same.
    pub(crate) fn read_again(&mut self, psn: Psn, reth: &Reth, mtu: PathMtu) -> bool {
        let Some(place) = self.find(psn) else { return false };
        let reply = &mut self.ring[place];
        let What::Read { at, len } = reply.what else { return false };
        let number = psn.since(reply.psn).cast_unsigned();
        let offset = number * mtu.bytes_u32();
        let is_part = at.rkey == reth.rkey
            && at.addr.wrapping_add(offset.into()) == reth.va
            && reth.dma_len <= len - offset;
        if is_part {
            *reply = Reply {
                begin: number,
                next: number,
                end: offset + reth.dma_len,
                again: true,
                ..*reply
            };
            self.due |= 1 << place;
        }
        is_part
    }

    /// Has an atomic answered again. False: not known.
    pub(crate) fn tell_again(&mut self, psn: Psn) -> bool {
        let Some(place) = self.find(psn) else { return false };
        let is_atomic = matches!(self.ring[place].what, What::Atomic { .. });
        if is_atomic {
            self.ring[place].again = true;
            self.due |= 1 << place;
        }
        is_atomic
    }

    pub(crate) const fn has_due(&self) -> bool {
        self.due != 0
    }

    pub(crate) const fn forget_due(&mut self) {
        self.due = 0;
    }

    /// Bytes of the ring.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.ring)
    }

    /// The request among whose PSNs this one is.
    fn find(&self, psn: Psn) -> Option<usize> {
        self.places().find(|place| {
            let Reply { psn: first, packets, .. } = self.ring[*place];
            (0..i64::from(packets)).contains(&i64::from(psn.since(first)))
        })
    }

    /// The oldest request with responses due.
    fn oldest_due(&self) -> Option<usize> {
        if self.due == 0 {
            return None;
        }
        self.places().find(|place| self.due >> place & 1 == 1)
    }

    /// Requests in the ring.
    fn known(&self) -> usize {
        self.accepted.min(self.ring.len())
    }

    /// Their places, oldest first.
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        (self.accepted - self.known()..self.accepted).map(|count| count % self.ring.len())
    }
}

/// Sends what is due, at most `budget` frames.
pub(crate) fn transmit<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
    budget: usize,
) -> Turn {
    let mut done = 0;
    while qp.responder.has_due() {
        if done == budget {
            return Turn::more(done);
        }
        match transmit_one(qp, dev, io, tx) {
            Sent::Yes => done += 1,
            Sent::Full => return Turn::wire_full(done),
            // The responses before it are the peer's; it learns that there are no more.
            Sent::Fault(_) => refuse_response(qp, dev, io),
        }
    }
    Turn::idle(done)
}

/// Sends the answer with the lowest PSN. An ACK that came to be due before a READ goes before its
/// responses, which would say the same.
fn transmit_one<M: Memory, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
) -> Sent {
    let due = qp.responder.replies.oldest_due();
    let first = due.map(|place| qp.responder.replies.ring[place].psn);
    match (qp.responder.ack, first) {
        (Some(ack), None) => send_answer(qp, dev, tx, ack, |responder| responder.ack = None),
        (Some(ack), Some(first)) if ack.psn.since(first) < 0 => {
            send_answer(qp, dev, tx, ack, |responder| responder.ack = None)
        }
        _ => match (due, qp.responder.refusal) {
            (Some(place), _) => send_response(qp, dev, io, tx, place),
            (None, Some(refusal)) => {
                send_answer(qp, dev, tx, refusal, |responder| responder.refusal = None)
            }
            (None, None) => Sent::Yes,
        },
    }
}

fn send_answer(
    qp: &mut Qp,
    dev: &mut Device,
    tx: &mut impl TxSink,
    answer: Answer,
    sent: impl FnOnce(&mut Responder),
) -> Sent {
    let syndrome = match answer.syndrome {
        Syndrome::Ack { .. } => credits(qp),
        other => other,
    };
    let mut headers = headers(qp, Operation::Acknowledge, answer.psn);
    headers.aeth = Some(Aeth { syndrome, msn: answer.msn });
    let outcome = frame::send(tx, dev, &qp.flow, &headers, 0, |_| Ok(()));
    if outcome == Sent::Yes {
        sent(&mut qp.responder);
    }
    outcome
}

fn send_response<M: Memory, C>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    tx: &mut impl TxSink,
    place: usize,
) -> Sent {
    let reply = qp.responder.replies.ring[place];
    let aeth = Some(Aeth { syndrome: credits(qp), msn: reply.msn });
    let (at, offset) = match reply.what {
        What::Atomic { original } => {
            let mut headers = headers(qp, Operation::AtomicAcknowledge, reply.psn);
            headers.aeth = aeth;
            headers.atomic_ack_eth = Some(AtomicAckEth { original });
            let sent = frame::send(tx, dev, &qp.flow, &headers, 0, |_| Ok(()));
            if sent == Sent::Yes {
                qp.responder.replies.due &= !(1 << place);
            }
            return sent;
        }
        What::Read { at, .. } => (at, qp.offset_of(reply.next)),
    };
    let rest = (reply.end - offset) as usize;
    let len = rest.min(qp.attr.path_mtu.bytes());
    let (is_first, is_last) = (reply.next == reply.begin, len == rest);
    let operation = match (is_first, is_last) {
        (true, true) => Operation::ReadResponseOnly,
        (true, false) => Operation::ReadResponseFirst,
        (false, false) => Operation::ReadResponseMiddle,
        (false, true) => Operation::ReadResponseLast,
    };
    let mut headers = headers(qp, operation, reply.psn.plus(reply.next));
    headers.aeth = aeth.filter(|_| operation != Operation::ReadResponseMiddle);
    let (asker, mem) = (qp.asker(), &*io.mem);
    let from = RemoteAddr { addr: at.addr.wrapping_add(offset.into()), ..at };
    let sent = frame::send(tx, dev, &qp.flow, &headers, len, |out| {
        if out.is_empty() { Ok(()) } else { mem.read_remote(asker, from, out) }
    });
    if sent == Sent::Yes {
        let replies = &mut qp.responder.replies;
        replies.ring[place].next += 1;
        if is_last {
            replies.due &= !(1 << place);
        }
    }
    sent
}

fn headers(qp: &Qp, operation: Operation, psn: Psn) -> Headers {
    let opcode = Opcode::of(qp.class(), operation).expect("a reliable class has all responses");
    let mut headers = Headers::new(Bth::new(opcode, qp.attr.dest_qpn, psn));
    headers.bth.mig_req = qp.mig_req();
    headers
}

/// Memory that a READ was granted is gone in the middle of the responses: the rest is refused at
/// the PSN that it would have had.
fn refuse_response<M: Memory, C: CqSink>(qp: &mut Qp, dev: &mut Device, io: &mut Io<'_, M, C>) {
    let replies = &mut qp.responder.replies;
    let Some(place) = replies.oldest_due() else { return };
    let Reply { psn, next, msn, .. } = replies.ring[place];
    replies.forget_due();
    // The message is not complete after all.
    let msn = Msn::new(msn.value().wrapping_sub(1));
    refuse::refuse(qp, dev, io, Fault::RemoteAccess, psn.plus(next), msn);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Rkey;

    const AT: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: Rkey(7) };

    fn read(psn: u32, packets: u32) -> Reply {
        let len = packets * 1024;
        Reply::new(Psn::new(psn), packets, Msn::new(0), What::Read { at: AT, len })
    }

    fn ring(depth: u8, psns: &[u32]) -> Replies {
        let mut replies = Replies::new();
        replies.resize(depth);
        psns.iter().for_each(|psn| replies.accept(read(*psn, 2)));
        replies
    }

    fn again(replies: &mut Replies, psn: u32) -> bool {
        let offset = psn % 2 * 1024;
        let reth = Reth { va: AT.addr + u64::from(offset), rkey: AT.rkey, dma_len: 2048 - offset };
        replies.read_again(Psn::new(psn), &reth, PathMtu::B1024)
    }

    #[test]
    fn no_room_while_the_oldest_was_never_answered() {
        let mut replies = ring(2, &[0]);
        assert!(replies.has_room());
        replies.accept(read(2, 2));
        assert!(!replies.has_room());
        replies.forget_due();
        assert!(replies.has_room());
        // A repeated answer that is still due does not count: the peer has moved on.
        assert!(again(&mut replies, 1));
        assert!(replies.has_room());
        assert!(!ring(0, &[]).has_room());
    }

    #[test]
    fn the_newest_requests_are_known_and_the_oldest_due_goes_first() {
        let mut replies = ring(4, &[0, 2, 4, 6, 8]);
        replies.forget_due();
        assert!(!again(&mut replies, 0), "recycled");
        assert!(again(&mut replies, 8) && again(&mut replies, 3));
        let oldest = replies.oldest_due().map(|place| replies.ring[place].psn);
        assert_eq!(oldest, Some(Psn::new(2)));
    }

    /// SQD lets `max_dest_rd_atomic` change: what the peer may still ask for stays.
    #[test]
    fn resizing_keeps_the_newest() {
        let mut replies = ring(4, &[0, 2, 4, 6]);
        replies.resize(2);
        assert_eq!((replies.known(), replies.has_room()), (2, false));
        assert!(!again(&mut replies, 2) && again(&mut replies, 5) && again(&mut replies, 6));
        replies.resize(8);
        assert_eq!((replies.known(), replies.has_room()), (2, true));
        assert!(again(&mut replies, 6));
    }
}
