//! The engine in the place of one recorded machine.
//!
//! Records are gone through in order, each at its time: what the other end sent is handed in, what
//! this end's program posted is posted when its first packet is due, and timers run as they come.

use std::collections::VecDeque;
use std::time::Duration;

use pmd_roce::engine::{Engine, EngineConfig};
use pmd_roce::ids::{CqId, Instant, PathMtu, Psn, Qpn, WrId};
use pmd_roce::local::Nobody;
use pmd_roce::qp::attr::{AddressVector, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{QpState, Transport, masks};
use pmd_roce::sink::{Flow, Frame, FrameOutcome, IpId};
use pmd_roce::wire::grh::Grh;
use pmd_roce::wire::icrc::{self, IcrcHeader};
use pmd_roce::wire::{DropReason, Operation};
use pmd_roce::work::{
    Access, AhId, Completion, Data, Datagram, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode,
    WcStatus,
};

use crate::compare;
use crate::memory::{Completions, Outbox, PD, Region, Regions, ipv6, sge};
use crate::scenario::pattern;
use crate::story::{End, Record, Story, Work};

/// How far a timer of rxe may be off: it counts in jiffies of 4 ms, and begins in the middle of one.
pub(crate) const COARSE: Duration = Duration::from_millis(8);

/// How the replay differs from the recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// First PSN of each end's requests; `None`: the recorded one.
    pub(crate) first_psns: Option<[Psn; 2]>,
    /// Over IPv6 instead of IPv4.
    pub(crate) ipv6: bool,
    /// All frames between two of the other end arrive before the engine is polled.
    pub(crate) bursts: bool,
}

impl Mapping {
    /// As recorded.
    pub(crate) const SAME: Self = Self { first_psns: None, ipv6: false, bursts: false };
}

/// A frame that is handed in.
#[derive(Clone, Debug)]
pub(crate) struct Arriving {
    pub(crate) flow: Flow,
    pub(crate) ip_id: u16,
    pub(crate) payload: Vec<u8>,
}

/// A frame that came out, and when.
pub(crate) struct Emitted {
    pub(crate) at: Instant,
    pub(crate) flow: Flow,
    pub(crate) payload: Vec<u8>,
}

/// What a replay has to show.
pub(crate) struct Outcome {
    pub(crate) emitted: Vec<Emitted>,
    /// The recorded frames of this end, by place in the story, and when each was expected.
    pub(crate) expected: Vec<(usize, Instant)>,
    /// Number of the engine's queue pair.
    pub(crate) qpn: Qpn,
}

/// Of the regions that no peer reaches: what is sent, and what arrives.
const SOURCES: u32 = 0x7fff_fffe;
const ARRIVALS: u32 = 0x7fff_ffff;
const PRIVATE: usize = 1 << 17;

/// Everything of a queue pair, as one value.
type Sight = (String, u64, usize, usize, Option<Instant>, Vec<u64>);

