//! Scripts that a verbs expert can read, run against one engine. `tests/scripts/README.md` says how
//! they are written.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::fs;
use std::path::Path;

use pmd_roce::engine::SrqInit;
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{CqId, Instant, Lkey, PathMtu, Psn, Qpn, Rkey, Srqn, WrId, XrcdId};
use pmd_roce::qp::attr::{AddressVector, QpAttr, QpInit};
use pmd_roce::qp::state::{self, AttrMask, QpState, Transport};
use pmd_roce::sink::Flow;
use pmd_roce::wire::icrc::{self, IcrcHeader};
use pmd_roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HeaderSet, Headers, Ieth, ImmDt, Msn, NakCode,
    Opcode, Operation, Reth, RnrTimer, Syndrome, TransportClass, XrcEth,
};
use pmd_roce::work::{
    Access, Completion, Data, Datagram, Imm, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
    WcStatus, WindowBind,
};

use crate::support::{
    self, DST, DST_ADDR, Host, PD, SHARED, SHARED_ADDR, SRC, Sent, Window, gid, pattern,
};

/// The peer's queue pair.
const PEER: Qpn = Qpn::new(0x99);
/// Where requests of a script go unless they say otherwise.
const REMOTE: RemoteAddr = RemoteAddr { addr: 0x5000, rkey: Rkey(0x77) };

type Outcome<T = ()> = Result<T, String>;

/// Words of a line: `key=value` pairs and bare ones.
struct Words<'a> {
    bare: Vec<&'a str>,
    pairs: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let (mut bare, mut pairs) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => drop(pairs.insert(key, value)),
                None => bare.push(word),
            }
        }
        Self { bare, pairs }
    }

    fn number(&mut self, key: &str) -> Outcome<Option<u64>> {
        self.pairs.remove(key).map(parse_number).transpose()
    }

    fn number_or(&mut self, key: &str, default: u64) -> Outcome<u64> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    fn u32_or(&mut self, key: &str, default: u32) -> Outcome<u32> {
        u32::try_from(self.number_or(key, default.into())?).map_err(|_| format!("{key} too big"))
    }

    fn flag(&mut self, name: &str) -> bool {
        let found = self.bare.iter().position(|word| *word == name);
        found.map(|at| self.bare.remove(at)).is_some()
    }

    /// The next bare word.
    fn take(&mut self) -> Outcome<&'a str> {
        if self.bare.is_empty() { Err("a word is missing".into()) } else { Ok(self.bare.remove(0)) }
    }

    /// Every word has been understood.
    fn done(self) -> Outcome {
        if self.bare.is_empty() && self.pairs.is_empty() {
            return Ok(());
        }
        Err(format!("not understood: {:?} {:?}", self.bare, self.pairs))
    }
}

fn parse_number(text: &str) -> Outcome<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is not a number"))
}

fn parse_time(text: &str) -> Outcome<u64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let scale = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "" if number == "0" => 0.0,
        _ => return Err(format!("{text}: a time is a number with ns, us, ms or s")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{text} is not a time"))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small times")]
    let ns = (number * scale).round() as u64;
    Ok(ns)
}

#[expect(clippy::needless_pass_by_value, reason = "values are made on the spot")]
fn equal<T: PartialEq + Debug>(what: impl Display, got: T, expected: T) -> Outcome {
    if got == expected { Ok(()) } else { Err(format!("{what}: got {got:?}, not {expected:?}")) }
}

/// A script under way.
struct Play {
    host: Host,
    transport: Transport,
    qpn: Qpn,
    srqn: Option<Srqn>,
    attr: QpAttr,
    /// Where in the pattern the next injected payload starts.
    stream: usize,
}

/// Runs a script file.
pub(crate) fn run(path: &Path) -> Outcome {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut play = None;
    let lines = text.lines().enumerate().map(|(at, line)| {
        let code = line.split('#').next().unwrap_or_default().trim();
        (at + 1, code)
    });
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let outcome = match &mut play {
            None => Play::begin(line).map(|begun| play = Some(begun)),
            Some(play) => play.line(line),
        };
        outcome.map_err(|why| format!("{}:{number}: {line}\n    {why}", path.display()))?;
    }
    let mut play = play.ok_or("an empty script")?;
    play.host.poll();
    play.nothing_left().map_err(|why| format!("{}: at the end: {why}", path.display()))
}

