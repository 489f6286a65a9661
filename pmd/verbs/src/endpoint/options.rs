//! What an endpoint of a verbs device is made with.

use pmd_roce::ids::PathMtu;
use pmd_roce::qp::state::Transport;

/// What an endpoint is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointOptions {
    /// RC or UC.
    pub transport: Transport,
    /// Operations, receives apart, that can be in flight.
    pub depth: u32,
    /// Receives that can be posted.
    pub recv_depth: u32,
    /// Completions that can wait; `None`: as many as operations and receives together.
    pub cq_depth: Option<u32>,
    /// Bytes a SEND can carry inline.
    pub inline: u32,
    /// Largest path MTU; `None`: what the wire carries.
    pub mtu: Option<PathMtu>,
    /// READs and atomics that can be in flight, in either direction.
    pub rd_atomic: u8,
    /// Local ACK timeout, 5 bits.
    pub timeout: u8,
    /// Retries without an answer, 3 bits.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 3 bits; 7 is without end.
    pub rnr_retry: u8,
    /// RNR timer code asked of the peer, 5 bits.
    pub min_rnr_timer: u8,
    /// Whether queue pairs meet by the connection manager, where a device has the choice.
    pub managed: bool,
}

impl Default for EndpointOptions {
    /// Retry values as every verbs program starts with: 14, 7, 7, 12.
    fn default() -> Self {
        Self {
            transport: Transport::Rc,
            depth: 64,
            recv_depth: 64,
            cq_depth: None,
            inline: 64,
            mtu: None,
            rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            managed: false,
        }
    }
}
