//! Where the blocks are kept, and the memory that they pass through.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use pmd_block::{
    Backend, Direct, Done, FileBackend, FileSpec, Kind, Layout, Memory, OpenError, Place as File,
    Request, SubmitError, Submitted,
};
use pmd_lcore::Doorbells;
use pmd_observe::{Code, Owner};

use super::hung::Hung;
use super::store::Store;
use crate::block::{BUFFER_BYTES, Place};
use crate::config::schema::Settings;
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::STORE_UNNAMED;
use crate::node::NodeContext;

/// A store, and who has which part of it.
pub(super) struct Vault {
    name: String,
    /// What people know it by.
    label: String,
    backend: Box<dyn Backend>,
    /// The store itself, or buffers.
    memory: Extent,
    /// Parts of the store, each a session's.
    parts: Store,
    /// Parts of the memory, each a connection's; not used where the memory is the store.
    buffers: Store,
    /// Requests that a fault has kept from an answer; `None` where none was asked for.
    hung: Option<Rc<Cell<usize>>>,
    /// The store's own number: another one when what was stored is gone.
    number: u64,
}

impl Vault {
    pub(super) fn build(cx: &NodeContext<'_>) -> Result<Self, Failure> {
        let settings = cx.settings();
        let (memory, backend, label): (Extent, Box<dyn Backend>, String) =
            match settings.text("backend") {
                "file" => {
                    let memory = cx.extent("buffers");
                    let backend = open(cx.name(), settings, &memory)?;
                    let label = match backend.identity() {
                        Some(_) => format!("`{}`", backend.path().display()),
                        None => format!("a file without a name in `{}`", backend.path().display()),
                    };
                    (memory, Box::new(backend), label)
                }
                _ => {
                    let memory = cx.extent("storage");
                    let backend = Memory::new(memory.len());
                    (memory, Box::new(backend), "its memory".to_owned())
                }
            };
        let hung = cx.hang().map(|_| Rc::default());
        let backend = match (cx.hang(), &hung) {
            (Some(after), Some(held)) => Box::new(Hung::new(backend, after, Rc::clone(held))),
            _ => backend,
        };
        Ok(Self {
            name: cx.name().to_owned(),
            parts: Store::new(backend.len(), BUFFER_BYTES),
            buffers: Store::new(memory.len(), BUFFER_BYTES),
            number: backend.identity().unwrap_or_else(pmd_mem::os_entropy),
            backend,
            memory,
            label,
            hung,
        })
    }

    /// Where clients put the bytes of a request.
    pub(super) fn place(&self) -> Place {
        match self.backend.layout() {
            Layout::Store => Place::Store,
            Layout::Buffers => Place::Buffers,
        }
    }

    /// What clients write to.
    pub(super) fn memory(&self) -> &Extent {
        &self.memory
    }

    /// Bytes of the largest part that is free.
    pub(super) fn largest(&self) -> u64 {
        self.parts.largest()
    }

