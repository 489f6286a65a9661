//! The kinds of node and device that a pipeline can name.
//!
//! A kind is data: its keys, the edges it takes, and what it needs of memory and queues. The built-in ones stand in
//! `kinds`; a program adds its own with [`Registry::register`] and gets the same checks and messages.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::config::schema::{Key, Settings};
use crate::config::{Device, keys};
use crate::device::{DeviceKind, Soft, Verbs};
use crate::diagnostic::{Diagnostic, Span};
use crate::failure::Failure;
use crate::kinds;
use crate::node::{Node, NodeContext};
use crate::plan::demand::{Flow, Region, Traffic};

/// What the config may say about a kind of node, and which edges it takes.
#[derive(Clone, Debug)]
pub struct Schema {
    kind: &'static str,
    summary: &'static str,
    keys: Vec<Key>,
    input: bool,
    output: bool,
    rdma: Option<Rdma>,
}

/// The RDMA side of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdma {
    /// What both ends speak: an edge joins two nodes of one protocol.
    pub protocol: &'static str,
    /// Which ends of an edge the kind can be.
    pub role: Role,
}

/// Which ends of an RDMA edge a kind can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has a `peer` and connects to it.
    Initiator,
    /// Others name it as their peer, or reach it where it listens.
    Responder,
    /// An initiator if it has a `peer`, else a responder.
    Either,
}

impl Schema {
    /// A kind of node without keys or edges. `summary` is one line for the reference.
    pub fn new(kind: &'static str, summary: &'static str) -> Self {
        Self { kind, summary, keys: Vec::new(), input: false, output: false, rdma: None }
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.keys.push(key);
        self
    }

    /// It works on what earlier stages pass to it, and needs at least one.
    #[must_use]
    pub fn takes_input(mut self) -> Self {
        self.input = true;
        self
    }

    /// It passes on to the next stage; adds the key `to`.
    #[must_use]
    pub fn gives_output(mut self) -> Self {
        self.output = true;
        self.keys.push(keys::to());
        self
    }

    /// It uses a device without an RDMA edge: what it sends has no peer that a config could name. Adds the key `device`.
    #[must_use]
    pub fn device(mut self) -> Self {
        self.keys.push(keys::device());
        self
    }

    /// It has an RDMA edge of `protocol`; adds the keys of its role, and the retry keys.
    #[must_use]
    pub fn rdma(mut self, protocol: &'static str, role: Role) -> Self {
        self.keys.extend(keys::rdma(role));
        self.rdma = Some(Rdma { protocol, role });
        self
    }

    /// Its clients' connections come back after a failure: adds the keys for it. Its nodes look at every
    /// [`Change`](crate::edge::Change).
    #[must_use]
    pub fn reconnects(mut self) -> Self {
        self.keys.extend(keys::reconnect());
        self
    }

    /// The word that stands behind `kind =`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// What it does, in one line.
    pub fn summary(&self) -> &'static str {
        self.summary
    }

    /// Its keys, beyond `name`, `kind` and `lcore`.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Whether earlier stages pass to it.
    pub fn has_input(&self) -> bool {
        self.input
    }

    /// Whether it passes on.
    pub fn has_output(&self) -> bool {
        self.output
    }

    /// Its RDMA side, if it has one.
    pub fn rdma_side(&self) -> Option<Rdma> {
        self.rdma
    }
}

/// A kind of node: what the planner has to know before any node runs, and how one is built.
pub trait NodeFactory: fmt::Debug + Send + Sync {
    /// Its keys and edges.
    fn schema(&self) -> &Schema;

    /// Bytes of the largest unit that it passes on, where it decides that; `None`: as large as what arrives.
    fn emits(&self, settings: &Settings) -> Option<u64> {
        let _ = settings;
        None
    }

    /// How many units from earlier stages it keeps at once; their source sizes its buffers by it.
    fn holds(&self, settings: &Settings) -> u64 {
        let _ = settings;
        0
    }

    /// What is wrong with its keys together, each of which passed by itself. `name` is the node's, and stands at `span`;
    /// `device` is the one that it names, where there is one of that name.
    fn check(
        &self,
        name: &str,
        span: Span,
        settings: &Settings,
        device: Option<&Device>,
    ) -> Vec<Diagnostic> {
        let _ = (name, span, settings, device);
        Vec::new()
    }

    /// Whether what its keys name is there. Asked when a run starts, and by nobody who only looks at the config, which may
    /// run elsewhere.
    ///
    /// # Errors
    /// What is missing.
    fn preflight(&self, settings: &Settings) -> Result<(), String> {
        let _ = settings;
        Ok(())
    }

