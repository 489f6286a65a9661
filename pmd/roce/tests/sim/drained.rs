//! SQD: the send queue is drained, attributes change, and work goes on.

use core::time::Duration;

use pmd_roce::event::AsyncEvent;
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::work::{Access, SendOp, WcStatus};
use pmd_sim::{QpPlan, World};

use crate::harness::{End, PATHS, Pair, ms_since};

const OK: WcStatus = WcStatus::Success;

fn modify(world: &mut World, end: &End, attr: QpAttr, mask: AttrMask) {
    world.modify_qp(end.host(), end.side.qpn, &attr, mask).unwrap();
}

/// S2-23: SQ_DRAINED comes when asked for, at once where nothing is in flight, and not when not asked for;
/// the way back to RTS is open before it came.
#[test]
fn s2_23_drained_when_asked() {
    for path in PATHS {
        for transport in [Transport::Rc, Transport::Uc] {
            let mut pair = Pair::new(1, path, QpPlan::of(transport));
            let Pair { world, a, b, .. } = &mut pair;
            let drain = |world: &mut World, end: &End, notify| {
                let attr = QpAttr { sqd_notify: notify, ..QpAttr::new(QpState::Sqd) };
                modify(world, end, attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY);
            };
            let event = AsyncEvent::SqDrained(a.side.qpn);
            drain(world, a, true);
            assert_eq!(a.events(world), [event], "{path:?} {transport}");
            a.set_state(world, QpState::Rts).unwrap();
            drain(world, a, false);
            a.set_state(world, QpState::Rts).unwrap();
            a.set_state(world, QpState::Sqd).unwrap();
            world.run_for(Duration::from_millis(1));
            assert_eq!(a.events(world), [], "nobody asked");
            a.set_state(world, QpState::Rts).unwrap();
            b.recv(world, 50, 0, 4096);
            a.post(world, 1, SendOp::Send, 0, 4000);
            world.poll_host(a.host());
            drain(world, a, true);
            a.set_state(world, QpState::Rts).unwrap();
            a.post(world, 2, SendOp::Write(b.mr.at(0)), 0, 64);
            assert_eq!(a.statuses(world, 2), [(1, OK), (2, OK)]);
            world.run_for(Duration::from_millis(1));
            let late: Vec<_> = a.events(world);
            // UC may be done with its message at once.
            assert!(late.is_empty() || transport == Transport::Uc, "{late:?}");
        }
    }
}

/// SQD to SQD changes what the table lets change, and requests that were posted meanwhile run by the new
/// values (E-31).
#[test]
fn s2_23_attributes_change_while_drained() {
    for path in PATHS {
        let mut pair = Pair::new(2, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        for end in [*a, *b] {
            end.set_state(world, QpState::Sqd).unwrap();
        }
        // A shorter budget at one end.
        a.post(world, 1, SendOp::Write(b.mr.at(0)), 0, 64);
        let attr = QpAttr { timeout: 8, retry_cnt: 1, ..QpAttr::new(QpState::Sqd) };
        modify(world, a, attr, AttrMask::TIMEOUT | AttrMask::RETRY_CNT);
        // Fewer rights at the other.
        let attr = QpAttr { access: Access::REMOTE_READ, ..QpAttr::new(QpState::Sqd) };
        modify(world, b, attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS);
        let view = world.engine(a.host()).query_qp(a.side.qpn).unwrap().attr;
        assert_eq!((view.timeout, view.retry_cnt, view.rnr_retry), (8, 1, 7));
        for end in [*a, *b] {
            end.set_state(world, QpState::Rts).unwrap();
        }
        assert_eq!(a.statuses(world, 1), [(1, WcStatus::RemInvReq)], "{path:?}");
        // The budget, with nobody there.
        let mut pair = Pair::new(3, path, QpPlan::rc());
        let Pair { world, a, b, .. } = &mut pair;
        a.set_state(world, QpState::Sqd).unwrap();
        let attr = QpAttr { timeout: 8, retry_cnt: 1, ..QpAttr::new(QpState::Sqd) };
        modify(world, a, attr, AttrMask::TIMEOUT | AttrMask::RETRY_CNT);
        a.set_state(world, QpState::Rts).unwrap();
        b.set_state(world, QpState::Error).unwrap();
        let start = world.now();
        a.post(world, 1, SendOp::Send, 0, 64);
        assert_eq!(a.statuses(world, 1), [(1, WcStatus::RetryExc)]);
        let took = ms_since(world, start);
        assert!((2.0..3.2).contains(&took), "{path:?}: 2 x 1.05 ms, not 537: {took}");
    }
}
