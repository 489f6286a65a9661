//! A client's requests out, and its replies in.

use std::time::Duration;

use pmd_observe::{Code, Owner};
use pmd_verbs::endpoint::{Endpoint, Local, LocalKey, Op, Token};

use super::{MESSAGE_BYTES, MESSAGE_LEN, Reply, Request, Status};
use crate::edge::{Line, Peer};
use crate::extent::Extent;
use crate::failure::Failure;

/// Message buffers of one connection of a client: receives for replies, then copies of requests for devices that cannot
/// send inline.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    messages: Extent,
}

impl Post {
    /// In memory of [`Post::bytes`].
    pub(crate) fn new(messages: Extent) -> Self {
        Self { messages }
    }

    /// Bytes for so many requests in flight.
    pub(crate) const fn bytes(requests: u64) -> u64 {
        requests * 2 * MESSAGE_BYTES as u64
    }

    /// Requests that can be in flight.
    pub(crate) fn requests(&self) -> u32 {
        u32::try_from(self.messages.len() / Self::bytes(1)).unwrap_or(u32::MAX)
    }

    /// The region of the messages.
    pub(crate) fn extent(&self) -> &Extent {
        &self.messages
    }

    /// Posts a receive for every reply; `token` names each by its number.
    pub(crate) fn equip(
        &self,
        endpoint: &mut dyn Endpoint,
        token: impl Fn(u32) -> Token,
    ) -> Result<LocalKey, Failure> {
        let key = endpoint.register(self.messages.region())?;
        for number in 0..self.requests() {
            endpoint.submit(Op::Recv { into: self.receive(key, number) }, token(number))?;
        }
        Ok(key)
    }

    /// Posts them again, on a connection that is as new.
    pub(crate) fn renew(
        &self,
        line: &mut Line,
        now: u64,
        key: LocalKey,
        token: impl Fn(u32) -> Token,
    ) -> Result<(), Failure> {
        for number in 0..self.requests() {
            line.submit(now, Op::Recv { into: self.receive(key, number) }, token(number))?;
        }
        Ok(())
    }

    /// Sends a request, inline where the device can. `false`: not now.
    #[inline]
    pub(crate) fn send(
        &self,
        line: &mut Line,
        now: u64,
        key: LocalKey,
        request: &Request,
        token: Token,
    ) -> Result<bool, Failure> {
        let bytes = request.encode();
        if line.caps().inline >= MESSAGE_LEN {
            return line.submit(now, Op::SendInline { bytes: &bytes, imm: None }, token);
        }
        let copies = self.messages.len() / 2;
        let at = copies + u64::from(request.tag) * u64::from(MESSAGE_LEN);
        self.messages.write_at(at, &bytes)?;
        let from = self.messages.local(key, at, MESSAGE_LEN);
        line.submit(now, Op::Send { from, imm: None }, token)
    }

    /// Takes the reply of `len` bytes out of the receive of this number, and posts the receive again as `token`.
    #[inline]
    pub(crate) fn take(
        &self,
        line: &mut Line,
        now: u64,
        key: LocalKey,
        (number, len): (u32, u32),
        token: Token,
    ) -> Result<Reply, Failure> {
        let mut bytes = [0; MESSAGE_BYTES];
        self.messages.read_at(u64::from(number) * u64::from(MESSAGE_LEN), &mut bytes)?;
        line.submit(now, Op::Recv { into: self.receive(key, number) }, token)?;
        Reply::decode(&bytes[..MESSAGE_BYTES.min(len as usize)])
            .map_err(|error| nonsense(line, &error.to_string()))
    }

    fn receive(&self, key: LocalKey, number: u32) -> Local {
        self.messages.local(key, u64::from(number) * u64::from(MESSAGE_LEN), MESSAGE_LEN)
    }
}

/// A request has waited for so long, though the target lives. `store_ms`: for how long the store has had one, as the target
/// says, if it was asked.
pub(crate) fn unanswered(
    line: &Line,
    node: &str,
    waited: Duration,
    store_ms: Option<u64>,
) -> Failure {
    let (peer, ms) = (line.peer(), waited.as_millis());
    let failure = match store_ms {
        Some(store_ms) if store_ms > 0 => {
            let summary = format!("the store of {peer} has not answered a request for {ms} ms");
            Failure::new(Code::StoreStall, Owner::Remote, summary).because(format!(
                "the target lives, and says that its store had a request for {store_ms} ms"
            ))
        }
        Some(_) => {
            let summary = format!("{peer} has not answered a request for {ms} ms");
            Failure::new(Code::ResponderSlow, Owner::Remote, summary)
                .because("the target lives, and says that its store has no request")
        }
        None => {
            let summary = format!("{peer} has not answered a request for {ms} ms");
            Failure::new(Code::ResponderSlow, Owner::Remote, summary)
                .because("the connection stands; the target has not said how its store does")
        }
    };
    failure.turn(format!("node.{node}.request_timeout"))
}

/// The target was started again, and has not what it had.
pub(crate) fn forgotten(peer: &Peer) -> Failure {
    let summary = format!("{peer} was started again, and has lost what it stored");
    Failure::new(Code::DataMismatch, Owner::Remote, summary)
        .because("a store in memory, or in a file without a name, ends with its process; one in a named file keeps its blocks")
        .turn(format!("node.{}.backend", peer.node))
}

/// The peer does not keep to the protocol.
pub(crate) fn nonsense(line: &Line, what: &str) -> Failure {
    let summary = format!("{} does not keep to the protocol: {what}", line.peer());
    Failure::new(Code::InvalidRequest, Owner::Remote, summary)
}

/// A request was answered with another status than [`Status::Ok`].
pub(crate) fn refused(line: &Line, reply: &Reply, (offset, len): (u64, u32)) -> Failure {
    let peer = line.peer();
    let block = format!("the block of {len} bytes at {offset}");
    let failed = |why: String| Failure::new(Code::RemoteOperation, Owner::Remote, why);
    let errno = || std::io::Error::from_raw_os_error(i32::try_from(reply.value).unwrap_or(0));
    match reply.status {
        Status::BadCrc => {
            let summary = format!("{block} has another checksum at {peer} than here");
            Failure::new(Code::DataMismatch, Owner::Remote, summary)
                .because(format!("CRC-32C there: {:#010x}", reply.value))
        }
        Status::OutOfRange => {
            let summary = format!("{block} lies beyond what {peer} holds: raise memory.size there");
            Failure::new(Code::Length, Owner::Config, summary).turn("memory.size")
        }
        Status::NoSpace => failed(format!("{block} found no room in the store of {peer}"))
            .because(errno().to_string()),
        Status::Io => {
            failed(format!("the store of {peer} failed with {block}")).because(errno().to_string())
        }
        Status::Short => failed(format!("the store of {peer} ends within {block}"))
            .because(format!("{} bytes were there: somebody cut the file", reply.value)),
        Status::Misaligned => failed(format!("{block} does not fit the direct I/O of {peer}"))
            .because(format!("it begins or ends at no multiple of {} bytes", reply.value))
            .turn(format!("node.{}.direct", peer.node)),
        status => nonsense(line, &format!("{block} was refused as {}", status.name())),
    }
}
