//! What an engine is made with, and what its objects look like from outside.

use crate::ids::{CqId, Gid, PathMtu, PdId, XrcdId};
use crate::limits::{ACK_REQUEST_EVERY, WINDOW_PACKETS};
use crate::qp::attr::{QpAttr, QpInit};

/// What an engine is made with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The process's part of every QPN, below 2^7 and not 0.
    pub process: u32,
    /// The lcore's part of every QPN, below 2^3.
    pub lcore: u32,
    /// Source addresses of port 1; address vectors refer to them by index.
    pub gids: Vec<Gid>,
    /// Those of port 2; empty where the device has one port.
    pub second_port: Vec<Gid>,
    /// Randomness of the caller: where the generations of QPNs start, so that a process hardly
    /// takes on the numbers of one that died before it.
    pub seed: u64,
    /// Whether connections can have an alternate path to migrate to.
    pub auto_path_mig: bool,
    /// Queue pairs to make room for.
    pub max_qps: usize,
    /// Shared receive queues to make room for.
    pub max_srqs: usize,
    /// Address handles to make room for.
    pub max_ahs: usize,
    /// Unacknowledged packets per queue pair.
    pub window_packets: u32,
    /// Packets of a message after which an acknowledgement is asked for, besides its last.
    pub ack_request_every: u32,
    /// Largest payload that the port's packets carry: its active MTU.
    pub mtu: PathMtu,
    /// The UDP source port of every frame, where the wire has only one; the ICRC covers it. `None`:
    /// each queue pair has its own, for the sake of switches that spread flows.
    pub source_port: Option<u16>,
}

impl EngineConfig {
    /// An engine at these addresses, with an MTU for Ethernet's 1500 bytes and small tables.
    pub const fn new(process: u32, lcore: u32, gids: Vec<Gid>) -> Self {
        Self {
            process,
            lcore,
            gids,
            second_port: Vec::new(),
            seed: 0,
            auto_path_mig: false,
            max_qps: 64,
            max_srqs: 8,
            max_ahs: 64,
            window_packets: WINDOW_PACKETS,
            ack_request_every: ACK_REQUEST_EVERY,
            mtu: PathMtu::B1024,
            source_port: None,
        }
    }
}

/// Attributes of a shared receive queue, as `struct ibv_srq_init_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Protection domain.
    pub pd: PdId,
    /// Requests that can be outstanding.
    pub max_wr: u32,
    /// Elements per request.
    pub max_sge: u32,
    /// XRC domain and completion queue, when XRC targets deliver here.
    pub xrc: Option<(XrcdId, CqId)>,
}

/// State of a shared receive queue as `query` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqView {
    /// Requests in it.
    pub len: u32,
    /// Requests posted since it was made, modulo 2^32.
    pub posted: u32,
    /// Requests that have room in it.
    pub depth: u32,
    /// The armed limit; 0: disarmed.
    pub limit: u32,
    /// Of the requests, those that are kept for newcomers.
    pub reserve: u32,
    /// Queue pairs made with it.
    pub users: u32,
    /// Messages that found it dry.
    pub dry: u64,
    /// It failed, and gives no receive any more.
    pub failed: bool,
}

/// State of a queue pair as `query` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpView {
    /// What it was created with, caps as granted.
    pub init: QpInit,
    /// Attributes; `attr.state` is the current state.
    pub attr: QpAttr,
    /// Send requests not yet completed.
    pub send_outstanding: u32,
    /// Send requests posted since it was created or reset, modulo 2^32.
    pub send_posted: u32,
    /// Receive requests not yet completed; 0 with a shared queue.
    pub recv_outstanding: u32,
    /// Receive requests posted since it was made or reset, modulo 2^32; 0 with a shared queue.
    pub recv_posted: u32,
    /// Bytes of memory it takes, queues included.
    pub memory_bytes: usize,
}
