//! Two engines over RC: data, retries, and what they cost.

use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::{Instant, PathMtu, Psn};
use pmd_roce::qp::state::{QpState, Transport};
use pmd_roce::wire::Operation;
use pmd_roce::work::{Imm, SendOp, WcOpcode, WcStatus};

use crate::support::{DST, Fate, Pair, SHARED, SRC, Sent, pattern, shared};

/// Sizes around the edges of a packet.
fn sizes(mtu: PathMtu) -> [u32; 8] {
    let mtu = mtu.bytes_u32();
    [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 5 * mtu + 2]
}

/// S1-01, S1-34 to S1-38, S1-65, E-13: every operation at every path MTU brings every byte, and the
/// packets have the right shape.
#[test]
fn s1_34_every_operation_at_every_mtu() {
    for mtu in PathMtu::ALL {
        let mut pair = Pair::connected(Transport::Rc, |attr| attr.path_mtu = mtu);
        for len in sizes(mtu) {
            check_operations(&mut pair, mtu, len);
        }
    }
}

fn check_operations(pair: &mut Pair, mtu: PathMtu, len: u32) {
    let [a, b] = pair.qpns;
    let bytes = len as usize;
    pair.hosts[1].post_recv(b, 1, 0, len);
    pair.hosts[1].post_recv(b, 2, 0, 0);
    pair.hosts[0].post(a, 11, SendOp::SendImm(Imm([1, 2, 3, 4])), len);
    pair.hosts[0].post(a, 12, SendOp::Write(shared(100)), len);
    pair.hosts[0].post(a, 13, SendOp::WriteImm(shared(30_000), Imm([5, 6, 7, 8])), len);
    pair.hosts[0].post(a, 14, SendOp::Read(shared(50_000 - 40_000)), len);
    let mut shapes = Vec::new();
    pair.run(|side, sent| {
        if side == 0 {
            shapes.push((sent.operation(), sent.packet().payload.len()));
        }
        Fate::Pass
    });
    let expected = pair.hosts[0].mem.bytes(SRC, 0, bytes).to_vec();
    let receiver = &mut pair.hosts[1];
    assert_eq!(receiver.mem.bytes(DST, 0, bytes), expected, "SEND of {len} at {mtu}");
    assert_eq!(receiver.mem.bytes(SHARED, 100, bytes), expected, "WRITE of {len} at {mtu}");
    assert_eq!(receiver.mem.bytes(SHARED, 30_000, bytes), expected);
    let read = receiver.mem.bytes(SHARED, 10_000, bytes).to_vec();
    assert_eq!(pair.hosts[0].mem.bytes(DST, 0, bytes), read, "READ of {len} at {mtu}");

    let got: Vec<_> = pair.hosts[1].completions();
    let got: Vec<_> = got.iter().map(|wc| (wc.opcode, wc.byte_len, wc.imm())).collect();
    let received = (WcOpcode::Recv, len, Some(Imm([1, 2, 3, 4])));
    assert_eq!(got, [received, (WcOpcode::RecvWriteImm, len, Some(Imm([5, 6, 7, 8])))]);
    let done = pair.hosts[0].statuses();
    assert_eq!(done, [11, 12, 13, 14].map(|wr| (wr, WcStatus::Success)));

    let shape = |first, middle, last, only| {
        let full = bytes.div_ceil(mtu.bytes()).max(1);
        (0..full).map(move |at| {
            let rest = bytes - at * mtu.bytes();
            let operation = match (at == 0, at + 1 == full) {
                (true, true) => only,
                (true, false) => first,
                (false, false) => middle,
                (false, true) => last,
            };
            (operation, rest.min(mtu.bytes()))
        })
    };
    use Operation as O;
    let sends = shape(O::SendFirst, O::SendMiddle, O::SendLastImm, O::SendOnlyImm);
    let writes = shape(O::WriteFirst, O::WriteMiddle, O::WriteLast, O::WriteOnly);
    let imms = shape(O::WriteFirst, O::WriteMiddle, O::WriteLastImm, O::WriteOnlyImm);
    let requests: Vec<_> =
        shapes.into_iter().filter(|(operation, _)| operation.is_request()).collect();
    let read = [(O::ReadRequest, 0)];
    assert_eq!(requests, sends.chain(writes).chain(imms).chain(read).collect::<Vec<_>>());
}

