//! The channel between two ends that connect: in one process, or over TCP.
//!
//! A channel never blocks its owner: a lcore polls it between two turns of its loop. What can
//! block, reading a socket or waiting for one, happens in a small thread of its own.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;

use super::frame::{Frame, SEAL_VERSION, Unsealed, framed, read_frame};
use super::guard::{CallError, Exposed, Guard};
use super::message::Message;
use super::psk::Psk;
use super::seal::{Opener, Seal, SealAsk, SealError, Sealer};

/// Messages of another process that wait to be polled. A peer that sends more waits until they are, by the window of its socket.
const INBOX: usize = 32;
/// Bytes that wait for a peer beyond what its socket takes: one that leaves so many unread does not read.
const UNSENT_MAX: usize = 4 << 20;
/// How often a waiting thread looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a listener may take to answer who wants a sealed channel.
const SEAL_WAIT: Duration = Duration::from_secs(5);

/// How often a channel's own thread says that its process lives: nobody asks so often who has a reason.
const SIGNS_OF_LIFE: u32 = 16;

/// How a channel was lost ([`Message::Lost`]) to a peer that sent something else than messages.
pub const FOREIGN: &str = "the peer does not speak this protocol";
/// How it was lost where a sealed message is not what the peer has sent.
pub const FORGED: &str = "a message of the peer was changed on its way, or played again";
/// How it was lost to a peer that does not read.
const DEAF: &str = "the peer does not read what it is told";

/// One end of a control channel.
#[derive(Debug)]
pub struct Channel {
    out: Out,
    inbox: Receiver<Message>,
    peer: String,
}

#[derive(Debug)]
enum Out {
    Process(Sender<Message>),
    Tcp(Arc<Socket>),
}

/// A connection that the owner of a channel and the channel's own thread both write to, a message at a time. Neither ever
/// waits for the peer to read.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    outgoing: Mutex<Outgoing>,
    /// Whether there is something unsent.
    waits: AtomicBool,
    deaf: AtomicBool,
}

/// Messages on their way out. They are sealed in the order in which they leave.
#[derive(Debug)]
struct Outgoing {
    sealer: Option<Sealer>,
    /// Of messages that the peer's socket had no room for.
    unsent: Vec<u8>,
}

impl Outgoing {
    fn frame(&mut self, message: &Message) -> io::Result<Vec<u8>> {
        let plain = message.plain();
        match &mut self.sealer {
            None => framed(&plain, &[]),
            Some(sealer) => {
                let sealed = sealer.seal(&plain).map_err(|error| {
                    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
                })?;
                Frame::Sealed(sealed).encode()
            }
        }
    }
}

