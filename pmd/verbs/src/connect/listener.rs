//! A listening socket: whoever calls and says what a caller says first arrives as a channel.

use std::borrow::Cow;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::channel::Channel;
use super::frame::Frame;
use super::guard::{Exposed, Guard, ListenError};
use super::lobby::{Heard, STRANGERS_MAX, Stranger, TurnedAway, first_yields, who_yields};
use super::message::Message;

/// Connections that the kernel holds before they are accepted.
const BACKLOG: i32 = 4096;
/// Connections that are accepted before those that are there are heard again.
const ACCEPTS: usize = 64;
/// Callers that have said what they want and wait for the owner to look.
const ARRIVALS: usize = 64;
/// How soon the owner is offered a caller again for whom there was no room.
const OFFER_AGAIN: Duration = Duration::from_millis(2);
/// How long the socket is let alone when the process has no descriptor left for a connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(50);
/// At most so often strangers are written about in the log.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// A listening socket whose callers arrive as channels, each with its first message.
#[derive(Debug)]
pub struct Listener {
    arrivals: Receiver<Channel>,
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What owner and thread share.
#[derive(Debug)]
struct Shared {
    wanted: AtomicBool,
    turned_away: AtomicU64,
    /// What those that wait are told at the end.
    reason: Mutex<Option<String>>,
    /// Ends the thread's wait.
    bell: OwnedFd,
}

impl Listener {
    /// Where it listens; the port is the real one where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next caller, if one has come and said what it wants.
    pub fn poll(&mut self) -> Option<Channel> {
        self.arrivals.try_recv().ok()
    }

    /// How many have called so far without becoming callers: they said something else, hung up amid it, did not
    /// prove that they have the key, said nothing for ten seconds, or made room for others. Each is in the log, some of them in one line.
    pub fn turned_away(&self) -> u64 {
        self.shared.turned_away.load(Ordering::Relaxed)
    }

    /// Ends it; those that have called already are told why.
    pub fn close(self, reason: &str) {
        let mut slot = self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(reason.to_owned());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.wanted.store(false, Ordering::Relaxed);
        if let Err(error) = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes()) {
            // Only a full counter refuses, and that rings too.
            debug_assert_eq!(error, Errno::AGAIN);
        }
        if let Some(thread) = self.thread.take() {
            // It was woken; a panic there has been printed already.
            drop(thread.join());
        }
    }
}

/// Listens for connecting peers, on channels that `guard` protects.
///
/// # Errors
/// As `bind(2)`; [`io::ErrorKind::AddrInUse`] when somebody else listens there. [`Exposed`] where channels would be in the
/// clear.
pub fn listen(at: SocketAddr, guard: Guard) -> Result<Listener, ListenError> {
    if !guard.admits(at) {
        return Err(Exposed(at).into());
    }
    let socket = TcpListener::bind(at)?;
    // A second call changes the length of the queue.
    rustix::net::listen(&socket, BACKLOG).map_err(io::Error::from)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let (sender, arrivals) = mpsc::sync_channel(ARRIVALS);
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let shared = Arc::new(Shared {
        wanted: AtomicBool::new(true),
        turned_away: AtomicU64::new(0),
        reason: Mutex::default(),
        bell: bell.map_err(io::Error::from)?,
    });
    let porter = Porter {
        socket,
        guard,
        address,
        shared: Arc::clone(&shared),
        arrivals: sender,
        strangers: Vec::new(),
        greeted: Vec::new(),
        turned_away: TurnedAway::default(),
        logged: None,
        last: None,
        rests_until: None,
        told_of_descriptors: false,
    };
    let thread = thread::Builder::new().name("listen".into()).spawn(move || porter.run())?;
    Ok(Listener { arrivals, address, shared, thread: Some(thread) })
}

