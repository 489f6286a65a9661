//! Two lcores, of one device or of two, in this process.

use core::sync::atomic::AtomicBool;

use super::*;

/// A pair of lcores to try everything on: of one device, the same lcore twice, or of two devices.
enum Pair {
    One(Device, u8),
    Two(Device, Device),
}

impl Pair {
    fn all(scratch: &Scratch) -> [Self; 3] {
        let directory = scratch.directory();
        [
            Self::One(Device::new(&directory, 2), 1),
            Self::One(Device::new(&directory, 1), 0),
            Self::Two(Device::new(&directory, 1), Device::new(&directory, 1)),
        ]
    }

    fn a(&mut self) -> &mut Device {
        match self {
            Self::One(device, _) | Self::Two(device, _) => device,
        }
    }

    fn b(&mut self) -> &mut Device {
        match self {
            Self::One(device, _) | Self::Two(_, device) => device,
        }
    }

    fn links_b(&mut self) -> &mut Links {
        match self {
            Self::One(device, lcore) => &mut device.links[usize::from(*lcore)],
            Self::Two(_, device) => &mut device.links[0],
        }
    }

    fn link(&mut self) -> (u32, u32) {
        match self {
            Self::One(device, lcore) => {
                let here = device.port.attach(0, device.name(*lcore), LIMIT).unwrap();
                let there = device.port.attach((*lcore).into(), device.name(0), LIMIT).unwrap();
                device.turn();
                (here, there)
            }
            Self::Two(a, b) => link(a, 0, b, 0),
        }
    }
}

#[test]
fn records_arrive_whole_and_once_published() {
    let scratch = Scratch::new();
    for mut pair in Pair::all(&scratch) {
        let from = pair.a().buffer(1, 64 << 10, Access::REMOTE_READ);
        let into = pair.b().buffer(2, 64 << 10, Access::empty());
        let (ab, ba) = pair.link();
        let (src, dst) = (pair.a().qpn(0, 1), pair.b().qpn(0, 2));
        // Inline, on the edge, pulled, in two and three elements; with everything a record can carry.
        let cases: [(&[Sge], u32); 6] = [
            (&[], 0),
            (&[from.sge(0, 8)], 8),
            (&[from.sge(1, 256)], 256),
            (&[from.sge(7, 257)], 257),
            (&[from.sge(0, 100), from.sge(5000, 100)], 200),
            (
                &[from.sge(3, 9000), from.sge(0, 0), from.sge(20_000, 1), from.sge(30_000, 3000)],
                12_001,
            ),
        ];
        for (seq, (sges, len)) in (0..).zip(cases) {
            from.region.write_at(0, &pattern(u64::from(seq), 64 << 10)).unwrap();
            let record = Record {
                imm: Some([1, 2, 3, seq]),
                solicited: seq % 2 == 0,
                srqn: Some(5),
                ..send(src, dst, 0xff_fff0 + u32::from(seq), len)
            };
            let Push::At(position) = pair.a().links[0].push(ab, PD, &record, Source::Sges(sges))
            else {
                panic!("pushed")
            };
            into.region.fill(0, 64 << 10, 0xee).unwrap();
            assert_eq!(take_one(pair.links_b(), ba, &into.sge(1, 50_000)), None, "not published");
            pair.a().links[0].publish();
            assert!(pair.a().links[0].consumed(ab) < position);
            assert_eq!(take_one(pair.links_b(), ba, &into.sge(1, 50_000)), Some(record));
            assert_eq!(taken_up_to(&mut pair.a().links[0], ab), position);
            let expected: Vec<u8> = sges
                .iter()
                .flat_map(|sge| from.bytes(sge.addr - from.va(), sge.len as usize))
                .collect();
            assert_eq!(into.bytes(1, expected.len()), expected, "message {seq}");
            assert_eq!(into.bytes(0, 1), [0xee]);
            assert_eq!(into.bytes(1 + u64::from(len), 1), [0xee], "message {seq} ends");
        }
        // Bytes given inline.
        let record = send(src, dst, 9, 300);
        let bytes = pattern(77, 300);
        assert!(matches!(
            pair.a().links[0].push(ab, PD, &record, Source::Inline(&bytes)),
            Push::At(_)
        ));
        pair.a().links[0].publish();
        assert_eq!(take_one(pair.links_b(), ba, &into.sge(0, 300)), Some(record));
        assert_eq!(into.bytes(0, 300), bytes);
    }
}

