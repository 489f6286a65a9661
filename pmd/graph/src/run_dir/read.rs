//! A run directory as somebody else reads it: after the run, beside it, or after it was killed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pmd_observe::journal::{Line, VERSION};
use pmd_observe::report::Bytes;
use serde_json::Value;
use thiserror::Error;

use super::{JOURNAL, JOURNAL_OLDER, LAYOUT, MARK, Mark, REPORT, SERVER};
use crate::limits::{JOURNAL_BYTES_MAX, JOURNAL_LINE_BYTES_MAX, REPORT_BYTES_MAX};
use crate::regular;

/// Why a run directory cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Nothing is there.
    #[error("there is no run directory {0}")]
    NotThere(PathBuf),
    /// Something else is there.
    #[error("{0} is no run directory: neither run.json nor report.json is in it")]
    NotARun(PathBuf),
    /// A run, or nothing, that has not left its state.
    #[error(
        "no run has left its state in {0}: name the directory that `spinwire run --run-dir` was given"
    )]
    NoState(PathBuf),
    /// A file is not what was written.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It was written by a newer version of this program.
    #[error(
        "{path} has version {theirs}, and this program reads up to {ours}: use the newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        theirs: u32,
        /// The newest one that is known here.
        ours: u32,
    },
    /// The kernel does not give it.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ReadError {
    /// Whether there is no run at all, in contrast to one that cannot be read. Commands end with [`crate::app::Exit::Usage`]
    /// then, since another directory was meant, and else with [`crate::app::Exit::Failed`].
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::NotThere(_) | Self::NotARun(_) | Self::NoState(_))
    }

    fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }
}

/// What has become of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its process lives.
    Live,
    /// It left a report.
    Finished,
    /// Its process is gone, and there is no report.
    Killed,
}

impl Life {
    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Finished => "finished",
            Self::Killed => "killed",
        }
    }
}

/// A run directory.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Where it is, links followed.
    pub path: PathBuf,
    /// Whose run it is; none of a version that left no mark.
    pub mark: Option<Mark>,
    /// What has become of it.
    pub life: Life,
    /// `report.json`, once there is one.
    pub report: Option<Value>,
    /// The directories of its other processes.
    pub parts: Vec<PathBuf>,
}

impl Opened {
    /// Reads everything but the journal.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let path = match fs::canonicalize(path) {
            Ok(path) if path.is_dir() => path,
            Ok(path) => return Err(ReadError::NotARun(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ReadError::NotThere(path.to_owned()));
            }
            Err(source) => return Err(ReadError::Io { path: path.to_owned(), source }),
        };
        let mark =
            json(&path.join(MARK))?.map(|value| mark(&path.join(MARK), value)).transpose()?;
        // A process that ends writes its report first: asked in this order, no run is taken for killed.
        let lives = mark.as_ref().is_some_and(|mark| mark.process.is_alive());
        let report = json(&path.join(REPORT))?;
        let life = match (&report, lives, &mark) {
            (Some(report), ..) if report.is_object() => Life::Finished,
            (Some(_), ..) => return Err(ReadError::damaged(&path.join(REPORT), "it is no object")),
            (None, true, _) => Life::Live,
            (None, false, Some(_)) => Life::Killed,
            (None, false, None) => return Err(ReadError::NotARun(path)),
        };
        let parts = parts(&path);
        Ok(Self { path, mark, life, report, parts })
    }
}

fn mark(path: &Path, value: Value) -> Result<Mark, ReadError> {
    let theirs = value.get("run_dir").and_then(Value::as_u64).unwrap_or(0);
    let theirs = u32::try_from(theirs).unwrap_or(u32::MAX);
    if theirs > LAYOUT {
        return Err(ReadError::Newer { path: path.to_owned(), theirs, ours: LAYOUT });
    }
    serde_json::from_value(value).map_err(|error| ReadError::damaged(path, error.to_string()))
}

