//! Napping poll loops: what arrives ends the nap.

use std::time::{Duration, Instant};

use pmd_verbs::{Data, Doorbell, Rc, WireChoice, WorkRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::World;

on_every_wire!(a_nap_ends_with_what_arrives);

const LONG: Duration = Duration::from_secs(20);

fn is_readable(bell: &Doorbell) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// An lcore that armed its doorbell makes no turns: the descriptor tells it of the message, and is silent once the message
/// was taken in.
fn a_nap_ends_with_what_arrives(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Rc>(|_, _| {});
    let [awake, napping] = &world.sides;
    let bell = napping.cx.create_doorbell().unwrap();
    for wr in 1..4 {
        napping.receive(&b, wr, 0, 64);
        world.nothing_completes();
        // What rang while nobody napped ends a nap early, once.
        world.until(|| bell.arm() && !is_readable(&bell));
        a.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(wr)).unwrap();
        let deadline = Instant::now() + LONG;
        while !is_readable(&bell) {
            assert!(Instant::now() < deadline, "the doorbell does not ring");
            awake.cx.progress(awake.cx.device().now());
        }
        let [sent, received] = world.complete([1, 1]);
        assert_eq!((sent[0].wr_id.0, received[0].wr_id.0), (wr, wr));
    }
}
