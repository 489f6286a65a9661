//! A host: one engine and what belongs to it.

use core::time::Duration;
use std::collections::VecDeque;

use pmd_record::Recorded;
use pmd_roce::cm::Cm;
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Gid, Instant};

use crate::cq::CqTable;
use crate::network::Arrival;

/// Names a host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub(crate) usize);

impl HostId {
    /// Position in the order in which hosts were added.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// One engine and what belongs to it, but for memory and links, which peers reach as well.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) gid: Gid,
    pub(crate) engine: Recorded,
    /// On queue pair 1, where that is open.
    pub(crate) cm: Option<Box<Cm>>,
    pub(crate) cqs: CqTable,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// Frames that wait for the next turn, and when they arrived.
    pub(crate) ingress: VecDeque<(Instant, Arrival)>,
    /// The longest that one waited.
    pub(crate) longest_wait: Duration,
    pub(crate) lost_at_ingress: u64,
    /// The earliest turn on the agenda; later ones there are stale.
    pub(crate) next_turn: Option<Instant>,
    /// When its last turn is over.
    pub(crate) free_at: Instant,
    pub(crate) paused_until: Instant,
    pub(crate) alive: bool,
    pub(crate) idle_turns: u32,
}
