//! A live queue pair of any transport, and the way into any state.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use pmd_verbs::roce::engine::{PostSendError, QpView};
use pmd_verbs::roce::ids::{Lkey, PathMtu, Psn, Qpn, Srqn, XrcdId};
use pmd_verbs::roce::qp::attr::{AddressVector, QpAttr, QpCap};
use pmd_verbs::roce::qp::state::QpState::{self, Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use pmd_verbs::roce::qp::state::{AttrMask, Transport};
use pmd_verbs::{
    Access, Ah, Context, Cq, Data, ModifyQpError, Pd, Qp, QpOptions, Rc, Sge, Uc, Ud, WcStatus,
    WorkRequest, XrcIni, XrcTgt,
};

use super::spec::{self, Bits};

/// How long a failed send may take to show.
const PATIENCE: Duration = Duration::from_secs(5);

/// What subjects are made from.
#[derive(Debug)]
pub(super) struct Bench {
    cx: Context,
    pd: Pd,
    cq: Cq,
    ah: Ah,
    /// A path to the device itself: nothing is sent along it but to a queue pair that nobody has.
    av: AddressVector,
    /// No attribute of a QP may exceed it.
    mtu: PathMtu,
}

/// A queue pair, whatever its transport.
#[derive(Debug)]
enum Live {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
    XrcIni(Qp<XrcIni>),
    XrcTgt(Qp<XrcTgt>),
}

macro_rules! with {
    ($live:expr, $qp:ident => $what:expr) => {
        match $live {
            Live::Rc($qp) => $what,
            Live::Uc($qp) => $what,
            Live::Ud($qp) => $what,
            Live::XrcIni($qp) => $what,
            Live::XrcTgt($qp) => $what,
        }
    };
}

/// A queue pair under test.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    bench: &'a Bench,
    live: Live,
    transport: Transport,
    /// As it was created.
    pub(super) fresh: QpView,
}

impl Bench {
    pub(super) fn new(cx: &Context) -> anyhow::Result<Self> {
        let (cx, device) = (cx.clone(), cx.device());
        let pd = cx.alloc_pd();
        let cq = cx.create_cq(16)?;
        let av = cx.address(device.gid());
        let ah = pd.create_ah(&av).context("no address handle to the device itself")?;
        let mtu = device.mtu();
        Ok(Self { cx, pd, cq, ah, av, mtu })
    }

    /// A fresh queue pair.
    pub(super) fn subject(&self, transport: Transport) -> anyhow::Result<Subject<'_>> {
        let cap = QpCap {
            max_send_wr: 2,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut options = QpOptions {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: None,
            xrcd: None,
            cap,
            signal_all: true,
        };
        let live = match transport {
            Transport::Rc => Live::Rc(self.pd.create_qp(&options)?),
            Transport::Uc => Live::Uc(self.pd.create_qp(&options)?),
            Transport::Ud => Live::Ud(self.pd.create_qp(&options)?),
            Transport::XrcIni => Live::XrcIni(self.pd.create_qp(&options)?),
            Transport::XrcTgt => {
                options.xrcd = Some(XrcdId(1));
                Live::XrcTgt(self.pd.create_qp(&options)?)
            }
            Transport::RawPacket => bail!("no device here runs RAW_PACKET"),
        };
        let fresh = with!(&live, qp => qp.query());
        Ok(Subject { bench: self, live, transport, fresh })
    }

    /// What a queue pair is brought up with.
    fn first(&self) -> QpAttr {
        QpAttr {
            access: Access::REMOTE_WRITE,
            qkey: 0x1111,
            av: self.av,
            path_mtu: PathMtu::B256,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            sq_psn: Psn::new(0x20_0000),
            rq_psn: Psn::new(0x10_0000),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            dest_qpn: Qpn::new(0xf0_0001),
            ..QpAttr::new(Reset)
        }
    }

    /// Other values for all that has more than one, so that a query shows what was applied.
    pub(super) fn other(&self) -> QpAttr {
        QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            qkey: 0x2222,
            av: AddressVector { traffic_class: 0x20, hop_limit: 9, ..self.av },
            path_mtu: PathMtu::B512.min(self.mtu),
            timeout: 15,
            retry_cnt: 6,
            rnr_retry: 6,
            min_rnr_timer: 13,
            sq_psn: Psn::new(0x20_0005),
            rq_psn: Psn::new(0x10_0005),
            max_rd_atomic: 5,
            max_dest_rd_atomic: 5,
            dest_qpn: Qpn::new(0xf0_0002),
            sqd_notify: true,
            ..QpAttr::new(Reset)
        }
    }
}

impl Subject<'_> {
    /// One call.
    pub(super) fn modify(&self, attr: &QpAttr, given: Bits) -> Result<(), ModifyQpError> {
        let mask = AttrMask::from_bits_retain(given);
        with!(&self.live, qp => qp.modify(attr, mask))
    }

    /// State and attributes.
    pub(super) fn query(&self) -> QpView {
        with!(&self.live, qp => qp.query())
    }

    /// Takes the fresh queue pair to a state, one edge after the other with exactly what each
    /// requires; to SQE by a send that fails.
    pub(super) fn put(&self, state: QpState) -> anyhow::Result<()> {
        let way: &[QpState] = match state {
            Reset => &[],
            Init => &[Init],
            Rtr => &[Init, Rtr],
            Rts | Sqe => &[Init, Rtr, Rts],
            Sqd => &[Init, Rtr, Rts, Sqd],
            Error => &[Init, Error],
        };
        for to in way {
            let from = self.query().attr.state;
            let edge = spec::edge(self.transport, from, *to).context("no edge")?;
            let attr = QpAttr { state: *to, ..self.bench.first() };
            self.modify(&attr, edge.required)?;
        }
        if state == Sqe {
            let status = self.fail_a_send()?;
            if status != WcStatus::LocProt {
                bail!("a send from memory that nobody registered ended with {status}");
            }
        }
        match self.query().attr.state {
            got if got == state => Ok(()),
            got => bail!("it is in {got}"),
        }
    }

    /// Sends from memory that nobody registered; how that ended.
    pub(super) fn fail_a_send(&self) -> anyhow::Result<WcStatus> {
        let sges = [Sge { addr: 0x1000, len: 8, lkey: Lkey(0xffff_fff0) }];
        let data = Data::Sges(&sges);
        let posted = match &self.live {
            Live::Rc(qp) => qp.post_send(&WorkRequest::send(data)),
            Live::Uc(qp) => qp.post_send(&WorkRequest::send(data)),
            Live::Ud(qp) => qp.post_send(&WorkRequest::send_to(
                data,
                &self.bench.ah,
                Qpn::new(0xf0_0001),
                0x1111,
            )),
            Live::XrcIni(qp) => qp.post_send(&WorkRequest::send(data).toward(Srqn(1))),
            Live::XrcTgt(_) => Err(PostSendError::Operation("an XRC target has no send queue")),
        };
        posted?;
        let deadline = Instant::now() + PATIENCE;
        let mut ended = None;
        while ended.is_none() {
            if Instant::now() > deadline {
                bail!("the send did not end within {PATIENCE:?}");
            }
            self.bench.cx.progress(self.bench.cx.device().now());
            self.bench.cq.poll(1, |completion| ended = Some(completion.status));
        }
        ended.context("the send did not end")
    }
}
