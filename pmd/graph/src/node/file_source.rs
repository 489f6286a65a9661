//! `file-source`: reads a file block by block.

use std::env;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pmd_observe::{Code, Owner};

use super::{Node, NodeContext, Record, Turn};
use crate::failure::Failure;
use crate::limits::SOURCE_BURST;
use crate::regular;
use crate::stream::{Block, Buffers, Outlet};

/// What a path of this name stands for: the running executable.
const SELF: &str = "self";

pub(crate) struct FileSource {
    name: String,
    path: PathBuf,
    file: File,
    size: u64,
    /// Passes over the file that are left, this one included.
    passes: u64,
    /// Next byte of this pass.
    offset: u64,
    buffers: Buffers,
    /// `pread` fills memory that is ours alone; from there the bytes are copied into the shared buffer.
    scratch: Box<[u8]>,
    /// `None` once everything was passed on.
    outlet: Option<Outlet>,
}

/// The file that a `path` means, or why it cannot be sent.
pub(crate) fn open(path: &str) -> Result<(PathBuf, File, Metadata), String> {
    let path = if path == SELF { executable()? } else { PathBuf::from(path) };
    let failed = |error: io::Error| {
        format!("{}; give the path of a file, or \"{SELF}\"", cannot_read(&path, &error))
    };
    let (file, metadata) = regular::open(&path).map_err(failed)?;
    if regular::hides_its_size(&file, &metadata).map_err(failed)? {
        let reason =
            "it has content and does not say how much, as files of /proc: copy it to a disk";
        return Err(failed(io::Error::other(reason)));
    }
    Ok((path, file, metadata))
}

impl FileSource {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let settings = cx.settings();
        let opened = open(settings.text("path"));
        let (path, file, metadata) = opened.map_err(|reason| refused(cx.name(), &reason))?;
        let (size, block) = (Metadata::len(&metadata), settings.size("block").get());
        let buffers = cx.buffers("blocks", block)?;
        let outlet = cx.outlet();
        outlet.announce(Some(size));
        let passes = settings.count("repeat");
        cx.expect(size.saturating_mul(passes));
        Ok(Box::new(Self {
            name: cx.name().to_owned(),
            path,
            file,
            size,
            passes,
            offset: 0,
            scratch: vec![0; buffers.size() as usize].into_boxed_slice(),
            buffers,
            outlet: Some(outlet),
        }))
    }

    /// Reads the next block into a buffer.
    fn read(&mut self) -> Result<Option<Block>, Failure> {
        let Some(buffer) = self.buffers.take() else { return Ok(None) };
        let len = (self.size - self.offset).min(u64::from(self.buffers.size()));
        #[expect(clippy::cast_possible_truncation, reason = "no longer than a buffer")]
        let len = len as u32;
        let scratch = &mut self.scratch[..len as usize];
        let read = self.file.read_exact_at(scratch, self.offset);
        read.map_err(|error| {
            let error = match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other(format!(
                    "it was cut to less than its {} bytes meanwhile",
                    self.size
                )),
                _ => error,
            };
            refused(&self.name, &cannot_read(&self.path, &error))
        })?;
        buffer.write_at(0, scratch)?;
        let block = Block { buffer, len, offset: self.offset, crc32c: None };
        self.offset += u64::from(len);
        Ok(Some(block))
    }
}

impl Node for FileSource {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let mut work = 0;
        while work < SOURCE_BURST {
            if self.offset == self.size {
                self.passes = self.passes.saturating_sub(1);
                self.offset = 0;
            }
            let ended = self.passes == 0 || self.size == 0;
            let Some(outlet) = self.outlet.take().filter(|outlet| !ended && !outlet.is_abandoned())
            else {
                return Ok(Turn::Done);
            };
            let room = outlet.has_room();
            let block = if room { self.read()? } else { None };
            let Some(block) = block else {
                self.outlet = Some(outlet);
                break;
            };
            record.message(now, u64::from(block.len));
            // There was room for it.
            drop(outlet.give(block));
            self.outlet = Some(outlet);
            work += 1;
        }
        Ok(Turn::Worked(work))
    }

    fn stop(&mut self) {
        self.outlet = None;
    }
}

fn executable() -> Result<PathBuf, String> {
    env::current_exe().map_err(|error| format!("cannot find the running executable: {error}"))
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read `{}`: {error}", path.display())
}

/// The path is the config's.
fn refused(node: &str, reason: &str) -> Failure {
    Failure::new(Code::Unknown, Owner::Config, format!("`{node}` {reason}"))
        .turn(format!("node.{node}.path"))
}
