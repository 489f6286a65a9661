//! What can be measured: operations, transports, ways to use buffers.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// SEND to a posted receive.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch-and-add, or compare-and-swap.
    Atomic,
}

/// A measurement, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// Messages and bytes per second of SEND
    SendBw,
    /// Half the round trip of SENDs that answer each other
    SendLat,
    /// Messages and bytes per second of WRITE
    WriteBw,
    /// Half the round trip of WRITEs that answer each other, each seen in memory
    WriteLat,
    /// Messages and bytes per second of READ
    ReadBw,
    /// From posting a READ to its completion
    ReadLat,
    /// Atomics per second
    AtomicBw,
    /// From posting an atomic to its completion
    AtomicLat,
}

impl Test {
    pub(crate) const fn op(self) -> Op {
        match self {
            Self::SendBw | Self::SendLat => Op::Send,
            Self::WriteBw | Self::WriteLat => Op::Write,
            Self::ReadBw | Self::ReadLat => Op::Read,
            Self::AtomicBw | Self::AtomicLat => Op::Atomic,
        }
    }

    pub(crate) const fn is_latency(self) -> bool {
        matches!(self, Self::SendLat | Self::WriteLat | Self::ReadLat | Self::AtomicLat)
    }

    /// Whether both ends post requests that answer each other.
    pub(crate) const fn is_ping_pong(self) -> bool {
        matches!(self, Self::SendLat | Self::WriteLat)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SendBw => "send-bw",
            Self::SendLat => "send-lat",
            Self::WriteBw => "write-bw",
            Self::WriteLat => "write-lat",
            Self::ReadBw => "read-bw",
            Self::ReadLat => "read-lat",
            Self::AtomicBw => "atomic-bw",
            Self::AtomicLat => "atomic-lat",
        })
    }
}

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection: SEND and WRITE
    Uc,
    /// Unreliable datagram: SEND
    Ud,
    /// Extended reliable connection: one shared receive queue per lcore
    Xrc,
}

impl Transport {
    /// Whether lost messages are sent again.
    pub(crate) const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Xrc => "xrc",
        })
    }
}

/// What the server connects wrongly, on purpose: each leads to a failure with a verdict of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Misconnect {
    /// Its queue pairs stay in INIT
    Init,
    /// It expects another first PSN than the client sends
    Psn,
    /// It has another path MTU
    Mtu,
    /// Its queue pairs allow no one-sided operation
    AccessQp,
    /// Its memory allows no remote access
    AccessMr,
    /// It has another Q_Key; ud
    Qkey,
}

impl fmt::Display for Misconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Init => "init",
            Self::Psn => "psn",
            Self::Mtu => "mtu",
            Self::AccessQp => "access-qp",
            Self::AccessMr => "access-mr",
            Self::Qkey => "qkey",
        })
    }
}

/// Which buffers messages come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Buffers {
    /// One per queue pair and side, which stays in the cache, as other tools do it
    Warm,
    /// Sixteen per queue pair and side, in turn
    Rotating,
    /// Sixteen in turn; whoever owns the source writes all of it before, whoever gets the bytes reads all of them
    /// after. The target of a WRITE or READ takes no part, so that its half is left out
    App,
}

impl fmt::Display for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Warm => "warm",
            Self::Rotating => "rotating",
            Self::App => "app",
        })
    }
}

/// Which atomic, as perftest names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum AtomicKind {
    /// Add to eight bytes
    #[value(name = "FETCH_AND_ADD", alias = "fetch-add")]
    FetchAdd,
    /// Compare eight bytes and swap them when equal
    #[value(name = "CMP_AND_SWAP", alias = "cas")]
    CompareSwap,
}
