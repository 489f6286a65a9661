//! The end that begins.

use std::time::Duration;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::{LocalKey, Op, Settled, Token};

use super::{PROTOCOL, QUEUES};
use crate::edge::{Change, Dial, Dialing, Line};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::{LOST_AFTER, LOST_IN_A_ROW, PINGPONG_BUFFERS};
use crate::node::pattern::Pattern;
use crate::node::{Node, NodeContext, Record, Turn};

/// Marks the token of a message; receives have none.
const PING: u64 = 1 << 32;

struct Initiator {
    node: String,
    size: u32,
    /// Round trips that are left.
    left: u64,
    messages: Extent,
    stage: Stage,
    /// How long an answer may take, where nothing else tells that it was lost.
    patience: Option<Duration>,
    stopping: bool,
}

enum Stage {
    Dialing(Box<Dial>),
    Up(Box<Up>),
    Over,
}

struct Up {
    line: Line,
    key: LocalKey,
    /// Number of the message that is under way, from 1.
    sequence: u64,
    /// When it was sent; `None` while there is none.
    sent: Option<u64>,
    lost_in_a_row: u32,
    settled: Vec<Settled>,
}

pub(super) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
    let settings = cx.settings();
    let dial = cx.dials(PROTOCOL, QUEUES)?.pop();
    let dial = dial.ok_or_else(|| Failure::local(format!("`{}` has no peer", cx.name())))?;
    let size = settings.size("size").get();
    let iters = settings.count("iters");
    cx.expect(size.saturating_mul(iters));
    Ok(Box::new(Initiator {
        node: cx.name().to_owned(),
        size: u32::try_from(size).unwrap_or(u32::MAX),
        left: iters,
        messages: cx.extent("messages"),
        stage: Stage::Dialing(Box::new(dial)),
        patience: (!cx.is_reliable()).then_some(LOST_AFTER),
        stopping: false,
    }))
}

impl Initiator {
    /// Where the receive of this number lies in the messages; those to send lie behind all receives.
    fn place(&self, number: u64) -> u64 {
        number * u64::from(self.size)
    }

    fn connect(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let (size, messages) = (self.size, self.messages.clone());
        let Stage::Dialing(dial) = &mut self.stage else { return Ok(0) };
        match dial.poll(now)? {
            Dialing::Waiting => Ok(0),
            Dialing::Reached(endpoint) => {
                let key = endpoint.register(messages.region())?;
                for number in 0..u64::from(PINGPONG_BUFFERS) {
                    let into = messages.local(key, number * u64::from(size), size);
                    endpoint.submit(Op::Recv { into }, Token(number))?;
                }
                dial.ask(&size.to_le_bytes())?;
                Ok(1)
            }
            Dialing::Connected(_, mut line) => {
                record.path(line.path());
                let key = line.endpoint().register(self.messages.region())?;
                let caps = line.caps();
                let settled = Vec::with_capacity((caps.depth + caps.recv_depth) as usize);
                let up = Up { line, key, sequence: 0, sent: None, lost_in_a_row: 0, settled };
                self.stage = Stage::Up(Box::new(up));
                Ok(1)
            }
        }
    }

    /// Sends the next message, if none is under way.
    fn ping(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        let from = self.place(u64::from(PINGPONG_BUFFERS));
        let Stage::Up(up) = &mut self.stage else { return Ok(()) };
        if up.sent.is_some() || self.left == 0 || self.stopping {
            return Ok(());
        }
        // Every message differs from the one before, in all its bytes.
        let mut head = [0; 64];
        let head = &mut head[..64.min(self.size as usize)];
        Pattern { seed: up.sequence + 1 }.fill(0, head);
        self.messages.write_at(from, head)?;
        let local = self.messages.local(up.key, from, self.size);
        let token = Token(PING | (up.sequence & 0xffff_ffff));
        let whole = head.len() == self.size as usize;
        let sent = if whole && up.line.caps().inline >= self.size {
            up.line.submit(now, Op::SendInline { bytes: head, imm: None }, token)?
        } else {
            up.line.submit(now, Op::Send { from: local, imm: None }, token)?
        };
        if sent {
            up.sequence += 1;
            up.sent = Some(now);
            record.begin(now);
        }
        Ok(())
    }

    /// Hears what has become of a connection that broke. A message without an answer is sent again: who answers it twice does
    /// no harm.
    fn hear(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        while let Stage::Up(up) = &mut self.stage
            && let Some(change) = up.line.change()
        {
            match change {
                Change::Broken => {}
                Change::Renewed => {
                    for number in 0..u64::from(PINGPONG_BUFFERS) {
                        let at = number * u64::from(self.size);
                        let into = self.messages.local(up.key, at, self.size);
                        up.line.submit(now, Op::Recv { into }, Token(number))?;
                    }
                }
                Change::Resumed { .. } => {
                    if up.sent.take().is_some() {
                        up.sequence -= 1;
                    }
                }
                Change::Recovered { took_ns } => record.recovered(took_ns),
                Change::PeerGone => self.redial(),
            }
        }
        Ok(())
    }

