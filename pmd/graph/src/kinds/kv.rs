//! Small values over many small requests: `kv-client` asks, `kv-server` keeps them.

use std::time::Duration;

use crate::config::Device;
use crate::config::keys::keep_alive;
use crate::config::schema::{Key, Settings};
use crate::config::transport::Operation;
use crate::config::units::Size;
use crate::diagnostic::{Diagnostic, Span};
use crate::failure::Failure;
use crate::kv::{self, PROTOCOL};
use crate::limits::{
    DEPTH_MAX, KV_CONNECTIONS_DEFAULT, KV_DURATION_MAX, KV_KEYS_MAX, KV_VALUE_MAX, QPS_MAX,
};
use crate::node::kv_client::KvClient;
use crate::node::kv_server::{KvServer, table_bytes};
use crate::node::{Node, NodeContext};
use crate::plan::demand::{Amount, Flow, Need, Region, Rights, Traffic};
use crate::registry::{NodeFactory, Role, Schema};

fn messages(bytes: u64) -> Region {
    Region { purpose: "messages", amount: Amount::Bytes(bytes), rights: Rights::Local }
}

/// `kv-client`.
#[derive(Debug)]
pub(crate) struct Client(Schema);

impl Client {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("kv-client", "puts small values into a server and gets them back")
                .rdma(PROTOCOL, Role::Initiator)
                .reconnects()
                .key(keep_alive())
                .key(
                    Key::count("qps", 1..=QPS_MAX, "queue pairs, each with its share of the keys")
                        .default(1_u64),
                )
                .key(
                    Key::count("depth", 1..=DEPTH_MAX, "requests in flight on each queue pair")
                        .default(32_u64),
                )
                .key(Key::count("keys", 1..=KV_KEYS_MAX, "keys that it uses").default(10_000_u64))
                .key(
                    Key::size("value", Size::bytes(1)..=KV_VALUE_MAX, "bytes of each value")
                        .default(Size::bytes(32)),
                )
                .key(Key::count("get", 0..=100, "requests that are GETs, in percent").default(90_u64))
                .key(
                    Key::word(
                        "distribution",
                        &["uniform", "zipf"],
                        "whether all keys of a queue pair are asked for alike, or some far more",
                    )
                    .default("uniform"),
                )
                .key(Key::count(
                    "count",
                    1..=u64::MAX - 1,
                    "requests after which it ends; 100000 where neither this nor `duration` is given",
                ))
                .key(Key::time(
                    "duration",
                    Duration::from_millis(1)..=KV_DURATION_MAX,
                    "time after which it ends, counted from the first request behind the preload",
                ))
                .key(
                    Key::count("seed", 0..=u64::MAX, "what requests and values are made from")
                        .default(1_u64),
                )
                .key(
                    Key::flag("preload", "whether every key is put once before it measures")
                        .default(true),
                )
                .key(
                    Key::flag(
                        "verify",
                        "whether every value that comes back is compared, and every key read at the end",
                    )
                    .default(true),
                ),
        )
    }
}

impl NodeFactory for Client {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn check(
        &self,
        name: &str,
        span: Span,
        settings: &Settings,
        _device: Option<&Device>,
    ) -> Vec<Diagnostic> {
        let (keys, qps) = (settings.count("keys"), settings.count("qps"));
        if keys >= qps {
            return Vec::new();
        }
        let at = settings.span("keys").or_else(|| settings.span("qps")).unwrap_or(span);
        let complaint = Diagnostic::error(format!("`{name}` has fewer keys than queue pairs"))
            .at(at, format!("{keys} keys, and {qps} queue pairs"))
            .note("each queue pair has keys of its own, so that what it must find is known")
            .help(format!("set keys = {qps} or more, or qps = {keys}"));
        vec![complaint]
    }

    fn traffic(&self, settings: &Settings) -> Option<Traffic> {
        let queues = kv::queues(settings.count("depth"));
        Some(Traffic {
            qps: settings.count("qps"),
            local: queues,
            remote: queues,
            operations: vec![
                Need { operation: Operation::Send, reason: "requests and replies are SENDs" },
                Need {
                    operation: Operation::Acknowledgement,
                    reason: "a request that is lost would never be answered",
                },
            ],
        })
    }

    fn regions(&self, settings: &Settings, _flow: &Flow) -> Vec<Region> {
        let bytes = kv::message_bytes(settings.count("depth"), settings.size("value").get());
        vec![messages(bytes.saturating_mul(settings.count("qps")))]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        KvClient::build(cx)
    }
}

/// `kv-server`.
#[derive(Debug)]
pub(crate) struct Server(Schema);

impl Server {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("kv-server", "keeps small values under keys")
                .rdma(PROTOCOL, Role::Responder)
                .key(
                    Key::count("capacity", 1..=KV_KEYS_MAX, "keys that it has room for")
                        .default(65_536_u64),
                )
                .key(
                    Key::size("value", Size::bytes(1)..=KV_VALUE_MAX, "bytes of the longest value")
                        .default(Size::bytes(256)),
                )
                .key(
                    Key::count(
                        "depth",
                        1..=DEPTH_MAX,
                        "requests in flight on each queue pair, at most",
                    )
                    .default(32_u64),
                )
                .key(
                    Key::count(
                        "connections",
                        1..=QPS_MAX,
                        "queue pairs of other processes that it has room for; only with `listen`",
                    )
                    .default(KV_CONNECTIONS_DEFAULT),
                ),
        )
    }
}

impl NodeFactory for Server {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        let value = settings.size("value").get();
        let elsewhere = settings.value("listen").map_or(0, |_| settings.count("connections"));
        let connections = flow.connections + elsewhere;
        let table = table_bytes(settings.count("capacity"), value);
        vec![
            Region { purpose: "table", amount: Amount::Bytes(table), rights: Rights::Local },
            messages(kv::message_bytes(settings.count("depth"), value).saturating_mul(connections)),
        ]
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        KvServer::build(cx)
    }
}
