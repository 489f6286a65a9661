//! Inline data.

use pmd_roce::engine::PostSendError;
use pmd_roce::work::{Data, SendFlags, SendOp, SendWr, WcStatus};

use crate::support::{DST, Pair, SRC, Sent, pattern, send_wr, shared};

fn inline<'a>(wr_id: u64, op: SendOp, pieces: &'a [&'a [u8]]) -> SendWr<'a> {
    SendWr { data: Data::Inline(pieces), ..send_wr(wr_id, op, &[]) }
}

/// S1-51, P07: bytes are copied at post; the buffers, in several pieces and never registered, are the caller's at once.
#[test]
fn s1_51_inline_is_copied_at_post() {
    let mut pair = Pair::rc();
    let [a, b] = pair.qpns;
    pair.hosts[1].post_recv(b, 1, 0, 256);
    let mut pieces = [vec![1u8; 3], vec![2; 5], vec![3; 100]];
    let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    pair.hosts[0].engine.post_send(a, &inline(2, SendOp::Send, &borrowed)).unwrap();
    pieces.iter_mut().for_each(|piece| piece.fill(0xee));
    pair.settle();
    let expected = [&[1u8; 3][..], &[2; 5], &[3; 100]].concat();
    assert_eq!(pair.hosts[1].mem.bytes(DST, 0, 108), expected);
    assert_eq!(pair.hosts[1].completions()[0].byte_len, 108);
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)]);
}

/// S1-52, P07: one byte more than the cap is refused, nothing is posted, and the next post works.
#[test]
fn s1_52_over_the_cap_is_refused_at_post() {
    let mut pair = Pair::rc();
    let a = pair.qpns[0];
    let max = pair.hosts[0].engine.query_qp(a).unwrap().init.cap.max_inline_data;
    let bytes = vec![7u8; max as usize + 1];
    let refused = pair.hosts[0].engine.post_send(a, &inline(1, SendOp::Send, &[&bytes]));
    assert_eq!(refused, Err(PostSendError::InlineTooLong { max }));
    assert_eq!(pair.hosts[0].engine.query_qp(a).unwrap().send_outstanding, 0);
    pair.hosts[1].post_recv(pair.qpns[1], 1, 0, max);
    let fits = [&bytes[1..]];
    pair.hosts[0].engine.post_send(a, &inline(2, SendOp::Send, &fits)).unwrap();
    pair.settle();
    assert_eq!(pair.hosts[0].statuses(), [(2, WcStatus::Success)]);
}

/// S1-53: inline or from registered memory, the same frames leave and the same completions come.
#[test]
fn s1_53_inline_and_registered_memory_are_alike() {
    let record = |with_inline: bool| {
        let mut pair = Pair::rc();
        let [a, b] = pair.qpns;
        let source: Vec<u8> = (0..200).map(pattern).collect();
        assert_eq!(pair.hosts[0].mem.bytes(SRC, 0, 200), source);
        for (wr, op) in [(1, SendOp::Send), (2, SendOp::Write(shared(64)))] {
            pair.hosts[1].post_recv(b, wr, 0, 256);
            if with_inline {
                let (head, tail) = source.split_at(77);
                pair.hosts[0].engine.post_send(a, &inline(wr, op, &[head, tail])).unwrap();
            } else {
                pair.hosts[0].post(a, wr, op, 200);
            }
        }
        let mut frames: Vec<Sent> = Vec::new();
        pair.run(|_, sent| {
            frames.push(sent.clone());
            crate::support::Fate::Pass
        });
        (frames, pair.hosts[0].completions(), pair.hosts[1].completions())
    };
    assert_eq!(record(true), record(false));
}

/// READs and atomics have nowhere to put inline bytes.
#[test]
fn inline_is_for_data_that_leaves() {
    let mut pair = Pair::rc();
    let a = pair.qpns[0];
    for op in [SendOp::Read(shared(0)), SendOp::FetchAdd { at: shared(0), add: 1 }] {
        let refused = pair.hosts[0].engine.post_send(a, &inline(1, op, &[&[0; 8]]));
        assert!(matches!(refused, Err(PostSendError::Operation(_))));
    }
    let mut wr = inline(1, SendOp::Send, &[]);
    wr.flags = SendFlags::empty();
    pair.hosts[0].engine.post_send(a, &wr).unwrap();
}
