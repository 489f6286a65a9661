//! What must come of a list of operations, worked out the trivially right way: one after the other,
//! on plain vectors.

use pmd_roce::work::{Imm, RemoteAddr, SendFlags, SendOp};
use pmd_sim::Rng;

/// Longest message.
pub(crate) const LONGEST: usize = 3000;
/// Requests of one direction at most.
pub(crate) const MOST: usize = 40;
/// The part of a region that the peer's one-sided operations go to.
pub(crate) const TARGET: core::ops::Range<usize> = 0..4096;

/// Where request `index` has its own bytes.
pub(crate) const fn slot(index: usize) -> u64 {
    (TARGET.end + index * (LONGEST + 8)) as u64
}

/// Where receive `index` puts what arrives.
pub(crate) const fn receive_slot(index: usize) -> u64 {
    slot(MOST + index)
}

/// What kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendImm(Imm),
    Write,
    WriteImm(Imm),
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd(u64),
}

impl Kind {
    pub(crate) const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::WriteImm(_))
    }

    pub(crate) const fn brings_data(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap { .. } | Self::FetchAdd(_))
    }
}

/// A request, and what must come of it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// Offset in the target.
    pub(crate) at: usize,
    /// Its bytes; for an operation that brings data, the bytes it must bring.
    pub(crate) bytes: Vec<u8>,
    pub(crate) flags: SendFlags,
    pub(crate) inline: bool,
    /// Where the elements divide the bytes.
    pub(crate) cuts: Vec<usize>,
}

impl Request {
    /// The operation toward a target that begins at `target`.
    pub(crate) fn op(&self, target: RemoteAddr) -> SendOp {
        let at = RemoteAddr { addr: target.addr + self.at as u64, ..target };
        match self.kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm(imm) => SendOp::SendImm(imm),
            Kind::Write => SendOp::Write(at),
            Kind::WriteImm(imm) => SendOp::WriteImm(at, imm),
            Kind::Read => SendOp::Read(at),
            Kind::CompareSwap { compare, swap } => SendOp::CompareSwap { at, compare, swap },
            Kind::FetchAdd(add) => SendOp::FetchAdd { at, add },
        }
    }

    fn range(&self) -> core::ops::Range<usize> {
        self.at..self.at + self.bytes.len()
    }
}

/// What a receive must find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Its bytes; none for a WRITE with immediate.
    pub(crate) bytes: Vec<u8>,
    /// What the completion says.
    pub(crate) byte_len: usize,
    pub(crate) imm: Option<Imm>,
    pub(crate) is_write: bool,
}

/// Everything one side asks of the other, and what must come of it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) requests: Vec<Request>,
    pub(crate) messages: Vec<Message>,
    /// The target in the end.
    pub(crate) target: Vec<u8>,
}

impl Script {
    /// A random list of operations of an RC queue pair, or of a UC one.
    pub(crate) fn random(rng: &mut Rng, unreliable: bool) -> Self {
        let mut script =
            Self { requests: Vec::new(), messages: Vec::new(), target: vec![0; TARGET.len()] };
        // READs that were not waited for: a WRITE to the same bytes may come before their answer.
        let mut reads: Vec<core::ops::Range<usize>> = Vec::new();
        for _ in 0..rng.between(5, MOST as u64) {
            let mut request = random_request(rng, unreliable);
            let overlaps = |other: &core::ops::Range<usize>| {
                request.at < other.end && other.start < request.at + request.bytes.len()
            };
            let changes = !matches!(request.kind, Kind::Send | Kind::SendImm(_) | Kind::Read);
            if changes && reads.iter().any(overlaps) {
                request.flags |= SendFlags::FENCE;
            }
            if request.flags.contains(SendFlags::FENCE) {
                reads.clear();
            }
            if request.kind == Kind::Read {
                reads.push(request.range());
            }
            script.execute(request);
        }
        if let Some(last) = script.requests.last_mut() {
            last.flags |= SendFlags::SIGNALED;
        }
        script
    }

    fn execute(&mut self, mut request: Request) {
        let range = request.range();
        let mut message = Message {
            bytes: request.bytes.clone(),
            byte_len: request.bytes.len(),
            imm: None,
            is_write: false,
        };
        match request.kind {
            Kind::Send => {}
            Kind::SendImm(imm) => message.imm = Some(imm),
            Kind::Write => self.target[range].copy_from_slice(&request.bytes),
            Kind::WriteImm(imm) => {
                self.target[range].copy_from_slice(&request.bytes);
                message = Message { bytes: Vec::new(), imm: Some(imm), is_write: true, ..message };
            }
            Kind::Read => request.bytes.copy_from_slice(&self.target[range]),
            Kind::CompareSwap { compare, swap } => {
                let cell = &mut self.target[range];
                request.bytes.copy_from_slice(cell);
                if *cell == compare.to_ne_bytes() {
                    cell.copy_from_slice(&swap.to_ne_bytes());
                }
            }
            Kind::FetchAdd(add) => {
                let cell = &mut self.target[range];
                request.bytes.copy_from_slice(cell);
                let mut value = [0; 8];
                value.copy_from_slice(cell);
                let sum = u64::from_ne_bytes(value).wrapping_add(add);
                cell.copy_from_slice(&sum.to_ne_bytes());
            }
        }
        if request.kind.takes_receive() {
            self.messages.push(message);
        }
        self.requests.push(request);
    }
}

fn random_request(rng: &mut Rng, unreliable: bool) -> Request {
    let imm = Imm(rng.bits32().to_be_bytes());
    let kind = match rng.below(if unreliable { 4 } else { 8 }) {
        0 => Kind::Send,
        1 => Kind::SendImm(imm),
        2 => Kind::Write,
        3 => Kind::WriteImm(imm),
        4 | 5 => Kind::Read,
        // Half of the comparisons hold, with the zeros there are at first.
        6 => Kind::CompareSwap { compare: rng.below(2), swap: rng.below(2) },
        _ => Kind::FetchAdd(rng.below(2)),
    };
    let is_atomic = matches!(kind, Kind::CompareSwap { .. } | Kind::FetchAdd(_));
    let len = match rng.below(4) {
        _ if is_atomic => 8,
        0 => rng.below(9),
        1 => rng.below(256),
        _ => rng.below(LONGEST as u64 + 1),
    } as usize;
    let at = match is_atomic {
        // Few cells, so that they meet.
        true => 8 * rng.index(4),
        false => rng.index(TARGET.len() - len + 1),
    };
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, rng.chance(500_000));
    flags.set(SendFlags::FENCE, rng.chance(100_000));
    let inline = !kind.brings_data() && len <= 256 && rng.chance(500_000);
    let mut cuts: Vec<usize> = (0..rng.below(4)).map(|_| rng.index(len + 1)).collect();
    if is_atomic {
        cuts.clear();
    }
    cuts.sort_unstable();
    Request { kind, at, bytes, flags, inline, cuts }
}
