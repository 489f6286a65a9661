//! What the test double does differently from a queue pair, on purpose.

use pmd_verbs::endpoint::{
    Double, Endpoint, EndpointEvent, Local, Op, Outcome, Remote, Rights, Settled, StatusDetail,
    SubmitError, Token, double_pair,
};

use crate::support::region;

fn polled(end: &mut Double) -> Vec<(u64, Outcome)> {
    let mut settled: Vec<Settled> = Vec::new();
    end.poll(&mut |one| settled.push(one));
    settled.iter().map(|one| (one.token.0, one.outcome)).collect()
}

/// It says of failures only that they are: whoever needs the cause must cope without.
#[test]
fn failures_have_no_cause() {
    let (mut a, mut b) = double_pair(4, 4);
    assert_eq!(a.caps().status, StatusDetail::Coarse);
    let memory = region(4096);
    let keys = (a.register(&memory).unwrap(), b.register(&memory).unwrap());
    b.submit(Op::Recv { into: Local { key: keys.1, offset: 0, len: 2 } }, Token(1)).unwrap();
    b.submit(Op::Recv { into: Local { key: keys.1, offset: 0, len: 9 } }, Token(2)).unwrap();
    a.submit(Op::SendInline { bytes: b"too long", imm: None }, Token(3)).unwrap();
    assert_eq!(polled(&mut a), [(3, Outcome::FailedCoarse)]);
    assert_eq!(polled(&mut b), [(1, Outcome::FailedCoarse), (2, Outcome::Flushed)]);
    for end in [&mut a, &mut b] {
        assert!(matches!(end.event(), Some(EndpointEvent::Failed(_))));
        assert_eq!(end.event(), None, "told once");
    }
}

/// The same when the receive comes after the message.
#[test]
fn a_late_receive_that_is_too_short_fails_both_sides() {
    let (mut a, mut b) = double_pair(4, 4);
    let memory = region(4096);
    let key = b.register(&memory).unwrap();
    for token in [1, 2] {
        a.submit(Op::SendInline { bytes: b"too long", imm: None }, Token(token)).unwrap();
    }
    b.submit(Op::Recv { into: Local { key, offset: 0, len: 2 } }, Token(3)).unwrap();
    assert_eq!(polled(&mut a), [(1, Outcome::FailedCoarse), (2, Outcome::Flushed)]);
    assert_eq!(polled(&mut b), [(3, Outcome::FailedCoarse)]);
    let refused = a.submit(Op::SendInline { bytes: b"x", imm: None }, Token(4));
    assert_eq!(refused, Err(SubmitError::Degraded));
}

/// References have no fixed length and no key in them, and are good at the peer alone.
#[test]
fn references_are_of_any_length() {
    let (mut a, mut b) = double_pair(4, 4);
    let memory = region(4096);
    let key = b.register(&memory).unwrap();
    let rights = Rights { read: true, ..Rights::default() };
    let exported: Vec<_> = (0..11).map(|_| b.export(key, 0, 8, rights).unwrap()).collect();
    assert_ne!(exported[9].0.len(), exported[10].0.len());
    assert!(exported.iter().all(|reference| a.import(&reference.0).is_ok()));
    assert!(b.import(&exported[0].0).is_err(), "its own memory is not the peer's");
    assert!(format!("{:?}", exported[0]).starts_with("RemoteRef(1"), "nothing of it is shown");
}

/// A break settles what is in flight at both sides, each operation once, and refuses the rest.
#[test]
fn a_break_flushes_both_sides() {
    let (mut a, mut b) = double_pair(2, 2);
    let memory = region(4096);
    let keys = [a.register(&memory).unwrap(), b.register(&memory).unwrap()];
    let exported = b.export(keys[1], 0, 64, Rights { read: true, ..Rights::default() }).unwrap();
    let remote = a.import(&exported.0).unwrap();
    let into = Local { key: keys[0], offset: 64, len: 8 };
    a.submit(Op::Recv { into }, Token(1)).unwrap();
    a.submit(Op::SendInline { bytes: b"unheard", imm: None }, Token(2)).unwrap();
    a.submit(Op::Read { into, from: Remote { key: remote, offset: 0 } }, Token(3)).unwrap();
    let full = a.submit(Op::SendInline { bytes: b"x", imm: None }, Token(4));
    assert_eq!(full, Err(SubmitError::Full), "a READ that is done counts until it is polled");
    a.break_connection();
    let mut settled = polled(&mut a);
    settled.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(settled, [(1, Outcome::Flushed), (2, Outcome::Flushed), (3, Outcome::Done)]);
    assert_eq!((polled(&mut a), polled(&mut b)), (vec![], vec![]));
    for end in [&mut a, &mut b] {
        let into = Local { key: keys[0], offset: 0, len: 8 };
        assert_eq!(end.submit(Op::Recv { into }, Token(9)), Err(SubmitError::Degraded));
    }
}
