//! From two hellos to a connected queue pair: INIT, RTR and RTS with what both sides can do.

use pmd_roce::ids::{LinkId, PathMtu, Psn};
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
            &init,
            AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        )?;
        let device = self.device();
        let [a, b, c, d, e, f, g, _] = pmd_mem::os_entropy().to_ne_bytes();
        let hello = Hello {
            role: Role::Ask,
            generation: u32::from_ne_bytes([a, b, c, d]),
            transport: options.transport,
            qpn: endpoint.qp.number(),
            psn: Psn::new(u32::from_ne_bytes([e, f, g, 0])),
            qkey: 0,
            gid: device.gid(),
            mtu: options.mtu.unwrap_or(PathMtu::B4096).min(device.mtu()),
            responder_resources: options.rd_atomic,
            initiator_depth: options.rd_atomic,
            path: device.path(),
            host: device.host(),
            pid: std::process::id(),
            nonce: device.nonce(),
            private: Vec::new(),
        };
        Ok(QueuePairPending { cx: self.clone(), options: *options, endpoint, hello })
    }
}

impl QueuePairPending {
    /// Shared memory where both sides want it and it leads to the peer.
    fn link(&self, peer: &Hello) -> Result<Option<LinkId>, ConnectError> {
        let unreachable =
            |reason: String| ConnectError::Unreachable { wire: "shared memory", reason };
        match (self.hello.path, peer.path) {
            (PathWish::SharedMemory, PathWish::Packets)
            | (PathWish::Packets, PathWish::SharedMemory) => {
                return Err(ConnectError::Mismatch {
                    what: "wire",
                    ours: name(self.hello.path).into(),
                    theirs: name(peer.path).into(),
                });
            }
            (PathWish::Packets, _) | (_, PathWish::Packets) => return Ok(None),
            _ => {}
        }
        // The answer has settled it; an asking side that only may share still can fall back.
        let required =
            PathWish::SharedMemory == self.hello.path || PathWish::SharedMemory == peer.path;
        if peer.host != self.hello.host {
            return if required {
                Err(unreachable(
                    "the peer runs on another host or as another user; use wire = \"udp\"".into(),
                ))
            } else {
                Ok(None)
            };
        }
        // Without the device's own name, a process that sees another directory could be taken for one in ours: even this
        // process itself, where both hold the same prefix.
        let attached = match peer.nonce {
            Some(_) => self.cx.with(|core| core.peers.attach(peer.gid, peer.qpn, peer.nonce)),
            None => Err("the peer shares no memory".into()),
        };
        match attached {
            Ok(link) => Ok(Some(link)),
            Err(reason) if required => Err(unreachable(format!(
                "{reason}; both processes need the same XDG_RUNTIME_DIR, or wire = \"udp\""
            ))),
            Err(reason) => {
                tracing::debug!("no shared memory to {}: {reason}", peer.gid);
                Ok(None)
            }
        }
    }

    fn to_rtr(&self, peer: &Hello, mtu: PathMtu, link: Option<LinkId>) -> Result<(), ConnectError> {
        let mut rtr = QpAttr::new(QpState::Rtr);
        rtr.av = AddressVector { link, ..AddressVector::to(peer.gid) };
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
        self.endpoint.qp.modify(&rtr, mask)
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
        self.endpoint.qp.modify(&rts, mask)
    }
}

fn name(wish: PathWish) -> &'static str {
    match wish {
        PathWish::Any => "auto",
        PathWish::Packets => "packets only",
        PathWish::SharedMemory => "shared memory only",
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
        let link = self.link(&peer)?;
        self.to_rtr(&peer, mtu, link)?;
        self.to_rts(&peer)?;
        self.endpoint.connected(link.is_some());
        if peer.role == Role::Ask {
            self.hello.role = Role::Answer;
            self.hello.generation = peer.generation;
            self.hello.mtu = mtu;
            self.hello.path =
                if link.is_some() { PathWish::SharedMemory } else { PathWish::Packets };
        }
        Ok(peer.private)
    }

    fn into_endpoint(self: Box<Self>) -> Box<dyn Endpoint> {
        Box::new(self.endpoint)
    }
}
