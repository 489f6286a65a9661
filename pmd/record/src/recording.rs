//! A record under construction, shared by the engines that write to it.

use core::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::format::{Ending, Kind, PART_HEAD, PartHead};
use crate::limits::{MAX_ENGINES, MAX_NOTES, MAX_PART, MAX_TEXT};

/// A record that engines write to. What cannot be written ends it, never the run.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    limit: u64,
    /// Read for every input, so that a record that was cut costs next to nothing.
    stopped: AtomicBool,
    output: Mutex<Output>,
}

struct Output {
    place: Place,
    bytes: u64,
    notes: usize,
    engines: usize,
    /// Engines that have not ended.
    open: usize,
    ending: Ending,
}

enum Place {
    File(File),
    Memory(Vec<u8>),
}

impl Place {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(bytes),
            Self::Memory(all) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    fn begin_with(&mut self, head: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all_at(head, 0),
            Self::Memory(all) => {
                all[..head.len()].copy_from_slice(head);
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, engines, ending, .. } = self;
        f.debug_struct("Output")
            .field("bytes", bytes)
            .field("engines", engines)
            .field("ending", ending)
            .finish_non_exhaustive()
    }
}

/// Why there is no record, or only the beginning of one.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RecordError {
    /// It could not be begun.
    #[error("cannot create the record {}: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// It was cut; what came before is in the file.
    #[error("the record {} was cut after {bytes} bytes, and the run went on: {reason}", path.display())]
    Cut {
        /// The file.
        path: PathBuf,
        /// What it holds.
        bytes: u64,
        /// The reason.
        reason: String,
    },
}

impl Recording {
    /// Creates the file, or replaces it. `limit` is the number of bytes after which it is cut.
    ///
    /// # Errors
    /// [`RecordError::Create`].
    pub fn create(path: &Path, limit: u64) -> Result<Arc<Self>, RecordError> {
        let begin = || {
            // Of what is there, only a file is replaced: to open a FIFO would wait for its reader.
            let is_other = |kind: fs::FileType| !kind.is_file() && !kind.is_char_device();
            if fs::metadata(path).is_ok_and(|found| is_other(found.file_type())) {
                return Err(io::Error::other("it exists and is no regular file: name another"));
            }
            let mut file = File::create(path)?;
            file.write_all(&Ending::Open.head())?;
            Ok(file)
        };
        match begin() {
            Ok(file) => Ok(Self::new(path, Place::File(file), limit)),
            Err(source) => {
                Err(RecordError::Create { path: path.to_owned(), source: Arc::new(source) })
            }
        }
    }

    /// A record in memory, for tests; see [`Self::bytes`].
    pub fn in_memory(limit: u64) -> Arc<Self> {
        let head = Ending::Open.head().to_vec();
        Self::new(Path::new("in memory"), Place::Memory(head), limit)
    }

