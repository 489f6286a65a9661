//! Messages that are alone: by the shortest way into the ring, and out of it.

use super::*;

/// Takes whatever is alone, and refuses the rest.
struct Only<'a> {
    pair: (u32, u32),
    into: &'a Buffer,
    next: u32,
}

impl Take for Only<'_> {
    fn alone(&mut self, arrivals: &mut Arrivals<'_>) -> bool {
        let (dst, src) = self.pair;
        let taken = arrivals.take(dst, src, PD, self.next, &self.into.sge(0, 64));
        self.next += u32::from(taken.is_some());
        taken.is_some()
    }

    fn run(&mut self, _: &Links, _: &mut Arrivals<'_>, _: usize) -> usize {
        0
    }

    fn record(&mut self, _: &mut Links, record: &Record, _: &mut Payload<'_>) -> bool {
        panic!("{record:?} was not taken alone")
    }
}

/// What is sent alone arrives, at once or with the next publication; what the peer has taken is looked at after a message that
/// came alone, and not before a second one.
#[test]
fn a_message_comes_before_what_the_peer_has_taken() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let (from, into) = (a.buffer(1, 4096, Access::empty()), b.buffer(2, 4096, Access::empty()));
    let (back, home) = (b.buffer(3, 4096, Access::empty()), a.buffer(4, 4096, Access::empty()));
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    let (one, two) = (a.qpn(0, 1), b.qpn(0, 1));
    b.links[0].show(two, Some(&rts(one)));
    a.links[0].show(one, Some(&rts(two)));
    let bytes = pattern(3, 4096);
    from.region.write_at(0, &bytes).unwrap();
    back.region.write_at(0, &bytes).unwrap();
    let spares = [5, 6].map(|id| b.buffer(id, 4096, Access::empty()));
    let mut spares = spares.iter();
    let Device { port, table, links, .. } = &mut b;
    let (a, b) = (&mut a.links[0], &mut links[0]);
    // Keys become known by a message that goes another way.
    for (links, link, from, pair) in
        [(&mut *a, ab, &from, (one, two)), (&mut *b, ba, &back, (two, one))]
    {
        let sge = [from.sge(0, 8)];
        let pushed = links.push(link, PD, &send(pair.0, pair.1, 0, 8), Source::Sges(&sge));
        assert!(matches!(pushed, Push::At(_)));
        links.publish();
    }
    assert!(take_one(b, ba, &into.sge(0, 64)).is_some());
    assert!(take_one(a, ab, &home.sge(0, 64)).is_some());

    let to_b = Pair { qpn: one, pd: PD, peer: two, peer_pd: PD };
    let to_a = Pair { qpn: two, pd: PD, peer: one, peer_pd: PD };
    let (sees_b, sees_a) = (a.glance(ab, two).unwrap(), b.glance(ba, one).unwrap());
    let mut at_b = Only { pair: (two, one), into: &into, next: 1 };
    let mut at_a = Only { pair: (one, two), into: &home, next: 1 };
    for seq in 1..=40 {
        let now = seq % 2 == 1;
        let message =
            Alone { seen: sees_b, seq, solicited: false, from: from.sge(seq.into(), 8), now };
        for wrong in [
            Alone { seen: sees_b ^ 1, ..message },
            Alone { from: from.sge(0, 0), ..message },
            Alone { from: from.sge(0, 257), ..message },
            Alone { from: Sge { lkey: message.from.lkey ^ 1, ..message.from }, ..message },
            Alone { from: from.sge(4089, 8), ..message },
        ] {
            assert_eq!(a.send_alone(ab, to_b, &wrong), None, "{wrong:?}");
        }
        let position = a.send_alone(ab, to_b, &message).unwrap();
        if !now {
            assert_eq!(b.rx_with(ba, &mut at_b), 0, "it is not visible yet");
            a.publish();
        }
        assert_eq!(b.rx_with(ba, &mut at_b), 1);
        // Between taking and publishing, nobody waits for this lcore to have done with memory: it may deregister some itself.
        if let Some(spare) = spares.next() {
            a.publish();
            let retired = table.deregister(spare.key).unwrap();
            port.reclaim(retired, Some(spare.region.segment()), Duration::ZERO).unwrap();
        }
        let at = seq as usize;
        assert_eq!(into.bytes(0, 8), &bytes[at..at + 8]);
        let answer = Alone { seen: sees_a, from: back.sge(seq.into(), 8), now: true, ..message };
        assert!(b.send_alone(ba, to_a, &answer).is_some());
        b.publish();
        assert_eq!(a.rx_with(ab, &mut at_a), 1);
        assert!(a.consumed(ab) < position, "the message comes first");
        assert_eq!(a.rx_with(ab, &mut at_a), 0);
        assert_eq!(a.consumed(ab), position);
        a.publish();
        assert_eq!(b.rx_with(ba, &mut at_b), 0);
    }
}