    /// Queues and operations of the edge that it initiates; `None` where it only answers.
    fn traffic(&self, settings: &Settings) -> Option<Traffic> {
        let _ = settings;
        None
    }

    /// The registered memory it needs, given what flows through it.
    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        let _ = (settings, flow);
        Vec::new()
    }

    /// Builds a node, on the thread of its lcore.
    ///
    /// # Errors
    /// [`Failure`], when it cannot begin; nothing of the pipeline runs then.
    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure>;
}

/// What the config may say about a kind of device.
#[derive(Clone, Debug)]
pub struct DeviceSchema {
    kind: &'static str,
    keys: Vec<Key>,
    absent: bool,
}

impl DeviceSchema {
    /// A kind of device with these keys beyond `kind`.
    pub fn new(kind: &'static str, keys: impl IntoIterator<Item = Key>) -> Self {
        Self { kind, keys: keys.into_iter().collect(), absent: false }
    }

    /// A kind that is known, and not part of this build.
    #[must_use]
    pub fn not_in_this_build(mut self) -> Self {
        self.absent = true;
        self
    }

    /// The word that stands behind `kind =`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Its keys, beyond `kind`.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Whether this build can open one.
    pub fn is_available(&self) -> bool {
        !self.absent
    }
}

/// A kind cannot be added because its name is taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a kind `{kind}` is registered already: give yours another name")]
pub struct RegisterError {
    /// The name.
    pub kind: &'static str,
}

/// The kinds of node and device that a pipeline can name.
#[derive(Clone, Debug)]
pub struct Registry {
    nodes: Vec<Arc<dyn NodeFactory>>,
    devices: Vec<KnownDevice>,
}

/// A kind of device that a config can name, and what opens one if this build can.
#[derive(Clone, Debug)]
struct KnownDevice {
    schema: DeviceSchema,
    kind: Option<Arc<dyn DeviceKind>>,
}

impl Registry {
    /// What Spinwire brings.
    pub fn builtin() -> Self {
        let absent = keys::absent_devices().into_iter();
        let mut devices: Vec<KnownDevice> =
            absent.map(|schema| KnownDevice { schema, kind: None }).collect();
        let kinds: [Arc<dyn DeviceKind>; 2] = [Arc::new(Soft::new()), Arc::new(Verbs::new())];
        let known = |kind: Arc<dyn DeviceKind>| KnownDevice {
            schema: kind.schema().clone(),
            kind: Some(kind),
        };
        devices.splice(0..0, kinds.map(known));
        Self { nodes: kinds::nodes(), devices }
    }

    /// Adds a kind of node.
    ///
    /// # Errors
    /// When there is a kind of that name.
    pub fn register(&mut self, factory: Arc<dyn NodeFactory>) -> Result<(), RegisterError> {
        let kind = factory.schema().kind();
        if self.node(kind).is_some() {
            return Err(RegisterError { kind });
        }
        self.nodes.push(factory);
        Ok(())
    }

    /// Adds a kind of device, or brings one that was known and not part of the build.
    ///
    /// # Errors
    /// When there is an available kind of that name.
    pub fn register_device(&mut self, kind: Arc<dyn DeviceKind>) -> Result<(), RegisterError> {
        let schema = kind.schema().clone();
        if self.device_kind(schema.kind).is_some() {
            return Err(RegisterError { kind: schema.kind });
        }
        self.devices.retain(|known| known.schema.kind != schema.kind);
        self.devices.push(KnownDevice { schema, kind: Some(kind) });
        Ok(())
    }

    /// The kind of node of this name.
    pub fn node(&self, kind: &str) -> Option<&Arc<dyn NodeFactory>> {
        self.nodes.iter().find(|factory| factory.schema().kind() == kind)
    }

    /// The kind of device of this name.
    pub fn device(&self, kind: &str) -> Option<&DeviceSchema> {
        self.devices().find(|schema| schema.kind == kind)
    }

    /// What opens devices of this kind; `None` where this build cannot.
    pub fn device_kind(&self, kind: &str) -> Option<&Arc<dyn DeviceKind>> {
        self.devices.iter().find(|known| known.schema.kind == kind)?.kind.as_ref()
    }

    /// Every kind of node.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<dyn NodeFactory>> {
        self.nodes.iter()
    }

    /// Every kind of device, also those that this build lacks.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceSchema> {
        self.devices.iter().map(|known| &known.schema)
    }
}
