//! Address vectors: what RoCE requires of them, and how a mistake is told.

use pmd_verbs::roce::engine::ResourceError;
use pmd_verbs::roce::qp::attr::{AddressVector, ModifyQpError, QpAttr};
use pmd_verbs::roce::qp::state::{QpState, Transport};
use pmd_verbs::{Data, Rc, WcStatus, WireChoice, WorkRequest};

use crate::support::{World, ends, mask, step, unchanged};

/// P01, E-30: an address vector without GRH, or with a source that the port does not have, is
/// refused by the name of its field; nothing changes, and the corrected call succeeds.
#[test]
fn p01_the_field_is_named_and_the_corrected_call_succeeds() {
    let world = World::new(WireChoice::Udp);
    let qps = world.sides.each_ref().map(|side| side.qp::<Rc>(|_| {}));
    let good = [0, 1].map(|side| world.attr(side, qps[1 - side].number()));
    for (qp, attr) in qps.iter().zip(&good) {
        step(qp, attr, QpState::Init);
    }
    let before = qps[0].query();
    let refused = |av: AddressVector| {
        let attr = QpAttr { state: QpState::Rtr, av, ..good[0] };
        let error = qps[0].modify(&attr, mask(Transport::Rc, QpState::Rtr)).unwrap_err();
        unchanged(&qps[0], &before);
        error
    };
    let no_grh = refused(AddressVector { is_global: false, ..good[0].av });
    assert!(matches!(no_grh, ModifyQpError::Value { field: "ah_attr.is_global", .. }));
    let text = no_grh.to_string();
    assert!(text.starts_with("ah_attr.is_global = 0: required on RoCE"), "{text}");
    let no_source = refused(AddressVector { sgid_index: 99, ..good[0].av });
    assert_eq!(no_source, ModifyQpError::SgidIndex { index: 99, len: 1 });
    let text = no_source.to_string();
    assert_eq!(text, "ah_attr.grh.sgid_index = 99: the GID table has 1 entries");

    let handle = |av: &AddressVector| world.sides[0].pd.create_ah(av);
    let no_grh = handle(&AddressVector { is_global: false, ..good[0].av }).unwrap_err();
    assert!(matches!(no_grh, ResourceError::Value { field: "ah_attr.is_global", .. }));
    let no_source = handle(&AddressVector { sgid_index: 99, ..good[0].av }).unwrap_err();
    assert_eq!(no_source, ResourceError::SgidIndex { index: 99, len: 1 });
    handle(&good[0].av).unwrap();

    for to in [QpState::Rtr, QpState::Rts] {
        for (qp, attr) in qps.iter().zip(&good) {
            step(qp, attr, to);
        }
    }
    world.sides[1].receive(&qps[1], 1, 0, 16);
    qps[0].post_send(&WorkRequest::send(Data::Inline(&[b"corrected"])).id(2)).unwrap();
    let [sent, received] = world.complete([1, 1]);
    assert_eq!(
        (ends(&sent), ends(&received)),
        (vec![(2, WcStatus::Success)], vec![(1, WcStatus::Success)])
    );
    assert_eq!(world.sides[1].received(0, 9), b"corrected");
}
