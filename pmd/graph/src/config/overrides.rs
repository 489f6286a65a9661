//! `--set node.NAME.key=V`: grafts single values into the tree before it is read.
//!
//! Nodes and lcores are selected by their `name`, devices by their table. V is TOML, else a string.

use super::document::{Entry, Item, Raw, Table, parse_value};
use super::suggest;
use crate::diagnostic::{Diagnostic, Report, SourceKind, Span};

/// The tables a `--set` may begin with, and the shape of the path behind them.
const NAMED: [&str; 3] = ["device", "lcore", "node"];
const PLAIN: [&str; 3] = ["memory", "retry", "observe"];

/// One word of the path, and where it stands.
type Word = (String, Span);

/// Applies each of `sets` to `root`, in order; the last of two for one key wins.
pub(super) fn apply(root: &mut Table, sets: &[String], file: Span, report: &mut Report) {
    for set in sets {
        let span = report.sources.add(SourceKind::Set, "--set", set.as_str());
        if let Err(diagnostic) = graft(root, set, span, file) {
            report.push(diagnostic);
        }
    }
}

fn graft(root: &mut Table, set: &str, span: Span, file: Span) -> Result<(), Diagnostic> {
    let Some((path, value)) = set.split_once('=') else {
        return Err(Diagnostic::error("`--set` without a value")
            .at(span, "expected `=` and a value")
            .help("write it as in --set node.client.depth=64"));
    };
    let value = parse_value(value, span.part(path.len() + 1, set.len()));
    let words = words(path, span);
    let section = words[0].0.as_str();
    if NAMED.contains(&section) {
        let [(_, _), name, key] = words.as_slice() else {
            return Err(shape(span, path, &format!("{section}.NAME.key=VALUE")));
        };
        if section != "device" && key.0 == "name" {
            return Err(Diagnostic::error("a name cannot be set")
                .at(key.1, format!("the {section} is selected by it"))
                .help("change it in the file"));
        }
        let table = match section {
            "device" => device(root, name, file)?,
            _ => element(root, section, name, file)?,
        };
        table.set(entry(key, value));
    } else if PLAIN.contains(&section) {
        let [_, key] = words.as_slice() else {
            return Err(shape(span, path, &format!("{section}.key=VALUE")));
        };
        if root.get(section).is_none() {
            let table = Item { span: words[0].1, raw: Raw::Table(Table::default()) };
            root.set(entry(&words[0], table));
        }
        match root.get_mut(section).map(|entry| &mut entry.item.raw) {
            Some(Raw::Table(table)) => table.set(entry(key, value)),
            // The reader of the section says what is wrong with it.
            _ => return Ok(()),
        }
    } else {
        let known = NAMED.into_iter().chain(PLAIN);
        let mut diagnostic = Diagnostic::error(format!("no table `{section}` to set a key of"))
            .at(words[0].1, "unknown table")
            .note("tables are node.NAME, device.NAME, lcore.NAME, memory, retry, observe");
        if let Some(near) = suggest::nearest(section, known) {
            diagnostic = diagnostic.fix(words[0].1, near, format!("did you mean `{near}`?"));
        }
        return Err(diagnostic);
    }
    Ok(())
}

fn shape(span: Span, path: &str, shape: &str) -> Diagnostic {
    Diagnostic::error("`--set` names no key")
        .at(span.part(0, path.len()), format!("expected {shape}"))
        .help("write it as in --set node.client.depth=64 or --set memory.size=1GiB")
}

/// The words of `path` between dots; at least one.
fn words(path: &str, span: Span) -> Vec<Word> {
    let mut at = 0;
    path.split('.')
        .map(|word| {
            let start = at;
            at += word.len() + 1;
            (word.to_owned(), span.part(start, start + word.len()))
        })
        .collect()
}

fn entry((key, key_span): &Word, item: Item) -> Entry {
    Entry { key: key.clone(), key_span: *key_span, item }
}

fn device<'a>(root: &'a mut Table, name: &Word, file: Span) -> Result<&'a mut Table, Diagnostic> {
    let mut known = Vec::new();
    if let Some(Raw::Table(devices)) = root.get_mut("device").map(|entry| &mut entry.item.raw) {
        known = devices.entries().iter().map(|entry| entry.key.clone()).collect();
        if let Some(Entry { item: Item { raw: Raw::Table(table), .. }, .. }) =
            devices.get_mut(&name.0)
        {
            return Ok(table);
        }
    }
    Err(unknown("device", name, &known, file))
}

fn element<'a>(
    root: &'a mut Table,
    section: &str,
    name: &Word,
    file: Span,
) -> Result<&'a mut Table, Diagnostic> {
    let mut known = Vec::new();
    if let Some(Raw::List(items)) = root.get_mut(section).map(|entry| &mut entry.item.raw) {
        for item in items {
            let Raw::Table(table) = &mut item.raw else { continue };
            match table.text("name") {
                Some(found) if found == name.0 => return Ok(table),
                Some(other) => known.push(other.to_owned()),
                None => {}
            }
        }
    }
    Err(unknown(section, name, &known, file))
}

fn unknown(section: &str, (name, span): &Word, known: &[String], file: Span) -> Diagnostic {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let mut diagnostic = Diagnostic::error(format!("no {section} named `{name}` to set a key of"))
        .at(*span, format!("no such {section}"))
        .note(match known.as_slice() {
            [] => format!("the file declares no {section}"),
            known => format!("the file declares {}", known.join(", ")),
        });
    if known.is_empty() {
        diagnostic = diagnostic.with(file.part(0, 0), "in this file");
    }
    if let Some(near) = suggest::nearest(name, known) {
        diagnostic = diagnostic.fix(*span, near, format!("did you mean `{near}`?"));
    }
    diagnostic
}