#[test]
fn payloads_are_cut_into_the_receivers_elements() {
    let scratch = Scratch::new();
    for mut pair in Pair::all(&scratch) {
        let from = pair.a().buffer(1, 64 << 10, Access::REMOTE_READ);
        let into = pair.b().buffer(2, 64 << 10, Access::empty());
        let (ab, ba) = pair.link();
        from.region.write_at(0, &pattern(3, 64 << 10)).unwrap();
        for len in [200_u32, 6000] {
            let sges = [from.sge(10, len / 2), from.sge(40_000, len - len / 2)];
            let expected =
                [from.bytes(10, len as usize / 2), from.bytes(40_000, (len - len / 2) as usize)]
                    .concat();
            let record = send(1, 2, 0, len);
            assert!(matches!(
                pair.a().links[0].push(ab, PD, &record, Source::Sges(&sges)),
                Push::At(_)
            ));
            pair.a().links[0].publish();
            let mut cuts = Vec::new();
            let taken = pair.links_b().rx(ba, |_, _, payload| {
                let mut offset = 0;
                for part in [1, 63, 64, 100, 7000] {
                    payload.copy_to(PD, offset, &into.sge(u64::from(offset), part)).unwrap();
                    offset += part;
                    cuts.push(offset);
                }
                // Beyond the message there is nothing to copy, and so nothing to check.
                payload.copy_to(PD, offset, &Sge { addr: 0, len: 1, lkey: 0 }).unwrap();
                true
            });
            assert_eq!((taken, cuts.len()), (1, 5));
            assert_eq!(into.bytes(0, len as usize), expected);
        }
    }
}

#[test]
fn answers_go_out_while_a_record_is_taken() {
    let scratch = Scratch::new();
    for mut pair in Pair::all(&scratch) {
        let (ab, ba) = pair.link();
        let record = send(1, 2, 3, 4);
        assert!(matches!(
            pair.a().links[0].push(ab, PD, &record, Source::Inline(&[1; 4])),
            Push::At(_)
        ));
        pair.a().links[0].publish();
        let nak = Record { kind: Kind::Nak { syndrome: 0x62 }, len: 0, ..send(2, 1, 3, 0) };
        let mut first = true;
        let taken = pair.links_b().rx(ba, |links, got, _| {
            if core::mem::replace(&mut first, false) {
                assert_eq!(*got, record);
                assert!(matches!(links.push(ba, PD, &nak, Source::Inline(&[])), Push::At(_)));
                assert_eq!(links.rx(ba, |_, _, _| true), 0, "taking from a link does not nest");
            }
            true
        });
        assert_eq!(taken, 1);
        pair.links_b().publish();
        let mut got = None;
        pair.a().links[0].rx(ab, |_, record, _| {
            got = Some(*record);
            true
        });
        assert_eq!(got, Some(nak));
    }
}

