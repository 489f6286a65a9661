//! Where a connection stands (IBTA 1.4, 12.9.7).

use core::fmt;

/// A connection of a [`Cm`](super::Cm); its communication id on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// States of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmState {
    /// Nothing is going on: it failed, was rejected or is over.
    Idle,
    /// Active: the REQ is on its way.
    ReqSent,
    /// Active: the peer asked for more time.
    MraReqRcvd,
    /// Passive: the consumer was told of a REQ.
    ReqRcvd,
    /// Passive: the peer was asked for more time.
    MraReqSent,
    /// Passive: the REP is on its way.
    RepSent,
    /// Passive: the peer asked for more time.
    MraRepRcvd,
    /// Active: the consumer was told of a REP.
    RepRcvd,
    /// Active: the peer was asked for more time.
    MraRepSent,
    /// Both sides can send.
    Established,
    /// The DREQ is on its way.
    DreqSent,
    /// Packets of the connection may still be under way: its queue pair's number must not be used for
    /// another connection between the two.
    Timewait,
}

impl CmState {
    /// All states.
    pub const ALL: [Self; 12] = [
        Self::Idle,
        Self::ReqSent,
        Self::MraReqRcvd,
        Self::ReqRcvd,
        Self::MraReqSent,
        Self::RepSent,
        Self::MraRepRcvd,
        Self::RepRcvd,
        Self::MraRepSent,
        Self::Established,
        Self::DreqSent,
        Self::Timewait,
    ];

    /// The name that the specification uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::ReqSent => "REQ_SENT",
            Self::MraReqRcvd => "MRA_REQ_RCVD",
            Self::ReqRcvd => "REQ_RCVD",
            Self::MraReqSent => "MRA_REQ_SENT",
            Self::RepSent => "REP_SENT",
            Self::MraRepRcvd => "MRA_REP_RCVD",
            Self::RepRcvd => "REP_RCVD",
            Self::MraRepSent => "MRA_REP_SENT",
            Self::Established => "ESTABLISHED",
            Self::DreqSent => "DREQ_SENT",
            Self::Timewait => "TIMEWAIT",
        }
    }
}

impl fmt::Display for CmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
