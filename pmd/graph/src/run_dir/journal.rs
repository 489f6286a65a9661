//! Keeps the transition journal of all lcores in the run directory, a few lines behind the lcores, so that it is there
//! however the run ends.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use pmd_observe::journal::{Line, Record, VERSION};
use pmd_verbs::JournalReader;

use super::{JOURNAL, JOURNAL_OLDER, RunDir};
use crate::limits::{JOURNAL_HALF_BYTES, JOURNAL_QPS_SHOWN, JOURNAL_RECENT, JOURNAL_RECORDS_SHOWN};

/// Reads the journals of devices, appends them to a file, and remembers the last records.
#[derive(Debug)]
pub struct JournalKeeper {
    readers: Vec<JournalReader>,
    file: Option<Appender>,
    recent: VecDeque<Record>,
}

impl JournalKeeper {
    /// Keeps what `readers` read, in `run_dir` if there is one. Where no file can be made, a warning says so.
    pub fn new(readers: Vec<JournalReader>, run_dir: Option<&Path>) -> Self {
        let file = run_dir.and_then(|dir| {
            let file = Appender::create(dir);
            file.inspect_err(|error| complain(dir, error)).ok()
        });
        Self { readers, file, recent: VecDeque::with_capacity(JOURNAL_RECENT) }
    }

    /// Takes over what lcores have written since the last time.
    pub fn keep(&mut self) {
        let Self { readers, file, recent } = self;
        let (mut text, mut records) = (String::new(), 0);
        for reader in readers {
            reader.read(|line| {
                match serde_json::to_string(&line) {
                    Ok(json) => text.extend([&*json, "\n"]),
                    // Names and numbers: there is nothing that JSON cannot say.
                    Err(error) => tracing::warn!("a record is lost: {error}"),
                }
                records += 1;
                if let Line::Record(record) = line {
                    if recent.len() == JOURNAL_RECENT {
                        recent.pop_front();
                    }
                    recent.push_back(*record);
                }
            });
        }
        if records > 0
            && let Some(appender) = file
            && let Err(error) = appender.append(&text, records)
        {
            complain(&appender.dir, &error);
            *file = None;
        }
    }

    /// For whoever looks at stderr after a failure: the last records of the queue pairs that failed, and where all of
    /// them are. Empty where none is known to have failed.
    pub fn trouble(&self) -> String {
        let mut failed: Vec<&Record> = Vec::new();
        for record in self.recent.iter().filter(|record| record.is_trouble()) {
            if !failed.iter().any(|known| is_same(known, record)) {
                failed.push(record);
            }
        }
        if failed.is_empty() {
            return String::new();
        }
        let mut text = "journal of what failed (times are UTC):".to_owned();
        for first in failed.iter().take(JOURNAL_QPS_SHOWN) {
            let mut last: Vec<&Record> =
                self.recent.iter().rev().filter(|r| is_same(r, first)).collect();
            last.truncate(JOURNAL_RECORDS_SHOWN);
            for record in last.iter().rev() {
                text.push_str(&format!("\n  {record}"));
            }
        }
        if let Some(more) = failed.len().checked_sub(JOURNAL_QPS_SHOWN).filter(|more| *more > 0) {
            text.push_str(&format!("\n  and of {more} more queue pairs"));
        }
        if let Some(file) = &self.file {
            text.push_str(&format!("\n  all of it: spinwire journal {}", file.dir.display()));
        }
        text
    }

    /// The last records, oldest first.
    pub fn recent(&self) -> impl Iterator<Item = &Record> {
        self.recent.iter()
    }
}

fn is_same(one: &Record, other: &Record) -> bool {
    (&one.device, one.qpn) == (&other.device, other.qpn)
}

fn complain(dir: &Path, error: &io::Error) {
    tracing::warn!("cannot keep the journal in {}: {error}", dir.display());
}

/// The file: two halves, of which the older one goes once the newer one is full.
#[derive(Debug)]
struct Appender {
    dir: PathBuf,
    file: File,
    bytes: u64,
    /// Records in the newer half, and in the older one.
    records: [u64; 2],
}

impl Appender {
    fn create(dir: &Path) -> io::Result<Self> {
        let mut file = super::anew(&dir.join(JOURNAL))?;
        let head = head(0)?;
        file.write_all(head.as_bytes())?;
        Ok(Self { dir: dir.to_owned(), file, bytes: head.len() as u64, records: [0; 2] })
    }

    /// Appends whole lines in one call: a process that is killed leaves at most the last one unfinished.
    fn append(&mut self, text: &str, records: u64) -> io::Result<()> {
        if self.bytes + text.len() as u64 > JOURNAL_HALF_BYTES && self.records[0] > 0 {
            fs::rename(self.dir.join(JOURNAL), self.dir.join(JOURNAL_OLDER))?;
            let gone = self.records[1];
            self.file = super::anew(&self.dir.join(JOURNAL))?;
            let head = head(gone)?;
            self.file.write_all(head.as_bytes())?;
            (self.bytes, self.records) = (head.len() as u64, [0, self.records[0]]);
        }
        self.file.write_all(text.as_bytes())?;
        self.bytes += text.len() as u64;
        self.records[0] += records;
        Ok(())
    }
}

/// How a file begins, after so many records were dropped for it.
fn head(gone: u64) -> io::Result<String> {
    let mut text = serde_json::to_string(&Line::Head { journal: VERSION })? + "\n";
    if gone > 0 {
        text += &(serde_json::to_string(&Line::Lost { lost: gone })? + "\n");
    }
    Ok(text)
}

impl RunDir {
    /// Keeps the journals of these devices here.
    pub fn journal(&self, readers: Vec<JournalReader>) -> JournalKeeper {
        JournalKeeper::new(readers, Some(self.path()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JournalFile, journal_files};
    use super::*;

    #[test]
    fn the_older_half_goes_and_is_counted() {
        let dir = std::env::temp_dir().join(format!("spinwire-halves-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut appender = Appender::create(&dir).unwrap();
        let record =
            |number: u64| Line::Record(Box::new(Record { at_us: number, ..Record::default() }));
        let mut number = 0;
        // As many as fill the file three times over, in runs of a thousand.
        while number < 3 * JOURNAL_HALF_BYTES / 100 {
            let lines =
                (number..number + 1000).map(|n| serde_json::to_string(&record(n)).unwrap() + "\n");
            appender.append(&lines.collect::<String>(), 1000).unwrap();
            number += 1000;
        }
        let bytes: u64 =
            journal_files(&dir).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(bytes <= 2 * JOURNAL_HALF_BYTES && bytes > JOURNAL_HALF_BYTES, "{bytes}");
        let (mut records, mut lost) = (Vec::new(), 0);
        let mut file = JournalFile::open(&dir).unwrap();
        file.read(|line| match line {
            Line::Record(record) => records.push(record.at_us),
            Line::Lost { lost: more } => lost += more,
            Line::Head { .. } => {}
        })
        .unwrap();
        assert!(
            lost > 0 && records.len() as u64 + lost >= number - 1000,
            "{lost} {}",
            records.len()
        );
        assert!(records.windows(2).all(|two| two[0] + 1 == two[1]));
        assert_eq!(records.last(), Some(&(number - 1)));
        fs::remove_dir_all(&dir).unwrap();
    }
}
