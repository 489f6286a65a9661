//! Opening files that have an end.
//!
//! The open of a FIFO waits for somebody at its other end, and a pipe or a terminal may never end: whoever reads a file
//! to its end takes regular files only.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading, and never waits: `O_NONBLOCK` has no effect on regular files, and returns at once
/// for the others (open(2)).
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub(crate) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a directory" } else { "no regular file" };
        return Err(io::Error::other(format!("it is {what}")));
    }
    Ok((file, metadata))
}

/// Whether a file that claims to be empty has content all the same, as those of `/proc` do.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn hides_its_size(mut file: &File, metadata: &Metadata) -> io::Result<bool> {
    Ok(Metadata::len(metadata) == 0 && file.read(&mut [0])? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_no_end_is_refused_at_once() {
        let fifo = std::env::temp_dir().join(format!("pmd-graph-fifo-{}", std::process::id()));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = open(&fifo).unwrap_err();
        std::fs::remove_file(&fifo).unwrap();
        assert_eq!(error.to_string(), "it is no regular file");
        assert_eq!(open(Path::new("/dev/zero")).unwrap_err().to_string(), "it is no regular file");
        assert_eq!(open(Path::new("/")).unwrap_err().to_string(), "it is a directory");
    }

    #[test]
    fn files_of_proc_have_more_than_they_say() {
        let (file, metadata) = open(Path::new("/proc/self/status")).unwrap();
        assert_eq!((metadata.len(), hides_its_size(&file, &metadata).unwrap()), (0, true));
        let (file, metadata) = open(&std::env::current_exe().unwrap()).unwrap();
        assert!(!hides_its_size(&file, &metadata).unwrap());
    }
}
