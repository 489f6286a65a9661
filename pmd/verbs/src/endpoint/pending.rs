//! From two hellos to a connected endpoint.

use pmd_observe::journal::By;

use super::options::EndpointOptions;
use super::queue_pair::QueuePairEndpoint;
use super::{ConnectError, Endpoint, Pending};
use crate::connect::{Hello, PathWish, Role};
use crate::context::Context;

/// A verbs endpoint that is not connected yet; its queue pair is in INIT.
#[derive(Debug)]
pub struct QueuePairPending {
    pub(super) endpoint: QueuePairEndpoint,
}

impl Context {
    /// Makes an endpoint on this lcore, ready to say hello to a peer.
    ///
    /// # Errors
    /// [`ConnectError::Device`] names what the device refused.
    pub fn prepare(&self, options: &EndpointOptions) -> Result<QueuePairPending, ConnectError> {
        let endpoint = QueuePairEndpoint::create(self, options)?;
        endpoint.enter_init(By::Connect)?;
        Ok(QueuePairPending { endpoint })
    }
}

impl Pending for QueuePairPending {
    fn endpoint(&mut self) -> &mut dyn Endpoint {
        &mut self.endpoint
    }

    fn hello(&self, private: &[u8]) -> Vec<u8> {
        // Whoever answers can be reached once the peer has read it.
        if self.endpoint.hello.role == Role::Answer {
            self.endpoint.warn_without_receives();
        }
        Hello { private: private.to_vec(), ..self.endpoint.hello.clone() }.encode()
    }

    fn connect(&mut self, peer: &[u8]) -> Result<Vec<u8>, ConnectError> {
        let peer = Hello::decode(peer)?;
        let ours = &self.endpoint.hello;
        let mismatch =
            |what, ours: String, theirs: String| ConnectError::Mismatch { what, ours, theirs };
        if peer.role == Role::Answer && peer.generation != ours.generation {
            return Err(mismatch(
                "generation",
                format!("{:#x}", ours.generation),
                format!("{:#x}: an old answer", peer.generation),
            ));
        }
        if peer.role == Role::Answer && peer.mtu > ours.mtu {
            // It would send packets that this side must refuse.
            return Err(mismatch("path MTU", ours.mtu.to_string(), peer.mtu.to_string()));
        }
        if peer.role == Role::Answer {
            self.endpoint.warn_without_receives();
        }
        let shares_memory = self.endpoint.enter_rtr(By::Connect, &peer)?;
        self.endpoint.enter_rts(By::Connect, &peer)?;
        if peer.role == Role::Ask {
            let ours = &mut self.endpoint.hello;
            ours.role = Role::Answer;
            ours.generation = peer.generation;
            ours.mtu = ours.mtu.min(peer.mtu);
            ours.path = if shares_memory { PathWish::SharedMemory } else { PathWish::Packets };
        }
        Ok(peer.private)
    }

    fn into_endpoint(self: Box<Self>) -> Box<dyn Endpoint> {
        Box::new(self.endpoint)
    }
}