/// The thread: lets strangers in, and hands over those that become callers.
struct Porter {
    socket: TcpListener,
    guard: Guard,
    address: SocketAddr,
    shared: Arc<Shared>,
    arrivals: SyncSender<Channel>,
    strangers: Vec<Stranger>,
    /// Callers for whom the owner had no room.
    greeted: Vec<Channel>,
    /// Since the last line in the log.
    turned_away: TurnedAway,
    logged: Option<Instant>,
    last: Option<(SocketAddr, Cow<'static, str>)>,
    /// No descriptor was left.
    rests_until: Option<Instant>,
    /// It has said that descriptors are few.
    told_of_descriptors: bool,
}

impl Porter {
    fn run(mut self) {
        while self.shared.wanted.load(Ordering::Relaxed) {
            let (calls, heard) = self.wait();
            let now = Instant::now();
            self.hear(&heard);
            self.send_away(now);
            if calls {
                self.accept(now);
            }
            self.hand_over();
            self.log(now);
        }
        self.close();
    }

    /// Waits until there is something to do. Returns whether somebody calls, and which strangers said something.
    fn wait(&mut self) -> (bool, Vec<usize>) {
        let now = Instant::now();
        let has_room = self.count() < STRANGERS_MAX || who_yields(&self.strangers, now).is_some();
        let accepts = has_room && self.rests_until.is_none_or(|until| now >= until);
        let due = [
            self.strangers.iter().map(Stranger::deadline).min(),
            first_yields(&self.strangers).filter(|_| !has_room),
            self.rests_until.filter(|until| *until > now),
            (!self.greeted.is_empty()).then(|| now + OFFER_AGAIN),
            self.logged.map(|at| at + LOG_EVERY).filter(|_| self.turned_away.total() > 0),
        ];
        let due = due.into_iter().flatten().min();
        let timeout = due.map(|due| {
            // Rounded up, so that what is due then is due.
            let left = due.saturating_duration_since(now) + Duration::from_micros(1);
            Timespec::try_from(left).unwrap_or_default()
        });
        let listens = if accepts { PollFlags::IN } else { PollFlags::empty() };
        let mut fds =
            vec![PollFd::new(&self.shared.bell, PollFlags::IN), PollFd::new(&self.socket, listens)];
        fds.extend(self.strangers.iter().map(|it| PollFd::new(&it.stream, PollFlags::IN)));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // Interrupted, or out of memory: in both cases later is better.
            thread::sleep(OFFER_AGAIN);
            return (false, Vec::new());
        }
        let calls = accepts && !fds[1].revents().is_empty();
        let heard = fds.iter().skip(2).enumerate().filter(|(_, fd)| !fd.revents().is_empty());
        (calls, heard.map(|(index, _)| index).collect())
    }

    fn count(&self) -> usize {
        self.strangers.len() + self.greeted.len()
    }

    /// Listens to those that said something. Both lists stay in the order in which callers came, so that who came first is
    /// served first.
    fn hear(&mut self, heard: &[usize]) {
        let mut heard = heard.iter().copied().peekable();
        for (index, mut stranger) in mem::take(&mut self.strangers).into_iter().enumerate() {
            let spoke = heard.next_if_eq(&index).is_some();
            match if spoke { stranger.hear(self.guard.key()) } else { Heard::Waits } {
                Heard::Waits => self.strangers.push(stranger),
                Heard::Greeted(first, seal) => {
                    let from = stranger.from;
                    match Channel::over_tcp(stranger.stream, from, Some(first), seal) {
                        Ok(channel) => self.greeted.push(channel),
                        Err(error) => {
                            tracing::warn!("{}: no channel to {from}: {error}", self.address);
                        }
                    }
                }
                Heard::Foreign => {
                    self.turned_away.foreign += 1;
                    self.note(stranger.from, "does not speak this protocol");
                }
                Heard::Unproven(why) => {
                    self.turned_away.unproven += 1;
                    self.note(stranger.from, why);
                }
                Heard::Left => {}
            }
        }
    }

    /// Sends those away who have been silent for too long.
    fn send_away(&mut self, now: Instant) {
        for stranger in self.strangers.extract_if(.., |it| now >= it.deadline()) {
            self.turned_away.silent += 1;
            self.shared.turned_away.fetch_add(1, Ordering::Relaxed);
            self.last = Some((stranger.from, "says nothing".into()));
        }
    }

