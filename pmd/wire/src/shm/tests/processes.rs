//! Two processes: sharing, dying, and what is left.

use rustix::process::Signal;

use super::*;

/// Says what its buffer is, then sends back what it gets, until it is told to end.
pub(super) fn echo(directory: &Directory) {
    let mut device = Device::new(directory, 1);
    let buffer = device.buffer(1, 64 << 10, Access::REMOTE);
    let source = device.buffer(2, 64 << 10, Access::REMOTE_READ);
    let own = device.qpn(0, 1);
    device.links[0].show(own, Some(&rts(0x00_1234)));
    let mut end = false;
    while !end {
        device.turn();
        let links = &mut device.links[0];
        end |= links.next_down().is_some();
        for link in links.active().to_vec() {
            links.rx(link, |links, record, payload| {
                let back = Record { dst: record.src, src: own, ..*record };
                let pushed = match record.seq {
                    0 => {
                        let mut told = buffer.va().to_le_bytes().to_vec();
                        told.extend(buffer.key.0.to_le_bytes());
                        links.push(link, PD, &Record { len: 12, ..back }, Source::Inline(&told))
                    }
                    0xff_ffff => {
                        end = true;
                        return true;
                    }
                    _ => {
                        payload.copy_to(PD, 0, &source.sge(0, 64 << 10)).unwrap();
                        links.push(link, PD, &back, Source::Sges(&[source.sge(0, record.len)]))
                    }
                };
                // Without room for the answer, the question comes again.
                assert!(matches!(pushed, Push::At(_) | Push::Full), "{pushed:?}");
                pushed != Push::Full
            });
            links.publish();
        }
        std::thread::yield_now();
    }
}

/// The other process, from this one's side.
struct Echo {
    player: Player,
    link: u32,
    /// Its buffer.
    there: Remote,
}

impl Echo {
    fn start(scratch: &Scratch, device: &mut Device) -> Self {
        let directory = scratch.directory();
        let player = Player::start("echo", scratch);
        let prefix = player.prefix(&directory);
        let name = PeerName { prefix, lcore: 0, address: None, nonce: None };
        // It may not have taken its links yet.
        let mut link = Err(AttachError::Timeout);
        until("the other process is linked", || {
            link = device.port.attach(0, name, LIMIT);
            link.is_ok()
        });
        let link = link.unwrap();
        device.turn();
        assert_eq!(device.links[0].peer(link).unwrap().pid, player.pid());
        let mut told = [0; 12];
        let into = device.buffer(100, 4096, Access::empty());
        let record = exchange(
            &mut device.links[0],
            link,
            &send(1, 2, 0, 0),
            Source::Sges(&[]),
            &into.sge(0, 4096),
        );
        assert_eq!(record.len, 12);
        into.region.read_at(0, &mut told).unwrap();
        let (addr, rkey) = told.split_first_chunk::<8>().unwrap();
        let there = Remote {
            addr: u64::from_le_bytes(*addr),
            rkey: u32::from_le_bytes(rkey.try_into().unwrap()),
            pd: PD,
            qpn: 0,
        };
        Self { player, link, there }
    }
}

/// Sends and waits for the answer, whose payload goes to `into`.
fn exchange(
    links: &mut Links,
    link: u32,
    record: &Record,
    source: Source<'_>,
    into: &Sge,
) -> Record {
    assert!(matches!(links.push(link, PD, record, source), Push::At(_)));
    links.publish();
    let mut answer = None;
    until("the answer comes", || {
        links.turn();
        answer = take_one(links, link, into);
        answer.is_some()
    });
    answer.unwrap()
}

#[test]
fn two_processes_share_memory_and_part_in_good_order() {
    let scratch = Scratch::new();
    let mut device = Device::new(&scratch.directory(), 1);
    let from = device.buffer(1, 64 << 10, Access::REMOTE_READ);
    let into = device.buffer(2, 64 << 10, Access::empty());
    from.region.write_at(0, &pattern(9, 64 << 10)).unwrap();
    let Echo { player, link, there } = Echo::start(&scratch, &mut device);
    let links = &mut device.links[0];

    for (seq, len) in (1..).zip([1, 8, 256, 257, 4096, 60_000]) {
        let record = send(1, 2, seq, len);
        let back = exchange(
            links,
            link,
            &record,
            Source::Sges(&[from.sge(3, len)]),
            &into.sge(0, 64 << 10),
        );
        assert_eq!((back.seq, back.len, back.dst), (seq, len, 1));
        assert!(into.region.eq_at(0, &from.bytes(3, len as usize)).unwrap(), "{len} bytes");
    }
    let qpn = back_qpn(links, link, &into);
    assert_eq!(links.target(link, qpn), Target::Qp(rts(0x00_1234)));
    assert_eq!(links.target(link, qpn + 1), Target::Absent);

    let at = |offset: u64| Remote { addr: there.addr + offset, ..there };
    links.write(link, PD, Source::Sges(&[from.sge(0, 65_000)]), &at(100)).unwrap();
    links.fence();
    into.region.fill(0, 64 << 10, 0).unwrap();
    links.read(link, PD, &[into.sge(0, 65_000)], &at(100)).unwrap();
    assert!(into.region.eq_at(0, &from.bytes(0, 65_000)).unwrap());
    assert_eq!(
        links.write(link, PD, Source::Inline(&[1]), &at(64 << 10)),
        Err(MemoryFault::Remote)
    );
    links.write(link, PD, Source::Inline(&[0; 8]), &at(8)).unwrap();
    for i in 0..10 {
        assert_eq!(links.atomic(link, &at(8), AtomicOp::FetchAdd(3)), Ok(i * 3));
    }
    links.publish();

    assert!(matches!(
        links.push(link, PD, &send(1, 2, 0xff_ffff, 0), Source::Sges(&[])),
        Push::At(_)
    ));
    links.publish();
    player.finish();
    let mut down = None;
    until("the goodbye arrives", || {
        links.turn();
        down = links.next_down();
        down.is_some()
    });
    let down = down.unwrap();
    assert_eq!((down.link, down.fault), (link, LinkFault::Closed));
    assert!(links.active().is_empty());
}

