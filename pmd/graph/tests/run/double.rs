//! A kind of device made of [`Double`]s, which are to be had in pairs on one thread: every node of a test runs on one
//! lcore. It refuses, breaks and lacks what a test asks it to.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use pmd_graph::config::Config;
use pmd_graph::config::schema::Key;
use pmd_graph::device::{Device, DeviceError, DeviceKind, DeviceLcore, DeviceRequest};
use pmd_graph::plan::Plan;
use pmd_graph::plan::machine::Machine;
use pmd_graph::registry::{DeviceSchema, Registry};
use pmd_graph::run::{Report, RunOptions, run};
use pmd_lcore::Progress;
use pmd_mem::Region;
use pmd_verbs::endpoint::{
    Caps, ConnectError, Double, Endpoint, EndpointEvent, EndpointOptions, LocalKey, MemoryError,
    Op, Pending, RemoteKey, RemoteRef, Rights, Settled, SubmitError, Token, double_pair,
};

/// Runs a pipeline with the double as its device.
pub(crate) fn play(text: &str) -> Report {
    play_with(text, RunOptions::default())
}

/// The same, with options.
pub(crate) fn play_with(text: &str, options: RunOptions<'_>) -> Report {
    play_of(text, &registry(), options)
}

/// The same, of these kinds.
pub(crate) fn play_of(text: &str, registry: &Registry, options: RunOptions<'_>) -> Report {
    let config = Config::parse("test.toml", text.as_bytes(), &[], &|_| None, registry);
    let config = config.unwrap_or_else(|report| panic!("{}", report.render(false)));
    let machine = Machine::detect().expect("the kernel tells");
    let plan = Plan::resolve(&config, &machine);
    let plan = plan.unwrap_or_else(|report| panic!("{}", report.render(false)));
    run(&plan, registry, options).expect("it starts")
}

pub(crate) fn registry() -> Registry {
    let mut registry = Registry::builtin();
    registry.register_device(Arc::new(Kind::new())).expect("the name is free");
    registry
}

/// A file of so many bytes, no two stretches alike; removed when dropped.
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

impl Input {
    pub(crate) fn new(name: &str, len: u64) -> Self {
        let name = format!("pmd-graph-run-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = std::io::BufWriter::new(
            std::fs::File::create(&path).expect("the temporary folder takes files"),
        );
        let mut state = 88_172_645_463_325_252_u64;
        for _ in 0..len {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            file.write_all(&[state.to_le_bytes()[3]]).expect("the disk has room");
        }
        file.flush().expect("the disk has room");
        Self { path, len }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).expect("the file is ours");
    }
}

/// The kind `double`.
#[derive(Debug)]
struct Kind(DeviceSchema);

/// What a test wants of it.
#[derive(Clone, Copy, Debug)]
struct Wants {
    /// Every so many submissions are refused as full.
    full_every: Option<u64>,
    /// The connection breaks with this submission.
    break_after: Option<u64>,
    /// Whether it can send inline.
    inline: bool,
}

impl Kind {
    fn new() -> Self {
        Self(DeviceSchema::new(
            "double",
            [
                Key::count("full_every", 2..=1000, "refuses every so many submissions"),
                Key::count("break_after", 1..=1_000_000, "breaks with this submission"),
                Key::flag("inline", "whether it can send inline").default(true),
            ],
        ))
    }
}

impl DeviceKind for Kind {
    fn schema(&self) -> &DeviceSchema {
        &self.0
    }

    fn open(&self, request: &DeviceRequest<'_>) -> Result<Arc<dyn Device>, DeviceError> {
        if request.lcores > 1 {
            return Err(DeviceError::Refused("doubles live on one thread".to_owned()));
        }
        Ok(Arc::new(Wants {
            full_every: request.settings.count_opt("full_every"),
            break_after: request.settings.count_opt("break_after"),
            inline: request.settings.flag("inline"),
        }))
    }
}

impl Device for Wants {
    fn lcore(&self, _: u32) -> Result<Rc<dyn DeviceLcore>, DeviceError> {
        Ok(Rc::new(Lcore { wants: *self, waiting: Rc::default(), next: Cell::new(0) }))
    }