/// An answer is always there before the position it answers counts as taken.
#[test]
fn nothing_counts_as_taken_before_its_answer_is_there() {
    let scratch = Scratch::new();
    for mut pair in Pair::all(&scratch) {
        let (ab, ba) = pair.link();
        let Push::At(position) =
            pair.a().links[0].push(ab, PD, &send(1, 2, 0, 0), Source::Sges(&[]))
        else {
            panic!("pushed")
        };
        pair.a().links[0].publish();
        let nak = Record { kind: Kind::Nak { syndrome: 0x62 }, ..send(2, 1, 0, 0) };
        let taken = pair.links_b().rx(ba, |links, record, _| {
            // More than a burst of others before it.
            for seq in 1..=limits::RX_BURST {
                let other = send(2, 1, u32::try_from(seq).unwrap(), 0);
                assert!(matches!(links.push(ba, PD, &other, Source::Sges(&[])), Push::At(_)));
            }
            assert!(matches!(links.push(ba, PD, &nak, Source::Sges(&[])), Push::At(_)));
            record.seq == 0
        });
        assert_eq!(taken, 1);
        pair.links_b().publish();
        assert_eq!(pair.a().links[0].consumed(ab), 0);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            pair.a().links[0].rx(ab, |_, record, _| {
                kinds.push(record.kind);
                true
            });
            let answered = kinds.contains(&nak.kind);
            let counts = pair.a().links[0].consumed(ab) >= position;
            assert!(answered || !counts, "{kinds:?}");
        }
        assert!(kinds.contains(&nak.kind));
        assert!(taken_up_to(&mut pair.a().links[0], ab) >= position);
    }
}

/// Both rings are full of messages that nobody can take: answers still find room.
#[test]
fn full_rings_leave_room_for_answers() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let small = |config: &mut PortConfig| config.ring_bytes = limits::RING_BYTES_MIN;
    let (mut a, mut b) = (Device::with(&directory, 1, small), Device::with(&directory, 1, small));
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    for (links, link) in [(&mut a.links[0], ab), (&mut b.links[0], ba)] {
        for len in [100, 0] {
            let bytes = [0; 100];
            let source = Source::Inline(&bytes[..len as usize]);
            while let Push::At(_) = links.push(link, PD, &send(1, 2, 0, len), source) {}
        }
        for kind in [
            Kind::Nak { syndrome: 0x20 },
            Kind::SourceFault,
            Kind::Violation { access: true, syndrome: 0x62 },
            Kind::Starved,
        ] {
            let answer = Record { kind, ..send(1, 2, 0, 0) };
            assert!(
                matches!(links.push(link, PD, &answer, Source::Sges(&[])), Push::At(_)),
                "{kind:?}"
            );
        }
        let imm = Record { kind: Kind::WriteImm, imm: Some([0; 4]), ..send(1, 2, 0, 0) };
        assert_eq!(links.push(link, PD, &imm, Source::Sges(&[])), Push::Full);
        links.publish();
    }
}

#[test]
fn a_record_that_cannot_be_taken_now_comes_again() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    for seq in 0..3 {
        let pushed = a.links[0].push(ab, PD, &send(1, 2, seq, 0), Source::Sges(&[]));
        assert!(matches!(pushed, Push::At(_)));
    }
    a.links[0].publish();
    let mut seen = Vec::new();
    for refuse in [1, 1, 9] {
        b.links[0].rx(ba, |_, record, _| {
            seen.push(record.seq);
            record.seq != refuse
        });
    }
    assert_eq!(seen, [0, 1, 1, 1, 2]);
}

