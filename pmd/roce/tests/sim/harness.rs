//! Two hosts with a queue pair each, and short words for what tests do with them.

use core::time::Duration;

use pmd_roce::counters::Counters;
use pmd_roce::engine::{PostRecvError, PostSendError};
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Instant, Srqn, WrId};
use pmd_roce::qp::attr::ModifyQpError;
use pmd_roce::qp::state::QpState;
use pmd_roce::work::{
    Access, Completion, Data, Datagram, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use pmd_sim::{HostId, Mr, Path, QpPlan, QpSide, World};

/// Every RC test runs on both.
pub(crate) const PATHS: [Path; 2] = [Path::Packets, Path::Shared];

/// All rights.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Bytes of each end's region.
pub(crate) const REGION: usize = 256 << 10;

/// Far longer than anything takes; no time passes outside of the world.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Seeds of a property; more of them in a run of their own: `SEEDS=100000 cargo test …`.
pub(crate) fn seeds(usual: u64) -> core::ops::Range<u64> {
    let asked = std::env::var("SEEDS").ok();
    0..asked.map_or(usual, |count| count.parse().expect("SEEDS is a number"))
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) side: QpSide,
    pub(crate) mr: Mr,
    /// Where its requests are received; XRC.
    pub(crate) srqn: Option<Srqn>,
}

impl End {
    /// Creates a queue pair and a region with all rights.
    pub(crate) fn new(world: &mut World, host: HostId, plan: QpPlan) -> Self {
        let side = world.create_qp(host, plan).expect("a plan that fits");
        let mr = world.register(host, plan.pd, REGION, ALL);
        Self { side, mr, srqn: None }
    }

    pub(crate) const fn host(&self) -> HostId {
        self.side.host
    }

    /// Posts a receive of `len` bytes at `offset` of the region.
    pub(crate) fn recv(&self, world: &mut World, id: u64, offset: u64, len: u32) {
        self.try_recv(world, id, &[self.mr.sge(offset, len)]).expect("a receive");
    }

    pub(crate) fn try_recv(
        &self,
        world: &mut World,
        id: u64,
        sges: &[Sge],
    ) -> Result<(), PostRecvError> {
        world.post_recv(self.host(), self.side.qpn, &RecvWr { wr_id: WrId(id), sges })
    }

    /// Posts a signalled request over `len` bytes at `offset` of the region.
    pub(crate) fn post(&self, world: &mut World, id: u64, op: SendOp, offset: u64, len: u32) {
        self.try_post(world, id, op, &[self.mr.sge(offset, len)]).expect("a send request");
    }

    pub(crate) fn try_post(
        &self,
        world: &mut World,
        id: u64,
        op: SendOp,
        sges: &[Sge],
    ) -> Result<(), PostSendError> {
        self.post_wr(world, id, op, Data::Sges(sges), SendFlags::SIGNALED, None)
    }

    pub(crate) fn post_wr(
        &self,
        world: &mut World,
        id: u64,
        op: SendOp,
        data: Data<'_>,
        flags: SendFlags,
        to: Option<Datagram>,
    ) -> Result<(), PostSendError> {
        let wr = SendWr { wr_id: WrId(id), op, data, flags, to, srqn: self.srqn };
        world.post_send(self.host(), self.side.qpn, &wr)
    }

    /// Takes every completion of the send and the receive queue, in order.
    pub(crate) fn poll(&self, world: &mut World) -> Vec<Completion> {
        let mut all = Vec::new();
        let queues = [self.side.send_cq, self.side.recv_cq];
        for cq in queues.into_iter().take(if queues[0] == queues[1] { 1 } else { 2 }) {
            while let Some(completion) = world.poll_cq(self.host(), cq) {
                all.push(completion);
            }
        }
        all
    }

    /// Lets the world run until so many completions are there, and takes them.
    pub(crate) fn wait(&self, world: &mut World, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        let done = world.run_until(LONG, |world| {
            all.extend(self.poll(world));
            all.len() >= count
        });
        assert!(done, "{count} completions wanted, these came: {all:#?}");
        all
    }

    /// The same, as pairs of work request and status.
    pub(crate) fn statuses(&self, world: &mut World, count: usize) -> Vec<(u64, WcStatus)> {
        outcomes(&self.wait(world, count))
    }

    pub(crate) fn state(&self, world: &World) -> QpState {
        world.state(self.host(), self.side.qpn).expect("the queue pair exists")
    }

    pub(crate) fn set_state(&self, world: &mut World, state: QpState) -> Result<(), ModifyQpError> {
        world.set_state(self.host(), self.side.qpn, state)
    }

    pub(crate) fn events(&self, world: &mut World) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| world.poll_event(self.host())).collect()
    }

    pub(crate) fn counters(&self, world: &World) -> Counters {
        *world.counters(self.host())
    }

    /// Bytes of the region, as the host's CPU sees them.
    pub(crate) fn bytes(&self, world: &World, offset: u64, len: usize) -> Vec<u8> {
        world.memory(self.host()).bytes(self.mr.addr + offset, len).expect("in the region").to_vec()
    }

    /// Fills part of the region.
    pub(crate) fn write(&self, world: &World, offset: u64, bytes: &[u8]) {
        let mut memory = world.memory_mut(self.host());
        let to = memory.bytes_mut(self.mr.addr + offset, bytes.len()).expect("in the region");
        to.copy_from_slice(bytes);
    }
}

/// Work request and status of completions.
pub(crate) fn outcomes(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|completion| (completion.wr_id.0, completion.status)).collect()
}

/// Two connected ends.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) path: Path,
}

impl Pair {
    /// Connected by the same plan on both sides.
    pub(crate) fn new(seed: u64, path: Path, plan: QpPlan) -> Self {
        Self::with(seed, path, plan, plan)
    }

    /// Connected by two plans.
    pub(crate) fn with(seed: u64, path: Path, a: QpPlan, b: QpPlan) -> Self {
        let mut pair = Self::apart(seed, path, a, b);
        pair.connect();
        pair
    }

    /// Two ends in RESET.
    pub(crate) fn apart(seed: u64, path: Path, a: QpPlan, b: QpPlan) -> Self {
        let mut world = World::new(seed);
        let hosts = [world.add_host("a"), world.add_host("b")];
        let a = End::new(&mut world, hosts[0], a);
        let b = End::new(&mut world, hosts[1], b);
        Self { world, a, b, path }
    }

    pub(crate) fn connect(&mut self) {
        self.world.connect(self.a.side, self.b.side, self.path).expect("RESET to RTS");
    }

    /// Takes both through RESET and back to RTS, with new first PSNs.
    pub(crate) fn reconnect(&mut self) {
        for end in [&mut self.a, &mut self.b] {
            end.side.plan.sq_psn = end.side.plan.sq_psn.plus(0x1000);
        }
        for end in [self.a, self.b] {
            end.set_state(&mut self.world, QpState::Reset).expect("any state leads to RESET");
        }
        self.connect();
    }
}

/// Milliseconds since `start`, in whole hundredths.
pub(crate) fn ms_since(world: &World, start: Instant) -> f64 {
    (world.now().since(start).as_secs_f64() * 100_000.0).round() / 100.0
}

/// Bytes that tell where they come from.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}
