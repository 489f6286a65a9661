//! Moving a queue pair along an edge of the state table: everything is checked, then everything is
//! applied.

use super::Qp;
use super::attr::{ModifyQpError, PathMigState, QpAttr};
use super::state::{self, AttrMask, QpState, Transport};
use crate::address;
use crate::device::{Device, Io};
use crate::ids::Qpn;
use crate::limits::MAX_RD_ATOMIC;
use crate::local::requester::Local;
use crate::sink::CqSink;
use crate::wire::udp;
use crate::work::Access;

/// Where `attr` and `mask` lead, if the table and the values allow it.
pub(crate) fn check(
    qp: &Qp,
    dev: &Device,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState, ModifyQpError> {
    let from = qp.state();
    if dev.fatal {
        return Err(ModifyQpError::DeviceFatal);
    }
    if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
        return Err(ModifyQpError::WrongCurrentState { claimed: attr.cur_state, actual: from });
    }
    let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
    state::check(qp.transport(), from, to, mask)?;
    if mask != AttrMask::STATE {
        values(dev, attr, mask)?;
        migration(qp, dev, attr, mask)?;
    }
    Ok(to)
}

/// Checks every attribute that the mask names against the width of its field and the device. Nearly always every value
/// fits, named or not, which one look tells.
fn values(dev: &Device, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
    let fits = attr.timeout <= 31
        && attr.retry_cnt <= 7
        && attr.rnr_retry <= 7
        && attr.min_rnr_timer <= 31
        && attr.max_rd_atomic <= MAX_RD_ATOMIC
        && attr.max_dest_rd_atomic <= MAX_RD_ATOMIC
        && attr.pkey_index == 0
        && attr.path_mtu <= dev.config.mtu
        && RIGHTS.contains(attr.access)
        && (is_peer(attr.dest_qpn) || !mask.contains(AttrMask::DEST_QPN))
        && dev.ports.get(attr.port).is_some();
    if !fits {
        each_value(dev, attr, mask)?;
    }
    if mask.contains(AttrMask::AV) {
        address::check(&attr.av, &dev.ports)?;
        if attr.av.dgid.is_multicast() {
            let need = "a connection has one peer: a group is for UD";
            return Err(ModifyQpError::Value { field: "ah_attr.grh.dgid", value: 0, need });
        }
    }
    Ok(())
}

/// Rights that a queue pair may give.
const RIGHTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::LOCAL_WRITE);

/// Whether a queue pair can be a peer.
fn is_peer(qpn: Qpn) -> bool {
    qpn != Qpn::new(0) && qpn != Qpn::MULTICAST
}

