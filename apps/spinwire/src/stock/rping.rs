//! `rping`: in each round the client offers its source, which the server READs, and then its sink, which the server
//! WRITEs; SENDs of 16 bytes say whose turn it is.

use std::cell::Cell;
use std::rc::Rc as Shared;
use std::sync::Arc;

use pmd_graph::app::{print, say};
use pmd_mem::Region;
use pmd_observe::Code;
use pmd_verbs::cm::{
    CmFailure, ConnParam, ConnectParams, EventKind, Id, IdError, LocalQp, Negotiated, PortSpace,
    Request, advance,
};
use pmd_verbs::roce::ids::{Psn, Rkey, WrId};
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::{QpState, Transport, masks};
use pmd_verbs::{
    Access, Completion, Cq, Data, Mr, Qp, Rc, RecvWr, RemoteAddr, WcOpcode, WcStatus, WorkRequest,
};

use super::args::{AddressFormat, RpingArgs};
use super::failure::Failure;
use super::host::{Host, address, options, region, resolve};
use super::patience::Patience;
use super::streams::{counted, silence};

/// Bytes of a message: address, key and length of a buffer, big-endian.
const INFO: u32 = 16;
/// Most bytes of a ping.
const LONGEST: u32 = 64 << 10;
/// Where messages are received, the data that a server holds and a client offers, and the client's sink.
const RECEIVE_AT: u64 = 0;
const DATA_AT: u64 = 4096;
const SINK_AT: u64 = DATA_AT + LONGEST as u64;
const REGION: u64 = SINK_AT + LONGEST as u64;

/// One end of a connection.
struct End<'a> {
    host: &'a Host,
    args: &'a RpingArgs,
    id: Id,
    sent: Cq,
    received: Cq,
    qp: Shared<Qp<Rc>>,
    mr: Mr,
    /// Of the wait in which the peer disconnected.
    last: Cell<Patience>,
}

pub(super) fn run(args: &RpingArgs) -> Result<(), Failure> {
    if args.server { serve(args) } else { ask(args) }
}

fn serve(args: &RpingArgs) -> Result<(), Failure> {
    let at = address(args.address.as_deref(), AddressFormat::Name)?;
    let host = Host::serving(at, args.gid_index, "-a", args.timeout)?;
    let listener = host.listen(PortSpace::Tcp, args.port)?;
    let region = region(REGION)?;
    say(format_args!("rping: serving at {} port {}", host.ip(), args.port));
    loop {
        // What one client left in the memory is nothing for the next.
        for at in [DATA_AT, SINK_AT] {
            region.write_at(at, &[0; LONGEST as usize]).map_err(Failure::local)?;
        }
        let served = client_of(&host, args, &listener, &region).and_then(|mut end| end.serve());
        match served.map(|rounds| counted(rounds.into(), "round")) {
            Ok(rounds) if args.persistent => say(format_args!("rping: {rounds}")),
            Ok(rounds) => return Ok(print(&format!("{rounds}\n"))?),
            Err(failure) if args.persistent => say(failure.verdict),
            Err(failure) => return Err(failure),
        }
    }
}

/// The next client that comes, accepted: its queue pair is ready, and a receive posted, before it can know of it.
fn client_of<'a>(
    host: &'a Host,
    args: &'a RpingArgs,
    listener: &Id,
    region: &Arc<Region>,
) -> Result<End<'a>, Failure> {
    let (id, request) = loop {
        let wait = host.limit.max(std::time::Duration::from_secs(1));
        match host.channel.request(listener, wait) {
            Err(CmFailure::Late { .. }) => {}
            other => break other?,
        }
    };
    if let (Request::Connection(request), true) = (&request, args.debug) {
        let peer = request.peer.map_or_else(
            || "a peer without an IP address".to_owned(),
            |peer| format!("{} port {}", peer.ip, peer.port),
        );
        say(format_args!("rping: a request of {peer}, path MTU {}", request.path_mtu));
    }
    let mr = host.register(region, Access::LOCAL_WRITE)?;
    let end = End::new(host, args, id, mr)?;
    let params = end.params();
    if args.own_qp {
        let terms = end.id.negotiate(&params)?;
        end.move_to(&terms, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
    }
    host.channel.accept(&end.id, &params, host.limit)?;
    Ok(end)
}

