//! A plan as JSON. The keys are a contract: they may grow, and keep their names and meanings.

use std::time::Duration;

use pmd_mem::Rung;
use serde_json::{Value, json};

use super::fit::Fit;
use super::path::GidPlan;
use super::{NodePlan, Plan};
use crate::config::Peer;
use crate::config::retry::Retry;
use crate::config::schema;
use crate::config::words::{HUGEPAGES, MEMLOCK, NUMA, word};

impl Plan {
    /// One object: `ok`, `memory`, `devices`, `lcores`, `nodes`, `mrs`, `qps`, `problems`, `warnings`. Sizes in bytes,
    /// times in milliseconds.
    pub fn to_json(&self, fit: &Fit) -> Value {
        json!({
            "ok": fit.fits(),
            "memory": {
                "size": self.memory.size.get(),
                "hugepages": word(HUGEPAGES, &self.memory.hugepages),
                "numa": word(NUMA, &self.memory.numa),
                "memlock": word(MEMLOCK, &self.memory.memlock),
                "numa_nodes": fit.rows.iter().map(|row| json!({
                    "numa": row.numa,
                    "need": row.need,
                    "page": rung(row.rung),
                    "free": row.free,
                })).collect::<Vec<_>>(),
            },
            "devices": self.devices.iter().zip(&self.paths).map(|(device, path)| json!({
                "name": device.name,
                "kind": device.kind,
                "interface": path.as_ref().map(|path| path.interface.as_str()),
                "interface_mtu": path.as_ref().map(|path| path.interface_mtu),
                "path_mtu": path.as_ref().map(|path| path.path_mtu),
                "gid": path.as_ref().map(|path| json!({
                    "index": path.gid.index,
                    "address": path.gid.address,
                    "type": GidPlan::TYPE.to_string(),
                    "reason": path.gid.reason,
                })),
                "settings": settings(device.settings.iter().filter(|(key, _)| *key != "kind")),
            })).collect::<Vec<_>>(),
            "lcores": self.lcores.iter().map(|lcore| json!({
                "name": lcore.name,
                "cpu": lcore.cpu,
                "numa": lcore.numa,
                "idle": lcore.idle.as_str(),
                "shared": lcore.shared,
                "shared_with": lcore.others.iter().map(|other| other.pid).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "nodes": self.nodes.iter().map(|node| self.node_json(node)).collect::<Vec<_>>(),
            "mrs": self.nodes.iter().flat_map(|node| node.regions.iter().map(|region| json!({
                "node": node.name,
                "purpose": region.purpose,
                "bytes": region.bytes,
                "rights": region.rights.name(),
                "numa": self.lcores[node.lcore].numa,
            }))).collect::<Vec<_>>(),
            "qps": self.nodes.iter().filter_map(|node| node.queues.map(|queues| json!({
                "node": node.name,
                "lcore": self.lcores[node.lcore].name,
                "count": queues.qps,
                "more_per_client": queues.more_per_client,
                "transport": queues.transport.map(|transport| transport.name()),
                "send_depth": queues.depths.send,
                "receive_depth": queues.depths.receive,
                "cq_depth": queues.cq_depth,
                "path_mtu": queues.mtu,
                "retry": node.retry.as_ref().map(retry),
            }))).collect::<Vec<_>>(),
            "problems": fit.problems.iter().map(|problem| json!({
                "what": problem.what,
                "fixes": problem.fixes,
            })).collect::<Vec<_>>(),
            "warnings": fit.warnings,
        })
    }

    fn node_json(&self, node: &NodePlan) -> Value {
        let name = |index: usize| self.nodes[index].name.as_str();
        let common = ["name", "kind", "lcore", "device", "to", "peer", "listen"];
        json!({
            "name": node.name,
            "kind": node.kind,
            "lcore": self.lcores[node.lcore].name,
            "device": node.device.map(|device| self.devices[device].name.as_str()),
            "to": node.to.map(name),
            "peer": node.peer.map(|peer| match peer {
                Peer::Node(index) => name(index).to_owned(),
                Peer::Remote(address) => address.to_string(),
            }),
            "listen": node.listen.map(|address| address.to_string()),
            "settings": settings(node.settings.iter().filter(|(key, _)| !common.contains(key))),
        })
    }
}

fn rung(rung: Rung) -> &'static str {
    match rung {
        Rung::Huge1G => "1GiB",
        Rung::Huge2M => "2MiB",
        Rung::Thp => "thp",
        Rung::Base => "base",
    }
}

fn settings<'a>(settings: impl Iterator<Item = (&'static str, &'a schema::Value)>) -> Value {
    let object = settings.map(|(key, value)| {
        let value = match value {
            schema::Value::Flag(flag) => json!(flag),
            schema::Value::Count(count) => json!(count),
            schema::Value::Size(size) => json!(size.get()),
            other => json!(other.to_string()),
        };
        (key.to_owned(), value)
    });
    Value::Object(object.collect())
}

fn retry(retry: &Retry) -> Value {
    let knobs = retry.knobs().map(|(name, knob)| {
        (name.to_owned(), json!({ "value": knob.value, "from": knob.origin.to_string() }))
    });
    let mut object: serde_json::Map<String, Value> = knobs.into_iter().collect();
    let milliseconds =
        |time: Option<Duration>| time.map(|time| time.div_duration_f64(Duration::from_millis(1)));
    object.insert("ack_timeout_ms".to_owned(), json!(milliseconds(retry.ack_timeout())));
    object.insert("budget_ms".to_owned(), json!(milliseconds(retry.budget())));
    object.insert("rnr_pause_ms".to_owned(), json!(milliseconds(Some(retry.rnr_pause()))));
    Value::Object(object)
}
