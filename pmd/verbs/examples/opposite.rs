//! The other end of `ci/lab.d/verbs.c`: RC connections that try every operation, in either role.
//!
//! `opposite server ADDRESS MODES` serves a connection per letter, `opposite client ADDRESS SERVER MODES` makes them.
//! Modes: `o` operations of all sizes, `l` of few, over a link that loses some of each kind of packet, `k` WRITE and `K`
//! READ with a wrong key, `b` WRITE out of bounds, `t` a SEND too long for its receive, `f` a WRITE that the queue pair
//! forbids, `r` a receive that comes late, `x` one that never comes.

#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc as Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::cm::{
    CmAgent, CmFailure, ConnParam, ConnectParams, EventChannel, EventKind, Id, PortSpace, Request,
};
use pmd_verbs::roce::ids::{Rkey, WrId};
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{
    Access, Completion, Cq, Data, Device, DeviceConfig, Disturb, FaultText, Imm, Mr, Pd, Qp,
    QpOptions, Rc, RecvWr, RemoteAddr, WcStatus, WireChoice, WorkRequest,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PORT: u16 = 7472;
const MIB: u64 = 1 << 20;
/// What lies where in the memory of either end: what was received, in numbers; an atomic; data; the receive; the sink.
const STATUS_AT: u64 = 0;
const ATOMIC_AT: u64 = 64;
const DATA_AT: u64 = 4096;
const RECV_AT: u64 = 2 * MIB;
const SINK_AT: u64 = 3 * MIB + 4096;
const LEN: u64 = 5 * MIB;
/// Receives that wait, and the bytes of each; of one that is too short.
const RECEIVES: usize = 8;
const LONG: u32 = 1 << 20;
const SHORT: u32 = 64;
/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(20);

/// What is lost of each kind, in either direction; not for ever, since a message may be as long as a period.
const LOSSES: [&str; 6] = [
    "drop SEND_ONLY every 3 count 5",
    "drop SEND_MIDDLE every 7 count 5",
    "drop WRITE_MIDDLE every 11 count 5",
    "drop acks every 9 count 5",
    "drop READ_REQUEST every 8 count 5",
    "drop READ_RESPONSE_MIDDLE every 13 count 5",
];

/// Lengths around packets of every path MTU, and a megabyte.
const ALL: [u32; 15] =
    [0, 1, 3, 64, 255, 1023, 1024, 1025, 4095, 4096, 4097, 10_001, 65_537, LONG - 1, LONG];
const FEW: [u32; 3] = [1, 1025, 20_001];

/// A device with its channel.
struct Place {
    agent: CmAgent,
    channel: EventChannel,
    pd: Pd,
    mr: Mr,
}

/// One connection.
struct End<'a> {
    place: &'a Place,
    mode: u8,
    id: Id,
    cq: Cq,
    qp: Shared<Qp<Rc>>,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["server", address, modes] => {
            let place = Place::new(address.parse()?, modes)?;
            let listener = place.channel.create_id(PortSpace::Tcp);
            listener.bind(SocketAddr::new(address.parse()?, PORT))?;
            listener.listen(8)?;
            for mode in modes.bytes() {
                End::serve(&place, &listener, mode)
                    .map_err(|error| format!("mode {}: {error}", char::from(mode)))?;
                println!("served {}", char::from(mode));
            }
        }
        ["client", address, server, modes] => {
            let place = Place::new(address.parse()?, modes)?;
            let server = SocketAddr::new(server.parse()?, PORT);
            for mode in modes.bytes() {
                End::ask(&place, server, mode)
                    .map_err(|error| format!("mode {}: {error}", char::from(mode)))?;
                println!("asked {}", char::from(mode));
            }
        }
        _ => {
            return Err("usage: opposite server ADDRESS MODES | client ADDRESS SERVER MODES".into());
        }
    }
    Ok(())
}

