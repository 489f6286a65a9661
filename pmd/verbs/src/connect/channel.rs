//! The channel between two ends that connect: in one process, or over TCP.
//!
//! A channel never blocks its owner: a lcore polls it between two turns of its loop. What can
//! block, reading a socket or waiting for one, happens in a small thread of its own.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pmd_ledger::recovery;

/// Longest message, bytes: a hello with all its private data fits many times.
const MAX_MESSAGE: usize = 64 * 1024;
/// Messages of another process that wait to be polled. A peer that sends more waits until they are, by the window of its socket.
const INBOX: usize = 32;
/// How long a peer may take to read one message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a waiting thread looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How often a channel's own thread says that its process lives: nobody asks so often who has a reason.
const SIGNS_OF_LIFE: u32 = 16;

/// How a channel was lost ([`Message::Lost`]) to a peer that sent something else than messages.
pub const FOREIGN: &str = "the peer does not speak this protocol";

/// What one end tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Connection data, as [`super::Hello`] encodes it.
    Hello(Vec<u8>),
    /// The connecting side is ready to be sent to.
    Ready,
    /// This side does not connect, and why.
    Refused(String),
    /// This side is done and leaves in peace.
    Bye,
    /// The other end is gone without a word. Never sent, only received.
    Lost(String),
    /// Something is wrong: this is what this side knows of itself, as [`super::Inquiry`] encodes it, and the other side is
    /// asked for the same.
    Ask(Vec<u8>),
    /// What this side knows of itself, unasked or as the answer.
    Evidence(Vec<u8>),
    /// As [`Message::Bye`], with what this side knows of itself. The other side answers with the same of its own, for who wants
    /// it.
    Farewell(Vec<u8>),
    /// The process lives, whatever its lcores do: a channel's own thread answers so when it is asked.
    Lives,
    /// A step of bringing the connection back; with [`recovery::Message::Hello`], how to reach the queue pair.
    Recovery(recovery::Message, Vec<u8>),
}

/// Code of the first recovery message; the others follow.
const RECOVERY: u8 = 16;

fn recovery_parts(message: recovery::Message) -> (u8, u64) {
    use recovery::Message::{Behind, Failed, Hello, Ready};
    match message {
        Failed { generation } => (RECOVERY, generation),
        Hello { generation } => (RECOVERY + 1, generation),
        Ready { generation } => (RECOVERY + 2, generation),
        Behind { generation } => (RECOVERY + 3, generation),
    }
}

fn recovery_from(code: u8, body: &[u8]) -> Option<Message> {
    use recovery::Message::{Behind, Failed, Hello, Ready};
    let (generation, rest) = body.split_first_chunk()?;
    let generation = u64::from_be_bytes(*generation);
    let message = match code {
        16 => Failed { generation },
        17 => Hello { generation },
        18 => Ready { generation },
        19 => Behind { generation },
        _ => return None,
    };
    let fits = matches!(message, Hello { .. }) != rest.is_empty();
    fits.then(|| Message::Recovery(message, rest.to_vec()))
}

impl Message {
    fn code(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Ready => 2,
            Self::Refused(_) => 3,
            Self::Bye => 4,
            Self::Lost(_) => 5,
            Self::Ask(_) => 6,
            Self::Evidence(_) => 7,
            Self::Lives => 8,
            Self::Recovery(message, _) => recovery_parts(*message).0,
            Self::Farewell(_) => 9,
        }
    }

    fn body(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Hello(bytes)
            | Self::Ask(bytes)
            | Self::Evidence(bytes)
            | Self::Farewell(bytes) => bytes.into(),
            Self::Refused(text) | Self::Lost(text) => text.as_bytes().into(),
            Self::Ready | Self::Bye | Self::Lives => Cow::default(),
            Self::Recovery(message, hello) => {
                let (_, generation) = recovery_parts(*message);
                [&generation.to_be_bytes()[..], hello].concat().into()
            }
        }
    }

    fn from_parts(code: u8, body: Vec<u8>) -> Option<Self> {
        let text = |body: Vec<u8>| {
            String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).collect()
        };
        Some(match code {
            1 => Self::Hello(body),
            2 if body.is_empty() => Self::Ready,
            3 => Self::Refused(text(body)),
            4 if body.is_empty() => Self::Bye,
            6 => Self::Ask(body),
            7 => Self::Evidence(body),
            8 if body.is_empty() => Self::Lives,
            9 => Self::Farewell(body),
            RECOVERY.. => return recovery_from(code, &body),
            _ => return None,
        })
    }
}

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

/// A connection that the owner of a channel and the channel's own thread both write to, a message at a time.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    writing: Mutex<()>,
}

impl Socket {
    fn send(&self, message: &Message) -> io::Result<()> {
        let body = message.body();
        let len = u32::try_from(body.len() + 1)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let frame = [&len.to_be_bytes()[..], &[message.code()], &*body].concat();
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.stream).write_all(&frame)
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

