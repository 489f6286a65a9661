//! Two queue pairs of one process that talk to each other, and what is seen of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::connect::PathWish;
use pmd_verbs::roce::engine::QpView;
use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::ids::{PathMtu, Psn, Qpn, WrId};
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{
    Access, Completion, Context, Cq, Device, ModifyQpError, Mr, Pd, Qp, QpOptions, Receives,
    RecvWr, RemoteAddr, Service, Sge,
};

use super::lens::Lens;
use super::spec;

/// How long anything may take that must come. A deviation costs so much.
const PATIENCE: Duration = Duration::from_secs(3);
/// Turns without work after which nothing more is expected.
const QUIET_TURNS: u32 = 200;
/// Bytes of each side's memory.
const BYTES: u64 = 256 << 10;
/// Where receives go; below it is what is sent.
pub(super) const INTO: u64 = BYTES / 2;
/// The Q_Key of datagram queue pairs.
pub(super) const QKEY: u32 = 0x1111;

/// A device that is looked at, with the lcores that both ends of a connection belong to.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub(super) cxs: [Context; 2],
    pub(super) lens: &'a dyn Lens,
}

impl<'a> Ground<'a> {
    /// Takes the device's lcores: two where it was opened for two, so that both share memory.
    ///
    /// # Errors
    /// When somebody has them.
    pub(crate) fn new(device: &Device, lens: &'a dyn Lens) -> anyhow::Result<Self> {
        let first = device.context(0)?;
        let second = if device.lcores() > 1 { device.context(1)? } else { first.clone() };
        Ok(Self { cxs: [first, second], lens })
    }

    pub(super) fn device(&self) -> &Device {
        self.cxs[0].device()
    }

    /// The ways in which queue pairs of this device reach each other.
    pub(super) fn ways(&self) -> &'static [Way] {
        match self.device().path() {
            PathWish::Packets => &[Way::Packets],
            PathWish::SharedMemory => &[Way::Memory],
            _ if self.device().lcores() < 2 => &[Way::Packets],
            _ => &[Way::Packets, Way::Memory],
        }
    }

    /// Objects of its own for each check, so that none sees what another one left.
    pub(super) fn rig(&self, way: Way) -> anyhow::Result<Rig<'_>> {
        for cx in &self.cxs {
            while cx.poll_event().is_some() {}
        }
        let [near, far] = &self.cxs;
        Ok(Rig { ground: self, way, sides: [Side::new(near)?, Side::new(far)?] })
    }
}

/// How two queue pairs reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Packets,
    Memory,
}

impl Way {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Memory => "shared memory",
        }
    }
}

/// One end: an lcore with memory and a completion queue.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) cx: Context,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) mr: Mr,
    memory: Arc<Region>,
}

impl Side {
    fn new(cx: &Context) -> anyhow::Result<Self> {
        let pd = cx.alloc_pd();
        let cq = cx.create_cq(256)?;
        let spec = RegionSpec {
            name: "spinwire-conformance",
            len: BYTES,
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::Data,
        };
        let memory = Arc::new(Region::create(&spec)?);
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = pd.register(&memory, 0, BYTES, all)?;
        Ok(Self { cx: cx.clone(), pd, cq, mr, memory })
    }

    /// Part of its memory.
    pub(super) fn sge(&self, at: u64, len: u32) -> Sge {
        self.mr.sge(at, len)
    }

    /// The same, as a peer names it.
    pub(super) fn remote(&self, at: u64) -> RemoteAddr {
        self.mr.remote(at)
    }

    /// Registers its memory once more, with other rights.
    pub(super) fn register(&self, access: Access) -> anyhow::Result<Mr> {
        Ok(self.pd.register(&self.memory, 0, BYTES, access)?)
    }

    /// Posts receives of `len` bytes each, the first under this number.
    pub(super) fn receives<T: Receives>(
        &self,
        qp: &Qp<T>,
        first: u64,
        count: u64,
        len: u32,
    ) -> anyhow::Result<()> {
        for wr in first..first + count {
            let at = INTO + (wr - first) * u64::from(len);
            qp.post_recv(&RecvWr { wr_id: WrId(wr), sges: &[self.sge(at, len)] })
                .with_context(|| format!("receive {wr}"))?;
        }
        Ok(())
    }

    /// What the receive at `at` got.
    pub(super) fn received(&self, at: u64, len: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.memory.read_at(INTO + at, &mut bytes)?;
        Ok(bytes)
    }
}

/// Both ends.
#[derive(Debug)]
pub(super) struct Rig<'a> {
    ground: &'a Ground<'a>,
    way: Way,
    pub(super) sides: [Side; 2],
}

