//! One line in the log per attempt to move a queue pair, refused or not: from the log alone one can
//! see which step was skipped and which attribute was missing.

use std::collections::BTreeMap;
use std::fmt;

use pmd_observe::journal::{Attr, By};
use pmd_roce::ids::Qpn;
use pmd_roce::qp::attr::{ModifyQpError, QpAttr};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use tracing::level_filters::LevelFilter;

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
    pub(crate) by: By,
}

impl Attempt<'_> {
    /// The state it asks for.
    pub(crate) const fn to(&self) -> QpState {
        if self.mask.contains(AttrMask::STATE) { self.attr.state } else { self.from }
    }

    /// Writes the line. It costs nothing where nobody listens.
    #[inline]
    pub(crate) fn log(&self, result: &Result<(), ModifyQpError>) {
        if LevelFilter::current() >= LevelFilter::DEBUG {
            self.write(result);
        }
    }

    #[cold]
    fn write(&self, result: &Result<(), ModifyQpError>) {
        let Self { device, transport, qpn, from, attr, mask, .. } = self;
        let to = self.to();
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
pub(crate) fn attributes(attr: &QpAttr, mask: AttrMask) -> BTreeMap<String, Attr> {
    let mut attributes = BTreeMap::new();
    each(attr, mask, &mut |name, value| {
        let value = match value {
            Shown::Number(number) | Shown::Hex(number) | Shown::Hex24(number) => {
                Attr::Number(number)
            }
            Shown::Text(text) => Attr::Text(text.to_string()),
        };
        attributes.insert(name.to_owned(), value);
    });
    attributes
}

/// How an attribute is shown.
enum Shown<'a> {
    Number(u64),
    Hex(u64),
    /// A queue pair or packet number.
    Hex24(u64),
    Text(&'a dyn fmt::Display),
}

/// Shows every attribute that the mask names.
fn each(attr: &QpAttr, mask: AttrMask, show: &mut dyn FnMut(&'static str, Shown<'_>)) {
    let mut show = |bit: AttrMask, value: Shown<'_>| {
        if let (true, Some(field)) = (mask.contains(bit), bit.fields().next()) {
            show(field, value);
        }
    };
    let number = |value: u32| Shown::Number(value.into());
    let hex24 = |value: u32| Shown::Hex24(value.into());
    show(AttrMask::STATE, Shown::Text(&attr.state));
    show(AttrMask::CUR_STATE, Shown::Text(&attr.cur_state));
    show(AttrMask::EN_SQD_ASYNC_NOTIFY, Shown::Text(&attr.sqd_notify));
    show(AttrMask::ACCESS_FLAGS, Shown::Hex(attr.access.bits().into()));
    show(AttrMask::PKEY_INDEX, number(attr.pkey_index.into()));
    show(AttrMask::PORT, number(attr.port.into()));
    // Whoever knows a Q_Key can send; a log goes far.
    show(AttrMask::QKEY, Shown::Text(&"(not shown)"));
    let av = &attr.av;
    let via = if av.link.is_some() { " by shared memory" } else { "" };
    let path = format_args!(
        "{}{via} sgid_index={} hop_limit={} traffic_class={:#x}",
        av.dgid, av.sgid_index, av.hop_limit, av.traffic_class
    );
    show(AttrMask::AV, Shown::Text(&path));
    show(AttrMask::PATH_MTU, number(attr.path_mtu.bytes_u32()));
    show(AttrMask::DEST_QPN, hex24(attr.dest_qpn.value()));
    show(AttrMask::RQ_PSN, hex24(attr.rq_psn.value()));
    show(AttrMask::MAX_DEST_RD_ATOMIC, number(attr.max_dest_rd_atomic.into()));
    show(AttrMask::MIN_RNR_TIMER, number(attr.min_rnr_timer.into()));
    show(AttrMask::SQ_PSN, hex24(attr.sq_psn.value()));
    show(AttrMask::MAX_QP_RD_ATOMIC, number(attr.max_rd_atomic.into()));
    show(AttrMask::TIMEOUT, number(attr.timeout.into()));
    show(AttrMask::RETRY_CNT, number(attr.retry_cnt.into()));
    show(AttrMask::RNR_RETRY, number(attr.rnr_retry.into()));
    show(AttrMask::ALT_PATH, Shown::Text(&attr.alt_av.dgid));
    show(AttrMask::PATH_MIG_STATE, Shown::Text(&attr.path_mig_state));
}

/// The same in one line.
struct Given<'a>(&'a QpAttr, AttrMask);

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attr, mask) = self;
        let mut written = Ok(());
        let mut separator = "";
        each(attr, *mask, &mut |name, value| {
            written = written.and_then(|()| {
                write!(f, "{separator}{name}=")?;
                match value {
                    Shown::Number(number) => write!(f, "{number}"),
                    Shown::Hex(number) => write!(f, "{number:#x}"),
                    Shown::Hex24(number) => write!(f, "{number:#08x}"),
                    Shown::Text(text) => write!(f, "{text}"),
                }
            });
            separator = " ";
        });
        written
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