#[test]
fn one_sided_operations_reach_what_is_granted_and_nothing_else() {
    let scratch = Scratch::new();
    for mut pair in Pair::all(&scratch) {
        let here = pair.a().buffer(1, 8192, Access::empty());
        let there = pair.b().buffer(2, 8192, Access::REMOTE);
        let read_only = pair.b().buffer(3, 8192, Access::REMOTE_READ);
        let (ab, _) = pair.link();
        let links = &mut pair.a().links[0];
        let local = Err(MemoryFault::Local);
        let remote = Err(MemoryFault::Remote);

        here.region.write_at(0, &pattern(1, 8192)).unwrap();
        let sges = [here.sge(1, 3000), here.sge(8000, 192)];
        let expected = [here.bytes(1, 3000), here.bytes(8000, 192)].concat();
        links.write(ab, PD, Source::Sges(&sges), &there.remote(4000, 0)).unwrap();
        assert_eq!(there.bytes(4000, 3192), expected);
        links.write(ab, PD, Source::Inline(b"inline"), &there.remote(8186, 0)).unwrap();
        assert_eq!(there.bytes(8186, 6), b"inline");
        links
            .read(ab, PD, &[here.sge(5000, 10), here.sge(6000, 3182)][..1], &there.remote(4000, 0))
            .unwrap();
        assert_eq!(here.bytes(5000, 10), expected[..10]);

        // Nothing is touched and nothing checked for no bytes.
        let nowhere = Remote { addr: 1, rkey: 1, pd: 1, qpn: 1 };
        assert_eq!(links.write(ab, PD, Source::Sges(&[]), &nowhere), Ok(()));
        assert_eq!(links.read(ab, PD, &[Sge { addr: 9, len: 0, lkey: 9 }], &nowhere), Ok(()));

        let before = there.bytes(0, 8192);
        let one = [here.sge(0, 1)];
        for target in [
            Remote { rkey: there.key.0 ^ 1, ..there.remote(0, 0) },
            Remote { rkey: 0, ..there.remote(0, 0) },
            Remote { pd: PD + 1, ..there.remote(0, 0) },
            there.remote(8192, 0),
            there.remote(0_u64.wrapping_sub(1), 0),
            Remote { addr: u64::MAX, ..there.remote(0, 0) },
            read_only.remote(0, 0),
        ] {
            assert_eq!(links.write(ab, PD, Source::Sges(&one), &target), remote, "{target:?}");
            assert_eq!(links.write(ab, PD, Source::Inline(&[1]), &target), remote, "{target:?}");
            assert_eq!(
                links.atomic(ab, &target, AtomicOp::FetchAdd(1)),
                Err(MemoryFault::Remote),
                "{target:?}"
            );
            if target.rkey != read_only.key.0 {
                assert_eq!(links.read(ab, PD, &one, &target), remote, "{target:?}");
            }
        }
        links.read(ab, PD, &one, &read_only.remote(8191, 0)).unwrap();
        assert_eq!(links.read(ab, PD, &[here.sge(0, 2)], &read_only.remote(8191, 0)), remote);
        for sge in [
            Sge { lkey: here.key.0 ^ 1, ..here.sge(0, 1) },
            here.sge(8192, 1),
            here.sge(0, 8193),
            Sge { addr: 0, ..here.sge(0, 1) },
        ] {
            assert_eq!(
                links.write(ab, PD, Source::Sges(&[sge]), &there.remote(0, 0)),
                local,
                "{sge:?}"
            );
            assert_eq!(links.read(ab, PD, &[sge], &there.remote(0, 0)), local, "{sge:?}");
            let pushed = links.push(ab, PD, &send(1, 2, 0, sge.len), Source::Sges(&[sge]));
            assert_eq!(pushed, Push::LocalFault, "{sge:?}");
        }
        assert_eq!(links.write(ab, PD + 1, Source::Sges(&one), &there.remote(0, 0)), local);
        assert_eq!(
            links.push(ab, PD, &send(1, 2, 0, 2), Source::Sges(&one)),
            Push::LocalFault,
            "length"
        );
        assert_eq!(there.bytes(0, 8192), before);

        there.region.write_at(64, &5_u64.to_ne_bytes()).unwrap();
        let at = there.remote(64, 0);
        assert_eq!(links.atomic(ab, &at, AtomicOp::FetchAdd(u64::MAX)), Ok(5));
        assert_eq!(links.atomic(ab, &at, AtomicOp::CompareSwap { compare: 5, swap: 9 }), Ok(4));
        assert_eq!(links.atomic(ab, &at, AtomicOp::CompareSwap { compare: 4, swap: 9 }), Ok(4));
        assert_eq!(there.bytes(64, 8), 9_u64.to_ne_bytes());
        assert_eq!(
            links.atomic(ab, &there.remote(60, 0), AtomicOp::FetchAdd(1)),
            Err(MemoryFault::Remote)
        );
        links.fence();
        links.publish();

        assert_eq!(
            links.write(ab ^ 1 << 16, PD, Source::Sges(&one), &there.remote(0, 0)),
            Err(MemoryFault::Gone)
        );
        assert_eq!(links.target(ab ^ 1 << 16, 1), Target::Gone);
        assert_eq!(links.push(0xdead_beef, PD, &send(1, 2, 0, 0), Source::Sges(&[])), Push::Gone);
    }
}

