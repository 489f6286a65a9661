//! Queue pairs by plan: create them, and walk them from RESET to RTS.

use pmd_roce::ids::{CqId, PathMtu, PdId, Psn, Qpn, Srqn, XrcdId};
use pmd_roce::qp::attr::{AddressVector, CreateQpError, ModifyQpError, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{AttrMask, QpState, Transport, masks};
use pmd_roce::work::Access;

use crate::host::HostId;
use crate::world::World;

/// The protection domain that [`World::create_qp`] uses unless told otherwise.
pub const PD: PdId = PdId(1);

/// How two queue pairs reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Through the packet network.
    Packets,
    /// Through shared memory.
    Shared,
}

/// How a queue pair is created and brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpPlan {
    /// Service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: PdId,
    /// Depths and sizes.
    pub cap: QpCap,
    /// Send and receive completion queue; `None` makes one of sufficient depth.
    pub cqs: Option<(CqId, CqId)>,
    /// Shared receive queue.
    pub srq: Option<Srqn>,
    /// XRC domain.
    pub xrcd: Option<XrcdId>,
    /// Complete every send.
    pub sq_sig_all: bool,
    /// One-sided operations that the peer may use.
    pub access: Access,
    /// Q_Key; UD.
    pub qkey: u32,
    /// Payload bytes per packet.
    pub path_mtu: PathMtu,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retries after the first transmission.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK; 7 is without end.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// First PSN that this side sends, and that its peer expects.
    pub sq_psn: Psn,
    /// READs and atomics as initiator.
    pub max_rd_atomic: u8,
    /// READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
}

impl QpPlan {
    /// A reliable connection with the usual retry budget: 14, 7, 7, 12.
    pub const fn rc() -> Self {
        Self {
            transport: Transport::Rc,
            pd: PD,
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            cqs: None,
            srq: None,
            xrcd: None,
            sq_sig_all: false,
            access: Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC),
            qkey: 0,
            path_mtu: PathMtu::B1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            sq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
        }
    }

    /// The same for another transport.
    pub const fn of(transport: Transport) -> Self {
        Self { transport, ..Self::rc() }
    }
}

/// A created queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSide {
    /// Where it is.
    pub host: HostId,
    /// Its number.
    pub qpn: Qpn,
    /// Where its sends complete.
    pub send_cq: CqId,
    /// Where its receives complete.
    pub recv_cq: CqId,
    /// How it is brought up. Change it before the step that uses it.
    pub plan: QpPlan,
}

impl QpSide {
    /// What RESET to INIT takes.
    pub fn init_attr(&self) -> (QpAttr, AttrMask) {
        let QpPlan { access, qkey, .. } = self.plan;
        self.edge(QpState::Reset, QpAttr { access, qkey, ..QpAttr::new(QpState::Init) })
    }

    /// What INIT to RTR takes, toward a peer that sends from `rq_psn` on.
    pub fn rtr_attr(&self, av: AddressVector, dest_qpn: Qpn, rq_psn: Psn) -> (QpAttr, AttrMask) {
        let QpPlan { path_mtu, min_rnr_timer, max_dest_rd_atomic, .. } = self.plan;
        let attr = QpAttr {
            av,
            dest_qpn,
            rq_psn,
            path_mtu,
            min_rnr_timer,
            max_dest_rd_atomic,
            ..QpAttr::new(QpState::Rtr)
        };
        self.edge(QpState::Init, attr)
    }

    /// What RTR to RTS takes.
    pub fn rts_attr(&self) -> (QpAttr, AttrMask) {
        let QpPlan { timeout, retry_cnt, rnr_retry, sq_psn, max_rd_atomic, .. } = self.plan;
        let attr = QpAttr {
            timeout,
            retry_cnt,
            rnr_retry,
            sq_psn,
            max_rd_atomic,
            ..QpAttr::new(QpState::Rts)
        };
        self.edge(QpState::Rtr, attr)
    }

    /// Attributes with exactly the mask that the edge requires.
    fn edge(&self, from: QpState, attr: QpAttr) -> (QpAttr, AttrMask) {
        let edge = masks(self.plan.transport, from, attr.state).expect("an edge of the table");
        (attr, edge.required)
    }
}

impl World {
    /// Creates a queue pair by plan, in RESET.
    ///
    /// # Errors
    /// The engine's.
    pub fn create_qp(&mut self, host: HostId, plan: QpPlan) -> Result<QpSide, CreateQpError> {
        let depth = (plan.cap.max_send_wr + plan.cap.max_recv_wr) as usize;
        let (send_cq, recv_cq) = plan.cqs.unwrap_or_else(|| {
            let cq = self.create_cq(host, depth.max(1));
            (cq, cq)
        });
        let QpPlan { transport, pd, cap, srq, xrcd, sq_sig_all, .. } = plan;
        let init = QpInit { transport, pd, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all };
        let qpn = self.create_raw_qp(host, &init)?;
        Ok(QpSide { host, qpn, send_cq, recv_cq, plan })
    }

    /// The address vector from one host to another. On [`Path::Shared`] it makes a link where there
    /// is none yet.
    pub fn address(&mut self, from: HostId, to: HostId, path: Path) -> AddressVector {
        let link = (path == Path::Shared)
            .then(|| self.link_between(from, to).unwrap_or_else(|| self.link(from, to).0));
        AddressVector { link, ..AddressVector::to(self.gid(to)) }
    }

    /// RESET to INIT.
    ///
    /// # Errors
    /// The engine's.
    pub fn to_init(&mut self, side: QpSide) -> Result<(), ModifyQpError> {
        let (attr, mask) = side.init_attr();
        self.modify_qp(side.host, side.qpn, &attr, mask)
    }

    /// INIT to RTR, toward `peer`.
    ///
    /// # Errors
    /// The engine's.
    pub fn to_rtr(&mut self, side: QpSide, peer: QpSide, path: Path) -> Result<(), ModifyQpError> {
        let av = self.address(side.host, peer.host, path);
        let (attr, mask) = side.rtr_attr(av, peer.qpn, peer.plan.sq_psn);
        self.modify_qp(side.host, side.qpn, &attr, mask)
    }

    /// RTR to RTS.
    ///
    /// # Errors
    /// The engine's.
    pub fn to_rts(&mut self, side: QpSide) -> Result<(), ModifyQpError> {
        let (attr, mask) = side.rts_attr();
        self.modify_qp(side.host, side.qpn, &attr, mask)
    }

    /// Walks both from RESET to RTS, toward each other.
    ///
    /// # Errors
    /// The engine's.
    pub fn connect(&mut self, a: QpSide, b: QpSide, path: Path) -> Result<(), ModifyQpError> {
        self.to_init(a)?;
        self.to_init(b)?;
        self.to_rtr(a, b, path)?;
        self.to_rtr(b, a, path)?;
        self.to_rts(a)?;
        self.to_rts(b)
    }
}
