//! `block-load`: reads and writes the blocks of a target, as many at once as it is told to, and measures.

mod lane;
mod stamp;
mod workload;

use std::time::Duration;

use pmd_observe::{Code, Owner};

use super::block_client::{message_bytes, stride};
use super::{Node, NodeContext, Record, Turn};
use crate::block::{Open, Opened, PROTOCOL, Post};
use crate::config::schema::Settings;
use crate::edge::{Desertion, Dial, Dialing, Line, milliseconds};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::LOAD_BLOCKS_MAX;
use crate::node::block_client::queues;
use lane::{Lane, Part, Pending, Shared};
use stamp::Stamps;
use workload::{Order, Phase, Wish, Workload};

pub(crate) struct BlockLoad {
    name: String,
    block: u64,
    /// Bytes of the target that it works on; `None`: all that it grants.
    span: Option<u64>,
    wish: Wish,
    duration: Option<Duration>,
    /// When the work is to end.
    deadline: Option<u64>,
    lanes: Vec<Way>,
    /// What every connection asks for.
    open: Open,
    /// Once every connection is made.
    workload: Option<Workload>,
    stamps: Option<Stamps>,
    /// Told to stop: what is in flight ends, nothing begins.
    stopping: bool,
    desertion: Desertion,
}

/// A connection, made or not.
enum Way {
    Dialing(Box<Dialed>),
    Up(Box<Lane>),
    Over,
}

/// A connection being made.
struct Dialed {
    dial: Dial,
    part: Part,
    /// What was asked over the connection before.
    pending: Option<Pending>,
}

