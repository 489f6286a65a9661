//! Control channels that are sealed: what both ends see of keys that differ, of bytes that change on their way, and of
//! recordings.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pmd_verbs::connect::{
    CallError, Channel, Frame, Guard, ListenError, Listener, Message, Psk, SealAsk, Unsealed,
    connect, listen,
};

/// Whether an error is the expected one.
type Expected = fn(&CallError) -> bool;

const PATIENCE: Duration = Duration::from_secs(10);
const SECRET: &[u8] = b"the rkey of a region";

fn key(seed: u8) -> Guard {
    Guard::Sealed(psk(seed))
}

fn psk(seed: u8) -> Psk {
    Psk::new(std::array::from_fn(|at| seed + u8::try_from(at).unwrap_or(0)))
}

fn listener(guard: Guard) -> Listener {
    listen(SocketAddr::from(([127, 0, 0, 1], 0)), guard).expect("a port")
}

fn called(to: SocketAddr, guard: Guard) -> Result<Channel, CallError> {
    let mut connecting = connect(to, PATIENCE, guard)?;
    loop {
        if let Some(outcome) = connecting.poll() {
            return outcome;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never comes");
        thread::sleep(Duration::from_millis(1));
    }
}

fn next(channel: &mut Channel) -> Message {
    channel.wait(Instant::now() + PATIENCE).expect("a message in time")
}

/// Both ends, the caller's hello taken.
fn joined(listener: &mut Listener, to: SocketAddr, guard: Guard) -> (Channel, Channel) {
    let mut here = called(to, guard).expect("a channel");
    here.send(&Message::Hello(SECRET.to_vec())).expect("sent");
    let mut there = until(|| listener.poll());
    assert_eq!(next(&mut there), Message::Hello(SECRET.to_vec()));
    (here, there)
}

/// Somebody on the way who sees everything, and may change the byte of the callers' at `spoil`. Sends what each caller has
/// said once it is over.
fn between(to: SocketAddr, spoil: Option<usize>) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let door = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = door.local_addr().expect("its address");
    let (sender, recordings) = mpsc::channel();
    thread::spawn(move || {
        let (caller, _) = door.accept().expect("a caller");
        let server = TcpStream::connect(to).expect("a server");
        let (mut from, mut into) =
            (server.try_clone().expect("a descriptor"), caller.try_clone().expect("a descriptor"));
        let back = thread::spawn(move || {
            // Either end may hang up at any time.
            std::io::copy(&mut from, &mut into).unwrap_or_default();
            into.shutdown(Shutdown::Both).unwrap_or_default();
        });
        let (mut heard, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = (&caller).read(&mut part) {
            let end = heard.len() + len;
            if let Some(at) = spoil.filter(|at| (heard.len()..end).contains(at)) {
                part[at - heard.len()] ^= 1;
            }
            heard.extend(&part[..len]);
            (&server).write_all(&part[..len]).unwrap_or_default();
        }
        server.shutdown(Shutdown::Both).unwrap_or_default();
        back.join().expect("it ends");
        sender.send(heard).expect("somebody waits");
    });
    (at, recordings)
}

/// S0-43: who listens on the way learns nothing; both directions carry everything, in order.
#[test]
fn s0_43_whoever_listens_on_the_way_learns_nothing() {
    let mut listener = listener(key(1));
    let (through, recordings) = between(listener.address(), None);
    let (mut here, mut there) = joined(&mut listener, through, key(1));
    assert!(here.is_sealed() && there.is_sealed());
    for round in 0..50_u8 {
        let message = Message::Evidence(vec![round; 100 * usize::from(round)]);
        here.send(&message).unwrap();
        there.send(&message).unwrap();
        assert_eq!(next(&mut there), message);
        assert_eq!(next(&mut here), message);
    }
    drop(here);
    assert!(matches!(next(&mut there), Message::Lost(_)));
    let heard = recordings.recv().unwrap();
    assert!(heard.len() > 50 * 49 * 50, "{}", heard.len());
    assert!(!heard.windows(SECRET.len()).any(|part| part == SECRET));
    assert!(!heard.windows(8).any(|part| part == [7; 8]));
}

/// A recording that is played again is no caller, and neither is the beginning of one.
#[test]
fn a_recording_is_no_caller() {
    let mut listener = listener(key(1));
    let (through, recordings) = between(listener.address(), None);
    let (here, there) = joined(&mut listener, through, key(1));
    drop((here, there));
    let recording = recordings.recv().unwrap();
    let mut replay = TcpStream::connect(listener.address()).unwrap();
    replay.write_all(&recording).unwrap();
    until(|| (listener.turned_away() == 1).then_some(()));
    assert!(listener.poll().is_none());
    let mut answer = Vec::new();
    // It may be reset: what it said was not read to its end.
    replay.read_to_end(&mut answer).unwrap_or_default();
    assert!(answer.len() <= 4 + 1 + 48, "one answer and nothing more: {}", answer.len());
    // Whoever has the key is heard all the same.
    let address = listener.address();
    joined(&mut listener, address, key(1));
}

/// A message that is changed on its way, or put there by somebody else, ends the channel, and never reaches its owner.
#[test]
fn what_was_changed_on_its_way_is_refused() {
    let mut listener = listener(key(1));
    // The ask has 4 + 2 + 48 bytes, the sealed hello 4 + 1 + 1 + 20 + 16: amid what follows.
    let (through, _) = between(listener.address(), Some(54 + 42 + 10));
    let (mut here, mut there) = joined(&mut listener, through, key(1));
    here.send(&Message::Evidence(vec![7; 100])).unwrap();
    let lost = next(&mut there);
    assert!(matches!(&lost, Message::Lost(how) if how.contains("changed on its way")), "{lost:?}");
    // In the clear after the seal.
    let to = listener.address();
    let mut stranger = TcpStream::connect(to).unwrap();
    let (waiting, bytes) = SealAsk::begin(&psk(1)).unwrap();
    stranger.write_all(&Frame::Ask { version: 1, bytes }.encode().unwrap()).unwrap();
    let mut answer = [0; 4 + 1 + 48];
    stranger.read_exact(&mut answer).unwrap();
    let Frame::Answer(answer) = Frame::parse(&answer).unwrap() else { panic!("an answer") };
    let mut seal = waiting.finish(&answer).unwrap();
    let hello = seal.sealer.seal(&[1, 2, 3]).unwrap();
    let bye = Frame::Clear(Message::Bye).encode().unwrap();
    stranger.write_all(&[Frame::Sealed(hello).encode().unwrap(), bye].concat()).unwrap();
    let mut there = until(|| listener.poll());
    assert_eq!(next(&mut there), Message::Hello(vec![2, 3]));
    let lost = next(&mut there);
    assert!(matches!(&lost, Message::Lost(how) if how.contains("changed on its way")), "{lost:?}");
}

/// Keys that differ, or that only one side has: both sides learn it, each in its own words.
#[test]
fn who_has_another_key_learns_it() {
    let mut sealed = listener(key(1));
    let outcome = called(sealed.address(), key(2));
    assert!(matches!(outcome, Err(CallError::OtherKey)), "{outcome:?}");
    let mut plain = called(sealed.address(), Guard::Loopback).unwrap();
    assert!(!plain.is_sealed());
    plain.send(&Message::Hello(SECRET.to_vec())).unwrap();
    let refused = next(&mut plain);
    assert!(matches!(&refused, Message::Refused(why) if why.contains("--psk-file")), "{refused:?}");
    until(|| (sealed.turned_away() == 2).then_some(()));
    assert!(sealed.poll().is_none());
    let clear = listener(Guard::Loopback);
    let outcome = called(clear.address(), key(1));
    assert!(matches!(outcome, Err(CallError::NoKey)), "{outcome:?}");
    until(|| (clear.turned_away() == 1).then_some(()));
}

/// Whatever answers an ask, the caller learns in bounded time what is wrong, and takes nobody for its peer.
#[test]
fn whoever_answers_must_prove_itself() {
    let answers: [(Vec<u8>, Expected); 7] = [
        (Frame::Answer(vec![7; 48]).encode().unwrap(), |it| matches!(it, CallError::Unproven(_))),
        (Frame::Answer(vec![]).encode().unwrap(), |it| matches!(it, CallError::Unproven(_))),
        (Frame::Unsealed(Unsealed::Version(9)).encode().unwrap(), |it| {
            matches!(it, CallError::Version { theirs: 9, ours: 1 })
        }),
        // The version that was asked for: the ask was changed on its way.
        (Frame::Unsealed(Unsealed::Version(1)).encode().unwrap(), |it| {
            matches!(it, CallError::Unproven(_)) && it.to_string().contains("changed on its way")
        }),
        (Frame::Clear(Message::Hello(vec![1])).encode().unwrap(), |it| {
            matches!(it, CallError::Foreign)
        }),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), |it| matches!(it, CallError::Foreign)),
        (
            Frame::Clear(Message::Refused("full".into())).encode().unwrap(),
            |it| matches!(it, CallError::Refused(why) if why == "full"),
        ),
    ];
    for (answer, is_expected) in answers {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = door.local_addr().unwrap();
        let stranger = thread::spawn(move || {
            let (mut stream, _) = door.accept().unwrap();
            stream.read_exact(&mut [0; 54]).unwrap();
            stream.write_all(&answer).unwrap();
        });
        let error = called(to, key(1)).unwrap_err();
        assert!(is_expected(&error), "{error:?}");
        stranger.join().unwrap();
    }
    // One that says nothing, and one that never comes to an end.
    for says in [&b""[..], &[0, 0, 0, 49, 33, 1]] {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let timeout = Duration::from_millis(100);
        let mut connecting = connect(door.local_addr().unwrap(), timeout, key(1)).unwrap();
        let (mut stream, _) = door.accept().unwrap();
        stream.write_all(says).unwrap();
        let error = until(|| connecting.poll()).unwrap_err();
        assert!(error.to_string().contains("does not answer in time"), "{error}");
    }
}

