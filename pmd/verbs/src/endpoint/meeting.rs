//! Where queue pairs of endpoints meet by the connection manager's protocol.
//!
//! Hellos have crossed another channel before, and carry what the manager does not know: whether the ends share memory, and
//! where the accepting one's manager listens. A request names what it is for by numbers of both hellos, so that nobody connects
//! who has not seen them. What comes of the handshake (numbers of queue pairs, PSNs, MTU, READs and atomics, retries) counts.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use pmd_observe::journal::By;
use pmd_roce::cm::{ConnParam, LocalQp, Negotiated, PortSpace};

use super::ConnectError;
use super::options::EndpointOptions;
use super::queue_pair::QueuePairEndpoint;
use crate::cm::{
    CmAgent, ConnectParams, EventChannel, EventKind, Id, IdError, IdNumber, OpenCmError, Request,
};
use crate::connect::Hello;
use crate::context::Context;

/// Names what a request is for.
type Number = [u8; 8];

/// The connection manager of a device, for its endpoints. It belongs to the thread of the device's first lcore.
#[derive(Debug)]
pub struct MeetingPoint {
    channel: EventChannel,
    listener: Id,
    port: u16,
    /// Requests that endpoints wait for.
    awaited: RefCell<HashMap<Number, Option<Id>>>,
    /// What happened to the requests of endpoints.
    told: RefCell<HashMap<IdNumber, VecDeque<EventKind>>>,
    _agent: CmAgent,
}