/// A SEND must be visible to whoever sees the WRITE that was posted after it.
#[test]
fn a_write_does_not_overtake_an_unpublished_record() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let there = b.buffer(1, 4096, Access::REMOTE);
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    until("the region is mapped", || {
        a.turn();
        a.links[0].write(ab, PD, Source::Inline(&[0]), &there.remote(0, 0)).is_ok()
    });
    assert!(matches!(a.links[0].push(ab, PD, &send(1, 2, 1, 0), Source::Sges(&[])), Push::At(_)));
    a.links[0].write(ab, PD, Source::Inline(&[1]), &there.remote(0, 0)).unwrap();
    let taken = b.links[0].rx(ba, |_, _, _| true);
    assert_eq!(taken, 1);
    // And the batch that follows is published as ever.
    assert!(matches!(a.links[0].push(ab, PD, &send(1, 2, 2, 0), Source::Sges(&[])), Push::At(_)));
    assert_eq!(b.links[0].rx(ba, |_, _, _| true), 0);
    a.links[0].publish();
    assert_eq!(b.links[0].rx(ba, |_, _, _| true), 1);
}

/// A datagram completes at once: its buffer may be used again before the peer has looked.
#[test]
fn datagrams_do_not_need_their_buffer_any_more() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let from = a.buffer(1, 8192, Access::REMOTE_READ);
    let into = b.buffer(1, 8192, Access::empty());
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    let src = a.qpn(0, 3);
    a.links[0].show(src, Some(&ShownQp { peer: 0, ..rts(0) }));
    from.region.write_at(0, &pattern(1, 4096)).unwrap();
    let datagram = Datagram {
        qkey: 0x11,
        src: [1; 16],
        dst: [2; 16],
        src_port: 0xc001,
        traffic_class: 0,
        hop_limit: 64,
    };
    let record = Record { kind: Kind::Datagram(datagram), ..send(src, 2, 0, 4096) };
    assert!(matches!(
        a.links[0].push(ab, PD, &record, Source::Sges(&[from.sge(0, 4096)])),
        Push::At(_)
    ));
    from.region.fill(0, 4096, 0).unwrap();
    a.links[0].publish();
    assert_eq!(take_one(&mut b.links[0], ba, &into.sge(0, 8192)), Some(record));
    assert_eq!(into.bytes(0, 4096), pattern(1, 4096));
}

/// Memory that peers do not have goes through the ring as far as a record goes, and no further.
#[test]
fn private_memory_is_sent_by_copy() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let from = a.buffer(1, 64 << 10, Access::empty());
    let into = b.buffer(1, 64 << 10, Access::empty());
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    from.region.write_at(0, &pattern(1, 64 << 10)).unwrap();
    let largest = u32::try_from(limits::RING_BYTES / limits::RECORD_DIVISOR).unwrap() - 16;
    let record = send(1, 2, 0, largest);
    assert!(matches!(
        a.links[0].push(ab, PD, &record, Source::Sges(&[from.sge(1, largest)])),
        Push::At(_)
    ));
    a.links[0].publish();
    assert_eq!(take_one(&mut b.links[0], ba, &into.sge(0, 64 << 10)), Some(record));
    assert_eq!(into.bytes(0, largest as usize), from.bytes(1, largest as usize));
    let record = send(1, 2, 0, largest + 1);
    assert_eq!(
        a.links[0].push(ab, PD, &record, Source::Sges(&[from.sge(0, largest + 1)])),
        Push::LocalFault
    );
}

