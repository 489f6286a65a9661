//! Messages that are taken in runs.

use super::*;

/// Takes messages that are numbered per queue pair: in runs of at most so many, and by records what no run shows.
struct Taker {
    /// The peer of each queue pair, and the number that comes next.
    pairs: Vec<(u32, u32, u32)>,
    into: Buffer,
    room: u32,
    most: usize,
    /// What was taken in runs, and what was not: receiver and bytes.
    got: Vec<(u32, Vec<u8>)>,
    in_runs: usize,
    alone: usize,
}

impl Taker {
    fn run_of<const BORROWED: bool>(
        &mut self,
        arrivals: &mut Arrivals<'_>,
        dst: u32,
        most: usize,
    ) -> usize {
        let Self { pairs, into, room, got, .. } = self;
        let Some((_, src, next)) = pairs.iter_mut().find(|(qpn, ..)| *qpn == dst) else { return 0 };
        let sge = into.sge(0, *room);
        let Some(mut messages) = arrivals.messages::<BORROWED>(dst, *src, PD, sge.lkey) else {
            return 0;
        };
        let mut taken = 0;
        while taken < most
            && let Some(plain) = messages.copy(*next, &sge)
        {
            assert_eq!(plain.solicited, next.is_multiple_of(3));
            got.push((dst, into.bytes(0, plain.len as usize)));
            messages.advance();
            *next += 1;
            taken += 1;
        }
        taken
    }
}

impl Take for Taker {
    fn alone(&mut self, arrivals: &mut Arrivals<'_>) -> bool {
        // With an even limit it waits for the other ways.
        if self.most.is_multiple_of(2) {
            return false;
        }
        let (dst, is_borrowed) = arrivals.front().unwrap();
        assert!(!is_borrowed);
        let sge = self.into.sge(0, self.room);
        let (_, src, next) = self.pairs.iter_mut().find(|(qpn, ..)| *qpn == dst).unwrap();
        let Some(plain) = arrivals.take(dst, *src, PD, *next, &sge) else { return false };
        assert_eq!(plain.solicited, next.is_multiple_of(3));
        *next += 1;
        self.got.push((dst, self.into.bytes(0, plain.len as usize)));
        self.alone += 1;
        true
    }

    fn run(&mut self, _: &Links, arrivals: &mut Arrivals<'_>, budget: usize) -> usize {
        let most = self.most.min(budget);
        let mut taken = 0;
        while taken < most
            && let Some((dst, is_borrowed)) = arrivals.front()
        {
            let run = match is_borrowed {
                false => self.run_of::<false>(arrivals, dst, most - taken),
                true => self.run_of::<true>(arrivals, dst, most - taken),
            };
            if run == 0 {
                break;
            }
            taken += run;
        }
        self.in_runs += taken;
        taken
    }

    fn record(&mut self, _: &mut Links, record: &Record, payload: &mut Payload<'_>) -> bool {
        let (.., next) = self.pairs.iter_mut().find(|(qpn, ..)| *qpn == record.dst).unwrap();
        assert_eq!(record.seq, *next);
        *next += 1;
        payload.copy_to(PD, 0, &self.into.sge(0, self.room)).unwrap();
        self.got.push((record.dst, self.into.bytes(0, record.len as usize)));
        true
    }
}

/// Messages of every kind and size through many laps of a ring, in runs of every length: each arrives once, whole and in order.
#[test]
fn runs_and_records_take_the_same() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
    let from = a.buffer(1, 8192, Access::REMOTE_READ);
    let into = b.buffer(2, 8192, Access::empty());
    let bytes = pattern(5, 8192);
    from.region.write_at(0, &bytes).unwrap();
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    let pairs = (1..=3).map(|n| (b.qpn(0, n), a.qpn(0, n), 0)).collect();
    let mut taker =
        Taker { pairs, into, room: 4096, most: 0, got: Vec::new(), in_runs: 0, alone: 0 };
    let (mut sent, mut seqs) = (Vec::new(), [0_u32; 3]);
    for round in 0..1000_u32 {
        for nth in 0..round % 24 {
            let which = round / 7 % 3;
            // Some are empty, and some borrowed.
            let len = match (round + nth) % 19 {
                0 => 0,
                1 => 257 + nth * 100,
                _ => (round * 31 + nth * 7) % 256 + 1,
            };
            let (src, dst) = (a.qpn(0, which + 1), b.qpn(0, which + 1));
            let seq = &mut seqs[which as usize];
            let imm = (round + nth).is_multiple_of(17).then_some([9; 4]);
            let solicited = seq.is_multiple_of(3);
            let record = Record { imm, solicited, ..send(src, dst, *seq, len) };
            *seq += 1;
            let sge = [from.sge(u64::from(nth) * 8, len)];
            let pushed = a.links[0].push(ab, PD, &record, Source::Sges(&sge));
            assert!(matches!(pushed, Push::At(_)), "{pushed:?}");
            let at = nth as usize * 8;
            sent.push((dst, bytes[at..at + len as usize].to_vec()));
        }
        a.links[0].publish();
        taker.most = round as usize % 9;
        while b.links[0].rx_with(ba, &mut taker) > 0 {}
        b.links[0].publish();
        assert_eq!(taker.got.len(), sent.len(), "round {round}");
    }
    assert!(taker.got == sent, "each arrives whole and in order");
    assert!(taker.in_runs > sent.len() / 2, "{} of {} in runs", taker.in_runs, sent.len());
    assert!(taker.alone > 50, "{} of {} alone", taker.alone, sent.len());
}

/// Tries to take the message at the front in ways that are wrong in one thing, and then the right way.
struct Picky {
    right: (u32, u32),
    into: Buffer,
    other: Buffer,
    len: u32,
    outcome: Option<Plain>,
}

