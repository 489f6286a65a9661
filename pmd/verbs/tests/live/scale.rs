//! What many queue pairs cost.

use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::{Qp, Rc, WireChoice};

use crate::support::World;

/// S1-11, E-11: a node of a mesh of 1000 has 999 RC queue pairs. What each takes is measured, and
/// all of them fit one lcore; deeper queues take more.
#[test]
fn s1_11_a_mesh_of_a_thousand_nodes() {
    let world = World::new(WireChoice::Udp);
    let side = &world.sides[0];
    let make = |depth: u32| -> Qp<Rc> {
        side.qp(|options| {
            options.cap = QpCap {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
        })
    };
    let mesh: Vec<_> = (0..999).map(|_| make(16)).collect();
    let each: Vec<_> = mesh.iter().map(|qp| qp.query().memory_bytes).collect();
    assert!(each.iter().all(|bytes| *bytes == each[0]));
    println!("an RC queue pair of depth 16 takes {} bytes, 999 take {}", each[0], 999 * each[0]);
    assert!((256..8192).contains(&each[0]), "{} bytes", each[0]);
    let deep = make(256).query().memory_bytes;
    println!("one of depth 256 takes {deep} bytes");
    // 240 more requests in each queue, of which each has an element and an identifier at least.
    assert!(deep >= each[0] + 2 * 240 * 24, "{deep} bytes");
    let mut numbers: Vec<_> = mesh.iter().map(|qp| qp.number()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 999);
}