/// A file of JSON in a run directory; `None` where there is none.
///
/// # Errors
/// [`ReadError::Damaged`] for one that is no regular file, empty, longer than a run writes, or no JSON.
pub fn json(path: &Path) -> Result<Option<Value>, ReadError> {
    let bytes = match regular::read(path, REPORT_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(unread(path, error)),
    };
    if bytes.is_empty() {
        return Err(ReadError::damaged(path, "it is empty"));
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| ReadError::damaged(path, error.to_string()))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What the system refuses is told from what is no file of a run.
fn unread(path: &Path, error: io::Error) -> ReadError {
    match error.raw_os_error() {
        // A socket cannot even be opened.
        Some(code) if code != rustix::io::Errno::NXIO.raw_os_error() => {
            ReadError::Io { path: path.to_owned(), source: error }
        }
        Some(_) => ReadError::damaged(path, "it is no regular file"),
        None => ReadError::damaged(path, error.to_string()),
    }
}

/// The directories of other processes of the run, in their order.
fn parts(path: &Path) -> Vec<PathBuf> {
    let numbered = (0..).map(|number: u32| path.join(number.to_string()));
    let numbered = numbered.take_while(|part| part.join(MARK).exists());
    numbered.chain(Some(path.join(SERVER)).filter(|part| part.join(MARK).exists())).collect()
}

/// The files of the journal in a run directory, oldest first.
pub fn journal_files(dir: &Path) -> Vec<PathBuf> {
    let files = [JOURNAL_OLDER, JOURNAL].map(|name| dir.join(name));
    files.into_iter().filter(|path| path.exists()).collect()
}

/// The journal of a run directory, read as it grows.
#[derive(Debug)]
pub struct JournalFile {
    dir: PathBuf,
    /// The files still to be read, oldest first, with their inodes.
    files: Vec<(BufReader<File>, u64)>,
    /// The beginning of a line that is not whole yet.
    begun: Vec<u8>,
    damaged: u64,
}

impl JournalFile {
    /// Opens it; a directory without one has an empty journal.
    ///
    /// # Errors
    /// [`ReadError::Damaged`] for what is no file, or longer than a journal is; [`ReadError::Io`].
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        // The newer half first: if it becomes the older one meanwhile, it is not read twice.
        let newer = open(&dir.join(JOURNAL))?;
        let older = open(&dir.join(JOURNAL_OLDER))?;
        let older =
            older.filter(|(_, inode)| newer.as_ref().is_none_or(|(_, other)| other != inode));
        let files = older.into_iter().chain(newer).collect();
        Ok(Self { dir: dir.to_owned(), files, begun: Vec::new(), damaged: 0 })
    }

    /// Hands over every whole line that came since the last time. Lines that make no sense are counted and left out.
    ///
    /// # Errors
    /// [`ReadError::Newer`] for a journal of a newer version; [`ReadError::Damaged`] for what is none; [`ReadError::Io`].
    pub fn read(&mut self, mut each: impl FnMut(Line)) -> Result<(), ReadError> {
        loop {
            let Some((file, inode)) = self.files.first_mut() else {
                let Some(file) = open(&self.dir.join(JOURNAL))? else { return Ok(()) };
                self.files.push(file);
                continue;
            };
            let inode = *inode;
            let path = self.dir.join(JOURNAL);
            loop {
                let room = JOURNAL_LINE_BYTES_MAX.saturating_sub(self.begun.len() as u64);
                let read = io::Read::take(&mut *file, room).read_until(b'\n', &mut self.begun);
                let read = read.map_err(|source| ReadError::Io { path: path.clone(), source })?;
                let is_whole = self.begun.last() == Some(&b'\n');
                if !is_whole && read > 0 && (self.begun.len() as u64) < JOURNAL_LINE_BYTES_MAX {
                    continue;
                }
                if !is_whole && (self.begun.len() as u64) < JOURNAL_LINE_BYTES_MAX {
                    break;
                }
                match serde_json::from_slice(&self.begun) {
                    Ok(Line::Head { journal }) if journal > VERSION => {
                        return Err(ReadError::Newer { path, theirs: journal, ours: VERSION });
                    }
                    Ok(line) => each(line),
                    Err(_) => self.damaged += 1,
                }
                self.begun.clear();
            }
            // A file that was renamed gets no more lines, and a younger one follows.
            let is_last = self.files.len() == 1;
            let renamed = fs::metadata(&path).is_ok_and(|now| now.ino() != inode);
            if is_last && !renamed {
                return Ok(());
            }
            self.damaged += u64::from(!self.begun.is_empty());
            self.begun.clear();
            self.files.remove(0);
        }
    }

    /// Lines that made no sense so far; with the unfinished one at the end, where nobody will finish it.
    pub fn damaged(&self, is_over: bool) -> u64 {
        self.damaged + u64::from(is_over && !self.begun.is_empty())
    }
}