/// S1-23, S1-25: the worked example; each side's first packet carries its own sq_psn.
#[test]
fn s1_25_first_psn_is_sq_psn_in_both_directions() {
    let mut pair = Pair::connected(Transport::Rc, |_| {});
    for (side, sq, rq) in [(0, 0x20_0000, 0x10_0000), (1, 0x10_0000, 0x20_0000)] {
        let wanted = pair.attr(side, &|attr| {
            (attr.sq_psn, attr.rq_psn) = (Psn::new(sq), Psn::new(rq));
        });
        pair.hosts[side].go(pair.qpns[side], QpState::Reset);
        pair.hosts[side].bring_up(pair.qpns[side], &wanted);
    }
    for side in [0, 1] {
        pair.hosts[side].post_recv(pair.qpns[side], 1, 0, 64);
        pair.hosts[side].post(pair.qpns[side], 2, SendOp::Send, 64);
    }
    let mut first: [Vec<_>; 2] = Default::default();
    pair.run(|side, sent| {
        first[side].push((sent.operation(), sent.psn()));
        Fate::Pass
    });
    let ack = Operation::Acknowledge;
    assert_eq!(first[0], [(Operation::SendOnly, 0x20_0000), (ack, 0x10_0000)]);
    assert_eq!(first[1], [(Operation::SendOnly, 0x10_0000), (ack, 0x20_0000)], "E-03");
}

/// S1-24, S1-62, S1-69: PSNs that do not match are seen by both sides: the peer drops, the sender gives up.
#[test]
fn s1_24_mismatched_psns_never_deliver() {
    for rq_psn in [1, 0xff_0000] {
        let mut pair = Pair::rc();
        let wanted = pair.attr(1, &|attr| attr.rq_psn = Psn::new(rq_psn));
        pair.hosts[1].go(pair.qpns[1], QpState::Reset);
        pair.hosts[1].bring_up(pair.qpns[1], &wanted);
        pair.hosts[1].post_recv(pair.qpns[1], 1, 0, 64);
        pair.hosts[0].post(pair.qpns[0], 2, SendOp::Send, 64);
        pair.settle();
        assert_eq!(pair.hosts[1].statuses(), []);
        let counters = *pair.hosts[1].engine.counters();
        if rq_psn == 1 {
            // Taken for an old request, but nothing was executed that could be acknowledged.
            assert!(counters.duplicate_request > 0);
        } else {
            assert!(counters.out_of_sequence > 0);
        }
        assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::RetryExc)]);
    }
}

/// S0-14, S1-29 to S1-31, S1-66, S2-07, S3-11: every ACK is lost; 14/7 is 8 transmissions and a budget of
/// 536.9 ms, and then the queue pair is in Error.
#[test]
fn s0_14_lost_acks_end_in_12_after_the_whole_budget() {
    let mut pair = Pair::rc();
    pair.hosts[1].post_recv(pair.qpns[1], 1, 0, 64);
    pair.hosts[0].post(pair.qpns[0], 2, SendOp::Send, 64);
    let mut sent_at = Vec::new();
    let mut times = 0;
    pair.run(|side, _| {
        if side == 0 {
            times += 1;
            sent_at.push(times);
        }
        if side == 1 { Fate::Drop } else { Fate::Pass }
    });
    assert_eq!(sent_at.len(), 8);
    assert_eq!(pair.hosts[0].now, Instant(8 * (4096 << 14)), "E-01: 536.9 ms");
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::RetryExc)]);
    assert_eq!(pair.hosts[0].state(pair.qpns[0]), QpState::Error);
    // S0-12, S1-32: delivered once all the same.
    assert_eq!(pair.hosts[1].statuses(), [(1, WcStatus::Success)]);
    let counters = pair.hosts[0].engine.counters();
    assert_eq!(counters.local_ack_timeout_err, 8);
    assert_eq!(counters.req_transport_retries_exceeded, 1);
    assert_eq!(pair.hosts[1].engine.counters().duplicate_request, 7);
}

