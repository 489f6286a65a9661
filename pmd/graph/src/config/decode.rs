//! One table against its keys: every key known, every value of its form and in its range.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::document::{Entry, Item, Raw, Table};
use super::schema::{Form, Key, Presence, Setting, Settings, Value};
use super::suggest;
use super::units::{Size, UnitError, parse_size, parse_time, show_time};
use crate::diagnostic::{Diagnostic, Report, Span};

/// Reads `table`, which reports call `what` and which stands at `header`. Every complaint goes to `report`; `None` if
/// there was one.
pub(super) fn decode(
    table: &Table,
    header: Span,
    what: &str,
    keys: &[&Key],
    report: &mut Report,
) -> Option<Settings> {
    decode_among(table, header, what, keys, &|_| Vec::new(), report)
}

/// The same for a table that is one of several kinds: `others` tells which other kinds have a key.
pub(super) fn decode_among(
    table: &Table,
    header: Span,
    what: &str,
    keys: &[&Key],
    others: &dyn Fn(&str) -> Vec<&'static str>,
    report: &mut Report,
) -> Option<Settings> {
    let before = report.errors();
    for entry in table.entries() {
        if !keys.iter().any(|key| key.name == entry.key) {
            report.push(unknown_key(entry, what, keys, &others(&entry.key)));
        }
    }
    let mut settings = Settings::default();
    for key in keys {
        let (value, span) = match (table.get(key.name), &key.presence) {
            (Some(Entry { item: Item { raw: Raw::Table(inner), span }, .. }), _)
                if matches!(key.form, Form::Group(_)) =>
            {
                let Form::Group(keys) = &key.form else { continue };
                let keys: Vec<&Key> = keys.iter().collect();
                let what = format!("`{}` of {what}", key.name);
                match decode(inner, *span, &what, &keys, report) {
                    Some(group) => (Value::Group(group), Some(*span)),
                    None => continue,
                }
            }
            (Some(entry), _) => match value(key, &entry.item) {
                Ok(value) => (value, Some(entry.item.span)),
                Err(complaint) => {
                    report.push(complaint);
                    continue;
                }
            },
            // What says nothing is not there.
            (None, Presence::Default(_)) if !is_read(key, &settings) => continue,
            (None, Presence::Default(value)) => (value.clone(), None),
            (None, Presence::Optional) => continue,
            (None, Presence::Required) => {
                report.push(
                    Diagnostic::error(format!("{what} lacks the key `{}`", key.name))
                        .at(header, format!("`{}` is needed here", key.name))
                        .help(format!("add {} = {}: {}", key.name, example(&key.form), key.doc)),
                );
                continue;
            }
        };
        settings.settings.push(Setting { name: key.name, value, span });
    }
    for key in keys {
        if let (Some((other, word)), Some(span)) = (key.when, settings.span(key.name))
            // A word that was refused above may have been the right one.
            && (settings.value(other).is_some() || table.get(other).is_none())
            && !matches!(settings.value(other), Some(Value::Text(text)) if text == word)
        {
            report.push(
                Diagnostic::error(format!("`{}` of {what} has no effect", key.name))
                    .at(span, format!("only read with {other} = \"{word}\""))
                    .help(format!("remove it, or set {other} = \"{word}\"")),
            );
        }
    }
    (report.errors() == before).then_some(settings)
}

/// Whether what the key depends on, which stands before it, has the value that it is read with.
fn is_read(key: &Key, settings: &Settings) -> bool {
    key.when.is_none_or(
        |(other, word)| matches!(settings.value(other), Some(Value::Text(text)) if text == word),
    )
}

fn unknown_key(entry: &Entry, what: &str, keys: &[&Key], others: &[&str]) -> Diagnostic {
    let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
    let mut diagnostic = Diagnostic::error(format!("{what} has no key `{}`", entry.key))
        .at(entry.key_span, "unknown key")
        .note(format!("its keys are {}", names.join(", ")));
    if !others.is_empty() {
        // It is no slip: whoever wrote it wants what another kind does.
        diagnostic = diagnostic.help(format!(
            "remove it: kinds that have `{}` are {}",
            entry.key,
            others.join(", ")
        ));
    } else if let Some(near) = suggest::nearest(&entry.key, names) {
        diagnostic = diagnostic.fix(entry.key_span, near, format!("did you mean `{near}`?"));
    }
    diagnostic
}

/// A value that would pass, as TOML.
fn example(form: &Form) -> String {
    match form {
        Form::Text | Form::Name => "\"…\"".to_owned(),
        Form::Word { words, .. } => format!("\"{}\"", words.first().copied().unwrap_or_default()),
        Form::Flag => "true".to_owned(),
        Form::Count { range, .. } => range.start().to_string(),
        Form::Pick { values, .. } => values.first().copied().unwrap_or_default().to_string(),
        Form::Size { .. } => "\"64KiB\"".to_owned(),
        Form::Time { .. } => "\"5s\"".to_owned(),
        Form::Address => "\"127.0.0.1\"".to_owned(),
        Form::Socket | Form::Peer => "\"127.0.0.1:7471\"".to_owned(),
        Form::Bits => "1".to_owned(),
        Form::List => "[\"…\"]".to_owned(),
        Form::Tally => "{ \"5\" = 1 }".to_owned(),
        Form::Group(_) => "{ … }".to_owned(),
    }
}

