//! One line in the log per attempt to move a queue pair, refused or not: from the log alone one can
//! see which step was skipped and which attribute was missing.

use std::fmt;

use pmd_roce::ids::Qpn;
use pmd_roce::qp::attr::{ModifyQpError, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};

/// An attempt.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) device: &'a str,
    pub(crate) transport: Transport,
    pub(crate) qpn: Qpn,
    /// The state before.
    pub(crate) from: QpState,
    pub(crate) attr: &'a QpAttr,
    pub(crate) mask: AttrMask,
}

impl Attempt<'_> {
    /// Writes the line. It costs nothing where nobody listens.
    pub(crate) fn log(&self, result: &Result<(), ModifyQpError>) {
        let Self { device, transport, qpn, from, attr, mask } = self;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { *from };
        let given = Given(attr, *mask);
        match result {
            Ok(()) => {
                tracing::debug!("{device}: {transport} {qpn} {from} -> {to}, {mask}: {given}");
            }
            Err(error) => {
                tracing::debug!(
                    "{device}: {transport} {qpn} {from} -> {to}, {mask}: {given}: refused: {error}"
                );
            }
        }
    }
}

/// Attributes as a mask picks them, by the names of `struct ibv_qp_attr`.
struct Given<'a>(&'a QpAttr, AttrMask);

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attr, mask) = self;
        let mut separator = "";
        let mut show = |bit: AttrMask, value: &dyn fmt::Display| {
            if !mask.contains(bit) {
                return Ok(());
            }
            for field in bit.fields() {
                write!(f, "{separator}{field}={value}")?;
            }
            separator = " ";
            Ok(())
        };
        show(AttrMask::STATE, &attr.state)?;
        show(AttrMask::CUR_STATE, &attr.cur_state)?;
        show(AttrMask::EN_SQD_ASYNC_NOTIFY, &attr.sqd_notify)?;
        show(AttrMask::ACCESS_FLAGS, &format_args!("{:#x}", attr.access.bits()))?;
        show(AttrMask::PKEY_INDEX, &attr.pkey_index)?;
        show(AttrMask::PORT, &attr.port)?;
        // Whoever knows a Q_Key can send; a log goes far.
        show(AttrMask::QKEY, &"(not shown)")?;
        let av = &attr.av;
        let via = if av.link.is_some() { " by shared memory" } else { "" };
        let path = format_args!(
            "{}{via} sgid_index={} hop_limit={} traffic_class={:#x}",
            av.dgid, av.sgid_index, av.hop_limit, av.traffic_class
        );
        show(AttrMask::AV, &path)?;
        show(AttrMask::PATH_MTU, &attr.path_mtu)?;
        show(AttrMask::DEST_QPN, &attr.dest_qpn)?;
        show(AttrMask::RQ_PSN, &attr.rq_psn)?;
        show(AttrMask::MAX_DEST_RD_ATOMIC, &attr.max_dest_rd_atomic)?;
        show(AttrMask::MIN_RNR_TIMER, &attr.min_rnr_timer)?;
        show(AttrMask::SQ_PSN, &attr.sq_psn)?;
        show(AttrMask::MAX_QP_RD_ATOMIC, &attr.max_rd_atomic)?;
        show(AttrMask::TIMEOUT, &attr.timeout)?;
        show(AttrMask::RETRY_CNT, &attr.retry_cnt)?;
        show(AttrMask::RNR_RETRY, &attr.rnr_retry)?;
        show(AttrMask::ALT_PATH, &attr.alt_av.dgid)?;
        show(AttrMask::PATH_MIG_STATE, &attr.path_mig_state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_mask_names_is_shown() {
        let attr = QpAttr { qkey: 0x1111, timeout: 14, ..QpAttr::new(QpState::Rts) };
        let shown = |mask| Given(&attr, mask).to_string();
        assert_eq!(shown(AttrMask::empty()), "");
        assert_eq!(shown(AttrMask::STATE | AttrMask::TIMEOUT), "qp_state=RTS timeout=14");
        assert_eq!(shown(AttrMask::QKEY), "qkey=(not shown)");
    }
}
