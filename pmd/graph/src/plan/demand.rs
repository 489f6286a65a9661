//! What a node needs, before it is known where it gets it.

use crate::config::transport::Operation;

/// How many bytes a region takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Bytes(u64),
    /// An equal share of what all others leave of `memory.size`.
    Rest,
}

/// Who may do what to a region from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Only this process.
    Local,
    /// A peer may read.
    RemoteRead,
    /// A peer may read and write.
    RemoteReadWrite,
}

impl Rights {
    /// The word that the plan prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::RemoteRead => "remote-read",
            Self::RemoteReadWrite => "remote-read-write",
        }
    }
}

/// Memory that a node registers: one MR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// What it is for, as the plan prints it; unique within the node.
    pub purpose: &'static str,
    /// How much.
    pub amount: Amount,
    /// Who may reach it.
    pub rights: Rights,
}

/// Queues and operations of an RDMA edge, as its initiator decides them. Work requests and their completions are
/// counted per QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Number of QPs.
    pub qps: u64,
    /// The initiator's queues.
    pub local: Queues,
    /// The responder's queues.
    pub remote: Queues,
    /// What is posted, and why; a transport that lacks one is refused.
    pub operations: Vec<Need>,
}

/// Depths of one QP's queues, in work requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Of the send queue.
    pub send: u64,
    /// Of the receive queue.
    pub receive: u64,
}

impl Queues {
    /// Completions that can be outstanding at once: when a QP fails, every work request completes.
    pub fn completions(self) -> u64 {
        self.send + self.receive
    }
}

/// An operation and what asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The operation.
    pub operation: Operation,
    /// Why it is posted, as in "`verify = true` reads every block back".
    pub reason: &'static str,
}

/// What flows through a node, once all edges are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes of the largest unit that reaches it; 0 for a source.
    pub block: u64,
    /// Units it passed on that later stages may keep at once.
    pub held_downstream: u64,
    /// Receives that its clients in this file need, over all QPs; for a listener also those of one client elsewhere.
    pub receives: u64,
    /// QPs that its clients in this file bring, all together.
    pub connections: u64,
}
