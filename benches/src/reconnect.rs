//! A queue pair whose connection broke, to be had at work again. The handshake with the peer is left
//! out: what it would bring is known.

use anyhow::{Context as _, Result, bail};
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{Cq, Pd, Qp, Rc, WireChoice};

use crate::side::{create_qp, steps, walk};
use crate::{Options, Side};

/// How large the queues of a queue pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Queues {
    /// As an endpoint has them unless told otherwise: 64 requests and 64 receives.
    Endpoint,
    /// As `spinwire perf` and perftest have them: 128 requests and 512 receives.
    Perf,
    /// As a server with many requests in flight has them: 1024 of each.
    Server,
}

impl Queues {
    const fn cap(self) -> QpCap {
        let (max_send_wr, max_recv_wr, max_inline_data) = match self {
            Self::Endpoint => (64, 64, 64),
            Self::Perf => (128, 512, 0),
            Self::Server => (1024, 1024, 0),
        };
        QpCap { max_send_wr, max_recv_wr, max_send_sge: 1, max_recv_sge: 1, max_inline_data }
    }
}

/// One queue pair in RTS, and its peer.
#[derive(Debug)]
pub struct Reconnect {
    qp: Option<Qp<Rc>>,
    pd: Pd,
    cq: Cq,
    cap: QpCap,
    /// From RESET to RTS.
    steps: [(QpAttr, AttrMask); 3],
    _sides: [Side; 2],
}

impl Reconnect {
    /// A queue pair that reaches its peer so.
    ///
    /// # Errors
    /// What was refused.
    pub fn new(wire: WireChoice, queues: Queues) -> Result<Self> {
        let options = Options { wire, qps: 1, depth: 1, size: 8 };
        let [one, two] = [Side::open("one", &options)?, Side::open("two", &options)?];
        let peer = two.wish();
        let (gid, peer) = (peer.gid, *peer.qpns.first().context("a peer")?);
        let av = one.cx.path_to(gid, peer).context("no path to the peer")?;
        // As on an lcore's loop, which reads the clock once per turn.
        one.cx.drive();
        one.turn();
        let (pd, cq, cap) = (one.cx.alloc_pd(), one.cq.clone(), queues.cap());
        let (steps, _sides) = (steps(av, peer), [one, two]);
        let mut reconnect = Self { qp: None, pd, cq, cap, steps, _sides };
        reconnect.destroy_create()?;
        Ok(reconnect)
    }

    /// RESET, and the steps to RTS on the same queue pair.
    ///
    /// # Errors
    /// What was refused.
    pub fn reset_reinit(&mut self) -> Result<()> {
        let qp = self.qp.as_ref().context("there is a queue pair")?;
        qp.modify(&QpAttr::new(QpState::Reset), AttrMask::STATE)?;
        walk(qp, &self.steps)
    }

    /// Destroys the queue pair, creates another one, and leads it to RTS.
    ///
    /// # Errors
    /// What was refused.
    pub fn destroy_create(&mut self) -> Result<()> {
        if let Some(Err(stays)) = self.qp.take().map(Qp::destroy) {
            bail!(stays.error);
        }
        let qp = create_qp(&self.pd, &self.cq, self.cap)?;
        walk(&qp, &self.steps)?;
        self.qp = Some(qp);
        Ok(())
    }
}
