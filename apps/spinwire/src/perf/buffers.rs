//! Where messages come from and where they go: areas of one region, cut into slots.

use std::sync::Arc;

use pmd_mem::{Hugepages, Numa, Region, RegionError, RegionSpec, Seal};
use pmd_observe::report::Bytes;
use pmd_verbs::roce::limits::GRH_BYTES;
use pmd_verbs::{Access, Mr, Pd, RegisterError, RemoteAddr, Sge};

use super::params::Params;
use super::test::{Buffers, Misconnect, Op, Transport};

/// Slots begin on cache lines.
const LINE: u64 = 64;

/// What an area is for.
#[derive(Clone, Copy, Debug)]
struct Shape {
    slots: u32,
    size: u32,
    /// Room before each slot for what a datagram brings along.
    grh: bool,
    rights: Access,
}

impl Shape {
    const fn stride(self) -> u64 {
        let bytes = (self.size as u64).next_multiple_of(LINE);
        if self.grh { bytes + LINE } else { bytes }
    }
}

/// Equal slots for each queue pair.
#[derive(Debug)]
pub(super) struct Area {
    mr: Mr,
    shape: Shape,
}

impl Area {
    /// Slots of one queue pair.
    pub(super) const fn slots(&self) -> u32 {
        self.shape.slots
    }

    /// Where the payload of a slot lies in the region.
    pub(super) fn at(&self, qp: u32, slot: u32) -> u64 {
        self.mr.offset() + self.within(qp, slot)
    }

    fn within(&self, qp: u32, slot: u32) -> u64 {
        let index = u64::from(qp) * u64::from(self.shape.slots) + u64::from(slot);
        index * self.shape.stride() + if self.shape.grh { LINE } else { 0 }
    }

    /// A message to send, or bytes that a READ brings.
    pub(super) fn sge(&self, qp: u32, slot: u32, size: u32) -> Sge {
        self.mr.sge(self.within(qp, slot), size)
    }

    /// Room for the largest message that may arrive.
    pub(super) fn receive(&self, qp: u32, slot: u32) -> Sge {
        let grh = if self.shape.grh { GRH_BYTES } else { 0 };
        self.mr.sge(self.within(qp, slot) - u64::from(grh), self.shape.size + grh)
    }

    /// The first slot of a queue pair, for the peer.
    pub(super) fn remote(&self, qp: u32) -> RemoteAddr {
        self.mr.remote(self.within(qp, 0))
    }

    /// From one slot to the next.
    pub(super) const fn stride(&self) -> u64 {
        self.shape.stride()
    }
}

/// The memory of one lcore.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) region: Arc<Region>,
    /// Where messages come from.
    pub(super) source: Option<Area>,
    /// Where they land.
    pub(super) sink: Option<Area>,
}

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    /// The machine has too little.
    #[error("{}: {}", lack(error), fix(*.qps))]
    Region {
        /// Why.
        error: RegionError,
        /// Queue pairs that it would be for.
        qps: u32,
    },
    /// The device refused.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

fn lack(error: &RegionError) -> String {
    match error {
        RegionError::Memory { len, available } => format!(
            "the buffers of one end take {} and {} are free",
            Bytes(*len),
            Bytes(*available)
        ),
        error => error.to_string(),
    }
}

fn fix(qps: u32) -> &'static str {
    if qps > 1 {
        "use fewer queue pairs (-q), smaller messages (-s) or --buffers warm"
    } else {
        "use smaller messages (-s), or --buffers warm"
    }
}

impl Memory {
    /// What one end needs. `sends` and `gets`: which halves of the test it plays.
    pub(super) fn create(
        pd: &Pd,
        params: &Params,
        qps: u32,
        server: bool,
    ) -> Result<Self, MemoryError> {
        let (source, sink) = shapes(params, server);
        let bytes = |shape: &Option<Shape>| {
            shape.map_or(0, |shape| u64::from(qps) * u64::from(shape.slots) * shape.stride())
        };
        let (first, second) = (bytes(&source), bytes(&sink));
        let region = Region::create(&RegionSpec {
            name: "spinwire-perf",
            len: (first + second).max(LINE),
            hugepages: Hugepages::Auto,
            numa: &Numa::default(),
            seal: Seal::Data,
        })
        .map_err(|error| MemoryError::Region { error, qps })?;
        let region = Arc::new(region);
        let area = |shape: Option<Shape>, offset, len| {
            let register = |shape: Shape| {
                let mr = pd.register(&region, offset, len, shape.rights)?;
                Ok::<_, RegisterError>(Area { mr, shape })
            };
            shape.map(register).transpose()
        };
        let source = area(source, 0, first)?;
        let sink = area(sink, first, second)?;
        Ok(Self { region, source, sink })
    }
}

/// Source and sink of one end.
fn shapes(params: &Params, server: bool) -> (Option<Shape>, Option<Shape>) {
    let op = params.test.op();
    let acts = !server || params.both_send();
    let serves = server || params.both_send();
    let local = Access::LOCAL_WRITE;
    let remote = |right| {
        let wrong = server && params.misconnect == Some(Misconnect::AccessMr);
        if wrong { local } else { local | right }
    };
    let grh = params.transport == Transport::Ud;
    let (size, slots) = (params.largest(), params.slots());
    let source = Shape { slots, size, grh: false, rights: local };
    let source = match op {
        Op::Send | Op::Write => acts.then_some(source),
        Op::Read => serves.then_some(Shape { rights: remote(Access::REMOTE_READ), ..source }),
        Op::Atomic => serves.then_some(Shape { rights: remote(Access::REMOTE_ATOMIC), ..source }),
    };
    // A reader of every line must be done with a buffer before the next message lands in it.
    let spare = if params.buffers == Buffers::App && op == Op::Send { 2 } else { 1 };
    let sink = Shape { slots: slots * spare, size, grh, rights: local };
    let sink = match op {
        Op::Send if params.alternates => {
            serves.then_some(Shape { rights: remote(Access::REMOTE_WRITE), ..sink })
        }
        Op::Send => serves.then_some(sink),
        Op::Write => serves.then_some(Shape { rights: remote(Access::REMOTE_WRITE), ..sink }),
        Op::Read | Op::Atomic => acts.then_some(sink),
    };
    // What tells of unreliable messages that arrived is a message itself.
    let news = Shape { slots: 1, size: 64, grh, rights: local };
    (source, sink.or_else(|| (!params.transport.is_reliable()).then_some(news)))
}