#[test]
fn queue_pairs_are_seen_by_peers() {
    let scratch = Scratch::new();
    for mut pair in Pair::all(&scratch) {
        let (ab, ba) = pair.link();
        let qpn = pair.b().qpn(0, 5);
        assert_eq!(pair.a().links[0].target(ab, qpn), Target::Absent);
        assert!(pair.links_b().show(qpn, Some(&rts(1))));
        assert_eq!(pair.a().links[0].target(ab, qpn), Target::Qp(rts(1)));
        assert!(pair.links_b().show(qpn, None));
        assert_eq!(pair.a().links[0].target(ab, qpn), Target::Absent);
        assert!(matches!(pair.links_b().target(ba, qpn ^ 1), Target::Absent));
    }
}

/// What is registered after the link exists is found without anybody waiting: `NotYet`, then there.
#[test]
fn regions_come_and_go_on_a_live_link() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    let there = b.buffer(9, 4096, Access::REMOTE_READ);
    // The key is in the table already; the memory cannot be mapped before a's next turn.
    let byte = [a.buffer(1, 4096, Access::empty()).sge(0, 1)];
    let early = a.links[0].read(ab, PD, &byte, &there.remote(0, 0));
    assert!(matches!(early, Ok(()) | Err(MemoryFault::NotYet)), "{early:?}");
    until("the region is mapped", || {
        a.turn();
        a.links[0].read(ab, PD, &byte, &there.remote(0, 0)) != Err(MemoryFault::NotYet)
    });
    // Now for writing too: another registration, the same region.
    b.port.export(9, &there.region, true).unwrap();
    let writable = Registration {
        region: 9,
        region_len: 4096,
        offset: 0,
        length: 4096,
        va: 0,
        pd: PD,
        access: Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    };
    let key = b.table.register(&writable).unwrap();
    let to = Remote { addr: 5, rkey: key.0, pd: PD, qpn: 0 };
    until("the region is mapped for writing", || {
        a.turn();
        match a.links[0].write(ab, PD, Source::Inline(&[7]), &to) {
            Ok(()) => true,
            Err(e) => {
                assert_eq!(e, MemoryFault::NotYet);
                false
            }
        }
    });
    assert_eq!(there.bytes(5, 1), [7]);
    a.links[0].publish();

    for key in [key, there.key] {
        let retired = b.table.deregister(key).unwrap();
        b.port.reclaim(retired, Some(there.region.segment()), LIMIT).unwrap();
    }
    assert_eq!(a.links[0].write(ab, PD, Source::Inline(&[8]), &to), Err(MemoryFault::Remote));
    assert_eq!(there.bytes(5, 1), [7]);
    a.links[0].publish();
    b.port.retire(9);
    until("the region is let go", || {
        a.turn();
        a.links[0].link(ab).unwrap().out.reach.regions[9].is_none()
    });
    assert_eq!(b.links[0].rx(ba, |_, _, _| true), 0);
}

/// Memory that stays in its process: the initiator is told so, and does not wait for it.
#[test]
fn memory_that_is_not_exported_is_named() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 2), Device::new(&directory, 1));
    let kept = b.buffer(1, 4096, Access::empty());
    let rights = Registration {
        region: 1,
        region_len: 4096,
        offset: 0,
        length: 4096,
        va: 0,
        pd: PD,
        access: Access::REMOTE | Access::LOCAL_WRITE,
    };
    let key = b.table.register(&rights).unwrap();
    let (ab, _) = link(&mut a, 0, &mut b, 0);
    let to = Remote { addr: 0, rkey: key.0, pd: PD, qpn: 0 };
    assert_eq!(a.links[0].write(ab, PD, Source::Inline(&[1]), &to), Err(MemoryFault::Private));
    // Within the device it can be reached all the same.
    let inside = b.port.attach(0, b.name(0), LIMIT).unwrap();
    b.turn();
    b.links[0].write(inside, PD, Source::Inline(&[1]), &to).unwrap();
    assert_eq!(kept.bytes(0, 1), [1]);
}

