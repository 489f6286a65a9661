//! The lcores of one end, as the control thread sees them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd_lcore::Clock;
use pmd_verbs::connect::Hello;
use pmd_verbs::{CpuHolder, Device};

use super::desk::{Shared, Signal};
use super::failure::Failure;
use super::lcore::{self, Command, Reply, Seat};
use super::limits::JOIN;
use super::params::Params;
use super::pulse::Station;

/// Where the lcores of one end sit.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    pub(super) device: Device,
    /// The first lcore of the device that belongs to this end.
    pub(super) first: u32,
    pub(super) cpus: Vec<usize>,
    pub(super) cpu_shared: bool,
    /// The lcores of other processes on these CPUs.
    pub(super) others: Vec<CpuHolder>,
    pub(super) server: bool,
    pub(super) clock: Clock,
}

#[derive(Debug)]
struct Hand {
    commands: Option<Sender<Command>>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// The lcores of one end.
#[derive(Debug)]
pub(super) struct Crew {
    hands: Vec<Hand>,
    replies: Receiver<(u32, Reply)>,
}

impl Seats {
    /// How an end calls itself.
    pub(super) const fn role(&self) -> &'static str {
        if self.server { "server" } else { "client" }
    }
}

impl Crew {
    /// Starts all of them, each at its station.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(super) fn start(
        seats: &Seats,
        stations: Vec<Station>,
        params: &Params,
    ) -> Result<Self, Failure> {
        let (say, replies) = mpsc::channel();
        let mut hands = Vec::with_capacity(seats.cpus.len());
        for ((lcore, cpu), station) in (0..).zip(&seats.cpus).zip(stations) {
            let (commands, heard) = mpsc::channel();
            let shared = Arc::new(Shared::default());
            let seat = Seat {
                device: seats.device.clone(),
                number: seats.first + lcore,
                lcore,
                cpu: *cpu,
                cpu_shared: seats.cpu_shared,
                server: seats.server,
                clock: seats.clock,
                shared: Arc::clone(&shared),
                station,
            };
            let thread = lcore::start(seat, params.clone(), heard, say.clone())
                .map_err(|error| Failure::Unfit(format!("cannot start a thread: {error}")))?;
            hands.push(Hand { commands: Some(commands), shared, thread });
        }
        Ok(Self { hands, replies })
    }

    pub(super) fn len(&self) -> usize {
        self.hands.len()
    }

    /// Signals all of them.
    pub(super) fn signal(&self, signal: Signal) {
        self.hands.iter().for_each(|hand| hand.shared.set(signal));
    }

    /// Asks something of each; one that has ended has said why.
    pub(super) fn ask(&self, mut command: impl FnMut() -> Command) {
        for hand in &self.hands {
            if let Some(commands) = &hand.commands {
                drop(commands.send(command()));
            }
        }
    }

    /// Has each connect to the peer's lcore of its number.
    pub(super) fn connect(&self, peers: Vec<Vec<Hello>>) {
        for (hand, peers) in self.hands.iter().zip(peers) {
            if let Some(commands) = &hand.commands {
                drop(commands.send(Command::Connect(peers)));
            }
        }
    }

    /// The next reply, waiting at most for `limit`.
    ///
    /// # Errors
    /// An lcore that broke.
    pub(super) fn hear(&self, limit: Duration) -> Result<Option<(u32, Reply)>, Failure> {
        match self.replies.recv_timeout(limit) {
            Ok((_, Reply::Failed(failure))) => Err(failure),
            Ok(reply) => Ok(Some(reply)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::device("an lcore has ended without a word"))
            }
        }
    }

    /// Messages that completed in the step that runs.
    pub(super) fn done(&self) -> u64 {
        self.hands.iter().map(|hand| hand.shared.done.load(Ordering::Relaxed)).sum()
    }

    /// Ends all of them, and waits until they have, bounded.
    pub(super) fn end(mut self) {
        self.signal(Signal::Abort);
        self.hands.iter_mut().for_each(|hand| hand.commands = None);
        let deadline = Instant::now() + JOIN;
        for hand in self.hands {
            while !hand.thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if hand.thread.is_finished() {
                // A panic has been printed already.
                drop(hand.thread.join());
            } else {
                tracing::warn!("an lcore does not come to an end");
            }
        }
    }
}
