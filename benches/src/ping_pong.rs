//! One message at a time: each end answers the other's.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use arrayvec::ArrayVec;
use pmd_verbs::roce::ids::{Instant, WrId};
use pmd_verbs::{Completion, Data, Rc, RecvWr, RemoteAddr, Sge, WcOpcode, WcStatus, WorkRequest};

use crate::{BATCH, Kind, Side};

/// Receives that are posted again as one list.
const REPOST: u32 = 16;
/// Receives of an end.
const RECEIVES: u32 = 2 * REPOST;
/// Looks at memory between two turns.
const LOOKS: u32 = 256;
/// Looks into the ring between two turns.
const RING_LOOKS: u32 = 16;
/// Turns without a message after which something is broken.
const TURNS: u32 = 1 << 20;

/// One end: it is driven by a loop that reads the clock now and then only, as those of `spinwire perf`
/// are.
#[derive(Debug)]
pub struct Player<'a> {
    side: &'a Side,
    request: WorkRequest<'a, Rc>,
    receives: [RecvWr<'a>; REPOST as usize],
    owed: u32,
    now: Instant,
    /// WRITEs carry numbers: what is written next, and what the peer writes next.
    numbers: [u64; 2],
    has_come: Option<&'a AtomicU64>,
}

impl<'a> Player<'a> {
    /// Sends from `from` and receives into `into`; a WRITE goes to `to`.
    ///
    /// # Errors
    /// When a receive is refused, or this kind of message needs no answer.
    pub fn new(
        side: &'a Side,
        kind: Kind,
        from: &'a [Sge; 1],
        into: &'a [Sge; 1],
        to: RemoteAddr,
    ) -> Result<Self> {
        let data = Data::Sges(from);
        let request = match kind {
            Kind::Send => WorkRequest::send(data),
            Kind::Write => WorkRequest::write(data, to),
            other => anyhow::bail!("{other:?} is no ping-pong: take send or write"),
        };
        side.cx.drive();
        let receive = RecvWr { wr_id: WrId(1), sges: into };
        for _ in 0..RECEIVES {
            side.qps[0].post_recv(&receive)?;
        }
        let now = side.cx.device().now();
        side.cx.progress(now);
        let receives = [receive; REPOST as usize];
        let has_come = match kind {
            Kind::Write => Some(side.region.atomic_u64(side.region.len() / 2)?),
            _ => None,
        };
        let request = request.id(0).signaled();
        Ok(Self { side, request, receives, owed: 0, now, numbers: [1; 2], has_come })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// What the queue pair refused.
    #[inline]
    pub fn send(&mut self) -> Result<()> {
        if self.has_come.is_some() {
            self.side.region.write_at(0, &self.numbers[0].to_ne_bytes())?;
            self.numbers[0] += 1;
        }
        self.side.qps[0].post_send(&self.request)?;
        self.side.cx.transmit(self.now);
        Ok(())
    }

    /// Turns the device until a message has come.
    ///
    /// # Errors
    /// Where a request failed, or none comes.
    #[inline]
    pub fn receive(&mut self) -> Result<()> {
        for _ in 0..TURNS {
            self.side.cx.receive(self.now);
            if self.take()? {
                return Ok(());
            }
            self.side.cx.transmit(self.now);
        }
        anyhow::bail!("no message in {TURNS} turns");
    }

    /// Looks whether a message has come, and gives the device a turn where none has.
    ///
    /// # Errors
    /// Where a request failed.
    #[inline]
    pub fn look(&mut self) -> Result<bool> {
        let Some(word) = self.has_come else {
            // There is nothing to be sent before something has come.
            let mut looks = 0..RING_LOOKS;
            while looks.next().is_some() && self.side.cx.receive(self.now) == 0 {}
            let has_come = self.take()?;
            if !has_come {
                self.side.cx.transmit(self.now);
            }
            return Ok(has_come);
        };
        // Shared memory shows it without any work of this end.
        let has_come = (0..LOOKS).any(|_| word.load(Ordering::Acquire) == self.numbers[1]);
        if has_come {
            self.numbers[1] += 1;
            // Answers may come so fast that there never is a turn without one.
            if self.numbers[1].is_multiple_of(u64::from(REPOST)) {
                self.take()?;
            }
        } else {
            self.turn()?;
        }
        Ok(has_come)
    }

    /// Takes completions; whether one was a message.
    #[inline]
    fn take(&mut self) -> Result<bool> {
        let mut batch = ArrayVec::<Completion, BATCH>::new();
        self.side.cq.poll_batch(&mut batch);
        let mut has_come = false;
        for completion in &batch {
            ensure!(completion.status == WcStatus::Success, "a request failed: {completion:?}");
            if completion.opcode == WcOpcode::Recv {
                has_come = true;
                self.owed += 1;
            }
        }
        if self.owed == REPOST {
            self.owed = 0;
            self.side.qps[0].post_recv_list(&self.receives)?;
        }
        Ok(has_come)
    }

    /// A turn after a WRITE, which its target sees in its memory alone.
    ///
    /// # Errors
    /// Where a request failed.
    #[inline]
    pub fn turn(&mut self) -> Result<()> {
        self.side.cx.receive(self.now);
        self.take()?;
        self.side.cx.transmit(self.now);
        Ok(())
    }
}

/// Runs both ends on the calling thread: `messages` of them, half from either end.
///
/// # Errors
/// As [`Player::receive`].
pub fn rally(players: &mut [Player<'_>; 2], kind: Kind, messages: u64) -> Result<()> {
    let [one, two] = players;
    for _ in 0..messages / 2 {
        pass(one, two, kind)?;
        pass(two, one, kind)?;
    }
    Ok(())
}

#[inline]
fn pass(from: &mut Player<'_>, to: &mut Player<'_>, kind: Kind) -> Result<()> {
    from.send()?;
    // As where each has a core: whoever sends looks again before the answer can be there.
    from.turn()?;
    if kind == Kind::Write { Ok(()) } else { to.receive() }
}