impl BlockLoad {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let settings = cx.settings();
        let (block, depth) = (settings.size("block").get(), settings.count("depth"));
        let width = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let dials = cx.dials(PROTOCOL, queues(depth))?;
        let keep_alive = settings.time("keep_alive");
        let request_timeout = settings.time("request_timeout");
        let verify = settings.flag("verify");
        let span = settings.size_opt("span").map(|span| span.get());
        let open = Open {
            session: pmd_mem::os_entropy(),
            bytes: span.unwrap_or(0),
            connections: u16::try_from(dials.len()).unwrap_or(u16::MAX),
            depth: width(depth),
            stride: width(stride(block)),
            keep_alive_ms: milliseconds(keep_alive),
            held: None,
            memory: Vec::new(),
        };
        let (messages, blocks) = (cx.extent("messages"), cx.extent("blocks"));
        let lane = |(index, dial): (usize, Dial)| {
            let share = |extent: &Extent, bytes: u64| {
                let short = || Failure::local(format!("`{}` has too little memory", cx.name()));
                extent.part(index as u64 * bytes, bytes).ok_or_else(short)
            };
            let part = Part {
                node: cx.name().to_owned(),
                keep_alive,
                request_timeout,
                verify,
                post: Post::new(share(&messages, message_bytes(depth))?),
                blocks: share(&blocks, depth * stride(block))?,
                stride: stride(block),
                block: width(block),
            };
            Ok(Way::Dialing(Box::new(Dialed { dial, part, pending: None })))
        };
        let lanes = dials.into_iter().enumerate().map(lane).collect::<Result<_, Failure>>()?;
        let (wish, duration) = (wish(settings), settings.time_opt("duration"));
        if let (Some(count), None) = (wish.count, duration) {
            cx.expect(count.saturating_mul(block));
        }
        Ok(Box::new(Self {
            name: cx.name().to_owned(),
            block,
            span,
            wish,
            duration,
            deadline: None,
            lanes,
            open,
            workload: None,
            stamps: wish.verify.then(|| Stamps::new(wish.seed, width(block))),
            stopping: false,
            desertion: Desertion::default(),
        }))
    }

    /// Goes on with connecting. Returns how much happened.
    fn connect(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut work = 0;
        for way in &mut self.lanes {
            let Way::Dialing(dialed) = way else { continue };
            let Dialed { dial, part, pending } = &mut **dialed;
            match dial.poll(now)? {
                Dialing::Waiting => continue,
                Dialing::Reached(endpoint) => {
                    let memory = part.equip(endpoint)?;
                    let held = pending.as_ref().and_then(Pending::held);
                    dial.ask(&Open { memory, held, ..self.open.clone() }.encode())?;
                }
                Dialing::Connected(answer, line) => {
                    let lane = open_lane(part, &answer, line, pending.take())?;
                    record.path(lane.path());
                    *way = Way::Up(Box::new(lane));
                }
            }
            work += 1;
        }
        Ok(work)
    }

    /// Begins, now that every connection is made.
    fn begin(&mut self) -> Result<(), Failure> {
        let granted = self.lanes.iter().filter_map(|way| match way {
            Way::Up(lane) => Some(lane.capacity()),
            Way::Dialing(_) | Way::Over => None,
        });
        let span = granted.min().unwrap_or(0).min(self.span.unwrap_or(u64::MAX));
        let (name, block, blocks) = (&self.name, self.block, span / self.block);
        let failed = |summary: String| Failure::new(Code::Length, Owner::Config, summary);
        if blocks == 0 {
            let summary =
                format!("`{name}` has {span} bytes to work on, less than a block of {block}");
            return Err(failed(summary).turn(format!("node.{name}.span")));
        }
        if self.wish.verify && blocks > LOAD_BLOCKS_MAX {
            let summary = format!(
                "`{name}` would verify {blocks} blocks, and keeps track of {LOAD_BLOCKS_MAX} at most: raise block, lower span, or set verify = false"
            );
            return Err(failed(summary).turn(format!("node.{name}.span")));
        }
        let count = self.wish.count.or_else(|| self.duration.is_none().then_some(blocks));
        self.workload = Some(Workload::new(Wish { count, ..self.wish }, blocks));
        Ok(())
    }

    fn turn_of_lanes(&mut self, now: u64, record: &mut Record) -> Result<usize, Failure> {
        let mut work = self.connect(now, record)?;
        if self.workload.is_none() && self.lanes.iter().all(|way| matches!(way, Way::Up(_))) {
            self.begin()?;
        }
        let ending = self.stopping || self.desertion.is_noted();
        let Some(workload) = &mut self.workload else { return Ok(work) };
        if workload.phase() == Phase::Work && !workload.is_drained() {
            record.begin(now);
            let deadline = self.duration.map(|duration| {
                *self.deadline.get_or_insert_with(|| now.saturating_add(nanoseconds(duration)))
            });
            if ending || deadline.is_some_and(|deadline| now >= deadline) {
                workload.end_phase();
            }
        } else if ending {
            workload.end_phase();
        }
        let mut idle = true;
        for way in &mut self.lanes {
            let Way::Up(lane) = way else {
                idle &= matches!(way, Way::Over);
                continue;
            };
            let stamps = self.stamps.as_mut();
            work += lane.run(now, &mut Shared { workload, stamps, record })?;
            idle &= lane.is_idle();
            if lane.is_gone() {
                work += 1;
                dial_again(way);
                continue;
            }
            if lane.peer_left() && workload.phase() != Phase::Over && !self.stopping {
                self.desertion.note(now, lane.peer());
            }
        }
        if idle && workload.is_drained() && workload.phase() != Phase::Over {
            work += 1;
            workload.advance();
            while ending && workload.phase() != Phase::Over {
                workload.advance();
            }
        }
        Ok(work)
    }

    /// Says goodbye on every connection. Returns how much happened.
    fn finish(&mut self, now: u64) -> Result<usize, Failure> {
        let mut work = 0;
        for way in &mut self.lanes {
            let Way::Up(lane) = way else { continue };
            if lane.finish(now)? {
                work += 1;
                if let Way::Up(lane) = std::mem::replace(way, Way::Over) {
                    lane.leave();
                }
            }
        }
        Ok(work)
    }

    fn turn(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let dialing = self.lanes.iter().any(|way| matches!(way, Way::Dialing(_)));
        if self.stopping && (self.workload.is_none() || dialing) {
            return self.leave_unconnected();
        }
        let mut work = self.turn_of_lanes(now, record)?;
        if self.workload.as_ref().is_some_and(|workload| workload.phase() == Phase::Over) {
            work += self.finish(now)?;
        }
        if self.lanes.iter().all(|way| matches!(way, Way::Over)) {
            return self.desertion.settle(now, self.stopping);
        }
        Ok(Turn::Worked(work))
    }

    /// Told to stop before every connection was made.
    fn leave_unconnected(&mut self) -> Result<Turn, Failure> {
        let mut why = None;
        for way in &mut self.lanes {
            match std::mem::replace(way, Way::Over) {
                Way::Dialing(dialed) => {
                    let failure = dialed.dial.leave();
                    why.get_or_insert(failure);
                }
                Way::Up(lane) => lane.leave(),
                Way::Over => {}
            }
        }
        why.map_or(Ok(Turn::Done), Err)
    }

    /// Gives up: the peers learn why, and every request in flight is an error.
    fn give_up(&mut self, failure: &Failure, record: &mut Record) {
        let mut unfinished = 0;
        for way in &mut self.lanes {
            match std::mem::replace(way, Way::Over) {
                Way::Up(lane) => {
                    unfinished += lane.in_flight();
                    lane.abort(&failure.verdict);
                }
                Way::Dialing(dialed) => {
                    unfinished += dialed.pending.map_or(0, |pending| pending.in_flight());
                }
                Way::Over => {}
            }
        }
        (0..unfinished.max(1)).for_each(|_| record.error());
    }
}