impl Socket {
    fn send(&self, message: &Message) -> io::Result<()> {
        let mut outgoing = self.outgoing();
        let frame = outgoing.frame(message)?;
        outgoing.unsent.extend(frame);
        self.push(&mut outgoing.unsent)?;
        if outgoing.unsent.len() > UNSENT_MAX {
            self.deaf.store(true, Ordering::Relaxed);
            self.stream.shutdown(Shutdown::Both)?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, DEAF));
        }
        Ok(())
    }

    /// Goes on with what the peer's socket had no room for.
    fn flush(&self) {
        if self.waits.load(Ordering::Relaxed) {
            // A peer that is gone is noticed by reading.
            drop(self.push(&mut self.outgoing().unsent));
        }
    }

    fn push(&self, unsent: &mut Vec<u8>) -> io::Result<()> {
        let mut sent = 0;
        let pushed = loop {
            if sent == unsent.len() {
                break Ok(());
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.stream, &unsent[sent..], flags) {
                Ok(more) => sent += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break Ok(()),
                Err(error) => break Err(error.into()),
            }
        };
        unsent.drain(..sent);
        self.waits.store(!unsent.is_empty(), Ordering::Relaxed);
        pushed
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    /// Who is at the other end, for messages: an address, or a node's name.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether the other end is in this process: then it lives as long as this one.
    pub const fn is_in_process(&self) -> bool {
        matches!(self.out, Out::Process(_))
    }

    /// Whether the other end is on this host, so that nothing can be lost on the way.
    pub fn is_on_this_host(&self) -> bool {
        let Out::Tcp(socket) = &self.out else { return true };
        let ends =
            socket.stream.peer_addr().and_then(|peer| Ok((peer, socket.stream.local_addr()?)));
        ends.is_ok_and(|(peer, own)| peer.ip().is_loopback() || peer.ip() == own.ip())
    }

    /// Where the other end is, if it is in another process.
    pub fn source(&self) -> Option<IpAddr> {
        let Out::Tcp(socket) = &self.out else { return None };
        socket.stream.peer_addr().ok().map(|peer| peer.ip())
    }

    /// Sends one message, without ever waiting: what the peer's socket has no room for leaves when it has.
    ///
    /// # Errors
    /// When the other end is gone, or does not read.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        match &mut self.out {
            Out::Process(sender) => {
                sender.send(message.clone()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
            }
            Out::Tcp(socket) => socket.send(message),
        }
    }

    /// The next message, if one has come.
    pub fn poll(&mut self) -> Option<Message> {
        if let Out::Tcp(socket) = &self.out {
            socket.flush();
        }
        match self.inbox.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Message::Lost("the channel is closed".into())),
        }
    }

    /// The next message, waiting at most until `deadline`.
    pub fn wait(&mut self, deadline: Instant) -> Option<Message> {
        match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(message) => Some(message),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Some(Message::Lost("the channel is closed".into()))
            }
        }
    }

    /// Whether nobody on the way can read or change what is said: it is sealed, or never leaves this process.
    pub fn is_sealed(&self) -> bool {
        match &self.out {
            Out::Process(_) => true,
            Out::Tcp(socket) => socket.outgoing().sealer.is_some(),
        }
    }

    /// A channel over a connection; `first`: what has been read of it already.
    pub(super) fn over_tcp(
        stream: TcpStream,
        peer: SocketAddr,
        first: Option<Message>,
        seal: Option<Seal>,
    ) -> io::Result<Self> {
        let (sealer, opener) = seal.map(|seal| (seal.sealer, seal.opener)).unzip();
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        let socket = Arc::new(Socket {
            stream,
            outgoing: Mutex::new(Outgoing { sealer, unsent: Vec::new() }),
            waits: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
        });
        let reader = Arc::clone(&socket);
        let (sender, inbox) = mpsc::sync_channel(INBOX);
        if let Some(first) = first {
            // The receiver is here.
            drop(sender.try_send(first));
        }
        thread::Builder::new()
            .name("channel".into())
            .spawn(move || read_messages(&reader, opener, &sender))?;
        Ok(Self { out: Out::Tcp(socket), inbox, peer: peer.to_string() })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Out::Tcp(socket) = &self.out {
            // The reading thread ends with the socket. An error means that it has ended already.
            if let Err(error) = socket.stream.shutdown(Shutdown::Both) {
                debug_assert_ne!(error.kind(), io::ErrorKind::InvalidInput);
            }
        }
    }
}

/// Reads until the socket ends or talks nonsense; the last message says how it ended.
fn read_messages(socket: &Socket, mut opener: Option<Opener>, sender: &SyncSender<Message>) {
    let mut signs = SIGNS_OF_LIFE;
    let last = loop {
        match read_frame(&mut &socket.stream).and_then(|frame| opened(frame, opener.as_mut())) {
            Ok(message) => {
                if matches!(message, Message::Ask(_)) && signs > 0 {
                    signs -= 1;
                    // A peer that is gone already is noticed by reading.
                    drop(socket.send(&Message::Lives));
                }
                if sender.send(message).is_err() {
                    return;
                }
            }
            Err(_) if socket.deaf.load(Ordering::Relaxed) => break DEAF.to_string(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                break "the peer closed its end of the control channel".to_string();
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => break FOREIGN.to_string(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                break FORGED.to_string();
            }
            Err(error) => break format!("the control channel failed: {error}"),
        }
    };
    // Nobody listens any more when the channel was dropped first.
    drop(sender.send(Message::Lost(last)));
}

/// The message in a frame.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] where there is none, [`io::ErrorKind::PermissionDenied`] where the peer has not sealed it.
fn opened(frame: Frame, opener: Option<&mut Opener>) -> io::Result<Message> {
    match (frame, opener) {
        (Frame::Clear(message), None) => Ok(message),
        (Frame::Sealed(sealed), Some(opener)) => {
            let plain = opener.open(&sealed).map_err(|_| io::ErrorKind::PermissionDenied)?;
            Message::from_plain(&plain).ok_or_else(|| io::ErrorKind::InvalidData.into())
        }
        // Whoever is on the way can put this there, and nothing else.
        (_, Some(_)) => Err(io::ErrorKind::PermissionDenied.into()),
        (_, None) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Both ends of a channel inside one process. `a` and `b` are the names that the ends see of each
/// other.
pub fn channel_pair(a: &str, b: &str) -> (Channel, Channel) {
    let (to_b, at_b) = mpsc::channel();
    let (to_a, at_a) = mpsc::channel();
    (
        Channel { out: Out::Process(to_b), inbox: at_a, peer: b.into() },
        Channel { out: Out::Process(to_a), inbox: at_b, peer: a.into() },
    )
}

/// A TCP connection being made.
#[derive(Debug)]
pub struct Connecting {
    result: Receiver<Result<Channel, CallError>>,
    wanted: Arc<AtomicBool>,
}

impl Connecting {
    /// The channel or the reason why there is none, once that is known.
    pub fn poll(&mut self) -> Option<Result<Channel, CallError>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(io::Error::from(io::ErrorKind::BrokenPipe).into()))
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
    }
}

/// Connects to a listener, trying again until `timeout` while nobody listens: two processes that
/// start together need no order. What `guard` seals is sealed before there is a channel.
///
/// # Errors
/// [`CallError::Exposed`] where the channel would be in the clear, and when the thread that tries cannot be started.
pub fn connect(to: SocketAddr, timeout: Duration, guard: Guard) -> Result<Connecting, CallError> {
    if !guard.admits(to) {
        return Err(Exposed(to).into());
    }
    let (sender, result) = mpsc::channel();
    let wanted = Arc::new(AtomicBool::new(true));
    let still_wanted = Arc::clone(&wanted);
    thread::Builder::new().name("connect".into()).spawn(move || {
        let deadline = Instant::now() + timeout;
        let outcome = loop {
            let left =
                deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&to, left) {
                Ok(stream) => break over(stream, to, guard.key(), deadline),
                Err(error) => {
                    if !still_wanted.load(Ordering::Relaxed)
                        || Instant::now() + LOOK_AGAIN >= deadline
                    {
                        break Err(error.into());
                    }
                }
            }
            thread::sleep(LOOK_AGAIN);
        };
        // Nobody waits any more when `Connecting` was dropped first; the socket closes with it.
        drop(sender.send(outcome));
    })?;
    Ok(Connecting { result, wanted })
}

