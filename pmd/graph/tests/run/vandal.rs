//! A kind of node that connects to a `kv-server` as a client does, asks politely once, and then sends nonsense.

use pmd_graph::config::schema::{Key, Settings};
use pmd_graph::edge::{Dial, Dialing, Line};
use pmd_graph::extent::Extent;
use pmd_graph::failure::Failure;
use pmd_graph::kv::{Open, Opened, Operation, PROTOCOL, Reply, Request, Status};
use pmd_graph::node::{Node, NodeContext, Record, Turn};
use pmd_graph::plan::demand::{Amount, Flow, Queues, Region, Rights, Traffic};
use pmd_graph::registry::{NodeFactory, Role, Schema};
use pmd_verbs::endpoint::{LocalKey, Op, Token};

/// What it can send, and what the server's verdict says about it.
pub(crate) const MISCHIEF: [(&str, Mischief, &str); 5] = [
    ("short", Mischief::Short, "a message of 7 bytes is shorter than its head"),
    ("version", Mischief::Version, "version 9 instead of 2"),
    ("operation", Mischief::Operation, "operation 77 does not exist"),
    ("length", Mischief::Length, "a value of 5 bytes is announced, and 0 follow"),
    // The double has no exact status to tell why.
    ("oversize", Mischief::Oversize, "the connection to `vandal` failed"),
];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Mischief {
    Short,
    Version,
    Operation,
    Length,
    Oversize,
    /// It asks, and posts no receive for the answer.
    Deaf,
}

/// What it can do beside.
const DEAF: &str = "deaf";

/// Requests that it may have in flight.
const DEPTH: u64 = 4;
/// The server makes room for a keep-alive as well.
const QUEUES: Queues = Queues { send: DEPTH + 1, receive: DEPTH + 1 };
/// Bytes from one of its buffers to the next, more than a server takes.
const STRIDE: u32 = 512;

/// The kind `kv-vandal`.
#[derive(Debug)]
pub(crate) struct VandalKind(Schema);

impl VandalKind {
    pub(crate) fn new() -> Self {
        let words = MISCHIEF.iter().map(|(word, ..)| *word).chain([DEAF]);
        let words: Vec<&'static str> = words.collect();
        let mischief = Key::word("mischief", &words, "what it sends").required();
        let schema = Schema::new("kv-vandal", "does not keep to the protocol");
        Self(schema.rdma(PROTOCOL, Role::Initiator).key(mischief))
    }
}

impl NodeFactory for VandalKind {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn traffic(&self, _: &Settings) -> Option<Traffic> {
        Some(Traffic { qps: 1, local: QUEUES, remote: QUEUES, operations: Vec::new() })
    }

    fn regions(&self, _: &Settings, _: &Flow) -> Vec<Region> {
        let amount = Amount::Bytes(2 * DEPTH * u64::from(STRIDE));
        vec![Region { purpose: "messages", amount, rights: Rights::Local }]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let word = cx.settings().text("mischief");
        let known = MISCHIEF.iter().find(|(known, ..)| *known == word);
        let mischief = known.map_or(Mischief::Deaf, |(_, mischief, _)| *mischief);
        let dial = cx.dials(PROTOCOL, QUEUES)?.pop();
        let stage = Stage::Dialing(Box::new(dial.expect("it has one queue pair")));
        Ok(Box::new(Vandal { messages: cx.extent("messages"), mischief, stage }))
    }
}

struct Vandal {
    messages: Extent,
    mischief: Mischief,
    stage: Stage,
}

enum Stage {
    Dialing(Box<Dial>),
    Up(Box<Up>),
    Over,
}

struct Up {
    line: Line,
    key: LocalKey,
    /// The first key of its range.
    first: u64,
    asked: Asked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Politely,
    Nonsense,
}

impl Vandal {
    fn connect(&mut self, now: u64) -> Result<(), Failure> {
        let Stage::Dialing(dial) = &mut self.stage else { return Ok(()) };
        match dial.poll(now)? {
            Dialing::Waiting => {}
            Dialing::Reached(endpoint) => {
                let key = endpoint.register(self.messages.region())?;
                let receives = if matches!(self.mischief, Mischief::Deaf) { 0 } else { DEPTH };
                for number in 0..receives {
                    let into = self.messages.local(key, number * u64::from(STRIDE), STRIDE);
                    endpoint.submit(Op::Recv { into }, Token(number))?;
                }
                let open = Open {
                    session: 5,
                    keys: 2,
                    value: 8,
                    connections: 1,
                    depth: 4,
                    keep_alive_ms: 0,
                };
                dial.ask(&open.encode())?;
            }
            Dialing::Connected(answer, mut line) => {
                let key = line.endpoint().register(self.messages.region())?;
                let first = Opened::decode(&answer).expect("the server grants").first;
                let asked = Asked::Nothing;
                self.stage = Stage::Up(Box::new(Up { line, key, first, asked }));
            }
        }
        Ok(())
    }

    fn send(&mut self, now: u64, message: &[u8], next: Asked) -> Result<(), Failure> {
        let Stage::Up(up) = &mut self.stage else { return Ok(()) };
        let (at, len) = (DEPTH * u64::from(STRIDE), u32::try_from(message.len()).unwrap_or(0));
        self.messages.write_at(at, message)?;
        let from = self.messages.local(up.key, at, len);
        up.line.submit(now, Op::Send { from, imm: None }, Token(DEPTH))?;
        up.line.doorbell();
        up.asked = next;
        Ok(())
    }

    fn nonsense(&self, key: u64) -> Vec<u8> {
        let mut head = Request { operation: Operation::Get, len: 0, tag: 3, key }.encode().to_vec();
        match self.mischief {
            Mischief::Short => head.truncate(7),
            Mischief::Version => head[0] = 9,
            Mischief::Operation => head[1] = 77,
            Mischief::Length => head[4] = 5,
            Mischief::Oversize => head.resize(STRIDE as usize, 1),
            Mischief::Deaf => {}
        }
        head
    }
}

impl Node for Vandal {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        self.connect(now)?;
        let mut settled = Vec::new();
        let (first, asked) = match &mut self.stage {
            Stage::Dialing(_) => return Ok(Turn::Worked(1)),
            Stage::Over => return Ok(Turn::Done),
            Stage::Up(up) => {
                // That the server ends the connection is what was asked for.
                let Ok(_) = up.line.poll(now, &mut settled) else { return Ok(Turn::Done) };
                (up.first, up.asked)
            }
        };
        let reply = settled.iter().find(|settled| settled.token.0 < DEPTH);
        match (asked, reply) {
            // A key that is somebody else's, or nobody's, is refused by name.
            (Asked::Nothing, _) => {
                let key = first + 2;
                let request = Request { operation: Operation::Get, len: 0, tag: 2, key }.encode();
                self.send(now, &request, Asked::Politely)?;
            }
            (Asked::Politely, Some(settled)) => {
                let mut bytes = vec![0; settled.len as usize];
                self.messages.read_at(settled.token.0 * u64::from(STRIDE), &mut bytes)?;
                let reply = Reply::decode(&bytes, bytes.len()).expect("the server answers");
                assert_eq!((reply.tag, reply.status, reply.len), (2, Status::OutOfRange, 0));
                record.message(now, 0);
                let nonsense = self.nonsense(first);
                self.send(now, &nonsense, Asked::Nonsense)?;
            }
            (Asked::Nonsense, Some(_)) => panic!("nonsense was answered"),
            (Asked::Politely | Asked::Nonsense, None) => {}
        }
        Ok(Turn::Worked(1))
    }

    fn stop(&mut self) {
        self.stage = Stage::Over;
    }
}