fn open(path: &Path) -> Result<Option<(BufReader<File>, u64)>, ReadError> {
    match regular::open(path) {
        Ok((_, file)) if file.len() > JOURNAL_BYTES_MAX => {
            let (len, most) = (Bytes(file.len()), Bytes(JOURNAL_BYTES_MAX));
            Err(ReadError::damaged(path, format!("it has {len}, and a journal {most} at most")))
        }
        Ok((file, metadata)) => Ok(Some((BufReader::new(file), metadata.ino()))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(unread(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use pmd_observe::journal::Record;

    use super::super::ProcessId;
    use super::*;

    /// A directory of its own, removed when dropped.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("spinwire-read-{name}-{}", std::process::id()));
            drop(fs::remove_dir_all(&path));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.join(name), text).unwrap();
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn refused(dir: &Dir) -> String {
        Opened::read(&dir.0).unwrap_err().to_string()
    }

    #[test]
    fn live_finished_killed_and_none_are_told_apart() {
        let dir = Dir::new("life");
        assert!(refused(&dir).contains("is no run directory"));
        assert!(Opened::read(&dir.0.join("none")).unwrap_err().is_absent());
        let mut mark = Mark::of_this_process("run", &[]);
        dir.write(MARK, &serde_json::to_string(&mark).unwrap());
        assert_eq!(Opened::read(&dir.0).unwrap().life, Life::Live);
        mark.process = ProcessId { started: 1, ..mark.process };
        dir.write(MARK, &serde_json::to_string(&mark).unwrap());
        assert_eq!(Opened::read(&dir.0).unwrap().life, Life::Killed);
        dir.write(REPORT, "{\"ok\":true}");
        let opened = Opened::read(&dir.0).unwrap();
        assert_eq!((opened.life, opened.mark.unwrap()), (Life::Finished, mark));
        assert_eq!(opened.report.unwrap()["ok"], true);
    }

    #[test]
    fn files_that_are_not_what_was_written_are_named() {
        let dir = Dir::new("damaged");
        for (text, complaint) in [
            ("", "is empty"),
            ("{\"ok\": tr", "is damaged: EOF while parsing"),
            ("[1]", "it is no object"),
        ] {
            dir.write(REPORT, text);
            let refused = refused(&dir);
            assert!(refused.contains("report.json") && refused.contains(complaint), "{refused}");
        }
        dir.write(REPORT, "{}");
        dir.write(MARK, "{\"run_dir\": 2}");
        assert!(refused(&dir).contains("run.json has version 2, and this program reads up to 1"));
    }

    /// Whatever lies there under the name of a file is refused by name, at once and in little memory.
    #[test]
    fn what_is_no_file_of_a_run_is_named() {
        let dir = Dir::new("foreign");
        let mark = serde_json::to_string(&Mark::of_this_process("run", &[])).unwrap();
        let put = |name: &str, what: &str| {
            let path = dir.0.join(name);
            drop(fs::remove_file(&path));
            match what {
                "fifo" => {
                    let mode = rustix::fs::Mode::RWXU;
                    let kind = rustix::fs::FileType::Fifo;
                    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
                }
                "socket" => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
                "zero" => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
                _ => File::create(&path).unwrap().set_len(1 << 40).unwrap(),
            }
        };
        for what in ["fifo", "socket", "zero", "sparse"] {
            let reason = if what == "sparse" { "it has 1 TiB" } else { "it is no regular file" };
            for name in [MARK, REPORT, JOURNAL, JOURNAL_OLDER] {
                for own in [MARK, REPORT, JOURNAL, JOURNAL_OLDER] {
                    drop(fs::remove_file(dir.0.join(own)));
                }
                dir.write(MARK, &mark);
                put(name, what);
                let journal = || JournalFile::open(&dir.0).map(drop);
                let read = Opened::read(&dir.0).map(drop).and_then(|()| journal());
                let error = read.unwrap_err();
                assert!(matches!(error, ReadError::Damaged { .. }), "{name} {what}: {error}");
                let error = error.to_string();
                assert!(error.contains(name) && error.contains(reason), "{name} {what}: {error}");
            }
        }
    }

    #[test]
    fn a_journal_is_followed_over_its_halves() {
        let dir = Dir::new("journal");
        let line = |number| {
            let record = Record { at_us: number, ..Record::default() };
            serde_json::to_string(&Line::Record(Box::new(record))).unwrap() + "\n"
        };
        let mut journal = JournalFile::open(&dir.0).unwrap();
        let mut read = || {
            let mut seen = Vec::new();
            journal
                .read(|line| {
                    if let Line::Record(record) = line {
                        seen.push(record.at_us);
                    }
                })
                .unwrap();
            (seen, journal.damaged(false), journal.damaged(true))
        };
        assert_eq!(read(), (vec![], 0, 0), "a journal that is not there is empty");
        dir.write(JOURNAL, &format!("{{\"journal\":1}}\n{}{}", line(1), &line(2)[..9]));
        assert_eq!(read(), (vec![1], 0, 1));
        let append = |text: &str| {
            let mut file = File::options().append(true).open(dir.0.join(JOURNAL)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        append(&line(2)[9..]);
        append("no JSON\n");
        assert_eq!(read(), (vec![2], 1, 1));
        append(&line(3));
        fs::rename(dir.0.join(JOURNAL), dir.0.join(JOURNAL_OLDER)).unwrap();
        dir.write(JOURNAL, &line(4));
        assert_eq!(read(), (vec![3, 4], 1, 1));
        let mut late = Vec::new();
        JournalFile::open(&dir.0)
            .unwrap()
            .read(|line| {
                if let Line::Record(record) = line {
                    late.push(record.at_us);
                }
            })
            .unwrap();
        assert_eq!(late, [1, 2, 3, 4]);
        dir.write(JOURNAL, "{\"journal\":2}\n");
        let newer = JournalFile::open(&dir.0).unwrap().read(|_| {}).unwrap_err().to_string();
        assert!(newer.contains("has version 2"), "{newer}");
    }
}