fn ask(args: &RpingArgs) -> Result<(), Failure> {
    let name = args.address.as_deref().unwrap_or_default();
    let server = resolve(name, args.port, AddressFormat::Name)?;
    let source = address(args.source.as_deref(), AddressFormat::Name)?;
    let host = Host::toward(server, source, args.gid_index, "-I", args.timeout)?;
    let id = host.channel.open(PortSpace::Tcp, server, host.limit)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mut end = End::new(&host, args, id, host.memory(REGION, rights)?)?;
    end.connect().map_err(|failure| host.unreached(failure, server))?;
    let mut rounds = 0;
    while args.count.is_none_or(|count| rounds < count) {
        end.ping(rounds)?;
        rounds += 1;
    }
    host.channel.disconnect(&end.id, host.limit)?;
    Ok(print(&format!("{}\n", counted(rounds.into(), "round")))?)
}

impl<'a> End<'a> {
    fn new(host: &'a Host, args: &'a RpingArgs, id: Id, mr: Mr) -> Result<Self, Failure> {
        let (sent, received) = (host.cq(16)?, host.cq(16)?);
        let options = options(&sent, &received, (4, 4), INFO);
        let qp = match args.own_qp {
            true => Shared::new(host.pd.create_qp::<Rc>(&options).map_err(Failure::local)?),
            false => id.create_qp::<Rc>(&host.pd, &options)?,
        };
        let last = Cell::new(Patience::new(host.limit));
        let end = Self { host, args, id, sent, received, qp, mr, last };
        if args.own_qp {
            // In INIT, where receives can be posted; what the peer may do is said anew with the terms.
            let init = QpAttr::new(QpState::Init);
            let masks = masks(Transport::Rc, QpState::Reset, QpState::Init);
            let mask = masks.map(|masks| masks.required).unwrap_or_default();
            end.qp.modify(&init, mask).map_err(Failure::local)?;
        }
        end.post_receive()?;
        Ok(end)
    }

