//! What the binaries are told to measure.

use pmd_verbs::WireChoice;

use crate::{Kind, Options};

/// Messages, and what they travel by.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Work {
    /// What a message is.
    pub kind: Kind,
    /// Messages to measure.
    #[arg(short = 'n', long, default_value_t = 1 << 20)]
    pub messages: u64,
    /// Queue pairs.
    #[arg(short, long, default_value_t = 1)]
    pub qps: usize,
    /// Bytes of a message.
    #[arg(short, long, default_value_t = 8)]
    pub size: u32,
    /// Requests that each of several queue pairs is given at a time.
    #[arg(short, long, default_value_t = 1)]
    pub list: usize,
    /// By packets instead of shared memory.
    #[arg(long)]
    pub udp: bool,
}

impl Work {
    /// Two ends for it, with queues of this depth.
    pub const fn options(&self, depth: u32) -> Options {
        let wire = if self.udp { WireChoice::Udp } else { WireChoice::Shm };
        Options { wire, qps: self.qps, depth, size: self.size }
    }
}
