//! Addresses: checking an address vector, the flow it stands for, and address handles.

use crate::engine::EngineConfig;
use crate::error::{DestroyError, ResourceError};
use crate::ids::Gid;
use crate::qp::attr::{AddressVector, ModifyQpError};
use crate::sink::Flow;
use crate::slots::Slots;
use crate::work::AhId;

/// What is wrong with an address vector.
pub(crate) enum AvFault {
    Value { field: &'static str, value: u64, need: &'static str },
    SgidIndex { index: u8, len: usize },
}

impl From<AvFault> for ModifyQpError {
    fn from(fault: AvFault) -> Self {
        match fault {
            AvFault::Value { field, value, need } => Self::Value { field, value, need },
            AvFault::SgidIndex { index, len } => Self::SgidIndex { index, len },
        }
    }
}

impl From<AvFault> for ResourceError {
    fn from(fault: AvFault) -> Self {
        match fault {
            AvFault::Value { field, value, need } => Self::Value { field, value, need },
            AvFault::SgidIndex { index, len } => Self::SgidIndex { index, len },
        }
    }
}

/// Checks everything that holds for connections and for datagrams.
pub(crate) fn check(av: &AddressVector, config: &EngineConfig) -> Result<(), AvFault> {
    let need = |holds: bool, field, value: u64, need| {
        if holds { Ok(()) } else { Err(AvFault::Value { field, value, need }) }
    };
    let is_global = "required on RoCE: set it to 1 and fill the GRH";
    need(av.is_global, "ah_attr.is_global", 0, is_global)?;
    need(av.port == 1, "ah_attr.port_num", av.port.into(), "the device has one port, number 1")?;
    need(av.sl <= 15, "ah_attr.sl", av.sl.into(), "a field of 4 bits")?;
    let flow_label = av.flow_label;
    need(flow_label < 1 << 20, "ah_attr.grh.flow_label", flow_label.into(), "a field of 20 bits")?;
    let hop_limit = "must be at least 1, or no router and no peer lets the packet pass";
    need(av.hop_limit > 0, "ah_attr.grh.hop_limit", 0, hop_limit)?;
    let len = config.gids.len();
    let Some(sgid) = config.gids.get(usize::from(av.sgid_index)) else {
        return Err(AvFault::SgidIndex { index: av.sgid_index, len });
    };
    need(av.dgid != Gid::default(), "ah_attr.grh.dgid", 0, "must name the peer's address")?;
    let family = "must be of the family of the source address, IPv4 or IPv6";
    let version = if av.dgid.is_ipv4() { 4 } else { 6 };
    need(av.dgid.is_ipv4() == sgid.is_ipv4(), "ah_attr.grh.dgid", version, family)
}

/// The flow toward a checked address vector.
pub(crate) fn flow(av: &AddressVector, config: &EngineConfig, src_port: u16) -> Flow {
    Flow {
        src: config.gids[usize::from(av.sgid_index)],
        dst: av.dgid,
        src_port: config.source_port.unwrap_or(src_port),
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
    }
}

/// The address handles of an engine.
#[derive(Debug)]
pub(crate) struct AddressHandles(Slots<AddressVector>);

impl AddressHandles {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Slots::new(capacity))
    }

    pub(crate) fn create(&mut self, av: &AddressVector) -> Result<AhId, ResourceError> {
        self.0.insert(*av).map(AhId).ok_or_else(|| ResourceError::TooMany(self.0.capacity()))
    }

    pub(crate) fn destroy(&mut self, ah: AhId) -> Result<(), DestroyError> {
        self.0.remove(ah.0).map(drop).ok_or(DestroyError::NotFound)
    }

    pub(crate) fn get(&self, ah: AhId) -> Option<&AddressVector> {
        self.0.get(ah.0)
    }
}
