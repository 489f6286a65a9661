//! Requests of one message size, written before a loop begins.

use pmd_verbs::{Data, Imm, RemoteAddr, Sge, WorkRequest};

use super::buffers::Area;
use super::desk::Desk;
use super::failure::Failure;
use super::pattern::Pattern;
use super::service::{Act, Flavour};
use super::test::{AtomicKind, Op};

/// The local side of every queue pair's every slot.
#[derive(Debug)]
pub(super) struct Elements {
    slots: u32,
    sges: Vec<Sge>,
    /// Copies of messages that go inline; empty where none does.
    copies: Vec<Vec<u8>>,
}

impl Elements {
    /// Of messages of `size` bytes. What goes inline is copied now.
    pub(super) fn of<T: Flavour>(desk: &Desk<'_, T>, size: u32) -> Result<Self, Failure> {
        let area = local(desk)?;
        let slots = desk.params.slots();
        let each = || (0..count(desk)).flat_map(|qp| (0..slots).map(move |slot| (qp, slot)));
        let copies = if size <= desk.params.inline {
            each()
                .map(|(qp, slot)| {
                    let mut bytes = vec![0; size as usize];
                    desk.ends.memory.region.read_at(area.at(qp, slot), &mut bytes)?;
                    Ok(bytes)
                })
                .collect::<Result<_, Failure>>()?
        } else {
            Vec::new()
        };
        Ok(Self {
            slots,
            sges: each().map(|(qp, slot)| area.sge(qp, slot, size)).collect(),
            copies,
        })
    }

    /// The copies, as requests refer to them.
    pub(super) fn pieces(&self) -> Vec<[&[u8]; 1]> {
        self.copies.iter().map(|bytes| [bytes.as_slice()]).collect()
    }

    /// The data of one slot.
    pub(super) fn data<'a>(&'a self, pieces: &'a [[&'a [u8]; 1]], qp: u32, slot: u32) -> Data<'a> {
        let index = (qp * self.slots + slot) as usize;
        match pieces.get(index) {
            Some(piece) => Data::Inline(piece),
            None => Data::Sges(std::slice::from_ref(&self.sges[index])),
        }
    }
}

/// Queue pairs of the lcore.
pub(super) fn count<T: Flavour>(desk: &Desk<'_, T>) -> u32 {
    desk.params.qps_of(desk.lcore)
}

/// The local side of this test's requests: where messages come from, or where READs and atomics bring theirs.
pub(super) fn local<'a, T: Flavour>(desk: &Desk<'a, T>) -> Result<&'a Area, Failure> {
    let memory = &desk.ends.memory;
    let area = match desk.params.test.op() {
        Op::Send | Op::Write => &memory.source,
        Op::Read | Op::Atomic => &memory.sink,
    };
    area.as_ref().ok_or_else(|| Failure::device("this end has no buffers for requests"))
}

/// The peer's side of a slot.
fn remote<T: Flavour>(desk: &Desk<'_, T>, qp: u32, slot: u32, stride: u64) -> RemoteAddr {
    let first = desk.ends.peers[qp as usize].memory;
    RemoteAddr { addr: first.addr + u64::from(slot) * stride, ..first }
}

/// One operation on one slot, with a number where the peer is to tell of it.
///
/// # Errors
/// When the transport has no such operation.
pub(super) fn request<'a, T: Flavour>(
    desk: &Desk<'_, T>,
    op: Op,
    data: Data<'a>,
    qp: u32,
    slot: u32,
    number: Option<Imm>,
) -> Result<WorkRequest<'a, T>, Failure> {
    let at = remote(desk, qp, slot, local(desk)?.stride());
    let act = match (op, number) {
        (Op::Send, None) => Act::Send,
        (Op::Send, Some(imm)) => Act::SendImm(imm),
        (Op::Write, None) => Act::Write(at),
        (Op::Write, Some(imm)) => Act::WriteImm(at, imm),
        (Op::Read, _) => Act::Read(at),
        (Op::Atomic, _) => match desk.params.atomic {
            AtomicKind::FetchAdd => Act::FetchAdd(at, 1),
            AtomicKind::CompareSwap => {
                // The value that the untimed pass left: it is equal, and stays.
                let value = word(desk, 1 - desk.side(), qp, slot).wrapping_add(1);
                Act::CompareSwap(at, value, value)
            }
        },
    };
    let request = T::request(act, data, &desk.ends.peers[qp as usize].target);
    let request = request.ok_or_else(|| Failure::device("the transport has no such operation"))?;
    Ok(request.id(qp.into()))
}

/// The first atomic on a slot, which the peer filled.
///
/// # Errors
/// When the transport has no atomics.
pub(super) fn first_atomic<'a, T: Flavour>(
    desk: &Desk<'_, T>,
    data: Data<'a>,
    qp: u32,
    slot: u32,
) -> Result<WorkRequest<'a, T>, Failure> {
    let at = remote(desk, qp, slot, local(desk)?.stride());
    let value = word(desk, 1 - desk.side(), qp, slot);
    let act = match desk.params.atomic {
        AtomicKind::FetchAdd => Act::FetchAdd(at, 1),
        AtomicKind::CompareSwap => Act::CompareSwap(at, value, value.wrapping_add(1)),
    };
    let request = T::request(act, data, &desk.ends.peers[qp as usize].target);
    let request = request.ok_or_else(|| Failure::device("the transport has no atomics"))?;
    Ok(request.id(qp.into()))
}

/// The eight bytes that a side puts in a slot for atomics.
pub(super) fn word<T: Flavour>(desk: &Desk<'_, T>, side: u8, qp: u32, slot: u32) -> u64 {
    Pattern::of(side, desk.lcore, qp, slot, 8).word(0)
}