/// Reads one value, or says what is wrong with it.
fn value(key: &Key, item: &Item) -> Result<Value, Diagnostic> {
    let name = key.name;
    match (&key.form, &item.raw) {
        (
            Form::Count { auto: true, .. }
            | Form::Pick { auto: true, .. }
            | Form::Size { auto: true, .. }
            | Form::Address,
            Raw::Text(text),
        ) if text == "auto" => Ok(Value::Auto),
        (Form::Text | Form::Name, Raw::Text(text)) if text.is_empty() => {
            Err(Diagnostic::error(format!("`{name}` is empty")).at(item.span, key.doc))
        }
        (Form::Text | Form::Name, Raw::Text(text)) => Ok(Value::Text(text.clone())),
        (Form::Word { words, absent }, Raw::Text(text)) => {
            word(key, words, absent, text, item.span)
        }
        (Form::Flag, Raw::Flag(flag)) => Ok(Value::Flag(*flag)),
        (Form::Count { range, .. }, Raw::Integer(number)) => count(key, range, *number, item.span),
        (Form::Pick { values, .. }, Raw::Integer(number)) => match u64::try_from(*number) {
            Ok(number) if values.contains(&number) => Ok(Value::Count(number)),
            _ => Err(refused(key, item.span, &expected(&key.form))),
        },
        (Form::Size { range, .. }, Raw::Integer(number)) => match u64::try_from(*number) {
            Ok(number) => size(key, range, Size::bytes(number), item.span),
            Err(_) => Err(refused(key, item.span, &expected(&key.form))),
        },
        (Form::Size { range, .. }, Raw::Text(text)) => match parse_size(text) {
            Ok(read) => size(key, range, read, item.span),
            Err(error) => Err(unit(key, text, error, item.span)),
        },
        (Form::Time { range }, Raw::Text(text)) => match parse_time(text) {
            Ok(read) => time(key, range, read, item.span),
            Err(error) => Err(unit(key, text, error, item.span)),
        },
        (Form::Time { .. }, Raw::Integer(number)) => {
            Err(Diagnostic::error(format!("`{name}` lacks its unit"))
                .at(item.span, format!("expected a unit, as in \"{number}s\" or \"{number}ms\"")))
        }
        (Form::Address, Raw::Text(text)) => text
            .parse::<IpAddr>()
            .map(Value::Address)
            .map_err(|_| refused(key, item.span, &expected(&key.form))),
        (Form::Socket, Raw::Text(text)) => {
            socket(text).ok_or_else(|| refused(key, item.span, &expected(&key.form)))
        }
        (Form::Peer, Raw::Text(text)) if !text.contains(':') && !text.is_empty() => {
            Ok(Value::Text(text.clone()))
        }
        (Form::Peer, Raw::Text(text)) => match socket(text) {
            Some(Value::Socket(address)) if address.port() == 0 => {
                Err(refused(key, item.span, "a listener has a port from 1 to 65535"))
            }
            Some(value) => Ok(value),
            None => Err(refused(key, item.span, &expected(&key.form))),
        },
        (Form::Bits, Raw::Integer(number)) => u64::try_from(*number)
            .map(Value::Count)
            .map_err(|_| refused(key, item.span, &expected(&key.form))),
        (Form::List, Raw::List(items)) => list(key, items),
        // One needs no brackets.
        (Form::List, Raw::Text(_)) => list(key, std::slice::from_ref(item)),
        (Form::Tally, Raw::Table(table)) => tally(key, table),
        (form, raw) => {
            let diagnostic = Diagnostic::error(format!("`{name}` cannot be {}", raw.kind()))
                .at(item.span, format!("expected {}", expected(form)))
                .note(format!("{name}: {}", key.doc));
            Err(match form {
                Form::Text | Form::Name => {
                    diagnostic.help("a string stands in quotes, also in the value of a --set")
                }
                _ => diagnostic,
            })
        }
    }
}

