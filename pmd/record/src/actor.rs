//! A new engine that is told what one on record was told.

use std::collections::HashMap;

use pmd_roce::engine::{Engine, SrqInit};
use pmd_roce::gsi::ManagementDatagram;
use pmd_roce::ids::Instant;
use pmd_roce::limits::{MAX_GIDS, MAX_PSNS, MAX_QPS, QPN_LCORE_BITS, QPN_PROCESS_BITS};
use pmd_roce::qp::attr::QpCap;
use pmd_roce::sink::Frame;

use crate::digest::Digest;
use crate::input::{Input, Outcome};
use crate::limits::{MAX_OBJECTS, MAX_TEXT};
use crate::pack::{Cursor, Damaged, Pack};
use crate::replay::{Difference, EngineReplay};
use crate::script::{Break, Other, Played, Script};
use crate::tape::{About, Sums, counters};

/// Bytes that a request takes in its queue, without what it carries inline.
const REQUEST_BYTES: u64 = 192;
/// Bytes of a scatter/gather element.
const SGE_BYTES: u64 = 16;
/// What an idle engine asks: nothing.
const NOTHING: [u8; 1] = [0];

/// One engine of a record, while it is replayed.
pub(crate) struct Actor {
    engine: Engine,
    known_before: Instant,
    digest: Digest,
    /// Queues that there are, and the bytes that they take.
    queues: HashMap<Queue, u64>,
    replay: EngineReplay,
}

/// Somebody with queues, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Queue {
    Qp(u64),
    Srq(u64),
}

impl From<Damaged> for Break {
    fn from(damaged: Damaged) -> Self {
        Self::Damaged(damaged)
    }
}

fn other(recorded: impl Into<String>, now: impl Into<String>) -> Break {
    Break::Other(Other { recorded: recorded.into(), now: now.into() })
}

impl Actor {
    /// A new engine of the name and configuration that were written down.
    pub(crate) fn new(about: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor(about);
        let About { name, config } =
            About::take(&mut cursor).map_err(|damaged| damaged.to_string())?;
        let is_possible = name.len() <= MAX_TEXT
            && (1..1 << QPN_PROCESS_BITS).contains(&config.process)
            && config.lcore < 1 << QPN_LCORE_BITS
            && config.max_qps <= MAX_QPS
            && config.max_srqs <= MAX_OBJECTS
            && config.max_ahs <= MAX_OBJECTS
            && config.gids.len() <= MAX_GIDS
            && config.second_port.len() <= MAX_GIDS
            && config.window_packets <= MAX_PSNS;
        if !is_possible || !cursor.0.is_empty() {
            return Err("no engine has such a configuration".into());
        }
        Ok(Self {
            engine: Engine::new(config),
            known_before: Instant::default(),
            digest: Digest::new(),
            queues: HashMap::new(),
            replay: EngineReplay { name, ..EngineReplay::default() },
        })
    }

    /// Whether nothing is played any more.
    pub(crate) const fn is_over(&self) -> bool {
        self.replay.difference.is_some() || self.replay.has_ended
    }

    pub(crate) fn into_replay(mut self) -> EngineReplay {
        self.replay.hash = self.digest.value();
        self.replay
    }

    /// Plays one input. `room` is what queues may still take.
    pub(crate) fn play(&mut self, entry: &[u8], room: &mut u64) {
        let mut cursor = Cursor(entry);
        let since = cursor.number();
        let (time, rest) = entry.split_at(entry.len() - cursor.0.len());
        let read = since.and_then(|since| Ok((since, Input::take(&mut cursor)?)));
        let (since, input) = match read {
            Ok(read) => read,
            Err(damaged) => {
                let input = "an input that makes no sense".to_owned();
                return self.differ(self.engine.now(), input, damaged.into());
            }
        };
        let known = Instant(self.known_before.0.wrapping_add(since));
        self.known_before = known;
        let at = input.now().unwrap_or(known);
        match self.compare(known, &input, cursor, room) {
            Ok(()) => {
                self.digest.bytes(time);
                self.digest.bytes(rest);
                self.replay.inputs += 1;
                self.replay.elapsed_ns = self.replay.elapsed_ns.max(at.0);
            }
            Err(broken) => self.differ(at, input.to_string(), broken),
        }
    }

    /// Ends the engine: it must be as it was then.
    pub(crate) fn end(&mut self, sums: &[u8]) {
        if self.is_over() {
            return;
        }
        let mut cursor = Cursor(sums);
        let at = self.engine.now();
        match Sums::take(&mut cursor) {
            Ok(sums) if cursor.0.is_empty() => match self.sum_up(&sums) {
                Ok(()) => {
                    self.replay.has_ended = true;
                    self.replay.elapsed_ns = self.replay.elapsed_ns.max(sums.now.0);
                }
                Err(broken) => self.differ(at, "the end".into(), broken),
            },
            _ => self.differ(at, "the end".into(), Damaged("sum").into()),
        }
    }

