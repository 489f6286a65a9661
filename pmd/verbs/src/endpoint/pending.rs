//! From two hellos to a connected queue pair: INIT, RTR and RTS with what both sides can do.

use pmd_observe::journal::By;
use pmd_roce::ids::PathMtu;
use pmd_roce::qp::attr::{AddressVector, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::work::Access;

use super::options::EndpointOptions;
use super::queue_pair::QueuePairEndpoint;
use super::{ConnectError, Endpoint, Pending};
use crate::connect::{Hello, PathWish, Role};
use crate::context::Context;

/// A verbs endpoint that is not connected yet; its queue pair is in INIT.
#[derive(Debug)]
pub struct QueuePairPending {
    cx: Context,
    options: EndpointOptions,
    endpoint: QueuePairEndpoint,
    hello: Hello,
}

impl Context {
    /// Makes an endpoint on this lcore, ready to say hello to a peer.
    ///
    /// # Errors
    /// [`ConnectError::Device`] names what the device refused.
    pub fn prepare(&self, options: &EndpointOptions) -> Result<QueuePairPending, ConnectError> {
        let endpoint = QueuePairEndpoint::create(self, options)?;
        let mut init = QpAttr::new(QpState::Init);
        init.access = Access::REMOTE_WRITE;
        if options.transport == Transport::Rc {
            init.access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        endpoint.qp.modify(
            By::Connect,
            &init,
            AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        )?;
        let mut hello = self.hello(options.transport, endpoint.qp.number());
        hello.mtu = options.mtu.unwrap_or(PathMtu::B4096).min(hello.mtu);
        hello.responder_resources = options.rd_atomic;
        hello.initiator_depth = options.rd_atomic;
        Ok(QueuePairPending { cx: self.clone(), options: *options, endpoint, hello })
    }
}

impl QueuePairPending {
    fn to_rtr(&self, peer: &Hello, mtu: PathMtu, av: AddressVector) -> Result<(), ConnectError> {
        let mut rtr = QpAttr::new(QpState::Rtr);
        rtr.av = av;
        rtr.path_mtu = mtu;
        rtr.dest_qpn = peer.qpn;
        rtr.rq_psn = peer.psn;
        let mut mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN;
        if self.options.transport == Transport::Rc {
            rtr.max_dest_rd_atomic = self.options.rd_atomic;
            rtr.min_rnr_timer = self.options.min_rnr_timer;
            mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        }
        self.endpoint.qp.modify(By::Connect, &rtr, mask)
    }

    fn to_rts(&self, peer: &Hello) -> Result<(), ConnectError> {
        let mut rts = QpAttr::new(QpState::Rts);
        rts.sq_psn = self.hello.psn;
        let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if self.options.transport == Transport::Rc {
            rts.max_rd_atomic = self.options.rd_atomic.min(peer.responder_resources);
            rts.timeout = self.options.timeout;
            rts.retry_cnt = self.options.retry_cnt;
            rts.rnr_retry = self.options.rnr_retry;
            mask |= AttrMask::MAX_QP_RD_ATOMIC
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY;
        }
        self.endpoint.qp.modify(By::Connect, &rts, mask)
    }
}

impl Pending for QueuePairPending {
    fn endpoint(&mut self) -> &mut dyn Endpoint {
        &mut self.endpoint
    }

    fn hello(&self, private: &[u8]) -> Vec<u8> {
        Hello { private: private.to_vec(), ..self.hello.clone() }.encode()
    }

    fn connect(&mut self, peer: &[u8]) -> Result<Vec<u8>, ConnectError> {
        let peer = Hello::decode(peer)?;
        let mismatch =
            |what, ours: String, theirs: String| ConnectError::Mismatch { what, ours, theirs };
        if peer.transport != self.hello.transport {
            return Err(mismatch(
                "transport",
                self.hello.transport.to_string(),
                peer.transport.to_string(),
            ));
        }
        if peer.role == Role::Answer && peer.generation != self.hello.generation {
            return Err(mismatch(
                "generation",
                format!("{:#x}", self.hello.generation),
                format!("{:#x}: an old answer", peer.generation),
            ));
        }
        if peer.role == Role::Answer && peer.mtu > self.hello.mtu {
            // It would send packets that this side must refuse.
            return Err(mismatch("path MTU", self.hello.mtu.to_string(), peer.mtu.to_string()));
        }
        let mtu = self.hello.mtu.min(peer.mtu);
        let av = self.cx.path(&self.hello, &peer)?;
        self.to_rtr(&peer, mtu, av)?;
        self.to_rts(&peer)?;
        self.endpoint.connected(av.link.is_some());
        if peer.role == Role::Ask {
            self.hello.role = Role::Answer;
            self.hello.generation = peer.generation;
            self.hello.mtu = mtu;
            self.hello.path =
                if av.link.is_some() { PathWish::SharedMemory } else { PathWish::Packets };
        }
        Ok(peer.private)
    }

    fn into_endpoint(self: Box<Self>) -> Box<dyn Endpoint> {
        Box::new(self.endpoint)
    }
}
