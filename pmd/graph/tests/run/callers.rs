//! Callers that are answered and do not go on, before an acceptor whose clock the test holds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use pmd_graph::edge::{Acceptor, Admission, Greeting, Home, Host, Line, Refusal};
use pmd_graph::failure::Failure;
use pmd_graph::limits::{HALF_CONNECTED, LISTEN_CONNECTIONS, ROOM_WAIT};
use pmd_lcore::StatsReader;
use pmd_observe::Code;
use pmd_roce::qp::state::Transport;
use pmd_verbs::connect::{Channel, Guard, Message, connect, listen};
use pmd_verbs::endpoint::{Endpoint, EndpointOptions};

const PROTOCOL: &str = "test/1";
const PATIENCE: Duration = Duration::from_secs(20);
/// When everything begins.
const T0: u64 = 5_000_000_000;

/// A node with places, each for one caller.
struct Inn {
    places: Vec<bool>,
    guests: Vec<String>,
    lost: Vec<String>,
    turned_away: u64,
}

impl Inn {
    fn new(places: usize) -> Self {
        Self { places: vec![false; places], guests: Vec::new(), lost: Vec::new(), turned_away: 0 }
    }

    fn taken(&self) -> usize {
        self.places.iter().filter(|taken| **taken).count()
    }
}

impl Host for Inn {
    fn admit(&mut self, ask: &Greeting<'_>, _here: bool) -> Result<Admission, Refusal> {
        let full = || Refusal::new(Code::PeerNotReady, "no place is free");
        let key = self.places.iter().position(|taken| !taken).ok_or_else(full)?;
        self.places[key] = true;
        let transport = ask.transport;
        Ok(Admission { key, options: EndpointOptions { transport, ..EndpointOptions::default() } })
    }

    fn equip(
        &mut self,
        _key: usize,
        _ask: &Greeting<'_>,
        _endpoint: &mut dyn Endpoint,
    ) -> Result<Vec<u8>, Refusal> {
        Ok(b"welcome".to_vec())
    }

    fn connected(&mut self, _key: usize, line: Line) {
        self.guests.push(line.peer().node.clone());
    }

    fn lost(&mut self, key: Option<usize>, _here: bool, why: Option<Failure>) {
        if let Some(key) = key {
            self.places[key] = false;
        }
        self.lost.extend(why.map(|why| why.verdict.summary));
    }

    fn turned_away(&mut self, count: u64) {
        self.turned_away += count;
    }
}

struct Scene {
    acceptor: Acceptor,
    address: std::net::SocketAddr,
    inn: Inn,
}

impl Scene {
    fn new(places: usize) -> Self {
        let listener = listen("127.0.0.1:0".parse().unwrap(), Guard::Loopback).unwrap();
        let address = listener.address();
        let home = Home::new("inn", StatsReader::default());
        let device = crate::double::lcore();
        let acceptor = Acceptor::new(home, PROTOCOL, device, Vec::new(), Some(listener));
        Self { acceptor, address, inn: Inn::new(places) }
    }

