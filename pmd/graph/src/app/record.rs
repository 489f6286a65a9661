//! Where the inputs of a run are kept.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use pmd_observe::Verdict;
use pmd_verbs::record::limits::RECORD_BYTES;
use pmd_verbs::record::{RecordError, Recording};

use crate::config::units::parse_size;

/// What is asked of a run that is to be replayed.
#[derive(Args, Clone, Debug, Default)]
pub struct RecordTo {
    /// Keep every input of every engine in this file, for `lab replay`
    #[arg(long, value_name = "F")]
    pub record: Option<PathBuf>,
    /// Cut the record where it becomes longer, and go on without it [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "record")]
    pub record_limit: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map(|size| size.get()).map_err(|error| error.reason)
}

impl RecordTo {
    /// The same for one process of several.
    #[must_use]
    pub fn part(&self, index: usize) -> Self {
        let record = self.record.as_ref().map(|record| of_part(record, index));
        Self { record, record_limit: self.record_limit }
    }

    /// Begins the record, if one is wanted.
    ///
    /// # Errors
    /// [`RecordError::Create`].
    pub fn begin(&self) -> Result<Option<Record>, RecordError> {
        let Some(path) = &self.record else { return Ok(None) };
        let recording = Recording::create(path, self.record_limit.unwrap_or(RECORD_BYTES))?;
        let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
        recording.note(&format!("command: {}", words.collect::<Vec<_>>().join(" ")));
        Ok(Some(Record { recording }))
    }
}

/// A record that was begun.
#[derive(Debug)]
pub struct Record {
    recording: Arc<Recording>,
}

impl Record {
    /// What devices are to be opened with.
    pub const fn recording(&self) -> &Arc<Recording> {
        &self.recording
    }

    /// Adds how the run ended, and ends the record; call it when no lcore is left. Whatever became of the record,
    /// the run is what it is.
    pub fn finish(&self, verdict: &Verdict) {
        self.recording.note(&verdict.to_string());
        let path = self.recording.path().display();
        match self.recording.finish() {
            Ok(bytes) => tracing::info!("{bytes} bytes of inputs in {path}"),
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// The file of one process, where all were given the same one: `x.pcapng` of the second is `x-1.pcapng`.
pub fn of_part(path: &Path, index: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{index}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_file_of_its_own() {
        assert_eq!(of_part(Path::new("captures/x.pcapng"), 1), Path::new("captures/x-1.pcapng"));
        assert_eq!(of_part(Path::new("x"), 0), Path::new("x-0"));
        let to = RecordTo { record: Some("x.rec".into()), record_limit: Some(7) }.part(2);
        assert_eq!((to.record, to.record_limit), (Some("x-2.rec".into()), Some(7)));
    }
}
