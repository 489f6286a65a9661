//! `pingpong`: two nodes send one message back and forth; the one with a `peer` begins and measures.

use crate::config::schema::{Key, Settings};
use crate::config::transport::Operation;
use crate::config::units::Size;
use crate::failure::Failure;
use crate::limits::{BLOCK_MAX, LISTEN_CONNECTIONS};
use crate::node::pingpong::{self, QUEUES};
use crate::node::{Node, NodeContext};
use crate::plan::demand::{Amount, Flow, Need, Region, Rights, Traffic};
use crate::registry::{NodeFactory, Role, Schema};

const ITERS_MAX: u64 = 1_000_000_000;

/// `pingpong`.
#[derive(Debug)]
pub(crate) struct PingPong(Schema);

impl PingPong {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("pingpong", "sends a message back and forth and measures the round trip")
                .rdma("pingpong", Role::Either)
                .reconnects()
                .key(
                    Key::size("size", Size::bytes(1)..=BLOCK_MAX, "bytes of the message")
                        .default(Size::bytes(64)),
                )
                .key(
                    Key::count("iters", 1..=ITERS_MAX, "round trips after which it ends")
                        .default(1000_u64),
                ),
        )
    }
}

impl NodeFactory for PingPong {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn traffic(&self, settings: &Settings) -> Option<Traffic> {
        settings.value("peer")?;
        Some(Traffic {
            qps: 1,
            local: QUEUES,
            remote: QUEUES,
            operations: vec![
                Need { operation: Operation::Send, reason: "a pingpong sends" },
                Need {
                    operation: Operation::Connection,
                    reason: "its two ends play with each other",
                },
            ],
        })
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        let here = flow.receives.div_ceil(QUEUES.receive);
        let elsewhere =
            if settings.value("listen").is_some() { LISTEN_CONNECTIONS as u64 } else { 0 };
        let connections = here.max(1) + elsewhere;
        let bytes =
            pingpong::message_bytes(settings.size("size").get()).saturating_mul(connections);
        vec![Region { purpose: "messages", amount: Amount::Bytes(bytes), rights: Rights::Local }]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        pingpong::build(cx)
    }
}
