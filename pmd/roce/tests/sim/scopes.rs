//! Failures wider than one queue pair: of a completion queue and of a device. What is in their scope
//! falls, and nothing else does.

use pmd_roce::engine::{PostRecvError, PostSendError, ResourceError};
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::qp::attr::{AddressVector, CreateQpError, ModifyQpError};
use pmd_roce::qp::state::QpState;
use pmd_roce::work::{SendOp, WcStatus};
use pmd_sim::{HostId, Path, QpPlan, World};

use crate::harness::{End, PATHS};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

/// Connections from `a` to `b`, each by its own plan for the near end.
fn connections(path: Path, world: &mut World, plans: &[QpPlan]) -> Vec<[End; 2]> {
    let hosts: Vec<HostId> = world.hosts().collect();
    let connect = |plan: &QpPlan| {
        let pair = [End::new(world, hosts[0], *plan), End::new(world, hosts[1], QpPlan::rc())];
        world.connect(pair[0].side, pair[1].side, path).unwrap();
        pair
    };
    plans.iter().map(connect).collect()
}

fn events(world: &mut World, host: HostId) -> Vec<AsyncEvent> {
    core::iter::from_fn(|| world.poll_event(host)).collect()
}

/// S3-15, S4-13, S4-14, E-27: a completion queue fails under traffic. Every queue pair on it is in Error
/// with a QP_FATAL of its own and gets no completion any more, also not for what is posted later; the
/// queue that is whole gets its flushed receives. Others see nothing.
#[test]
fn s4_14_a_completion_queue_fails() {
    for path in PATHS {
        let mut world = World::new(1);
        let a = world.add_host("a");
        world.add_host("b");
        let (dead, whole) = (world.create_cq(a, 256), world.create_cq(a, 256));
        let plan = |send, recv| QpPlan { cqs: Some((send, recv)), ..QpPlan::rc() };
        let plans = [plan(dead, dead), plan(dead, whole), plan(whole, dead), plan(whole, whole)];
        let pairs = connections(path, &mut world, &plans);
        for [near, far] in &pairs {
            for id in 0..4 {
                near.recv(&mut world, 50 + id, 0, 64);
                near.post(&mut world, id, SendOp::Write(far.mr.at(0)), 0, 64);
            }
        }
        world.kill_cq(a, dead);
        let fatal = |index: usize| AsyncEvent::QpFatal(pairs[index][0].side.qpn);
        let expected = [AsyncEvent::CqErr(dead), fatal(0), fatal(1), fatal(2)];
        assert_eq!(events(&mut world, a), expected, "{path:?}");
        world.kill_cq(a, dead);
        assert_eq!(events(&mut world, a), [], "it can fail but once");
        for ([near, _], state) in pairs.iter().zip([QpState::Error; 3]) {
            assert_eq!(near.state(&world), state);
            near.post(&mut world, 9, SendOp::Send, 0, 8);
            near.recv(&mut world, 59, 0, 64);
        }
        let [sibling, peer] = pairs[3];
        peer.recv(&mut world, 70, 0, 64);
        sibling.post(&mut world, 10, SendOp::Send, 0, 64);
        peer.wait(&mut world, 1);
        assert_eq!(sibling.state(&world), QpState::Rts, "S4-12");
        world.run_for(core::time::Duration::from_millis(1));
        assert_eq!(world.poll_cq(a, dead), None, "nothing is made up");
        let got: Vec<_> = core::iter::from_fn(|| world.poll_cq(a, whole)).collect();
        let of = |index: usize| {
            let qpn = pairs[index][0].side.qpn;
            let own = got.iter().filter(move |wc| wc.qpn == qpn);
            own.map(|wc| (wc.wr_id.0, wc.status)).collect::<Vec<_>>()
        };
        let flushed = |ids: &[u64]| ids.iter().map(|id| (*id, FLUSHED)).collect::<Vec<_>>();
        assert_eq!(of(1), flushed(&[50, 51, 52, 53, 59]), "its receives complete elsewhere");
        assert_eq!(of(2), flushed(&[0, 1, 2, 3, 9]), "its sends complete elsewhere");
        assert_eq!(of(3), [0, 1, 2, 3, 10].map(|id| (id, OK)));
        for [near, _] in &pairs {
            let view = world.engine(a).query_qp(near.side.qpn).unwrap();
            assert_eq!(view.send_outstanding, 0, "nothing is left in a queue");
        }
    }
}

/// S3-16, E-27: the device fails. Its event names no queue pair; each of them is in Error without a
/// completion, whatever comes later is refused, and the peers' retries find out.
#[test]
fn s3_16_a_device_fails() {
    for path in PATHS {
        let mut world = World::new(2);
        let (a, b) = (world.add_host("a"), world.add_host("b"));
        let plan = QpPlan { timeout: 8, ..QpPlan::rc() };
        let pairs = connections(path, &mut world, &[plan; 3]);
        let idle = world.create_qp(a, plan).unwrap();
        for [near, far] in &pairs {
            near.recv(&mut world, 50, 0, 64);
            near.post(&mut world, 1, SendOp::Write(far.mr.at(0)), 0, 64);
        }
        world.kill_device(a);
        world.kill_device(a);
        let raised = events(&mut world, a);
        assert_eq!(raised, [AsyncEvent::DeviceFatal], "{path:?}");
        assert_eq!(raised[0].scope(), EventScope::Device);
        world.run_for(core::time::Duration::from_millis(1));
        for [near, _] in &pairs {
            assert_eq!((near.state(&world), near.poll(&mut world)), (QpState::Error, vec![]));
            let sges = [near.mr.sge(0, 8)];
            let refused = near.try_post(&mut world, 2, SendOp::Send, &sges);
            assert_eq!(refused, Err(PostSendError::DeviceFatal));
            let refused = near.try_recv(&mut world, 51, &sges);
            assert_eq!(refused, Err(PostRecvError::DeviceFatal));
            let refused = near.set_state(&mut world, QpState::Reset);
            assert_eq!(refused, Err(ModifyQpError::DeviceFatal));
        }
        assert_eq!(world.state(a, idle.qpn), Some(QpState::Reset));
        assert_eq!(world.create_qp(a, plan), Err(CreateQpError::DeviceFatal));
        let av = AddressVector::to(world.gid(b));
        assert_eq!(world.create_ah(a, &av), Err(ResourceError::DeviceFatal));
        // The other side: its own device is well, and its request ends when its retries do.
        let [near, far] = pairs[0];
        far.post(&mut world, 3, SendOp::Write(near.mr.at(0)), 0, 64);
        assert_eq!(far.statuses(&mut world, 1), [(3, WcStatus::RetryExc)]);
        assert_eq!(events(&mut world, b), []);
        for [near, _] in &pairs {
            world.destroy_qp(a, near.side.qpn).unwrap();
        }
    }
}