    fn finish(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// An lcore of it, for tests without a pipeline.
pub(crate) fn lcore() -> Rc<dyn DeviceLcore> {
    let wants = Wants { full_every: None, break_after: None, inline: true };
    Rc::new(Lcore { wants, waiting: Rc::default(), next: Cell::new(0) })
}

/// Other halves of pairs, by the number in their hello.
type Waiting = Rc<RefCell<HashMap<u64, Double>>>;

struct Lcore {
    wants: Wants,
    waiting: Waiting,
    next: Cell<u64>,
}

impl DeviceLcore for Lcore {
    fn progress(&self, _: u64) -> Box<dyn Progress> {
        Box::new(Idle)
    }

    fn prepare(&self, options: &EndpointOptions) -> Result<Box<dyn Pending>, DeviceError> {
        let number = self.next.replace(self.next.get() + 1);
        let waiting = Rc::clone(&self.waiting);
        let end = End { double: None, wants: self.wants, submissions: 0, broken: false };
        Ok(Box::new(Half { number, options: *options, waiting, end, asked: false }))
    }
}

struct Idle;

impl Progress for Idle {
    fn name(&self) -> &str {
        "double"
    }

    fn rx(&mut self, _: u64) -> usize {
        0
    }

    fn tx(&mut self, _: u64) -> usize {
        0
    }
}

/// One end of a pair to be. The asking end makes the pair, the other takes its half of it.
struct Half {
    number: u64,
    options: EndpointOptions,
    waiting: Waiting,
    end: End,
    asked: bool,
}

impl Pending for Half {
    fn endpoint(&mut self) -> &mut dyn Endpoint {
        if self.end.double.is_none() {
            let (mine, theirs) = double_pair(self.options.depth, self.options.recv_depth);
            self.waiting.borrow_mut().insert(self.number, theirs);
            self.end.double = Some(mine);
            self.asked = true;
        }
        &mut self.end
    }

    fn hello(&self, _: &[u8]) -> Vec<u8> {
        self.number.to_le_bytes().to_vec()
    }

    fn connect(&mut self, peer: &[u8]) -> Result<Vec<u8>, ConnectError> {
        if !self.asked {
            let number = peer.try_into().map(u64::from_le_bytes);
            let number = number.map_err(|_| ConnectError::Malformed("a number has 8 bytes"))?;
            self.end.double = self.waiting.borrow_mut().remove(&number);
        }
        Ok(Vec::new())
    }

    fn into_endpoint(self: Box<Self>) -> Box<dyn Endpoint> {
        Box::new(self.end)
    }
}

/// A double that does what the test wants.
struct End {
    double: Option<Double>,
    wants: Wants,
    submissions: u64,
    broken: bool,
}

impl End {
    fn double(&mut self) -> &mut Double {
        self.double.as_mut().expect("connected, or asked first")
    }
}

impl Endpoint for End {
    fn caps(&self) -> Caps {
        let caps = self.double.as_ref().expect("connected, or asked first").caps();
        if self.wants.inline { caps } else { Caps { inline: 0, ..caps } }
    }

    fn register(&mut self, region: &Arc<Region>) -> Result<LocalKey, MemoryError> {
        self.double().register(region)
    }

    fn export(
        &mut self,
        key: LocalKey,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteRef, MemoryError> {
        self.double().export(key, offset, len, rights)
    }

    fn import(&mut self, bytes: &[u8]) -> Result<RemoteKey, MemoryError> {
        self.double().import(bytes)
    }

    fn submit(&mut self, op: Op<'_>, token: Token) -> Result<(), SubmitError> {
        // Receives are posted while the pair is made, and never refused for lack of room.
        if !matches!(op, Op::Recv { .. }) {
            self.submissions += 1;
            if self.wants.full_every.is_some_and(|every| self.submissions.is_multiple_of(every)) {
                return Err(SubmitError::Full);
            }
            if self.wants.break_after == Some(self.submissions) && !self.broken {
                self.broken = true;
                self.double().break_connection();
            }
        }
        self.double().submit(op, token)
    }

    fn doorbell(&mut self) {
        self.double().doorbell();
    }

    fn poll(&mut self, sink: &mut dyn FnMut(Settled)) -> usize {
        self.double().poll(sink)
    }

    fn in_flight(&self) -> usize {
        self.double.as_ref().map_or(0, Endpoint::in_flight)
    }

    fn event(&mut self) -> Option<EndpointEvent> {
        self.double().event()
    }

    fn close(&mut self) {
        self.double().close();
    }

    fn path(&self) -> &'static str {
        "double"
    }
}
