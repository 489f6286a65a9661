//! Failures of every scope at random moments, with work in flight on queue pairs that share queues.

use core::time::Duration;
use std::collections::BTreeMap;

use pmd_roce::engine::SrqInit;
use pmd_roce::ids::{Rkey, WrId};
use pmd_roce::qp::state::QpState;
use pmd_roce::work::{RecvWr, RemoteAddr, SendOp, WcStatus};
use pmd_sim::connect::PD;
use pmd_sim::{Path, QpPlan, Rng, World};

use crate::harness::{End, PATHS, seeds};

/// What is to become of a queue pair of the host that is hurt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hurt {
    /// Nothing was done to it or to what it uses.
    Not,
    /// It fell, and all its requests complete.
    Fell,
    /// Its completion queue or device is gone: no completion is owed.
    Lost,
}

/// S4-01 to S4-06, S4-12, S4-14, S4-15, S3-15 to S3-17: whatever fails, each request completes at most
/// once; exactly once wherever completions can come; and who was not in the scope works on.
#[test]
fn s4_12_failures_stay_in_their_scope() {
    for path in PATHS {
        for seed in seeds(150) {
            scopes(seed, path);
        }
    }
}

fn scopes(seed: u64, path: Path) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed);
    let (a, b) = (world.add_host("a"), world.add_host("b"));
    world.set_map_delay(Duration::from_nanos(rng.below(2) * 2000));
    let cqs = [world.create_cq(a, 4096), world.create_cq(a, 4096)];
    let init = SrqInit { pd: PD, max_wr: 256, max_sge: 1, xrc: None };
    let srqns = [(); 2].map(|()| world.create_srq(a, &init).unwrap());
    // Eight queue pairs: every combination of completion queue, shared queue and none.
    let pairs: Vec<_> = (0..8)
        .map(|index| {
            let cq = cqs[index % 2];
            let srq = [None, Some(srqns[0]), Some(srqns[1]), None][index / 2];
            let near = QpPlan { cqs: Some((cq, cq)), srq, ..QpPlan::rc() };
            let pair = [End::new(&mut world, a, near), End::new(&mut world, b, QpPlan::rc())];
            world.connect(pair[0].side, pair[1].side, path).unwrap();
            pair
        })
        .collect();
    let mut hurt = [Hurt::Not; 8];
    let mut device_lost = false;
    let mut posted = [0u64; 8];
    for _ in 0..rng.between(40, 200) {
        let index = rng.index(8);
        let [near, far] = pairs[index];
        match rng.below(60) {
            0 => {
                let cq = rng.index(2);
                world.kill_cq(a, cqs[cq]);
                (0..8).filter(|index| index % 2 == cq).for_each(|index| hurt[index] = Hurt::Lost);
            }
            1 => {
                let srq = rng.index(2);
                world.kill_srq(a, srqns[srq]).unwrap();
                for index in [2 * srq + 2, 2 * srq + 3] {
                    hurt[index] = hurt[index].max_with(Hurt::Fell);
                }
            }
            2 if !device_lost => {
                near.set_state(&mut world, QpState::Error).unwrap();
                hurt[index] = hurt[index].max_with(Hurt::Fell);
            }
            3 if rng.chance(100_000) => {
                world.kill_device(a);
                (device_lost, hurt) = (true, [Hurt::Lost; 8]);
            }
            4 => {
                let bad = RemoteAddr { rkey: Rkey(!far.mr.rkey.0), ..far.mr.at(0) };
                let sges = [near.mr.sge(0, 8)];
                if near.try_post(&mut world, posted[index], SendOp::Write(bad), &sges).is_ok() {
                    posted[index] += 1;
                    hurt[index] = hurt[index].max_with(Hurt::Fell);
                }
            }
            5 => {
                // Far shorter than the budget.
                world.set_port(a, false);
                world.run_for(Duration::from_millis(20));
                world.set_port(a, true);
            }
            6..15 => {
                for _ in 0..rng.below(30) {
                    world.step();
                }
            }
            15..30 => {
                // Full, or in Error since its peer broke a rule: either is fine.
                far.try_recv(&mut world, 0, &[far.mr.sge(0, 64)]).ok();
            }
            _ => {
                let op = [SendOp::Send, SendOp::Write(far.mr.at(0)), SendOp::Read(far.mr.at(0))];
                let sges = [near.mr.sge(0, 64)];
                let op = op[rng.index(3)];
                if near.try_post(&mut world, posted[index], op, &sges).is_ok() {
                    posted[index] += 1;
                }
            }
        }
    }
    // What still lives gets the receives that its SENDs need, and time.
    for [_, far] in &pairs {
        for _ in 0..100 {
            if far.try_recv(&mut world, 0, &[far.mr.sge(0, 64)]).is_err() {
                break;
            }
        }
    }
    world.run_for(Duration::from_secs(8));
    let mut ended: BTreeMap<(usize, u64), WcStatus> = BTreeMap::new();
    for cq in cqs {
        while let Some(wc) = world.poll_cq(a, cq) {
            let index = pairs.iter().position(|[near, _]| near.side.qpn == wc.qpn).unwrap();
            let before = ended.insert((index, wc.wr_id.0), wc.status);
            assert_eq!(before, None, "{path:?} seed {seed}: twice: {wc:?}");
        }
    }
    for (index, [near, _]) in pairs.iter().enumerate() {
        let own = || ended.range((index, 0)..(index + 1, 0)).map(|(_, status)| *status);
        let name = format!("{path:?} seed {seed} queue pair {index} {:?}", hurt[index]);
        let view = world.engine(a).query_qp(near.side.qpn).unwrap();
        assert_eq!(view.send_outstanding, 0, "{name}: no limbo");
        match hurt[index] {
            Hurt::Not => {
                assert_eq!(near.state(&world), QpState::Rts, "{name}");
                assert!(own().all(|status| status == WcStatus::Success), "{name}");
                assert_eq!(own().count() as u64, posted[index], "{name}");
            }
            Hurt::Fell => {
                assert_eq!(near.state(&world), QpState::Error, "{name}");
                assert_eq!(own().count() as u64, posted[index], "{name}");
                let good = own().take_while(|status| *status == WcStatus::Success).count();
                let after = own().skip(good + 1);
                assert!(after.into_iter().all(|status| status == WcStatus::WrFlush), "{name}");
            }
            Hurt::Lost => assert_eq!(near.state(&world), QpState::Error, "{name}"),
        }
    }
    let wr = RecvWr { wr_id: WrId(1), sges: &[] };
    assert_eq!(world.post_srq_recv(a, srqns[0], &wr).is_err(), device_lost);
}

impl Hurt {
    /// Of two fates, the worse one.
    fn max_with(self, other: Self) -> Self {
        if self == Self::Lost || other == Self::Not { self } else { other }
    }
}
