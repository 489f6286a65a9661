//! Processes that knock and are not what they should be.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::super::fdpass::{self, Received};
use super::super::handshake::{Hello, MESSAGE_MAX, Message};
use super::*;

/// One end of a control socket, driven by hand.
struct Stranger(OwnedFd);

impl Stranger {
    fn call(directory: &Directory, prefix: u8) -> Self {
        Self(directory.connect(prefix).unwrap())
    }

    fn say(&self, message: &Message, fds: &[BorrowedFd<'_>]) {
        assert!(fdpass::send(&self.0, &message.encode(), fds).unwrap());
    }

    /// The next message; `None` at the end.
    fn hear(&self) -> Option<Message> {
        let mut bytes = [0; MESSAGE_MAX];
        let mut heard = None;
        until("an answer comes", || {
            heard = match fdpass::receive(&self.0, &mut bytes).unwrap() {
                Received::Nothing => return false,
                Received::HangUp => None,
                Received::Message(len, _) => Some(Message::decode(&bytes[..len]).unwrap()),
            };
            true
        });
        heard
    }

    /// Why the other side refuses; what it says before does not matter.
    fn refusal(&self) -> Refusal {
        loop {
            match self.hear().expect("a reason before the end") {
                Message::Refuse(refusal) => return refusal,
                _ => continue,
            }
        }
    }
}

/// What an honest device of this process and prefix would say.
fn hello(device: &Device, prefix: u8) -> Hello {
    Hello {
        prefix,
        nonce: Nonce([5; 16]),
        addresses: core::iter::empty().collect(),
        ..device.port.shared().hello.clone()
    }
}

/// Wrong boot id, user, version, nonce, prefix: refused, by name, and the port goes on.
#[test]
fn a_caller_from_elsewhere_is_refused() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let mut device = Device::new(&directory, 1);
    let uid = device.port.shared().hello.uid;
    let claim = directory.claim_prefix().unwrap();
    let good = hello(&device, claim.prefix());
    for (caller, reason) in [
        (Hello { boot_id: [0; 16], ..good.clone() }, Refusal::Host),
        (Hello { uid: uid + 1, ..good.clone() }, Refusal::User { ours: uid, theirs: uid + 1 }),
        (Hello { wants: Some(Nonce([9; 16])), ..good.clone() }, Refusal::Nonce),
        (Hello { prefix: 0, ..good.clone() }, Refusal::Prefix(0)),
        (Hello { prefix: 128, ..good.clone() }, Refusal::Prefix(128)),
        (Hello { lcores: 0, ..good.clone() }, Refusal::Nonsense),
        (Hello { lcores: 9, ..good.clone() }, Refusal::Nonsense),
        (Hello { version: 77, ..good.clone() }, Refusal::Version { ours: VERSION, theirs: 77 }),
    ] {
        let stranger = Stranger::call(&directory, device.port.prefix());
        stranger.say(&Message::Hello(Box::new(caller)), &[]);
        assert_eq!(stranger.refusal(), reason);
        assert_eq!(stranger.hear(), None, "and hung up");
    }
    // Messages that make no sense, or come too early.
    let mut noise = Message::Hello(Box::new(good)).encode().to_vec();
    noise.truncate(30);
    for bytes in [&noise[..], &[0], &[99; 200], &Message::Retire { id: 1 }.encode()] {
        let stranger = Stranger::call(&directory, device.port.prefix());
        assert!(fdpass::send(&stranger.0, bytes, &[]).unwrap());
        assert_eq!(stranger.refusal(), Refusal::Nonsense);
    }
    drop(claim);
    let mut other = Device::new(&directory, 1);
    link(&mut device, 0, &mut other, 0);
}

/// As root, the kernel can be made to vouch for another user.
#[test]
fn a_caller_of_another_user_is_refused_whatever_it_says() {
    let scratch = Scratch::new();
    let device = Device::new(&scratch.directory(), 1);
    let ours = device.port.shared().hello.uid;
    let check = hello(&device, 9).check(&device.port.shared().hello, ours + 1, &Default::default());
    assert_eq!(check, Err(Refusal::User { ours, theirs: ours + 1 }));
}

/// A process that holds a prefix but is another than announced, or no spinwire at all.
#[test]
fn a_callee_that_is_not_fit_is_named() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let device = Device::new(&directory, 1);
    let pid = std::process::id();
    let claim = directory.claim_prefix().unwrap();
    let name = PeerName { prefix: claim.prefix(), lcore: 0, address: None, nonce: None };
    let good = hello(&device, claim.prefix());
    let attach = |answer: &Message| {
        std::thread::scope(|scope| {
            let attaching = scope.spawn(|| device.port.attach(0, name, LIMIT));
            let mut socket = None;
            until("the call comes", || {
                socket = fdpass::accept(claim.listener()).unwrap();
                socket.is_some()
            });
            let callee = Stranger(socket.unwrap());
            assert!(matches!(callee.hear(), Some(Message::Hello(_))));
            callee.say(answer, &[]);
            attaching.join().unwrap()
        })
    };
    for (answer, refusal) in [
        (Message::Hello(Box::new(Hello { boot_id: [0; 16], ..good.clone() })), Refusal::Host),
        (Message::Hello(Box::new(Hello { prefix: 77, ..good.clone() })), Refusal::Prefix(77)),
        (
            Message::Hello(Box::new(Hello { version: VERSION + 1, ..good })),
            Refusal::Version { ours: VERSION, theirs: VERSION + 1 },
        ),
        (Message::Retire { id: 1 }, Refusal::Nonsense),
    ] {
        let refused = attach(&answer).unwrap_err();
        assert_eq!(refused, AttachError::Unfit { pid, refusal });
        assert!(refused.falls_back());
        assert!(refused.to_string().contains(&format!("process {pid}")), "{refused}");
    }
    let refused = attach(&Message::Refuse(Refusal::Host));
    assert_eq!(refused, Err(AttachError::Refused { pid, refusal: Refusal::Host }));
}