/// S0-16, S0-17, S2-06: a lower timeout changes the time to failure and nothing else.
#[test]
fn s0_17_timeout_changes_only_the_time_to_failure() {
    for timeout in [1, 8, 14, 20] {
        let mut pair = Pair::connected(Transport::Rc, |attr| attr.timeout = timeout);
        pair.hosts[1].post_recv(pair.qpns[1], 1, 0, 9000);
        pair.hosts[0].post(pair.qpns[0], 2, SendOp::Send, 9000);
        pair.settle();
        assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)]);
        assert_eq!(pair.hosts[0].now, Instant(0), "a healthy path never waits");
        pair.hosts[0].post(pair.qpns[0], 3, SendOp::Send, 1);
        pair.run(|_, _| Fate::Drop);
        assert_eq!(pair.hosts[0].statuses(), [(3, WcStatus::RetryExc)]);
        assert_eq!(pair.hosts[0].now, Instant(8 * (4096 << timeout)), "8 x 4.096 us x 2^{timeout}");
    }
}

/// S0-15, S2-08, E-05: rnr_retry 7 waits without end, each time as long as the responder asks; a receive ends the wait.
#[test]
fn s0_15_rnr_retry_7_is_infinite() {
    let mut pair = Pair::connected(Transport::Rc, |attr| {
        (attr.min_rnr_timer, attr.retry_cnt) = (12, 0);
    });
    pair.hosts[0].post(pair.qpns[0], 2, SendOp::Send, 64);
    for _ in 0..1000 {
        pair.hosts.iter_mut().for_each(crate::support::Host::poll);
        while let Some(sent) = pair.hosts[0].out.frames.pop_front() {
            pair.hosts[1].deliver(&sent);
        }
        pair.hosts[1].poll();
        while let Some(sent) = pair.hosts[1].out.frames.pop_front() {
            pair.hosts[0].deliver(&sent);
        }
        let next = pair.hosts[0].engine.poll_timeout().unwrap();
        assert_eq!(next, Instant(pair.hosts[0].now.0 + 640_000));
        pair.hosts[0].pass(next);
    }
    assert_eq!(pair.hosts[0].statuses(), []);
    assert_eq!(pair.hosts[0].engine.counters().rnr_nak_retry_err, 1000);
    assert_eq!(pair.hosts[1].engine.counters().out_of_buffer, 1000);
    pair.hosts[1].post_recv(pair.qpns[1], 1, 0, 64);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)]);
}

/// P12: receives posted in INIT are there when the first SEND comes; posted later, or not again after RESET, they are
/// missed.
#[test]
fn p12_receives_posted_in_init_save_the_rnr() {
    for (when, rnrs) in [(QpState::Init, 0), (QpState::Rts, 1)] {
        let mut pair = Pair::rc();
        let (qpn, wanted) = (pair.qpns[1], pair.attr(1, &|_| {}));
        pair.hosts[1].go(qpn, QpState::Reset);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            pair.hosts[1].step(qpn, &wanted, to);
            if to == when && rnrs == 0 {
                pair.hosts[1].post_recv(qpn, 1, 0, 64);
            }
        }
        pair.hosts[0].post(pair.qpns[0], 2, SendOp::Send, 64);
        let mut naks = 0;
        let mut posted = rnrs == 0;
        for _ in 0..10 {
            pair.hosts[0].poll();
            while let Some(sent) = pair.hosts[0].out.frames.pop_front() {
                pair.hosts[1].deliver(&sent);
            }
            pair.hosts[1].poll();
            while let Some(sent) = pair.hosts[1].out.frames.pop_front() {
                naks += u32::from(is_rnr(&sent));
                pair.hosts[0].deliver(&sent);
            }
            if !posted {
                pair.hosts[1].post_recv(qpn, 1, 0, 64);
                posted = true;
            }
            if let Some(next) = pair.hosts[0].engine.poll_timeout() {
                pair.hosts[0].pass(next);
            }
        }
        assert_eq!(naks, rnrs);
        assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)]);
    }
    // After RESET the queue is empty: with a finite rnr_retry that is status 13.
    let mut pair = Pair::connected(Transport::Rc, |attr| attr.rnr_retry = 3);
    pair.hosts[1].post_recv(pair.qpns[1], 1, 0, 64);
    let wanted = pair.attr(1, &|_| {});
    pair.hosts[1].go(pair.qpns[1], QpState::Reset);
    pair.hosts[1].bring_up(pair.qpns[1], &wanted);
    pair.hosts[0].post(pair.qpns[0], 2, SendOp::Send, 64);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::RnrRetryExc)]);
    assert_eq!(pair.hosts[0].engine.counters().rnr_nak_retry_err, 4);
}

