//! One end: a device with one lcore, memory, and queue pairs.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use pmd_mem::{Hugepages, Numa, Region, RegionSpec, Seal};
use pmd_verbs::roce::ids::{Gid, PathMtu, Psn, Qpn};
use pmd_verbs::roce::qp::attr::{AddressVector, QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{
    Access, Context, Cq, Device, DeviceConfig, Mr, Pd, Qp, QpOptions, Rc, RemoteAddr, Sge,
    WireChoice,
};

/// What to measure with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How frames and memory reach the peer.
    pub wire: WireChoice,
    /// RC queue pairs between the two.
    pub qps: usize,
    /// Requests that each queue of a queue pair holds.
    pub depth: u32,
    /// Bytes of a message.
    pub size: u32,
}

/// What the other end must know of this one.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Its address.
    pub gid: Gid,
    /// Its queue pairs.
    pub qpns: Vec<Qpn>,
    /// Where its memory begins.
    pub memory: RemoteAddr,
}

impl Wish {
    /// Where messages go that are written.
    pub const fn sink(&self, options: &Options) -> RemoteAddr {
        let half = options.size.next_multiple_of(PAGE) as u64;
        RemoteAddr { addr: self.memory.addr + half, ..self.memory }
    }
}

/// One lcore with memory and queue pairs.
#[derive(Debug)]
pub struct Side {
    /// Queue pairs, all on [`Side::cq`].
    pub qps: Vec<Qp<Rc>>,
    /// Where everything completes.
    pub cq: Cq,
    /// One message to send from, and one to receive into behind it.
    pub mr: Mr,
    /// The memory itself.
    pub region: Arc<Region>,
    /// The lcore.
    pub cx: Context,
}

const PAGE: u32 = 4096;
/// Local ACK timeout of 4.3 s: under valgrind, or on a machine that is busy, nothing shall be judged late.
const PATIENT: u8 = 20;
const PSN: Psn = Psn::new(0x10_0000);
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Creates a queue pair on one completion queue.
pub(crate) fn create_qp(pd: &Pd, cq: &Cq, cap: QpCap) -> Result<Qp<Rc>> {
    let (srq, xrcd) = (None, None);
    let wish = QpOptions { send_cq: cq, recv_cq: cq, srq, xrcd, cap, signal_all: false };
    Ok(pd.create_qp(&wish)?)
}

/// Leads a queue pair from RESET to RTS, with a peer that is known.
///
/// # Errors
/// What was refused.
pub(crate) fn bring_up(qp: &Qp<Rc>, av: AddressVector, peer: Qpn) -> Result<()> {
    walk(qp, &steps(av, peer))
}

/// Takes the steps.
pub(crate) fn walk(qp: &Qp<Rc>, steps: &[(QpAttr, AttrMask)]) -> Result<()> {
    for (attr, mask) in steps {
        qp.modify(attr, *mask)?;
    }
    Ok(())
}

/// What leads an RC queue pair from RESET to RTS, step by step.
pub(crate) fn steps(av: AddressVector, dest_qpn: Qpn) -> [(QpAttr, AttrMask); 3] {
    let attr = QpAttr {
        access: REMOTE,
        av,
        path_mtu: PathMtu::B1024,
        timeout: PATIENT,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 1,
        sq_psn: PSN,
        rq_psn: PSN,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        dest_qpn,
        ..QpAttr::new(QpState::Reset)
    };
    [(QpState::Init, 0x39), (QpState::Rtr, 0x12_9181), (QpState::Rts, 0x1_2e01)]
        .map(|(state, mask)| (QpAttr { state, ..attr }, AttrMask::from_bits_retain(mask)))
}

impl Side {
    /// Opens a device for the calling thread.
    ///
    /// # Errors
    /// What the device refused.
    pub fn open(name: &str, options: &Options) -> Result<Self> {
        let config =
            DeviceConfig { name: name.into(), wire: options.wire, ..DeviceConfig::default() };
        let cx = Device::open(&config)?.context(0)?;
        let pd = cx.alloc_pd();
        let in_flight = u32::try_from(options.qps)?.saturating_mul(2 * options.depth);
        let cq = cx.create_cq(in_flight.min(1 << 17))?;
        let len = 2 * u64::from(options.size.next_multiple_of(PAGE));
        let spec = RegionSpec {
            name: "bench",
            len,
            hugepages: Hugepages::None,
            numa: &Numa::default(),
            seal: Seal::Data,
        };
        let region = Arc::new(Region::create(&spec)?);
        let mr = pd.register(&region, 0, len, Access::LOCAL_WRITE | REMOTE)?;
        let cap = QpCap {
            max_send_wr: options.depth,
            max_recv_wr: options.depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let create = |_| create_qp(&pd, &cq, cap);
        let qps = (0..options.qps).map(create).collect::<Result<_>>()?;
        Ok(Self { qps, cq, mr, region, cx })
    }

    /// What the other end must know.
    pub fn wish(&self) -> Wish {
        Wish {
            gid: self.cx.device().gid(),
            qpns: self.qps.iter().map(Qp::number).collect(),
            memory: self.mr.remote(0),
        }
    }

    /// Leads every queue pair to one of the peer's, up to RTS. The peer's thread must run meanwhile
    /// only as far as its control thread does.
    ///
    /// # Errors
    /// What was refused.
    pub fn connect(&self, peer: &Wish) -> Result<()> {
        for (qp, qpn) in self.qps.iter().zip(&peer.qpns) {
            let av = self.cx.path_to(peer.gid, *qpn).context("no path to the peer")?;
            bring_up(qp, av, *qpn)?;
        }
        Ok(())
    }

    /// Where the message is sent from, written from or read into.
    pub const fn source(&self, size: u32) -> [Sge; 1] {
        [self.mr.sge(0, size)]
    }

    /// Where received messages go.
    pub const fn sink(&self, size: u32) -> [Sge; 1] {
        [self.mr.sge(self.mr.len() / 2, size)]
    }

    /// One turn of the device.
    pub fn turn(&self) -> usize {
        self.cx.progress(self.cx.device().now())
    }
}

/// Connects two ends that one thread runs.
///
/// # Errors
/// What was refused.
pub fn connect(one: &Side, two: &Side) -> Result<()> {
    one.connect(&two.wish())?;
    two.connect(&one.wish())
}

/// Two connected ends for one thread.
///
/// # Errors
/// What was refused.
pub fn pair(options: &Options) -> Result<[Side; 2]> {
    let sides = [Side::open("bench0", options)?, Side::open("bench1", options)?];
    connect(&sides[0], &sides[1])?;
    Ok(sides)
}
