//! The ping program of librdmacm, either side of it: `rping server ADDRESS [PORT]` serves one client and ends
//! when that disconnects; `rping client ADDRESS SERVER ROUNDS [PORT]` asks one.
//!
//! In each round the client offers its source, which the server READs, and then its sink, which the server
//! WRITEs; SENDs of 16 bytes say whose turn it is.

#![expect(clippy::cast_possible_truncation, reason = "halves of a word are meant")]
#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::cm::{
    Accept, CmAgent, CmEvent, ConnId, ConnParam, Connect, Listen, LocalQp, Negotiated, PortSpace,
    Route, ServiceId,
};
use pmd_verbs::roce::ids::{Gid, Psn, Rkey, WrId};
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::roce::qp::state::{QpState, Transport};
use pmd_verbs::{
    Access, Completion, Cq, Data, Device, DeviceConfig, Mr, Qp, QpOptions, Rc, RecvWr, RemoteAddr,
    WcOpcode, WcStatus, WireChoice, WorkRequest,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a message: address, key and length of a buffer, big-endian.
const INFO: usize = 16;
/// Where messages are received, the data that a server holds and a client offers, and the client's sink.
const RECEIVE_AT: u64 = 0;
const DATA_AT: u64 = 4096;
const SINK_AT: u64 = 32 << 10;
const REGION: u64 = 64 << 10;
/// Bytes of a client's data, as librdmacm has them unless told otherwise.
const SIZE: u32 = 64;
const USAGE: &str =
    "usage: rping server ADDRESS [PORT] | rping client ADDRESS SERVER ROUNDS [PORT]";

/// One end: a queue pair, and memory for it.
struct End {
    agent: CmAgent,
    sent: Cq,
    received: Cq,
    qp: Qp<Rc>,
    mr: Mr,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let port = |port: Option<&&str>| port.map_or(Ok(7174), |port| port.parse());
    let service = |port| ServiceId::new(PortSpace::Tcp, port);
    let rounds = match words.as_slice() {
        ["server", address, rest @ ..] => {
            serve(&agent(address.parse()?)?, service(port(rest.first())?))
        }
        ["client", address, server, rounds, rest @ ..] => {
            let (server, service) = (server.parse()?, service(port(rest.first())?));
            ask(&agent(address.parse()?)?, server, service, rounds.parse()?)
        }
        _ => Err(USAGE.into()),
    }?;
    println!("{rounds} rounds");
    Ok(())
}

fn agent(address: IpAddr) -> Outcome<CmAgent> {
    let config =
        DeviceConfig { address: Some(address), wire: WireChoice::Udp, ..DeviceConfig::default() };
    Ok(Device::open(&config)?.context(0)?.open_cm(|_| {})?)
}

/// One READ and one WRITE at a time are enough for both.
fn param() -> ConnParam {
    ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::DEFAULT }
}

/// Serves the first client that comes. The queue pair is ready, and its receive posted, before the client
/// can know of it.
fn serve(agent: &CmAgent, service: ServiceId) -> Outcome<u32> {
    agent.command(|cm, _| cm.listen(Listen { service, address: None, backlog: 1 }))?;
    println!("{service} at {}", agent.context().device().gid().ip());
    let (id, request) = loop {
        match next_event(agent) {
            CmEvent::ConnectRequest(id, request) => break (id, request),
            other => println!("{other:?}"),
        }
    };
    println!("a request of {:?}, path MTU {}", request.peer, request.path_mtu);
    let end = End::new(agent, Access::LOCAL_WRITE)?;
    let accept = Accept { qp: end.local(), param: param(), private_data: &[] };
    let terms = agent.command(|cm, _| cm.negotiate(id, &accept))?;
    end.bring_up(&terms)?;
    agent.command(|cm, now| cm.accept(now, id, &accept))?;

    let (mut rounds, mut reads_next) = (0, true);
    while let Some((at, len)) = end.offered(id)? {
        let data = [end.mr.sge(DATA_AT, len)];
        if reads_next {
            end.qp.post_send(&WorkRequest::read(Data::Sges(&data), at))?;
            end.complete(id, WcOpcode::Read)?;
            println!("server ping data: {}", end.text(DATA_AT, len)?);
        } else {
            end.qp.post_send(&WorkRequest::write(Data::Sges(&data), at))?;
            end.complete(id, WcOpcode::Write)?;
            rounds += 1;
        }
        reads_next = !reads_next;
        end.say(id, &[0; INFO])?;
    }
    Ok(rounds)
}

/// Asks a server, so many rounds.
fn ask(agent: &CmAgent, server: IpAddr, service: ServiceId, rounds: u32) -> Outcome<u32> {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let end = End::new(agent, rights)?;
    let connect = Connect {
        service,
        source_port: 40_000 + pmd_mem::os_entropy() as u16 % 20_000,
        route: Route::between(agent.context().device().gid(), Gid::from(server)),
        mtu: None,
        transport: Transport::Rc,
        qp: end.local(),
        param: param(),
        private_data: &[],
    };
    let id = agent.command(|cm, now| cm.connect(now, &connect))?;
    let terms = match next_event(agent) {
        CmEvent::Reply(_, terms, _) => terms,
        CmEvent::Rejected(_, rejection) => return Err(rejection.reason.to_string().into()),
        other => return Err(format!("{other:?}").into()),
    };
    end.bring_up(&terms)?;
    agent.command(|cm, _| cm.establish(id, &[]))?;
    for round in 0..rounds {
        // The last byte stays 0: to librdmacm's server it is a string.
        let text = format!("{:-<1$}", format!("rdma-ping-{round}: "), SIZE as usize - 1);
        end.mr.region().write_at(DATA_AT, text.as_bytes())?;
        for at in [DATA_AT, SINK_AT] {
            end.offer(id, at)?;
            end.heard(id)?.ok_or("the server has disconnected")?;
        }
        let back = end.text(SINK_AT, SIZE)?;
        println!("ping data: {back}");
        if back != text {
            return Err(format!("{back} came back for {text}").into());
        }
    }
    agent.command(|cm, now| cm.disconnect(now, id, &[]))?;
    while !matches!(next_event(agent), CmEvent::Disconnected(of, _) if of == id) {}
    Ok(rounds)
}