    fn new(path: &Path, place: Place, limit: u64) -> Arc<Self> {
        let bytes = Ending::Open.head().len() as u64;
        let ending = Ending::Open;
        let output = Output { place, bytes, notes: 0, engines: 0, open: 0, ending };
        let (path, stopped) = (path.to_owned(), AtomicBool::new(false));
        Arc::new(Self { path, limit, stopped, output: Mutex::new(output) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of a record in memory so far; none of a file.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.lock().place {
            Place::File(_) => Vec::new(),
            Place::Memory(bytes) => bytes.clone(),
        }
    }

    /// Adds words about the run, for who reads the record: how it was called, how it ended.
    pub fn note(&self, text: &str) {
        let mut len = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let mut output = self.lock();
        if output.notes < MAX_NOTES {
            output.notes += 1;
            self.append(&mut output, Kind::Note, 0, &text.as_bytes()[..len]);
        }
    }

    /// Ends the record; call it when all engines are gone, each of which leaves what it has not written yet
    /// when it is dropped. Returns how many bytes there are.
    ///
    /// # Errors
    /// [`RecordError::Cut`].
    pub fn finish(&self) -> Result<u64, RecordError> {
        let mut output = self.lock();
        if output.ending == Ending::Open {
            match output.open {
                0 => self.end(&mut output, Ending::Complete),
                engines => {
                    self.end(&mut output, Ending::Cut(format!("{engines} engines still ran")));
                }
            }
        }
        match &output.ending {
            Ending::Cut(reason) => Err(RecordError::Cut {
                path: self.path.clone(),
                bytes: output.bytes,
                reason: reason.clone(),
            }),
            Ending::Open | Ending::Complete => Ok(output.bytes),
        }
    }

    /// Whether nothing is written any more.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Numbers a new engine.
    pub(crate) fn begin(&self, about: &[u8]) -> u32 {
        let mut output = self.lock();
        if output.engines == MAX_ENGINES {
            let reason = format!("a record has {MAX_ENGINES} engines at most");
            self.end(&mut output, Ending::Cut(reason));
        }
        let engine = u32::try_from(output.engines).unwrap_or(u32::MAX);
        output.engines += 1;
        output.open += 1;
        self.append(&mut output, Kind::Begin, engine, about);
        engine
    }

    /// Appends whole inputs of an engine.
    pub(crate) fn inputs(&self, engine: u32, inputs: &[u8]) {
        self.append(&mut self.lock(), Kind::Inputs, engine, inputs);
    }

    /// Ends an engine.
    pub(crate) fn conclude(&self, engine: u32, sums: &[u8]) {
        let mut output = self.lock();
        output.open -= 1;
        self.append(&mut output, Kind::End, engine, sums);
    }

    fn append(&self, output: &mut Output, kind: Kind, engine: u32, bytes: &[u8]) {
        if output.ending != Ending::Open {
            return;
        }
        let after = output.bytes + (PART_HEAD + bytes.len()) as u64;
        if after > self.limit {
            let reason = format!("it has reached its limit of {} bytes", self.limit);
            return self.end(output, Ending::Cut(reason));
        }
        if bytes.len() > MAX_PART {
            let reason = format!("an input of {} bytes is longer than it takes", bytes.len());
            return self.end(output, Ending::Cut(reason));
        }
        let head = PartHead::new(kind, engine, bytes).bytes();
        let place = &mut output.place;
        match place.append(&head).and_then(|()| place.append(bytes)) {
            Ok(()) => output.bytes = after,
            Err(error) => self.end(output, Ending::Cut(error.to_string())),
        }
    }

    /// Nothing is written any more, but how it ended.
    fn end(&self, output: &mut Output, ending: Ending) {
        self.stopped.store(true, Ordering::Relaxed);
        let told = output.place.begin_with(&ending.head());
        output.ending = match (ending, told) {
            (Ending::Cut(reason), Err(error)) => {
                Ending::Cut(format!("{reason}; and the file does not say so: {error}"))
            }
            (_, Err(error)) => Ending::Cut(format!("its end cannot be written: {error}")),
            (ending, Ok(())) => ending,
        };
        if let Place::File(file) = &output.place {
            // Without the part that was written in part, if one was: readers would say that it is torn, and
            // take all before it just the same.
            if let Err(error) = file.set_len(output.bytes)
                && let Ending::Cut(reason) = &mut output.ending
            {
                reason.push_str(&format!("; its last part is torn: {error}"));
            }
        }
    }

    /// The totals are changed only after a write, so a panic elsewhere does not spoil them.
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay;

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("pmd-record-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_disk_that_fills_up_cuts_the_record_and_is_told() {
        let path = file("full");
        let recording = Recording::create(&path, u64::MAX).unwrap();
        recording.note("before");
        let place = |place| std::mem::replace(&mut recording.lock().place, place);
        let full = File::options().write(true).open("/dev/full").unwrap();
        let Place::File(good) = place(Place::File(full)) else { panic!() };
        // What is in place can be written over on a full disk; /dev/full refuses that, too.
        recording.note("after");
        let text = recording.finish().unwrap_err().to_string();
        assert!(text.contains("No space left on device"), "{text}");
        assert!(text.contains("and the file does not say so"), "{text}");
        place(Place::File(good));
        recording.lock().ending = Ending::Open;
        let reason = "No space left on device".to_owned();
        recording.end(&mut recording.lock(), Ending::Cut(reason.clone()));
        recording.note("later");
        assert!(recording.has_stopped() && recording.finish().is_err());
        let replay = replay(File::open(&path).unwrap()).unwrap();
        assert_eq!((replay.ending, replay.notes), (Ending::Cut(reason), vec!["before".into()]));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_shorter_record_leaves_nothing_of_a_longer_one() {
        let path = file("again");
        fs::write(&path, [7; 10_000]).unwrap();
        let bytes = Recording::create(&path, u64::MAX).unwrap().finish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
        let replay = replay(File::open(&path).unwrap()).unwrap();
        assert_eq!((replay.ending, replay.engines), (Ending::Complete, Vec::new()));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_a_record_is_refused_by_name() {
        for path in ["/nonexistent/x.rec", "/dev/full", "/tmp"] {
            let error = Recording::create(Path::new(path), u64::MAX).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
    }
}