    fn sum_up(&mut self, recorded: &Sums) -> Result<(), Break> {
        self.idle_until(recorded.now)?;
        self.digest.bytes(&recorded.now.0.to_le_bytes());
        let EngineReplay { inputs, outputs, .. } = self.replay;
        let (hash, now) = (self.digest.value(), self.engine.now());
        let counted = counters(&self.engine);
        if let Some(((name, then), (_, now))) =
            recorded.counters.iter().zip(&counted).find(|(then, now)| then != now)
        {
            return Err(other(format!("{name} = {then}"), now.to_string()));
        }
        let found = Sums { inputs, outputs, hash, now, counters: counted };
        if *recorded == found {
            return Ok(());
        }
        let words = |sums: &Sums| {
            let Sums { inputs, outputs, hash, counters, .. } = sums;
            let counters = counters.len();
            format!("{inputs} inputs, {outputs} outputs, {counters} counters, hash {hash:016x}")
        };
        Err(other(words(recorded), words(&found)))
    }

    fn differ(&mut self, at: Instant, input: String, broken: Break) {
        let Other { recorded, now } = match broken {
            Break::Other(other) => other,
            Break::Damaged(damaged) => other_of_damaged(damaged),
        };
        let number = self.replay.inputs;
        self.replay.difference = Some(Difference { number, at_ns: at.0, input, recorded, now });
    }

    /// Tells the engine the time; turns in which nothing happened are not on record.
    fn idle_until(&mut self, now: Instant) -> Result<(), Break> {
        if self.engine.now() == now {
            return Ok(());
        }
        let script = Script::new(Cursor(&NOTHING));
        self.engine.handle_timeout(now, &mut script.role(), &mut script.role());
        match script.finish().broken {
            Some(broken) => Err(broken),
            None => Ok(()),
        }
    }

    fn compare(
        &mut self,
        known: Instant,
        input: &Input,
        calls: Cursor<'_>,
        room: &mut u64,
    ) -> Result<(), Break> {
        self.idle_until(known)?;
        let wanted = queue_bytes(input);
        if wanted > *room {
            return Err(other("queues that had room", "more memory than a replay may take"));
        }
        let script = Script::new(calls);
        let outcome = self.tell(input, &script);
        let Played { mut left, broken, outputs, frames, statuses } = script.finish();
        self.replay.outputs += outputs;
        self.replay.frames_out += frames;
        for (status, count) in statuses {
            *self.replay.statuses.entry(status).or_default() += count;
        }
        if let Some(broken) = broken {
            return Err(broken);
        }
        let recorded = Outcome::take(&mut left)?;
        if recorded != outcome {
            return Err(other(recorded.to_string(), outcome.to_string()));
        }
        let recorded: Option<Instant> = Pack::take(&mut left)?;
        let next = self.engine.poll_timeout();
        if recorded != next {
            return Err(other(deadline(recorded), deadline(next)));
        }
        if !left.0.is_empty() {
            return Err(Break::Damaged(Damaged("end")));
        }
        self.note(input, &outcome, wanted, room);
        Ok(())
    }

    fn note(&mut self, input: &Input, outcome: &Outcome, wanted: u64, room: &mut u64) {
        let queue = match (input, outcome) {
            (Input::Frame { .. }, _) => {
                self.replay.frames_in += 1;
                return;
            }
            (_, Outcome::Event(event)) => {
                *self.replay.events.entry(event.name()).or_default() += 1;
                return;
            }
            (Input::CreateQp(_), Outcome::Done(number)) => Queue::Qp(*number),
            (Input::CreateSrq(_), Outcome::Done(number)) => Queue::Srq(*number),
            (Input::DestroyQp(qpn), Outcome::Done(_)) => Queue::Qp(qpn.value().into()),
            (Input::DestroySrq(srqn), Outcome::Done(_)) => Queue::Srq(srqn.0.into()),
            _ => return,
        };
        if wanted > 0 {
            *room -= wanted;
            self.queues.insert(queue, wanted);
        } else {
            *room += self.queues.remove(&queue).unwrap_or(0);
        }
    }