impl Play {
    fn begin(line: &str) -> Outcome<Self> {
        let mut words = Words::of(line);
        equal("the first word", words.take()?, "given")?;
        let transport = match words.take()? {
            "rc" => Transport::Rc,
            "uc" => Transport::Uc,
            "ud" => Transport::Ud,
            "xrc_ini" => Transport::XrcIni,
            "xrc_tgt" => Transport::XrcTgt,
            other => return Err(format!("no transport {other}")),
        };
        let window = words.u32_or("window", 1024)?;
        let mut host = Host::with(1, |config| config.window_packets = window);
        let mtu = usize::try_from(words.number_or("mtu", 1024)?).map_err(|e| e.to_string())?;
        let byte = |words: &mut Words<'_>, key, default: u8| {
            u8::try_from(words.number_or(key, default.into())?).map_err(|e| e.to_string())
        };
        let attr = QpAttr {
            access: access(words.pairs.remove("access").unwrap_or("wra"))?,
            qkey: words.u32_or("qkey", 0x1111)?,
            av: AddressVector::to(gid(2)),
            path_mtu: PathMtu::from_bytes(mtu).ok_or("no such MTU")?,
            timeout: byte(&mut words, "timeout", 14)?,
            retry_cnt: byte(&mut words, "retry_cnt", 7)?,
            rnr_retry: byte(&mut words, "rnr_retry", 7)?,
            min_rnr_timer: byte(&mut words, "min_rnr_timer", 12)?,
            sq_psn: Psn::new(words.u32_or("sq_psn", 0)?),
            rq_psn: Psn::new(words.u32_or("rq_psn", 0)?),
            max_rd_atomic: byte(&mut words, "rd_atomic", 4)?,
            max_dest_rd_atomic: byte(&mut words, "dest_rd_atomic", 4)?,
            dest_qpn: PEER,
            ..QpAttr::new(QpState::Init)
        };
        let xrcd = (transport == Transport::XrcTgt).then_some(XrcdId(1));
        let srqn = if words.flag("srq") || xrcd.is_some() {
            let xrc = xrcd.map(|xrcd| (xrcd, CqId(3)));
            let srq = SrqInit { pd: PD, max_wr: 16, max_sge: 4, xrc };
            Some(host.engine.create_srq(&srq).map_err(|error| error.to_string())?)
        } else {
            None
        };
        let srq = srqn.filter(|_| xrcd.is_none());
        let init = QpInit { srq, xrcd, ..support::init(transport) };
        let qpn = host.engine.create_qp(&init).map_err(|error| error.to_string())?;
        let target = state_named(words.pairs.remove("state").unwrap_or("RTS"))?;
        words.done()?;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            if host.state(qpn) != target {
                host.step(qpn, &attr, to);
            }
        }
        host.mem.windows.push(Window { key: 0x400, pd: PD, bound: None });
        Ok(Self { host, transport, qpn, srqn, attr, stream: 0 })
    }

    fn line(&mut self, line: &str) -> Outcome {
        let line = match line.strip_prefix('+') {
            None => line,
            Some(timed) => {
                let (time, rest) = timed.split_once(char::is_whitespace).unwrap_or((timed, ""));
                self.pass(parse_time(time)?)?;
                rest.trim()
            }
        };
        if line.is_empty() {
            return Ok(());
        }
        let mut words = Words::of(line);
        match words.take()? {
            ">" => self.expect_frame(words),
            "<" => self.inject(words),
            "post_send" => self.post_send(words),
            "post_recv" => self.post_recv(words),
            "wc" => self.expect_completion(words),
            "event" => {
                self.host.poll();
                let got = self.host.engine.poll_event().map_or("none", AsyncEvent::name);
                equal("event", got, words.take()?)
            }
            "state" => {
                self.host.poll();
                equal("state", self.host.state(self.qpn), state_named(words.take()?)?)
            }
            "modify" => self.modify(words),
            "timer" => {
                self.host.poll();
                let next = self.host.engine.poll_timeout();
                let expected = match words.take()? {
                    "none" => None,
                    time => Some(Instant(self.host.now.0 + parse_time(time)?)),
                };
                equal("timer", next, expected)
            }
            "counter" => {
                let (name, value) = (words.take()?, parse_number(words.take()?)?);
                let mut counters = self.host.engine.counters().iter();
                let got = counters.find(|(known, _)| *known == name);
                equal(name, got.ok_or("no such counter")?.1, value)
            }
            "holds" => self.holds(words),
            "outstanding" => {
                self.host.poll();
                let view = self.host.engine.query_qp(self.qpn).ok_or("no queue pair")?;
                let expected = (words.u32_or("send", 0)?, words.u32_or("recv", 0)?);
                equal("outstanding", (view.send_outstanding, view.recv_outstanding), expected)
            }
            "deregister" => {
                let key = region(words.take()?)?;
                self.host.mem.regions.retain(|region| region.key != key);
                Ok(())
            }
            "arm_limit" => {
                let limit = u32::try_from(parse_number(words.take()?)?).unwrap_or(u32::MAX);
                let srqn = self.srqn.ok_or("no shared queue")?;
                self.host.engine.arm_srq_limit(srqn, limit).map_err(|error| error.to_string())
            }
            "wire" => {
                self.host.out.room = match words.take()? {
                    "full" => 0,
                    "open" => usize::MAX,
                    frames => usize::try_from(parse_number(frames)?).unwrap_or(0),
                };
                Ok(())
            }
            "quiet" => {
                self.host.poll();
                self.nothing_left()
            }
            other => Err(format!("no command {other}")),
        }
    }

    /// Lets time pass, and everything that is due on the way happen at its own time.
    fn pass(&mut self, span: u64) -> Outcome {
        if span == 0 {
            return Ok(());
        }
        let until = Instant(self.host.now.0 + span);
        loop {
            self.host.poll();
            self.nothing_left()?;
            match self.host.engine.poll_timeout().filter(|next| *next <= until) {
                Some(next) if next < until => self.host.pass(next),
                _ => break,
            }
        }
        self.host.pass(until);
        Ok(())
    }

    fn nothing_left(&mut self) -> Outcome {
        if let Some(sent) = self.host.out.frames.front() {
            let at = self.host.now.0;
            return Err(format!("at {at} ns, not in the script: {}", describe(sent)));
        }
        match self.host.cqs.got.front() {
            Some((_, wc)) => Err(format!("not in the script: {wc:?}")),
            None => Ok(()),
        }
    }

    fn class(&self) -> TransportClass {
        match self.transport {
            Transport::Rc => TransportClass::Rc,
            Transport::Uc => TransportClass::Uc,
            Transport::Ud | Transport::RawPacket => TransportClass::Ud,
            Transport::XrcIni | Transport::XrcTgt => TransportClass::Xrc,
        }
    }

    fn expect_frame(&mut self, mut words: Words<'_>) -> Outcome {
        self.host.poll();
        let (name, syndrome) = operation(&mut words)?;
        let sent = self.host.out.frames.pop_front().ok_or("nothing was sent")?;
        let flow = sent.flow;
        let header =
            IcrcHeader { src: flow.src, dst: flow.dst, src_port: flow.src_port, ip_id: sent.ip_id };
        equal("ICRC is wrong", !icrc::verify(&header, &sent.payload), words.flag("damaged"))?;
        let packet = sent.packet();
        let Headers { bth, reth, aeth, immdt, ieth, deth, xrceth, .. } = packet.headers;
        let context = format!("{}: ", describe(&sent));
        let check = |what, got, expected: Option<u64>| match expected {
            Some(expected) => equal(format!("{context}{what}"), got, Some(expected)),
            None => Ok(()),
        };
        equal(format!("{context}class"), bth.opcode.class(), self.class())?;
        equal(format!("{context}operation"), bth.opcode.operation(), name)?;
        equal(format!("{context}A"), bth.ack_req, words.flag("A"))?;
        equal(format!("{context}SE"), bth.solicited, words.flag("SE"))?;
        if let Some(syndrome) = syndrome {
            let got = aeth.map(|aeth| match aeth.syndrome {
                Syndrome::Ack { .. } => Syndrome::ACK,
                other => other,
            });
            equal(format!("{context}syndrome"), got, Some(syndrome))?;
        }
        let credits = aeth.map(|aeth| u64::from(aeth.syndrome.byte()));
        check("psn", Some(bth.psn.value().into()), words.number("psn")?)?;
        check("len", Some(packet.payload.len() as u64), words.number("len")?)?;
        check("msn", aeth.map(|aeth| aeth.msn.value().into()), words.number("msn")?)?;
        check("credits", credits, words.number("credits")?)?;
        check("va", reth.map(|reth| reth.va), words.number("va")?)?;
        check("rkey", reth.map(|reth| reth.rkey.0.into()), words.number("rkey")?)?;
        check("dma_len", reth.map(|reth| reth.dma_len.into()), words.number("dma_len")?)?;
        check("imm", immdt.map(|imm| u32::from_be_bytes(imm.0).into()), words.number("imm")?)?;
        check("inv", ieth.map(|ieth| ieth.rkey.0.into()), words.number("inv")?)?;
        check("qkey", deth.map(|deth| deth.qkey.into()), words.number("qkey")?)?;
        check("srqn", xrceth.map(|xrceth| xrceth.srqn.0.into()), words.number("srqn")?)?;
        check("dest", Some(bth.dest_qp.value().into()), words.number("dest")?)?;
        let original = packet.headers.atomic_ack_eth.map(|ack| ack.original);
        check("original", original, words.number("original")?)?;
        let last_octet = |octet: u64| u8::try_from(octet).map(gid).map_err(|e| e.to_string());
        if let Some(octet) = words.number("to")? {
            equal(format!("{context}to"), flow.dst, last_octet(octet)?)?;
        }
        if let Some(from) = words.number("from")? {
            let from = usize::try_from(from).map_err(|error| error.to_string())?;
            let expected = (from..from + packet.payload.len()).map(pattern);
            let same = packet.payload.iter().copied().eq(expected);
            equal(format!("{context}payload is the pattern"), same, true)?;
        }
        words.done()
    }

    fn inject(&mut self, mut words: Words<'_>) -> Outcome {
        let (operation, syndrome) = operation(&mut words)?;
        let opcode = Opcode::of(self.class(), operation).ok_or("not of this transport")?;
        let psn = Psn::new(words.u32_or("psn", 0)?);
        let mut headers = Headers::new(Bth::new(opcode, self.qpn, psn));
        headers.bth.ack_req = words.flag("A");
        headers.bth.solicited = words.flag("SE");
        let len = usize::try_from(words.number_or("len", 0)?).map_err(|e| e.to_string())?;
        let va = SHARED_ADDR.wrapping_add(words.number_or("at", 0)?);
        let rkey = Rkey(words.u32_or("rkey", SHARED)?);
        let set = opcode.headers();
        let has = |bit| set.contains(bit);
        let default_len = u32::try_from(len).map_err(|e| e.to_string())?;
        let dma_len = words.u32_or("dma_len", default_len)?;
        headers.reth = has(HeaderSet::RETH).then_some(Reth { va, rkey, dma_len });
        let imm = words.u32_or("imm", 0)?.to_be_bytes();
        headers.immdt = has(HeaderSet::IMMDT).then_some(ImmDt(imm));
        let inv = Rkey(words.u32_or("inv", 0)?);
        headers.ieth = has(HeaderSet::IETH).then_some(Ieth { rkey: inv });
        let (compare, swap) = (words.number_or("compare", 0)?, words.number("swap")?);
        let swap_or_add = words.number("add")?.or(swap).unwrap_or(0);
        let atomic_eth = AtomicEth { va, rkey, swap_or_add, compare };
        headers.atomic_eth = has(HeaderSet::ATOMIC_ETH).then_some(atomic_eth);
        let msn = Msn::new(words.u32_or("msn", 0)?);
        let aeth = Aeth { syndrome: syndrome.unwrap_or(Syndrome::ACK), msn };
        headers.aeth = has(HeaderSet::AETH).then_some(aeth);
        let original = words.number_or("original", 0)?;
        headers.atomic_ack_eth =
            has(HeaderSet::ATOMIC_ACK_ETH).then_some(AtomicAckEth { original });
        let qkey = words.u32_or("qkey", self.attr.qkey)?;
        headers.deth = has(HeaderSet::DETH).then_some(Deth { qkey, src_qp: PEER });
        let srqn = Srqn(words.u32_or("srqn", self.srqn.map_or(0, |srqn| srqn.0))?);
        headers.xrceth = has(HeaderSet::XRCETH).then_some(XrcEth { srqn });
        if operation.starts_message() {
            self.stream = 0;
        }
        let from = words.number("from")?.map_or(Ok(self.stream), usize::try_from);
        let from = from.map_err(|e| e.to_string())?;
        self.stream = from + len;
        let host_octet = u8::try_from(words.number_or("host", 2)?).map_err(|e| e.to_string())?;
        let dropped = words.pairs.remove("dropped");
        words.done()?;

        let flow = Flow {
            src: gid(host_octet),
            dst: gid(1),
            src_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
        };
        let ip_id = 0x1234;
        let mut payload = vec![0; headers.buffer_len(len) + icrc::LEN];
        let body = headers.emit(len, &mut payload);
        body.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(from + at));
        let header = IcrcHeader { src: flow.src, dst: flow.dst, src_port: flow.src_port, ip_id };
        icrc::seal(&header, &mut payload);
        let outcome = self.host.deliver(&Sent { flow, ip_id, payload });
        equal("dropped", outcome.dropped.map(|reason| reason.name()), dropped)
    }

    fn post_send(&mut self, mut words: Words<'_>) -> Outcome {
        let wr_id = WrId(words.number_or("wr", 0)?);
        let name = words.take()?;
        let at = RemoteAddr {
            addr: words.number_or("va", REMOTE.addr)?,
            rkey: Rkey(words.u32_or("rkey", REMOTE.rkey.0)?),
        };
        let imm = Imm(words.u32_or("imm", 0)?.to_be_bytes());
        let inv = Rkey(words.u32_or("inv", 0)?);
        let is_atomic = matches!(name, "compare_swap" | "fetch_add");
        let op = match name {
            "send" => SendOp::Send,
            "send_imm" => SendOp::SendImm(imm),
            "send_inv" => SendOp::SendInvalidate(inv),
            "write" => SendOp::Write(at),
            "write_imm" => SendOp::WriteImm(at, imm),
            "read" => SendOp::Read(at),
            "compare_swap" => SendOp::CompareSwap {
                at,
                compare: words.number_or("compare", 0)?,
                swap: words.number_or("swap", 0)?,
            },
            "fetch_add" => SendOp::FetchAdd { at, add: words.number_or("add", 0)? },
            "bind" => SendOp::BindWindow(WindowBind {
                window: Rkey(words.u32_or("window", 0x400)?),
                new_key: Rkey(words.u32_or("key", 0x401)?),
                region: Lkey(SHARED),
                addr: SHARED_ADDR + words.number_or("at", 0)?,
                len: words.number_or("window_len", 4096)?,
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            }),
            "local_inv" => SendOp::LocalInvalidate(inv),
            other => return Err(format!("no operation {other}")),
        };
        let len = words.u32_or("len", if is_atomic { 8 } else { 0 })?;
        let mut sge = support::element(&op, len);
        if words.flag("bad_lkey") {
            sge.lkey = Lkey(0xbad);
        }
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SIGNALED, !words.flag("unsignaled"));
        flags.set(SendFlags::FENCE, words.flag("fence"));
        flags.set(SendFlags::SOLICITED, words.flag("SE"));
        let srqn = words.number("srqn")?.and_then(|srqn| u32::try_from(srqn).ok()).map(Srqn);
        let to = if self.transport == Transport::Ud {
            let ah = self.host.engine.create_ah(&self.attr.av).map_err(|e| e.to_string())?;
            let qpn = Qpn::new(words.u32_or("dest", PEER.value())?);
            Some(Datagram { ah, qpn, qkey: words.u32_or("qkey", self.attr.qkey)? })
        } else {
            None
        };
        let sges = [sge];
        let data = Data::Sges(if op.wants_no_data() { &[] } else { &sges });
        let wr = SendWr { wr_id, op, data, flags, to, srqn };
        let refused = self.host.engine.post_send(self.qpn, &wr).err();
        let expected = refusal(&mut words);
        words.done()?;
        refused_as(refused.map(|refused| format!("{refused:?}")), expected)
    }

    fn post_recv(&mut self, mut words: Words<'_>) -> Outcome {
        let wr_id = WrId(words.number_or("wr", 0)?);
        let (at, len) = (words.number_or("at", 0)?, words.u32_or("len", 0)?);
        let lkey = Lkey(if words.flag("bad_lkey") { 0xbad } else { DST });
        let sges = [Sge { addr: DST_ADDR + at, len, lkey }];
        let wr = RecvWr { wr_id, sges: &sges };
        let refused = match self.srqn {
            Some(srqn) => self.host.engine.post_srq_recv(srqn, &wr),
            None => self.host.engine.post_recv(self.qpn, &wr),
        };
        let expected = refusal(&mut words);
        words.done()?;
        refused_as(refused.err().map(|refused| format!("{refused:?}")), expected)
    }

    fn modify(&mut self, mut words: Words<'_>) -> Outcome {
        let to = state_named(words.take()?)?;
        let edge = state::masks(self.transport, self.host.state(self.qpn), to);
        let mut mask = edge.map_or(AttrMask::STATE, |edge| edge.required | AttrMask::STATE);
        let mut attr = QpAttr { state: to, ..self.attr };
        if words.flag("notify") {
            mask |= AttrMask::EN_SQD_ASYNC_NOTIFY;
            attr.sqd_notify = true;
        }
        attr.sq_psn = Psn::new(words.u32_or("sq_psn", attr.sq_psn.value())?);
        attr.rq_psn = Psn::new(words.u32_or("rq_psn", attr.rq_psn.value())?);
        let refused = self.host.modify(self.qpn, &attr, mask).err();
        let expected = refusal(&mut words);
        words.done()?;
        refused_as(refused.map(|refused| format!("{refused:?}")), expected)
    }

    fn expect_completion(&mut self, mut words: Words<'_>) -> Outcome {
        self.host.poll();
        let (cq, wc) = self.host.cqs.got.pop_front().ok_or("no completion")?;
        let context = format!("{wc:?}: ");
        let check = |what, got, expected: Option<u64>| match expected {
            Some(expected) => equal(format!("{context}{what}"), got, Some(expected)),
            None => Ok(()),
        };
        let Completion { status, byte_len, .. } = wc;
        equal(format!("{context}status"), status_name(status), words.take()?)?;
        equal(format!("{context}qpn"), wc.qpn, self.qpn)?;
        check("wr", Some(wc.wr_id.0), words.number("wr")?)?;
        check("len", Some(byte_len.into()), words.number("len")?)?;
        check("imm", wc.imm().map(|imm| u32::from_be_bytes(imm.0).into()), words.number("imm")?)?;
        check("inv", wc.invalidated().map(|key| key.0.into()), words.number("inv")?)?;
        check("cq", Some(cq.0.into()), words.number("cq")?)?;
        check("src", Some(wc.src_qpn.value().into()), words.number("src")?)?;
        if let Some(opcode) = words.pairs.remove("op") {
            let name = format!("{:?}", wc.opcode).to_lowercase();
            equal(format!("{context}op"), name.as_str(), opcode)?;
        }
        if status == WcStatus::Success {
            equal(format!("{context}SE"), wc.solicited(), words.flag("SE"))?;
        }
        words.done()
    }

    /// Compares memory with the pattern from `from` on, or with zeros.
    fn holds(&mut self, mut words: Words<'_>) -> Outcome {
        let key = region(words.take()?)?;
        let number = |value: u64| usize::try_from(value).map_err(|error| error.to_string());
        let (at, len) = (number(words.number_or("at", 0)?)?, number(words.number_or("len", 0)?)?);
        let from = number(words.number_or("from", 0)?)?;
        let got = self.host.mem.bytes(key, at, len);
        if let Some(value) = words.number("u64")? {
            words.done()?;
            return equal("value", self.host.mem.bytes(key, at, 8), &value.to_ne_bytes());
        }
        let zero = words.flag("zero");
        let expected: Vec<u8> =
            (from..from + len).map(|at| if zero { 0 } else { pattern(at) }).collect();
        words.done()?;
        let differs = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        equal("first byte that differs", differs, None)
    }
}

