//! The server of `rping`, the ping program of librdmacm: `rping_server ADDRESS [PORT]` serves one client
//! and ends when that disconnects.
//!
//! In each round the client offers its source, which the server READs, and its sink, which the server
//! WRITEs; SENDs of 16 bytes say whose turn it is.

#![expect(clippy::cast_possible_truncation, reason = "halves of a word are meant")]
#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::cm::{
    Accept, CmAgent, CmEvent, ConnId, ConnParam, Listen, LocalQp, PortSpace, ServiceId,
};
use pmd_verbs::roce::ids::{Psn, Rkey};
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{
    Access, Completion, Cq, Data, Device, DeviceConfig, Mr, Qp, QpOptions, Rc, RecvWr, RemoteAddr,
    WcOpcode, WcStatus, WireChoice, WorkRequest,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a message: address, key and length of a buffer.
const INFO: u32 = 16;
/// Where messages are received, and where data is, in the region.
const RECEIVE_AT: u64 = 0;
const DATA_AT: u64 = 4096;
const REGION: u64 = 64 << 10;

/// A connection with a client.
struct Server {
    agent: CmAgent,
    cq: Cq,
    qp: Qp<Rc>,
    mr: Mr,
    id: ConnId,
    rounds: u32,
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let address: IpAddr = arguments.next().ok_or("usage: rping_server ADDRESS [PORT]")?.parse()?;
    let port = arguments.next().map_or(Ok(7174), |port| port.parse())?;
    let config =
        DeviceConfig { address: Some(address), wire: WireChoice::Udp, ..DeviceConfig::default() };
    let device = Device::open(&config)?;
    let agent = device.context(0)?.open_cm(|_| {})?;
    let service = ServiceId::new(PortSpace::Tcp, port);
    let listen = Listen { service, address: None, backlog: 1 };
    agent.command(|cm, _| cm.listen(listen))?;
    println!("{service} at {address}");
    let mut server = accept(agent)?;
    server.serve()?;
    println!("{} rounds", server.rounds);
    Ok(())
}

/// Waits for a client; the queue pair is ready, and its receive posted, before the client knows of it.
fn accept(agent: CmAgent) -> Outcome<Server> {
    let (id, request) = loop {
        match agent.poll_event() {
            Some(CmEvent::ConnectRequest(id, request)) => break (id, request),
            Some(other) => println!("{other:?}"),
            None => std::thread::yield_now(),
        }
    };
    println!("a request of {:?}, path MTU {}", request.peer, request.path_mtu);
    let cx = agent.context();
    let pd = cx.alloc_pd();
    let cq = cx.create_cq(16)?;
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: INFO,
    };
    let options =
        QpOptions { send_cq: &cq, recv_cq: &cq, srq: None, xrcd: None, cap, signal_all: true };
    let qp = pd.create_qp::<Rc>(&options)?;
    let region = Region::create(&RegionSpec {
        name: "rping",
        len: REGION,
        hugepages: Hugepages::None,
        numa: &Numa::default(),
        seal: Seal::Data,
    })?;
    let mr = pd.register(&Arc::new(region), 0, REGION, Access::LOCAL_WRITE)?;
    let qp_of_ours =
        LocalQp { qpn: qp.number(), psn: Psn::new(pmd_mem::os_entropy() as u32), srq: false };
    let param = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::DEFAULT };
    let accept = Accept { qp: qp_of_ours, param, private_data: &[] };
    let terms = agent.command(|cm, _| cm.negotiate(id, &accept))?;
    agent.step(&qp, &terms, QpState::Init)?;
    let server = Server { agent, cq, qp, mr, id, rounds: 0 };
    server.post_receive()?;
    server.agent.step(&server.qp, &terms, QpState::Rtr)?;
    server.agent.step(&server.qp, &terms, QpState::Rts)?;
    server.agent.command(|cm, now| cm.accept(now, id, &accept))?;
    Ok(server)
}

impl Server {
    fn post_receive(&self) -> Outcome<()> {
        let sges = [self.mr.sge(RECEIVE_AT, INFO)];
        self.qp.post_recv(&RecvWr { wr_id: pmd_verbs::roce::ids::WrId(0), sges: &sges })?;
        Ok(())
    }

    /// Rounds until the client has had enough.
    fn serve(&mut self) -> Outcome<()> {
        let mut reads_next = true;
        while let Some((at, len)) = self.offered()? {
            let data = [self.mr.sge(DATA_AT, len)];
            if reads_next {
                self.qp.post_send(&WorkRequest::read(Data::Sges(&data), at))?;
                self.complete(WcOpcode::Read)?;
                let mut text = vec![0; len as usize];
                self.mr.region().read_at(DATA_AT, &mut text)?;
                let text = String::from_utf8_lossy(&text);
                println!("server ping data: {}", text.trim_end_matches('\0'));
            } else {
                self.qp.post_send(&WorkRequest::write(Data::Sges(&data), at))?;
                self.complete(WcOpcode::Write)?;
                self.rounds += 1;
            }
            reads_next = !reads_next;
            self.qp.post_send(&WorkRequest::send(Data::Inline(&[&[0; INFO as usize]])))?;
            self.complete(WcOpcode::Send)?;
        }
        Ok(())
    }

    /// The buffer that the client offers next; `None` when it has disconnected.
    fn offered(&self) -> Outcome<Option<(RemoteAddr, u32)>> {
        let Some(completion) = self.next()? else { return Ok(None) };
        if completion.opcode != WcOpcode::Recv || completion.byte_len != INFO {
            return Err(format!("{completion:?} instead of an offer").into());
        }
        let mut info = [0; INFO as usize];
        self.mr.region().read_at(RECEIVE_AT, &mut info)?;
        self.post_receive()?;
        let [addr, rest] =
            [0, 8].map(|at| u64::from_be_bytes(info[at..at + 8].try_into().expect("8 bytes")));
        let (rkey, len) = (Rkey((rest >> 32) as u32), rest as u32);
        if u64::from(len) > REGION - DATA_AT {
            return Err(format!("an offer of {len} bytes").into());
        }
        Ok(Some((RemoteAddr { addr, rkey }, len)))
    }

    fn complete(&self, wanted: WcOpcode) -> Outcome<()> {
        match self.next()? {
            Some(completion) if completion.opcode == wanted => Ok(()),
            other => Err(format!("{other:?} instead of {wanted:?}").into()),
        }
    }

    /// The next completion; `None` when the client has disconnected.
    fn next(&self) -> Outcome<Option<Completion>> {
        loop {
            let mut completion = None;
            self.cq.poll(1, |polled| completion = Some(polled));
            match completion {
                Some(done) if done.status == WcStatus::Success => return Ok(Some(done)),
                Some(failed) => return Err(format!("{failed:?}").into()),
                None => {}
            }
            match self.agent.poll_event() {
                Some(CmEvent::Disconnected(id, _)) if id == self.id => return Ok(None),
                Some(other) => println!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
    }
}
