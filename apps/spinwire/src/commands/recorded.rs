//! Run directories as commands name them.

use std::path::{Path, PathBuf};

use pmd_graph::app::{Exit, last_run, say};
use pmd_graph::run_dir::{Opened, ReadError};

/// The directory that was named, else that of the last run.
pub(crate) fn place(named: Option<&Path>) -> Result<PathBuf, Exit> {
    named.map(Path::to_owned).or_else(last_run).ok_or_else(|| {
        say("error: name a run directory: neither XDG_STATE_HOME nor HOME is set");
        Exit::Usage
    })
}

/// Opens a run directory.
pub(crate) fn open(path: &Path) -> Result<Opened, Exit> {
    Opened::read(path).map_err(|error| complain(&error))
}

/// Says what is wrong, and how the command ends.
pub(crate) fn complain(error: &ReadError) -> Exit {
    say(format_args!("error: {error}"));
    if error.is_absent() { Exit::Usage } else { Exit::Failed }
}
