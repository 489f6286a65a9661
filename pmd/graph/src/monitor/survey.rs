//! How the control side learns of queue pairs: it lends each lcore a buffer, and the lcore fills it between two turns.

use std::fmt;

use pmd_lcore::mailbox::{Receiver, SendError, Sender, mailbox};
use pmd_lcore::{Doorbells, Progress};
use pmd_verbs::Survey;

use crate::limits::{SURVEY_BUDGET, SURVEY_ROOM};

/// What an lcore tells: its part of every device that it has, by the device's place in the [`Cast`](super::Cast).
pub(super) type Told = Vec<(usize, Survey)>;

/// Tells of the lcore's part of a device: begins a survey, or goes on with it, by at most so many queue pairs and without
/// allocation. Returns whether that was all.
pub type Surveyor = Box<dyn Fn(&mut Survey, usize) -> bool>;

/// The lcore's end of it. Polled like a device, and no work: nobody must stay awake for it. Dropped, it says its last word.
pub struct Teller {
    devices: Vec<(usize, Surveyor)>,
    asked: Receiver<Told>,
    answers: Sender<Told>,
    current: Option<Told>,
    /// How many devices of the current survey are complete.
    done: usize,
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Teller").field("devices", &self.devices.len()).finish_non_exhaustive()
    }
}

/// What a [`Teller`] is made of, on the way to its thread.
#[derive(Debug)]
pub struct Seat {
    asked: Receiver<Told>,
    answers: Sender<Told>,
}

/// The control side's end for one lcore.
#[derive(Debug)]
pub struct Asker {
    ask: Sender<Told>,
    answers: Receiver<Told>,
    /// What was told last.
    latest: Told,
    spare: Option<Told>,
}

/// Both ends for an lcore that has these devices, among so many nodes.
pub fn ends(devices: &[usize], nodes: usize) -> (Seat, Asker) {
    let (ask, asked) = mailbox(2);
    // The last one comes unasked.
    let (answers, told) = mailbox(4);
    let room = || devices.iter().map(|at| (*at, Survey::with_room(SURVEY_ROOM, nodes))).collect();
    let asker = Asker { ask, answers: told, latest: room(), spare: Some(room()) };
    (Seat { asked, answers }, asker)
}

impl Seat {
    /// On the lcore's thread, for the devices that it has by their places.
    pub fn teller(self, devices: Vec<(usize, Surveyor)>) -> Teller {
        let Self { asked, answers } = self;
        Teller { devices, asked, answers, current: None, done: 0 }
    }
}

impl Teller {
    /// Takes in what was asked, and tells a few queue pairs. Between two turns of the lcore's work.
    #[inline]
    pub fn turn(&mut self) {
        if self.current.is_none() {
            self.current = self.asked.receive();
        }
        if self.current.is_some() {
            self.go_on(SURVEY_BUDGET);
        }
    }

    /// Goes on with the current survey, by so many queue pairs; hands it back once it is complete.
    fn go_on(&mut self, budget: usize) {
        let Some(told) = &mut self.current else { return };
        while let Some((index, device)) = self.devices.get(self.done) {
            if let Some((_, survey)) = told.iter_mut().find(|(at, _)| at == index)
                && !device(survey, budget)
            {
                return;
            }
            self.done += 1;
        }
        self.done = 0;
        if let Some(told) = self.current.take() {
            // Whoever asked has gone: nobody wants to know.
            drop(self.answers.send(told));
        }
    }
}

impl Progress for Teller {
    fn name(&self) -> &str {
        "survey"
    }

    fn rx(&mut self, _: u64) -> usize {
        self.turn();
        0
    }

    fn tx(&mut self, _: u64) -> usize {
        0
    }

    fn arm<'a>(&'a mut self, doorbells: &mut Doorbells<'a>) {
        if self.current.is_some() {
            doorbells.ring();
        }
    }
}

impl Drop for Teller {
    /// The last word: what the lcore leaves behind.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut told = self.current.take().or_else(|| self.asked.receive()).unwrap_or_else(|| {
            self.devices.iter().map(|(at, _)| (*at, Survey::with_room(SURVEY_ROOM, 0))).collect()
        });
        told.iter_mut().for_each(|(_, survey)| survey.renew());
        (self.current, self.done) = (Some(told), 0);
        self.go_on(usize::MAX);
    }
}

/// Whether an lcore was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It will tell.
    Yes,
    /// It was asked before, and has not told yet.
    Busy,
    /// It has ended.
    Ended,
}

impl Asker {
    /// Asks the lcore to tell.
    pub(super) fn ask(&mut self) -> Asked {
        let Some(mut spare) = self.spare.take() else { return Asked::Busy };
        spare.iter_mut().for_each(|(_, survey)| survey.renew());
        match self.ask.send(spare) {
            Ok(()) => Asked::Yes,
            Err(SendError::Closed(spare)) => {
                self.spare = Some(spare);
                Asked::Ended
            }
            Err(SendError::Full(spare)) => {
                self.spare = Some(spare);
                Asked::Busy
            }
        }
    }

    /// Takes in what was told since. True where something was.
    pub(super) fn hear(&mut self, mut heard: impl FnMut(&Told)) -> bool {
        let mut any = false;
        while let Some(told) = self.answers.receive() {
            heard(&told);
            self.spare = Some(std::mem::replace(&mut self.latest, told));
            any = true;
        }
        any
    }

    /// Whether an answer is awaited.
    pub(super) fn is_waiting(&self) -> bool {
        self.spare.is_none()
    }

    /// What was told last; empty before.
    pub(super) fn latest(&self) -> &Told {
        &self.latest
    }
}
