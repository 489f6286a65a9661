//! The receiving end on a core of its own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};

use crate::{Options, Side, Sink, Wish, pin};

/// A thread on the second core that takes what comes, until this is dropped or joined.
#[derive(Debug)]
pub struct Opposite {
    /// The thread ends with it.
    wanted: Arc<()>,
    thread: JoinHandle<Result<u64>>,
    /// What the near end knows of it.
    pub wish: Wish,
}

impl Opposite {
    /// Opens a near end on the calling thread and its opposite on `core`, and connects them.
    ///
    /// # Errors
    /// What was refused at either end.
    pub fn start(options: &Options, core: usize) -> Result<(Side, Self)> {
        let near = Side::open("near", options)?;
        let wanted = Arc::new(());
        let (tell, told) = channel();
        let (answer, answered) = channel();
        tell.send(near.wish())?;
        let thread = thread::Builder::new().name("opposite".into()).spawn({
            let (options, wanted) = (*options, Arc::downgrade(&wanted));
            move || receive(&options, core, &told, &answer, &wanted)
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

fn receive(
    options: &Options,
    core: usize,
    told: &Receiver<Wish>,
    answer: &Sender<Wish>,
    wanted: &Weak<()>,
) -> Result<u64> {
    pin(core)?;
    let side = Side::open("opposite", options)?;
    side.connect(&told.recv()?)?;
    let into = side.sink(options.size);
    let mut sink = Sink::new(&side, &into, options.depth)?;
    answer.send(side.wish())?;
    while wanted.strong_count() > 0 {
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
