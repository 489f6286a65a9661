//! A listener in a process that has few descriptors. It changes a limit of the process, so it is alone in this one.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pmd_verbs::connect::{Frame, Guard, Message, listen};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(10);
/// Callers that say nothing, several times as many as there are descriptors for.
const SILENT: usize = 24;
/// Descriptors for those that are accepted.
const FREE: u64 = 8;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Appends to [`LOG`].
struct Logged;

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log() -> String {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&log).into_owned()
}

/// Silent callers that hold every descriptor make room as they do where there are too many of them; what would help is said
/// once.
#[test]
fn silent_callers_do_not_keep_the_last_descriptors() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| Logged).init();
    let mut listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), Guard::Loopback).unwrap();
    let socket =
        || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    // The sockets of the callers are in this process, too: they come first.
    let sockets: Vec<_> = (0..=SILENT).map(|_| socket().unwrap()).collect();
    let last = sockets.iter().map(AsRawFd::as_raw_fd).max().unwrap();
    let limit = getrlimit(Resource::Nofile);
    let few = u64::try_from(last).unwrap() + 1 + FREE;
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..limit }).unwrap();
    let mut callers = Vec::new();
    for socket in sockets {
        rustix::net::connect(&socket, &listener.address()).unwrap();
        callers.push(TcpStream::from(socket));
    }
    let hello = Frame::Clear(Message::Hello(vec![7])).encode().unwrap();
    callers[SILENT].write_all(&hello).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut honest = loop {
        if let Some(channel) = listener.poll() {
            break channel;
        }
        assert!(Instant::now() < deadline, "it never arrives: {}", log());
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(honest.poll(), Some(Message::Hello(vec![7])));
    let kept = SILENT as u64 - FREE;
    assert!((kept..=SILENT as u64).contains(&listener.turned_away()), "{}", log());
    assert_eq!(log().matches("ulimit -n").count(), 1, "{}", log());
    setrlimit(Resource::Nofile, limit).unwrap();
}
