//! What a manager is made with, and what a consumer asks it for.

use super::error::AnswerError;
use super::message::SidrStatus;
use super::service::ServiceId;
use super::span;
use crate::ids::{Gid, PathMtu, Psn, Qpn};
use crate::limits::MAX_RD_ATOMIC;
use crate::qp::state::Transport;

/// What a [`Cm`](super::Cm) is made with.
#[derive(Clone, Copy, Debug)]
pub struct CmConfig {
    /// Tells this adapter from all others that its peers know.
    pub guid: u64,
    /// Randomness of the caller: communication ids of one run mean nothing in the next.
    pub seed: u64,
    /// Largest path MTU that this side agrees to.
    pub mtu: PathMtu,
    /// How long each side may take to answer a message, a code of 5 bits.
    pub response_timeout: u8,
    /// How often a message is sent again, 4 bits.
    pub max_retries: u8,
    /// How long a packet is under way at most, a code of 5 bits.
    pub packet_lifetime: u8,
    /// How long this adapter takes to acknowledge, a code of 5 bits.
    pub ack_delay: u8,
    /// Connections to make room for, those in timewait included.
    pub connections: usize,
    /// Lookups to make room for, on each side.
    pub lookups: usize,
}

impl CmConfig {
    /// Times and retries as Linux has them.
    pub const fn new(guid: u64, seed: u64) -> Self {
        Self {
            guid,
            seed,
            mtu: PathMtu::B1024,
            response_timeout: 20,
            max_retries: 15,
            packet_lifetime: 16,
            ack_delay: 15,
            connections: 1024,
            lookups: 256,
        }
    }
}

/// How the messages of a connection travel, and its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// This side's address.
    pub source: Gid,
    /// The peer's.
    pub destination: Gid,
    /// Flow label, 20 bits; 0 in a request: derived from its ports, as Linux does.
    pub flow_label: u32,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
}

impl Route {
    /// Between two addresses, with what Linux uses for the rest.
    pub const fn between(source: Gid, destination: Gid) -> Self {
        Self { source, destination, flow_label: 0, traffic_class: 0, hop_limit: 64 }
    }

    /// What is wrong with it.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let Self { source, destination, .. } = *self;
        let is_one = |gid: Gid| gid != Gid::default() && !gid.is_multicast();
        if !is_one(source) || !is_one(destination) {
            return Some("source and destination must be addresses of one port each");
        }
        (source.is_ipv4() != destination.is_ipv4())
            .then_some("source and destination must be of one family, IPv4 or IPv6")
    }
}

/// The queue pair of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalQp {
    /// Its number.
    pub qpn: Qpn,
    /// First PSN that it expects; random, so that packets of an earlier connection do not fit.
    pub psn: Psn,
    /// It takes receives from a shared queue.
    pub srq: bool,
}

/// What a connection shall be like, as `struct rdma_conn_param`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// READs and atomics of the peer that are served at a time, at most; the peer may want fewer.
    pub responder_resources: u8,
    /// READs and atomics outstanding at a time, at most; the peer may serve fewer.
    pub initiator_depth: u8,
    /// Whether credits in acknowledgements are heeded.
    pub flow_control: bool,
    /// Retries of the queue pairs of both sides, 3 bits; that of the active side counts.
    pub retry_count: u8,
    /// RNR retries of the peer's queue pair, 3 bits; 7 is without end.
    pub rnr_retry_count: u8,
    /// How long this side has senders wait that find no receive, a code of 5 bits. 0 would be 655 ms.
    pub min_rnr_timer: u8,
    /// Local ACK timeout, a code of 5 bits; `None`: as follows from the path.
    pub ack_timeout: Option<u8>,
}

impl ConnParam {
    /// 16 READs and atomics each way, 7 retries of both kinds, and 0.64 ms for who finds no receive.
    pub const DEFAULT: Self = Self {
        responder_resources: 16,
        initiator_depth: 16,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        min_rnr_timer: 12,
        ack_timeout: None,
    };

    /// The first field that is out of its range.
    pub(super) fn fault(&self) -> Option<(&'static str, u8, &'static str)> {
        let three = "a field of 3 bits: at most 7";
        let five = "a field of 5 bits: at most 31";
        let resources = "at most 128 READs and atomics are served at a time";
        let fields = [
            ("responder_resources", self.responder_resources, MAX_RD_ATOMIC, resources),
            ("initiator_depth", self.initiator_depth, MAX_RD_ATOMIC, resources),
            ("retry_count", self.retry_count, 7, three),
            ("rnr_retry_count", self.rnr_retry_count, 7, three),
            ("min_rnr_timer", self.min_rnr_timer, span::BITS, five),
            ("ack_timeout", self.ack_timeout.unwrap_or_default(), span::BITS, five),
        ];
        let wrong = fields.into_iter().find(|(_, value, max, _)| value > max);
        wrong.map(|(field, value, _, need)| (field, value, need))
    }

    pub(super) fn check(&self) -> Result<(), AnswerError> {
        match self.fault() {
            Some((field, value, need)) => Err(AnswerError::Value { field, value, need }),
            None => Ok(()),
        }
    }
}

impl Default for ConnParam {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A connection to ask for.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// Who is asked.
    pub service: ServiceId,
    /// This side's port, as the peer shall see it; not on [`Ib`](super::PortSpace::Ib).
    pub source_port: u16,
    /// The way there.
    pub route: Route,
    /// Path MTU; `None`: the largest that the manager agrees to.
    pub mtu: Option<PathMtu>,
    /// RC or UC.
    pub transport: Transport,
    /// This side's queue pair.
    pub qp: LocalQp,
    /// What it shall be like.
    pub param: ConnParam,
    /// For the peer's consumer.
    pub private_data: &'a [u8],
}

/// An answer to a request for a connection.
#[derive(Clone, Copy, Debug)]
pub struct Accept<'a> {
    /// This side's queue pair.
    pub qp: LocalQp,
    /// What it shall be like, as far as the peer offers it.
    pub param: ConnParam,
    /// For the peer's consumer.
    pub private_data: &'a [u8],
}

/// A datagram service to look up.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// Who is asked.
    pub service: ServiceId,
    /// This side's port, as the peer shall see it.
    pub source_port: u16,
    /// The way there.
    pub route: Route,
    /// For the peer's consumer.
    pub private_data: &'a [u8],
}

/// An answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub enum LookupAnswer<'a> {
    /// Here it is.
    Found {
        /// The queue pair of the service.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: u32,
        /// For the peer's consumer.
        private_data: &'a [u8],
    },
    /// It is not to be had.
    Refused {
        /// Why; not [`SidrStatus::SUCCESS`].
        status: SidrStatus,
        /// For the peer's consumer.
        private_data: &'a [u8],
    },
}