/// What a form takes, in words.
pub(super) fn expected(form: &Form) -> String {
    let or_auto =
        |auto: bool, text: String| if auto { format!("{text}, or \"auto\"") } else { text };
    match form {
        Form::Text => "a string".to_owned(),
        Form::Name => "a name".to_owned(),
        Form::Word { words, .. } => format!("one of {}", quoted(words)),
        Form::Flag => "true or false".to_owned(),
        Form::Count { range, auto } => {
            or_auto(*auto, format!("a whole number from {} to {}", range.start(), range.end()))
        }
        Form::Pick { values, auto } => {
            let values: Vec<String> = values.iter().map(u64::to_string).collect();
            or_auto(*auto, format!("one of {}", values.join(", ")))
        }
        Form::Size { range, auto } => or_auto(
            *auto,
            format!("a size from {} to {}, as in \"64KiB\"", range.start(), range.end()),
        ),
        Form::Time { range } => {
            format!(
                "a duration from {} to {}, as in \"5s\"",
                show_time(*range.start()),
                show_time(*range.end())
            )
        }
        Form::Address => "an IP address, or \"auto\"".to_owned(),
        Form::Socket => "an IP address and a port, as in \"127.0.0.1:7471\"".to_owned(),
        Form::Bits => "a whole number of 64 bits".to_owned(),
        Form::List => "a list of strings".to_owned(),
        Form::Tally => "numbers by name, as in { \"12\" = 1, \"5\" = 53 }".to_owned(),
        Form::Group(keys) => {
            let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
            format!("a table of {}", names.join(", "))
        }
        Form::Peer => {
            "a node of this file, or an IP address and a port as in \"127.0.0.1:7471\"".to_owned()
        }
    }
}

fn list(key: &Key, items: &[Item]) -> Result<Value, Diagnostic> {
    let mut list = Vec::with_capacity(items.len());
    for item in items {
        match &item.raw {
            Raw::Text(text) if !text.is_empty() => list.push(text.clone()),
            _ => return Err(refused(key, item.span, &expected(&key.form))),
        }
    }
    Ok(Value::List(list))
}

fn tally(key: &Key, table: &Table) -> Result<Value, Diagnostic> {
    let mut tally = Vec::with_capacity(table.entries().len());
    for entry in table.entries() {
        let count = match &entry.item.raw {
            Raw::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        match count {
            Some(count) => tally.push((entry.key.clone(), count)),
            None => return Err(refused(key, entry.item.span, "a count")),
        }
    }
    Ok(Value::Tally(tally))
}

fn quoted(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    words.join(", ")
}

fn socket(text: &str) -> Option<Value> {
    text.parse::<SocketAddr>().ok().map(Value::Socket)
}

fn refused(key: &Key, span: Span, label: &str) -> Diagnostic {
    let label = if label.starts_with("a listener") {
        label.to_owned()
    } else {
        format!("expected {label}")
    };
    Diagnostic::error(format!("`{}` does not take this value", key.name))
        .at(span, label)
        .note(format!("{}: {}", key.name, key.doc))
}

fn word(
    key: &Key,
    words: &[&'static str],
    absent: &[&'static str],
    text: &str,
    span: Span,
) -> Result<Value, Diagnostic> {
    if words.contains(&text) {
        return Ok(Value::Text(text.to_owned()));
    }
    let name = key.name;
    if absent.contains(&text) {
        return Err(Diagnostic::error(format!(
            "{name} = \"{text}\" is not available in this build"
        ))
        .at(span, "not in this build")
        .help(format!("this build has {}", quoted(words))));
    }
    let mut diagnostic = refused(key, span, &format!("one of {}", quoted(words)));
    if let Some(near) = suggest::nearest(text, words.iter().copied()) {
        diagnostic = diagnostic.fix(span, format!("\"{near}\""), format!("did you mean `{near}`?"));
    }
    Err(diagnostic)
}

fn count(
    key: &Key,
    range: &RangeInclusive<u64>,
    number: i128,
    span: Span,
) -> Result<Value, Diagnostic> {
    match u64::try_from(number) {
        Ok(count) if range.contains(&count) => Ok(Value::Count(count)),
        _ => Err(out_of_range(key, span)),
    }
}

fn size(
    key: &Key,
    range: &RangeInclusive<Size>,
    size: Size,
    span: Span,
) -> Result<Value, Diagnostic> {
    if range.contains(&size) { Ok(Value::Size(size)) } else { Err(out_of_range(key, span)) }
}

fn time(
    key: &Key,
    range: &RangeInclusive<Duration>,
    time: Duration,
    span: Span,
) -> Result<Value, Diagnostic> {
    if range.contains(&time) { Ok(Value::Time(time)) } else { Err(out_of_range(key, span)) }
}

fn out_of_range(key: &Key, span: Span) -> Diagnostic {
    Diagnostic::error(format!("`{}` is out of range", key.name))
        .at(span, format!("expected {}", expected(&key.form)))
        .note(format!("{}: {}", key.name, key.doc))
}

fn unit(key: &Key, text: &str, error: UnitError, span: Span) -> Diagnostic {
    let diagnostic = Diagnostic::error(format!("`{}` = \"{text}\" cannot be read", key.name))
        .at(span, error.reason);
    match error.meant {
        Some(meant) => {
            diagnostic.fix(span, format!("\"{meant}\""), format!("did you mean `{meant}`?"))
        }
        None => diagnostic.help(format!("expected {}", expected(&key.form))),
    }
}
