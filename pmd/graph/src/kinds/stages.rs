//! Stages that pass blocks on within one lcore: `file-source`, `generator`, `crc32c`, `sink`.

use crate::config::schema::{Key, Settings};
use crate::config::units::Size;
use crate::failure::Failure;
use crate::limits::{BLOCK_MAX, BLOCK_MIN, READ_AHEAD};
use crate::node::{self, Node, NodeContext};
use crate::plan::demand::{Amount, Flow, Region, Rights};
use crate::registry::{NodeFactory, Schema};
use crate::stream::Buffers;

const REPEAT_MAX: u64 = u32::MAX as u64;
/// A block each nanosecond.
const RATE_MAX: u64 = 1_000_000_000;

fn block() -> Key {
    Key::size("block", BLOCK_MIN..=BLOCK_MAX, "bytes it passes on at a time").default(Size::kib(64))
}

fn seed() -> Key {
    Key::count("seed", 0..=u64::MAX, "what the pattern is made from")
}

/// Buffers for the blocks that are read ahead or held by later stages. They are sent from where they lie, so they are
/// registered.
fn blocks(settings: &Settings, flow: &Flow) -> Vec<Region> {
    let stride = Buffers::stride(settings.size("block").get());
    let bytes = stride.saturating_mul(READ_AHEAD + flow.held_downstream);
    vec![Region { purpose: "blocks", amount: Amount::Bytes(bytes), rights: Rights::Local }]
}

/// `file-source`: reads a file block by block.
#[derive(Debug)]
pub(crate) struct FileSource(Schema);

impl FileSource {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("file-source", "reads a file block by block")
                .key(Key::text("path", "the file; \"self\" is the running executable").required())
                .key(block())
                .key(
                    Key::count("repeat", 1..=REPEAT_MAX, "how often the file is sent")
                        .default(1_u64),
                )
                .gives_output(),
        )
    }
}

impl NodeFactory for FileSource {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn emits(&self, settings: &Settings) -> Option<u64> {
        Some(settings.size("block").get())
    }

    fn preflight(&self, settings: &Settings) -> Result<(), String> {
        node::file_source::open(settings.text("path")).map(drop)
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        blocks(settings, flow)
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        node::file_source::FileSource::build(cx)
    }
}

/// `generator`: makes blocks of a seeded pattern.
#[derive(Debug)]
pub(crate) struct Generator(Schema);

impl Generator {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("generator", "makes blocks of a seeded pattern")
                .key(block())
                .key(Key::count("count", 1..=u64::MAX, "how many blocks").default(1000_u64))
                .key(seed().default(1_u64))
                .key(Key::count("rate", 1..=RATE_MAX, "blocks per second; not given: no limit"))
                .gives_output(),
        )
    }
}

impl NodeFactory for Generator {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn emits(&self, settings: &Settings) -> Option<u64> {
        Some(settings.size("block").get())
    }

    fn regions(&self, settings: &Settings, flow: &Flow) -> Vec<Region> {
        blocks(settings, flow)
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        node::generator::Generator::build(cx)
    }
}

/// `crc32c`: computes the checksum of every block and passes it on unchanged.
#[derive(Debug)]
pub(crate) struct Crc32c(Schema);

impl Crc32c {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("crc32c", "computes the CRC-32C of every block and passes it on")
                .takes_input()
                .gives_output(),
        )
    }
}

impl NodeFactory for Crc32c {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        Ok(node::crc32c::Crc32c::build(cx))
    }
}

/// `sink`: counts what arrives and drops it.
#[derive(Debug)]
pub(crate) struct Sink(Schema);

impl Sink {
    pub(crate) fn new() -> Self {
        Self(
            Schema::new("sink", "counts what arrives and drops it")
                .takes_input()
                .key(
                    Key::word(
                        "verify",
                        &["nothing", "pattern"],
                        "whether the bytes are compared with those of a generator",
                    )
                    .default("nothing"),
                )
                .key(seed().only_when("verify", "pattern")),
        )
    }
}

impl NodeFactory for Sink {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn build(&self, cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        Ok(node::sink::Sink::build(cx))
    }
}
