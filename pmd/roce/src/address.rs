//! Addresses: checking an address vector, the flow it stands for, and address handles.

use crate::engine::EngineConfig;
use crate::error::{DestroyError, ResourceError};
use crate::ids::Gid;
use crate::port::Ports;
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

/// Checks everything that holds for connections and for datagrams, and looks up the source address.
pub(crate) fn check(av: &AddressVector, ports: &Ports) -> Result<Gid, AvFault> {
    let need = |holds: bool, field, value: u64, need| {
        if holds { Ok(()) } else { Err(AvFault::Value { field, value, need }) }
    };
    let is_global = "required on RoCE: set it to 1 and fill the GRH";
    need(av.is_global, "ah_attr.is_global", 0, is_global)?;
    let number = u64::from(av.port);
    let Some(port) = ports.get(av.port) else {
        let need = "must be a port of the device, counted from 1";
        return Err(AvFault::Value { field: "ah_attr.port_num", value: number, need });
    };
    need(av.sl <= 15, "ah_attr.sl", av.sl.into(), "a field of 4 bits")?;
    let flow_label = av.flow_label;
    need(flow_label < 1 << 20, "ah_attr.grh.flow_label", flow_label.into(), "a field of 20 bits")?;
    let hop_limit = "must be at least 1, or no router and no peer lets the packet pass";
    need(av.hop_limit > 0, "ah_attr.grh.hop_limit", 0, hop_limit)?;
    let len = port.gids.len();
    let Some(&src) = port.gids.get(usize::from(av.sgid_index)) else {
        return Err(AvFault::SgidIndex { index: av.sgid_index, len });
    };
    let vacant = "the entry is vacant: look up the index of the address again";
    need(src != Gid::default(), "ah_attr.grh.sgid_index", av.sgid_index.into(), vacant)?;
    need(av.dgid != Gid::default(), "ah_attr.grh.dgid", 0, "must name the peer's address")?;
    let family = "must be of the family of the source address, IPv4 or IPv6";
    let version = if av.dgid.is_ipv4() { 4 } else { 6 };
    need(av.dgid.is_ipv4() == src.is_ipv4(), "ah_attr.grh.dgid", version, family)?;
    Ok(src)
}

/// The flow toward a checked address vector, from `src`.
pub(crate) fn flow(av: &AddressVector, src: Gid, config: &EngineConfig, src_port: u16) -> Flow {
    Flow {
        src,
        dst: av.dgid,
        src_port: config.source_port.unwrap_or(src_port),
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
    }
}

/// An address handle: the vector, and the source address that its index meant when it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) av: AddressVector,
    pub(crate) src: Gid,
}

/// The address handles of an engine.
#[derive(Debug)]
pub(crate) struct AddressHandles(Slots<AddressHandle>);

impl AddressHandles {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Slots::new(capacity))
    }

    pub(crate) fn create(&mut self, av: &AddressVector, src: Gid) -> Result<AhId, ResourceError> {
        let handle = AddressHandle { av: *av, src };
        self.0.insert(handle).map(AhId).ok_or_else(|| ResourceError::TooMany(self.0.capacity()))
    }

    pub(crate) fn destroy(&mut self, ah: AhId) -> Result<(), DestroyError> {
        self.0.remove(ah.0).map(drop).ok_or(DestroyError::NotFound)
    }

    pub(crate) fn get(&self, ah: AhId) -> Option<&AddressHandle> {
        self.0.get(ah.0)
    }
}