/// The channel over a connection that was just made, sealed if there is a key.
fn over(
    stream: TcpStream,
    to: SocketAddr,
    key: Option<&Psk>,
    deadline: Instant,
) -> Result<Channel, CallError> {
    let seal = key.map(|key| sealed(&stream, key, deadline)).transpose()?;
    Ok(Channel::over_tcp(stream, to, None, seal)?)
}

/// Seals a connection with whoever listens there; bounded by `deadline`, and by [`SEAL_WAIT`].
fn sealed(stream: &TcpStream, key: &Psk, deadline: Instant) -> Result<Seal, CallError> {
    let (waiting, bytes) = SealAsk::begin(key).map_err(CallError::Unproven)?;
    let ask = Frame::Ask { version: SEAL_VERSION, bytes }.encode()?;
    let until = deadline.min(Instant::now() + SEAL_WAIT);
    let mut timely = Timely { stream, until };
    timely.stream.write_all(&ask)?;
    let answer = read_frame(&mut timely).map_err(|error| match error.kind() {
        // What knows nothing of this hangs up, or says something else.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => CallError::Foreign,
        io::ErrorKind::ConnectionReset => CallError::Foreign,
        _ => error.into(),
    })?;
    stream.set_read_timeout(None)?;
    match answer {
        Frame::Answer(bytes) => waiting.finish(&bytes).map_err(CallError::Unproven),
        Frame::Unsealed(Unsealed::NoKey) => Err(CallError::NoKey),
        Frame::Unsealed(Unsealed::OtherKey) => Err(CallError::OtherKey),
        // It seals as this side does, and was asked in another version: not by these bytes.
        Frame::Unsealed(Unsealed::Version(SEAL_VERSION)) => {
            Err(CallError::Unproven(SealError::Forged))
        }
        Frame::Unsealed(Unsealed::Version(theirs)) => {
            Err(CallError::Version { theirs, ours: SEAL_VERSION })
        }
        Frame::Clear(Message::Refused(text)) => Err(CallError::Refused(text)),
        Frame::Sealed(_) => Err(CallError::Unproven(SealError::Forged)),
        Frame::Clear(_) | Frame::Ask { .. } => Err(CallError::Foreign),
    }
}