    fn redial(&mut self) {
        if let Stage::Up(up) = std::mem::replace(&mut self.stage, Stage::Over)
            && let Some(dial) = up.line.redial()
        {
            self.stage = Stage::Dialing(Box::new(dial));
        }
    }

    /// A message came back into the receive of this number.
    fn pong(
        &mut self,
        now: u64,
        number: u64,
        len: u32,
        record: &mut Record,
    ) -> Result<(), Failure> {
        let (at, from) = (self.place(number), self.place(u64::from(PINGPONG_BUFFERS)));
        let size = u64::from(self.size);
        let equal =
            len == self.size && self.messages.mismatch(at, &self.messages, from, size)?.is_none();
        let (messages, patience) = (&self.messages, self.patience);
        let Stage::Up(up) = &mut self.stage else { return Ok(()) };
        let into = messages.local(up.key, at, self.size);
        up.line.submit(now, Op::Recv { into }, Token(number))?;
        let Some(sent) = up.sent.filter(|_| equal) else {
            // Late, after it was taken for lost: on a reliable transport nothing is.
            if patience.is_some() {
                return Ok(());
            }
            let summary = format!("`{}`: message {} came back different", self.node, up.sequence);
            return Err(Failure::new(Code::DataMismatch, Owner::Remote, summary)
                .because(format!("sent back by {}", up.line.peer())));
        };
        up.sent = None;
        up.lost_in_a_row = 0;
        self.left -= 1;
        record.latency(now.saturating_sub(sent));
        record.message(now, size);
        record.verified(size);
        Ok(())
    }

    fn look_at_the_time(&mut self, now: u64, record: &mut Record) -> Result<(), Failure> {
        let Stage::Up(up) = &mut self.stage else { return Ok(()) };
        let Some((patience, sent)) = self.patience.zip(up.sent) else { return Ok(()) };
        if u128::from(now.saturating_sub(sent)) < patience.as_nanos() {
            return Ok(());
        }
        record.error();
        up.sent = None;
        up.lost_in_a_row += 1;
        if up.lost_in_a_row < LOST_IN_A_ROW {
            return Ok(());
        }
        let summary = format!("{} sent none of {LOST_IN_A_ROW} messages back", up.line.peer());
        Err(Failure::new(Code::LinkDead, Owner::Fabric, summary)
            .because("an unreliable transport has no acknowledgements"))
    }

    fn turn(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = self.connect(now, record)?;
        if let Stage::Up(up) = &mut self.stage {
            let mut settled = std::mem::take(&mut up.settled);
            work += up.line.poll(now, &mut settled)?;
            for settled in settled.iter().filter(|settled| settled.token.0 < PING) {
                self.pong(now, settled.token.0, settled.len, record)?;
            }
            settled.clear();
            if let Stage::Up(up) = &mut self.stage {
                up.settled = settled;
            }
            self.hear(now, record)?;
            self.look_at_the_time(now, record)?;
            self.ping(now, record)?;
        }
        match &mut self.stage {
            Stage::Up(up) => up.line.doorbell(),
            Stage::Dialing(_) | Stage::Over => {}
        }
        let idle = match &self.stage {
            Stage::Up(up) => up.sent.is_none() && (self.left == 0 || self.stopping),
            Stage::Dialing(_) => self.stopping,
            Stage::Over => true,
        };
        if !idle {
            return Ok(Turn::Worked(work));
        }
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Up(up) => up.line.leave(),
            // Told to stop before it was connected.
            Stage::Dialing(dial) => {
                record.error();
                return Err(dial.leave());
            }
            Stage::Over => {}
        }
        Ok(Turn::Done)
    }
}

impl Node for Initiator {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let turn = self.turn(now, record);
        if let (Err(failure), Stage::Up(up)) = (&turn, &mut self.stage) {
            record.error();
            up.line.abort(&failure.verdict);
        }
        turn
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    fn next_timeout(&self) -> Option<u64> {
        match &self.stage {
            Stage::Dialing(dial) => dial.next_timeout(),
            Stage::Up(up) => {
                let lost = self.patience.zip(up.sent).map(|(patience, sent)| {
                    sent.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX))
                });
                lost.into_iter().chain(up.line.next_timeout()).min()
            }
            Stage::Over => None,
        }
    }
}
