//! What happens on an lcore's thread before its loop: its part of every device, then its nodes, from source to sink.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use pmd_lcore::{Context, LcoreSpec, Node, Parts, StartError};
use pmd_observe::Latency;

use super::memory::LcoreMemory;
use super::{NodeNotStarted, OpenDevice, StoreFaults};
use crate::device::{Device, DeviceLcore};
use crate::edge::Home;
use crate::failure::Failure;
use crate::limits::LINK_DEPTH;
use crate::monitor::{Seat, Surveyor};
use crate::node::{
    Counts, Edges, Hosted, Inherited, Live, NodeContext, NodeResult, Place, Record, Recoveries,
};
use crate::plan::Plan;
use crate::stream::{Inlet, Outlet, link};

/// What one lcore's start takes with it to its thread.
struct Start {
    plan: Arc<Plan>,
    lcore: usize,
    memory: LcoreMemory,
    /// Device, index in the plan, and the lcore's number there.
    devices: Vec<(Arc<dyn Device>, usize, u32)>,
    edges: HashMap<usize, Edges>,
    stores: StoreFaults,
    live: Vec<Arc<Live>>,
    seat: Option<Seat>,
    results: Sender<NodeResult>,
}

/// What ties nodes to each other, and to the control thread.
pub(super) struct Ties {
    /// For each node.
    pub(super) edges: Vec<Edges>,
    /// For each node.
    pub(super) live: Vec<Arc<Live>>,
    /// For each lcore, where somebody watches.
    pub(super) seats: Vec<Option<Seat>>,
    pub(super) results: Sender<NodeResult>,
}

/// The lcores of a plan, ready to be spawned.
pub(super) fn starts(
    plan: &Arc<Plan>,
    devices: &[OpenDevice],
    memory: Vec<LcoreMemory>,
    stores: &StoreFaults,
    ties: Ties,
) -> Vec<LcoreSpec> {
    let Ties { edges, live, seats, results } = ties;
    let mut edges: Vec<Option<Edges>> = edges.into_iter().map(Some).collect();
    let mut specs = Vec::with_capacity(plan.lcores.len());
    for (lcore, (memory, seat)) in memory.into_iter().zip(seats).enumerate() {
        let nodes = (0..plan.nodes.len()).filter(|node| plan.nodes[*node].lcore == lcore);
        let start = Start {
            plan: Arc::clone(plan),
            lcore,
            memory,
            devices: devices
                .iter()
                .enumerate()
                .filter_map(|(index, open)| {
                    let number = open.lcores.iter().position(|other| *other == lcore)?;
                    Some((Arc::clone(&open.device), index, u32::try_from(number).ok()?))
                })
                .collect(),
            edges: nodes.filter_map(|node| Some((node, edges[node].take()?))).collect(),
            stores: stores.clone(),
            live: live.clone(),
            seat,
            results: results.clone(),
        };
        let lcore = &plan.lcores[lcore];
        let build = move |context: &Context| start.build(context);
        let spec = LcoreSpec::new(lcore.name.clone(), lcore.cpu, lcore.idle, build);
        specs.push(spec.beside_others(!lcore.others.is_empty()));
    }
    specs
}

impl Start {
    fn build(mut self, context: &Context) -> Result<Parts, StartError> {
        let mut parts = Parts::default();
        let mut devices: HashMap<usize, Rc<dyn DeviceLcore>> = HashMap::new();
        for (device, index, number) in &self.devices {
            let lcore = device.lcore(*number)?;
            parts.devices.push(lcore.progress(context.clock.now()));
            devices.insert(*index, lcore);
        }
        if let Some(seat) = self.seat.take() {
            let told = devices.iter().map(|(index, lcore)| {
                let lcore = Rc::clone(lcore);
                let tell: Surveyor = Box::new(move |survey, budget| lcore.survey(survey, budget));
                (*index, tell)
            });
            parts.devices.push(Box::new(seat.teller(told.collect())));
        }
        let (mut inlets, mut outlets) = self.links();
        for index in self.order() {
            let plan = Arc::clone(&self.plan);
            let node = &plan.nodes[index];
            let live = Arc::clone(&self.live[index]);
            let home = Home::new(&node.name, context.stats.clone()).impatient(node.stall());
            let device = node.device.and_then(|device| devices.get(&device)).map(|device| {
                let owner = u32::try_from(index).unwrap_or(u32::MAX);
                device.on_behalf(owner).unwrap_or_else(|| Rc::clone(device))
            });
            let place = Place::new(home.clone(), device.clone());
            let inherited = Inherited {
                memory: &self.memory,
                device,
                edges: self.edges.remove(&index).unwrap_or_default(),
                inlet: inlets.remove(&index).and_then(Inlet::join),
                outlet: outlets.remove(&index),
                flips: self.flips_of(index),
                hang: self.hang_of(index),
                memory_size: plan.memory.size.get(),
                live: &live,
                home,
            };
            let built = node.factory.build(&NodeContext::new(index, node, inherited));
            let built = built.map_err(|failure| self.not_started(index, context, failure))?;
            let record = Record::new(Arc::clone(&live));
            let results = self.results.clone();
            let hosted: Box<dyn Node> =
                Box::new(Hosted::new(node.name.clone(), index, built, record, place, results));
            parts.nodes.push(hosted);
        }
        Ok(parts)
    }

    /// The nodes of this lcore, every stage before the one it passes to.
    fn order(&self) -> Vec<usize> {
        let nodes = &self.plan.nodes;
        let behind = |node: usize| {
            std::iter::successors(nodes[node].to, |next| nodes[*next].to).take(nodes.len()).count()
        };
        let mut order: Vec<usize> =
            (0..nodes.len()).filter(|node| nodes[*node].lcore == self.lcore).collect();
        order.sort_by_key(|node| Reverse(behind(*node)));
        order
    }

    /// A queue for every `to` of this lcore.
    fn links(&self) -> (HashMap<usize, Vec<Inlet>>, HashMap<usize, Outlet>) {
        let (mut inlets, mut outlets) = (HashMap::new(), HashMap::new());
        for (index, node) in self.plan.nodes.iter().enumerate() {
            let Some(to) = node.to.filter(|_| node.lcore == self.lcore) else { continue };
            let (outlet, inlet) = link(LINK_DEPTH);
            outlets.insert(index, outlet);
            inlets.entry(to).or_insert_with(Vec::new).push(inlet);
        }
        (inlets, outlets)
    }

    fn flips_of(&self, node: usize) -> Vec<u64> {
        let name = &self.plan.nodes[node].name;
        let flips = self.stores.flips.iter().filter(|flip| flip.node == *name);
        flips.map(|flip| flip.offset).collect()
    }

    /// The requests after which the node's store is to hang: the least of several.
    fn hang_of(&self, node: usize) -> Option<u64> {
        let name = &self.plan.nodes[node].name;
        self.stores.hangs.iter().filter(|hang| hang.node == *name).map(|hang| hang.after).min()
    }

    fn not_started(&self, index: usize, context: &Context, failure: Failure) -> NodeNotStarted {
        let result = NodeResult {
            index,
            counts: Counts { errors: 1, ..Counts::default() },
            latency: Latency::default(),
            active_ns: 0,
            path: None,
            gids: Vec::new(),
            recoveries: Recoveries::default(),
            flipped: Vec::new(),
            counters: None,
            failure: Some((context.clock.now(), failure.clone())),
        };
        // Whoever waited for it has given up on this lcore.
        drop(self.results.send(result));
        NodeNotStarted { node: self.plan.nodes[index].name.clone(), failure }
    }
}