impl Context {
    /// Opens the device's connection manager for its endpoints.
    ///
    /// # Errors
    /// [`ConnectError::Device`] where this is not the device's first lcore, it has no packets, or its manager is another's.
    pub fn open_meeting_point(&self) -> Result<Rc<MeetingPoint>, ConnectError> {
        let agent = self.open_cm(|_| {}).map_err(|error| match error {
            OpenCmError::NoPackets => refused(
                "the connection manager needs packets: use wire = \"auto\" or \"udp\", or connect = \"oob\"",
            ),
            OpenCmError::Lcore(lcore) => refused(format!(
                "a device's connections are managed on its first lcore, this is number {lcore}: give this one a device of its own, or connect = \"oob\""
            )),
            error => refused(error),
        })?;
        let channel = agent.create_channel().map_err(refused)?;
        let listener = channel.create_id(PortSpace::Tcp);
        listener.bind(SocketAddr::new(self.device().gid().ip(), 0)).map_err(refused)?;
        listener.listen(0).map_err(refused)?;
        let port = listener.view().local.map_or(0, |local| local.port());
        let (awaited, told) = <(RefCell<_>, RefCell<_>)>::default();
        Ok(Rc::new(MeetingPoint { channel, listener, port, awaited, told, _agent: agent }))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a mapping of errors")]
fn refused(error: impl ToString) -> ConnectError {
    ConnectError::Device(error.to_string())
}

impl MeetingPoint {
    /// Where it listens.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Takes in what has happened. Requests that nobody waits for are rejected.
    fn turn(&self) {
        while let Some(mut event) = self.channel.poll() {
            if let EventKind::ConnectRequest(Request::Connection(request)) = event.kind() {
                let number = request.private_data.as_bytes().first_chunk::<8>().copied();
                let mut awaited = self.awaited.borrow_mut();
                let place = number.and_then(|number| awaited.get_mut(&number));
                if let Some(place @ None) = place {
                    *place = event.take_id();
                }
                continue;
            }
            if let Some(told) = self.told.borrow_mut().get_mut(&event.id()) {
                told.push_back(event.kind().clone());
            }
        }
        debug_assert!(self.listener.view().local.is_some());
    }
}

/// How far one endpoint is.
#[derive(Debug)]
enum Stage {
    Apart,
    /// The peer asks.
    Awaited {
        number: Number,
        peer: Box<Hello>,
    },
    /// This side asks.
    Asking {
        id: Id,
        number: Number,
        peer: Box<Hello>,
    },
    /// Connected for as long as this lives.
    Met {
        _held: Id,
    },
}

/// One endpoint's meeting with its peer.
#[derive(Debug)]
pub(crate) struct Meeting {
    point: Rc<MeetingPoint>,
    stage: Stage,
}

impl Meeting {
    pub(super) const fn at(point: Rc<MeetingPoint>) -> Self {
        Self { point, stage: Stage::Apart }
    }

    pub(super) fn port(&self) -> u16 {
        self.point.port()
    }

    /// The peer, whose ask this is, will call.
    pub(super) fn expect(&mut self, ours: &Hello, peer: Hello) {
        let number = number(&peer, ours);
        // Strangers may have filled the room that there is for requests.
        self.point.turn();
        self.point.awaited.borrow_mut().insert(number, None);
        self.stage = Stage::Awaited { number, peer: Box::new(peer) };
    }

    /// Calls the peer, whose answer this is.
    pub(super) fn call(&mut self, ours: &Hello, peer: Hello) -> Result<(), ConnectError> {
        let number = number(ours, &peer);
        let id = self.point.channel.create_id(PortSpace::Tcp);
        self.point.told.borrow_mut().insert(id.number(), VecDeque::new());
        let port = peer.manager.unwrap_or_default();
        let called = id.resolve_addr(SocketAddr::new(peer.gid.ip(), port));
        self.stage = Stage::Asking { id, number, peer: Box::new(peer) };
        called.map_err(not_begun)
    }

    /// Goes on with it. Returns whether the endpoint is connected.
    pub(super) fn go_on(&mut self, endpoint: &mut QueuePairEndpoint) -> Result<bool, ConnectError> {
        self.point.turn();
        match &self.stage {
            Stage::Apart => return Ok(false),
            Stage::Met { .. } => return Ok(true),
            Stage::Awaited { number, peer } => {
                let mut awaited = self.point.awaited.borrow_mut();
                let Some(id) = awaited.get_mut(number).and_then(Option::take) else {
                    return Ok(false);
                };
                let answer = wishes(&endpoint.options, &endpoint.hello, &[]);
                let terms = id.negotiate(&answer).map_err(not_begun)?;
                endpoint.enter_by(&terms, peer)?;
                id.accept(&answer).map_err(not_begun)?;
                awaited.remove(number);
                drop(awaited);
                self.stage = Stage::Met { _held: id };
                return Ok(true);
            }
            Stage::Asking { .. } => {}
        }
        loop {
            let Stage::Asking { id, number, peer } = &self.stage else { return Ok(false) };
            let mut told = self.point.told.borrow_mut();
            let Some(kind) = told.get_mut(&id.number()).and_then(VecDeque::pop_front) else {
                return Ok(false);
            };
            match kind {
                EventKind::AddrResolved => id.resolve_route().map_err(not_begun)?,
                EventKind::RouteResolved => {
                    let ask = wishes(&endpoint.options, &endpoint.hello, number);
                    id.connect(&ask).map_err(not_begun)?;
                }
                EventKind::ConnectResponse(terms, _) => {
                    endpoint.enter_by(&terms, peer)?;
                    id.establish(&[]).map_err(not_begun)?;
                    told.remove(&id.number());
                    drop(told);
                    if let Stage::Asking { id, .. } =
                        std::mem::replace(&mut self.stage, Stage::Apart)
                    {
                        self.stage = Stage::Met { _held: id };
                    }
                    return Ok(true);
                }
                kind if kind.is_failure() => {
                    let text = format!("the connection manager does not connect: {kind}");
                    return Err(ConnectError::Channel(text));
                }
                _ => {}
            }
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        match &self.stage {
            Stage::Awaited { number, .. } => drop(self.point.awaited.borrow_mut().remove(number)),
            Stage::Asking { id, .. } => drop(self.point.told.borrow_mut().remove(&id.number())),
            Stage::Apart | Stage::Met { .. } => {}
        }
    }
}

impl QueuePairEndpoint {
    /// From INIT to RTS, on terms that the connection manager has found.
    fn enter_by(&mut self, terms: &Negotiated, peer: &Hello) -> Result<(), ConnectError> {
        self.hello.psn = terms.sq_psn;
        (self.options.retry_cnt, self.options.rnr_retry) = (terms.retry_cnt, terms.rnr_retry);
        self.options.timeout = terms.timeout;
        let peer = Hello {
            qpn: terms.dest_qpn,
            psn: terms.rq_psn,
            mtu: terms.path_mtu.min(peer.mtu),
            responder_resources: terms.max_rd_atomic,
            ..peer.clone()
        };
        self.enter_rtr(By::Connect, &peer)?;
        self.enter_rts(By::Connect, &peer)
    }
}

/// What a request is for, by what only the two ends have chosen.
fn number(asking: &Hello, answering: &Hello) -> Number {
    let words = [asking.generation, answering.psn.value()].map(u32::to_be_bytes);
    words.concat().try_into().unwrap_or_default()
}

fn wishes<'a>(options: &EndpointOptions, ours: &Hello, data: &'a [u8]) -> ConnectParams<'a> {
    let param = ConnParam {
        responder_resources: options.rd_atomic,
        initiator_depth: options.rd_atomic,
        retry_count: options.retry_cnt,
        rnr_retry_count: options.rnr_retry,
        min_rnr_timer: options.min_rnr_timer,
        ack_timeout: Some(options.timeout),
        ..ConnParam::DEFAULT
    };
    // The manager wants the first PSN that this side expects, which nothing says yet.
    let [a, b, c, ..] = pmd_mem::os_entropy().to_ne_bytes();
    let psn = pmd_roce::ids::Psn::new(u32::from_ne_bytes([a, b, c, 0]));
    let qp = Some(LocalQp { qpn: ours.qpn, psn, srq: false });
    ConnectParams { param, private_data: data, qp, transport: options.transport }
}

#[expect(clippy::needless_pass_by_value, reason = "a mapping of errors")]
fn not_begun(error: IdError) -> ConnectError {
    ConnectError::Channel(format!("the connection manager does not connect: {error}"))
}
