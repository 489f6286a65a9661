//! What one engine writes to a record.

use core::fmt;
use std::sync::Arc;

use pmd_roce::engine::Engine;
use pmd_roce::ids::Instant;

use crate::call::Call;
use crate::digest::Digest;
use crate::input::{Input, Made, Outcome};
use crate::limits::{MAX_TEXT, WRITE_AFTER, WRITE_BYTES};
use crate::pack::{Pack, pack_struct, put_number};
use crate::recording::Recording;
use crate::witness::Log;

/// What is said of an engine when it begins.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) config: pmd_roce::engine::EngineConfig,
}

pack_struct!(About { name, config });

/// What is said of an engine when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    pub(crate) hash: u64,
    /// The last reading of the clock that it was told.
    pub(crate) now: Instant,
    pub(crate) counters: Vec<(String, u64)>,
}

pack_struct!(Sums { inputs, outputs, hash, now, counters });

/// Every counter of an engine.
pub(crate) fn counters(engine: &Engine) -> Vec<(String, u64)> {
    engine.counters().iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Writes down the inputs of one engine.
#[derive(Debug)]
pub(crate) struct Tape {
    recording: Arc<Recording>,
    number: u32,
    log: Log,
    /// What the engine knew of the time before the input that is written down,
    known: Instant,
    /// and before the input before that.
    known_before: Instant,
    /// Inputs that are not in the file yet.
    part: Vec<u8>,
    /// When the last part was written, by the engine's time.
    written: Instant,
    inputs: u64,
    outputs: u64,
    digest: Digest,
}

impl Tape {
    pub(crate) fn new(engine: &Engine, recording: &Arc<Recording>, name: &str) -> Self {
        let name = name.chars().take(MAX_TEXT / 4).collect();
        let mut about = Vec::new();
        About { name, config: engine.config().clone() }.put(&mut about);
        Self {
            number: recording.begin(&about),
            recording: Arc::clone(recording),
            log: Log::default(),
            known: engine.now(),
            known_before: engine.now(),
            part: Vec::with_capacity(2 * WRITE_BYTES),
            written: engine.now(),
            inputs: 0,
            outputs: 0,
            digest: Digest::new(),
        }
    }

    /// Whether nothing is written any more.
    pub(crate) fn has_stopped(&self) -> bool {
        self.recording.has_stopped()
    }

    /// A command that asks nothing of the surroundings.
    pub(crate) fn command<T, E>(
        &mut self,
        engine: &mut Engine,
        input: &Input,
        act: impl FnOnce(&mut Engine) -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: Into<Made> + Copy,
        E: fmt::Display,
    {
        self.turn(engine, input, |engine, _| {
            let result = act(engine);
            let outcome = Outcome::of_result(result.as_ref().copied().map_err(|e| e as _));
            (result, outcome)
        })
    }

    /// An input: what came of it is written down behind it.
    pub(crate) fn turn<R>(
        &mut self,
        engine: &mut Engine,
        input: &Input,
        act: impl FnOnce(&mut Engine, &Log) -> (R, Outcome),
    ) -> R {
        self.begin(engine, input);
        let (result, outcome) = act(engine, &self.log);
        self.end(engine, &outcome);
        result
    }

    /// An input that comes all the time: it is written down only if anything comes of it, and `is_idle` says
    /// that nothing can but what the log would show.
    pub(crate) fn spin(
        &mut self,
        engine: &mut Engine,
        input: &Input,
        is_idle: bool,
        act: impl FnOnce(&mut Engine, &Log) -> usize,
    ) -> usize {
        self.begin(engine, input);
        let work = act(engine, &self.log);
        if !is_idle || work > 0 || self.log.has_news() {
            self.end(engine, &Outcome::Done(work as u64));
        } else if !self.part.is_empty() {
            self.write_if_due(engine.now());
        }
        work
    }

    /// Begins an input; where it does not [end](Self::end), it is not written down.
    pub(crate) fn begin(&mut self, engine: &Engine, input: &Input) {
        self.known = engine.now();
        self.log.begin(input);
    }

    pub(crate) fn end(&mut self, engine: &mut Engine, outcome: &Outcome) {
        self.log.call(&Call::Done);
        self.log.answer(outcome);
        // Asked each time, since asking puts deadlines in their places: whoever asks later changes nothing.
        self.log.answer(&engine.poll_timeout());
        let mut since = Vec::new();
        put_number(&mut since, self.known.0.wrapping_sub(self.known_before.0));
        self.known_before = self.known;
        let entry = self.log.bytes();
        put_number(&mut self.part, (since.len() + entry.len()) as u64);
        self.part.extend_from_slice(&since);
        self.part.extend_from_slice(&entry);
        self.digest.bytes(&since);
        self.digest.bytes(&entry);
        self.inputs += 1;
        self.outputs += self.log.outputs();
        drop(entry);
        self.write_if_due(engine.now());
    }

    fn write_if_due(&mut self, now: Instant) {
        if self.part.len() >= WRITE_BYTES || now.since(self.written) >= WRITE_AFTER {
            self.write(now);
        }
    }

    fn write(&mut self, now: Instant) {
        self.written = now;
        if !self.part.is_empty() {
            self.recording.inputs(self.number, &self.part);
            self.part.clear();
        }
    }

    /// Ends the engine's part of the record.
    pub(crate) fn conclude(mut self, engine: &Engine) {
        self.write(engine.now());
        self.digest.bytes(&engine.now().0.to_le_bytes());
        let sums = Sums {
            inputs: self.inputs,
            outputs: self.outputs,
            hash: self.digest.value(),
            now: engine.now(),
            counters: counters(engine),
        };
        let mut bytes = Vec::new();
        sums.put(&mut bytes);
        self.recording.conclude(self.number, &bytes);
    }
}
