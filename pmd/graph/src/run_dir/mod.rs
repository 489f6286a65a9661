//! The directory that a run leaves behind, and that tells of it while it lives.
//!
//! ```text
//! $XDG_STATE_HOME/spinwire/last            a link to the newest run
//! $XDG_STATE_HOME/spinwire/runs/STAMP-PID  a directory per run; the oldest are removed
//!     run.json         whose it is: there from the first moment on, with the version of all of this
//!     journal.jsonl    the transition journal, appended to while the run lives; journal.1.jsonl its older half
//!     status.json      the state of nodes and queue pairs, replaced every second
//!     plan.json        what ran
//!     report.json      what came of it, evidence of a failure included; missing: the run lives, or was killed
//!     0/, 1/, …        the processes of a run of several configs, each such a directory
//!     server/          the second process of a measurement
//! ```
//!
//! Whole files are replaced in one step, so that a reader sees the old one or the new one.

mod journal;
mod mark;
mod place;
mod read;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

pub use journal::JournalKeeper;
pub use mark::{LAYOUT, Mark, ProcessId};
pub use place::last;
pub use read::{JournalFile, Life, Opened, ReadError, journal_files, json};

/// Whose run it is.
pub const MARK: &str = "run.json";
/// The transition journal, or its newer half.
pub const JOURNAL: &str = "journal.jsonl";
/// Its older half.
pub const JOURNAL_OLDER: &str = "journal.1.jsonl";
/// The state of nodes and queue pairs, once a second.
pub const STATUS: &str = pmd_observe::status::FILE;
/// What ran.
pub const PLAN: &str = "plan.json";
/// What came of it.
pub const REPORT: &str = "report.json";
/// The directory of a measurement's second process.
pub const SERVER: &str = "server";

/// Everything that a run may have left.
const FILES: [&str; 6] = [MARK, JOURNAL, JOURNAL_OLDER, STATUS, PLAN, REPORT];

/// What helps where a run directory takes no files.
const ELSEWHERE: &str = "name one where this user may write";

/// A directory of this run.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Whether somebody asked for it, and counts on what is in it.
    asked: bool,
}

impl RunDir {
    /// The directory that was asked for; else one of its own in the usual place, which `last` then leads to, if that can
    /// be had. Files of an earlier run in it go.
    ///
    /// # Errors
    /// When one was asked for that cannot be made, takes no files, or belongs to a run that lives.
    pub fn open(asked: Option<&Path>, mark: &Mark) -> anyhow::Result<Option<Self>> {
        if let Some(path) = asked {
            return Self::at(path, true, mark).map(Some);
        }
        match place::fresh().and_then(|path| Self::at(&path, false, mark)) {
            Ok(run_dir) => {
                place::lead_to(&run_dir.path);
                Ok(Some(run_dir))
            }
            Err(error) => {
                tracing::warn!("no run directory: {error:#}");
                Ok(None)
            }
        }
    }

    /// A directory at a known place: `asked` if a report that it does not take is a failure of the run.
    ///
    /// # Errors
    /// When it cannot be made, takes no files, or belongs to a run that lives.
    pub fn at(path: &Path, asked: bool, mark: &Mark) -> anyhow::Result<Self> {
        if fs::metadata(path).is_ok_and(|found| !found.is_dir()) {
            bail!(
                "the run directory {} is a file: name a directory, which is made if it is not there",
                path.display()
            );
        }
        fs::create_dir_all(path).with_context(|| {
            format!("cannot make the run directory {}: {ELSEWHERE}", path.display())
        })?;
        if let Some(owner) = Mark::read(path).filter(|owner| owner.process.is_alive())
            && owner.process != mark.process
        {
            bail!(
                "the run directory {} belongs to process {}, which lives: name another one",
                path.display(),
                owner.process.pid
            );
        }
        place::sweep(path);
        let run_dir = Self { path: path.to_owned(), asked };
        let text = serde_json::to_string(mark)?;
        let marked = run_dir.replace(MARK, &text);
        marked.with_context(|| {
            format!("cannot write to the run directory {}: {ELSEWHERE}", path.display())
        })?;
        Ok(run_dir)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether somebody asked for it.
    pub const fn is_asked(&self) -> bool {
        self.asked
    }

    /// Writes a file. Readers see the old one or the new one, whole.
    ///
    /// # Errors
    /// When the directory does not take it; nothing half-written stays.
    pub fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let draft = self.path.join(format!(".{name}.{}", std::process::id()));
        let replaced = anew(&draft)
            .and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()))
            .and_then(|()| fs::rename(&draft, self.path.join(name)));
        replaced.inspect_err(|_| {
            // There is none where it could not even be begun.
            drop(fs::remove_file(&draft));
        })
    }
}

/// A file of this run in place of whatever has its name. A directory may be open to others: what a link in it leads to is
/// never written to.
///
/// # Errors
/// When the old one cannot be removed, or somebody makes another one at this moment.
fn anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("spinwire-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        path
    }

    #[test]
    fn a_directory_begins_anew_but_not_under_a_run_that_lives() {
        let path = temporary("run-dir");
        let mark = Mark::of_this_process("run", &[]);
        let run_dir = RunDir::at(&path, true, &mark).unwrap();
        run_dir.replace(REPORT, "{}").unwrap();
        fs::create_dir(path.join("0")).unwrap();
        fs::copy(path.join(MARK), path.join("0").join(MARK)).unwrap();
        fs::write(path.join("0").join(JOURNAL), "").unwrap();
        fs::create_dir(path.join("1")).unwrap();
        fs::write(path.join("1").join(REPORT), "mine").unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        RunDir::at(&path, true, &mark).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["1", "notes.txt", "run.json"], "what is not ours stays");
        assert!(path.join("1").join(REPORT).exists());
        // PID 1 lives, and is not this process.
        let mut other = Mark::of_this_process("run", &[]);
        other.process = ProcessId::of(1).unwrap();
        fs::write(path.join(MARK), serde_json::to_string(&other).unwrap()).unwrap();
        let refused = RunDir::at(&path, true, &mark).unwrap_err().to_string();
        assert!(refused.contains("belongs to process 1, which lives"), "{refused}");
        other.process.started += 1;
        fs::write(path.join(MARK), serde_json::to_string(&other).unwrap()).unwrap();
        RunDir::at(&path, true, &mark).unwrap();
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_a_link_leads_to_stays() {
        let path = temporary("run-dir-links");
        fs::create_dir_all(&path).unwrap();
        let precious = path.join("precious");
        fs::write(&precious, "mine").unwrap();
        let draft = format!(".{REPORT}.{}", std::process::id());
        for name in [JOURNAL, REPORT, &draft] {
            std::os::unix::fs::symlink(&precious, path.join(name)).unwrap();
        }
        let run_dir = RunDir::at(&path, true, &Mark::of_this_process("run", &[])).unwrap();
        run_dir.replace(REPORT, "{}").unwrap();
        anew(&path.join(JOURNAL)).unwrap().write_all(b"a line").unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
        assert_eq!(fs::read_to_string(path.join(REPORT)).unwrap(), "{}\n");
        assert_eq!(fs::read_to_string(path.join(JOURNAL)).unwrap(), "a line");
        fs::remove_dir_all(&path).unwrap();
    }
}
