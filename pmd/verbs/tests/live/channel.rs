//! Arming completion queues, and sleeping until one fires.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use pmd_verbs::endpoint::{EndpointOptions, Pending};
use pmd_verbs::roce::qp::attr::{AddressVector, QpAttr, QpCap};
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{
    CompletionChannel, Context, Cq, Data, Device, DeviceConfig, Qp, QpOptions, Rc, Uc, WcStatus,
    WireChoice, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{World, ends, go, receive, step};

on_every_wire!(
    an_armed_queue_fires_once,
    solicited_arming_waits_for_a_solicited_completion_or_an_error,
    a_sleeper_is_woken_by_what_arrives,
);

const LONG: Duration = Duration::from_secs(20);

fn send(qp: &Qp<Rc>, wr: u64) {
    qp.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(wr)).unwrap();
}

/// Whether the descriptor stays silent for some of the time in which it used to be looked at again and again.
fn stays_silent(channel: &CompletionChannel) -> bool {
    let fd = channel.fd();
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap() == 0
}

/// Whoever sleeps on shared memory sleeps until a peer rings, and does not look now and then: neither for nothing, nor late.
#[test]
fn a_sleeper_on_shared_memory_is_rung_awake() {
    let world = World::new(WireChoice::Shm);
    let mut channel = world.sides[1].cx.create_channel().unwrap();
    let cq = channel.create_cq(16).unwrap();
    let a = world.sides[0].qp::<Rc>(|_| {});
    let b = listener(&world, &cq);
    let attrs = [world.attr(0, b.number()), world.attr(1, a.number())];
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        step(&a, &attrs[0], to);
        step(&b, &attrs[1], to);
    }
    for round in 0..5 {
        world.sides[1].receive(&b, round, 0, 64);
        cq.arm(false);
        // The bell may have been rung for what was done about already: it is silenced by looking.
        let falls_silent = (0..5).any(|_| channel.poll().is_none() && stays_silent(&channel));
        assert!(falls_silent, "it is woken for nothing");
        send(&a, round);
        world.sides[0].cx.progress(world.sides[0].cx.device().now());
        // Nothing but a bell ends this wait.
        let fd = channel.fd();
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })), Ok(1));
        let fired = channel.poll().expect("the queue fired");
        assert_eq!(fired.poll(10, |wc| assert_eq!(wc.wr_id.0, round)), 1);
        world.until(|| a.query().send_outstanding == 0);
    }
}

