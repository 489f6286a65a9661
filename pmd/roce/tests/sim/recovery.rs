//! Error and RESET at any moment: every request ends exactly once, and the queue pair works again.

use core::time::Duration;
use std::collections::BTreeMap;

use pmd_roce::qp::state::QpState;
use pmd_roce::work::{Completion, SendOp, WcStatus};
use pmd_sim::{Act, Fault, Path, QpPlan, Rng};

use crate::harness::{PATHS, Pair, pattern, seeds};

/// How a request ended: by a completion, or forgotten by RESET.
#[derive(Debug, Default)]
struct Ends {
    completed: BTreeMap<u64, WcStatus>,
    forgotten: usize,
}

impl Ends {
    fn take(&mut self, completions: Vec<Completion>) {
        for completion in completions {
            let before = self.completed.insert(completion.wr_id.0, completion.status);
            assert_eq!(before, None, "ends twice: {completion:?}");
        }
    }

    /// Every request with a number below `posted` has ended, once.
    fn check(&self, posted: usize) {
        assert_eq!(self.completed.len() + self.forgotten, posted);
    }
}

/// P19, S4-06, S3-25: posts, faults, Error and RESET at random moments on either side, with work in
/// flight. After each RESET the connection comes up again, and in the end it carries data.
#[test]
fn p19_every_request_ends_exactly_once() {
    for path in PATHS {
        for seed in seeds(1300) {
            chaos(seed, path);
        }
    }
}

fn chaos(seed: u64, path: Path) {
    let mut rng = Rng::new(seed);
    let plan = QpPlan { timeout: 6, retry_cnt: 3, rnr_retry: 6, min_rnr_timer: 1, ..QpPlan::rc() };
    let mut pair = Pair::new(seed, path, plan);
    pair.world.set_map_delay(Duration::from_nanos(rng.below(2) * 2000));
    let loss = rng.below(2) * rng.below(20_000);
    let loss = pair.world.add_fault(Fault::random(Act::Drop, loss as u32));
    let mut ends = [Ends::default(), Ends::default()];
    let mut posted = [0, 0];
    for round in 0..4 {
        for _ in 0..rng.between(1, 60) {
            step(&mut pair, &mut rng, &mut posted, &mut ends);
        }
        // The fall: on one side or both, or by a request that breaks a rule.
        let Pair { world, a, b, .. } = &mut pair;
        match rng.below(4) {
            0 => a.set_state(world, QpState::Error).unwrap(),
            1 => b.set_state(world, QpState::Error).unwrap(),
            2 => {
                let bad = pmd_roce::work::RemoteAddr { addr: 0, ..b.mr.at(0) };
                if a.try_post(world, posted[0] as u64, SendOp::Write(bad), &[a.mr.sge(0, 8)])
                    .is_ok()
                {
                    posted[0] += 1;
                }
            }
            _ => {}
        }
        for _ in 0..rng.below(100) {
            pair.world.step();
        }
        let Pair { world, a, b, .. } = &mut pair;
        let drains = rng.chance(500_000);
        for (index, end) in [*a, *b].into_iter().enumerate() {
            if drains {
                // As one should: Error, then poll what is flushed, then RESET.
                end.set_state(world, QpState::Error).unwrap();
                world.run_for(Duration::from_micros(1));
            }
            ends[index].take(end.poll(world));
            let view = world.engine(end.host()).query_qp(end.side.qpn).unwrap();
            let forgotten = (view.send_outstanding + view.recv_outstanding) as usize;
            assert!(!drains || forgotten == 0, "Error leaves nothing: {view:?}");
            ends[index].forgotten += forgotten;
            end.set_state(world, QpState::Reset).unwrap();
        }
        for (index, ends) in ends.iter_mut().enumerate() {
            // What RESET forgot never completes.
            let end = [pair.a, pair.b][index];
            ends.take(end.poll(&mut pair.world));
            ends.check(posted[index]);
        }
        // Nothing of the old connection is left on the network.
        pair.world.run_for(Duration::from_micros(50));
        pair.reconnect();
        assert!(round < 4);
    }
    pair.world.end_fault(loss);
    let Pair { world, a, b, .. } = &mut pair;
    let sent = pattern(seed as u8, 3000);
    a.write(world, 0, &sent);
    b.recv(world, 1 << 32, 10_000, 4096);
    a.post(world, 1 << 32, SendOp::Send, 0, 3000);
    let done = a.statuses(world, 1);
    assert_eq!(done, [(1 << 32, WcStatus::Success)], "{path:?} seed {seed}");
    assert_eq!(b.statuses(world, 1), [(1 << 32, WcStatus::Success)]);
    assert_eq!(b.bytes(world, 10_000, 3000), sent);
}

/// Posts something somewhere, or lets time pass.
fn step(pair: &mut Pair, rng: &mut Rng, posted: &mut [usize; 2], ends: &mut [Ends; 2]) {
    let index = rng.index(2);
    let (own, peer) = if index == 0 { (pair.a, pair.b) } else { (pair.b, pair.a) };
    let world = &mut pair.world;
    let len = rng.below(4000) as u32;
    let id = posted[index] as u64;
    let accepted = match rng.below(6) {
        0 => own.try_recv(world, id, &[own.mr.sge(8192, 4096)]).is_ok(),
        1 => own.try_post(world, id, SendOp::Send, &[own.mr.sge(0, len)]).is_ok(),
        2 => {
            let op = SendOp::Write(peer.mr.at(16_384));
            own.try_post(world, id, op, &[own.mr.sge(0, len)]).is_ok()
        }
        3 => {
            let op = SendOp::Read(peer.mr.at(16_384));
            own.try_post(world, id, op, &[own.mr.sge(32_768, len)]).is_ok()
        }
        4 => {
            ends[index].take(own.poll(world));
            false
        }
        _ => {
            for _ in 0..rng.below(40) {
                world.step();
            }
            false
        }
    };
    posted[index] += usize::from(accepted);
}
