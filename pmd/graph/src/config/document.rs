//! A TOML file as a tree whose every key and value knows the text it stands in.
//!
//! The tree owns what it holds and its spans name their source, so that a `--set` can be grafted in and still be pointed
//! at when it turns out to be wrong.

use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Report, Span};

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
