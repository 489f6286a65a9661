//! `ucmatose`: connections, over each of which the server sends its messages and then the client, and which the server
//! ends.

use std::rc::Rc as Shared;

use pmd_graph::app::say;
use pmd_verbs::cm::{CmFailure, ConnParam, ConnectParams, EventChannel, EventKind, Id};
use pmd_verbs::roce::ids::WrId;
use pmd_verbs::{Access, Completion, Cq, Data, Mr, Qp, Rc, RecvWr, WorkRequest};

use super::args::UcmatoseArgs;
use super::failure::Failure;
use super::host::{Host, options};
use super::streams::{complete, of_length, open, silence, take};

/// What librdmacm's program asks for.
const RETRIES: u8 = 5;

/// One connection.
struct Node {
    id: Id,
    qp: Shared<Qp<Rc>>,
}

/// One end with its queues and memory.
struct End<'a> {
    args: &'a UcmatoseArgs,
    host: Host,
    sent: Cq,
    received: Cq,
    mr: Mr,
    nodes: Vec<Node>,
}

pub(super) fn run(args: &UcmatoseArgs) -> Result<(), Failure> {
    let exchange = &args.exchange;
    let (server, host) = open(exchange, args.port)?;
    let mut end = End::new(args, host)?;
    match server {
        Some(server) => {
            end.connect(server)?;
            end.ask()?;
        }
        None => {
            end.accept()?;
            end.serve()?;
        }
    }
    complete(exchange, "connection", "message")
}

impl<'a> End<'a> {
    fn new(args: &'a UcmatoseArgs, host: Host) -> Result<Self, Failure> {
        let depth = args.exchange.connections * args.exchange.count;
        let (sent, received) = (host.cq(depth)?, host.cq(depth)?);
        let mr = host.memory(2 * u64::from(args.exchange.size), Access::LOCAL_WRITE)?;
        Ok(Self { args, host, sent, received, mr, nodes: Vec::new() })
    }

    fn params(&self) -> ConnectParams<'static> {
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: RETRIES,
            ack_timeout: self.args.ack_timeout,
            ..ConnParam::DEFAULT
        };
        ConnectParams { param, ..ConnectParams::default() }
    }

    /// A queue pair with all its receives: they are there before the peer can send.
    fn add(&mut self, id: Id) -> Result<(), Failure> {
        let count = self.args.exchange.count;
        let depths = (count.max(1), count.max(1));
        let options = options(&self.sent, &self.received, depths, 0);
        let qp = id.create_qp::<Rc>(&self.host.pd, &options)?;
        let size = self.args.exchange.size;
        let sges = [self.mr.sge(u64::from(size), size)];
        for _ in 0..count {
            qp.post_recv(&RecvWr { wr_id: WrId(0), sges: &sges }).map_err(Failure::local)?;
        }
        self.nodes.push(Node { id, qp });
        Ok(())
    }

    fn connect(&mut self, server: std::net::SocketAddr) -> Result<(), Failure> {
        let space = self.args.space.space();
        for _ in 0..self.args.exchange.connections {
            let id = self.host.channel.create_id(space);
            id.set_type_of_service(self.args.exchange.tos);
            id.resolve_addr(server)?;
            self.host.channel.outcome(&id, "ADDR_RESOLVED", self.host.limit)?;
            id.resolve_route()?;
            self.host.channel.outcome(&id, "ROUTE_RESOLVED", self.host.limit)?;
            self.add(id)?;
        }
        let params = self.params();
        self.nodes.iter().try_for_each(|node| node.id.connect(&params))?;
        self.established(|failure| self.host.unreached(failure, server))
    }

    fn accept(&mut self) -> Result<(), Failure> {
        let listener = self.host.listen(self.args.space.space(), self.args.port)?;
        say(format_args!("ucmatose: serving at {} port {}", self.host.ip(), self.args.port));
        let params = self.params();
        while self.nodes.len() < self.args.exchange.connections as usize {
            match self.host.channel.request(&listener, self.host.limit) {
                Ok((id, _)) => {
                    self.add(id)?;
                    if let Some(node) = self.nodes.last() {
                        node.id.accept(&params)?;
                    }
                }
                // The first may take its time.
                Err(CmFailure::Late { .. }) if self.nodes.is_empty() => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        self.established(Failure::from)
    }

    fn established(&self, failed: impl Fn(CmFailure) -> Failure) -> Result<(), Failure> {
        for node in &self.nodes {
            let outcome = self.host.channel.outcome(&node.id, "ESTABLISHED", self.host.limit);
            match outcome.map_err(&failed)? {
                EventKind::Established(..) => {}
                other => return Err(Failure::event(&other)),
            }
        }
        Ok(())
    }

    fn send(&self) -> Result<(), Failure> {
        let sges = [self.mr.sge(0, self.args.exchange.size)];
        for node in &self.nodes {
            for _ in 0..self.args.exchange.count {
                let send = WorkRequest::send(Data::Sges(&sges));
                node.qp.post_send(&send).map_err(Failure::local)?;
            }
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        self.nodes.len() as u64 * u64::from(self.args.exchange.count)
    }

    fn receive(&self) -> Result<(), Failure> {
        let size = self.args.exchange.size;
        let right = |done: &Completion| of_length(done, size);
        take(&self.host, &self.received, self.total(), "messages", right, |text| self.silence(text))
    }

    fn sends_complete(&self) -> Result<(), Failure> {
        take(&self.host, &self.sent, self.total(), "sends", |_| Ok(()), |text| self.silence(text))
    }

    /// All connections lead to one peer: the first tells whether it lives.
    fn silence(&self, text: &str) -> Failure {
        match self.nodes.first() {
            Some(node) => silence(&node.qp, &self.sent, text),
            None => Failure::local(text),
        }
    }

    /// The client: receives, answers, and is disconnected, which says that all of it has come.
    fn ask(&self) -> Result<(), Failure> {
        self.receive()?;
        self.send()?;
        let channel = self.migrated()?;
        self.disconnected(channel.as_ref())
    }

    /// The server: sends, receives, and disconnects.
    fn serve(&self) -> Result<(), Failure> {
        self.send()?;
        self.sends_complete()?;
        self.receive()?;
        let channel = self.migrated()?;
        self.nodes.iter().try_for_each(|node| node.id.disconnect())?;
        self.disconnected(channel.as_ref())
    }

    /// Another channel with all ids, where that is asked for.
    fn migrated(&self) -> Result<Option<EventChannel>, Failure> {
        if !self.args.migrate {
            return Ok(None);
        }
        let agent = self.host.agent.create_channel()?;
        self.nodes.iter().try_for_each(|node| node.id.migrate(&agent))?;
        Ok(Some(agent))
    }

    fn disconnected(&self, channel: Option<&EventChannel>) -> Result<(), Failure> {
        let channel = channel.unwrap_or(&self.host.channel);
        for node in &self.nodes {
            match channel.outcome(&node.id, "DISCONNECTED", self.host.limit)? {
                EventKind::Disconnected(_) => node.id.disconnect()?,
                other => return Err(Failure::event(&other)),
            }
        }
        Ok(())
    }
}
