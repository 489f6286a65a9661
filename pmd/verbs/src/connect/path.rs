//! The path between two queue pairs that have said hello.

use pmd_roce::ids::{Psn, Qpn};
use pmd_roce::qp::attr::AddressVector;
use pmd_roce::qp::state::Transport;

use super::{Hello, PathWish, Role, Ways};
use crate::context::Context;
use crate::endpoint::ConnectError;

impl Context {
    /// What a queue pair of this lcore says to a peer: where it is, how it wants to be reached, and an
    /// unpredictable first PSN. It asks; READ and atomic resources, Q_Key and private data are the
    /// caller's to fill in.
    pub fn hello(&self, transport: Transport, qpn: Qpn) -> Hello {
        let device = self.device();
        let [a, b, c, d, e, f, g, _] = pmd_mem::os_entropy().to_ne_bytes();
        Hello {
            role: Role::Ask,
            generation: u32::from_ne_bytes([a, b, c, d]),
            transport,
            qpn,
            psn: Psn::new(u32::from_ne_bytes([e, f, g, 0])),
            qkey: 0,
            gid: device.gid(),
            mtu: device.mtu(),
            responder_resources: 0,
            initiator_depth: 0,
            path: device.path(),
            host: device.host(),
            pid: std::process::id(),
            nonce: device.nonce(),
            roce: device.roce_version(),
            gid_index: device.source().index,
            ways: Ways::of(device.gid(), device.roce_version(), device.path()),
            manager: None,
            private: Vec::new(),
        }
    }

    /// The path to the queue pair behind a hello: shared memory where both sides want it and it leads
    /// to the peer, else packets. Not for the data path: it waits for the peer's process, bounded.
    ///
    /// # Errors
    /// [`ConnectError::Mismatch`] when the wishes exclude each other, [`ConnectError::Unreachable`]
    /// when there must be shared memory and is none.
    pub fn path(&self, ours: &Hello, peer: &Hello) -> Result<AddressVector, ConnectError> {
        let packets = || {
            ours.sends_to(peer)?;
            Ok(self.address(peer.gid))
        };
        let unreachable =
            |reason: String| ConnectError::Unreachable { wire: "shared memory", reason };
        match (ours.path, peer.path) {
            (PathWish::SharedMemory, PathWish::Packets)
            | (PathWish::Packets, PathWish::SharedMemory) => {
                return Err(ConnectError::Mismatch {
                    what: "wire",
                    ours: name(ours.path).into(),
                    theirs: name(peer.path).into(),
                });
            }
            (PathWish::Packets, _) | (_, PathWish::Packets) => return packets(),
            _ => {}
        }
        ours.reaches(peer)?;
        // The answer has settled it; an asking side that only may share still can fall back.
        let required = PathWish::SharedMemory == ours.path || PathWish::SharedMemory == peer.path;
        if peer.host != ours.host {
            return if required {
                Err(unreachable(
                    "the peer runs on another host or as another user; use wire = \"udp\"".into(),
                ))
            } else {
                packets()
            };
        }
        // Without the device's own name, a process that sees another directory could be taken for one in ours: even this
        // process itself, where both hold the same prefix.
        let attached = match peer.nonce {
            Some(_) => self.with_soft(|core| core.peers.attach(peer.gid, peer.qpn, peer.nonce)),
            None => Err("the peer shares no memory".into()),
        };
        match attached {
            Ok(link) => Ok(AddressVector { link: Some(link), ..AddressVector::to(peer.gid) }),
            Err(reason) if required => Err(unreachable(format!(
                "{reason}; both processes need the same XDG_RUNTIME_DIR, or wire = \"udp\""
            ))),
            Err(reason) => {
                tracing::debug!("no shared memory to {}: {reason}", peer.gid);
                packets()
            }
        }
    }
}

fn name(wish: PathWish) -> &'static str {
    match wish {
        PathWish::Any => "auto",
        PathWish::Packets => "packets only",
        PathWish::SharedMemory => "shared memory only",
    }
}
