//! Several lcores of a process at one address.

use std::time::{Duration, Instant};

use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Data, Device, DeviceConfig, Qp, Rc, WcOpcode, WcStatus, WireChoice, WorkRequest};

use crate::support::{Side, World, pattern, step};

const MESSAGES: u64 = 200;
const BYTES: u32 = 64;

/// A queue pair and the side that has it.
struct End<'a> {
    side: &'a Side,
    qp: Qp<Rc>,
    sent: u64,
    completed: u64,
    received: u64,
}

/// Two lcores a side and a queue pair between any two of them: the kernel gives every frame to its
/// lcore, and no lcore hands anything to its sibling.
#[test]
fn lcores_that_share_an_address_hand_nothing_over() {
    let config = DeviceConfig { wire: WireChoice::Udp, lcores: 2, ..DeviceConfig::default() };
    let worlds = [(); 2].map(|()| World::of(&Device::open(&config).unwrap()));
    let mut ends = Vec::new();
    for (near, far) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let sides = [&worlds[0].sides[near], &worlds[1].sides[far]];
        let qps = sides.map(|side| side.qp::<Rc>(|_| {}));
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            for (n, qp) in qps.iter().enumerate() {
                let peer = sides[1 - n].cx.device().gid();
                let attr = worlds[n].attr(n, qps[1 - n].number());
                let attr = QpAttr { av: sides[n].cx.path_to(peer, attr.dest_qpn).unwrap(), ..attr };
                step(qp, &attr, to);
            }
        }
        for (side, qp) in sides.into_iter().zip(qps) {
            ends.push(End { side, qp, sent: 0, completed: 0, received: 0 });
        }
    }
    for side in worlds.iter().flat_map(|world| &world.sides) {
        side.memory.write_at(0, &pattern(BYTES as usize, 3)).unwrap();
    }
    for end in &ends {
        (0..32).for_each(|wr| end.side.receive(&end.qp, wr, wr * 64, BYTES));
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while ends.iter().any(|end| end.completed < MESSAGES || end.received < MESSAGES) {
        assert!(Instant::now() < deadline, "nothing moves any more");
        for end in &mut ends {
            while end.sent < MESSAGES && end.sent < end.completed + 16 {
                let sge = [end.side.sge(0, BYTES)];
                end.qp.post_send(&WorkRequest::send(Data::Sges(&sge))).unwrap();
                end.sent += 1;
            }
        }
        for world in &worlds {
            world.turn();
            for side in &world.sides {
                side.cq.poll(64, |completion| {
                    assert_eq!(completion.status, WcStatus::Success);
                    // Two devices of one process may give the same number twice.
                    let of = |end: &&mut End<'_>| {
                        core::ptr::eq(end.side, side) && end.qp.number() == completion.qpn
                    };
                    let end = ends.iter_mut().find(of).unwrap();
                    if completion.opcode == WcOpcode::Recv {
                        let at = completion.wr_id.0 * 64;
                        assert_eq!(side.received(at, BYTES as usize), pattern(BYTES as usize, 3));
                        end.side.receive(&end.qp, completion.wr_id.0, at, BYTES);
                        end.received += 1;
                    } else {
                        end.completed += 1;
                    }
                });
            }
        }
    }
    for side in worlds.iter().flat_map(|world| &world.sides) {
        // Two queue pairs' messages, and at least an ACK for every 16 of those they sent.
        assert!(side.counter("rx_packets") >= 2 * MESSAGES + 2 * MESSAGES / 16);
        assert_eq!(side.counter("rx_handed_over"), 0);
        assert_eq!(side.counter("retransmits"), 0);
    }
}
