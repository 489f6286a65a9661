//! Messages from one end to the other, every one signalled, as a consumer would send them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pmd_verbs::roce::ids::WrId;
use pmd_verbs::{Data, Imm, Rc, RecvWr, RemoteAddr, Sge, WcStatus, WorkRequest};

use crate::Side;

/// Requests posted as one list, and completions asked for at a time.
pub const BATCH: usize = 32;
/// Turns without a completion before the clock is asked whether something is broken.
const IDLE_TURNS: u32 = 1 << 16;
/// No message takes so long, retries included.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// SEND into a posted receive.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// RDMA WRITE with immediate into a posted receive.
    WriteImm,
    /// Fetch-and-add: eight bytes, whatever the size.
    Atomic,
    /// SEND and WRITE in turn.
    Mixed,
}

impl Kind {
    /// Messages of so many that take a receive.
    pub const fn receives(self, messages: u64) -> u64 {
        match self {
            Self::Send | Self::WriteImm => messages,
            Self::Write | Self::Read | Self::Atomic => 0,
            Self::Mixed => messages / 2,
        }
    }
}

/// The end that posts send requests.
#[derive(Debug)]
pub struct Source<'a> {
    side: &'a Side,
    lists: Vec<WorkRequest<'a, Rc>>,
    per_qp: usize,
    next_qp: usize,
    in_flight: usize,
    limit: usize,
    goal: u64,
    /// Completions so far.
    pub completed: u64,
}

impl<'a> Source<'a> {
    /// For at most `limit` requests in flight; `sge` and `to` are where the message comes from and
    /// goes to. Many queue pairs take turns, a request each; one takes whole lists.
    pub fn new(
        side: &'a Side,
        kind: Kind,
        sge: &'a [Sge; 1],
        to: RemoteAddr,
        limit: usize,
    ) -> Self {
        let request = |nth: usize| {
            let data = Data::Sges(sge);
            let wr = match kind {
                Kind::Send => WorkRequest::send(data),
                Kind::Write => WorkRequest::write(data, to),
                Kind::WriteImm => WorkRequest::write_imm(data, to, Imm([0; 4])),
                Kind::Read => WorkRequest::read(data, to),
                Kind::Atomic => WorkRequest::fetch_add(data, to, 1),
                Kind::Mixed if nth.is_multiple_of(2) => WorkRequest::send(data),
                Kind::Mixed => WorkRequest::write(data, to),
            };
            wr.id(nth as u64).signaled()
        };
        let per_qp = match (side.qps.len(), kind) {
            (1, _) => BATCH,
            (_, Kind::Mixed) => 2,
            _ => 1,
        };
        let lists = (0..BATCH).map(request).collect();
        Self { side, lists, per_qp, next_qp: 0, in_flight: 0, limit, goal: 0, completed: 0 }
    }

    /// Many queue pairs that take turns are given so many requests at a time, a power of two up to [`BATCH`].
    #[must_use]
    pub fn in_lists_of(mut self, list: usize) -> Self {
        if self.side.qps.len() > 1 {
            self.per_qp = self.per_qp.max(list.min(BATCH));
        }
        self
    }

    /// Posts a batch, unless too many requests are in flight. Returns whether it did.
    ///
    /// # Errors
    /// What the queue pair refused.
    pub fn post(&mut self) -> Result<bool> {
        if self.in_flight + BATCH > self.limit {
            return Ok(false);
        }
        for _ in 0..BATCH / self.per_qp {
            let qps = &self.side.qps;
            qps[self.next_qp].post_send_list(&self.lists[..self.per_qp])?;
            self.next_qp = if self.next_qp + 1 == qps.len() { 0 } else { self.next_qp + 1 };
        }
        self.in_flight += BATCH;
        Ok(true)
    }

    /// Takes completions.
    ///
    /// # Errors
    /// Where one is not a success.
    pub fn poll(&mut self) -> Result<()> {
        let mut bad = None;
        let taken = self.side.cq.poll(BATCH, |wc| {
            if wc.status != WcStatus::Success {
                bad = Some(wc);
            }
        });
        self.in_flight -= taken;
        self.completed += taken as u64;
        ensure!(bad.is_none(), "a request failed: {bad:?}");
        Ok(())
    }

    /// Keeps requests in flight until as many have completed as all runs so far asked for, `messages`
    /// in this one, and has `between` done in every turn.
    ///
    /// # Errors
    /// Where a request fails, or nothing completes for far too long.
    pub fn run(&mut self, messages: u64, mut between: impl FnMut() -> Result<()>) -> Result<()> {
        // What completed beyond an earlier goal counts toward this one.
        self.goal += messages;
        let (mut idle, mut since) = (0_u32, None);
        while self.completed < self.goal {
            let before = self.completed;
            self.post()?;
            self.poll()?;
            between()?;
            idle = if self.completed == before { idle + 1 } else { 0 };
            if idle == 0 {
                since = None;
            } else if idle.is_multiple_of(IDLE_TURNS) {
                let since = since.get_or_insert_with(Instant::now);
                ensure!(
                    since.elapsed() < PATIENCE,
                    "{before} of {} messages, then none",
                    self.goal
                );
            }
        }
        Ok(())
    }
}

/// The end that posts receives.
#[derive(Debug)]
pub struct Sink<'a> {
    side: &'a Side,
    sge: &'a [Sge; 1],
    /// Messages so far.
    pub received: u64,
}

impl<'a> Sink<'a> {
    /// Fills the receive queues.
    ///
    /// # Errors
    /// What a queue pair refused.
    pub fn new(side: &'a Side, sge: &'a [Sge; 1], depth: u32) -> Result<Self> {
        for (number, qp) in side.qps.iter().enumerate() {
            for _ in 0..depth {
                qp.post_recv(&RecvWr { wr_id: WrId(number as u64), sges: sge })?;
            }
        }
        Ok(Self { side, sge, received: 0 })
    }

    /// Takes messages and posts each receive again.
    ///
    /// # Errors
    /// Where one is not a success, or cannot be posted again.
    pub fn poll(&mut self) -> Result<()> {
        let (qps, sges) = (&self.side.qps, self.sge);
        let mut outcome = Ok(());
        let taken = self.side.cq.poll(BATCH, |wc| {
            if wc.status != WcStatus::Success {
                outcome = Err(anyhow::anyhow!("a receive failed: {wc:?}"));
                return;
            }
            // Its name is its queue pair's place.
            let Some(qp) = usize::try_from(wc.wr_id.0).ok().and_then(|at| qps.get(at)) else {
                return;
            };
            if let Err(error) = qp.post_recv(&RecvWr { wr_id: wc.wr_id, sges }) {
                outcome = Err(error.into());
            }
        });
        self.received += taken as u64;
        outcome
    }
}

/// Runs both ends on the calling thread, in turn, until `messages` more have completed.
///
/// # Errors
/// As [`Source::run`].
pub fn stream(source: &mut Source<'_>, sink: &mut Sink<'_>, messages: u64) -> Result<()> {
    source.run(messages, || sink.poll())
}
