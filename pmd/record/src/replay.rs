//! The same inputs again, to engines that are new: everything that comes of them is compared.

use core::fmt;
use std::collections::BTreeMap;
use std::io::{self, Read};

use crate::actor::Actor;
use crate::format::{Ending, HEAD, Kind, PART_HEAD, PartHead};
use crate::limits::{MAX_ENGINES, MAX_NOTES, MAX_TEXT, REPLAY_BYTES};
use crate::pack::Cursor;

/// Why a file is not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// It is no record.
    #[error("this is no record of a run: {0}")]
    Format(&'static str),
    /// Something in it makes no sense.
    #[error("the record is damaged at byte {at}: {reason}")]
    Damaged {
        /// Where the part begins that makes no sense.
        at: u64,
        /// What is wrong.
        reason: String,
    },
}

/// What came out of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// How the record ended.
    pub ending: Ending,
    /// Whether its last part is torn, as a process leaves it that is killed while it writes.
    pub is_torn: bool,
    /// Where the first part begins whose checksum is not that of its bytes: they were played, and are not what was written.
    pub damaged: Option<u64>,
    /// Words about the run.
    pub notes: Vec<String>,
    /// Its engines.
    pub engines: Vec<EngineReplay>,
}

impl Replay {
    /// Whether everything came as it is on record; that the record is the one that was written, [`Self::damaged`] tells.
    pub fn is_equal(&self) -> bool {
        self.engines.iter().all(|engine| engine.difference.is_none())
    }
}

/// What came out of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineReplay {
    /// Its name.
    pub name: String,
    /// Inputs that were played.
    pub inputs: u64,
    /// Frames, completions, events, copies and pages that came of them.
    pub outputs: u64,
    /// A hash over all inputs and outputs.
    pub hash: u64,
    /// The time of the last input, in nanoseconds of the engine's clock.
    pub elapsed_ns: u64,
    /// Frames it was given.
    pub frames_in: u64,
    /// Frames it sent.
    pub frames_out: u64,
    /// Completions by status, the number of `enum ibv_wc_status`.
    pub statuses: BTreeMap<u8, u64>,
    /// Events by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Whether the record has its end.
    pub has_ended: bool,
    /// The first input that came out differently; nothing was played after it.
    pub difference: Option<Difference>,
}

/// An input that came out differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which input of its engine, from 0.
    pub number: u64,
    /// Its time, in nanoseconds of the engine's clock.
    pub at_ns: u64,
    /// What it is.
    pub input: String,
    /// What came of it then.
    pub recorded: String,
    /// What comes of it now.
    pub now: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, at_ns, input, recorded, now } = self;
        let (seconds, rest) = (at_ns / 1_000_000_000, at_ns % 1_000_000_000);
        write!(
            f,
            "input {number} at {seconds}.{rest:09} s differs: {input}\n  on record: {recorded}\n  now:       {now}"
        )
    }
}

/// Replays a record.
///
/// # Errors
/// [`ReplayError`] for what is no record, or is none from some byte on. A record that merely ends too early
/// is played as far as it goes.
pub fn replay(mut from: impl Read) -> Result<Replay, ReplayError> {
    let mut head = Vec::with_capacity(HEAD);
    from.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    let head: [u8; HEAD] = head.try_into().map_err(|_| ReplayError::Format("it is too short"))?;
    let ending = Ending::of(&head).map_err(ReplayError::Format)?;
    let mut player = Player { notes: Vec::new(), actors: Vec::new(), room: REPLAY_BYTES };
    let (mut at, mut bytes, mut spoilt) = (HEAD as u64, Vec::new(), None);
    let is_torn = loop {
        bytes.clear();
        from.by_ref().take(PART_HEAD as u64).read_to_end(&mut bytes)?;
        let Ok(part) = <[u8; PART_HEAD]>::try_from(bytes.as_slice()) else {
            break !bytes.is_empty();
        };
        let damaged = |reason: String| ReplayError::Damaged { at, reason };
        let part = PartHead::of(part).ok_or_else(|| damaged("no part begins there".into()))?;
        bytes.clear();
        from.by_ref().take(part.len as u64).read_to_end(&mut bytes)?;
        if bytes.len() < part.len {
            break true;
        }
        if !part.is_of(&bytes) {
            spoilt = spoilt.or(Some(at));
        }
        player.part(part, &bytes).map_err(damaged)?;
        at += (PART_HEAD + part.len) as u64;
    };
    let engines = player.actors.into_iter().map(Actor::into_replay).collect();
    Ok(Replay { ending, is_torn, damaged: spoilt, notes: player.notes, engines })
}

struct Player {
    notes: Vec<String>,
    actors: Vec<Actor>,
    /// Bytes that queues may still take.
    room: u64,
}

impl Player {
    fn part(&mut self, part: PartHead, bytes: &[u8]) -> Result<(), String> {
        match part.kind {
            Kind::Note => {
                if bytes.len() <= MAX_TEXT && self.notes.len() < MAX_NOTES {
                    self.notes.push(String::from_utf8_lossy(bytes).into_owned());
                }
                return Ok(());
            }
            Kind::Begin => {
                if part.engine as usize != self.actors.len() || self.actors.len() == MAX_ENGINES {
                    return Err("another engine was to begin".into());
                }
                self.actors.push(Actor::new(bytes)?);
                return Ok(());
            }
            Kind::Inputs | Kind::End => {}
        }
        let actor = self.actors.get_mut(part.engine as usize);
        let actor = actor.ok_or("it is about an engine that has not begun")?;
        match part.kind {
            Kind::End => actor.end(bytes),
            _ => {
                let mut left = Cursor(bytes);
                while !left.0.is_empty() && !actor.is_over() {
                    let len = left.length().map_err(|damaged| damaged.to_string())?;
                    let entry = left.slice(len).map_err(|damaged| damaged.to_string())?;
                    actor.play(entry, &mut self.room);
                }
            }
        }
        Ok(())
    }
}