    /// One READ and one WRITE at a time are enough for both.
    fn params(&self) -> ConnectParams<'static> {
        let param = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::DEFAULT };
        let [a, b, c, ..] = pmd_mem::os_entropy().to_ne_bytes();
        let psn = Psn::new(u32::from_ne_bytes([a, b, c, 0]));
        let own = LocalQp { qpn: self.qp.number(), psn, srq: false };
        ConnectParams { param, qp: self.args.own_qp.then_some(own), ..ConnectParams::default() }
    }

    fn connect(&self) -> Result<(), CmFailure> {
        let (channel, limit) = (&self.host.channel, self.host.limit);
        if !self.args.own_qp {
            return channel.connect(&self.id, &self.params(), limit).map(|_| ());
        }
        self.id.connect(&self.params())?;
        let wanted = "CONNECT_RESPONSE";
        let terms = match channel.outcome(&self.id, wanted, limit)? {
            EventKind::ConnectResponse(terms, _) => terms,
            got => return Err(CmFailure::Unexpected { wanted, got: got.into() }),
        };
        self.move_to(&terms, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
        Ok(self.id.establish(&[])?)
    }

    /// Brings the queue pair up, on terms that both ends have agreed on.
    fn move_to(&self, terms: &Negotiated, states: &[QpState]) -> Result<(), IdError> {
        Ok(states.iter().try_for_each(|state| advance(&*self.qp, terms, *state))?)
    }

    /// Serves a client until it disconnects; returns its rounds.
    fn serve(&mut self) -> Result<u32, Failure> {
        let (mut rounds, mut reads_next) = (0, true);
        while let Some((at, len)) = self.offered()? {
            let data = [self.mr.sge(DATA_AT, len)];
            let (request, opcode) = if reads_next {
                (WorkRequest::read(Data::Sges(&data), at), WcOpcode::Read)
            } else {
                (WorkRequest::write(Data::Sges(&data), at), WcOpcode::Write)
            };
            self.qp.post_send(&request).map_err(Failure::local)?;
            if !self.complete(opcode)? {
                let text = "the client disconnected in the middle of a round";
                return Err(self.last.get().judge(Failure::remote(Code::PeerDead, text)));
            }
            if reads_next && self.args.verbose {
                print(&format!("server ping data: {}\n", self.text(DATA_AT, len)?))?;
            }
            rounds += u32::from(!reads_next);
            reads_next = !reads_next;
            if !self.say(&[0; INFO as usize])? {
                break;
            }
        }
        Ok(rounds)
    }

    /// One round of a client.
    fn ping(&mut self, round: u32) -> Result<(), Failure> {
        let data = pattern(round, self.args.size);
        self.mr.region().write_at(DATA_AT, &data).map_err(Failure::local)?;
        for at in [DATA_AT, SINK_AT] {
            if !self.offer(at)? || self.heard()?.is_none() {
                let gone = Failure::remote(Code::PeerDead, "the server has disconnected");
                return Err(self.last.get().judge(gone));
            }
        }
        let mut back = vec![0; data.len()];
        self.mr.region().read_at(SINK_AT, &mut back).map_err(Failure::local)?;
        if let Some(at) = data.iter().zip(&back).position(|(sent, came)| sent != came) {
            let text = format!(
                "byte {at} of ping {round} came back as {:#04x}, not {:#04x}",
                back[at], data[at]
            );
            return Err(Failure::remote(Code::DataMismatch, text));
        }
        if self.args.verbose {
            print(&format!("ping data: {}\n", self.text(SINK_AT, self.args.size)?))?;
        }
        Ok(())
    }

    fn post_receive(&self) -> Result<(), Failure> {
        let sges = [self.mr.sge(RECEIVE_AT, INFO)];
        self.qp.post_recv(&RecvWr { wr_id: WrId(0), sges: &sges }).map_err(Failure::local)
    }

    fn text(&self, at: u64, len: u32) -> Result<String, Failure> {
        let mut text = vec![0; len as usize];
        self.mr.region().read_at(at, &mut text).map_err(Failure::local)?;
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned())
    }

    fn say(&self, info: &[u8; INFO as usize]) -> Result<bool, Failure> {
        let parts = [&info[..]];
        let send = WorkRequest::send(Data::Inline(&parts));
        self.qp.post_send(&send).map_err(Failure::local)?;
        self.complete(WcOpcode::Send)
    }

    /// Offers a buffer of this side.
    fn offer(&self, at: u64) -> Result<bool, Failure> {
        let RemoteAddr { addr, rkey } = self.mr.remote(at);
        let mut info = [0; INFO as usize];
        info[..8].copy_from_slice(&addr.to_be_bytes());
        info[8..12].copy_from_slice(&rkey.0.to_be_bytes());
        info[12..].copy_from_slice(&self.args.size.to_be_bytes());
        self.say(&info)
    }

    /// The buffer that the peer offers; `None` when it has disconnected.
    fn offered(&self) -> Result<Option<(RemoteAddr, u32)>, Failure> {
        let Some(info) = self.heard()? else { return Ok(None) };
        let mut words = info
            .chunks_exact(4)
            .map(|word| word.iter().fold(0, |n: u64, b| n << 8 | u64::from(*b)));
        let mut word = || words.next().unwrap_or_default();
        let (addr, rkey, len) = (word() << 32 | word(), word(), word());
        let key = u32::try_from(rkey).unwrap_or_default();
        match u32::try_from(len) {
            Ok(len) if len <= LONGEST => Ok(Some((RemoteAddr { addr, rkey: Rkey(key) }, len))),
            _ => {
                let text = format!("the client offers {len} bytes, {LONGEST} is the most");
                Err(Failure::remote(Code::Length, text))
            }
        }
    }

    /// The peer's next message; `None` when it has disconnected.
    fn heard(&self) -> Result<Option<[u8; INFO as usize]>, Failure> {
        let Some(completion) = self.next(&self.received)? else { return Ok(None) };
        if completion.byte_len != INFO {
            let text = format!("a message of {} bytes, and not of {INFO}", completion.byte_len);
            return Err(Failure::remote(Code::Length, text));
        }
        let mut info = [0; INFO as usize];
        self.mr.region().read_at(RECEIVE_AT, &mut info).map_err(Failure::local)?;
        self.post_receive()?;
        Ok(Some(info))
    }

    /// Waits for the end of a request. False: the peer has disconnected, which it may do before this end knows that its last
    /// message has come.
    fn complete(&self, wanted: WcOpcode) -> Result<bool, Failure> {
        match self.next(&self.sent)? {
            Some(completion) if completion.opcode == wanted => Ok(true),
            Some(other) => Err(Failure::local(format!("{:?} instead of {wanted:?}", other.opcode))),
            None => Ok(false),
        }
    }

    /// The next completion of a queue; `None` when the peer has disconnected.
    fn next(&self, cq: &Cq) -> Result<Option<Completion>, Failure> {
        let mut patience = Patience::new(self.host.limit);
        loop {
            let mut completion = None;
            cq.poll(1, |polled| completion = Some(polled));
            match completion {
                Some(done) if done.status == WcStatus::Success => return Ok(Some(done)),
                // The peer's DREQ has the queue pair flush, and may be found after that.
                Some(flushed) if flushed.status == WcStatus::WrFlush => {}
                Some(failed) => return Err(patience.judge(Failure::completion(&failed))),
                None => {}
            }
            match self.host.channel.poll() {
                Some(event) if event.id() != self.id.number() => drop(event),
                Some(event) if self.args.debug => say(format_args!("rping: {}", event.name())),
                Some(event) => match event.kind() {
                    EventKind::Disconnected(_) => {
                        self.last.set(patience);
                        return Ok(None);
                    }
                    kind if kind.is_failure() => return Err(Failure::event(kind)),
                    _ => {}
                },
                None => std::thread::yield_now(),
            }
            if matches!(self.id.state(), pmd_verbs::cm::IdState::Disconnected) {
                self.last.set(patience);
                return Ok(None);
            }
            if patience.is_over() {
                let text = format!("the peer has done nothing for {:?}", self.host.limit);
                return Err(silence(&self.qp, &self.sent, &text));
            }
        }
    }
}

/// What librdmacm's client sends: a text, letters that move on with each round, and a zero at the end.
fn pattern(round: u32, size: u32) -> Vec<u8> {
    const LETTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';
    let count = u32::from(LETTERS.end() - LETTERS.start()) + 1;
    let text = format!("rdma-ping-{round}: ");
    let letter =
        |at: u32| LETTERS.start() + u8::try_from((round % count + at) % count).unwrap_or_default();
    let len = u32::try_from(text.len()).unwrap_or_default();
    let mut bytes = text.into_bytes();
    bytes.extend((0..size.saturating_sub(len + 1)).map(letter));
    bytes.resize(size as usize - 1, 0);
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_those_of_librdmacm() {
        let first = pattern(0, 64);
        assert_eq!(first.len(), 64);
        assert!(first.starts_with(b"rdma-ping-0: ABCDEFG") && first.ends_with(&[0]));
        assert!(pattern(1, 64).starts_with(b"rdma-ping-1: BCDEFGH"));
        assert!(pattern(57, 64).starts_with(b"rdma-ping-57: zABCD"), "after z comes A");
        assert_eq!(pattern(u32::MAX - 1, 26).len(), 26);
    }
}
