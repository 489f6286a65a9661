//! From two hellos to a connected endpoint.

use std::rc::Rc;

use pmd_observe::journal::By;

use super::meeting::{Meeting, MeetingPoint};
use super::options::EndpointOptions;
use super::queue_pair::QueuePairEndpoint;
use super::{ConnectError, Endpoint, Pending};
use crate::connect::{Hello, PathWish, Role};
use crate::context::Context;

/// A verbs endpoint that is not connected yet; its queue pair is in INIT.
#[derive(Debug)]
pub struct QueuePairPending {
    pub(super) endpoint: QueuePairEndpoint,
    /// How far its queue pair is that meets the peer's by the connection manager.
    meeting: Option<Meeting>,
}

impl Context {
    /// Makes an endpoint on this lcore, ready to say hello to a peer.
    ///
    /// # Errors
    /// [`ConnectError::Device`] names what the device refused.
    pub fn prepare(&self, options: &EndpointOptions) -> Result<QueuePairPending, ConnectError> {
        let endpoint = QueuePairEndpoint::create(self, options)?;
        endpoint.enter_init(By::Connect)?;
        Ok(QueuePairPending { endpoint, meeting: None })
    }

    /// The same, of which the queue pair meets the peer's by the connection manager: go on with [`Pending::meet`] after
    /// [`Pending::connect`], until it says that it is connected.
    ///
    /// # Errors
    /// As [`Context::prepare`].
    pub fn prepare_at(
        &self,
        point: &Rc<MeetingPoint>,
        options: &EndpointOptions,
    ) -> Result<QueuePairPending, ConnectError> {
        let mut pending = self.prepare(options)?;
        // Where it is called is for the answer.
        pending.endpoint.hello.manager = Some(0);
        Ok(QueuePairPending { meeting: Some(Meeting::at(Rc::clone(point))), ..pending })
    }
}

/// How two queue pairs find each other, in words.
const fn way(manager: Option<u16>) -> &'static str {
    if manager.is_some() { "cm" } else { "oob" }
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
        if peer.role == Role::Answer && peer.initiator_depth > ours.responder_resources {
            return Err(mismatch(
                "READs and atomics served at a time",
                ours.responder_resources.to_string(),
                format!("{} outstanding", peer.initiator_depth),
            ));
        }
        if peer.manager.is_some() != ours.manager.is_some() {
            return Err(mismatch("connect", way(ours.manager).into(), way(peer.manager).into()));
        }
        if peer.role == Role::Answer {
            self.endpoint.warn_without_receives();
        }
        let private = peer.private.clone();
        match (&mut self.meeting, peer.role) {
            (None, Role::Answer) => {
                self.endpoint.enter_rtr(By::Connect, &peer)?;
                self.endpoint.enter_rts(By::Connect, &peer)?;
            }
            (None, Role::Ask) => {
                let shares_memory = self.endpoint.enter_rtr(By::Connect, &peer)?;
                self.endpoint.enter_rts(By::Connect, &peer)?;
                self.endpoint.hello.answers(&peer, shares_memory);
            }
            (Some(meeting), Role::Answer) => meeting.call(&self.endpoint.hello, peer)?,
            (Some(meeting), Role::Ask) => {
                let shares_memory = self.endpoint.leads_by_memory(&peer)?;
                let ours = &mut self.endpoint.hello;
                ours.answers(&peer, shares_memory);
                ours.manager = Some(meeting.port());
                meeting.expect(ours, peer);
            }
        }
        Ok(private)
    }

    fn meet(&mut self) -> Result<bool, ConnectError> {
        match &mut self.meeting {
            None => Ok(true),
            Some(meeting) => meeting.go_on(&mut self.endpoint),
        }
    }

    fn into_endpoint(self: Box<Self>) -> Box<dyn Endpoint> {
        let Self { mut endpoint, meeting } = *self;
        endpoint.meeting = meeting;
        Box::new(endpoint)
    }
}

impl Hello {
    /// Makes an ask the answer to the peer's: with what was chosen.
    fn answers(&mut self, peer: &Self, shares_memory: bool) {
        self.role = Role::Answer;
        self.generation = peer.generation;
        self.mtu = self.mtu.min(peer.mtu);
        self.responder_resources = self.responder_resources.min(peer.initiator_depth);
        self.initiator_depth = self.initiator_depth.min(peer.responder_resources);
        self.path = if shares_memory { PathWish::SharedMemory } else { PathWish::Packets };
    }
}
