//! `spinwire journal`: what moved queue pairs, from a finished run or a live one.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use pmd_graph::app::{Exit, print, say};
use pmd_graph::run_dir::{JournalFile, Life, Opened, ReadError};
use pmd_observe::journal::{Line, Record};

use super::recorded;
use crate::cli::JournalArgs;

/// How often a journal that grows is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Prints the journal.
///
/// # Errors
/// When stdout does not take it.
pub(crate) fn run(args: &JournalArgs) -> Result<Exit> {
    let opened = recorded::place(args.run_dir.as_deref()).and_then(|path| recorded::open(&path));
    let opened = match opened {
        Ok(opened) => opened,
        Err(exit) => return Ok(exit),
    };
    let mut journal = Journal { args, root: opened.path.clone(), sources: Vec::new(), shown: 0 };
    let mut life = opened.life;
    loop {
        // What was written before the run ended is read after it was seen to have.
        if let Err(error) = journal.show()? {
            return Ok(recorded::complain(&error));
        }
        if !args.follow || life != Life::Live {
            break;
        }
        thread::sleep(LOOK);
        life = match Opened::read(&journal.root) {
            Ok(opened) => opened.life,
            Err(error) => return Ok(recorded::complain(&error)),
        };
    }
    journal.end(life);
    Ok(Exit::Done)
}

struct Journal<'a> {
    args: &'a JournalArgs,
    root: PathBuf,
    sources: Vec<Source>,
    shown: u64,
}

/// The journal of one process of the run.
struct Source {
    /// What the process is called, where there are several.
    part: Option<String>,
    path: PathBuf,
    file: JournalFile,
}

impl Journal<'_> {
    /// Prints what has come since the last time, in the order of time.
    fn show(&mut self) -> Result<Result<(), ReadError>> {
        if let Err(error) = self.find() {
            return Ok(Err(error));
        }
        let (mut records, mut lost) = (Vec::new(), 0);
        for source in &mut self.sources {
            let part = &source.part;
            let read = source.file.read(|line| match line {
                Line::Record(record) => records.push((part.clone(), record)),
                Line::Lost { lost: more } => lost += more,
                Line::Head { .. } => {}
            });
            if let Err(error) = read {
                return Ok(Err(error));
            }
        }
        if lost > 0 {
            say(format_args!("{lost} records are lost: there was no room for them"));
        }
        records.retain(|(_, record)| self.args.qp.is_none_or(|qpn| record.qpn == qpn));
        records.sort_by_key(|(_, record)| record.at_us);
        self.shown += records.len() as u64;
        let mut text = String::new();
        for (part, record) in records {
            text += &self.line(part.as_deref(), &record)?;
            text.push('\n');
        }
        print(&text)?;
        Ok(Ok(()))
    }

    fn line(&self, part: Option<&str>, record: &Record) -> Result<String> {
        if self.args.json {
            let mut value = serde_json::to_value(record)?;
            if let (Some(object), Some(part)) = (value.as_object_mut(), part) {
                object.insert("part".to_owned(), part.into());
            }
            return Ok(value.to_string());
        }
        Ok(match part {
            Some(part) => format!("[{part}] {record}"),
            None => record.to_string(),
        })
    }

    /// Processes of the run that were not there before.
    fn find(&mut self) -> Result<(), ReadError> {
        let parts = Opened::read(&self.root)?.parts;
        for path in [self.root.clone()].into_iter().chain(parts) {
            if self.sources.iter().any(|source| source.path == path) {
                continue;
            }
            let part = (path != self.root).then(|| name(&path));
            self.sources.push(Source { part, file: JournalFile::open(&path)?, path });
        }
        Ok(())
    }

    /// What is to be said when there is nothing more to come.
    fn end(&self, life: Life) {
        for source in &self.sources {
            let damaged = source.file.damaged(life != Life::Live);
            if damaged > 0 {
                let path = source.path.display();
                say(format_args!(
                    "{damaged} lines of the journal in {path} are damaged, and left out"
                ));
            }
        }
        match (self.shown, self.args.qp) {
            (0, Some(qpn)) => say(format_args!("no record is about queue pair {qpn:#08x}")),
            (0, None) => say("the journal is empty"),
            _ => {}
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
