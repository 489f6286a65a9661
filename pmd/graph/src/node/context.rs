//! What a node is built from.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pmd_observe::{Code, Owner};
use pmd_verbs::connect::{Channel, Guard, listen};
use pmd_verbs::endpoint::EndpointOptions;
use pmd_verbs::roce::ids::PathMtu;
use pmd_verbs::roce::qp::state::Transport as ServiceType;

use super::record::Live;
use crate::config::Peer;
use crate::config::schema::Settings;
use crate::config::transport::Transport;
use crate::device::DeviceLcore;
use crate::edge::{Acceptor, Dial, Home, Route, guard};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::CONNECT_TIMEOUT_DEFAULT;
use crate::plan::NodePlan;
use crate::plan::demand::{Flow, Queues};
use crate::run::memory::LcoreMemory;
use crate::stream::{Buffers, Inlet, Outlet};

/// A node's halves of the channels that were made before the lcores started.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// To the node it connects to: one for each queue pair.
    pub(crate) to_peer: Vec<Channel>,
    /// From the nodes that connect to it, with how many clients those are.
    pub(crate) from_clients: Vec<Channel>,
}

/// What a node gets beside its plan.
pub(crate) struct Inherited<'a> {
    pub(crate) memory: &'a LcoreMemory,
    pub(crate) device: Option<Rc<dyn DeviceLcore>>,
    pub(crate) edges: Edges,
    pub(crate) inlet: Option<Inlet>,
    pub(crate) outlet: Option<Outlet>,
    pub(crate) flips: Vec<u64>,
    pub(crate) hang: Option<u64>,
    pub(crate) memory_size: u64,
    pub(crate) live: &'a Live,
    pub(crate) home: Home,
}

/// What a node is built from: its plan, and the memory, device, edges and queues that the plan gave it. Each can be taken
/// once.
pub struct NodeContext<'a> {
    index: usize,
    plan: &'a NodePlan,
    memory: &'a LcoreMemory,
    device: Option<Rc<dyn DeviceLcore>>,
    edges: RefCell<Edges>,
    inlet: RefCell<Option<Inlet>>,
    outlet: RefCell<Option<Outlet>>,
    flips: Vec<u64>,
    hang: Option<u64>,
    memory_size: u64,
    live: &'a Live,
    home: Home,
}

impl std::fmt::Debug for NodeContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeContext").field("node", &self.plan.name).finish_non_exhaustive()
    }
}

impl<'a> NodeContext<'a> {
    pub(crate) fn new(index: usize, plan: &'a NodePlan, inherited: Inherited<'a>) -> Self {
        let Inherited {
            memory,
            device,
            edges,
            inlet,
            outlet,
            flips,
            hang,
            memory_size,
            live,
            home,
        } = inherited;
        Self {
            index,
            plan,
            memory,
            device,
            edges: RefCell::new(edges),
            inlet: RefCell::new(inlet),
            outlet: RefCell::new(outlet),
            flips,
            hang,
            memory_size,
            live,
            home,
        }
    }

