//! Block storage over RDMA: `block-client` writes, commits and reads back; `block-target` holds the blocks.

use crate::block::{MESSAGE_BYTES, PROTOCOL};
use crate::config::schema::{Form, Key, Settings};
use crate::config::transport::Operation;
use crate::config::units::Size;
use crate::failure::Failure;
use crate::limits::{BLOCK_MIN, DEPTH_MAX, LISTEN_CONNECTIONS, LISTEN_DEPTH, MEMORY_MAX, QPS_MAX};
use crate::node::block_client::{self, BlockClient};
use crate::node::block_target::{self, BlockTarget};
use crate::node::{Node, NodeContext};
use crate::plan::demand::{Amount, Flow, Need, Region, Rights, Traffic};
use crate::registry::{NodeFactory, Role, Schema};

/// `block-client`.
#[derive(Debug)]
pub(crate) struct Client(Schema);

impl Client {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("block-client", "writes blocks to a target over RDMA and reads them back")
                .takes_input()
                .rdma(PROTOCOL, Role::Initiator)
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
                ),
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
            regions.push(local("read-back", in_flight.saturating_mul(flow.block)));
        }
        regions
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        BlockClient::build(cx)
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
                    Key::word("backend", &["memory"], "where the blocks are kept")
                        .not_in_this_build(&["file"])
                        .default("memory"),
                )
                .key(
                    Key::new(
                        "capacity",
                        Form::Size { range: BLOCK_MIN..=MEMORY_MAX, auto: false },
                        "bytes it can hold; auto is what the others leave of memory.size",
                    )
                    .or_auto(),
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
        // Each request that can be in flight has its message and that of its reply.
        let mut messages = flow.receives * 2 * MESSAGE_BYTES as u64;
        if settings.value("listen").is_some() {
            messages += LISTEN_CONNECTIONS as u64 * block_target::message_bytes(LISTEN_DEPTH);
        }
        vec![
            Region {
                purpose: "storage",
                amount: capacity.map_or(Amount::Rest, Amount::Bytes),
                rights: Rights::RemoteReadWrite,
            },
            Region { purpose: "messages", amount: Amount::Bytes(messages), rights: Rights::Local },
        ]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        BlockTarget::build(cx)
    }
}
