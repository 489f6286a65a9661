//! A ring between two processes: each side writes a segment of its own and maps the other's read-only.

mod child;

use std::time::{Duration, Instant};

use child::Child;
use pmd_mem::{
    Cursor, Hugepages, MapAccess, Mapping, Numa, PeerWord, Region, RegionSpec, Seal, Word,
    limits::LINE_PAIR,
};

const SLOTS: u64 = 8;
const WORDS: usize = 3;
const SLOT: u64 = WORDS as u64 * 8;
const MESSAGES: u64 = 5000;

/// Far more than it takes: when it is over, the other side is dead.
const PATIENCE: Duration = Duration::from_secs(20);

/// The producer's position, then the slots; of the consumer's segment only its position is used.
const SLOTS_AT: u64 = LINE_PAIR;

fn segment(name: &str) -> Region {
    let anywhere = Numa::default();
    let spec = RegionSpec {
        name,
        len: 4096,
        hugepages: Hugepages::None,
        numa: &anywhere,
        seal: Seal::OwnerWritten,
    };
    Region::create(&spec).expect("a region")
}

/// What message `n` says: three words, so that a slot seen half-written would show.
fn message(n: u64) -> [u8; WORDS * 8] {
    let mut bytes = [0; WORDS * 8];
    for (word, value) in
        bytes.chunks_exact_mut(8).zip([n, !n, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)])
    {
        word.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// The producer, a process of its own, sends in batches of at most three.
#[test]
fn a_ring_of_two_owner_written_segments_moves_every_message_between_processes() {
    let consumers = segment("consumer");
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let consumer_fd = consumers.fd();
    let producer = Child::run(move || {
        let own = segment("producer");
        // The parent opens our descriptor through /proc, as it would get it over a socket.
        let hello = format!(
            "/proc/{}/fd/{}\n",
            std::process::id(),
            std::os::fd::AsRawFd::as_raw_fd(&own.fd())
        );
        std::io::Write::write_all(&mut writer, hello.as_bytes()).expect("a reader");
        let peer =
            Mapping::import(consumer_fd, MapAccess::Read, 4096).expect("the consumer's segment");
        let mine = Word::new(own.segment(), 0).expect("a word");
        let theirs = PeerWord::new(peer.segment(), 0).expect("a word");
        let mut cursor = Cursor::producer(mine, theirs, SLOTS);
        let mut next = 0;
        while next < MESSAGES {
            let free = cursor.available(1).expect("an honest peer").min(3).min(MESSAGES - next);
            for ahead in 0..free {
                own.write_at(SLOTS_AT + cursor.slot(ahead) * SLOT, &message(next))
                    .expect("in bounds");
                next += 1;
            }
            cursor.advance(free);
            cursor.publish();
            if free == 0 {
                std::thread::yield_now();
            }
        }
        // The memory goes with this process; it stays until everything was taken.
        while cursor.available(SLOTS).expect("an honest peer") < SLOTS {
            std::thread::yield_now();
        }
        true
    });

    let mut path = Vec::new();
    while path.last() != Some(&b'\n') {
        let mut byte = [0];
        std::io::Read::read_exact(&mut reader, &mut byte).expect("the producer's path");
        path.push(byte[0]);
    }
    let path = String::from_utf8_lossy(&path);
    let peer = std::fs::File::open(path.trim()).expect("the producer's descriptor");
    let peer = Mapping::import(&peer, MapAccess::Read, 4096).expect("the producer's segment");
    let mine = Word::new(consumers.segment(), 0).expect("a word");
    let theirs = PeerWord::new(peer.segment(), 0).expect("a word");
    let mut cursor = Cursor::consumer(mine, theirs, SLOTS);
    let mut next = 0;
    let started = Instant::now();
    while next < MESSAGES {
        let filled = cursor.available(1).expect("an honest peer");
        for ahead in 0..filled {
            let at = SLOTS_AT + cursor.slot(ahead) * SLOT;
            assert_eq!(peer.mismatch_at(at, &message(next)), Ok(None), "message {next}");
            next += 1;
        }
        cursor.advance(filled);
        cursor.publish();
        if filled == 0 {
            assert!(started.elapsed() < PATIENCE, "the producer is stuck before message {next}");
            std::thread::yield_now();
        }
    }
    assert_eq!(cursor.available(1), Ok(0), "nothing after the last message");
    assert!(producer.succeeded());
}