    /// Somebody calls and says who it is.
    fn call(&self, node: &str) -> Channel {
        let mut connecting = connect(self.address, PATIENCE, Guard::Loopback).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut channel = loop {
            assert!(Instant::now() < deadline, "nobody answers");
            match connecting.poll() {
                Some(channel) => break channel.unwrap(),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let greeting = Greeting {
            protocol: PROTOCOL,
            transport: Transport::Rc,
            pid: 7,
            node,
            reconnect: 0,
            payload: &[],
            device: &u64::MAX.to_le_bytes(),
        };
        channel.send(&Message::Hello(greeting.encode())).unwrap();
        channel
    }

    /// Polls at `now` until the test has what it waits for.
    fn until(&mut self, now: u64, mut enough: impl FnMut(&Acceptor, &Inn) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !enough(&self.acceptor, &self.inn) {
            assert!(Instant::now() < deadline, "it never comes");
            if self.acceptor.poll(now, &mut self.inn) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn until_told(&mut self, now: u64, channel: &mut Channel) -> Message {
        let mut told = None;
        self.until(now, |_, _| {
            told = channel.poll();
            told.is_some()
        });
        told.unwrap()
    }
}

fn ns(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap()
}

/// 120 callers that are answered and never go on cost an honest one [`HALF_CONNECTED`], whatever they are waited for
/// otherwise.
#[test]
fn half_connected_callers_make_room_for_an_honest_one() {
    let mut scene = Scene::new(LISTEN_CONNECTIONS);
    let crowd: Vec<Channel> = (0..120).map(|_| scene.call("crowd")).collect();
    scene.until(T0, |_, inn| inn.taken() == LISTEN_CONNECTIONS);
    let mut honest = scene.call("honest");
    let later = T0 + ns(HALF_CONNECTED);
    assert_eq!(scene.acceptor.next_timeout(), Some(later), "an lcore that sleeps wakes for it");
    for _ in 0..200 {
        scene.acceptor.poll(later - 1, &mut scene.inn);
    }
    assert_eq!((scene.inn.lost.len(), honest.poll()), (0, None), "they are left alone for a while");
    assert!(matches!(scene.until_told(later, &mut honest), Message::Hello(_)));
    honest.send(&Message::Ready).unwrap();
    scene.until(later, |_, inn| !inn.guests.is_empty());
    assert_eq!(scene.inn.guests, ["honest"]);
    assert!(scene.inn.lost.iter().all(|why| why.ends_with("made room for others")));
    drop(crowd);
}

/// A node with fewer places than callers may be on their way: who comes last waits for those that are half connected, and is
/// refused only by those that are whole.
#[test]
fn half_connected_callers_hold_no_place_for_long() {
    let mut scene = Scene::new(2);
    let crowd: Vec<Channel> = (0..2).map(|_| scene.call("crowd")).collect();
    scene.until(T0, |_, inn| inn.taken() == 2);
    let mut honest = scene.call("honest");
    scene.until(T0 + 1, |acceptor, _| acceptor.callers() == 3);
    let later = T0 + ns(HALF_CONNECTED);
    assert_eq!(scene.acceptor.next_timeout(), Some(later));
    assert!(matches!(scene.until_told(later, &mut honest), Message::Hello(_)));
    honest.send(&Message::Ready).unwrap();
    scene.until(later, |_, inn| inn.guests == ["honest"]);
    assert_eq!(scene.inn.lost.len(), 1, "one place was enough: {:?}", scene.inn.lost);
    drop(crowd);
    // One that goes on after all fills the house: who waits is refused at once.
    let mut scene = Scene::new(1);
    let mut first = scene.call("first");
    scene.until(T0, |_, inn| inn.taken() == 1);
    let mut late = scene.call("late");
    scene.until(T0, |acceptor, _| acceptor.callers() == 2);
    first.send(&Message::Ready).unwrap();
    let told = scene.until_told(T0, &mut late);
    assert_eq!(told, Message::Refused("peer-not-ready: no place is free".into()));
    assert_eq!(scene.inn.guests, ["first"]);
}

/// Where nobody makes room in time, the caller hears why.
#[test]
fn who_waits_in_vain_is_told_why() {
    let mut scene = Scene::new(1);
    let half = scene.call("half");
    scene.until(T0, |_, inn| inn.taken() == 1);
    let mut caller = scene.call("caller");
    scene.until(T0, |acceptor, _| acceptor.callers() == 2);
    scene.acceptor.close();
    let told = scene.until_told(T0, &mut caller);
    assert_eq!(told, Message::Refused("peer-not-ready: `inn` takes no more clients".into()));
    assert!(ROOM_WAIT > HALF_CONNECTED, "else nobody would ever wait for long enough");
    drop(half);
}

/// Whoever speaks something else never becomes a caller, and is counted.
#[test]
fn strangers_are_counted_and_no_callers() {
    use std::io::Write;
    let mut scene = Scene::new(1);
    for _ in 0..5 {
        let mut stranger = std::net::TcpStream::connect(scene.address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    }
    scene.until(T0, |acceptor, inn| {
        assert_eq!(acceptor.callers(), 0);
        inn.turned_away == 5
    });
    let honest = scene.call("honest");
    scene.until(T0, |_, inn| inn.taken() == 1);
    drop(honest);
}