impl Picky {
    fn try_all<const BORROWED: bool>(&mut self, arrivals: &mut Arrivals<'_>) {
        const SEQ: u32 = 5;

        let (dst, src) = self.right;
        let (lkey, len) = (self.into.key.0, self.len);
        let place = self.into.sge(8, len);
        for (dst, src, pd, lkey) in [
            (dst, src ^ 1 << 14, PD, lkey),
            (dst ^ 1 << 17, src, PD, lkey),
            (dst, src, PD + 1, lkey),
            (dst, src, PD, lkey ^ 1),
            // It was never used before: the table is to be asked.
            (dst, src, PD, self.other.key.0),
        ] {
            assert!(arrivals.messages::<BORROWED>(dst, src, pd, lkey).is_none());
        }
        for (dst, src) in [(dst ^ 1, src), (dst, src ^ 1)] {
            let mut others = arrivals.messages::<BORROWED>(dst, src, PD, lkey).unwrap();
            assert_eq!(others.copy(SEQ, &place), None);
        }
        let mut messages = arrivals.messages::<BORROWED>(dst, src, PD, lkey).unwrap();
        for (seq, into) in [
            (SEQ + 1, place),
            (SEQ, Sge { len: len - 1, ..place }),
            (SEQ, Sge { addr: self.into.va() + 4097 - u64::from(len), ..place }),
            (SEQ, Sge { addr: self.into.va() - 1, ..place }),
            (SEQ, Sge { lkey: self.other.key.0, ..place }),
        ] {
            assert_eq!(messages.copy(seq, &into), None, "{seq} into {into:?}");
        }
        assert_eq!(messages.copy(SEQ, &place), Some(Plain { len, solicited: false }));
        // It was not taken, and is there for whoever takes it.
        let mut messages = arrivals.messages::<BORROWED>(dst, src, PD, lkey).unwrap();
        self.outcome = messages.copy(SEQ, &place);
        messages.advance();
        assert_eq!(messages.copy(SEQ + 1, &place), None, "there is no other");
    }
}

impl Take for Picky {
    fn alone(&mut self, arrivals: &mut Arrivals<'_>) -> bool {
        const SEQ: u32 = 5;

        let ((dst, src), len) = (self.right, self.len);
        let place = self.into.sge(8, len);
        for (dst, src, pd, seq, into) in [
            (dst, src ^ 1 << 14, PD, SEQ, place),
            (dst ^ 1 << 17, src, PD, SEQ, place),
            (dst ^ 1, src, PD, SEQ, place),
            (dst, src ^ 1, PD, SEQ, place),
            (dst, src, PD + 1, SEQ, place),
            (dst, src, PD, SEQ + 1, place),
            (dst, src, PD, SEQ, Sge { len: len - 1, ..place }),
            (dst, src, PD, SEQ, Sge { lkey: place.lkey ^ 1, ..place }),
            (dst, src, PD, SEQ, Sge { addr: self.into.va() - 1, ..place }),
            (dst, src, PD, SEQ, self.other.sge(8, len)),
        ] {
            assert_eq!(arrivals.take(dst, src, pd, seq, &into), None, "{seq} into {into:?}");
        }
        assert!(self.into.bytes(0, 1024).iter().all(|byte| *byte == 0), "nothing was copied");
        false
    }

    fn run(&mut self, _: &Links, arrivals: &mut Arrivals<'_>, _: usize) -> usize {
        if self.outcome.is_some() {
            return 0;
        }
        let Some((dst, is_borrowed)) = arrivals.front() else { return 0 };
        assert_eq!(dst, self.right.0);
        match is_borrowed {
            false => self.try_all::<false>(arrivals),
            true => self.try_all::<true>(arrivals),
        }
        1
    }

    fn record(&mut self, _: &mut Links, _: &Record, _: &mut Payload<'_>) -> bool {
        panic!("it was taken")
    }
}

#[test]
fn a_message_is_copied_only_where_all_of_it_is_right() {
    let scratch = Scratch::new();
    for len in [8, 100, 300] {
        let directory = scratch.directory();
        let (mut a, mut b) = (Device::new(&directory, 1), Device::new(&directory, 1));
        let from = a.buffer(1, 4096, Access::REMOTE_READ);
        let into = b.buffer(2, 4096, Access::empty());
        let other = b.buffer(3, 4096, Access::empty());
        let bytes = pattern(7, 4096);
        from.region.write_at(0, &bytes).unwrap();
        let (ab, ba) = link(&mut a, 0, &mut b, 0);
        let (src, dst) = (a.qpn(0, 1), b.qpn(0, 1));
        let push = |a: &mut Device, seq| {
            let record = send(src, dst, seq, len);
            let sge = [from.sge(16, len)];
            assert!(matches!(a.links[0].push(ab, PD, &record, Source::Sges(&sge)), Push::At(_)));
            a.links[0].publish();
        };
        // So that the keys of both sides are known.
        push(&mut a, 4);
        assert!(take_one(&mut b.links[0], ba, &into.sge(0, len)).is_some());
        into.region.write_at(0, &[0; 1024]).unwrap();
        push(&mut a, 5);
        let right = (dst, src);
        let mut picky = Picky { right, into, other, len, outcome: None };
        assert_eq!(b.links[0].rx_with(ba, &mut picky), 1);
        assert_eq!(picky.outcome, Some(Plain { len, solicited: false }));
        assert_eq!(picky.into.bytes(8, len as usize), &bytes[16..16 + len as usize]);
        assert_eq!(b.links[0].rx_with(ba, &mut picky), 0);
    }
}
