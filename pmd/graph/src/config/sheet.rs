//! Files of other contracts than a pipeline's, such as scenarios of the laboratory: the same care for another set of
//! tables and keys.

use std::path::Path;

use super::decode::decode;
use super::document::{self, Raw, Table};
use super::schema::{Key, Settings};
use super::{suggest, tables};
use crate::diagnostic::{Diagnostic, Report, Span};

/// What a file of the contract is called, and what it holds.
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// The word for a file, such as `scenario`.
    pub what: &'static str,
    /// Where a good one is found, for whoever has none.
    pub example: &'static str,
    /// The lists of tables it may hold, each written `[[name]]`.
    pub tables: &'static [&'static str],
}

/// A file that is TOML.
#[derive(Debug)]
pub struct Sheet {
    contract: Contract,
    root: Table,
    file: Span,
    /// The text it came from, and everything that is wrong.
    pub report: Report,
}

/// One table of a list that passed.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its keys.
    pub settings: Settings,
    /// Where its name stands, or its header.
    pub span: Span,
}

/// The names that the tables of a list have, with their places, also of those whose other keys are wrong.
#[derive(Clone, Debug)]
pub struct Names {
    what: &'static str,
    names: Vec<(String, Span)>,
}

impl Sheet {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, or is no TOML.
    pub fn read(path: &Path, contract: Contract) -> Result<Self, Report> {
        let give = format!("a {}, as {}", contract.what, contract.example);
        let bytes = document::read(path, contract.what, &give)?;
        Self::parse(&path.display().to_string(), &bytes, contract)
    }

    /// Reads a text that is called `name` in messages.
    ///
    /// # Errors
    /// When it is no TOML, or empty.
    pub fn parse(name: &str, bytes: &[u8], contract: Contract) -> Result<Self, Report> {
        let first = contract.tables.first().copied().unwrap_or_default();
        let expected = format!("expected at least one [[{first}]]");
        let help = format!("start from {}", contract.example);
        let (root, file, report) = document::open(name, bytes, &expected, &help)?;
        Ok(Self { contract, root, file, report })
    }

    /// The text of the file.
    pub fn text(&self) -> &str {
        self.report.sources.text(self.file)
    }

    /// The end of the file, for what is missing.
    pub fn end(&self) -> Span {
        self.file.part(usize::MAX, usize::MAX)
    }

    /// The keys before the first table. A table that the contract does not know is complained about here.
    pub fn top(&mut self, keys: &[Key]) -> Settings {
        let known = self.contract.tables;
        let what = self.contract.what;
        let mut top = Vec::new();
        for entry in self.root.entries() {
            let is_table = match &entry.item.raw {
                Raw::Table(_) => true,
                Raw::List(items) => items.iter().any(|item| matches!(item.raw, Raw::Table(_))),
                _ => false,
            };
            if known.contains(&entry.key.as_str()) {
                continue;
            }
            if !is_table {
                top.push(entry.clone());
                continue;
            }
            let list: Vec<String> = known.iter().map(|name| format!("[[{name}]]")).collect();
            let mut diagnostic =
                Diagnostic::error(format!("a {what} has no table `{}`", entry.key))
                    .at(entry.key_span, "unknown table")
                    .note(format!("its tables are {}", list.join(", ")));
            if let Some(near) = suggest::nearest(&entry.key, known.iter().copied()) {
                diagnostic =
                    diagnostic.fix(entry.key_span, near, format!("did you mean `{near}`?"));
            }
            self.report.push(diagnostic);
        }
        let top: Table = top.into_iter().collect();
        let keys: Vec<&Key> = keys.iter().collect();
        let header = self.file.part(0, 0);
        decode(&top, header, &format!("a {what}"), &keys, &mut self.report).unwrap_or_default()
    }

    /// The tables of a list whose keys passed, and the names that any of them declares by its key `name`.
    pub fn rows(&mut self, table: &'static str, keys: &[Key]) -> (Vec<Row>, Names) {
        let keys: Vec<&Key> = keys.iter().collect();
        let mut names = Vec::new();
        let mut rows = Vec::new();
        for (fields, header) in tables::list(&self.root, table, &mut self.report) {
            let (name, span) = tables::declare(table, fields, header, &mut names, &mut self.report);
            let what = tables::called(table, name);
            if let Some(settings) = decode(fields, header, &what, &keys, &mut self.report) {
                rows.push(Row { settings, span });
            }
        }
        (rows, Names { what: table, names })
    }

    /// The tables of a list that the contract refuses, whatever they hold: the text of their key `key`, and where it
    /// stands.
    pub fn refused(&mut self, table: &str, key: &str) -> Vec<(String, Span)> {
        let rows = tables::list(&self.root, table, &mut self.report);
        let text = |(fields, header): (&Table, Span)| match fields.get(key) {
            Some(entry) => (fields.text(key).unwrap_or_default().to_owned(), entry.item.span),
            None => (String::new(), header),
        };
        rows.into_iter().map(text).collect()
    }
}

impl Names {
    /// Whether a table has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|(known, _)| known == name)
    }

    /// Whether no table has a name.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// A complaint if the name under `key` of `row` is none of these.
    pub fn dangling(&self, row: &Row, key: &str) -> Option<Diagnostic> {
        let (name, span) = (row.settings.text_opt(key)?, row.settings.span(key)?);
        self.dangling_at(name, span)
    }

    /// A complaint if `name`, which stands at `span`, is none of these.
    pub fn dangling_at(&self, name: &str, span: Span) -> Option<Diagnostic> {
        (!self.contains(name)).then(|| tables::dangling(self.what, name, span, &self.names))
    }
}