fn region(name: &str) -> Outcome<u32> {
    Ok(match name {
        "src" => SRC,
        "dst" => DST,
        "shared" => SHARED,
        _ => return Err(format!("no region {name}")),
    })
}

/// `! Name` at the end of a line: the call is refused so.
fn refusal<'a>(words: &mut Words<'a>) -> Option<&'a str> {
    words.flag("!").then(|| words.take().unwrap_or_default())
}

fn refused_as(got: Option<String>, expected: Option<&str>) -> Outcome {
    match (got, expected) {
        (None, None) => Ok(()),
        (Some(got), Some(expected)) if got.starts_with(expected) => Ok(()),
        (got, expected) => Err(format!("refusal: got {got:?}, not {expected:?}")),
    }
}

fn access(letters: &str) -> Outcome<Access> {
    let mut access = Access::empty();
    for letter in letters.chars().filter(|_| letters != "none") {
        access |= match letter {
            'w' => Access::REMOTE_WRITE,
            'r' => Access::REMOTE_READ,
            'a' => Access::REMOTE_ATOMIC,
            _ => return Err(format!("no right {letter}")),
        };
    }
    Ok(access)
}

fn state_named(name: &str) -> Outcome<QpState> {
    let state = QpState::ALL.into_iter().find(|state| state.name() == name);
    state.ok_or_else(|| format!("no state {name}"))
}