impl Rig<'_> {
    /// A queue pair in RESET, with small queues, on which every request completes.
    pub(super) fn qp<'s, T: Service>(
        &'s self,
        side: usize,
        change: impl FnOnce(&mut QpOptions<'s>),
    ) -> anyhow::Result<Qp<T>> {
        let side = &self.sides[side];
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let mut options = QpOptions {
            send_cq: &side.cq,
            recv_cq: &side.cq,
            srq: None,
            xrcd: None,
            cap,
            signal_all: true,
        };
        change(&mut options);
        Ok(side.pd.create_qp(&options)?)
    }

    /// Attributes that lead one side's queue pair to `peer`.
    pub(super) fn attr(&self, side: usize, peer: Qpn) -> anyhow::Result<QpAttr> {
        let cx = &self.sides[side].cx;
        let gid = cx.device().gid();
        let av = match self.way {
            Way::Packets => cx.address(gid),
            Way::Memory => cx.path_to(gid, peer)?,
        };
        let psns = [Psn::new(0x20_0000), Psn::new(0x10_0000)];
        Ok(QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            qkey: QKEY,
            av,
            path_mtu: PathMtu::B1024.min(cx.device().mtu()),
            // A budget that a machine which stands still for a while does not use up.
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            sq_psn: psns[side],
            rq_psn: psns[1 - side],
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            dest_qpn: peer,
            ..QpAttr::new(QpState::Reset)
        })
    }

    /// Brings both to RTS, toward each other; `change` sees the attributes of both.
    pub(super) fn connect<T: Service>(
        &self,
        qps: &[Qp<T>; 2],
        change: impl Fn(usize, &mut QpAttr),
    ) -> anyhow::Result<()> {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            for (side, qp) in qps.iter().enumerate() {
                let mut attr = self.attr(side, qps[1 - side].number())?;
                change(side, &mut attr);
                step(qp, &attr, to)?;
            }
        }
        Ok(())
    }

    /// A connected pair.
    pub(super) fn pair<T: Service>(
        &self,
        change: impl Fn(usize, &mut QpAttr),
    ) -> anyhow::Result<[Qp<T>; 2]> {
        let qps = [self.qp(0, |_| {})?, self.qp(1, |_| {})?];
        self.connect(&qps, change)?;
        Ok(qps)
    }

    /// One turn of both lcores; returns how much was done.
    pub(super) fn turn(&self) -> usize {
        self.sides.iter().map(|side| side.cx.progress(side.cx.device().now())).sum()
    }

    /// Turns until `done`, or until nobody would wait any longer; returns whether it was done.
    pub(super) fn until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            if done() {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            if self.turn() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Turns until nothing happens any more.
    pub(super) fn settle(&self) {
        let mut quiet = 0;
        self.until(PATIENCE, || {
            quiet = if self.turn() == 0 { quiet + 1 } else { 0 };
            quiet == QUIET_TURNS
        });
    }

    /// What a queue has, as it is seen.
    pub(super) fn poll(&self, cq: &Cq, got: &mut Vec<Completion>) {
        cq.poll(64, |completion| got.extend(self.ground.lens.completion(completion)));
    }

    /// Waits for so many completions at each side, and then a little for more than that.
    pub(super) fn complete(&self, wanted: [usize; 2]) -> [Vec<Completion>; 2] {
        let [near, far] = &self.sides;
        self.complete_on([(&near.cq, wanted[0]), (&far.cq, wanted[1])])
    }

    /// The same, on other queues.
    pub(super) fn complete_on<const N: usize>(
        &self,
        wanted: [(&Cq, usize); N],
    ) -> [Vec<Completion>; N] {
        let mut got = [const { Vec::new() }; N];
        let mut look = || {
            let mut all = true;
            for ((cq, wanted), got) in wanted.iter().zip(&mut got) {
                self.poll(cq, got);
                all &= got.len() >= *wanted;
            }
            all
        };
        self.until(PATIENCE, &mut look);
        self.settle();
        look();
        got
    }

    /// The time until a completion comes; `None`: it did not within `limit`.
    pub(super) fn first_completion(
        &self,
        side: usize,
        limit: Duration,
        start: Instant,
    ) -> (Option<Duration>, Vec<Completion>) {
        let mut got = Vec::new();
        let came = self.until(limit, || {
            self.poll(&self.sides[side].cq, &mut got);
            !got.is_empty()
        });
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let took = Duration::from_nanos(self.ground.lens.nanoseconds(took));
        (came.then_some(took), got)
    }

    /// Events that came so far at a side.
    pub(super) fn events(&self, side: usize) -> Vec<AsyncEvent> {
        let mut got = Vec::new();
        while let Some(event) = self.sides[side].cx.poll_event() {
            got.extend(self.ground.lens.event(event));
        }
        got
    }

    /// What a query answers, as it is seen.
    pub(super) fn view<T: Service>(&self, qp: &Qp<T>) -> QpView {
        self.ground.lens.view(qp.query())
    }

    /// The state, as it is seen.
    pub(super) fn state<T: Service>(&self, qp: &Qp<T>) -> QpState {
        self.view(qp).attr.state
    }

    /// Whether a call was refused, as it is seen.
    pub(super) fn refused<T, E>(&self, result: &Result<T, E>) -> &'static str {
        if result.is_err() && self.ground.lens.refuses() { "refused" } else { "accepted" }
    }
}

/// One edge, with exactly what it requires.
pub(super) fn step<T: Service>(
    qp: &Qp<T>,
    attr: &QpAttr,
    to: QpState,
) -> Result<(), ModifyQpError> {
    let required = spec::edge(T::TRANSPORT, qp.state(), to).map_or(spec::STATE, |e| e.required);
    qp.modify(&QpAttr { state: to, ..*attr }, AttrMask::from_bits_retain(required))
}

/// An edge that needs nothing but the state.
pub(super) fn go<T: Service>(qp: &Qp<T>, to: QpState) -> Result<(), ModifyQpError> {
    step(qp, &QpAttr::new(to), to)
}

/// Which request ended how, in the order in which they did: those below a number are sends, the others receives.
pub(super) fn ends(completions: &[Completion]) -> String {
    let mut words: Vec<_> = completions
        .iter()
        .map(|completion| format!("{} {}", completion.wr_id.0, completion.status))
        .collect();
    if words.is_empty() {
        words.push("nothing completes".into());
    }
    words.join(", ")
}

/// The completions of sends and those of receives, each in order: numbers below [`RECEIVES`] are sends.
pub(super) fn apart(completions: &[Completion]) -> String {
    let part = |receives: bool| {
        let of: Vec<_> =
            completions.iter().copied().filter(|c| (c.wr_id.0 >= RECEIVES) == receives).collect();
        ends(&of)
    };
    format!("sends: {}; receives: {}", part(false), part(true))
}

/// The first number of a receive.
pub(super) const RECEIVES: u64 = 100;
