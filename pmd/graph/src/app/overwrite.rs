//! Captures and records that would destroy what the run reads.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::refusal::Refusal;
use crate::config::schema::Value;
use crate::plan::Plan;

/// The files that a pipeline reads: its config, what its nodes name as `path`, and the executable,
/// which the quickstart sends.
pub(super) fn inputs(config: Option<&Path>, plan: &Plan) -> Vec<PathBuf> {
    let paths = plan.nodes.iter().filter_map(|node| match node.settings.value("path") {
        Some(Value::Text(path)) => Some(PathBuf::from(path)),
        _ => None,
    });
    paths.chain(config.map(Path::to_owned)).chain(env::current_exe().ok()).collect()
}

/// Refuses a capture or a record that is one of `inputs`, by whatever name.
pub(super) fn refuse(what: &str, output: Option<&Path>, inputs: &[PathBuf]) -> Result<(), Refusal> {
    // A file that is not there is nobody's input; one that cannot be looked at is complained about where it is opened.
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let Some(output) = output else { return Ok(()) };
    let Some(existing) = identity(output) else { return Ok(()) };
    match inputs.iter().find(|input| identity(input) == Some(existing)) {
        Some(input) => Err(Refusal::usage(format!(
            "the {what} {} would replace {}, which this run reads: name another file",
            output.display(),
            input.display()
        ))),
        None => Ok(()),
    }
}
