//! Key-value nodes at work ask the allocator for nothing: whatever they need, they have before the first request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pmd_graph::config::schema::Settings;
use pmd_graph::failure::Failure;
use pmd_graph::kv::PROTOCOL;
use pmd_graph::node::{Node, NodeContext, Record, Turn};
use pmd_graph::plan::demand::{Flow, Region, Traffic};
use pmd_graph::registry::{NodeFactory, Registry, Role, Schema};
use pmd_graph::run::RunOptions;

use crate::double::play_of;
use crate::verified::node;

/// Turns after which a node has grown to its size: connected, and with requests under way on all its connections.
const WARM_UP: u64 = 400;

/// A kind of node that counts what another kind allocates.
#[derive(Debug)]
struct Watched {
    schema: Schema,
    inner: Arc<dyn NodeFactory>,
    seen: Arc<Seen>,
}

/// What was counted.
#[derive(Debug, Default)]
struct Seen {
    turns: AtomicU64,
    allocations: AtomicU64,
}

impl Watched {
    fn new(kind: &'static str, inner: &str, role: Role, seen: &Arc<Seen>) -> Self {
        let inner = Arc::clone(Registry::builtin().node(inner).expect("a built-in kind"));
        let edge = Schema::new(kind, "counts what another kind allocates").rdma(PROTOCOL, role);
        let own = inner.schema().keys().iter();
        let schema = own.fold(edge, |schema, key| {
            let known = schema.keys().iter().any(|other| other.name() == key.name());
            if known { schema } else { schema.key(key.clone()) }
        });
        Self { schema, inner, seen: Arc::clone(seen) }
    }
}

impl NodeFactory for Watched {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn traffic(&self, settings: &Settings) -> Option<Traffic> {
        self.inner.traffic(settings)
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        self.inner.regions(settings, flow)
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let node = self.inner.build(cx)?;
        Ok(Box::new(Watching { node, seen: Arc::clone(&self.seen), turns: 0 }))
    }
}

struct Watching {
    node: Box<dyn Node>,
    seen: Arc<Seen>,
    turns: u64,
}

impl Node for Watching {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut turn = Ok(Turn::Done);
        let counted = allocation_counter::measure(|| turn = self.node.run(now, record));
        self.turns += 1;
        // The turn that ends a node lets its connections go.
        if self.turns > WARM_UP && matches!(turn, Ok(Turn::Worked(work)) if work > 0) {
            self.seen.turns.fetch_add(1, Ordering::Relaxed);
            self.seen.allocations.fetch_add(counted.count_total, Ordering::Relaxed);
        }
        turn
    }

    fn stop(&mut self) {
        self.node.stop();
    }

    fn next_timeout(&self) -> Option<u64> {
        self.node.next_timeout()
    }
}

#[test]
fn a_key_value_load_allocates_nothing() {
    for (wire, value) in [("udp", 32), ("auto", 32), ("auto", 500)] {
        let text = format!(
            r#"
[memory]
size = "32MiB"
hugepages = "none"
[device.soft0]
kind = "soft"
wire = "{wire}"
[[lcore]]
name = "lc0"
[[node]]
name = "server"
kind = "watched-server"
lcore = "lc0"
device = "soft0"
value = "512B"
capacity = 2000
[[node]]
name = "client"
kind = "watched-client"
lcore = "lc0"
device = "soft0"
peer = "server"
qps = 4
depth = 4
keys = 2000
count = 30000
get = 50
distribution = "zipf"
value = {value}
"#
        );
        let seen: [Arc<Seen>; 2] = Default::default();
        let mut registry = Registry::builtin();
        for kind in [
            Watched::new("watched-server", "kv-server", Role::Responder, &seen[0]),
            Watched::new("watched-client", "kv-client", Role::Initiator, &seen[1]),
        ] {
            registry.register(Arc::new(kind)).unwrap();
        }
        let report = play_of(&text, &registry, RunOptions::default());
        assert!(report.ok, "{report}");
        assert_eq!(node(&report, "client").messages, 30_000);
        for seen in seen {
            let turns = seen.turns.load(Ordering::Relaxed);
            assert!(turns > 1000, "{wire}: the load took {turns} turns beyond the first {WARM_UP}");
            assert_eq!(seen.allocations.load(Ordering::Relaxed), 0, "{wire}, {turns} turns");
        }
    }
}
