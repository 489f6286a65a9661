//! Opening files that have an end.
//!
//! The open of a FIFO waits for somebody at its other end, and a pipe or a terminal may never end: whoever reads a file
//! to its end takes regular files only.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pmd_observe::report::Bytes;
use rustix::fs::OFlags;

/// Opens a regular file for reading, and never waits: `O_NONBLOCK` has no effect on regular files, and returns at once
/// for the others (open(2)).
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a directory" } else { "no regular file" };
        return Err(io::Error::other(format!("it is {what}")));
    }
    Ok((file, metadata))
}

/// Reads a regular file of at most `most` bytes, and never waits.
///
/// # Errors
/// When it cannot be read, is no regular file, or is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path)?;
    let too_long = |len: u64| {
        let (len, most) = (Bytes(len), Bytes(most));
        Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {len}, more than {most}")))
    };
    if metadata.len() > most {
        return too_long(metadata.len());
    }
    let mut bytes = Vec::new();
    // It may have grown, and those of `/proc` are longer than they say.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return too_long(bytes.len() as u64);
    }
    Ok(bytes)
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
    fn what_is_too_long_is_refused_before_it_is_read() {
        let path = std::env::temp_dir().join(format!("pmd-graph-long-{}", std::process::id()));
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), "it has 1 TiB, more than 1 MiB");
        std::fs::write(&path, "1234").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"1234");
        assert_eq!(read(&path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&path, 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(read(Path::new("/proc/self/status"), 4).is_err(), "it says that it is empty");
    }

    #[test]
    fn files_of_proc_have_more_than_they_say() {
        let (file, metadata) = open(Path::new("/proc/self/status")).unwrap();
        assert_eq!((metadata.len(), hides_its_size(&file, &metadata).unwrap()), (0, true));
        let (file, metadata) = open(&std::env::current_exe().unwrap()).unwrap();
        assert!(!hides_its_size(&file, &metadata).unwrap());
    }
}
