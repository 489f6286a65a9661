//! Inline data: bytes that are copied at post, and their limits.

use pmd_verbs::roce::engine::PostSendError;
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::{
    Completion, CreateQpError, Data, Qp, QpOptions, Rc, Uc, WcStatus, WireChoice, WorkRequest,
};

use crate::support::{World, ends, pattern};

on_every_wire!(
    p07_what_fits_arrives_and_what_does_not_posts_nothing,
    s1_51_the_buffer_is_the_callers_again_at_once,
    s1_53_inline_and_registered_memory_are_the_same,
);

fn inline(options: &mut QpOptions<'_>, bytes: u32) {
    options.cap = QpCap { max_inline_data: bytes, ..options.cap };
}

/// P07, E-17: what is granted is at least what was asked, or creation names the field.
#[test]
fn p07_the_cap_is_granted_or_named() {
    let world = World::new(WireChoice::Udp);
    let side = &world.sides[0];
    for asked in [0, 64, 220] {
        let qp: Qp<Rc> = side.qp(|options| inline(options, asked));
        assert!(qp.query().init.cap.max_inline_data >= asked);
    }
    let cap = QpCap { max_inline_data: 4096, ..side.qp::<Rc>(|_| {}).query().init.cap };
    let options = QpOptions {
        send_cq: &side.cq,
        recv_cq: &side.cq,
        srq: None,
        xrcd: None,
        cap,
        signal_all: true,
    };
    let error = side.pd.create_qp::<Rc>(&options).unwrap_err();
    assert!(matches!(error, CreateQpError::Range { field: "max_inline_data", asked: 4096, .. }));
    assert!(error.to_string().starts_with("max_inline_data = 4096 is outside"), "{error}");
    // What devices differ in is told before, too.
    assert_eq!(side.cx.device().attr().max_inline_data, 512);
}

/// P07, S1-52: the cap itself passes; one byte more is refused at post, nothing is posted, and what
/// is posted next is fine.
fn p07_what_fits_arrives_and_what_does_not_posts_nothing(wire: WireChoice) {
    let world = World::new(wire);
    let qps = world.pair::<Rc>(|_, _| {});
    let cap = qps[0].query().init.cap.max_inline_data;
    let bytes = pattern(cap as usize + 1, 3);
    let (fits, too_long) = (&bytes[..cap as usize], &bytes[..]);
    world.sides[1].receive(&qps[1], 1, 0, 1024);
    world.sides[1].receive(&qps[1], 2, 1024, 1024);
    let refused = qps[0].post_send(&WorkRequest::send(Data::Inline(&[too_long])).id(3));
    assert_eq!(refused, Err(PostSendError::InlineTooLong { max: cap }));
    assert_eq!(qps[0].query().send_outstanding, 0);
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[fits])).id(4)).unwrap();
    // Three pieces count together, and arrive one after the other.
    let pieces: [&[u8]; 3] = [b"three ", b"", b"pieces"];
    qps[0].post_send(&WorkRequest::send(Data::Inline(&pieces)).id(5)).unwrap();
    let [sent, received] = world.complete([2, 2]);
    assert_eq!(ends(&sent), [(4, WcStatus::Success), (5, WcStatus::Success)]);
    let lengths: Vec<_> = received.iter().map(|c| (c.wr_id.0, c.status, c.byte_len)).collect();
    assert_eq!(lengths, [(1, WcStatus::Success, cap), (2, WcStatus::Success, 12)]);
    assert_eq!(world.sides[1].received(0, fits.len()), fits);
    assert_eq!(world.sides[1].received(1024, 12), b"three pieces");
}

/// P07, S1-51: bytes of the stack, which nobody registered, are copied at post: writing over them
/// at once changes nothing.
fn s1_51_the_buffer_is_the_callers_again_at_once(wire: WireChoice) {
    let world = World::new(wire);
    let qps = world.pair::<Rc>(|_, _| {});
    world.sides[1].receive(&qps[1], 1, 0, 64);
    let mut stack = *b"before the post";
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[&stack])).id(2)).unwrap();
    stack.fill(b'!');
    let [_, received] = world.complete([1, 1]);
    assert_eq!(received[0].byte_len, 15);
    assert_eq!(world.sides[1].received(0, 15), b"before the post");
    assert_ne!(&stack, b"before the post");
}

/// S1-53: the same messages, inline and from registered memory, give the same bytes and the same
/// completions in the same order, on a reliable and on an unreliable connection.
fn s1_53_inline_and_registered_memory_are_the_same(wire: WireChoice) {
    let world = World::new(wire);
    let lengths = [0_u32, 1, 63, 64, 200, 256, 5];
    let run = |post: &dyn Fn(u64, &[u8]), receive: &dyn Fn(u64)| {
        for (at, len) in (0..).zip(lengths) {
            receive(at);
            post(at, &pattern(len as usize, len as usize));
        }
        let got = world.complete([lengths.len(); 2]);
        let bytes: Vec<_> = (0..)
            .zip(lengths)
            .map(|(at, len)| world.sides[1].received(512 * at, len as usize))
            .collect();
        (got.map(|side| side.iter().map(seen).collect::<Vec<_>>()), bytes)
    };
    macro_rules! both_ways {
        ($service:ty) => {{
            let qps = world.pair::<$service>(|_, _| {});
            let receive = |at: u64| world.sides[1].receive(&qps[1], at, 512 * at, 512);
            let inline = run(
                &|at, bytes| {
                    qps[0].post_send(&WorkRequest::send(Data::Inline(&[bytes])).id(at)).unwrap();
                },
                &receive,
            );
            world.sides[1].memory.write_at(crate::support::INTO, &vec![0; 4096]).unwrap();
            let gathered = run(
                &|at, bytes| {
                    world.sides[0].memory.write_at(512 * at, bytes).unwrap();
                    let len = u32::try_from(bytes.len()).unwrap();
                    let sges = [world.sides[0].sge(512 * at, len)];
                    qps[0].post_send(&WorkRequest::send(Data::Sges(&sges)).id(at)).unwrap();
                },
                &receive,
            );
            assert_eq!(inline, gathered);
            assert_eq!(inline.1[4], pattern(200, 200));
        }};
    }
    both_ways!(Rc);
    both_ways!(Uc);
}

/// All of a completion but which queue pair it is of.
fn seen(completion: &Completion) -> (u64, WcStatus, u32, Option<pmd_verbs::Imm>) {
    (completion.wr_id.0, completion.status, completion.byte_len, completion.imm())
}
