//! Lcores that sleep: rung awake by whatever concerns them, and by nothing else.

use std::os::fd::BorrowedFd;

use pmd_mem::Fence;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;

/// Whether the bell rings within a time.
fn rings(bell: BorrowedFd<'_>, within: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
    let seconds = i64::try_from(within.as_secs()).unwrap();
    let timeout = Timespec { tv_sec: seconds, tv_nsec: within.subsec_nanos().into() };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
}

/// Turns until nothing is new, then sleeps until the bell rings.
fn nap(links: &mut Links) {
    if links.sleep() {
        assert!(rings(links.bell(), LIMIT), "nobody rang");
        links.wake();
    }
    links.turn();
}

/// Each side sleeps whenever it has nothing to do: one ring that is lost, and this hangs.
#[test]
fn no_ring_is_lost() {
    for fence in [Fence::register(), Fence::without_membarrier()] {
        ring_to_and_fro(fence);
    }
}

fn ring_to_and_fro(fence: Fence) {
    const ROUNDS: u32 = 2000;
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let device = || Device::with(&directory, 1, |config| config.fence = fence);
    let (mut a, mut b) = (device(), device());
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    let say = |links: &mut Links, link: u32, seq: u32| {
        let pushed = links.push(link, PD, &send(1, 2, seq, 0), Source::Sges(&[]));
        assert!(matches!(pushed, Push::At(_)));
        links.publish();
    };
    let hear = |links: &mut Links, link: u32, seq: u32| {
        let mut heard = 0;
        while heard == 0 {
            heard = links.rx(link, |_, record, _| record.seq == seq);
            if heard == 0 {
                nap(links);
            }
        }
    };
    std::thread::scope(|scope| {
        let (links_a, links_b) = (&mut a.links[0], &mut b.links[0]);
        scope.spawn(move || {
            for round in 0..ROUNDS {
                say(links_a, ab, round);
                hear(links_a, ab, round);
            }
        });
        scope.spawn(move || {
            for round in 0..ROUNDS {
                hear(links_b, ba, round);
                say(links_b, ba, round);
            }
        });
    });
}

#[test]
fn the_bell_rings_for_what_concerns_the_lcore() {
    let scratch = Scratch::new();
    let directory = scratch.directory();
    let (mut a, mut b) = (Device::new(&directory, 2), Device::new(&directory, 1));
    let (ab, ba) = link(&mut a, 0, &mut b, 0);
    let inside = a.port.attach(0, a.name(1), LIMIT).unwrap();
    let back = a.port.attach(1, a.name(0), LIMIT).unwrap();
    a.turn();
    let doze = |links: &mut Links| {
        until("nothing is new", || {
            links.turn();
            for link in links.active().to_vec() {
                links.rx(link, |_, _, _| true);
            }
            links.sleep()
        });
        links.wake();
        assert!(links.sleep(), "woken for nothing");
        assert!(!rings(links.bell(), Duration::ZERO), "rung for nothing");
    };
    let hears = |links: &mut Links, what: &str| {
        assert!(rings(links.bell(), LIMIT), "not rung by {what}");
        links.wake();
    };

    // A record from another device, and from another lcore of the own.
    doze(&mut a.links[0]);
    assert!(matches!(b.links[0].push(ba, PD, &send(1, 2, 0, 0), Source::Sges(&[])), Push::At(_)));
    b.links[0].publish();
    hears(&mut a.links[0], "a record");
    assert!(!a.links[0].sleep(), "the record lies there");
    assert_eq!(a.links[0].rx(ab, |_, _, _| true), 1);
    doze(&mut a.links[0]);
    assert!(matches!(a.links[1].push(back, PD, &send(1, 2, 0, 0), Source::Sges(&[])), Push::At(_)));
    a.links[1].publish();
    hears(&mut a.links[0], "a record of its own device");
    assert_eq!(a.links[0].rx(inside, |_, _, _| true), 1);

    // Progress of its own records.
    assert!(matches!(a.links[0].push(ab, PD, &send(1, 2, 0, 0), Source::Sges(&[])), Push::At(_)));
    doze(&mut a.links[0]);
    assert_eq!(b.links[0].rx(ba, |_, _, _| true), 1);
    b.links[0].publish();
    hears(&mut a.links[0], "progress");

    // A link that comes, and links that go.
    doze(&mut a.links[0]);
    let mut c = Device::new(&directory, 1);
    c.port.attach(0, a.name(0), LIMIT).unwrap();
    hears(&mut a.links[0], "a new link");
    until("the link is there", || {
        a.links[0].turn();
        a.links[0].active().len() == 3
    });
    doze(&mut a.links[0]);
    drop(b);
    hears(&mut a.links[0], "a link that went");
    until("the link is down", || {
        a.links[0].turn();
        a.links[0].next_down().is_some_and(|down| down.link == ab)
    });
    c.turn();
}