    /// The node's name.
    pub fn name(&self) -> &'a str {
        &self.plan.name
    }

    /// Its keys, all decided.
    pub fn settings(&self) -> &'a Settings {
        &self.plan.settings
    }

    /// What flows through it.
    pub fn flow(&self) -> Flow {
        self.plan.flow
    }

    /// Where blocks come from.
    ///
    /// # Panics
    /// When the kind takes no input, or took it before: a mistake of the kind.
    pub fn inlet(&self) -> Inlet {
        self.inlet.take().expect("a kind that takes input takes it once")
    }

    /// Where blocks go.
    ///
    /// # Panics
    /// When the kind gives no output, or took it before: a mistake of the kind.
    pub fn outlet(&self) -> Outlet {
        self.outlet.take().expect("a kind that gives output takes its outlet once")
    }

    /// The registered memory that the kind asked for under this purpose.
    ///
    /// # Panics
    /// When it asked for none: a mistake of the kind.
    pub fn extent(&self, purpose: &str) -> Extent {
        self.extent_opt(purpose).unwrap_or_else(|| panic!("no region is called `{purpose}`"))
    }

    /// The same; `None` where the plan gave no bytes.
    pub fn extent_opt(&self, purpose: &str) -> Option<Extent> {
        self.memory.extent(self.index, purpose)
    }

    /// The region of one purpose as a pool of buffers of `size` bytes.
    ///
    /// # Errors
    /// When the region holds none: the kind asked for less than [`Buffers::stride`].
    ///
    /// # Panics
    /// As [`NodeContext::extent`].
    pub fn buffers(&self, purpose: &str, size: u64) -> Result<Buffers, Failure> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        Buffers::new(self.name(), self.extent(purpose), size)
            .map_err(|error| Failure::local(error.to_string()))
    }

    /// Whether it begins its RDMA edge; else it answers.
    pub fn is_initiator(&self) -> bool {
        self.plan.peer.is_some()
    }

    /// Its service type: the config's for an initiator. A responder takes that of each caller.
    pub fn transport(&self) -> ServiceType {
        self.plan.queues.and_then(|queues| queues.transport).map_or(ServiceType::Rc, service_type)
    }

    /// Whether its service type acknowledges what is sent, and sends again what was lost.
    pub fn is_reliable(&self) -> bool {
        let transport = self.plan.queues.and_then(|queues| queues.transport);
        transport.is_none_or(Transport::is_reliable)
    }

    /// Nodes of this process that connect to it.
    pub fn clients(&self) -> usize {
        self.plan.clients.len()
    }

    /// Whether clients of other processes can connect to it.
    pub fn listens(&self) -> bool {
        self.plan.listen.is_some()
    }

    /// Offsets of stored bytes that a fault asks it to flip.
    pub fn flips(&self) -> &[u64] {
        &self.flips
    }

    /// The requests that its store still answers, where a fault asks for one that hangs.
    pub(crate) fn hang(&self) -> Option<u64> {
        self.hang
    }

    /// `memory.size` of this process, in bytes.
    pub fn memory_size(&self) -> u64 {
        self.memory_size
    }

    /// Says how many bytes the node will pass on, for whoever watches the run.
    pub fn expect(&self, bytes: u64) {
        self.live.expect(bytes);
    }

    /// Options for an endpoint of this node that has `queues`, over `transport`.
    pub fn options(&self, transport: ServiceType, queues: Queues) -> EndpointOptions {
        let width = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let settings = self.settings();
        let default = EndpointOptions::default();
        let mtu = settings.value("mtu").and_then(|_| settings.count_opt("mtu"));
        // The config counts the entries for all of them together.
        let qps = self.plan.queues.map_or(1, |queues| queues.qps.max(1));
        let cq_depth = settings.value("cq_depth").and_then(|_| settings.count_opt("cq_depth"));
        let retry = self.plan.retry.as_ref();
        EndpointOptions {
            transport,
            depth: width(queues.send),
            recv_depth: width(queues.receive),
            cq_depth: cq_depth.map(|entries| width(entries / qps)),
            mtu: mtu.and_then(|bytes| PathMtu::from_bytes(usize::try_from(bytes).ok()?)),
            timeout: retry.map_or(default.timeout, |retry| retry.timeout.value),
            retry_cnt: retry.map_or(default.retry_cnt, |retry| retry.retry_cnt.value),
            rnr_retry: retry.map_or(default.rnr_retry, |retry| retry.rnr_retry.value),
            min_rnr_timer: retry.map_or(default.min_rnr_timer, |retry| retry.min_rnr_timer.value),
            managed: settings.value("connect").is_some() && settings.text("connect") == "cm",
            ..default
        }
    }

    /// One connection to its peer for each of its queue pairs, each with these depths. Empty where they were taken before.
    ///
    /// # Errors
    /// When its key cannot be read.
    ///
    /// # Panics
    /// When it has no device or no peer: a mistake of the kind.
    pub fn dials(&self, protocol: &'static str, queues: Queues) -> Result<Vec<Dial>, Failure> {
        let guard = self.guard()?;
        let qps = self.plan.queues.map_or(0, |queues| queues.qps);
        let routes: Vec<Route> = match self.plan.peer.expect("an initiator has a peer") {
            Peer::Node(_) => self.edges.borrow_mut().to_peer.drain(..).map(Route::Here).collect(),
            Peer::Remote(address) => {
                (0..qps).map(|_| Route::Remote(address, guard.clone())).collect()
            }
        };
        let options = self.options(self.transport(), queues);
        let timeout = self.settings().time_opt("connect_timeout");
        let timeout: Duration = timeout.unwrap_or(CONNECT_TIMEOUT_DEFAULT);
        let reconnect = self.reconnect();
        let dial = |route| {
            Dial::new(self.home.clone(), protocol, route, self.device(), options, timeout)
                .reconnecting(reconnect)
        };
        Ok(routes.into_iter().map(dial).collect())
    }

    /// How its control channels are protected.
    fn guard(&self) -> Result<Guard, Failure> {
        guard(self.settings()).map_err(|error| {
            let failure = Failure::new(Code::Unknown, Owner::Config, error.to_string());
            failure.turn(format!("node.{}.psk_file", self.name()))
        })
    }

    /// How long a broken connection may take to work again; `None`: it is not brought back.
    fn reconnect(&self) -> Option<Duration> {
        let settings = self.settings();
        let always =
            settings.value("reconnect").map(|_| settings.text("reconnect")) == Some("always");
        always.then(|| settings.time_opt("reconnect_timeout")).flatten()
    }

    /// Everybody who will connect to it.
    ///
    /// # Errors
    /// When it cannot listen where the config says.
    ///
    /// # Panics
    /// When it has no device: a mistake of the kind.
    pub fn acceptor(&self, protocol: &'static str) -> Result<Acceptor, Failure> {
        let guard = self.guard()?;
        let listener = self.plan.listen.map(|address| {
            listen(address, guard).map_err(|error| {
                Failure::local(format!("`{}` cannot listen at {address}: {error}", self.name()))
                    .because(
                        "another process may listen there, or the address is not this machine's",
                    )
                    .turn(format!("node.{}.listen", self.name()))
            })
        });
        let here = std::mem::take(&mut self.edges.borrow_mut().from_clients);
        Ok(Acceptor::new(self.home.clone(), protocol, self.device(), here, listener.transpose()?))
    }

    /// The verbs objects of its device, for a kind that sends datagrams.
    ///
    /// # Errors
    /// When its kind of device has none.
    ///
    /// # Panics
    /// When it has no device: a mistake of the kind.
    pub fn verbs(&self) -> Result<pmd_verbs::Context, Failure> {
        self.device().verbs().ok_or_else(|| {
            let name = self.name();
            let summary =
                format!("`{name}` sends datagrams, which its kind of device does not have");
            Failure::new(Code::InvalidRequest, Owner::Config, summary)
                .turn(format!("node.{name}.device"))
        })
    }

    fn device(&self) -> Rc<dyn DeviceLcore> {
        self.device.clone().expect("a kind with an RDMA edge has a device")
    }
}

fn service_type(transport: Transport) -> ServiceType {
    match transport {
        Transport::Rc => ServiceType::Rc,
        Transport::Uc => ServiceType::Uc,
        Transport::Ud => ServiceType::Ud,
    }
}
