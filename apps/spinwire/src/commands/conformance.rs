//! `spinwire conformance`: a device against the specification.

use anyhow::bail;

use crate::cli::{ConformanceArgs, Exit};

/// Checks a device.
///
/// # Errors
/// Always: this build opens no device.
pub(crate) fn run(args: &ConformanceArgs) -> anyhow::Result<Exit> {
    tracing::debug!(only = ?args.only, json = args.json, "conformance");
    bail!("this build opens no device, so `{}` cannot be checked", args.device)
}
