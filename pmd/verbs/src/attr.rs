//! What a device and its port can do, as `ibv_query_device(3)` and `ibv_query_port(3)` tell it.

use pmd_roce::ids::PathMtu;
use pmd_roce::limits::{MAX_INLINE, MAX_QP_WR, MAX_QPS, MAX_RD_ATOMIC, MAX_SGE, MAX_SRQ_WR};
pub use pmd_roce::port::PortState;

use crate::cq::MAX_CQE;
use crate::device::{Device, MAX_AHS, MAX_SRQS};
use crate::gid::{GidEntry, GidTable, RoceVersion};

/// Capabilities and limits of a device; counts are per lcore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests in one send or receive queue.
    pub max_qp_wr: u32,
    /// Elements of one request.
    pub max_sge: u32,
    /// Bytes that a send request can carry inline.
    pub max_inline_data: u32,
    /// Completions in one completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests in one shared receive queue.
    pub max_srq_wr: u32,
    /// Address handles.
    pub max_ah: u32,
    /// READs and atomics outstanding per queue pair, in either role.
    pub max_qp_rd_atom: u8,
    /// Whether a queue pair can have an alternate path to migrate to (`IBV_DEVICE_AUTO_PATH_MIG`).
    pub auto_path_mig: bool,
}

/// The one port of an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// What it is doing.
    pub state: PortState,
    /// The largest path MTU that its wire carries.
    pub active_mtu: PathMtu,
    /// Its addresses.
    pub gids: GidTable,
}

impl Device {
    /// Capabilities and limits, as `ibv_query_device(3)`.
    pub fn attr(&self) -> DeviceAttr {
        if let Some(port) = self.nic() {
            return port.attr;
        }
        #[expect(clippy::cast_possible_truncation, reason = "tables of a few thousand entries")]
        let count = |entries: usize| entries as u32;
        DeviceAttr {
            max_qp: count(MAX_QPS - 1),
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_inline_data: MAX_INLINE,
            max_cqe: MAX_CQE,
            max_srq: count(MAX_SRQS),
            max_srq_wr: MAX_SRQ_WR,
            max_ah: count(MAX_AHS),
            max_qp_rd_atom: MAX_RD_ATOMIC,
            auto_path_mig: self.soft().is_some_and(|port| port.auto_path_mig),
        }
    }

    /// State, MTU and addresses of its port, as `ibv_query_port(3)`.
    pub fn port(&self) -> PortAttr {
        if let Some(port) = self.nic() {
            return port.query().unwrap_or_else(|error| {
                tracing::warn!("{}: {error}", self.name());
                let (state, gids) = (PortState::Down, GidTable::default());
                PortAttr { state, active_mtu: self.mtu(), gids }
            });
        }
        let entry = GidEntry {
            index: 0,
            gid: self.gid(),
            version: RoceVersion::V2,
            netdev: self.netdev().map(str::to_owned),
        };
        PortAttr {
            // A device is open while its wire is.
            state: PortState::Active,
            active_mtu: self.mtu(),
            gids: GidTable { len: 1, entries: vec![entry] },
        }
    }
}
