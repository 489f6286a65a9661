//! Attributes of queue pairs, in the words of this crate and in those of libibverbs.

use ::core::ffi::c_int;

use pmd_roce::ids::{Gid, PathMtu, Psn, Qpn};
use pmd_roce::qp::attr::{AddressVector, ModifyQpError, PathMigState, QpAttr};
use pmd_roce::qp::state::AttrMask;
use pmd_roce::work::Access;

use super::abi::{ibv_ah_attr, ibv_global_route, ibv_qp_attr};
use super::port::Port;
use super::qp::state_of;

/// Checks what drivers cut off or take as something else.
pub(super) fn values(port: &Port, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
    use AttrMask as M;
    let need = |bit, field, value: u64, holds: bool, need| {
        if !mask.contains(bit) || holds {
            Ok(())
        } else {
            Err(ModifyQpError::Value { field, value, need })
        }
    };
    let at_most =
        |bit, field, value: u8, max: u8, text| need(bit, field, value.into(), value <= max, text);
    at_most(M::TIMEOUT, "timeout", attr.timeout, 31, "a field of 5 bits, 0 to 31")?;
    at_most(M::RETRY_CNT, "retry_cnt", attr.retry_cnt, 7, "a field of 3 bits, 0 to 7")?;
    at_most(M::RNR_RETRY, "rnr_retry", attr.rnr_retry, 7, "a field of 3 bits, 0 to 7")?;
    let timer = "a field of 5 bits, 0 to 31";
    at_most(M::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31, timer)?;
    let most = port.attr.max_qp_rd_atom;
    let limit = "more than the device has: `spinwire devices` shows max_qp_rd_atom";
    at_most(M::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic, most, limit)?;
    at_most(M::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic, most, limit)?;
    let mtu = "larger than the active MTU of the port";
    let fits = attr.path_mtu <= port.mtu;
    need(M::PATH_MTU, "path_mtu", attr.path_mtu.bytes_u32().into(), fits, mtu)?;
    let packets = "a NIC shares no memory with peers: the path is packets";
    need(M::AV, "ah_attr", 0, attr.av.link.is_none(), packets)
}

/// An address vector.
pub(super) const fn raw_ah(av: &AddressVector) -> ibv_ah_attr {
    let mut raw = EMPTY;
    raw.grh = ibv_global_route {
        dgid: av.dgid.0,
        flow_label: av.flow_label,
        sgid_index: av.sgid_index,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
    };
    raw.sl = av.sl;
    raw.is_global = av.is_global as u8;
    raw.port_num = av.port;
    raw
}

const EMPTY: ibv_ah_attr = ibv_ah_attr::zero();

/// All attributes; a mask says which of them count.
pub(super) fn raw_attr(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as c_int,
        cur_qp_state: attr.cur_state as c_int,
        path_mtu: attr.path_mtu as c_int,
        path_mig_state: attr.path_mig_state as c_int,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn.value(),
        qp_access_flags: attr.access.bits(),
        ah_attr: raw_ah(&attr.av),
        alt_ah_attr: raw_ah(&attr.alt_av),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.sqd_notify.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port,
        alt_timeout: attr.alt_timeout,
        ..ibv_qp_attr::default()
    }
}

fn from_ah(raw: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        is_global: raw.is_global != 0,
        dgid: Gid(raw.grh.dgid),
        sgid_index: raw.grh.sgid_index,
        hop_limit: raw.grh.hop_limit,
        traffic_class: raw.grh.traffic_class,
        flow_label: raw.grh.flow_label,
        sl: raw.sl,
        port: raw.port_num,
        link: None,
    }
}

/// What the device answers; where it makes no sense, what is `known`.
pub(super) fn from_raw(raw: &ibv_qp_attr, known: &QpAttr) -> QpAttr {
    let state = state_of(raw.qp_state).unwrap_or(known.cur_state);
    let mtu = u8::try_from(raw.path_mtu).ok().and_then(PathMtu::from_code);
    let migration = [PathMigState::Migrated, PathMigState::Rearm, PathMigState::Armed];
    let migration = migration.into_iter().find(|one| *one as c_int == raw.path_mig_state);
    QpAttr {
        state,
        cur_state: state,
        sqd_notify: raw.en_sqd_async_notify != 0,
        access: Access::from_bits_retain(raw.qp_access_flags),
        pkey_index: raw.pkey_index,
        port: raw.port_num,
        qkey: raw.qkey,
        av: from_ah(&raw.ah_attr),
        path_mtu: mtu.unwrap_or(known.path_mtu),
        timeout: raw.timeout,
        retry_cnt: raw.retry_cnt,
        rnr_retry: raw.rnr_retry,
        min_rnr_timer: raw.min_rnr_timer,
        sq_psn: Psn::new(raw.sq_psn),
        rq_psn: Psn::new(raw.rq_psn),
        max_rd_atomic: raw.max_rd_atomic,
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        dest_qpn: Qpn::new(raw.dest_qp_num),
        alt_av: from_ah(&raw.alt_ah_attr),
        alt_pkey_index: raw.alt_pkey_index,
        alt_port: raw.alt_port_num,
        alt_timeout: raw.alt_timeout,
        path_mig_state: migration.unwrap_or(known.path_mig_state),
    }
}

/// `own`, with what a call has set.
pub(super) fn merged(own: &QpAttr, given: &QpAttr, mask: AttrMask) -> QpAttr {
    let mut own = *own;
    own.adopt(given, mask);
    if mask.contains(AttrMask::STATE) {
        own.state = given.state;
    }
    if mask.contains(AttrMask::ALT_PATH) {
        (own.alt_av, own.alt_pkey_index) = (given.alt_av, given.alt_pkey_index);
        (own.alt_port, own.alt_timeout) = (given.alt_port, given.alt_timeout);
    }
    if mask.contains(AttrMask::PATH_MIG_STATE) {
        own.path_mig_state = given.path_mig_state;
    }
    own
}

#[cfg(test)]
mod tests {
    use pmd_roce::qp::state::QpState;

    use super::*;

    /// Every attribute comes back as it was given.
    #[test]
    fn attributes_survive_the_translation() {
        let mut attr = QpAttr::new(QpState::Rts);
        attr.cur_state = QpState::Rts;
        attr.access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        (attr.pkey_index, attr.port, attr.qkey) = (3, 2, 0x1234_5678);
        attr.av = AddressVector {
            dgid: Gid(::core::array::from_fn(|at| u8::try_from(at).unwrap())),
            sgid_index: 9,
            hop_limit: 8,
            traffic_class: 7,
            flow_label: 6,
            sl: 5,
            port: 2,
            ..AddressVector::to(Gid([0; 16]))
        };
        attr.path_mtu = PathMtu::B2048;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) = (31, 6, 5, 30);
        (attr.sq_psn, attr.rq_psn) = (Psn::new(0xff_fffe), Psn::new(1));
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 4);
        attr.dest_qpn = Qpn::new(0xab_cdef);
        attr.alt_av.dgid = Gid([7; 16]);
        (attr.alt_pkey_index, attr.alt_port, attr.alt_timeout) = (1, 1, 14);
        attr.path_mig_state = PathMigState::Rearm;
        let known = QpAttr::new(QpState::Reset);
        assert_eq!(from_raw(&raw_attr(&attr), &known), attr);
        let set = AttrMask::all() - AttrMask::CAP;
        let same = QpAttr { cur_state: QpState::Reset, ..attr };
        assert_eq!(merged(&known, &attr, set), same);
        assert_eq!(merged(&known, &attr, AttrMask::empty()), known);
    }
}
