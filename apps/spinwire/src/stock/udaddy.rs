//! `udaddy`: datagram queue pairs that are looked up, over each of which the client sends its messages and then the
//! server. The immediate data of each is the number of the sender's queue pair.

use std::net::SocketAddr;
use std::rc::Rc as Shared;

use pmd_graph::app::say;
use pmd_observe::Code;
use pmd_verbs::cm::{ConnectParams, Established, EventKind, Id, PortSpace, UDP_QKEY};
use pmd_verbs::roce::ids::{Qpn, WrId};
use pmd_verbs::roce::qp::attr::AddressVector;
use pmd_verbs::{Access, Ah, Completion, Cq, Data, Imm, Mr, Qp, RecvWr, Ud, WorkRequest};

use super::args::UdaddyArgs;
use super::failure::Failure;
use super::host::{Host, options};
use super::streams::{complete, of_length, open, take};

/// The port of librdmacm's program.
const PORT: u16 = 7174;
/// Bytes of a receive in front of the message: a GRH.
const GRH: u32 = 40;

/// One datagram path.
struct Node {
    id: Id,
    qp: Shared<Qp<Ud>>,
    /// The way to the peer's queue pair.
    ah: Option<Ah>,
    peer: Qpn,
    qkey: u32,
}

struct End<'a> {
    args: &'a UdaddyArgs,
    host: Host,
    sent: Cq,
    received: Cq,
    mr: Mr,
    nodes: Vec<Node>,
}

pub(super) fn run(args: &UdaddyArgs) -> Result<(), Failure> {
    let exchange = &args.exchange;
    let (server, host) = open(exchange, PORT)?;
    let mut end = End::new(args, host)?;
    match server {
        Some(server) => {
            end.look_up(server)?;
            end.send()?;
            end.receive()?;
        }
        None => {
            end.accept()?;
            end.receive()?;
            end.send()?;
        }
    }
    complete(exchange, "path", "datagram")
}

/// Nobody acknowledges datagrams: it is not known what became of them.
fn lost(text: &str) -> Failure {
    let text = format!("{text}: datagrams were lost on the way, or the peer is gone");
    Failure::remote(Code::Unknown, text)
}

impl<'a> End<'a> {
    fn new(args: &'a UdaddyArgs, host: Host) -> Result<Self, Failure> {
        let (size, mtu) = (args.exchange.size, host.cx.device().mtu().bytes());
        if size as usize > mtu {
            return Err(Failure::usage(format!(
                "a datagram of {size} bytes: the path MTU here is {mtu}"
            )));
        }
        let depth = args.exchange.connections * args.exchange.count;
        let (sent, received) = (host.cq(depth)?, host.cq(depth)?);
        let mr = host.memory(u64::from(2 * size + GRH), Access::LOCAL_WRITE)?;
        Ok(Self { args, host, sent, received, mr, nodes: Vec::new() })
    }

    fn add(&mut self, id: Id) -> Result<(), Failure> {
        let (count, size) = (self.args.exchange.count, self.args.exchange.size);
        let depths = (count.max(1), count.max(1));
        let options = options(&self.sent, &self.received, depths, 0);
        let qp = id.create_qp::<Ud>(&self.host.pd, &options)?;
        let sges = [self.mr.sge(u64::from(size), size + GRH)];
        for _ in 0..count {
            qp.post_recv(&RecvWr { wr_id: WrId(0), sges: &sges }).map_err(Failure::local)?;
        }
        self.nodes.push(Node { id, qp, ah: None, peer: Qpn::new(0), qkey: UDP_QKEY });
        Ok(())
    }

    fn handle(&self, av: &AddressVector) -> Result<Ah, Failure> {
        self.host.pd.create_ah(av).map_err(Failure::local)
    }

    fn look_up(&mut self, server: SocketAddr) -> Result<(), Failure> {
        for _ in 0..self.args.exchange.connections {
            let id = self.host.channel.create_id(PortSpace::Udp);
            id.set_type_of_service(self.args.exchange.tos);
            id.resolve_addr(server)?;
            self.host.channel.outcome(&id, "ADDR_RESOLVED", self.host.limit)?;
            id.resolve_route()?;
            self.host.channel.outcome(&id, "ROUTE_RESOLVED", self.host.limit)?;
            self.add(id)?;
        }
        self.nodes.iter().try_for_each(|node| node.id.connect(&ConnectParams::default()))?;
        for at in 0..self.nodes.len() {
            let id = &self.nodes[at].id;
            let found = self.host.channel.outcome(id, "ESTABLISHED", self.host.limit);
            let found = found.map_err(|failure| self.host.unreached(failure, server))?;
            let EventKind::Established(Established::Datagrams { av, qpn, qkey }, _) = found else {
                return Err(Failure::event(&found));
            };
            let ah = self.handle(&av)?;
            let node = &mut self.nodes[at];
            (node.ah, node.peer, node.qkey) = (Some(ah), qpn, qkey);
        }
        Ok(())
    }

    /// Answers as many lookups as there shall be paths.
    fn accept(&mut self) -> Result<(), Failure> {
        let listener = self.host.listen(PortSpace::Udp, PORT)?;
        say(format_args!("udaddy: serving at {} port {PORT}", self.host.ip()));
        while self.nodes.len() < self.args.exchange.connections as usize {
            match self.host.channel.request(&listener, self.host.limit) {
                Ok((id, _)) => self.add(id)?,
                Err(pmd_verbs::cm::CmFailure::Late { .. }) if self.nodes.is_empty() => continue,
                Err(failure) => return Err(failure.into()),
            }
            if let Some(node) = self.nodes.last() {
                node.id.accept(&ConnectParams::default())?;
            }
        }
        Ok(())
    }

    fn send(&self) -> Result<(), Failure> {
        let sges = [self.mr.sge(0, self.args.exchange.size)];
        for Node { qp, ah, peer, qkey, .. } in &self.nodes {
            let Some(ah) = ah else { continue };
            let imm = Imm(qp.number().value().to_be_bytes());
            for _ in 0..self.args.exchange.count {
                let send = WorkRequest::send_to_imm(Data::Sges(&sges), ah, *peer, *qkey, imm);
                qp.post_send(&send).map_err(Failure::local)?;
            }
        }
        take(&self.host, &self.sent, self.total(), "sends", |_| Ok(()), lost)
    }

    fn total(&self) -> u64 {
        self.nodes.len() as u64 * u64::from(self.args.exchange.count)
    }

    /// Receives everything; what arrives first tells a server where to answer.
    fn receive(&mut self) -> Result<(), Failure> {
        let size = self.args.exchange.size;
        let mut senders = Vec::new();
        let each = |done: &Completion| {
            senders.push((done.qpn, done.imm().map(|Imm(bytes)| u32::from_be_bytes(bytes))));
            of_length(done, size + GRH)
        };
        take(&self.host, &self.received, self.total(), "datagrams", each, lost)?;
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let (None, Some(path)) = (&node.ah, node.id.view().path) else { continue };
            let sender = senders.iter().find(|(qpn, _)| *qpn == node.qp.number());
            let Some((_, Some(number))) = sender else { continue };
            let ah = self.handle(&path)?;
            (self.nodes[at].ah, self.nodes[at].peer) = (Some(ah), Qpn::new(*number & 0xff_ffff));
        }
        Ok(())
    }
}
