//! The software NIC of `pmd-verbs` as a kind of device.

use std::sync::Arc;

use pmd_verbs::{DeviceConfig, OpenError, WireChoice};

use super::open::Open;
use super::{Device, DeviceError, DeviceKind, DeviceRequest};
use crate::config::keys;
use crate::registry::DeviceSchema;

/// The kind `soft`.
#[derive(Debug)]
pub struct Soft {
    schema: DeviceSchema,
}

impl Soft {
    /// The kind.
    pub fn new() -> Self {
        Self { schema: keys::soft() }
    }
}

impl Default for Soft {
    fn default() -> Self {
        Self::new()
    }
}

impl DeviceKind for Soft {
    fn schema(&self) -> &DeviceSchema {
        &self.schema
    }

    fn open(&self, request: &DeviceRequest<'_>) -> Result<Arc<dyn Device>, DeviceError> {
        let settings = request.settings;
        let config = DeviceConfig {
            address: settings.address_opt("address"),
            gid_index: settings.count_opt("gid_index").and_then(|index| u32::try_from(index).ok()),
            wire: match settings.text("wire") {
                "shm" => WireChoice::Shm,
                "udp" => WireChoice::Udp,
                _ => WireChoice::Auto,
            },
            one_copy: settings.flag("one_copy"),
            ..request.config()
        };
        let device = pmd_verbs::Device::open(&config).map_err(|error| match error {
            OpenError::Address { .. }
            | OpenError::Gid { .. }
            | OpenError::Memory { .. }
            | OpenError::SharedMemory { .. } => DeviceError::Unfit(error.to_string()),
            OpenError::NoPackets(_) => DeviceError::Contradiction(error.to_string()),
            error => DeviceError::Refused(error.to_string()),
        })?;
        let (name, source) = (request.name, device.source());
        tracing::info!("device `{name}`: {source}: {}", device.source_reason());
        Ok(Arc::new(Open { device }))
    }
}