/// Req_notify: what came before does not fire, the next completion does, and then no other until the
/// queue is armed again.
fn an_armed_queue_fires_once(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Rc>(|_, _| {});
    let cq = &world.sides[1].cq;
    let deliver = |wr| {
        world.sides[1].receive(&b, wr, 0, 64);
        send(&a, wr);
        world.until(|| a.query().send_outstanding == 0 && b.query().recv_outstanding == 0);
    };
    deliver(1);
    assert!(!cq.fired(), "it was never armed");
    cq.arm(false);
    assert!(!cq.fired(), "the completion was there before");
    deliver(2);
    assert!(cq.fired());
    assert!(!cq.fired(), "one event per arming");
    deliver(3);
    assert!(!cq.fired());
    cq.arm(false);
    cq.arm(false);
    deliver(4);
    assert!(cq.fired() && !cq.fired());
    let mut got = Vec::new();
    assert_eq!(cq.poll(10, |completion| got.push(completion)), 4);
    assert_eq!(got.iter().map(|wc| wc.wr_id.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

/// A queue armed for solicited completions lets the others pass, but an error fires.
fn solicited_arming_waits_for_a_solicited_completion_or_an_error(wire: WireChoice) {
    let world = World::new(wire);
    let [a, b] = world.pair::<Rc>(|_, _| {});
    let cq = &world.sides[1].cq;
    for wr in 1..4 {
        world.sides[1].receive(&b, wr, 0, 64);
    }
    let settled = |left| world.until(|| b.query().recv_outstanding == left);
    cq.arm(true);
    send(&a, 1);
    settled(2);
    assert!(!cq.fired(), "not solicited");
    a.post_send(&WorkRequest::send(Data::Inline(&[b"look"])).id(2).solicited()).unwrap();
    settled(1);
    assert!(cq.fired());
    cq.arm(true);
    go(&b, QpState::Error);
    settled(0);
    assert!(cq.fired(), "a flushed receive is an error");
}

fn is_readable(channel: &CompletionChannel) -> bool {
    let fd = channel.fd();
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

/// A queue pair in INIT on a queue of the channel, with one receive.
fn listener(world: &World, cq: &Cq) -> Qp<Rc> {
    let side = &world.sides[1];
    side.qp(|options| (options.send_cq, options.recv_cq) = (cq, cq))
}

/// The whole way: a sleeper's descriptor becomes readable when a message comes, `wait` returns the
/// queue that it completed on, once per arming, and nothing when nothing comes.
fn a_sleeper_is_woken_by_what_arrives(wire: WireChoice) {
    let world = World::new(wire);
    let mut channel = world.sides[1].cx.create_channel().unwrap();
    let queues = [channel.create_cq(16).unwrap(), channel.create_cq(16).unwrap()];
    let a = [(); 2].map(|()| world.sides[0].qp::<Rc>(|_| {}));
    let b = queues.each_ref().map(|cq| listener(&world, cq));
    for (a, b) in a.iter().zip(&b) {
        let attrs = [world.attr(0, b.number()), world.attr(1, a.number())];
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            step(a, &attrs[0], to);
            step(b, &attrs[1], to);
        }
        for wr in 0..4 {
            world.sides[1].receive(b, wr, 0, 64);
        }
    }
    let sender = &world.sides[0].cx;
    let deliver = |at: usize, wr| {
        send(&a[at], wr);
        sender.progress(sender.device().now());
    };
    assert!(channel.wait(Duration::ZERO).unwrap().is_none());
    deliver(0, 1);
    assert!(channel.wait(Duration::from_millis(5)).unwrap().is_none(), "nothing is armed");
    let taken = |cq: &Cq| cq.poll(10, |wc| assert_eq!(wc.status, WcStatus::Success));
    assert_eq!(taken(&queues[0]), 1);

    queues.iter().for_each(|cq| cq.arm(false));
    deliver(1, 2);
    assert_eq!(channel.wait(LONG).unwrap().unwrap().depth(), 16);
    assert_eq!((taken(&queues[0]), taken(&queues[1])), (0, 1));
    assert!(channel.poll().is_none(), "the first queue is armed still, the second is not");
    deliver(1, 3);
    deliver(0, 4);
    assert!(channel.wait(LONG).unwrap().is_some());
    assert_eq!(taken(&queues[0]), 1, "the first one fired");
    assert!(channel.poll().is_none());
    assert_eq!(taken(&queues[1]), 1);

    // The descriptor tells an event loop of others: also of what another call took in meanwhile.
    queues.iter().for_each(|cq| cq.arm(false));
    deliver(0, 5);
    world.sides[1].cx.progress(world.sides[1].cx.device().now());
    let deadline = Instant::now() + LONG;
    while !is_readable(&channel) {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    let fired = loop {
        if let Some(cq) = channel.poll() {
            break cq;
        }
        assert!(Instant::now() < deadline);
    };
    assert_eq!(taken(&fired), 1);
    drop(fired);
}

/// Without traffic and without deadlines the descriptor is silent, so that a sleeper sleeps.
#[test]
fn an_idle_device_wakes_nobody() {
    let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
    let device = Device::open(&config).unwrap();
    let mut channel = device.context(0).unwrap().create_channel().unwrap();
    let cq = channel.create_cq(4).unwrap();
    cq.arm(false);
    assert!(channel.poll().is_none());
    assert!(!is_readable(&channel));
}

/// The descriptor tells also of what another call took in meanwhile, at once: nobody who looks at it
/// before sleeping misses an event.
#[test]
fn an_event_is_not_missed_when_another_call_took_it_in() {
    let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
    let device = Device::open(&config).unwrap();
    let cx = device.context(0).unwrap();
    let mut channel = cx.create_channel().unwrap();
    let (told, other) = (channel.create_cq(4).unwrap(), cx.create_cq(4).unwrap());
    // UC has no timers, and one lcore alone no reason to look again: only the event can wake.
    let [a, b]: [Qp<Uc>; 2] =
        [&other, &told].map(|cq| cx.alloc_pd().create_qp(&small(cq)).unwrap());
    for (qp, peer) in [(&a, &b), (&b, &a)] {
        let attr = QpAttr {
            av: AddressVector::to(device.gid()),
            dest_qpn: peer.number(),
            ..QpAttr::new(QpState::Reset)
        };
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            step(qp, &attr, to);
        }
    }
    b.post_recv(&receive(1, &[])).unwrap();
    told.arm(false);
    a.post_send(&WorkRequest::send(Data::Inline(&[])).id(2)).unwrap();
    assert!(!is_readable(&channel), "nothing has happened yet");
    let deadline = Instant::now() + LONG;
    while b.query().recv_outstanding == 1 {
        assert!(Instant::now() < deadline);
        other.poll(4, |_| {});
    }
    assert!(is_readable(&channel));
    assert!(channel.poll().is_some());
    assert!(channel.poll().is_none() && !is_readable(&channel), "told once");
    assert_eq!(told.poll(4, |wc| assert_eq!(wc.wr_id.0, 1)), 1);
}

/// S0-14: a sleeper's device still keeps its deadlines: a lost peer is found out by the timer alone,
/// since nothing ever arrives.
#[test]
fn s0_14_a_sleeper_is_woken_by_the_retry_timer() {
    let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
    let [here, gone] = [(); 2].map(|()| Device::open(&config).unwrap());
    let cx = here.context(0).unwrap();
    let mut channel = cx.create_channel().unwrap();
    let cq = channel.create_cq(16).unwrap();
    let qp = prepared(&cx, &cq, &gone);
    drop(gone);
    cq.arm(false);
    send(&qp, 7);
    let started = Instant::now();
    let fired = channel.wait(LONG).unwrap();
    assert!(fired.is_some(), "after {:?}", started.elapsed());
    let mut got = Vec::new();
    cq.poll(4, |completion| got.push(completion));
    assert_eq!(ends(&got), [(7, WcStatus::RetryExc)]);
}

/// A queue pair with small queues, completing on `cq`.
fn small(cq: &Cq) -> QpOptions<'_> {
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 64,
    };
    QpOptions { send_cq: cq, recv_cq: cq, srq: None, xrcd: None, cap, signal_all: true }
}

/// A queue pair in RTS toward a device that will not answer, with a budget of a few milliseconds.
fn prepared(cx: &Context, cq: &Cq, gone: &Device) -> Qp<Rc> {
    let far = gone.context(0).unwrap().prepare(&EndpointOptions::default()).unwrap();
    let peer = pmd_verbs::connect::Hello::decode(&far.hello(b"")).unwrap();
    let qp = cx.alloc_pd().create_qp::<Rc>(&small(cq)).unwrap();
    let attr = QpAttr {
        av: AddressVector::to(peer.gid),
        dest_qpn: peer.qpn,
        timeout: 8,
        retry_cnt: 2,
        ..QpAttr::new(QpState::Reset)
    };
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        step(&qp, &attr, to);
    }
    qp
}

/// Completions are handed over outside of the device: what handles one may post the next request.
#[test]
fn handling_a_completion_may_post() {
    let world = World::new(WireChoice::Udp);
    let [a, b] = world.pair::<Rc>(|_, _| {});
    world.sides[1].receive(&b, 0, 0, 64);
    send(&a, 0);
    let mut handled = 0;
    world.until(|| {
        world.sides[1].cq.poll(4, |completion| {
            assert_eq!(completion.status, WcStatus::Success);
            handled += 1;
            if handled < 5 {
                world.sides[1].receive(&b, handled, 0, 64);
                send(&a, handled);
            }
        });
        handled == 5
    });
}
