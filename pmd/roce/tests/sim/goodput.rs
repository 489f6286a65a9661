//! How fast it goes in virtual time: tables that a reader can judge, kept as snapshots.

use core::fmt::Write;
use core::time::Duration;

use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{Act, Fault, Path, QpPlan, World};

use crate::harness::{End, LONG, PATHS};

/// Gb/s of `bytes` in `span`.
fn gbit(bytes: u64, span: Duration) -> f64 {
    bytes as f64 * 8.0 / span.as_nanos() as f64
}

/// Goodput of a stream of WRITEs over (window × loss) at 100 Gb/s, 1 KiB packets and an RTT of 4 to
/// 6 us. Without loss the window limits; with loss each gap costs about a window sent again, and a
/// lost last packet a timeout of 1 ms.
#[test]
fn s1_33_goodput_by_window_and_loss() {
    const MESSAGE: u32 = 64 << 10;
    const MESSAGES: u64 = 120;
    let losses = [0, 1_000, 10_000, 50_000];
    let mut table = String::from("window   no loss      0.1%        1%        5%   Gb/s\n");
    for window in [4, 16, 64, 256, 1024] {
        write!(table, "{window:6}").unwrap();
        for loss in losses {
            let mut world = World::new(42);
            let gid = |last| vec![std::net::Ipv4Addr::new(10, 0, 0, last).into()];
            let [a, b] = [1, 2].map(|last| {
                world.add_host_with("host", |config| {
                    config.gids = gid(last);
                    config.window_packets = window;
                })
            });
            let plan = QpPlan { timeout: 8, ..QpPlan::rc() };
            let (near, far) = (End::new(&mut world, a, plan), End::new(&mut world, b, plan));
            world.connect(near.side, far.side, Path::Packets).unwrap();
            world.add_fault(Fault::random(Act::Drop, loss));
            let start = world.now();
            for id in 0..MESSAGES {
                near.post(&mut world, id, SendOp::Write(far.mr.at(0)), 0, MESSAGE);
            }
            let done = near.statuses(&mut world, MESSAGES as usize);
            assert!(done.iter().all(|(_, status)| *status == WcStatus::Success));
            let speed = gbit(u64::from(MESSAGE) * MESSAGES, world.now().since(start));
            write!(table, "{speed:10.2}").unwrap();
        }
        table.push('\n');
    }
    insta::assert_snapshot!(table);
}

/// 1 to 64 queue pairs of one host, each with eight WRITEs of 1 KiB out at any time, for 500 us
/// of packets and 10 us of shared memory: together they use what there is, and none gets less than half of another's share.
#[test]
fn s1_49_fairness_of_1_to_64_queue_pairs() {
    let mut table = String::from("path      QPs   messages   least   most\n");
    for path in PATHS {
        for count in [1, 2, 4, 8, 16, 32, 64] {
            let mut world = World::new(43);
            let (a, b) = (world.add_host("a"), world.add_host("b"));
            let mut ends = Vec::new();
            for _ in 0..count {
                let near = End::new(&mut world, a, QpPlan::rc());
                let far = End::new(&mut world, b, QpPlan::rc());
                world.connect(near.side, far.side, path).unwrap();
                ends.push((near, far, 0u32));
            }
            for (near, far, _) in &ends {
                for id in 0..8 {
                    near.post(&mut world, id, SendOp::Write(far.mr.at(0)), 0, 1024);
                }
            }
            let span = if path == Path::Packets { 500 } else { 10 };
            let until = world.now().after(Duration::from_micros(span));
            let done = world.run_until(LONG, |world| {
                for (near, far, completed) in &mut ends {
                    for _ in near.poll(world) {
                        *completed += 1;
                        near.post(world, 0, SendOp::Write(far.mr.at(0)), 0, 1024);
                    }
                }
                world.now() >= until
            });
            assert!(done);
            let shares = ends.iter().map(|(.., completed)| *completed);
            let (least, most) = (shares.clone().min().unwrap(), shares.clone().max().unwrap());
            let total: u32 = shares.sum();
            assert!(2 * least >= most, "{path:?} {count}: {least} to {most}");
            writeln!(table, "{path:8?} {count:4} {total:10} {least:7} {most:6}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

/// B4: the same seed gives the same world, event by event; another seed, or one altered frame,
/// another one.
#[test]
fn b4_the_same_seed_gives_the_same_trace() {
    for path in PATHS {
        let run = |seed, fault: Option<Fault>| {
            let mut world = World::new(seed);
            let (a, b) = (world.add_host("a"), world.add_host("b"));
            let plan = QpPlan { timeout: 8, ..QpPlan::rc() };
            let (near, far) = (End::new(&mut world, a, plan), End::new(&mut world, b, plan));
            world.connect(near.side, far.side, path).unwrap();
            world.add_fault(Fault::random(Act::Drop, 20_000));
            fault.map(|fault| world.add_fault(fault));
            for id in 0..20 {
                far.recv(&mut world, 100 + id, 0, 4096);
                near.post(&mut world, id, SendOp::Send, 0, 3000);
                near.post(&mut world, 50 + id, SendOp::Write(far.mr.at(0)), 0, 3000);
            }
            near.wait(&mut world, 40);
            world.trace_hash()
        };
        assert_eq!(run(1, None), run(1, None), "{path:?}");
        assert_ne!(run(1, None), run(2, None), "{path:?}");
        if path == Path::Packets {
            let filter = pmd_sim::Filter { after: 30, count: Some(1), ..pmd_sim::Filter::ALL };
            let altered = run(1, Some(Fault::new(Act::Corrupt, filter)));
            assert_ne!(run(1, None), altered);
        }
    }
}