/// A connection of which everything that is read has come by then, however slowly it drips.
struct Timely<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Read for Timely<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time");
        if left.is_zero() {
            return Err(late());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use pmd_ledger::recovery;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// Both ends of a connection.
    fn connected() -> (Channel, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let connecting = connect(to, Duration::from_secs(10), Guard::Loopback).unwrap();
        let (stream, from) = listener.accept().unwrap();
        let there = Channel::over_tcp(stream, from, None, None).unwrap();
        (connecting.result.recv().unwrap().unwrap(), there)
    }

    #[test]
    fn messages_cross_tcp_in_order() {
        let (mut here, mut there) = connected();
        let sent = [
            Message::Hello(vec![1, 2, 3]),
            Message::Ready,
            Message::Refused("no".into()),
            Message::Evidence(vec![4]),
            Message::Recovery(recovery::Message::Failed { generation: 1 }, Vec::new()),
            Message::Recovery(recovery::Message::Hello { generation: 1 << 40 }, vec![9; 88]),
            Message::Recovery(recovery::Message::Ready { generation: u64::MAX }, Vec::new()),
            Message::Recovery(recovery::Message::Behind { generation: 3 }, Vec::new()),
            Message::Farewell(vec![5]),
            Message::Bye,
        ];
        for message in &sent {
            here.send(message).unwrap();
        }
        for message in sent {
            assert_eq!(there.wait(soon()), Some(message));
        }
        drop(here);
        assert!(matches!(there.wait(soon()), Some(Message::Lost(_))));
    }

    /// An owner that looks at nothing is told apart from a process that does not run.
    #[test]
    fn a_process_says_that_it_lives_though_its_owner_does_not_look() {
        let (mut here, mut there) = connected();
        assert!(here.is_on_this_host() && !here.is_in_process());
        for _ in 0..2 * SIGNS_OF_LIFE {
            here.send(&Message::Ask(vec![1])).unwrap();
        }
        for _ in 0..SIGNS_OF_LIFE {
            assert_eq!(here.wait(soon()), Some(Message::Lives));
        }
        there.send(&Message::Bye).unwrap();
        assert_eq!(here.wait(soon()), Some(Message::Bye), "and not without end");
        assert_eq!(there.wait(soon()), Some(Message::Ask(vec![1])));
    }

    #[test]
    fn whoever_talks_nonsense_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let (stream, from) = listener.accept().unwrap();
        let mut there = Channel::over_tcp(stream, from, None, None).unwrap();
        assert_eq!(there.wait(soon()), Some(Message::Lost(FOREIGN.into())));
    }

    /// Whoever writes to a peer that does not read is not held up by it, and lets it go before memory runs out.
    #[test]
    fn a_peer_that_does_not_read_holds_nobody_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let deaf = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        let mut here = Channel::over_tcp(stream, from, None, None).unwrap();
        let message = Message::Evidence(vec![7; 60_000]);
        let sent = (0..10_000).take_while(|_| here.send(&message).is_ok()).count();
        assert!((UNSENT_MAX / 60_000..10_000).contains(&sent), "{sent}");
        assert_eq!(here.wait(soon()), Some(Message::Lost(DEAF.into())));
        drop(deaf);
    }

    /// What a slow reader had no room for comes later, whole and in order.
    #[test]
    fn what_had_no_room_leaves_when_the_owner_looks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        let mut here = Channel::over_tcp(stream, from, None, None).unwrap();
        let Out::Tcp(socket) = &here.out else { panic!("it is a socket") };
        let socket = Arc::clone(socket);
        let mut sent = 0_u8;
        while !socket.waits.load(Ordering::Relaxed) {
            here.send(&Message::Evidence(vec![sent; 60_000])).unwrap();
            sent = sent.wrapping_add(1);
        }
        here.send(&Message::Bye).unwrap();
        let reader = thread::spawn(move || {
            let mut heard = Vec::new();
            while heard.last() != Some(&Message::Bye) {
                heard.push(opened(read_frame(&mut slow).unwrap(), None).unwrap());
            }
            heard
        });
        while socket.waits.load(Ordering::Relaxed) {
            assert_eq!(here.poll(), None);
            thread::yield_now();
        }
        let heard = reader.join().unwrap();
        let expected = (0..sent).map(|fill| Message::Evidence(vec![fill; 60_000]));
        assert!(heard.into_iter().eq(expected.chain([Message::Bye])));
    }

    #[test]
    fn nobody_listening_is_an_error_in_time() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let connecting = connect(port, Duration::from_millis(120), Guard::Loopback).unwrap();
        let outcome = connecting.result.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(
            matches!(&outcome, Err(CallError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused),
            "{outcome:?}"
        );
    }

    #[test]
    fn the_pair_sees_its_other_half_go() {
        let (mut a, b) = channel_pair("client", "target");
        assert_eq!(a.peer(), "target");
        assert_eq!(a.poll(), None);
        drop(b);
        assert!(matches!(a.poll(), Some(Message::Lost(_))));
    }
}
