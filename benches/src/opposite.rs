//! The other end on a core of its own.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};

use crate::{Kind, Options, Player, Side, Sink, Wish, pin};

/// A thread on the second core that does its part, until this is dropped or joined.
#[derive(Debug)]
pub struct Opposite {
    /// The thread ends with it.
    wanted: Arc<()>,
    thread: JoinHandle<Result<u64>>,
    /// What the near end knows of it.
    pub wish: Wish,
}

/// What the far end works with.
#[derive(Debug)]
struct Seat<'a> {
    side: &'a Side,
    options: Options,
    near: Wish,
    /// Has the near end begin.
    answer: &'a Sender<Wish>,
    wanted: &'a Weak<()>,
}

impl Opposite {
    /// Opens a near end on the calling thread and on `core` one that takes what comes, and connects them.
    ///
    /// # Errors
    /// What was refused at either end.
    pub fn start(options: &Options, core: usize) -> Result<(Side, Self)> {
        Self::seat(options, core, receive)
    }

    /// The same with a far end that answers each message of this kind by another.
    ///
    /// # Errors
    /// What was refused at either end.
    pub fn answering(options: &Options, core: usize, kind: Kind) -> Result<(Side, Self)> {
        Self::seat(options, core, move |seat| answer(seat, kind))
    }

    fn seat(
        options: &Options,
        core: usize,
        act: impl FnOnce(&Seat<'_>) -> Result<u64> + Send + 'static,
    ) -> Result<(Side, Self)> {
        let near = Side::open("near", options)?;
        let wanted = Arc::new(());
        let (tell, told) = channel::<Wish>();
        let (answer, answered) = channel();
        tell.send(near.wish())?;
        let thread = thread::Builder::new().name("opposite".into()).spawn({
            let (options, wanted) = (*options, Arc::downgrade(&wanted));
            move || {
                pin(core)?;
                let (side, near) = (&Side::open("opposite", &options)?, told.recv()?);
                side.connect(&near)?;
                act(&Seat { side, options, near, answer: &answer, wanted: &wanted })
            }
        })?;
        let Ok(wish) = answered.recv() else {
            return Err(ended(thread).err().unwrap_or_else(|| anyhow!("it left without a word")));
        };
        near.connect(&wish)?;
        Ok((near, Self { wanted, thread, wish }))
    }

    /// Ends the thread. Returns how many messages it received.
    ///
    /// # Errors
    /// What went wrong there.
    pub fn join(self) -> Result<u64> {
        drop(self.wanted);
        ended(self.thread)
    }
}

fn ended(thread: JoinHandle<Result<u64>>) -> Result<u64> {
    thread.join().map_err(|_| anyhow!("the opposite end panicked"))?
}

impl Seat<'_> {
    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}

fn receive(seat: &Seat<'_>) -> Result<u64> {
    let into = seat.side.sink(seat.options.size);
    let mut sink = Sink::new(seat.side, &into, seat.options.depth)?;
    seat.answer.send(seat.side.wish())?;
    while seat.is_wanted() {
        sink.poll()?;
    }
    // What the peer saw completed may still wait in the queue.
    loop {
        let before = sink.received;
        sink.poll()?;
        if sink.received == before {
            return Ok(before);
        }
    }
}

fn answer(seat: &Seat<'_>, kind: Kind) -> Result<u64> {
    let Seat { side, options, near, .. } = seat;
    let (from, into) = (side.source(options.size), side.sink(options.size));
    let mut player = Player::new(side, kind, &from, &into, near.sink(options))?;
    seat.answer.send(side.wish())?;
    let mut answered = 0;
    while seat.is_wanted() {
        if player.look()? {
            player.send()?;
            answered += 1;
        }
    }
    Ok(answered)
}
