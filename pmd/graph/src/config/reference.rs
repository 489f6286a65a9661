//! The reference of all keys, written from the same data that checks them.

use std::fmt::Write as _;

use super::decode::expected;
use super::keys;
use super::schema::{Form, Key, Settings};
use super::transport::Transport;
use crate::registry::{NodeFactory, Registry, Schema};

/// Every table and every kind of node of a registry, as Markdown.
pub fn reference(registry: &Registry) -> String {
    let mut page = Page(String::from(
        "# Keys of a pipeline\n\n\
         One TOML file is one process. `spinwire check FILE` says what is wrong with it, `spinwire plan FILE` what would run.\n\
         Any key can be set from the command line: `--set node.NAME.KEY=VALUE`, likewise `device.NAME.KEY`, `lcore.NAME.KEY`,\n\
         `memory.KEY`. This page is written by a test from the data that checks the files.\n",
    ));
    page.section("[memory]", "", &keys::memory());
    page.section(
        "[retry]",
        "For every node that does not say otherwise; where nobody does: 14, 7, 7 and 12.",
        &super::retry::keys().collect::<Vec<_>>(),
    );
    for device in registry.devices().filter(|device| device.is_available()) {
        let title = format!("[device.NAME], kind = \"{}\"", device.kind());
        page.section(&title, "", device.keys());
    }
    page.section("[[lcore]]", "", &keys::lcore());
    page.section("[[node]]", "Of every kind.", &keys::node());
    for factory in registry.nodes() {
        let schema = factory.schema();
        page.section(
            &format!("[[node]], kind = \"{}\"", schema.kind()),
            &about(schema),
            &as_it_takes_them(factory.as_ref()),
        );
    }
    page.section("[observe]", "", &keys::observe());
    page.0
}

/// The keys of a kind, where `transport` has only the words that can carry what the kind posts.
fn as_it_takes_them(factory: &dyn NodeFactory) -> Vec<Key> {
    let mut keys = factory.schema().keys().to_vec();
    let settings = Settings::of_defaults(&keys);
    let needs = factory.traffic(&settings).map(|traffic| traffic.operations).unwrap_or_default();
    let carries = |word: &&'static str| {
        let transport = Transport::from_name(word);
        transport.is_none_or(|transport| {
            needs.iter().all(|need| transport.lacks(need.operation).is_none())
        })
    };
    for key in keys.iter_mut().filter(|key| key.name() == "transport") {
        key.keep_words(carries);
    }
    keys
}

fn about(schema: &Schema) -> String {
    let (first, rest) = schema.summary().split_at(1);
    let mut about = format!("{}{rest}.", first.to_uppercase());
    match (schema.has_input(), schema.has_output()) {
        (true, true) => {
            about.push_str(" Takes blocks from the stages before it and passes them on.");
        }
        (true, false) => about.push_str(" Takes blocks from the stages before it."),
        (false, true) => about.push_str(" Passes blocks on."),
        (false, false) => {}
    }
    about
}

/// Whether this build reads the key at all, and has the word that it is only read with.
fn can_be_used(key: &Key, keys: &[Key]) -> bool {
    let has = |(other, word): (&str, &str)| {
        let other = keys.iter().find(|key| key.name() == other).map(Key::form);
        !matches!(other, Some(Form::Word { words, .. }) if !words.contains(&word))
    };
    key.condition().is_none_or(has)
}

/// A reference that is being written.
#[derive(Debug)]
pub struct Page(String);

impl Page {
    /// Begins with this text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// All of it, as Markdown.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Adds a table of keys.
    pub fn section(&mut self, title: &str, about: &str, keys: &[Key]) {
        let keys: Vec<&Key> = keys.iter().filter(|key| can_be_used(key, keys)).collect();
        self.line(format_args!("\n## {title}\n"));
        if !about.is_empty() {
            self.line(format_args!("{about}\n"));
        }
        if keys.is_empty() {
            return;
        }
        self.line(format_args!("| key | value | default | |\n|---|---|---|---|"));
        for key in keys {
            let default = match key.default_value() {
                Some(value) => format!("`{value}`"),
                None if key.is_required() => "required".into(),
                None => String::new(),
            };
            let value = match key.form() {
                Form::Text | Form::Name => "text".into(),
                form => expected(form),
            };
            let doc = match key.condition() {
                Some((other, word)) => format!("{}; only with `{other} = \"{word}\"`", key.doc()),
                None => key.doc().into(),
            };
            self.line(format_args!("| `{}` | {value} | {default} | {doc} |", key.name()));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A String takes everything.
        let written = writeln!(self.0, "{line}");
        debug_assert!(written.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `UPDATE_REFERENCE=1 cargo test -p pmd-graph reference` writes the page anew.
    #[test]
    fn the_page_beside_the_configs_is_this_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/README.md");
        let page = reference(&Registry::builtin());
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap();
        assert!(
            there == page,
            "configs/README.md is out of date: UPDATE_REFERENCE=1 cargo test -p pmd-graph reference"
        );
    }
}