/// The queue pair that the other process answers from.
fn back_qpn(links: &mut Links, link: u32, into: &Buffer) -> u32 {
    exchange(links, link, &send(1, 2, 5, 0), Source::Sges(&[]), &into.sge(0, 8)).src
}

/// `kill -9` in the middle of traffic: noticed without a message, named, and nothing of it is used any more.
#[test]
fn a_killed_peer_is_noticed_and_named() {
    let scratch = Scratch::new();
    let mut device = Device::new(&scratch.directory(), 1);
    let from = device.buffer(1, 4096, Access::REMOTE_READ);
    let Echo { player, link, there } = Echo::start(&scratch, &mut device);
    let pid = player.pid();
    let mut player = Some(player);
    let links = &mut device.links[0];
    let (mut down, mut rounds) = (None, 0);
    until("the death is noticed", || {
        links.turn();
        links.rx(link, |_, _, _| true);
        for _ in 0..100 {
            // The pages stay mapped until the next turn: a write may still go through, into nowhere.
            let written = links.write(link, PD, Source::Sges(&[from.sge(0, 4096)]), &there);
            assert!(matches!(written, Ok(()) | Err(MemoryFault::Gone)), "{written:?}");
            match links.push(link, PD, &send(1, 2, 7, 100), Source::Sges(&[from.sge(0, 100)])) {
                Push::At(_) | Push::Full | Push::Gone => {}
                Push::LocalFault => panic!("the source is good"),
            }
        }
        links.publish();
        rounds += 1;
        if rounds == 20 {
            player.take().unwrap().kill();
        }
        down = links.next_down();
        down.is_some()
    });
    let down = down.unwrap();
    assert_eq!((down.link, down.fault, down.peer.pid), (link, LinkFault::Dead, pid));
    assert_eq!(links.target(link, 1), Target::Gone);
    assert_eq!(links.push(link, PD, &send(1, 2, 0, 0), Source::Sges(&[])), Push::Gone);
    assert_eq!(links.consumed(link), 0);
    assert!(links.active().is_empty());
    // Its prefix is free, and nobody is there to attach to.
    let name = PeerName { prefix: down.peer.prefix, lcore: 0, address: None, nonce: None };
    assert_eq!(device.port.attach(0, name, LIMIT), Err(AttachError::Nobody(name.prefix)));
}

#[test]
fn a_stopped_peer_is_waited_for_only_so_long() {
    let scratch = Scratch::new();
    let device = Device::new(&scratch.directory(), 1);
    let player = Player::start("echo", &scratch);
    let name = PeerName {
        prefix: player.prefix(&scratch.directory()),
        lcore: 0,
        address: None,
        nonce: None,
    };
    player.signal(Signal::STOP);
    let error = device.port.attach(0, name, Duration::from_millis(50)).unwrap_err();
    assert_eq!(error, AttachError::Timeout);
    assert!(error.falls_back());
    player.signal(Signal::CONT);
    until("it attaches after all", || device.port.attach(0, name, LIMIT).is_ok());
}

/// Claims a prefix and a port, and waits to be killed.
pub(super) fn claimer(directory: &Directory) {
    let address = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
    let _port = directory.claim_port(address, 7471).unwrap();
    let _prefix = directory.claim_prefix().unwrap();
    loop {
        std::thread::park();
    }
}

/// What a killed process claimed is free at once, and nothing of it is left anywhere.
#[test]
fn claims_end_with_their_process() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let player = Player::start("claimer", &scratch);
    assert_eq!(player.prefix(&directory), 1);
    let address = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
    let error = directory.claim_port(address, 7471).unwrap_err();
    assert_eq!(error.to_string(), format!("127.0.0.1:7471 is taken by process {}", player.pid()));
    assert_eq!(directory.claim_prefix().unwrap().prefix(), 2);
    player.kill();
    let _port = directory.claim_port(address, 7471).unwrap();
    assert_eq!(directory.claim_prefix().unwrap().prefix(), 1);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Runs in a process of its own, since descriptors and mappings are the whole process's.
pub(super) fn leaks() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let empty = footprint();
    {
        let mut device = Device::new(&directory, 1);
        let from = device.buffer(1, 4096, Access::REMOTE);
        let rest = footprint();
        for round in 0..3 {
            let Echo { player, link, .. } = Echo::start(&scratch, &mut device);
            device.port.retire(100);
            let links = &mut device.links[0];
            if round == 1 {
                assert!(matches!(
                    links.push(link, PD, &send(1, 2, 0xff_ffff, 0), Source::Sges(&[])),
                    Push::At(_)
                ));
                links.publish();
                player.finish();
            } else {
                player.kill();
            }
            until("the link is down", || {
                links.turn();
                links.next_down().is_some()
            });
            // The control thread lets go of its part at about the same time.
            until("everything of the peer is let go", || {
                links.turn();
                footprint() == rest
            });
        }
        drop(from);
    }
    assert_eq!(footprint(), empty);
}

#[test]
fn nothing_of_a_peer_is_left_over() {
    let scratch = Scratch::new();
    Player::start("leaks", &scratch).finish();
}