/// An operation by name, or `ACK`, `NAK code`, `RNR timer=…`.
fn operation(words: &mut Words<'_>) -> Outcome<(Operation, Option<Syndrome>)> {
    let name = words.take()?;
    let syndrome = match name {
        "ACK" => Syndrome::ACK,
        "RNR" => {
            let code = u8::try_from(words.number_or("timer", 12)?).unwrap_or(u8::MAX);
            Syndrome::Rnr { timer: RnrTimer::new(code).ok_or("no such timer")? }
        }
        "NAK" => Syndrome::Nak(match words.take()? {
            "seq" => NakCode::PsnSequenceError,
            "invalid" => NakCode::InvalidRequest,
            "access" => NakCode::RemoteAccessError,
            "operational" => NakCode::RemoteOperationalError,
            other => return Err(format!("no NAK {other}")),
        }),
        _ => {
            let operation =
                Operation::from_name(name).ok_or_else(|| format!("no packet {name}"))?;
            return Ok((operation, None));
        }
    };
    Ok((Operation::Acknowledge, Some(syndrome)))
}

fn describe(sent: &Sent) -> String {
    let packet = sent.packet();
    let bth = packet.headers.bth;
    let aeth =
        packet.headers.aeth.map(|aeth| format!(" {:?} msn {}", aeth.syndrome, aeth.msn.value()));
    let (psn, len) = (bth.psn.value(), packet.payload.len());
    format!("{} psn={psn} len={len}{}", bth.opcode.operation(), aeth.unwrap_or_default())
}

fn status_name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "success",
        WcStatus::LocLen => "LOC_LEN",
        WcStatus::LocQpOp => "LOC_QP_OP",
        WcStatus::LocProt => "LOC_PROT",
        WcStatus::WrFlush => "WR_FLUSH",
        WcStatus::MwBind => "MW_BIND",
        WcStatus::BadResp => "BAD_RESP",
        WcStatus::LocAccess => "LOC_ACCESS",
        WcStatus::RemInvReq => "REM_INV_REQ",
        WcStatus::RemAccess => "REM_ACCESS",
        WcStatus::RemOp => "REM_OP",
        WcStatus::RetryExc => "RETRY_EXC",
        WcStatus::RnrRetryExc => "RNR_RETRY_EXC",
        WcStatus::RemAbort => "REM_ABORT",
        WcStatus::Fatal => "FATAL",
        WcStatus::General => "GENERAL",
    }
}

/// Whether an operation takes no elements.
trait WantsNoData {
    fn wants_no_data(&self) -> bool;
}

impl WantsNoData for SendOp {
    fn wants_no_data(&self) -> bool {
        matches!(self, Self::BindWindow(_) | Self::LocalInvalidate(_))
    }
}