/// Two threads, messages of all sizes both ways, small rings: every byte arrives, in order.
#[test]
fn traffic_of_all_sizes_both_ways() {
    const MESSAGES: u32 = 3000;
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let small = |config: &mut PortConfig| config.ring_bytes = limits::RING_BYTES_MIN;
    let mut devices = [Device::with(&directory, 1, small), Device::with(&directory, 1, small)];
    let buffers = devices.each_mut().map(|device| {
        let from = device.buffer(1, 64 << 10, Access::REMOTE_READ);
        from.region.write_at(0, &pattern(42, 64 << 10)).unwrap();
        (from, device.buffer(2, 16 << 10, Access::empty()))
    });
    let [a, b] = &mut devices;
    let (ab, ba) = link(a, 0, b, 0);
    let size = |seq: u32| [8, 64, 256, 257, 4096, 0, 1, 300][seq as usize % 8] + seq % 5;
    let start = |seq: u32| u64::from(seq * 37 % 50_000);
    let run = |links: &mut Links,
               link: u32,
               (from, into): &(Buffer, Buffer),
               done: &[AtomicBool; 2],
               me: usize| {
        let (mut sent, mut received, mut last) = (0, 0, 0);
        until("all messages arrive", || {
            for _ in 0..64 {
                links.turn();
                links.rx(link, |_, record, payload| {
                    assert_eq!((record.seq, record.len), (received, size(received)));
                    let len = size(received);
                    payload.copy_to(PD, 0, &into.sge(0, 16 << 10)).unwrap();
                    // Both sides' sources hold the same bytes.
                    assert!(
                        into.region.eq_at(0, &from.bytes(start(received), len as usize)).unwrap(),
                        "{received}"
                    );
                    received += 1;
                    true
                });
                while sent < MESSAGES {
                    let sge = from.sge(start(sent), size(sent));
                    match links.push(link, PD, &send(1, 2, sent, size(sent)), Source::Sges(&[sge]))
                    {
                        Push::At(position) => last = position,
                        Push::Full => break,
                        other => panic!("{other:?}"),
                    }
                    sent += 1;
                }
                links.publish();
            }
            let mine = received == MESSAGES && sent == MESSAGES && links.consumed(link) == last;
            done[me].store(mine, Ordering::Release);
            // Stay until the other has what it waits for.
            done.iter().all(|done| done.load(Ordering::Acquire))
        });
    };
    let done = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        let (links_a, links_b) = (&mut a.links[0], &mut b.links[0]);
        let (buffers, done, run) = (&buffers, &done, &run);
        scope.spawn(move || run(links_a, ab, &buffers[0], done, 0));
        scope.spawn(move || run(links_b, ba, &buffers[1], done, 1));
    });
}

#[test]
fn a_full_ring_says_so_and_goes_on() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    let mut pushed = 0;
    while let Push::At(_) =
        a.links[0].push(ab, PD, &send(1, 2, pushed, 64), Source::Inline(&[1; 64]))
    {
        pushed += 1;
    }
    let reserve = limits::RING_BYTES / limits::RESERVE_DIVISOR;
    assert_eq!(u64::from(pushed), (limits::RING_BYTES - reserve - 8) / 80);
    assert_eq!(a.links[0].push(ab, PD, &send(1, 2, 0, 64), Source::Inline(&[1; 64])), Push::Full);
    a.links[0].publish();
    let (mut taken, mut bursts) = (0, 0);
    while taken < pushed as usize {
        let burst = b.links[0].rx(ba, |_, _, _| true);
        b.links[0].publish();
        assert!((1..=limits::RX_BURST).contains(&burst));
        taken += burst;
        bursts += 1;
    }
    assert_eq!(bursts, (pushed as usize).div_ceil(limits::RX_BURST));
    assert!(matches!(
        a.links[0].push(ab, PD, &send(1, 2, 0, 64), Source::Inline(&[1; 64])),
        Push::At(_)
    ));
}