/// Callers that begin to seal and do not go on delay nobody.
#[test]
fn half_open_callers_delay_nobody() {
    let mut listener = listener(key(1));
    let to = listener.address();
    let half: Vec<_> = (0..100)
        .map(|count| {
            let (_, bytes) = SealAsk::begin(&psk(1)).unwrap();
            let ask = Frame::Ask { version: 1, bytes }.encode().unwrap();
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(&ask[..ask.len() - count % 2]).unwrap();
            stream
        })
        .collect();
    joined(&mut listener, to, key(1));
    assert_eq!(listener.turned_away(), 0);
    drop(half);
}

/// S0-43: in the clear only over loopback, or when somebody says so.
#[test]
fn s0_43_nothing_leaves_the_host_in_the_clear() {
    let far: SocketAddr = "192.0.2.7:7471".parse().unwrap();
    let refused = connect(far, PATIENCE, Guard::Loopback).unwrap_err();
    assert!(matches!(refused, CallError::Exposed(_)), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("192.0.2.7:7471") && text.contains("psk_file"), "{text}");
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let refused = listen(everywhere, Guard::Loopback).unwrap_err();
    assert!(matches!(refused, ListenError::Exposed(_)), "{refused}");
    for guard in [Guard::Plaintext, key(1)] {
        drop(listen(everywhere, guard).unwrap());
    }
}
