//! The file that taps write to.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::pcapng;

/// A pcapng file under construction, shared by the taps that write to it.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    /// Read for every frame, so that a stopped capture costs next to nothing.
    failed: AtomicBool,
    output: Mutex<Output>,
}

#[derive(Debug)]
struct Output {
    file: File,
    interfaces: u32,
    totals: Captured,
    error: Option<Arc<io::Error>>,
}

/// What a capture holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Frames, both directions.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Why there is no capture, or only part of one.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CaptureError {
    /// It could not be begun.
    #[error("cannot create the capture {}: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// It stopped on the way; the frames before that are in the file.
    #[error(
        "the capture {} stopped after {} frames, and only traffic until then is in it: {source}",
        path.display(), captured.frames
    )]
    Stopped {
        /// The file.
        path: PathBuf,
        /// What it holds.
        captured: Captured,
        /// The reason.
        source: Arc<io::Error>,
    },
}

impl Capture {
    /// Creates the file, or replaces it, and writes its header.
    ///
    /// # Errors
    /// [`CaptureError::Create`].
    pub fn create(path: &Path) -> Result<Arc<Self>, CaptureError> {
        let mut header = Vec::new();
        pcapng::section_header(&mut header);
        let begin = || {
            let mut file = open(path)?;
            file.write_all(&header)?;
            Ok(file)
        };
        let file = begin().map_err(|source: io::Error| CaptureError::Create {
            path: path.to_owned(),
            source: Arc::new(source),
        })?;
        let totals = Captured { frames: 0, bytes: header.len() as u64 };
        Ok(Arc::new(Self {
            path: path.to_owned(),
            failed: AtomicBool::new(false),
            output: Mutex::new(Output { file, interfaces: 0, totals, error: None }),
        }))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether recording has stopped.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// What the capture holds; call it after the taps are gone, each of which leaves what it has
    /// not yet written when it is dropped.
    ///
    /// # Errors
    /// [`CaptureError::Stopped`].
    pub fn finish(&self) -> Result<Captured, CaptureError> {
        let output = self.lock();
        match output.error.clone() {
            None => Ok(output.totals),
            Some(source) => {
                let path = self.path.clone();
                Err(CaptureError::Stopped { path, captured: output.totals, source })
            }
        }
    }

    /// Numbers a new interface and puts its description in `buffer`, ahead of its frames. The
    /// description is written at once, so that interfaces stand in the order of their numbers.
    pub(super) fn add_interface(&self, name: &str, buffer: &mut Vec<u8>) -> u32 {
        let interface = {
            let mut output = self.lock();
            output.interfaces += 1;
            pcapng::interface(buffer, name);
            self.append(&mut output, buffer, 0);
            output.interfaces - 1
        };
        buffer.clear();
        interface
    }

    /// Appends encoded frames.
    pub(super) fn write(&self, blocks: &[u8], frames: u64) {
        self.append(&mut self.lock(), blocks, frames);
    }

    fn append(&self, output: &mut Output, blocks: &[u8], frames: u64) {
        if output.error.is_some() {
            return;
        }
        let result = output.file.write_all(blocks);
        match result.map_err(|error| cut(&output.file, output.totals.bytes, error)) {
            Ok(()) => {
                output.totals.frames += frames;
                output.totals.bytes += blocks.len() as u64;
            }
            Err(error) => {
                output.error = Some(Arc::new(error));
                self.failed.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The totals are changed only after a write, so a panic elsewhere does not spoil them.
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the file, emptied. Devices such as `/dev/null` are taken as they are; what could wait for a reader, or destroys
/// more than a file, is not. `O_NONBLOCK`: the open of a FIFO would wait (open(2)).
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::NXIO.raw_os_error() => no_file(),
            _ => error,
        })?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        file.set_len(0)?;
    } else if !kind.is_char_device() {
        return Err(no_file());
    }
    Ok(file)
}

fn no_file() -> io::Error {
    io::Error::other("it exists and is no regular file: name another")
}

/// Removes a block that was written in part, so that readers accept the rest of the file.
fn cut(file: &File, whole: u64, error: io::Error) -> io::Error {
    match file.set_len(whole) {
        Ok(()) => error,
        Err(_) => io::Error::new(error.kind(), format!("{error}; its last block is torn")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fills_up_stops_the_capture_and_is_reported() {
        let path = std::env::temp_dir().join(format!("pmd-wire-full-{}", std::process::id()));
        let capture = Capture::create(&path).unwrap();
        capture.write(&[0; 8], 1);
        assert_eq!(capture.finish().unwrap().frames, 1);
        let good = std::mem::replace(
            &mut capture.lock().file,
            File::options().write(true).open("/dev/full").unwrap(),
        );
        capture.write(&[0; 8], 1);
        capture.lock().file = good;
        capture.write(&[0; 8], 1);
        assert!(capture.has_failed());
        let error = capture.finish().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("stopped after 1 frames"), "{text}");
        assert!(text.contains("No space left on device"), "{text}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let fifo = std::env::temp_dir().join(format!("pmd-wire-fifo-{}", std::process::id()));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let alone = Capture::create(&fifo).unwrap_err().to_string();
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let reader = File::options().read(true).custom_flags(flags).open(&fifo).unwrap();
        let read = Capture::create(&fifo).unwrap_err().to_string();
        drop(reader);
        std::fs::remove_file(&fifo).unwrap();
        for text in [alone, read] {
            assert!(text.contains("is no regular file"), "{text}");
        }
        Capture::create(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_shorter_capture_leaves_nothing_of_a_longer_one() {
        let path = std::env::temp_dir().join(format!("pmd-wire-again-{}", std::process::id()));
        std::fs::write(&path, [7; 10_000]).unwrap();
        let bytes = Capture::create(&path).unwrap().finish().unwrap().bytes;
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_created_is_refused_by_name() {
        for path in ["/nonexistent/x.pcapng", "/dev/full"] {
            let error = Capture::create(Path::new(path)).unwrap_err();
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
