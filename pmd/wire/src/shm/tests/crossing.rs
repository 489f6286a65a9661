//! Attaching: from both sides at once, to several lcores, and to what is not there.

use core::net::{IpAddr, Ipv4Addr};

use super::*;

/// Both call each other at the same moment: there is one link, and both know it.
#[test]
fn calls_that_cross_make_one_link() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    for _ in 0..25 {
        let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
        let (ab, ba) = std::thread::scope(|scope| {
            let (port_a, port_b) = (&a.port, &b.port);
            let (name_a, name_b) = (a.name(0), b.name(0));
            let other = scope.spawn(move || port_b.attach(0, name_a, LIMIT));
            (port_a.attach(0, name_b, LIMIT).unwrap(), other.join().unwrap().unwrap())
        });
        a.turn();
        b.turn();
        assert_eq!((a.links[0].active(), b.links[0].active()), (&[ab][..], &[ba][..]));
        let pushed = a.links[0].push(ab, PD, &send(1, 2, 3, 0), Source::Sges(&[]));
        assert!(matches!(pushed, Push::At(_)));
        a.links[0].publish();
        assert_eq!(b.links[0].rx(ba, |_, record, _| record.seq == 3), 1);
    }
}

#[test]
fn every_lcore_reaches_every_lcore() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 2), Device::new(&directory, 3));
    let mut ids = Vec::new();
    for la in 0..2 {
        for lb in 0..3 {
            ids.push((la, lb, link(&mut a, la, &mut b, lb)));
        }
    }
    for (la, lb, (ab, ba)) in ids {
        let (from, to) = (&mut a.links[usize::from(la)], &mut b.links[usize::from(lb)]);
        assert_eq!(from.peer(ab).unwrap().lcore, lb);
        assert_eq!(to.peer(ba).unwrap().lcore, la);
        let seq = u32::from(la * 10 + lb);
        assert!(matches!(from.push(ab, PD, &send(1, 2, seq, 0), Source::Sges(&[])), Push::At(_)));
        from.publish();
        let mut got = Vec::new();
        to.rx(ba, |_, record, _| {
            got.push(record.seq);
            true
        });
        assert_eq!(got, [seq]);
    }
    // Asking again finds the same links.
    let again = link(&mut a, 1, &mut b, 2);
    assert_eq!(again, link(&mut a, 1, &mut b, 2));
    drop(b);
    until("both lcores lose their links", || {
        a.turn();
        a.links.iter().all(|links| links.active().is_empty())
    });
    for links in &mut a.links {
        for _ in 0..3 {
            assert_eq!(links.next_down().unwrap().fault, LinkFault::Closed);
        }
        assert!(links.next_down().is_none());
    }
}

#[test]
fn a_peer_that_is_not_the_one_meant_is_refused_by_name() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let here = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
    let device = |address| Device::with(&directory, 1, |config| config.addresses = vec![address]);
    let (a, b) = (device(here), device(here));
    let pid = std::process::id();
    let good = PeerName { address: Some(here), ..b.name(0) };
    let elsewhere = PeerName { address: Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))), ..good };
    let stranger = PeerName { nonce: Some(Nonce([7; 16])), ..good };
    // Of another device, and of the device itself.
    for (name, lcore) in [(good, 5), (PeerName { address: Some(here), ..a.name(0) }, 6)] {
        let unfit = |name, refusal| {
            assert_eq!(
                a.port.attach(0, name, LIMIT),
                Err(AttachError::Unfit { pid, refusal }),
                "{name:?}"
            );
        };
        unfit(PeerName { address: elsewhere.address, ..name }, Refusal::Address);
        unfit(PeerName { lcore, ..name }, Refusal::Lcore(lcore));
        if name == good {
            // Refused by the peer, which was called by a name that is not its own.
            let refused = a.port.attach(0, PeerName { nonce: stranger.nonce, ..name }, LIMIT);
            assert!(matches!(
                refused,
                Err(AttachError::Unfit { refusal: Refusal::Nonce, .. }
                    | AttachError::Refused { refusal: Refusal::Nonce, .. })
            ));
        } else {
            unfit(PeerName { nonce: stranger.nonce, ..name }, Refusal::Nonce);
        }
    }
    assert_eq!(a.port.attach(1, good, LIMIT), Err(AttachError::NoSuchLcore(1)));
    assert!(!AttachError::NoSuchLcore(1).falls_back());
    let nobody = a.port.attach(0, PeerName { prefix: 99, ..good }, LIMIT).unwrap_err();
    assert_eq!(nobody, AttachError::Nobody(99));
    assert!(nobody.falls_back() && nobody.to_string().contains("prefix 99"), "{nobody}");
    a.port.attach(0, good, LIMIT).unwrap();
}

/// An lcore that nobody polls cannot be linked; the one who asks hears of it at once.
#[test]
fn an_lcore_that_has_not_started_is_named() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 2), Device::new(&directory, 2));
    b.links.pop();
    let pid = std::process::id();
    let refused = a.port.attach(0, b.name(1), LIMIT);
    assert_eq!(refused, Err(AttachError::Refused { pid, refusal: Refusal::Lcore(1) }));
    a.links.pop();
    assert_eq!(a.port.attach(1, b.name(0), LIMIT), Err(AttachError::NoSuchLcore(1)));
    assert_eq!(a.port.attach(0, a.name(1), LIMIT), Err(AttachError::NoSuchLcore(1)));
    b.links.push(b.port.links(1).unwrap());
    a.port.attach(0, b.name(1), LIMIT).unwrap();
    link(&mut a, 0, &mut b, 0);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let refused = |change: fn(&mut PortConfig), text: &str| {
        let device = Device::new(&directory, 1);
        let shared = device.port.shared();
        let claim = directory.claim_prefix().unwrap();
        let mut config = PortConfig::new(
            directory.clone(),
            claim,
            Arc::clone(&device.table),
            Arc::clone(&shared.table_region),
        );
        change(&mut config);
        let error = Port::open(config).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(|config| config.lcores = 0, "lcores = 0: 1 to 8");
    refused(|config| config.lcores = 9, "lcores = 9: 1 to 8");
    refused(|config| config.qps = 2049, "qps = 2049: 1 to 2048");
    refused(|config| config.ring_bytes = 3000, "ring_bytes = 3000: a power of two");
    refused(
        |config| config.addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST); 33],
        "addresses = 33: at most 32",
    );
    let mut device = Device::new(&directory, 1);
    assert!(device.port.links(0).is_none(), "taken already");
    assert!(device.port.links(1).is_none());
    let buffer = device.buffer(0, 4096, Access::empty());
    assert!(matches!(
        device.port.export(limits::REGIONS_MAX, &buffer.region, false),
        Err(ExportError::TooMany(4096))
    ));
}