    fn note(&mut self, from: SocketAddr, why: impl Into<Cow<'static, str>>) {
        self.shared.turned_away.fetch_add(1, Ordering::Relaxed);
        self.last = Some((from, why.into()));
    }

    /// Sends a stranger away for others. Returns whether there was one that may be.
    fn make_room(&mut self, now: Instant) -> bool {
        let Some(index) = who_yields(&self.strangers, now) else { return false };
        let stranger = self.strangers.remove(index);
        self.turned_away.crowded += 1;
        self.note(stranger.from, "made room");
        true
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS {
            if self.count() >= STRANGERS_MAX && !self.make_room(now) {
                return;
            }
            match self.socket.accept() {
                Ok((stream, from)) => {
                    // One that cannot be told not to wait would make all others wait.
                    if stream.set_nonblocking(true).is_ok() {
                        self.strangers.push(Stranger::new(stream, from, now));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Whoever called has hung up already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if lacks_descriptors(&error) => {
                    if !mem::replace(&mut self.told_of_descriptors, true) {
                        tracing::warn!(
                            "{}: cannot accept: {error}: callers that say nothing make room for others; give the process more descriptors: ulimit -n 4096",
                            self.address
                        );
                    }
                    if !self.make_room(now) {
                        self.rests_until = Some(now + NO_DESCRIPTOR);
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!("{}: cannot accept: {error}", self.address);
                    self.rests_until = Some(now + NO_DESCRIPTOR);
                    return;
                }
            }
        }
    }

    /// Hands over those that became callers, as many as the owner has room for.
    fn hand_over(&mut self) {
        let mut waiting = mem::take(&mut self.greeted).into_iter();
        while let Some(channel) = waiting.next() {
            match self.arrivals.try_send(channel) {
                Ok(()) => {}
                Err(TrySendError::Full(channel)) => {
                    self.greeted.push(channel);
                    self.greeted.extend(waiting);
                    return;
                }
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// Writes of strangers in the log, of all since the last line in one.
    fn log(&mut self, now: Instant) {
        let TurnedAway { foreign, silent, crowded, unproven } = self.turned_away;
        let early = self.logged.is_some_and(|at| now < at + LOG_EVERY);
        if self.turned_away.total() == 0 || early {
            return;
        }
        let last = self.last.as_ref().map(|(from, why)| format!("{from}, which {why}"));
        tracing::warn!(
            "{}: turned away {} callers: {foreign} did not speak this protocol, {unproven} did not prove that they have its key, {silent} said nothing, {crowded} made room for others; the last was {}",
            self.address,
            self.turned_away.total(),
            last.as_deref().unwrap_or("nobody")
        );
        self.turned_away = TurnedAway::default();
        self.logged = Some(now);
    }

    /// Tells everybody who waits that nobody will answer.
    fn close(mut self) {
        self.logged = None;
        self.log(Instant::now());
        let reason = self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(reason) = reason else { return };
        let refused = Message::Refused(reason);
        for mut channel in self.greeted {
            // One that is gone already needs no reason.
            drop(channel.send(&refused));
        }
        let Ok(frame) = Frame::Clear(refused).encode() else { return };
        for stranger in self.strangers {
            // Its socket is empty, or it is gone.
            drop(io::Write::write(&mut &stranger.stream, &frame));
        }
    }
}

/// Whether the process, or the machine, has no descriptor left.
fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn listener() -> Listener {
        listen("127.0.0.1:0".parse().unwrap(), Guard::Loopback).unwrap()
    }

    fn call(listener: &Listener, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(listener.address()).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    fn frame(message: Message) -> Vec<u8> {
        Frame::Clear(message).encode().unwrap()
    }

    fn hello(name: u8) -> Vec<u8> {
        frame(Message::Hello(vec![name]))
    }

    fn arrives(listener: &mut Listener) -> (Channel, Option<Message>) {
        let mut channel = listener.arrivals.recv_timeout(PATIENCE).unwrap();
        let first = channel.poll();
        (channel, first)
    }

    fn until(enough: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !enough() {
            assert!(Instant::now() < deadline, "it never comes");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn hung_up(stream: &mut TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0; 1]);
        !matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// As many silent callers as there are: all of them are still waited for when the one that speaks has arrived.
    #[test]
    fn silent_callers_delay_nobody() {
        let mut listener = listener();
        let mut silent: Vec<_> = (0..120).map(|_| call(&listener, b"")).collect();
        let mut slow: Vec<_> = (0..40).map(|_| call(&listener, &hello(1)[..3])).collect();
        let honest = call(&listener, &hello(7));
        assert_eq!(arrives(&mut listener).1, Some(Message::Hello(vec![7])));
        assert!(!silent.iter_mut().chain(&mut slow).any(hung_up), "nobody had to leave");
        assert_eq!(listener.turned_away(), 0);
        // Whoever is slow arrives all the same.
        slow[20].write_all(&hello(1)[3..]).unwrap();
        assert_eq!(arrives(&mut listener).1, Some(Message::Hello(vec![1])));
        drop(honest);
    }

    /// More than there is room for: those who came first make room, and the last arrives.
    #[test]
    fn a_crowd_makes_room() {
        let mut listener = listener();
        let crowd: Vec<_> = (0..STRANGERS_MAX + 100).map(|_| call(&listener, b"")).collect();
        let honest = call(&listener, &hello(7));
        assert_eq!(arrives(&mut listener).1, Some(Message::Hello(vec![7])));
        assert!((100..=STRANGERS_MAX as u64 + 100).contains(&listener.turned_away()));
        drop((crowd, honest));
    }

    /// Whatever else is said first is turned away and counted, and the next one is heard.
    #[test]
    fn nonsense_is_turned_away_and_counted() {
        let mut listener = listener();
        let early = hello(3);
        let nonsense: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\0",
            b"\xff\xff\xff\xff\x01",
            b"\0\0\0\x01\x63",
            b"\0\0\0\x01\x02",
            b"\0\0\0\x01\x08",
        ];
        let mut strangers: Vec<_> = nonsense.iter().map(|bytes| call(&listener, bytes)).collect();
        // One that hangs up amid its first message.
        drop(call(&listener, &early[..4]));
        until(|| listener.turned_away() == 7);
        for stranger in &mut strangers {
            assert!(hung_up(stranger));
        }
        // Looking whether somebody listens, and leaving in peace, are no crimes.
        drop(call(&listener, b""));
        drop(call(&listener, &frame(Message::Bye)));
        let honest = call(&listener, &[hello(7), frame(Message::Ready)].concat());
        let (mut channel, first) = arrives(&mut listener);
        assert_eq!(first, Some(Message::Hello(vec![7])));
        assert_eq!(channel.wait(Instant::now() + PATIENCE), Some(Message::Ready));
        assert_eq!(listener.turned_away(), 7);
        drop(honest);
    }

    /// An owner that does not look holds up neither the thread nor memory; everybody arrives, in order.
    #[test]
    fn callers_wait_for_an_owner_that_is_busy() {
        let mut listener = listener();
        let names = 0..u8::try_from(2 * ARRIVALS).unwrap();
        let silent: Vec<_> = (0..20).map(|_| call(&listener, b"")).collect();
        let callers: Vec<_> = names.clone().map(|name| call(&listener, &hello(name))).collect();
        for name in names {
            assert_eq!(arrives(&mut listener).1, Some(Message::Hello(vec![name])));
        }
        drop(silent);
        drop(callers);
    }

    #[test]
    fn whoever_waits_at_the_end_is_told_why() {
        let listener = listener();
        let mut silent = call(&listener, b"");
        // Accepted before the end: what comes after it in the queue was heard.
        drop(call(&listener, b"nonsense"));
        until(|| listener.turned_away() == 1);
        listener.close("no more");
        let mut told = Vec::new();
        silent.read_to_end(&mut told).unwrap();
        assert_eq!(told, frame(Message::Refused("no more".into())));
    }
}
