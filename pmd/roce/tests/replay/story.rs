//! A trace as a story: who sent what, what it was lost on, and which work made it be sent.

use std::time::Duration;

use pmd_roce::ids::{Gid, PathMtu, Psn, Qpn, Rkey};
use pmd_roce::qp::state::Transport;
use pmd_roce::wire::{AtomicEth, Headers, Operation, Packet, Reth, Syndrome, TransportClass, icrc};
use pmd_roce::work::{Imm, RemoteAddr, SendOp, WcStatus};

use crate::cm::{self, Handshake};
use crate::scenario::Scenario;
use crate::trace::{self, Frame};

/// One of the two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// 10.77.0.3.
    Client,
    /// 10.77.0.2.
    Server,
}

impl End {
    pub(crate) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A recorded frame of the connection.
pub(crate) struct Record {
    pub(crate) frame: Frame,
    pub(crate) from: End,
    /// It did not reach the other end.
    pub(crate) is_lost: bool,
    /// A request that was sent in spite of an RNR wait.
    pub(crate) is_early: bool,
}

impl Record {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.frame.payload[..self.frame.payload.len() - icrc::LEN]).unwrap()
    }

    pub(crate) fn headers(&self) -> Headers {
        self.packet().headers
    }

    pub(crate) fn operation(&self) -> Operation {
        self.headers().bth.opcode.operation()
    }

    pub(crate) fn psn(&self) -> Psn {
        self.headers().bth.psn
    }
}

/// A request that a program posted, as its packets tell.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Where in the records its first packet is.
    pub(crate) first: usize,
    pub(crate) op: SendOp,
    /// Bytes that it sends.
    pub(crate) payload: Vec<u8>,
    /// Message bytes, in either direction.
    pub(crate) len: u32,
    /// Bytes that came back.
    pub(crate) brought: Vec<u8>,
    /// UD: queue pair and Q_Key of the receiver.
    pub(crate) to: Option<(Qpn, u32)>,
    /// Where the program says how it ended.
    pub(crate) ends: WcStatus,
    psn: Psn,
    packets: u32,
}

impl Work {
    /// Whether the PSN is in it or after it.
    pub(crate) const fn begins_by(&self, psn: Psn) -> bool {
        psn.since(self.psn) >= 0
    }

    /// Immediate data, if it brings any.
    pub(crate) const fn imm(&self) -> Option<Imm> {
        match self.op {
            SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) => Some(imm),
            _ => None,
        }
    }

    /// The other end's memory that it is about.
    pub(crate) const fn remote(&self) -> Option<RemoteAddr> {
        match self.op {
            SendOp::Write(at)
            | SendOp::WriteImm(at, _)
            | SendOp::Read(at)
            | SendOp::CompareSwap { at, .. }
            | SendOp::FetchAdd { at, .. } => Some(at),
            _ => None,
        }
    }
}

/// A trace that is understood.
pub(crate) struct Story {
    pub(crate) scenario: Scenario,
    pub(crate) handshake: Option<Handshake>,
    pub(crate) transport: Transport,
    pub(crate) mtu: PathMtu,
    pub(crate) records: Vec<Record>,
    work: [Vec<Work>; 2],
}

impl Story {
    pub(crate) fn read(scenario: Scenario) -> Self {
        let path = trace::traces()
            .into_iter()
            .find(|path| path.file_stem().is_some_and(|stem| stem == scenario.trace))
            .expect("a golden trace");
        let frames = trace::frames(&path);
        let handshake = cm::handshake(&frames);
        let mut records: Vec<_> = frames.into_iter().map(record).collect();
        records.retain(|record| record.headers().bth.dest_qp != Qpn::GSI);
        note_losses(&mut records, &scenario);
        note_early_resends(&mut records);
        let mtu = handshake.map_or(PathMtu::B1024, |handshake| handshake.mtu);
        let transport = match records[0].headers().bth.opcode.class() {
            TransportClass::Uc => Transport::Uc,
            TransportClass::Ud => Transport::Ud,
            _ => Transport::Rc,
        };
        let mut work = End::BOTH.map(|end| work_of(&records, end, mtu));
        work[End::Client as usize].last_mut().unwrap().ends = scenario.ends;
        Self { scenario, handshake, transport, mtu, records, work }
    }

    /// What an end's program posted.
    pub(crate) fn work(&self, end: End) -> &[Work] {
        &self.work[end as usize]
    }

    /// The recorded number of an end's queue pair.
    pub(crate) fn qpn(&self, end: End) -> Qpn {
        let to_it = self.records.iter().find(|record| record.from != end);
        to_it.expect("both ends send").headers().bth.dest_qp
    }

    pub(crate) fn gid(&self, end: End) -> Gid {
        let by_it = self.records.iter().find(|record| record.from == end);
        Gid::from(by_it.expect("both ends send").frame.src)
    }

    /// PSN of an end's first request, whether it has sent any or not.
    pub(crate) fn first_psn(&self, end: End) -> Psn {
        let first = self.work(end).first().map(|work| work.psn);
        let agreed = self.handshake.map(|handshake| handshake.psns[end as usize]);
        assert!(first.is_none() || agreed.is_none() || first == agreed);
        first.or(agreed).unwrap_or_default()
    }