/// The same, each by itself, to name the one that does not fit.
#[cold]
fn each_value(dev: &Device, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
    let need = |bit, field, value: u64, holds: bool, need| {
        if !mask.contains(bit) || holds {
            Ok(())
        } else {
            Err(ModifyQpError::Value { field, value, need })
        }
    };
    let at_most = |bit, field, value: u8, max: u8, text| {
        need(bit, field, u64::from(value), value <= max, text)
    };
    use AttrMask as M;
    let port = "must be a port of the device, counted from 1";
    need(M::PORT, "port_num", attr.port.into(), dev.ports.get(attr.port).is_some(), port)?;
    let one_pkey = "the partition table has one entry, index 0";
    need(M::PKEY_INDEX, "pkey_index", attr.pkey_index.into(), attr.pkey_index == 0, one_pkey)?;
    let rights = "local write, remote write, remote read and remote atomic only";
    let known = RIGHTS.contains(attr.access);
    need(M::ACCESS_FLAGS, "qp_access_flags", attr.access.bits().into(), known, rights)?;
    let mtu = "no more than the port's active MTU";
    let fits = attr.path_mtu <= dev.config.mtu;
    need(M::PATH_MTU, "path_mtu", attr.path_mtu.bytes() as u64, fits, mtu)?;
    let peer = "must be the peer's queue pair, neither 0 nor the multicast number";
    let dest = attr.dest_qpn;
    need(M::DEST_QPN, "dest_qp_num", dest.value().into(), is_peer(dest), peer)?;
    at_most(M::TIMEOUT, "timeout", attr.timeout, 31, "a field of 5 bits, 0 to 31")?;
    at_most(M::RETRY_CNT, "retry_cnt", attr.retry_cnt, 7, "a field of 3 bits, 0 to 7")?;
    at_most(M::RNR_RETRY, "rnr_retry", attr.rnr_retry, 7, "a field of 3 bits, 0 to 7")?;
    at_most(M::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31, "a field of 5 bits")?;
    let depth = "the device has 128 per queue pair";
    let (bit, field) = (M::MAX_QP_RD_ATOMIC, "max_rd_atomic");
    at_most(bit, field, attr.max_rd_atomic, MAX_RD_ATOMIC, depth)?;
    let (bit, field) = (M::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic");
    at_most(bit, field, attr.max_dest_rd_atomic, MAX_RD_ATOMIC, depth)
}

/// Checks the alternate path and what is to become of it.
fn migration(qp: &Qp, dev: &Device, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
    let refuse = |field, value, need| Err(ModifyQpError::Value { field, value, need });
    let loads = mask.contains(AttrMask::ALT_PATH);
    let orders = mask.contains(AttrMask::PATH_MIG_STATE);
    if !loads && !orders {
        return Ok(());
    }
    let field = if loads { "alt_ah_attr" } else { "path_mig_state" };
    if !dev.config.auto_path_mig {
        return refuse(field, 0, "automatic path migration is not supported: leave it out");
    }
    let is_local = match mask.contains(AttrMask::AV) && qp.state() == QpState::Init {
        true => attr.av.link.is_some(),
        false => qp.is_local(),
    };
    if is_local || attr.alt_av.link.is_some() && loads {
        return refuse(field, 0, "there is one path through shared memory: leave it out");
    }
    if loads {
        address::check(&attr.alt_av, &dev.ports)?;
        let port = u64::from(attr.alt_port);
        if attr.alt_port != attr.alt_av.port {
            return refuse("alt_port_num", port, "must be the port of alt_ah_attr");
        }
        if attr.alt_pkey_index != 0 {
            let need = "the partition table has one entry, index 0";
            return refuse("alt_pkey_index", attr.alt_pkey_index.into(), need);
        }
        if attr.alt_timeout > 31 {
            return refuse("alt_timeout", attr.alt_timeout.into(), "a field of 5 bits, 0 to 31");
        }
    }
    match attr.path_mig_state {
        PathMigState::Rearm if orders && !loads && qp.alternate.is_none() => {
            refuse("path_mig_state", 1, "REARM needs an alternate path: give alt_ah_attr")
        }
        PathMigState::Armed if orders => refuse(
            "path_mig_state",
            2,
            "ARMED comes by itself once the peer is ready: ask for REARM",
        ),
        _ => Ok(()),
    }
}

/// Applies what [`check`] has allowed.
pub(crate) fn apply<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    attr: &QpAttr,
    mask: AttrMask,
    to: QpState,
) {
    let from = qp.state();
    let link = qp.attr.av.link;
    if mask != AttrMask::STATE {
        qp.attr.adopt(attr, mask);
    }
    if to != QpState::Rtr {
        // The path is chosen once, whatever else of the address changes.
        qp.attr.av.link = link;
    }
    qp.renew_route();
    if qp.is_local() || qp.transport() == Transport::Ud {
        dev.pages.touch(qp.slot);
    }
    if mask.contains(AttrMask::AV) && to != QpState::Rtr {
        aim(qp, dev);
    }
    if mask.contains(AttrMask::ALT_PATH) {
        (qp.attr.alt_av, qp.attr.alt_pkey_index) = (attr.alt_av, attr.alt_pkey_index);
        (qp.attr.alt_port, qp.attr.alt_timeout) = (attr.alt_port, attr.alt_timeout);
        crate::migration::load(qp, dev);
    }
    if mask.contains(AttrMask::PATH_MIG_STATE) {
        crate::migration::order(qp, dev, attr.path_mig_state);
    }
    if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
        qp.responder.replies.resize(qp.attr.max_dest_rd_atomic);
    }
    if mask.intersects(AttrMask::RETRY_CNT | AttrMask::RNR_RETRY) {
        qp.requester.refill(&qp.attr);
    }
    match to {
        QpState::Reset => {
            dev.dismiss(qp);
            qp.reset(io.now);
        }
        QpState::Error => qp.enter_error(dev, io.cq, None),
        QpState::Rtr => {
            aim(qp, dev);
            qp.responder.begin(qp.attr.rq_psn);
            qp.local = Local::new(qp.attr.rq_psn);
            if let Some(link) = qp.attr.av.link {
                qp.local.lane = dev.lanes.join(link, qp.sq.capacity());
            }
            qp.enter(to, io.now);
        }
        QpState::Rts => {
            if from == QpState::Rtr {
                qp.requester.begin(&qp.attr);
            }
            qp.enter(to, io.now);
            dev.wake(qp);
        }
        QpState::Sqd => {
            qp.notify_drained =
                from != to && mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attr.sqd_notify
                    || from == to && qp.notify_drained;
            qp.enter(to, io.now);
            qp.note_drained(dev);
        }
        QpState::Init | QpState::Sqe => qp.enter(to, io.now),
    }
}

/// Works out the flow toward the peer. The address vector fixes it, and with it the RoCE version.
fn aim(qp: &mut Qp, dev: &Device) {
    let av = &qp.attr.av;
    if qp.transport() == Transport::Ud {
        qp.flow.src_port = udp::source_port_of_sender(qp.qpn);
        return;
    }
    let src_port = udp::source_port(av.flow_label, qp.qpn, qp.attr.dest_qpn);
    // Always there: the vector was checked.
    let Ok(src) = address::check(av, &dev.ports) else { return };
    qp.flow = address::flow(av, src, &dev.config, src_port);
}
