//! `spinwire devices`: what there is to run on.

use anyhow::bail;

use crate::cli::{DevicesArgs, Exit};

/// Lists devices.
///
/// # Errors
/// Always: this build opens no device.
pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<Exit> {
    bail!(
        "this build opens no device, so there is nothing to list{}",
        if args.json { " as JSON" } else { "" }
    )
}
