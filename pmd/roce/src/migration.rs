//! Automatic path migration (IBTA 1.4, 17.2.8): a connection that has an alternate path goes on over it
//! when the peer does not answer any more over the first one.
//!
//! ```text
//!               loaded, modify          the peer is not MIGRATED either
//!   MIGRATED ------------------> REARM ---------------------------------> ARMED
//!   MigReq 1                    MigReq 0                                 MigReq 0
//!      ^                                                                    |
//!      +---- retries ran out, modify, or the peer says so over that path ---+
//! ```
//!
//! Nothing but the path changes: PSNs, requests and responses go on where they were.

use crate::address;
use crate::completer;
use crate::device::Device;
use crate::event::AsyncEvent;
use crate::ids::Gid;
use crate::port::PortState;
use crate::qp::Qp;
use crate::qp::attr::{AddressVector, PathMigState};
use crate::sink::Flow;
use crate::wire::udp;

/// An alternate path that is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alternate {
    /// Toward the peer.
    flow: Flow,
    /// The peer came by some other path, and that was told once.
    refused: bool,
}

/// Remembers the alternate path that was just set, from the address that its index means now.
pub(crate) fn load(qp: &mut Qp, dev: &Device) {
    let av = &qp.attr.alt_av;
    // Always there: the vector was checked.
    let Ok(src) = address::check(av, &dev.ports) else { return };
    let src_port = udp::source_port(av.flow_label, qp.qpn, qp.attr.dest_qpn);
    let flow = address::flow(av, src, &dev.config, src_port);
    qp.alternate = Some(Box::new(Alternate { flow, refused: false }));
}

/// The consumer's word: REARM, or MIGRATED, which takes the alternate path if it is armed.
pub(crate) fn order(qp: &mut Qp, dev: &mut Device, state: PathMigState) {
    let is_armed = qp.attr.path_mig_state == PathMigState::Armed;
    if state == PathMigState::Migrated && is_armed && take_over(qp, dev) {
        return;
    }
    qp.attr.path_mig_state = state;
}

/// The path is dead: goes over to the alternate one, if it is armed. False: there is no other path.
pub(crate) fn escape(qp: &mut Qp, dev: &mut Device) -> bool {
    qp.attr.path_mig_state == PathMigState::Armed && take_over(qp, dev)
}

fn take_over(qp: &mut Qp, dev: &mut Device) -> bool {
    let is_up = |port: u8| dev.ports.get(port).is_some_and(|port| port.state == PortState::Active);
    if !is_up(qp.attr.alt_port) {
        dev.events.raise(AsyncEvent::PathMigErr(qp.qpn));
        return false;
    }
    let Some(alternate) = qp.alternate.take() else { return false };
    qp.flow = alternate.flow;
    let attr = &mut qp.attr;
    attr.av = attr.alt_av;
    (attr.port, attr.pkey_index, attr.timeout) =
        (attr.alt_port, attr.alt_pkey_index, attr.alt_timeout);
    attr.alt_av = AddressVector::to(Gid::default());
    attr.path_mig_state = PathMigState::Migrated;
    qp.renew_route();
    // A path of its own has its own retries, and what the old one swallowed goes at once.
    qp.requester.refill(&qp.attr);
    qp.requester.rnr_wait = false;
    if qp.requester.outstanding() > 0 {
        completer::go_back(qp, dev);
    }
    dev.events.raise(AsyncEvent::PathMig(qp.qpn));
    true
}

/// A packet of the peer came over the path in use. One that is not MIGRATED arms a connection that waits
/// for it; one that is, and comes where the alternate path leads, takes this side along.
#[cold]
pub(crate) fn note(qp: &mut Qp, dev: &mut Device, flow: &Flow, mig_req: bool) {
    match qp.attr.path_mig_state {
        PathMigState::Rearm if !mig_req => qp.attr.path_mig_state = PathMigState::Armed,
        PathMigState::Armed if mig_req && is_alternate(qp, flow) => {
            take_over(qp, dev);
        }
        _ => {}
    }
}

/// A packet of the peer came over another path than the one in use. Whether it is one to follow.
#[cold]
pub(crate) fn follow(qp: &mut Qp, dev: &mut Device, flow: &Flow, mig_req: bool) -> bool {
    match qp.attr.path_mig_state {
        PathMigState::Migrated => false,
        PathMigState::Armed if mig_req && is_alternate(qp, flow) => take_over(qp, dev),
        PathMigState::Armed | PathMigState::Rearm => {
            if let Some(alternate) = qp.alternate.as_mut().filter(|_| mig_req)
                && !core::mem::replace(&mut alternate.refused, true)
            {
                dev.events.raise(AsyncEvent::PathMigErr(qp.qpn));
            }
            false
        }
    }
}

/// Whether the packet came over the alternate path.
fn is_alternate(qp: &Qp, flow: &Flow) -> bool {
    let alternate = qp.alternate.as_deref();
    alternate.is_some_and(|own| own.flow.src == flow.dst && own.flow.dst == flow.src)
}