    /// Sends one message.
    ///
    /// # Errors
    /// When the other end is gone, or does not read within five seconds.
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

    fn over_tcp(stream: TcpStream, peer: SocketAddr) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let socket = Arc::new(Socket { stream, writing: Mutex::new(()) });
        let reader = Arc::clone(&socket);
        let (sender, inbox) = mpsc::sync_channel(INBOX);
        thread::Builder::new()
            .name("channel".into())
            .spawn(move || read_messages(&reader, &sender))?;
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
fn read_messages(socket: &Socket, sender: &SyncSender<Message>) {
    let mut signs = SIGNS_OF_LIFE;
    let last = loop {
        match read_message(&mut &socket.stream) {
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
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                break "the peer closed its end of the control channel".to_string();
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => break FOREIGN.to_string(),
            Err(error) => break format!("the control channel failed: {error}"),
        }
    };
    // Nobody listens any more when the channel was dropped first.
    drop(sender.send(Message::Lost(last)));
}

fn read_message(stream: &mut impl Read) -> io::Result<Message> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len == 0 || len > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    let code = body.remove(0);
    Message::from_parts(code, body).ok_or_else(|| io::ErrorKind::InvalidData.into())
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
    result: Receiver<io::Result<Channel>>,
    wanted: Arc<AtomicBool>,
}

impl Connecting {
    /// The channel or the reason why there is none, once that is known.
    pub fn poll(&mut self) -> Option<io::Result<Channel>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(io::Error::from(io::ErrorKind::BrokenPipe)))
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
/// start together need no order.
///
/// # Errors
/// When the thread that tries cannot be started.
pub fn connect(to: SocketAddr, timeout: Duration) -> io::Result<Connecting> {
    let (sender, result) = mpsc::channel();
    let wanted = Arc::new(AtomicBool::new(true));
    let still_wanted = Arc::clone(&wanted);
    thread::Builder::new().name("connect".into()).spawn(move || {
        let deadline = Instant::now() + timeout;
        let outcome = loop {
            let left =
                deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&to, left) {
                Ok(stream) => break Channel::over_tcp(stream, to),
                Err(error) => {
                    if !still_wanted.load(Ordering::Relaxed)
                        || Instant::now() + LOOK_AGAIN >= deadline
                    {
                        break Err(error);
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

/// A listening socket whose connections arrive as channels.
#[derive(Debug)]
pub struct Listener {
    arrivals: Receiver<Channel>,
    address: SocketAddr,
    wanted: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Listener {
    /// Where it listens; the port is the real one where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, if one has come.
    pub fn poll(&mut self) -> Option<Channel> {
        self.arrivals.try_recv().ok()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It looks at the flag several times a second; a panic there has been printed already.
            drop(thread.join());
        }
    }
}

/// Listens for connecting peers.
///
/// # Errors
/// As `bind(2)`; [`io::ErrorKind::AddrInUse`] when somebody else listens there.
pub fn listen(at: SocketAddr) -> io::Result<Listener> {
    let socket = TcpListener::bind(at)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let (sender, arrivals) = mpsc::channel();
    let wanted = Arc::new(AtomicBool::new(true));
    let still_wanted = Arc::clone(&wanted);
    let thread = thread::Builder::new().name("listen".into()).spawn(move || {
        while still_wanted.load(Ordering::Relaxed) {
            match socket.accept() {
                Ok((stream, peer)) => {
                    if let Ok(channel) = Channel::over_tcp(stream, peer)
                        && sender.send(channel).is_err()
                    {
                        return;
                    }
                }
                // Nobody there, or no descriptor left: in both cases later is better.
                Err(_) => thread::sleep(LOOK_AGAIN),
            }
        }
    })?;
    Ok(Listener { arrivals, address, wanted, thread: Some(thread) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn accepted(listener: &mut Listener) -> Channel {
        listener.arrivals.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    #[test]
    fn messages_cross_tcp_in_order() {
        let mut listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting = connect(listener.address(), Duration::from_secs(10)).unwrap();
        let mut here = connecting.result.recv().unwrap().unwrap();
        let mut there = accepted(&mut listener);
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
        let mut listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting = connect(listener.address(), Duration::from_secs(10)).unwrap();
        let mut here = connecting.result.recv().unwrap().unwrap();
        let mut there = accepted(&mut listener);
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
    fn a_stranger_is_told_apart() {
        let mut listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut stranger = TcpStream::connect(listener.address()).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut there = accepted(&mut listener);
        let Some(Message::Lost(reason)) = there.wait(soon()) else {
            panic!("the stranger was understood")
        };
        assert!(reason.contains("protocol"), "{reason}");
    }

    #[test]
    fn nobody_listening_is_an_error_in_time() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let connecting = connect(port, Duration::from_millis(120)).unwrap();
        let outcome = connecting.result.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
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