impl Node for BlockLoad {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let turn = self.turn(now, record);
        if let Err(failure) = &turn {
            self.give_up(failure, record);
        }
        turn
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    fn next_timeout(&self) -> Option<u64> {
        let timeouts = self.lanes.iter().filter_map(|way| match way {
            Way::Dialing(dialed) => dialed.dial.next_timeout(),
            Way::Up(lane) => lane.next_timeout(),
            Way::Over => None,
        });
        timeouts.chain(self.deadline).chain(self.desertion.next_timeout()).min()
    }
}

impl std::fmt::Debug for BlockLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockLoad").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Per cent of the requests that read.
fn reads(settings: &Settings) -> u64 {
    let usual = if settings.text("workload") == "mixed" { 70 } else { 100 };
    settings.count_opt("reads").unwrap_or(usual)
}

fn wish(settings: &Settings) -> Wish {
    Wish {
        order: match settings.text("workload") {
            "sequential" => Order::Sequential,
            _ => Order::Random,
        },
        reads: reads(settings),
        count: settings.count_opt("count"),
        flush: settings.count_opt("flush"),
        verify: settings.flag("verify"),
        seed: settings.count("seed"),
    }
}

/// The target's process is gone: dials it again, where that is wished for.
fn dial_again(way: &mut Way) {
    if let Way::Up(lane) = std::mem::replace(way, Way::Over)
        && let Some((dial, part, pending)) = lane.redial()
    {
        *way = Way::Dialing(Box::new(Dialed { dial, part, pending: Some(pending) }));
    }
}

/// Takes what the target granted.
fn open_lane(
    part: &Part,
    answer: &[u8],
    mut line: Line,
    pending: Option<Pending>,
) -> Result<Lane, Failure> {
    let opened = Opened::decode(answer).map_err(|error| {
        let summary = format!("{} answered no grant: {error}", line.peer());
        Failure::new(Code::InvalidRequest, Owner::Remote, summary)
    })?;
    let storage = line.endpoint().import(&opened.memory)?;
    Lane::new(part.clone(), line, storage, &opened, pending)
}

fn nanoseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}
