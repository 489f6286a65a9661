//! Who passes what to whom: stages, RDMA edges, and the queues they need.

use super::demand::{Flow, Queues, Traffic};
use super::{NodePlan, QueuePlan};
use crate::config::{Config, Node, Peer};
use crate::limits::LISTEN_DEPTH;

/// Every node with its edges, flow and queues, and no memory yet.
pub(super) fn resolve(config: &Config) -> Vec<NodePlan> {
    let traffic: Vec<Option<Traffic>> =
        config.nodes.iter().map(|node| node.factory.traffic(&node.settings)).collect();
    let blocks = blocks(config);
    let all = 0..config.nodes.len();
    all.clone()
        .map(|index| {
            let node = &config.nodes[index];
            let clients: Vec<usize> = all
                .clone()
                .filter(|other| config.nodes[*other].peer == Some(Peer::Node(index)))
                .collect();
            let queues = queues(node, index, &clients, config, &traffic);
            let receives = queues.map_or(0, |queues| queues.qps * queues.depths.receive);
            NodePlan {
                name: node.name.clone(),
                kind: node.factory.schema().kind(),
                factory: node.factory.clone(),
                settings: node.settings.clone(),
                lcore: node.lcore,
                device: node.device,
                inputs: all
                    .clone()
                    .filter(|other| config.nodes[*other].to == Some(index))
                    .collect(),
                to: node.to,
                peer: node.peer,
                listen: node.listen,
                retry: node.retry.clone().filter(|_| queues.is_some()),
                flow: Flow {
                    connections: queues.filter(|_| node.peer.is_none()).map_or(0, |q| q.qps),
                    block: blocks[index],
                    held_downstream: downstream(config, index)
                        .map(|stage| held(&config.nodes[stage]))
                        .sum(),
                    receives: if node.listen.is_some() {
                        receives.max(LISTEN_DEPTH)
                    } else {
                        receives
                    },
                },
                clients,
                queues,
                regions: Vec::new(),
            }
        })
        .collect()
}

fn held(node: &Node) -> u64 {
    node.factory.holds(&node.settings)
}

/// The stages behind this one, in order. Circles were refused with the config.
fn downstream(config: &Config, index: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(config.nodes[index].to, |stage| config.nodes[*stage].to)
        .take(config.nodes.len())
}

/// Bytes of the largest unit that reaches each node.
fn blocks(config: &Config) -> Vec<u64> {
    let mut blocks = vec![0; config.nodes.len()];
    // A stage has more stages behind it than the one it passes to, so this order meets every node after its inputs.
    let mut order: Vec<usize> = (0..config.nodes.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(downstream(config, *index).count()));
    for index in order {
        let node = &config.nodes[index];
        let emitted = node.factory.emits(&node.settings).unwrap_or(blocks[index]);
        if let Some(next) = node.to {
            blocks[next] = blocks[next].max(emitted);
        }
    }
    blocks
}

/// An initiator's queues are what it asks for; a responder has the sum of what its clients ask of it.
fn queues(
    node: &Node,
    index: usize,
    clients: &[usize],
    config: &Config,
    traffic: &[Option<Traffic>],
) -> Option<QueuePlan> {
    if let (Some(traffic), Some(_)) = (&traffic[index], node.peer) {
        let completions = traffic.qps * traffic.local.completions();
        return Some(QueuePlan {
            qps: traffic.qps,
            more_per_client: false,
            transport: node.transport,
            depths: traffic.local,
            cq_depth: node.settings.count_opt("cq_depth").unwrap_or(completions),
            mtu: node.settings.value("mtu").and_then(|_| node.settings.count_opt("mtu")),
        });
    }
    node.factory.schema().rdma_side()?;
    let asked: Vec<&Traffic> =
        clients.iter().filter_map(|client| traffic[*client].as_ref()).collect();
    let depths = Queues {
        send: asked.iter().map(|traffic| traffic.remote.send).max().unwrap_or(0),
        receive: asked.iter().map(|traffic| traffic.remote.receive).max().unwrap_or(0),
    };
    Some(QueuePlan {
        qps: asked.iter().map(|traffic| traffic.qps).sum(),
        more_per_client: node.listen.is_some(),
        transport: clients.first().and_then(|client| config.nodes[*client].transport),
        depths,
        cq_depth: asked.iter().map(|traffic| traffic.qps * traffic.remote.completions()).sum(),
        mtu: None,
    })
}
