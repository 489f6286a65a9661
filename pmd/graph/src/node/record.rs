//! What a node counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pmd_observe::Histogram;

/// Counts of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages, or blocks, that it dealt with.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that it compared and found equal.
    pub verified_bytes: u64,
    /// What went wrong.
    pub errors: u64,
}

/// Connections of a node that broke and came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recoveries {
    pub(crate) count: u64,
    /// From the failure until something was done over the connection again, in nanoseconds: the last, and the longest.
    pub(crate) last_ns: u64,
    pub(crate) max_ns: u64,
}

/// The counts as any thread may read them while the node runs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Live {
    messages: AtomicU64,
    bytes: AtomicU64,
    verified_bytes: AtomicU64,
    errors: AtomicU64,
    expected_bytes: AtomicU64,
}

impl Live {
    /// How many bytes there will be.
    pub(crate) fn expect(&self, bytes: u64) {
        self.expected_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Shows these counts to whoever reads. For the one thread that counts.
    pub fn show(&self, counts: &Counts) {
        let store = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        store(&self.messages, counts.messages);
        store(&self.bytes, counts.bytes);
        store(&self.verified_bytes, counts.verified_bytes);
        store(&self.errors, counts.errors);
    }

    /// The counts, each exact, and the bytes that the node expects to move; 0 when it does not know.
    pub fn read(&self) -> (Counts, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = Counts {
            messages: load(&self.messages),
            bytes: load(&self.bytes),
            verified_bytes: load(&self.verified_bytes),
            errors: load(&self.errors),
        };
        (counts, load(&self.expected_bytes))
    }
}

/// What a node counts, for the report and for whoever watches. Written by its lcore alone; nothing here allocates, locks
/// or waits.
#[derive(Debug)]
pub struct Record {
    pub(crate) counts: Counts,
    pub(crate) latency: Histogram,
    pub(crate) began: Option<u64>,
    pub(crate) last: u64,
    pub(crate) path: Option<&'static str>,
    pub(crate) recoveries: Recoveries,
    /// Stored bytes that a fault has changed: there are as many as were asked for.
    pub(crate) flipped: Vec<u64>,
    live: Arc<Live>,
}

impl Record {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        Self {
            counts: Counts::default(),
            latency: Histogram::new(),
            began: None,
            last: 0,
            path: None,
            recoveries: Recoveries::default(),
            flipped: Vec::new(),
            live,
        }
    }

    /// Work begins: rates count from the first call on.
    pub fn begin(&mut self, now: u64) {
        self.began.get_or_insert(now);
    }

    /// One message of `bytes` was dealt with.
    pub fn message(&mut self, now: u64, bytes: u64) {
        self.begin(now);
        self.last = now;
        self.counts.messages += 1;
        self.counts.bytes += bytes;
    }

    /// So many bytes were compared with what they should be, and equal it.
    pub fn verified(&mut self, bytes: u64) {
        self.counts.verified_bytes += bytes;
    }

    /// Something went wrong that the node survives.
    pub fn error(&mut self) {
        self.counts.errors += 1;
    }

    /// How long something took, in nanoseconds.
    pub fn latency(&mut self, ns: u64) {
        self.latency.record(ns);
    }

    /// A connection came back, so long after it broke: [`Change::Recovered`](crate::edge::Change::Recovered).
    pub fn recovered(&mut self, took_ns: u64) {
        let Recoveries { count, max_ns, .. } = self.recoveries;
        self.recoveries =
            Recoveries { count: count + 1, last_ns: took_ns, max_ns: max_ns.max(took_ns) };
    }

    /// The stored byte of this offset was changed on purpose.
    pub(crate) fn flipped(&mut self, offset: u64) {
        self.flipped.push(offset);
    }

    /// How its bytes reach the peer: as [`Endpoint::path`](pmd_verbs::endpoint::Endpoint::path) says.
    pub fn path(&mut self, path: &'static str) {
        self.path = match self.path {
            Some(known) if known != path => Some("mixed"),
            _ => Some(path),
        };
    }

    /// Shows the counts to other threads.
    pub(crate) fn publish(&self) {
        self.live.show(&self.counts);
    }
}
