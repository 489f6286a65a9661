//! Devices of rdma-core as a kind of device: real NICs, and the kernel's own RoCE.

use std::sync::Arc;

use pmd_verbs::{DeviceConfig, NicChoice, OpenError};

use super::open::Open;
use super::{Device, DeviceError, DeviceKind, DeviceRequest};
use crate::config::keys;
use crate::registry::DeviceSchema;

/// The kind `verbs`.
#[derive(Debug)]
pub struct Verbs {
    schema: DeviceSchema,
}

impl Verbs {
    /// The kind.
    pub fn new() -> Self {
        Self { schema: keys::verbs() }
    }
}

impl Default for Verbs {
    fn default() -> Self {
        Self::new()
    }
}

impl DeviceKind for Verbs {
    fn schema(&self) -> &DeviceSchema {
        &self.schema
    }

    fn open(&self, request: &DeviceRequest<'_>) -> Result<Arc<dyn Device>, DeviceError> {
        let settings = request.settings;
        let nic = NicChoice {
            name: settings.text_opt("name").map(str::to_owned),
            port: settings.count_opt("port").and_then(|port| u8::try_from(port).ok()),
            gid_index: settings.count_opt("gid_index").and_then(|index| u32::try_from(index).ok()),
        };
        let config = DeviceConfig { nic: Some(nic), ..request.config() };
        let device = pmd_verbs::Device::open(&config).map_err(|error| match error {
            OpenError::Nic { .. } => DeviceError::Unfit(error.to_string()),
            OpenError::NotOnNic { .. } => DeviceError::Contradiction(error.to_string()),
            error => DeviceError::Refused(error.to_string()),
        })?;
        let (name, source) = (request.name, device.source());
        tracing::info!("device `{name}`: {source}: {}", device.source_reason());
        Ok(Arc::new(Open { device }))
    }
}