impl Place {
    fn new(address: IpAddr, modes: &str) -> Outcome<Self> {
        let mut disturb = Disturb { seed: 7, ..Disturb::default() };
        if modes.contains('l') {
            for text in LOSSES {
                disturb.faults.push(FaultText::parse(text)?.place(None, None));
            }
        }
        let (wire, address) = (WireChoice::Udp, Some(address));
        let config = DeviceConfig { address, wire, disturb, ..DeviceConfig::default() };
        let cx = Device::open(&config)?.context(0)?;
        let agent = cx.open_cm(|_| {})?;
        let spec = RegionSpec {
            name: "opposite",
            len: LEN,
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::Data,
        };
        let pd = cx.alloc_pd();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = Arc::new(Region::create(&spec)?);
        let mr = pd.register(&region, 0, LEN, Access::LOCAL_WRITE | remote)?;
        Ok(Self { channel: agent.create_channel()?, agent, pd, mr })
    }

    fn bytes(&self, at: u64, len: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mr.region().read_at(at, &mut bytes)?;
        Ok(bytes)
    }
}

impl<'a> End<'a> {
    fn new(place: &'a Place, mode: u8, id: Id) -> Outcome<Self> {
        let cq = place.agent.context().create_cq(64)?;
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let options =
            QpOptions { send_cq: &cq, recv_cq: &cq, srq: None, xrcd: None, cap, signal_all: true };
        let qp = id.create_qp::<Rc>(&place.pd, &options)?;
        Ok(Self { place, mode, id, cq, qp })
    }

    fn is_one_of(&self, modes: &str) -> bool {
        modes.contains(char::from(self.mode))
    }

    /// Serves one connection: receives until the other end disconnects, and notes what it received.
    fn serve(place: &Place, listener: &Id, mode: u8) -> Outcome<()> {
        let (id, request) = loop {
            match place.channel.request(listener, LIMIT) {
                Err(CmFailure::Late { .. }) => {}
                other => break other?,
            }
        };
        let Request::Connection(request) = request else { return Err("a lookup".into()) };
        if request.private_data.as_bytes()[0] != mode {
            return Err("the other end is in another mode".into());
        }
        let end = End::new(place, mode, id)?;
        place.mr.region().write_at(0, &[0; 4096])?;
        if !end.is_one_of("rx") {
            let len = if mode == b't' { SHORT } else { LONG };
            (0..RECEIVES).try_for_each(|_| end.receive(len))?;
        }
        let RemoteAddr { addr, rkey } = place.mr.remote(0);
        let len = u32::try_from(LEN)?;
        let info = [&addr.to_be_bytes()[..], &rkey.0.to_be_bytes(), &len.to_be_bytes()].concat();
        let rnr_retry_count = if mode == b'x' { 1 } else { 7 };
        let param = ConnParam { rnr_retry_count, ack_timeout: Some(14), ..ConnParam::DEFAULT };
        let params = ConnectParams { param, ..ConnectParams::with(&info) };
        place.channel.accept(&end.id, &params, LIMIT)?;
        if mode == b'f' {
            let nothing = QpAttr { access: Access::empty(), ..QpAttr::new(QpState::Rts) };
            end.qp.modify(&nothing, AttrMask::ACCESS_FLAGS)?;
        }
        if mode == b'r' {
            let cx = place.agent.context();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(500) {
                cx.progress(cx.device().now());
            }
            end.receive(LONG)?;
        }
        end.note_receives()
    }

    fn note_receives(&self) -> Outcome<()> {
        let mut count = 0_u32;
        loop {
            let mut completed = None;
            self.cq.poll(1, |completion| completed = Some(completion));
            match completed {
                Some(done) if done.status == WcStatus::Success => {
                    self.receive(LONG)?;
                    count += 1;
                    let imm = done.imm();
                    let fields = [
                        count.to_be_bytes(),
                        done.byte_len.to_be_bytes(),
                        imm.unwrap_or_default().0,
                        u32::from(imm.is_some()).to_be_bytes(),
                    ];
                    self.place.mr.region().write_at(STATUS_AT, &fields.concat())?;
                }
                Some(failed) if failed.status == WcStatus::WrFlush || self.is_one_of("t") => {}
                Some(failed) => return Err(format!("a receive: {:?}", failed.status).into()),
                None => {}
            }
            match self.place.channel.poll() {
                Some(event) if event.id() != self.id.number() => {}
                Some(event) => match event.kind() {
                    EventKind::Disconnected(_) => return Ok(()),
                    other => return Err(other.to_string().into()),
                },
                None => std::thread::yield_now(),
            }
        }
    }