fn is_rnr(sent: &Sent) -> bool {
    sent.packet().headers.aeth.is_some_and(|aeth| aeth.syndrome.byte() >> 5 == 1)
}

/// S1-26, S1-17: what arrives before RTR is lost and comes again; nothing is delivered twice. COMM_EST tells that the
/// peer is there.
#[test]
fn s1_26_early_data_is_recovered_by_retry() {
    let mut pair = Pair::rc();
    let (qpn, wanted) = (pair.qpns[1], pair.attr(1, &|_| {}));
    pair.hosts[1].go(qpn, QpState::Reset);
    pair.hosts[1].step(qpn, &wanted, QpState::Init);
    pair.hosts[1].post_recv(qpn, 1, 0, 64);
    pair.hosts[0].post(pair.qpns[0], 2, SendOp::Send, 64);
    pair.hosts[0].poll();
    let early = pair.hosts[0].out.frames.pop_front().unwrap();
    let outcome = pair.hosts[1].deliver(&early);
    assert_eq!(outcome.dropped.map(|reason| reason.name()), Some("qp_state"));
    pair.hosts[1].step(qpn, &wanted, QpState::Rtr);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)]);
    assert_eq!(pair.hosts[1].statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.hosts[1].events(), [AsyncEvent::CommEst(qpn)]);
}

/// S1-67, S4-21, S2-19: ERR, RESET, INIT, RTR, RTS carries data again.
#[test]
fn s1_67_back_from_error_to_work() {
    let mut pair = Pair::rc();
    pair.hosts[0].post(pair.qpns[0], 1, SendOp::Send, 1);
    pair.run(|_, _| Fate::Drop);
    assert_eq!(pair.hosts[0].statuses(), [(1, WcStatus::RetryExc)]);
    for side in [0, 1] {
        let wanted = pair.attr(side, &|attr| {
            (attr.sq_psn, attr.rq_psn) = (Psn::new(77), Psn::new(77));
        });
        pair.hosts[side].go(pair.qpns[side], QpState::Reset);
        pair.hosts[side].bring_up(pair.qpns[side], &wanted);
    }
    pair.hosts[1].post_recv(pair.qpns[1], 2, 0, 5000);
    pair.hosts[0].post(pair.qpns[0], 3, SendOp::Send, 5000);
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(3, WcStatus::Success)]);
    assert_eq!(pair.hosts[1].statuses(), [(2, WcStatus::Success)]);
}

