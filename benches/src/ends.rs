//! Two connected endpoints, which one thread runs.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::endpoint::{
    Endpoint, EndpointOptions, Local, Op, Outcome, Pending, Remote, Rights, Token,
};
use pmd_verbs::{Context, Device, DeviceConfig, WireChoice};

use crate::bookless::Bookless;
use crate::{BATCH, Kind};

/// Operations of an endpoint, and receives posted.
const DEPTH: u32 = 64;
/// Turns without an end of an operation after which something is broken.
const IDLE_TURNS: u32 = 1 << 26;

/// One end that submits operations, and one that receives what they bring.
pub struct Ends {
    near: Box<dyn Endpoint>,
    far: Box<dyn Endpoint>,
    into: Local,
    /// Registered at the near end.
    pub from: Local,
    /// Exported by the far end, with all rights.
    pub to: Remote,
}

/// Whether a ledger knows what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Books {
    /// As in every endpoint of a queue pair.
    Kept,
    /// In none, to measure the difference.
    None,
}

/// Local ACK timeout: the budget is 34 s.
const PATIENT: u8 = 20;

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ends").field("path", &self.near.path()).finish_non_exhaustive()
    }
}

impl Ends {
    /// Connects them; messages have `size` bytes, at most 4096.
    ///
    /// # Errors
    /// What was refused.
    pub fn connect(wire: WireChoice, size: u32, books: Books) -> Result<Self> {
        // Under valgrind on a busy machine, half a second may pass between two polls.
        let options = EndpointOptions {
            depth: DEPTH,
            recv_depth: DEPTH,
            timeout: PATIENT,
            ..Default::default()
        };
        let (near_cx, far_cx) = (context("near", wire)?, context("far", wire)?);
        let (mut near, mut far): (Box<dyn Endpoint>, Box<dyn Endpoint>);
        match books {
            Books::Kept => {
                let (mut one, mut two) = (near_cx.prepare(&options)?, far_cx.prepare(&options)?);
                two.connect(&one.hello(b""))?;
                one.connect(&two.hello(b""))?;
                (near, far) = (Box::new(one).into_endpoint(), Box::new(two).into_endpoint());
            }
            Books::None => {
                let one = Bookless::create(&near_cx, &options)?;
                let two = Bookless::create(&far_cx, &options)?;
                two.connect(&one, &options)?;
                one.connect(&two, &options)?;
                (near, far) = (Box::new(one), Box::new(two));
            }
        }
        let (from, into) = (near.register(&region()?)?, far.register(&region()?)?);
        let rights = Rights { read: true, write: true, atomic: true };
        let exported = far.export(into, 0, 4096, rights)?;
        let to = Remote { key: near.import(&exported.0)?, offset: 0 };
        let local = |key| Local { key, offset: 0, len: size };
        let (from, into) = (local(from), local(into));
        for _ in 0..DEPTH {
            far.submit(Op::Recv { into }, Token(0))?;
        }
        Ok(Self { near, far, from, into, to })
    }

    /// Such an operation between them; SENDs and WRITEs are prepared.
    pub const fn op(&self, kind: Kind) -> Option<Op<'static>> {
        match kind {
            Kind::Send => Some(Op::Send { from: self.from, imm: None }),
            Kind::Write => Some(Op::Write { from: self.from, to: self.to, imm: None }),
            _ => None,
        }
    }

    /// Submits a batch of operations and waits until all of them have ended.
    ///
    /// # Errors
    /// Where one fails, or none ends.
    pub fn batch(&mut self, op: Op<'_>) -> Result<()> {
        for _ in 0..BATCH {
            self.near.submit(op, Token(1))?;
        }
        self.near.doorbell();
        let (mut completed, mut failed, mut turns) = (0, None, 0);
        while completed < BATCH {
            turns += 1;
            ensure!(turns < IDLE_TURNS, "{completed} of {BATCH} operations ended, then none");
            completed += self.near.poll(&mut |settled| {
                if settled.outcome != Outcome::Done {
                    // The first says why; what is behind it was flushed.
                    failed.get_or_insert(settled);
                }
            });
            let received = self.far.poll(&mut |_| {});
            for _ in 0..received {
                self.far.submit(Op::Recv { into: self.into }, Token(0))?;
            }
        }
        ensure!(failed.is_none(), "an operation failed: {failed:?}");
        Ok(())
    }
}

fn context(name: &str, wire: WireChoice) -> Result<Context> {
    let device = Device::open(&DeviceConfig { name: name.into(), wire, ..Default::default() })?;
    device.context(0).context("its only lcore")
}

fn region() -> Result<Arc<Region>> {
    let spec = RegionSpec {
        name: "bench",
        len: 4096,
        hugepages: Hugepages::None,
        numa: &Numa::default(),
        seal: Seal::Data,
    };
    Ok(Arc::new(Region::create(&spec)?))
}