    /// Tells the engine an input; the script answers what it asks.
    fn tell(&mut self, input: &Input, script: &Script<'_>) -> Outcome {
        let engine = &mut self.engine;
        let (mem, cq) = (&mut script.role(), &mut script.role());
        let (tx, peers) = (&mut script.role(), &mut script.role());
        macro_rules! unit {
            ($done:expr) => {{
                $done;
                Outcome::Done(0)
            }};
        }
        macro_rules! of {
            ($result:expr) => {
                Outcome::of_result($result.as_ref().copied().map_err(|error| error as _))
            };
        }
        match input {
            Input::CreateQp(init) => of!(engine.create_qp(init)),
            Input::ModifyQp { now, qpn, attr, mask } => {
                of!(engine.modify_qp(*now, *qpn, attr, *mask, mem, cq))
            }
            Input::DestroyQp(qpn) => of!(engine.destroy_qp(*qpn)),
            Input::CreateSrq(init) => of!(engine.create_srq(init)),
            Input::ArmSrqLimit { srqn, limit } => of!(engine.arm_srq_limit(*srqn, *limit)),
            Input::ReserveSrq { srqn, receives } => of!(engine.reserve_srq(*srqn, *receives)),
            Input::DestroySrq(srqn) => of!(engine.destroy_srq(*srqn)),
            Input::CreateAh(av) => of!(engine.create_ah(av)),
            Input::DestroyAh(ah) => of!(engine.destroy_ah(*ah)),
            Input::AttachMulticast { qpn, group } => of!(engine.attach_multicast(*qpn, *group)),
            Input::DetachMulticast { qpn, group } => of!(engine.detach_multicast(*qpn, *group)),
            Input::PostSend { qpn, wr } => of!(wr.with(|wr| engine.post_send(*qpn, wr))),
            Input::PostRecv { qpn, wr } => of!(engine.post_recv(*qpn, &wr.as_wr())),
            Input::PostSrqRecv { srqn, wr } => of!(engine.post_srq_recv(*srqn, &wr.as_wr())),
            Input::PortDown(port) => of!(engine.port_down(*port)),
            Input::PortUp(port) => of!(engine.port_up(*port)),
            Input::SetGids { port, gids } => of!(engine.set_gids(*port, gids)),
            Input::FailSrq(srqn) => of!(engine.fail_srq(*srqn, cq)),
            Input::FailCq(id) => unit!(engine.fail_cq(*id, cq)),
            Input::FailDevice => unit!(engine.fail_device(cq)),
            Input::LinkDown(link) => unit!(engine.handle_link_down(Instant(0), *link, cq)),
            Input::Publish => unit!(engine.publish(peers)),
            Input::Timeout { now } => unit!(engine.handle_timeout(*now, mem, cq)),
            Input::Frame { now, flow, ip_id, payload } => {
                let frame = Frame { flow: *flow, ip_id: *ip_id, payload: &payload.0 };
                Outcome::of(engine.handle_frame(*now, &frame, mem, cq))
            }
            Input::Record { now, link, record } => {
                let payload = &mut script.role();
                let taken = engine.handle_record(*now, *link, record, payload, mem, peers, cq);
                Outcome::Done(taken.into())
            }
            Input::Transmit { now } => {
                Outcome::Done(engine.poll_transmit(*now, mem, tx, peers, cq) as u64)
            }
            Input::Local => Outcome::Done(engine.poll_local(mem, peers, cq) as u64),
            Input::PollTransition => {
                engine.poll_transition().map_or(Outcome::Done(0), |fell| Outcome::fell(&fell))
            }
            Input::TakeLostTransitions => Outcome::Done(engine.take_lost_transitions()),
            Input::OpenGsi => of!(engine.open_gsi()),
            Input::PostMad { flow, bytes } => match bytes.0.as_slice().try_into() {
                Ok(bytes) => {
                    of!(engine.post_mad(&ManagementDatagram { flow: *flow, bytes }))
                }
                Err(_) => Outcome::Refused("a management datagram of another size".into()),
            },
            Input::PollMad => Outcome::managed(engine.poll_mad().as_ref()),
            Input::PollEvent => engine.poll_event().map_or(Outcome::Done(0), Outcome::Event),
        }
    }
}

fn other_of_damaged(damaged: Damaged) -> Other {
    Other {
        recorded: format!("nothing that makes sense: {damaged}"),
        now: "an input that cannot be played to its end".into(),
    }
}

/// What the queues take that an input makes; 0 where it makes none.
fn queue_bytes(input: &Input) -> u64 {
    let bytes = |requests: u32, sges: u32, inline: u32| {
        let each = REQUEST_BYTES + SGE_BYTES * u64::from(sges) + u64::from(inline);
        u64::from(requests).saturating_mul(each).max(1)
    };
    match input {
        Input::CreateQp(init) => {
            let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } =
                init.cap;
            let sends = bytes(max_send_wr, max_send_sge, max_inline_data);
            sends.saturating_add(bytes(max_recv_wr, max_recv_sge, 0))
        }
        Input::CreateSrq(SrqInit { max_wr, max_sge, .. }) => bytes(*max_wr, *max_sge, 0),
        _ => 0,
    }
}

fn deadline(at: Option<Instant>) -> String {
    match at {
        Some(at) => format!("the next deadline is at {} ns", at.0),
        None => "there is no next deadline".into(),
    }
}
