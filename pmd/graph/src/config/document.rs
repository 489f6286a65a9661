//! A TOML file as a tree whose every key and value knows the text it stands in.
//!
//! The tree owns what it holds and its spans name their source, so that a `--set` can be grafted in and still be pointed
//! at when it turns out to be wrong.

use std::io::Read;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Report, SourceKind, Span};
use crate::limits::CONFIG_BYTES_MAX;
use crate::regular;

/// A value and where it stands. A table stands at its header.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) span: Span,
    pub(super) raw: Raw,
}

/// What TOML can hold, as far as a pipeline needs to tell apart.
#[derive(Clone, Debug)]
pub(super) enum Raw {
    Text(String),
    Integer(i128),
    Flag(bool),
    List(Vec<Item>),
    Table(Table),
    /// A float or a date, which no key takes; named for the message.
    Other(&'static str),
}

impl Raw {
    /// The kind of value, with its article.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "a number",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

/// Keys and values in the order of their names, as the parser gives them.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
}

/// One key and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_span: Span,
    pub(super) item: Item,
}

impl Table {
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    /// The text under `key`, if it is one.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key).map(|entry| &entry.item.raw) {
            Some(Raw::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Puts `entry` in the place of what had its key.
    pub(super) fn set(&mut self, entry: Entry) {
        match self.get_mut(&entry.key) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }
}

/// The bytes of the file at `path`, which messages call a `what`; `give` says what to give instead.
pub(super) fn read(path: &Path, what: &str, give: &str) -> Result<Vec<u8>, Report> {
    let mut bytes = Vec::new();
    regular::open(path)
        .and_then(|(file, _)| file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            Report::of(
                Diagnostic::error(format!("cannot read the {what} `{}`: {error}", path.display()))
                    .help(format!("give the path of {give}")),
            )
        })?;
    Ok(bytes)
}

/// The tree of a file called `name`, the span of its text, and a report that owns it. Where the file is empty,
/// `expected` says what belongs there, and `help` where to find it.
pub(super) fn open(
    name: &str,
    bytes: &[u8],
    expected: &str,
    help: &str,
) -> Result<(Table, Span, Report), Report> {
    let mut report = Report::default();
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(Report::of(
            Diagnostic::error(format!(
                "`{name}` is larger than a config can be ({CONFIG_BYTES_MAX} bytes)"
            ))
            .help("is it the right file?"),
        ));
    }
    let file = report.sources.add(SourceKind::File, name, String::from_utf8_lossy(bytes));
    if let Err(error) = std::str::from_utf8(bytes) {
        let at = error.valid_up_to();
        report.push(
            Diagnostic::error(format!("`{name}` is not UTF-8"))
                .at(
                    file.part(at, at + '\u{fffd}'.len_utf8()),
                    format!("byte 0x{:02x} begins no character", bytes[at]),
                )
                .help("save it as UTF-8 text"),
        );
        return Err(report);
    }
    let Some(root) = parse(file, &mut report) else { return Err(report) };
    if root.entries().is_empty() {
        report.push(
            Diagnostic::error(format!("`{name}` is empty"))
                .at(file.part(0, 0), expected)
                .help(help),
        );
        return Err(report);
    }
    Ok((root, file, report))
}

/// Reads the text under `whole`; errors go to `report` and leave no tree.
pub(super) fn parse(whole: Span, report: &mut Report) -> Option<Table> {
    let text = report.sources.text(whole).to_owned();
    let (table, errors) = DeTable::parse_recoverable(&text);
    if errors.is_empty() {
        return Some(convert_table(table.get_ref(), whole));
    }
    for error in errors {
        let span = error.span().unwrap_or_default();
        let title = format!("not TOML: {}", error.message());
        report.push(Diagnostic::error(title).at(whole.part(span.start, span.end), "here"));
    }
    None
}

/// Reads one value, as `--set` gives it: TOML, else a string.
pub(super) fn parse_value(text: &str, span: Span) -> Item {
    match DeValue::parse(text) {
        Ok(value) => Item { span, raw: convert(value.get_ref(), span) },
        Err(_) => Item { span, raw: Raw::Text(text.to_owned()) },
    }
}

fn convert_table(table: &DeTable<'_>, whole: Span) -> Table {
    let entries = table.iter().map(|(key, value)| Entry {
        key: key.get_ref().to_string(),
        key_span: whole.part(key.span().start, key.span().end),
        item: Item {
            span: whole.part(value.span().start, value.span().end),
            raw: convert(value.get_ref(), whole),
        },
    });
    Table { entries: entries.collect() }
}

fn convert(value: &DeValue<'_>, whole: Span) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => {
            // TOML has no integer beyond 64 bits; what does not even fit 128 is out of every range.
            Raw::Integer(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX))
        }
        DeValue::Float(_) => Raw::Other("a number with a fraction"),
        DeValue::Boolean(flag) => Raw::Flag(*flag),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Array(items) => Raw::List(
            items
                .iter()
                .map(|item| Item {
                    span: whole.part(item.span().start, item.span().end),
                    raw: convert(item.get_ref(), whole),
                })
                .collect(),
        ),
        DeValue::Table(table) => Raw::Table(convert_table(table, whole)),
    }
}

impl FromIterator<Entry> for Table {
    fn from_iter<T: IntoIterator<Item = Entry>>(entries: T) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}
