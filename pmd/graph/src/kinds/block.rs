//! Block storage over RDMA: `block-client` writes, commits and reads back; `block-load` makes load; `block-target` holds the
//! blocks.

use std::time::Duration;

use crate::block::{MESSAGE_BYTES, PROTOCOL};
use crate::config::keys::{keep_alive, request_timeout};
use crate::config::schema::{Form, Key, Settings};
use crate::config::transport::Operation;
use crate::config::units::Size;
use crate::failure::Failure;
use crate::limits::{
    BLOCK_MAX, BLOCK_MIN, DEPTH_MAX, LISTEN_CONNECTIONS, LISTEN_DEPTH, LOAD_BLOCK_MIN,
    LOAD_DURATION_MAX, MEMORY_MAX, QPS_MAX, STORE_BUFFERS, STORE_DEPTH, STORE_DEPTH_MAX, STORE_MAX,
    STORE_TIMEOUT_DEFAULT, STORE_TIMEOUT_MAX,
};
use crate::node::block_client::{self, BlockClient};
use crate::node::block_load::BlockLoad;
use crate::node::block_target::{self, BlockTarget};
use crate::node::{Node, NodeContext};
use crate::plan::demand::{Amount, Flow, Need, Region, Rights, Traffic};
use crate::registry::{NodeFactory, Role, Schema};

/// A buffer at least.
const BUFFERS_MIN: Size = Size::kib(4);

/// `block-client`.
#[derive(Debug)]
pub(crate) struct Client(Schema);

impl Client {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("block-client", "writes blocks to a target over RDMA and reads them back")
                .takes_input()
                .rdma(PROTOCOL, Role::Initiator)
                .reconnects()
                .key(
                    Key::count("qps", 1..=QPS_MAX, "queue pairs that the blocks are spread over")
                        .default(1_u64),
                )
                .key(
                    Key::count("depth", 1..=DEPTH_MAX, "blocks in flight on each queue pair")
                        .default(32_u64),
                )
                .key(
                    Key::flag("verify", "whether every block is read back and compared")
                        .default(true),
                )
                .key(keep_alive())
                .key(request_timeout()),
        )
    }

    fn in_flight(settings: &Settings) -> u64 {
        settings.count("qps") * settings.count("depth")
    }
}

impl NodeFactory for Client {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn holds(&self, settings: &Settings) -> u64 {
        Self::in_flight(settings)
    }

    fn traffic(&self, settings: &Settings) -> Option<Traffic> {
        let depth = settings.count("depth");
        let mut operations = vec![
            Need {
                operation: Operation::Write,
                reason: "a block-client writes its blocks into the target",
            },
            Need { operation: Operation::Send, reason: "a SEND commits every block" },
        ];
        if settings.flag("verify") {
            operations.push(Need {
                operation: Operation::Read,
                reason: "`verify = true` reads every block back",
            });
        }
        Some(Traffic {
            qps: settings.count("qps"),
            local: block_client::queues(depth),
            remote: block_target::queues(depth),
            operations,
        })
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        let in_flight = Self::in_flight(settings);
        let local = |purpose, bytes: u64| Region {
            purpose,
            amount: Amount::Bytes(bytes),
            rights: Rights::Local,
        };
        let messages = block_client::message_bytes(settings.count("depth"));
        let mut regions = vec![local("messages", settings.count("qps") * messages)];
        if settings.flag("verify") {
            let bytes = in_flight.saturating_mul(block_client::stride(flow.block));
            let (purpose, amount) = ("read-back", Amount::Bytes(bytes));
            regions.push(Region { purpose, amount, rights: Rights::RemoteReadWrite });
        }
        regions
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        BlockClient::build(cx)
    }
}

/// `block-load`.
#[derive(Debug)]
pub(crate) struct Load(Schema);

impl Load {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("block-load", "reads and writes blocks of a target, and measures")
                .rdma(PROTOCOL, Role::Initiator)
                .reconnects()
                .key(
                    Key::size("block", LOAD_BLOCK_MIN..=BLOCK_MAX, "bytes of a block")
                        .default(Size::kib(4)),
                )
                .key(Key::size(
                    "span",
                    BLOCK_MIN..=STORE_MAX,
                    "bytes of the target that it works on; not given: all that it has left",
                ))
                .key(
                    Key::word(
                        "workload",
                        &["sequential", "random", "mixed"],
                        "order of the blocks; mixed is random, with reads and writes",
                    )
                    .default("random"),
                )
                .key(Key::count(
                    "reads",
                    0..=100,
                    "per cent of the requests that read, the others write; not given: 100, mixed 70",
                ))
                .key(
                    Key::count("qps", 1..=QPS_MAX, "queue pairs that the requests are spread over")
                        .default(1_u64),
                )
                .key(
                    Key::count("depth", 1..=DEPTH_MAX, "requests in flight on each queue pair")
                        .default(32_u64),
                )
                .key(Key::count(
                    "count",
                    1..=u64::MAX,
                    "requests after which it ends; not given, and no duration: as many as there are blocks",
                ))
                .key(Key::time(
                    "duration",
                    Duration::from_millis(1)..=LOAD_DURATION_MAX,
                    "time after which it ends",
                ))
                .key(
                    Key::flag(
                        "verify",
                        "whether blocks are filled with stamps before, and checked whenever they are read and at the end",
                    )
                    .default(true),
                )
                .key(Key::count(
                    "flush",
                    1..=u64::MAX,
                    "writes after which a flush is asked for; not given: at the end alone",
                ))
                .key(
                    Key::count("seed", 0..=u64::MAX, "what order and stamps are made from")
                        .default(1_u64),
                )
                .key(keep_alive())
                .key(request_timeout()),
        )
    }

    fn in_flight(settings: &Settings) -> u64 {
        settings.count("qps") * settings.count("depth")
    }
}