    /// Whether the request in this record found a receive: no RNR NAK answered it.
    pub(crate) fn found_receive(&self, index: usize) -> bool {
        let (from, psn) = (self.records[index].from, self.records[index].psn());
        let answer = self.records[index..].iter().find(|record| {
            record.from != from && record.operation().is_response() && record.psn() == psn
        });
        answer.is_none_or(|answer| rnr_wait(&answer.headers()).is_none())
    }
}

fn record(frame: Frame) -> Record {
    let from = if frame.src.to_string().ends_with(".3") { End::Client } else { End::Server };
    Record { frame, from, is_lost: false, is_early: false }
}

fn note_losses(records: &mut [Record], scenario: &Scenario) {
    let Some(lost) = scenario.lost else { return };
    let of_kind = records
        .iter_mut()
        .filter(|record| record.from != lost.at && record.operation() == lost.operation);
    for (count, record) in of_kind.enumerate() {
        record.is_lost = (count + 1) % lost.every == 0;
    }
}

/// How long a response asks the requester to wait, if it does.
fn rnr_wait(headers: &Headers) -> Option<Duration> {
    match headers.aeth?.syndrome {
        Syndrome::Rnr { timer } => Some(timer.duration()),
        _ => None,
    }
}

fn note_early_resends(records: &mut [Record]) {
    for end in End::BOTH {
        let mut wait_over = Duration::ZERO;
        for record in records.iter_mut() {
            if record.from != end {
                if let Some(wait) = rnr_wait(&record.headers()) {
                    wait_over = record.frame.at + wait;
                }
            } else if record.operation().is_request() {
                record.is_early = record.frame.at < wait_over;
            }
        }
    }
}

/// Puts the packets of an end together to the requests that it posted.
fn work_of(records: &[Record], end: End, mtu: PathMtu) -> Vec<Work> {
    let mut work: Vec<Work> = Vec::new();
    for (first, record) in records.iter().enumerate().filter(|(_, record)| record.from == end) {
        let packet = record.packet();
        let headers = &packet.headers;
        let operation = headers.bth.opcode.operation();
        let next = work.last().map(|work| work.psn.plus(work.packets));
        let is_again = next.is_some_and(|next| headers.bth.psn.since(next) < 0);
        if !operation.is_request() || is_again {
            continue;
        }
        assert!(next.is_none_or(|next| next == headers.bth.psn), "frame {}", record.frame.number);
        if operation.starts_message() {
            work.push(Work {
                first,
                op: opened_by(headers),
                payload: Vec::new(),
                len: 0,
                brought: Vec::new(),
                to: headers.deth.map(|deth| (headers.bth.dest_qp, deth.qkey)),
                ends: WcStatus::Success,
                psn: headers.bth.psn,
                packets: 0,
            });
        }
        let current = work.last_mut().expect("a first packet");
        current.payload.extend(packet.payload);
        current.len += u32::try_from(packet.payload.len()).unwrap();
        current.packets += 1;
        if let Some(immdt) = headers.immdt {
            let imm = Imm(immdt.0);
            current.op = match current.op {
                SendOp::Write(at) => SendOp::WriteImm(at, imm),
                _ => SendOp::SendImm(imm),
            };
        }
        if let SendOp::Read(_) = current.op {
            current.len = headers.reth.unwrap().dma_len;
            current.packets = current.len.div_ceil(mtu.bytes_u32()).max(1);
        }
        if headers.atomic_eth.is_some() {
            current.len = 8;
        }
    }
    for one in &mut work {
        one.brought = brought(records, end, one);
    }
    work
}

fn opened_by(headers: &Headers) -> SendOp {
    let at = |va, rkey: Rkey| RemoteAddr { addr: va, rkey };
    match (headers.bth.opcode.operation(), headers.reth, headers.atomic_eth) {
        (Operation::ReadRequest, Some(Reth { va, rkey, .. }), _) => SendOp::Read(at(va, rkey)),
        (_, Some(Reth { va, rkey, .. }), _) => SendOp::Write(at(va, rkey)),
        (Operation::CmpSwap, _, Some(AtomicEth { va, rkey, swap_or_add, compare })) => {
            SendOp::CompareSwap { at: at(va, rkey), compare, swap: swap_or_add }
        }
        (_, _, Some(AtomicEth { va, rkey, swap_or_add, .. })) => {
            SendOp::FetchAdd { at: at(va, rkey), add: swap_or_add }
        }
        _ => SendOp::Send,
    }
}

/// What the responses to a READ or an atomic carried.
fn brought(records: &[Record], end: End, work: &Work) -> Vec<u8> {
    let mut bytes = Vec::new();
    for psn in (0..work.packets).map(|number| work.psn.plus(number)) {
        let response = records.iter().find(|record| {
            record.from != end && record.operation().is_response() && record.psn() == psn
        });
        let Some(packet) = response.map(Record::packet) else { continue };
        match packet.headers.atomic_ack_eth {
            Some(ack) => bytes.extend(ack.original.to_ne_bytes()),
            None => bytes.extend(packet.payload),
        }
    }
    bytes
}