    fn receive(&self, len: u32) -> Outcome<()> {
        let sges = [self.place.mr.sge(RECV_AT, len)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: WrId(0), sges: &sges })?)
    }

    /// Makes one connection, and checks every completion and every byte.
    fn ask(place: &Place, server: SocketAddr, mode: u8) -> Outcome<()> {
        let id = place.channel.open(PortSpace::Tcp, server, LIMIT)?;
        let end = End::new(place, mode, id)?;
        let param = ConnParam { ack_timeout: Some(14), ..ConnParam::DEFAULT };
        let told = [mode];
        let params = ConnectParams { param, ..ConnectParams::with(&told) };
        let (_, info) = place.channel.connect(&end.id, &params, LIMIT)?;
        let info = info.as_bytes();
        let (addr, rkey) = (
            u64::from_be_bytes(info[..8].try_into()?),
            u32::from_be_bytes(info[8..12].try_into()?),
        );
        let wrong = if end.is_one_of("kK") { 0x5a_5a00 } else { 0 };
        let at = |offset| RemoteAddr { addr: addr + offset, rkey: Rkey(rkey ^ wrong) };
        if end.is_one_of("fx") {
            std::thread::sleep(Duration::from_millis(300));
        }
        let data = |len| [place.mr.sge(DATA_AT, len)];
        let status = match mode {
            b'o' => end.operations(&at, &ALL)?,
            b'l' => end.operations(&at, &FEW)?,
            b'k' | b'f' => end.request(&WorkRequest::write(Data::Sges(&data(64)), at(DATA_AT)))?,
            b'K' => end.request(&WorkRequest::read(Data::Sges(&data(64)), at(DATA_AT)))?,
            b'b' => end.request(&WorkRequest::write(Data::Sges(&data(64)), at(LEN - 32)))?,
            b't' => end.request(&WorkRequest::send(Data::Sges(&data(2 * SHORT))))?,
            b'r' | b'x' => end.request(&WorkRequest::send(Data::Sges(&data(99))))?,
            _ => return Err("no such mode".into()),
        };
        let wanted = match mode {
            b'k' | b'K' | b'b' => WcStatus::RemAccess,
            // Linux answers so, and not with an invalid request.
            b't' => WcStatus::RemOp,
            b'f' => WcStatus::RemInvReq,
            b'x' => WcStatus::RnrRetryExc,
            _ => WcStatus::Success,
        };
        if status != wanted {
            return Err(format!("{status:?} instead of {wanted:?}").into());
        }
        Ok(place.channel.disconnect(&end.id, LIMIT)?)
    }

    fn request(&self, request: &WorkRequest<'_, Rc>) -> Outcome<WcStatus> {
        self.qp.post_send(request)?;
        let start = Instant::now();
        loop {
            let mut completed: Option<Completion> = None;
            self.cq.poll(1, |completion| completed = Some(completion));
            match completed {
                Some(done) => return Ok(done.status),
                None if start.elapsed() > LIMIT => return Err("no completion".into()),
                None => std::thread::yield_now(),
            }
        }
    }

    fn good(&self, request: &WorkRequest<'_, Rc>) -> Outcome<()> {
        match self.request(request)? {
            WcStatus::Success => Ok(()),
            status => Err(format!("{status:?} of {request:?}").into()),
        }
    }

    fn operations(&self, at: &dyn Fn(u64) -> RemoteAddr, lengths: &[u32]) -> Outcome<WcStatus> {
        let mut received = 0_u32;
        for (round, len) in (0_u32..).zip(lengths.iter().copied()) {
            let sges = [self.place.mr.sge(DATA_AT, len)];
            let data = Data::Sges(if len == 0 { &[] } else { &sges });
            let imm = Imm((0xabcd_0000 + round).to_be_bytes());
            self.fill(len, round)?;
            self.good(&WorkRequest::write(data, at(DATA_AT)))?;
            self.is_there(at(DATA_AT), len)?;
            let messages = [
                (WorkRequest::send(data), RECV_AT, None),
                (WorkRequest::send_imm(data, imm), RECV_AT, Some(imm)),
                (WorkRequest::write_imm(data, at(DATA_AT), imm), DATA_AT, Some(imm)),
            ];
            for (message, lands_at, imm) in messages {
                received += 1;
                self.fill(len, round + 50 * received)?;
                self.good(&message)?;
                self.was_received(at(STATUS_AT), (received, len, imm))?;
                self.is_there(at(lands_at), len)?;
            }
        }
        self.atomics(at)?;
        Ok(WcStatus::Success)
    }

    fn atomics(&self, at: &dyn Fn(u64) -> RemoteAddr) -> Outcome<()> {
        let (mr, value) = (&self.place.mr, 0x1122_3344_5566_7788_u64);
        mr.region().write_at(DATA_AT, &value.to_ne_bytes())?;
        let (here, sink) = ([mr.sge(DATA_AT, 8)], [mr.sge(SINK_AT, 8)]);
        self.good(&WorkRequest::write(Data::Sges(&here), at(ATOMIC_AT)))?;
        let old = Data::Sges(&sink);
        let steps = [
            (WorkRequest::compare_swap(old, at(ATOMIC_AT), 1, 2), value),
            (WorkRequest::compare_swap(old, at(ATOMIC_AT), value, 5), value),
            (WorkRequest::fetch_add(old, at(ATOMIC_AT), 37), 5),
            (WorkRequest::read(old, at(ATOMIC_AT)), 42),
        ];
        for (request, wanted) in steps {
            self.good(&request)?;
            if self.place.bytes(SINK_AT, 8)? != wanted.to_ne_bytes() {
                return Err(format!("not {wanted:#x} after {request:?}").into());
            }
        }
        Ok(())
    }

    fn fill(&self, len: u32, salt: u32) -> Outcome<()> {
        let byte = |i: u32| (i.wrapping_mul(7) + (i >> 8) + salt).to_le_bytes()[0];
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        Ok(self.place.mr.region().write_at(DATA_AT, &bytes)?)
    }

    /// What lies in the responder's memory is what was sent.
    fn is_there(&self, at: RemoteAddr, len: u32) -> Outcome<()> {
        let sges = [self.place.mr.sge(SINK_AT, len)];
        let data = Data::Sges(if len == 0 { &[] } else { &sges });
        self.place.mr.region().write_at(SINK_AT, &vec![0xee; len as usize + 1])?;
        self.good(&WorkRequest::read(data, at))?;
        let sent = self.place.bytes(DATA_AT, len as usize)?;
        let mut came = self.place.bytes(SINK_AT, len as usize + 1)?;
        if came.pop() != Some(0xee) || came != sent {
            return Err(format!("{len} bytes came otherwise than they were sent").into());
        }
        Ok(())
    }

    /// The responder has received so many messages, the last of this length and with this immediate.
    fn was_received(
        &self,
        at: RemoteAddr,
        (count, len, imm): (u32, u32, Option<Imm>),
    ) -> Outcome<()> {
        let sges = [self.place.mr.sge(SINK_AT, 16)];
        let start = Instant::now();
        loop {
            self.good(&WorkRequest::read(Data::Sges(&sges), at))?;
            let words = self.place.bytes(SINK_AT, 16)?;
            if words[..4] != count.to_be_bytes() {
                if start.elapsed() > LIMIT {
                    return Err(format!("message {count} did not come").into());
                }
                continue;
            }
            let with = u32::from(imm.is_some()).to_be_bytes();
            let is_same = words[4..8] == len.to_be_bytes() && words[12..] == with;
            if is_same && imm.is_none_or(|imm| words[8..12] == imm.0) {
                return Ok(());
            }
            return Err(format!("{words:?} was received for {len} bytes with {imm:?}").into());
        }
    }
}
