//! `block-target`: holds the blocks that clients write and read.

mod hall;
mod hung;
mod serving;
mod store;
mod vault;

use pmd_lcore::Doorbells;

use super::{Node, NodeContext, Record, Turn};
use crate::block::{MESSAGE_BYTES, MESSAGE_LEN, PROTOCOL};
use crate::edge::Acceptor;
use crate::failure::Failure;
use crate::node::block_client::MORE_REQUESTS;
use crate::plan::demand::Queues;
use hall::Hall;

/// Work requests of a request on the send queue: the WRITE that brings a range to the client, and the reply.
const SENDS_PER_REQUEST: u64 = 2;

/// Queues of one connection with `depth` requests in flight, at the target: replies out, requests in.
pub(crate) const fn queues(depth: u64) -> Queues {
    let requests = depth + MORE_REQUESTS as u64;
    Queues { send: requests * SENDS_PER_REQUEST, receive: requests }
}

/// Bytes of message buffers for one connection: a receive for every request, and a copy of every reply for devices that
/// cannot send inline.
pub(crate) const fn message_bytes(depth: u64) -> u64 {
    (depth + MORE_REQUESTS as u64) * 2 * MESSAGE_BYTES as u64
}

pub(crate) struct BlockTarget {
    acceptor: Acceptor,
    hall: Hall,
    stopping: bool,
}

impl BlockTarget {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let acceptor = cx.acceptor(PROTOCOL)?.reconnecting();
        Ok(Box::new(Self { acceptor, hall: Hall::build(cx)?, stopping: false }))
    }

    fn is_done(&self) -> bool {
        let idle = self.acceptor.callers() == 0 && self.hall.is_empty();
        if self.stopping {
            idle
        } else {
            self.hall.clientele.has_served_all() && self.hall.is_empty()
        }
    }
}

impl Node for BlockTarget {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = self.acceptor.poll(now, &mut self.hall);
        match self.hall.run(now, record) {
            Ok(done) => work += done,
            Err(failure) => {
                record.error();
                self.hall.give_up(&failure);
                return Err(failure);
            }
        }
        for _ in 0..self.hall.clientele.take_errors() {
            record.error();
        }
        if self.hall.clientele.serves_no_more() {
            self.acceptor.close();
        }
        if !self.is_done() {
            return Ok(Turn::Worked(work));
        }
        match self.hall.verdict() {
            Some(failure) => Err(failure),
            None => Ok(Turn::Done),
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.acceptor.end();
        self.hall.announce_end();
    }

    fn arm<'a>(&'a mut self, doorbells: &mut Doorbells<'a>) {
        self.hall.arm(doorbells);
    }

    fn next_timeout(&self) -> Option<u64> {
        [self.hall.next_timeout(), self.acceptor.next_timeout()].into_iter().flatten().min()
    }
}

impl std::fmt::Debug for BlockTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockTarget").field("name", &self.hall.name()).finish_non_exhaustive()
    }
}

const _: () = assert!(MESSAGE_LEN as usize == MESSAGE_BYTES);