fn memfd(bytes: u64, seals: rustix::fs::SealFlags) -> OwnedFd {
    use rustix::fs::MemfdFlags;
    let fd = rustix::fs::memfd_create("stranger", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Unsealed, shrinkable, of the wrong size, or no memory at all: nothing that could kill us by SIGBUS is mapped.
#[test]
fn what_cannot_be_mapped_safely_is_refused() {
    use rustix::fs::SealFlags;
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let mut device = Device::new(&directory, 1);
    let donor = Device::new(&directory, 1);
    let shared = donor.port.shared();
    let (table, page) = (shared.table_region.fd(), shared.pages[0].fd());
    let sizes = (shared.table_region.len(), shared.pages[0].len());
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let bad = [
        memfd(sizes.0, SealFlags::GROW | SealFlags::SEAL),
        memfd(sizes.0, SealFlags::empty()),
        memfd(sizes.0 + 4096, all),
        // A table of zeroes.
        memfd(sizes.0, all),
        File::create(scratch.join("file")).unwrap().into(),
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(),
    ];
    let claim = directory.claim_prefix().unwrap();
    let (prefix, introduction) = (device.port.prefix(), hello(&device, claim.prefix()));
    let enter = || {
        let stranger = Stranger::call(&directory, prefix);
        stranger.say(&Message::Hello(Box::new(introduction.clone())), &[]);
        stranger
    };
    let exports = Message::Exports { table_bytes: sizes.0, page_bytes: sizes.1 };
    for fd in &bad {
        let stranger = enter();
        stranger.say(&exports, &[fd.as_fd(), page]);
        assert_eq!(stranger.refusal(), Refusal::Export, "{fd:?}");
    }
    // Too few, too many, absurd sizes.
    for (message, fds) in [
        (exports.clone(), vec![]),
        (exports.clone(), vec![table]),
        (exports.clone(), vec![table, page, page]),
        (Message::Exports { table_bytes: u64::MAX, page_bytes: sizes.1 }, vec![table, page]),
        (Message::Exports { table_bytes: sizes.0, page_bytes: u64::MAX }, vec![table, page]),
    ] {
        let stranger = enter();
        stranger.say(&message, &fds);
        assert_eq!(stranger.refusal(), Refusal::Nonsense, "{message:?}");
    }
    let whole = memfd(1 << 16, all);
    let region = |id, bytes, writable| Message::Region { id, bytes, writable };
    let attach = |from, to, bytes| Message::Attach { from, to, bytes };
    for (message, fd, refusal) in [
        (region(1, 1 << 16, true), &bad[1], Refusal::Export),
        (region(1, 1 << 15, false), &whole, Refusal::Export),
        (region(limits::REGIONS_MAX, 1 << 16, false), &whole, Refusal::Nonsense),
        (region(1, u64::MAX, false), &whole, Refusal::Nonsense),
        (Message::Retire { id: u32::MAX }, &whole, Refusal::Nonsense),
        (attach(1, 0, 1 << 16), &whole, Refusal::Nonsense),
        (attach(0, 0, 100), &whole, Refusal::Nonsense),
        (attach(0, 0, 1 << 15), &whole, Refusal::Export),
        (attach(0, 0, 1 << 16), &bad[1], Refusal::Export),
        (exports.clone(), &whole, Refusal::Nonsense),
        (Message::Hello(Box::new(hello(&device, 9))), &whole, Refusal::Nonsense),
    ] {
        let stranger = enter();
        stranger.say(&exports, &[table, page]);
        stranger.say(&message, &[fd.as_fd()]);
        assert_eq!(stranger.refusal(), refusal, "{message:?}");
    }
    // A second link between the same two.
    let stranger = enter();
    stranger.say(&exports, &[table, page]);
    stranger.say(&attach(0, 0, 1 << 16), &[whole.as_fd()]);
    stranger.say(&attach(0, 0, 1 << 16), &[whole.as_fd()]);
    assert_eq!(stranger.refusal(), Refusal::Nonsense);
    until("the link of that stranger is down", || {
        device.turn();
        device.links[0]
            .next_down()
            .is_some_and(|down| down.fault == LinkFault::Protocol(Refusal::Nonsense))
    });
    // An lcore that is not there is no reason to part.
    let stranger = enter();
    stranger.say(&exports, &[table, page]);
    stranger.say(&attach(0, 7, 1 << 16), &[whole.as_fd()]);
    loop {
        match stranger.hear().expect("an answer") {
            Message::Decline { from: 0, to: 7, refusal } => {
                break assert_eq!(refusal, Refusal::Lcore(7));
            }
            Message::Refuse(refusal) => panic!("{refusal}"),
            _ => {}
        }
    }
    drop(stranger);
    let mut other = donor;
    link(&mut device, 0, &mut other, 0);
}

/// Who says nothing is let go after a while, and keeps nobody else out meanwhile.
#[test]
fn silent_callers_keep_nobody_out() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let mut device = Device::new(&directory, 1);
    let silent: Vec<_> =
        (0..10).map(|_| Stranger::call(&directory, device.port.prefix())).collect();
    let mut other = Device::new(&directory, 1);
    link(&mut device, 0, &mut other, 0);
    for stranger in silent {
        assert_eq!(stranger.refusal(), Refusal::Late);
    }
}
