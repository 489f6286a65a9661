//! Two lcores with memory, and queue pairs between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::roce::engine::QpView;
use pmd_verbs::roce::event::AsyncEvent;
use pmd_verbs::roce::ids::{PathMtu, Psn, Qpn};
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState, Transport};
use pmd_verbs::{
    Access, Completion, Context, Cq, Device, DeviceConfig, Mr, Pd, Qp, QpOptions, Receives, RecvWr,
    Service, Sge, Srq, WcStatus, WireChoice,
};

/// Runs each of these functions over every wire, as a test per wire.
macro_rules! on_every_wire {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[test]
            fn udp() {
                super::$name(pmd_verbs::WireChoice::Udp);
            }

            #[test]
            fn shared_memory() {
                super::$name(pmd_verbs::WireChoice::Shm);
            }
        }
    )*};
}

/// Bytes of each side's memory.
pub(crate) const BYTES: u64 = 256 * 1024;
/// Where receives go; below it is what is sent.
pub(crate) const INTO: u64 = BYTES / 2;
/// The Q_Key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1111;

/// Nothing here takes longer, by far.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn region(bytes: u64) -> Arc<Region> {
    let spec = RegionSpec {
        name: "test",
        len: bytes,
        hugepages: Hugepages::None,
        numa: &Numa::default(),
        seal: Seal::Data,
    };
    Arc::new(Region::create(&spec).unwrap())
}

/// Bytes that differ from place to place and from salt to salt.
pub(crate) fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + salt) * 7 + (i >> 8) + salt).to_le_bytes()[0]).collect()
}

/// One lcore.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) cx: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) memory: Arc<Region>,
}

impl Side {
    fn new(device: &Device, lcore: u32) -> Self {
        let cx = device.context(lcore).unwrap();
        let pd = cx.alloc_pd();
        let cq = cx.create_cq(1024).unwrap();
        let memory = region(BYTES);
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&memory, 0, BYTES, all).unwrap();
        Self { cx, pd, cq, mr, memory }
    }

    /// Part of this side's memory.
    pub(crate) fn sge(&self, at: u64, len: u32) -> Sge {
        self.mr.sge(at, len)
    }

    /// A queue pair in RESET, with small queues.
    pub(crate) fn qp<'a, T: Service>(&'a self, change: impl FnOnce(&mut QpOptions<'a>)) -> Qp<T> {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        };
        let mut options = QpOptions {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: None,
            xrcd: None,
            cap,
            signal_all: true,
        };
        change(&mut options);
        self.pd.create_qp(&options).unwrap()
    }

    /// As [`Side::qp`], receiving from a shared queue.
    pub(crate) fn qp_on<T: Service>(&self, srq: &Srq) -> Qp<T> {
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: 64,
        };
        let options = QpOptions {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: Some(srq),
            xrcd: None,
            cap,
            signal_all: true,
        };
        self.pd.create_qp(&options).unwrap()
    }

    pub(crate) fn counter(&self, wanted: &str) -> u64 {
        let mut found = None;
        self.cx.counters(|name, value| {
            if name == wanted {
                found = Some(value);
            }
        });
        found.unwrap()
    }

    /// Posts a receive of `len` bytes at [`INTO`] + `at`.
    pub(crate) fn receive<T: Receives>(&self, qp: &Qp<T>, wr: u64, at: u64, len: u32) {
        qp.post_recv(&receive(wr, &[self.sge(INTO + at, len)])).unwrap();
    }

    /// What arrived at [`INTO`] + `at`.
    pub(crate) fn received(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_at(INTO + at, &mut bytes).unwrap();
        bytes
    }
}

/// A receive request.
pub(crate) fn receive(wr: u64, sges: &[Sge]) -> RecvWr<'_> {
    RecvWr { wr_id: pmd_verbs::roce::ids::WrId(wr), sges }
}

/// Two lcores of one device.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) sides: [Side; 2],
}

impl World {
    pub(crate) fn new(wire: WireChoice) -> Self {
        let config = DeviceConfig { wire, lcores: 2, ..DeviceConfig::default() };
        Self::of(&Device::open(&config).unwrap())
    }

    /// The lcores of a device that was opened for two.
    pub(crate) fn of(device: &Device) -> Self {
        Self { sides: [0, 1].map(|lcore| Side::new(device, lcore)) }
    }