impl NodeFactory for Load {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn traffic(&self, settings: &Settings) -> Option<Traffic> {
        let depth = settings.count("depth");
        Some(Traffic {
            qps: settings.count("qps"),
            local: block_client::queues(depth),
            remote: block_target::queues(depth),
            operations: vec![
                Need { operation: Operation::Send, reason: "a SEND asks for every block" },
                Need {
                    operation: Operation::Acknowledgement,
                    reason: "a block-load counts what was answered, and nothing may be lost",
                },
            ],
        })
    }

    fn regions(&self, settings: &Settings, _: &Flow) -> Vec<Region> {
        let messages = settings.count("qps") * block_client::message_bytes(settings.count("depth"));
        let stride = block_client::stride(settings.size("block").get());
        let blocks = Self::in_flight(settings).saturating_mul(stride);
        vec![
            Region { purpose: "messages", amount: Amount::Bytes(messages), rights: Rights::Local },
            // The target writes into it what is read.
            Region {
                purpose: "blocks",
                amount: Amount::Bytes(blocks),
                rights: Rights::RemoteReadWrite,
            },
        ]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        BlockLoad::build(cx)
    }
}

/// `block-target`.
#[derive(Debug)]
pub(crate) struct Target(Schema);

impl Target {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("block-target", "holds the blocks that clients write and read")
                .rdma(PROTOCOL, Role::Responder)
                .key(
                    Key::word("backend", &["memory", "file"], "where the blocks are kept")
                        .default("memory"),
                )
                .key(
                    Key::new(
                        "capacity",
                        Form::Size { range: BLOCK_MIN..=MEMORY_MAX, auto: false },
                        "bytes it can hold; auto is what the others leave of memory.size",
                    )
                    .or_auto()
                    .only_when("backend", "memory"),
                )
                .key(
                    Key::text(
                        "path",
                        "the file or block device; not given: a file without a name in the temporary directory, gone with the process",
                    )
                    .only_when("backend", "file"),
                )
                .key(
                    Key::size(
                        "size",
                        BLOCK_MIN..=STORE_MAX,
                        "bytes it can hold; not given: what the file has, 256MiB for one without a name",
                    )
                    .only_when("backend", "file"),
                )
                .key(
                    Key::flag(
                        "overwrite",
                        "take the file or device even if it holds data and is not known to be a store; what it holds is lost",
                    )
                    .default(false)
                    .only_when("backend", "file"),
                )
                .key(
                    Key::word(
                        "direct",
                        &["auto", "require", "off"],
                        "whether to pass by the page cache; auto does where file system and request allow it",
                    )
                    .default("auto")
                    .only_when("backend", "file"),
                )
                .key(
                    Key::count("depth", 1..=STORE_DEPTH_MAX as u64, "requests at the file at once")
                        .default(STORE_DEPTH)
                        .only_when("backend", "file"),
                )
                .key(
                    Key::size(
                        "buffers",
                        BUFFERS_MIN..=MEMORY_MAX,
                        "memory between clients and file: blocks in flight, over all of them",
                    )
                    .default(STORE_BUFFERS)
                    .only_when("backend", "file"),
                )
                .key(
                    Key::time(
                        "store_timeout",
                        Duration::ZERO..=STORE_TIMEOUT_MAX,
                        "how long a request may be at the file before it counts as one that hangs, and the target ends; 0s: for ever",
                    )
                    .default(STORE_TIMEOUT_DEFAULT)
                    .only_when("backend", "file"),
                ),
        )
    }
}

impl NodeFactory for Target {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        let capacity = settings.size_opt("capacity").map(Size::get);
        let blocks = match settings.text("backend") {
            "file" => ("buffers", Amount::Bytes(settings.size("buffers").get())),
            _ => ("storage", capacity.map_or(Amount::Rest, Amount::Bytes)),
        };
        // Each request that can be in flight has its message and that of its reply.
        let mut messages = flow.receives * 2 * MESSAGE_BYTES as u64;
        if settings.value("listen").is_some() {
            messages += LISTEN_CONNECTIONS as u64 * block_target::message_bytes(LISTEN_DEPTH);
        }
        vec![
            Region { purpose: blocks.0, amount: blocks.1, rights: Rights::RemoteReadWrite },
            Region { purpose: "messages", amount: Amount::Bytes(messages), rights: Rights::Local },
        ]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        BlockTarget::build(cx)
    }
}