/// Waits for the next event of the manager.
fn next_event(agent: &CmAgent) -> CmEvent {
    loop {
        match agent.poll_event() {
            Some(event) => return event,
            None => std::thread::yield_now(),
        }
    }
}

impl End {
    fn new(agent: &CmAgent, rights: Access) -> Outcome<Self> {
        let cx = agent.context();
        let (pd, sent, received) = (cx.alloc_pd(), cx.create_cq(16)?, cx.create_cq(16)?);
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INFO as u32,
        };
        let options = QpOptions {
            send_cq: &sent,
            recv_cq: &received,
            srq: None,
            xrcd: None,
            cap,
            signal_all: true,
        };
        let qp = pd.create_qp::<Rc>(&options)?;
        let region = Region::create(&RegionSpec {
            name: "rping",
            len: REGION,
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::Data,
        })?;
        let mr = pd.register(&Arc::new(region), 0, REGION, rights)?;
        Ok(Self { agent: agent.clone(), sent, received, qp, mr })
    }

    /// What the peer is told of the queue pair. Its first PSN is as hard to guess as the key.
    fn local(&self) -> LocalQp {
        let psn = Psn::new(self.mr.rkey().0 ^ self.qp.number().value());
        LocalQp { qpn: self.qp.number(), psn, srq: false }
    }

    /// To RTS, with a receive posted before anything can come.
    fn bring_up(&self, terms: &Negotiated) -> Outcome<()> {
        self.agent.step(&self.qp, terms, QpState::Init)?;
        self.post_receive()?;
        self.agent.step(&self.qp, terms, QpState::Rtr)?;
        self.agent.step(&self.qp, terms, QpState::Rts)?;
        Ok(())
    }

    fn post_receive(&self) -> Outcome<()> {
        let sges = [self.mr.sge(RECEIVE_AT, INFO as u32)];
        self.qp.post_recv(&RecvWr { wr_id: WrId(0), sges: &sges })?;
        Ok(())
    }

    fn text(&self, at: u64, len: u32) -> Outcome<String> {
        let mut text = vec![0; len as usize];
        self.mr.region().read_at(at, &mut text)?;
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned())
    }

    fn say(&self, id: ConnId, info: &[u8; INFO]) -> Outcome<()> {
        self.qp.post_send(&WorkRequest::send(Data::Inline(&[info])))?;
        self.complete(id, WcOpcode::Send)
    }

    /// Offers a buffer of this side.
    fn offer(&self, id: ConnId, at: u64) -> Outcome<()> {
        let RemoteAddr { addr, rkey } = self.mr.remote(at);
        let mut info = [0; INFO];
        info[..8].copy_from_slice(&addr.to_be_bytes());
        info[8..12].copy_from_slice(&rkey.0.to_be_bytes());
        info[12..].copy_from_slice(&SIZE.to_be_bytes());
        self.say(id, &info)
    }

    /// The buffer that the peer offers; `None` when it has disconnected.
    fn offered(&self, id: ConnId) -> Outcome<Option<(RemoteAddr, u32)>> {
        let Some(info) = self.heard(id)? else { return Ok(None) };
        let word =
            |at: usize| u64::from_be_bytes(info[at..at + 8].try_into().expect("eight bytes"));
        let (addr, rest) = (word(0), word(8));
        let (rkey, len) = (Rkey((rest >> 32) as u32), rest as u32);
        if u64::from(len) > REGION - DATA_AT {
            return Err(format!("an offer of {len} bytes").into());
        }
        Ok(Some((RemoteAddr { addr, rkey }, len)))
    }

    /// The peer's next message; `None` when it has disconnected.
    fn heard(&self, id: ConnId) -> Outcome<Option<[u8; INFO]>> {
        let Some(completion) = self.next(id, &self.received)? else { return Ok(None) };
        if completion.opcode != WcOpcode::Recv || completion.byte_len != INFO as u32 {
            return Err(format!("{completion:?} instead of a message").into());
        }
        let mut info = [0; INFO];
        self.mr.region().read_at(RECEIVE_AT, &mut info)?;
        self.post_receive()?;
        Ok(Some(info))
    }

    fn complete(&self, id: ConnId, wanted: WcOpcode) -> Outcome<()> {
        match self.next(id, &self.sent)? {
            Some(completion) if completion.opcode == wanted => Ok(()),
            other => Err(format!("{other:?} instead of {wanted:?}").into()),
        }
    }

    /// The next completion of a queue; `None` when the peer has disconnected.
    fn next(&self, id: ConnId, cq: &Cq) -> Outcome<Option<Completion>> {
        loop {
            let mut completion = None;
            cq.poll(1, |polled| completion = Some(polled));
            match completion {
                Some(done) if done.status == WcStatus::Success => return Ok(Some(done)),
                Some(failed) => return Err(format!("{failed:?}").into()),
                None => {}
            }
            match self.agent.poll_event() {
                Some(CmEvent::Disconnected(of, _)) if of == id => return Ok(None),
                Some(other) => println!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
    }
}