    /// One turn of both lcores; returns how much was done.
    pub(crate) fn turn(&self) -> usize {
        self.sides.iter().map(|side| side.cx.progress(side.cx.device().now())).sum()
    }

    /// Turns until `done`.
    pub(crate) fn until(&self, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < deadline, "nothing moves any more");
            self.turn();
        }
    }

    /// Turns until both sides have completed so much; returns what.
    pub(crate) fn complete(&self, wanted: [usize; 2]) -> [Vec<Completion>; 2] {
        let mut got = [Vec::new(), Vec::new()];
        self.until(|| {
            for (side, got) in self.sides.iter().zip(&mut got) {
                side.cq.poll(64, |completion| got.push(completion));
            }
            got.iter().map(Vec::len).zip(wanted).all(|(got, wanted)| got >= wanted)
        });
        assert_eq!(got.each_ref().map(Vec::len), wanted, "{got:?}");
        got
    }

    /// Turns until nothing happens any more, and asserts that nothing completes.
    pub(crate) fn nothing_completes(&self) {
        let mut quiet = 0;
        self.until(|| {
            quiet = if self.turn() == 0 { quiet + 1 } else { 0 };
            quiet == 100
        });
        for side in &self.sides {
            side.cq.poll(1, |completion| panic!("{completion:?}"));
        }
    }

    pub(crate) fn event(&self, side: usize) -> Option<AsyncEvent> {
        self.sides[side].cx.poll_event()
    }

    /// A connected pair of queue pairs, the first of each side; `change` sees the attributes of
    /// every step of both.
    pub(crate) fn pair<T: Service>(&self, change: impl Fn(usize, &mut QpAttr)) -> [Qp<T>; 2] {
        let qps = self.sides.each_ref().map(|side| side.qp(|_| {}));
        self.connect(&qps, change);
        qps
    }

    pub(crate) fn connect<T: Service>(
        &self,
        qps: &[Qp<T>; 2],
        change: impl Fn(usize, &mut QpAttr),
    ) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            for (side, qp) in qps.iter().enumerate() {
                let mut attr = self.attr(side, qps[1 - side].number());
                change(side, &mut attr);
                step(qp, &attr, to);
            }
        }
    }

    /// Attributes that lead one side's queue pair to `peer`, with the PSNs of the worked example.
    pub(crate) fn attr(&self, side: usize, peer: Qpn) -> QpAttr {
        let cx = &self.sides[side].cx;
        let psns = [Psn::new(0x20_0000), Psn::new(0x10_0000)];
        QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            qkey: QKEY,
            av: cx.path_to(cx.device().gid(), peer).unwrap(),
            path_mtu: PathMtu::B1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            sq_psn: psns[side],
            rq_psn: psns[1 - side],
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            dest_qpn: peer,
            ..QpAttr::new(QpState::Reset)
        }
    }
}

/// What a transport's bring-up requires, the specification's masks.
pub(crate) fn mask(transport: Transport, to: QpState) -> AttrMask {
    let bits = match (transport, to) {
        (Transport::Ud, QpState::Init) => 0x71,
        (_, QpState::Init) => 0x39,
        (Transport::Uc, QpState::Rtr) => 0x10_1181,
        (Transport::Rc, QpState::Rtr) => 0x12_9181,
        (Transport::Uc | Transport::Ud, QpState::Rts) => 0x1_0001,
        (Transport::Rc, QpState::Rts) => 0x1_2e01,
        _ => 1,
    };
    AttrMask::from_bits_retain(bits)
}

/// One edge.
pub(crate) fn step<T: Service>(qp: &Qp<T>, attr: &QpAttr, to: QpState) {
    qp.modify(&QpAttr { state: to, ..*attr }, mask(T::TRANSPORT, to)).unwrap();
}

/// An edge that needs nothing but the state.
pub(crate) fn go<T: Service>(qp: &Qp<T>, to: QpState) {
    step(qp, &QpAttr::new(to), to);
}

/// What a refusal must leave as it was.
pub(crate) fn unchanged<T: Service>(qp: &Qp<T>, before: &QpView) {
    assert_eq!(qp.query(), *before);
}

/// Which request ended how.
pub(crate) fn ends(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|completion| (completion.wr_id.0, completion.status)).collect()
}