/// The engine and all that it is lent.
pub(crate) struct StandIn<'a> {
    story: &'a Story,
    end: End,
    mapping: Mapping,
    engine: Engine,
    qpn: Qpn,
    ah: Option<AhId>,
    mem: Regions,
    cqs: Completions,
    out: Outbox,
    now: Instant,
    /// How much later the replay is than the recording.
    late: Duration,
    sources: u64,
    arrivals: u64,
    posted: VecDeque<(&'a Work, Sge)>,
    sent: usize,
    receives: VecDeque<(&'a Work, Sge, usize)>,
    emitted: Vec<Emitted>,
    expected: Vec<(usize, Instant)>,
}

impl<'a> StandIn<'a> {
    pub(crate) fn new(story: &'a Story, end: End, mapping: Mapping) -> Self {
        let gid = |end| if mapping.ipv6 { ipv6(story.gid(end)) } else { story.gid(end) };
        let mut config = EngineConfig::new(1, 0, vec![gid(end)]);
        config.mtu = PathMtu::B4096;
        let mut engine = Engine::new(config);
        let cap = QpCap {
            max_send_wr: 32,
            max_recv_wr: 32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit {
            transport: story.transport,
            pd: PD,
            send_cq: CqId(1),
            recv_cq: CqId(1),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
        };
        let qpn = engine.create_qp(&init).unwrap();
        let flow_label = story.handshake.map_or(0, |handshake| handshake.flow_label);
        let av = AddressVector { flow_label, ..AddressVector::to(gid(end.other())) };
        let mut stand_in = Self {
            story,
            end,
            mapping,
            engine,
            qpn,
            ah: None,
            mem: memory(story, end),
            cqs: Completions::default(),
            out: Outbox::default(),
            now: Instant(0),
            late: Duration::ZERO,
            sources: 0,
            arrivals: 0,
            posted: VecDeque::new(),
            sent: 0,
            receives: VecDeque::new(),
            emitted: Vec::new(),
            expected: Vec::new(),
        };
        stand_in.bring_up(av);
        if story.transport == Transport::Ud {
            stand_in.ah = Some(stand_in.engine.create_ah(&av).unwrap());
        }
        stand_in
    }

    /// RESET to RTS, with what was agreed or what the program is known to set.
    fn bring_up(&mut self, av: AddressVector) {
        let (story, end) = (self.story, self.end);
        let handshake = story.handshake;
        let rd_atomic = |end| match handshake {
            Some(handshake) if end == End::Server => handshake.served_by_server,
            Some(handshake) => handshake.served_by_client,
            None => 1,
        };
        let is_server = end == End::Server;
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let attr = QpAttr {
            access: if is_server { story.scenario.server_access } else { all },
            qkey: 0x1111_1111,
            av,
            path_mtu: story.mtu,
            // 67 ms: `vt` and the pingpongs say so.
            timeout: 14,
            retry_cnt: handshake.map_or(7, |handshake| handshake.retry_cnt),
            rnr_retry: handshake.map_or(7, |handshake| handshake.rnr_retry[end as usize]),
            min_rnr_timer: if is_server { story.scenario.server_rnr_timer } else { 0 },
            sq_psn: self.first_psn(end),
            rq_psn: self.first_psn(end.other()),
            max_rd_atomic: rd_atomic(end.other()),
            max_dest_rd_atomic: rd_atomic(end),
            dest_qpn: story.qpn(end.other()),
            ..QpAttr::new(QpState::Init)
        };
        for (from, to) in [
            (QpState::Reset, QpState::Init),
            (QpState::Init, QpState::Rtr),
            (QpState::Rtr, QpState::Rts),
        ] {
            let mask = masks(story.transport, from, to).unwrap().required;
            let attr = QpAttr { state: to, ..attr };
            let (mem, cqs) = (&mut self.mem, &mut self.cqs);
            self.engine.modify_qp(self.now, self.qpn, &attr, mask, mem, cqs).unwrap();
        }
    }

    fn first_psn(&self, end: End) -> Psn {
        let moved = self.mapping.first_psns.map(|psns| psns[end as usize]);
        moved.unwrap_or_else(|| self.story.first_psn(end))
    }

    /// Goes through all records. `before` is called before each frame that is handed in.
    pub(crate) fn run(mut self, mut before: impl FnMut(&mut Self, &Arriving)) -> Outcome {
        let story = self.story;
        for (index, record) in story.records.iter().enumerate() {
            let at = Instant(0).after(record.frame.at + self.late);
            self.run_timers(at);
            if record.from == self.end {
                self.expect(index, record);
            } else if !record.is_lost {
                self.prepare(index, record);
                let arriving = self.map(record);
                before(&mut self, &arriving);
                let outcome = self.hand_in(&arriving, IpId::Exact(arriving.ip_id));
                self.judge(index, outcome);
                let more = story.records.get(index + 1).is_some_and(|next| next.from != self.end);
                if !self.mapping.bursts || !more {
                    self.poll();
                }
            }
        }
        self.finish();
        Outcome { emitted: self.emitted, expected: self.expected, qpn: self.qpn }
    }

    /// This end sent a frame: it is posted if it is the first of its work, and it must be there.
    fn expect(&mut self, index: usize, record: &Record) {
        let story = self.story;
        if record.is_early {
            return;
        }
        if let Some(work) = story.work(self.end).iter().find(|work| work.first == index) {
            self.post(work);
        }
        let requests =
            1 + self.expected.iter().filter(|(index, _)| self.is_request(*index)).count();
        if record.operation().is_request() && self.requests_emitted() < requests {
            // Sent again, and sooner than ours, whose timer counts in nanoseconds.
            let due = self.engine.poll_timeout().unwrap_or_else(|| {
                panic!("{}: frame {} never comes", story.scenario.trace, record.frame.number)
            });
            self.late += due.since(self.now);
            self.run_timers(due);
        }
        self.expected.push((index, self.now));
    }

    fn is_request(&self, index: usize) -> bool {
        self.story.records[index].operation().is_request()
    }

    fn requests_emitted(&self) -> usize {
        let operations = self
            .emitted
            .iter()
            .map(|emitted| compare::packet(&emitted.payload).headers.bth.opcode.operation());
        operations.filter(|operation| operation.is_request()).count()
    }

    fn post(&mut self, work: &'a Work) {
        let brings = matches!(
            work.op,
            SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        );
        let element = match (brings, self.story.scenario.is_vt) {
            (true, _) => self.arrival(work.len),
            // The buffer of `vt` begins with what it sends, so that payloads are not taken on trust.
            (false, true) => sge(SOURCES, 0, work.len),
            (false, false) => {
                let element = sge(SOURCES, self.sources, work.len);
                self.sources += u64::from(work.len).next_multiple_of(64);
                let place = self.mem.range_mut(SOURCES, element.addr, work.payload.len()).unwrap();
                place.copy_from_slice(&work.payload);
                element
            }
        };
        let wr = SendWr {
            wr_id: WrId((self.sent + self.posted.len()) as u64),
            op: work.op,
            data: Data::Sges(&[element]),
            flags: SendFlags::SIGNALED,
            to: self.ah.zip(work.to).map(|(ah, (qpn, qkey))| Datagram { ah, qpn, qkey }),
            srqn: None,
        };
        self.engine.post_send(self.qpn, &wr).unwrap();
        self.posted.push_back((work, element));
        self.poll();
    }

    /// Room for what arrives.
    fn arrival(&mut self, len: u32) -> Sge {
        let element = sge(ARRIVALS, self.arrivals, len);
        self.arrivals += u64::from(len).next_multiple_of(64);
        element
    }

    /// This end's program posts the receive that the record found, and has written what it reads.
    fn prepare(&mut self, index: usize, record: &Record) {
        let story = self.story;
        let number = self.message_of(index);
        let operation = record.operation();
        let takes = operation.is_send() && operation.starts_message()
            || record.headers().immdt.is_some() && operation.is_write();
        if takes && story.found_receive(index) {
            let number = number.expect("a request that begins or ends a message");
            let work = &story.work(self.end.other())[number];
            let grh = if story.transport == Transport::Ud { 40 } else { 0 };
            let element = self.arrival(work.len + grh);
            let wr = RecvWr { wr_id: WrId(number as u64), sges: &[element] };
            self.engine.post_recv(self.qpn, &wr).unwrap();
            self.receives.push_back((work, element, index));
        }
        if !story.scenario.is_vt
            && operation.starts_message()
            && let Some(work) = number.map(|number| &story.work(self.end.other())[number])
        {
            let is_known = match work.op {
                SendOp::Read(_) => true,
                SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => number == Some(0),
                _ => false,
            };
            if let Some(at) = work.remote().filter(|_| is_known) {
                let place = self.mem.range_mut(at.rkey.0, at.addr, work.brought.len()).unwrap();
                place.copy_from_slice(&work.brought);
            }
        }
    }

    /// Which work of the other end a record of it belongs to, if it is a request.
    fn message_of(&self, index: usize) -> Option<usize> {
        let work = self.story.work(self.end.other());
        let psn = self.story.records[index].psn();
        self.is_request(index).then(|| {
            let begun = work.iter().take_while(|work| work.begins_by(psn)).count();
            begun.checked_sub(1).expect("a message")
        })
    }

    /// The record as the engine gets it.
    fn map(&self, record: &Record) -> Arriving {
        let frame = &record.frame;
        let mut packet = record.packet();
        let bth = &mut packet.headers.bth;
        let stream = if bth.opcode.operation().is_request() { record.from } else { self.end };
        let shift = self.first_psn(stream).since(self.story.first_psn(stream)).cast_unsigned();
        bth.psn = bth.psn.plus(shift);
        bth.dest_qp = self.qpn;
        let gid = |ip| {
            let gid = pmd_roce::ids::Gid::from(ip);
            if self.mapping.ipv6 { ipv6(gid) } else { gid }
        };
        let flow = Flow {
            src: gid(frame.src),
            dst: gid(frame.dst),
            src_port: frame.src_port,
            traffic_class: frame.traffic_class,
            hop_limit: frame.hop_limit,
        };
        let mut payload = vec![0; frame.payload.len()];
        packet.emit(&mut payload);
        let Flow { src, dst, src_port, .. } = flow;
        icrc::seal(&IcrcHeader { src, dst, src_port, ip_id: frame.ip_id }, &mut payload);
        Arriving { flow, ip_id: frame.ip_id, payload }
    }

    /// Hands a frame to the engine, without polling it.
    pub(crate) fn hand_in(&mut self, arriving: &Arriving, ip_id: IpId) -> FrameOutcome {
        let frame = Frame { flow: arriving.flow, ip_id, payload: &arriving.payload };
        self.engine.handle_frame(self.now, &frame, &mut self.mem, &mut self.cqs)
    }

    /// Every recorded frame has an effect, unless the trace shows why not; that of a WRITE is seen
    /// in memory.
    fn judge(&self, index: usize, outcome: FrameOutcome) {
        let (story, record) = (self.story, &self.story.records[index]);
        let is_explained = match outcome.dropped {
            None => true,
            // Behind a lost request, until it is sent again.
            Some(DropReason::OutOfOrder) => story.scenario.lost.is_some(),
            // One of several ACKs of the same, or the answer to a resend that ours does without.
            Some(DropReason::StaleResponse) => record.operation() == Operation::Acknowledge,
            Some(_) => false,
        };
        let number = record.frame.number;
        assert!(is_explained, "{}: frame {number}: {outcome:?}", story.scenario.trace);
        let is_written = record.operation().is_write() && record.operation().ends_message();
        let Some(number) = self.message_of(index).filter(|_| is_written) else { return };
        let work = &story.work(self.end.other())[number];
        if outcome.dropped.is_none() && work.ends == WcStatus::Success && work.len > 0 {
            let at = work.remote().expect("a WRITE goes somewhere");
            let there = self.mem.range(at.rkey.0, at.addr, work.payload.len()).unwrap();
            assert!(there == work.payload, "{}: other bytes are there", story.scenario.trace);
        }
    }

    fn run_timers(&mut self, until: Instant) {
        while let Some(due) = self.engine.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.engine.handle_timeout(self.now, &mut self.mem, &mut self.cqs);
            self.poll();
        }
        self.now = self.now.max(until);
    }

    /// Polls until nothing more comes, and takes what came.
    fn poll(&mut self) {
        loop {
            let (mem, out, cqs) = (&mut self.mem, &mut self.out, &mut self.cqs);
            let done = self.engine.poll_transmit(self.now, mem, out, &mut Nobody, cqs);
            if done == 0 {
                break;
            }
        }
        let at = self.now;
        self.emitted.extend(self.out.0.drain(..).map(|(flow, payload)| Emitted {
            at,
            flow,
            payload,
        }));
        for completion in std::mem::take(&mut self.cqs.0) {
            match completion.opcode {
                WcOpcode::Recv | WcOpcode::RecvWriteImm => self.received(&completion),
                _ => self.completed(&completion),
            }
        }
    }

    /// A request of this end is complete: in order, as the program saw it, with the bytes it saw.
    fn completed(&mut self, completion: &Completion) {
        let (work, element) = self.posted.pop_front().expect("a completion for each request");
        assert_eq!(completion.wr_id, WrId(self.sent as u64));
        assert_eq!(completion.status, work.ends);
        self.sent += 1;
        if completion.status == WcStatus::Success && !work.brought.is_empty() {
            assert_eq!(completion.byte_len, work.len);
            let arrived = self.mem.range(ARRIVALS, element.addr, work.brought.len()).unwrap();
            assert!(arrived == work.brought, "{:?} brought other bytes", work.op);
        }
    }

    /// A message of the other end is complete.
    fn received(&mut self, completion: &Completion) {
        let (work, element, index) = self.receives.pop_front().expect("a receive that was posted");
        assert_eq!(completion.status, WcStatus::Success);
        assert_eq!(completion.imm(), work.imm());
        let from = if work.remote().is_some() { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
        assert_eq!(completion.opcode, from);
        let is_ud = self.story.transport == Transport::Ud;
        assert_eq!(completion.grh(), is_ud);
        let message = match work.remote() {
            Some(at) => {
                assert_eq!(completion.byte_len, work.len);
                self.mem.range(at.rkey.0, at.addr, work.payload.len()).unwrap()
            }
            None => {
                assert_eq!(completion.byte_len, element.len);
                self.mem.range(ARRIVALS, element.addr, element.len as usize).unwrap()
            }
        };
        let message = if is_ud {
            let (area, message) = message.split_first_chunk::<{ Grh::LEN }>().unwrap();
            let record = &self.story.records[index];
            assert_eq!(completion.src_qpn, record.headers().deth.unwrap().src_qp);
            if !self.mapping.ipv6 {
                assert_eq!(area[20..], record.frame.ip_header);
            }
            message
        } else {
            message
        };
        assert!(message == work.payload, "another message arrived in frame {index}");
    }

    /// Nothing is left over.
    fn finish(&mut self) {
        let story = self.story;
        assert_eq!(self.sent, story.work(self.end).len(), "every request completes");
        assert!(self.receives.is_empty(), "every receive completes");
        let view = self.engine.query_qp(self.qpn).unwrap();
        let refused = matches!(story.scenario.ends, WcStatus::RemAccess | WcStatus::RemInvReq);
        let gave_up = self.end == End::Client && story.scenario.ends != WcStatus::Success;
        let state = if refused || gave_up { QpState::Error } else { QpState::Rts };
        assert_eq!(view.attr.state, state);
        self.run_timers(self.now.after(Duration::from_secs(60)));
    }

    /// Everything by which one could see that a frame had an effect.
    pub(crate) fn sight(&mut self) -> Sight {
        assert!(self.engine.poll_event().is_none());
        let view = format!("{:?}", self.engine.query_qp(self.qpn));
        let counters = self.engine.counters().iter();
        let others = counters.filter(|(name, _)| *name != "rx_packets" && *name != "drop_icrc");
        let others = others.map(|(_, count)| count).collect();
        let (changes, emitted) = (self.mem.changes, self.emitted.len());
        (view, changes, emitted, self.cqs.0.len(), self.engine.poll_timeout(), others)
    }
}

/// The memory of an end: what its peer names, at the same addresses and keys, and two regions that
/// no peer reaches.
fn memory(story: &Story, end: End) -> Regions {
    let mut regions = Regions::default();
    let private = |key, fill: fn(usize) -> u8| Region {
        key,
        addr: 0,
        bytes: (0..PRIVATE).map(fill).collect(),
    };
    regions.all.push(private(SOURCES, pattern));
    regions.all.push(private(ARRIVALS, |_| 0));
    if story.scenario.is_vt {
        if end == End::Server {
            let region = story.handshake.expect("vt uses the connection manager").region;
            let fill: fn(usize) -> u8 = match story.scenario.server_has_pattern {
                true => pattern,
                false => |_| 0,
            };
            let bytes = (0..region.len as usize).map(fill).collect();
            regions.all.push(Region { key: region.rkey, addr: region.addr, bytes });
        }
        return regions;
    }
    for work in story.work(end.other()) {
        let Some(at) = work.remote() else { continue };
        let last = at.addr + u64::from(work.len);
        match regions.all.iter_mut().find(|region| region.key == at.rkey.0) {
            Some(region) => {
                assert_eq!(region.addr, at.addr);
                assert!(last <= region.addr + region.bytes.len() as u64);
            }
            None => regions.all.push(Region {
                key: at.rkey.0,
                addr: at.addr,
                bytes: vec![0; work.len as usize],
            }),
        }
    }
    regions
}