/// S1-33: mixed operations over a network that loses packets both ways, from seeds: every request completes once, in
/// order, and memory is right.
#[test]
fn s1_33_losses_are_recovered() {
    for seed in 0..30u64 {
        let mut pair = Pair::connected(Transport::Rc, |attr| {
            (attr.timeout, attr.path_mtu) = (8, PathMtu::B256);
        });
        let [a, b] = pair.qpns;
        for wr in 0..5 {
            pair.hosts[1].post_recv(b, 100 + wr, 2000 * wr, 2000);
            pair.hosts[0].post(a, 10 * wr, SendOp::Send, 1500);
            pair.hosts[0].post(a, 10 * wr + 1, SendOp::Write(shared(8192 + 2000 * wr)), 1999);
            pair.hosts[0].post(a, 10 * wr + 2, SendOp::FetchAdd { at: shared(0), add: 3 }, 8);
            pair.hosts[0].post(a, 10 * wr + 3, SendOp::Read(shared(20_000)), 3000);
        }
        let counter =
            u64::from_ne_bytes(*pair.hosts[1].mem.bytes(SHARED, 0, 8).first_chunk().unwrap());
        let mut random = seed;
        pair.run(|_, _| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            if (random >> 40) % 100 < 8 { Fate::Drop } else { Fate::Pass }
        });
        let order: Vec<_> = (0..5).flat_map(|wr| (0..4).map(move |op| 10 * wr + op)).collect();
        let done: Vec<_> = order.iter().map(|wr| (*wr, WcStatus::Success)).collect();
        assert_eq!(pair.hosts[0].statuses(), done, "seed {seed}");
        let received: Vec<_> = (100..105).map(|wr| (wr, WcStatus::Success)).collect();
        assert_eq!(pair.hosts[1].statuses(), received, "seed {seed}");
        let sum = u64::from_ne_bytes(*pair.hosts[1].mem.bytes(SHARED, 0, 8).first_chunk().unwrap());
        assert_eq!(sum, counter.wrapping_add(15), "seed {seed}: an atomic ran once each");
        let source: Vec<u8> = (0..1999).map(pattern).collect();
        for wr in 0..5 {
            assert_eq!(pair.hosts[1].mem.bytes(SHARED, 8192 + 2000 * wr, 1999), source);
            assert_eq!(pair.hosts[1].mem.bytes(DST, 2000 * wr, 1500), &source[..1500]);
        }
        let read = pair.hosts[1].mem.bytes(SHARED, 20_000, 3000).to_vec();
        assert_eq!(pair.hosts[0].mem.bytes(DST, 0, 3000), read);
    }
}

/// What a poll sends falls into runs of one size: requests of all queue pairs, then the ACKs of all.
/// An ACK that goes with READ responses keeps its place among them.
#[test]
fn acknowledgements_leave_after_everybodys_requests() {
    let mut pair = Pair::rc();
    let [a, b] = pair.qpns;
    // A second connection between the same hosts.
    let [c, d] = [0, 1].map(|side| pair.hosts[side].create(Transport::Rc));
    for (side, qpn, peer) in [(0, c, d), (1, d, c)] {
        let attr = pair.attr(side, &|attr| attr.dest_qpn = peer);
        pair.hosts[side].bring_up(qpn, &attr);
    }
    let [near, far] = &mut pair.hosts;
    for (qpn, peer) in [(a, b), (c, d)] {
        far.post_recv(peer, 1, 0, 64);
        near.post(qpn, 1, SendOp::Send, 64);
    }
    near.poll();
    for sent in std::mem::take(&mut near.out.frames) {
        far.deliver(&sent);
    }
    far.post(b, 2, SendOp::Send, 64);
    far.post(d, 2, SendOp::Send, 64);
    far.poll();
    let operations: Vec<_> = far.out.frames.drain(..).map(|sent| sent.operation()).collect();
    let [send, ack] = [Operation::SendOnly, Operation::Acknowledge];
    assert_eq!(operations, [send, send, ack, ack]);

    near.post(a, 3, SendOp::Write(shared(0)), 8);
    near.post(a, 4, SendOp::Read(shared(0)), 8);
    near.poll();
    for sent in std::mem::take(&mut near.out.frames) {
        far.deliver(&sent);
    }
    far.post(b, 3, SendOp::Send, 64);
    far.poll();
    let operations: Vec<_> = far.out.frames.drain(..).map(|sent| sent.operation()).collect();
    assert_eq!(operations, [ack, Operation::ReadResponseOnly, send]);
}