    /// The store's own number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Where a part of so many bytes begins.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        self.parts.take(bytes)
    }

    /// Whether just these bytes were nobody's; they are taken then.
    pub(super) fn take_at(&mut self, start: u64, bytes: u64) -> bool {
        self.parts.take_at(start, bytes)
    }

    pub(super) fn give_back(&mut self, start: u64, bytes: u64) {
        self.parts.give_back(start, bytes);
    }

    /// Memory for a connection of the session whose part is `part`: that part itself, or so many bytes of buffers.
    pub(super) fn take_memory(&mut self, part: (u64, u64), bytes: u64) -> Option<Extent> {
        match self.place() {
            Place::Store => self.memory.part(part.0, part.1),
            Place::Buffers => {
                let start = self.buffers.take(bytes)?;
                self.memory.part(start, bytes)
            }
        }
    }

    pub(super) fn give_memory_back(&mut self, memory: &Extent) {
        if self.place() == Place::Buffers {
            self.buffers.give_back(self.offset_of(memory), memory.len());
        }
    }

    /// Bytes of buffers that are free in one piece.
    pub(super) fn free_buffers(&self) -> u64 {
        self.buffers.largest()
    }

    /// Takes a request whose bytes lie at `at` of a connection's `memory`.
    #[inline]
    pub(super) fn submit(
        &mut self,
        kind: Kind,
        (offset, len): (u64, u32),
        (memory, at): (&Extent, u64),
        token: u64,
    ) -> Result<Submitted, SubmitError> {
        let buffer = self.offset_of(memory) + at;
        self.backend.submit(&Request { kind, offset, len, buffer, token })
    }

    /// Starts what was submitted.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        self.backend.start().map_err(|error| self.failed(&error))
    }

    /// Adds what has ended to `done`.
    pub(super) fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), Failure> {
        let ended = self.backend.poll(&mut |ended| done.push(ended));
        ended.map(drop).map_err(|error| self.failed(&error))
    }

    /// Whether it was to hang on purpose, and never did.
    pub(super) fn has_missed_its_fault(&self) -> bool {
        self.hung.as_ref().is_some_and(|held| held.get() == 0)
    }

    /// It has a request for so long, and does not answer it.
    pub(super) fn stalls(&self, waited: Duration) -> Failure {
        let (name, label, ms) = (&self.name, &self.label, waited.as_millis());
        let summary =
            format!("the store of `{name}`, {label}, has not answered a request for {ms} ms");
        Failure::new(Code::StoreStall, Owner::Local, summary)
            .because(format!("{} requests are in flight there", self.backend.in_flight()))
            .because("the process itself runs: the disk, or what lies between, does not answer")
            .turn(format!("node.{name}.store_timeout"))
    }

    pub(super) fn arm<'a>(&'a self, doorbells: &mut Doorbells<'a>) {
        if let Some(fd) = self.backend.fd() {
            doorbells.watch(fd);
        }
    }

    fn offset_of(&self, memory: &Extent) -> u64 {
        memory.offset() - self.memory.offset()
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::local(format!("the store of `{}` takes no requests: {error}", self.name))
    }
}

/// Opens the file that the config names, or one in the temporary directory that ends with this process.
fn open(node: &str, settings: &Settings, memory: &Extent) -> Result<FileBackend, Failure> {
    let size = settings.size_opt("size").map(|size| size.get());
    let temporary = std::env::temp_dir();
    let path = settings.text_opt("path").map(Path::new);
    let spec = FileSpec {
        place: path.map_or(File::Unnamed(&temporary), File::Path),
        size: if path.is_some() { size } else { size.or(Some(STORE_UNNAMED.get())) },
        overwrite: settings.flag("overwrite"),
        direct: match settings.text("direct") {
            "require" => Direct::Require,
            "off" => Direct::Off,
            _ => Direct::Auto,
        },
        depth: u32::try_from(settings.count("depth")).unwrap_or(u32::MAX),
    };
    let range = memory.offset()..memory.offset() + memory.len();
    let file = FileBackend::open(&spec, memory.region().segment(), range).map_err(|error| {
        let knob = match &error {
            OpenError::Open { .. } | OpenError::Kind { .. } | OpenError::Busy { .. } => "path",
            OpenError::Empty { .. } | OpenError::Size { .. } => "size",
            OpenError::Foreign { .. } => "overwrite",
            OpenError::NoDirect { .. } => "direct",
            OpenError::Ring { .. } => "backend",
        };
        let owner = if knob == "backend" { Owner::Local } else { Owner::Config };
        Failure::new(Code::Unknown, owner, format!("`{node}` has no store: {error}"))
            .turn(format!("node.{node}.{knob}"))
    })?;
    let cache = file.direct_align().map_or("through the page cache", |_| "without the page cache");
    tracing::info!("node `{node}`: blocks in {}, {cache}", file.path().display());
    Ok(file)
}
