//! The tables of the file, one by one, into the typed [`Config`].

use std::path::PathBuf;

use super::decode::{decode, decode_among};
use super::document::{Entry, Raw, Table};
use super::links::{self, Declared, Draft};
use super::retry::{self, Environment};
use super::schema::{Key, Settings, Value};
use super::transport::Transport;
use super::{Config, Device, Lcore, Memory, Observe, keys, managed, suggest, words};
use crate::diagnostic::{Diagnostic, Report, Span};
use crate::limits::{NAME_BYTES_MAX, NODES_MAX};
use crate::registry::{Registry, Schema};

const TABLES: [&str; 6] = ["memory", "retry", "device", "lcore", "node", "observe"];

/// Reads every table under `root`, and checks what refers to what.
pub(super) fn read(
    root: &Table,
    file: Span,
    environment: Environment<'_>,
    registry: &Registry,
    mut report: Report,
) -> Result<Config, Report> {
    for entry in root.entries() {
        if !TABLES.contains(&entry.key.as_str()) {
            report.push(unknown_table(entry));
        }
    }
    let memory = plain(root, "memory", file, &keys::memory(), &mut report)
        .and_then(|settings| memory(&settings));
    let retry = plain(root, "retry", file, &retry::keys().collect::<Vec<_>>(), &mut report)
        .unwrap_or_default();
    let observe = plain(root, "observe", file, &keys::observe(), &mut report)
        .map(|settings| observe(&settings));

    let mut declared = Declared::default();
    let devices = devices(root, registry, &mut declared, &mut report);
    let lcores = lcores(root, &mut declared, &mut report);
    let drafts = drafts(root, registry, &mut declared, &mut report);
    let mut seen = Vec::new();
    let drafts: Vec<Draft> = drafts
        .into_iter()
        .map(|mut draft| {
            if draft.factory.schema().rdma_side().is_some() {
                let decided = retry::resolve(
                    &draft.name,
                    &draft.settings,
                    &retry,
                    environment,
                    &mut seen,
                    &mut report,
                );
                retry::check_stall(&draft.name, &draft.settings, &decided, &mut report);
                draft.retry = Some(decided);
            }
            draft
        })
        .collect();
    for (list, what) in [(&declared.lcores, "lcore"), (&declared.nodes, "node")] {
        if list.is_empty() && root.get(what).is_none() {
            report.push(
                Diagnostic::error(format!("the pipeline has no {what}"))
                    .at(file.part(usize::MAX, usize::MAX), format!("expected a [[{what}]]"))
                    .help("start from configs/quickstart.toml"),
            );
        }
    }
    let nodes = links::link(&drafts, &declared, &mut report);
    for draft in &drafts {
        let name = draft.settings.value("device").map(|_| draft.settings.text("device"));
        let device = devices.iter().find(|device| Some(device.name.as_str()) == name);
        if let Some(complaint) = managed::has_packets(draft, device) {
            report.push(complaint);
        }
        for complaint in draft.factory.check(&draft.name, draft.span, &draft.settings, device) {
            report.push(complaint);
        }
    }
    match (memory, observe) {
        (Some(memory), Some(observe)) if report.errors() == 0 => {
            Ok(Config { memory, devices, lcores, nodes, observe, report })
        }
        _ => Err(report),
    }
}

fn unknown_table(entry: &Entry) -> Diagnostic {
    let mut diagnostic = Diagnostic::error(format!("a pipeline has no table `{}`", entry.key))
        .at(entry.key_span, "unknown table")
        .note("its tables are [memory], [retry], [device.NAME], [[lcore]], [[node]], [observe]");
    if let Some(near) = suggest::nearest(&entry.key, TABLES) {
        diagnostic = diagnostic.fix(entry.key_span, near, format!("did you mean `{near}`?"));
    }
    diagnostic
}

/// A table that stands once; where it is missing, all its keys have their defaults.
fn plain(
    root: &Table,
    name: &str,
    file: Span,
    keys: &[Key],
    report: &mut Report,
) -> Option<Settings> {
    let keys: Vec<&Key> = keys.iter().collect();
    let empty = Table::default();
    let (table, header) = match root.get(name).map(|entry| (&entry.item.raw, entry.item.span)) {
        None => (&empty, file.part(0, 0)),
        Some((Raw::Table(table), header)) => (table, header),
        Some((raw, header)) => {
            report.push(
                Diagnostic::error(format!("`{name}` cannot be {}", raw.kind()))
                    .at(header, "expected a table")
                    .help(format!("write it once, as [{name}]")),
            );
            return None;
        }
    };
    decode(table, header, &format!("[{name}]"), &keys, report)
}

/// The tables of a list `[[name]]`, with their headers.
pub(super) fn list<'a>(root: &'a Table, name: &str, report: &mut Report) -> Vec<(&'a Table, Span)> {
    let Some(Entry { item, .. }) = root.get(name) else { return Vec::new() };
    let mut complain = |span: Span, found: &str| {
        report.push(
            Diagnostic::error(format!("`{name}` is a list of tables"))
                .at(span, format!("this is {found}"))
                .help(format!("write each as [[{name}]]")),
        );
    };
    let Raw::List(items) = &item.raw else {
        complain(item.span, item.raw.kind());
        return Vec::new();
    };
    let mut tables = Vec::new();
    for item in items {
        match &item.raw {
            Raw::Table(table) => tables.push((table, item.span)),
            other => complain(item.span, other.kind()),
        }
    }
    tables
}

/// A name that nothing declares.
pub(super) fn dangling(
    what: &str,
    name: &str,
    span: Span,
    declared: &[(String, Span)],
) -> Diagnostic {
    let mut names: Vec<&str> = declared.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let mut diagnostic = Diagnostic::error(format!("no {what} is called `{name}`"))
        .at(span, format!("no such {what}"))
        .note(match names.as_slice() {
            [] => format!("the file declares no {what}"),
            names => format!("the file declares {}", names.join(", ")),
        });
    if let Some(near) = suggest::nearest(name, names) {
        diagnostic = diagnostic.fix(span, format!("\"{near}\""), format!("did you mean `{near}`?"));
    }
    diagnostic
}

fn memory(settings: &Settings) -> Option<Memory> {
    Some(Memory {
        size: settings.size("size"),
        size_span: settings.span("size"),
        hugepages: words::meaning(words::HUGEPAGES, settings.text("hugepages"))?,
        numa: words::meaning(words::NUMA, settings.text("numa"))?,
        memlock: words::meaning(words::MEMLOCK, settings.text("memlock"))?,
    })
}

fn observe(settings: &Settings) -> Observe {
    Observe {
        listen: settings.socket_opt("listen"),
        capture: settings.text_opt("capture").map(PathBuf::from),
        run_dir: settings.text_opt("run_dir").map(PathBuf::from),
    }
}

fn devices(
    root: &Table,
    registry: &Registry,
    declared: &mut Declared,
    report: &mut Report,
) -> Vec<Device> {
    let Some(Entry { item, .. }) = root.get("device") else { return Vec::new() };
    let Raw::Table(tables) = &item.raw else {
        report.push(
            Diagnostic::error("a device has a name")
                .at(item.span, format!("this is {}", item.raw.kind()))
                .help("write it as [device.soft0]"),
        );
        return Vec::new();
    };
    let mut devices = Vec::new();
    for Entry { key: name, key_span, item } in tables.entries() {
        let Raw::Table(table) = &item.raw else {
            report.push(
                Diagnostic::error(format!("`device` has no key `{name}`"))
                    .at(*key_span, "a device has a name, and its keys under that")
                    .help("write it as [device.soft0]"),
            );
            continue;
        };
        check_name("device", name, *key_span, report);
        declared.devices.push((name.clone(), *key_span));
        devices.extend(device(name, *key_span, table, item.span, registry, report));
    }
    devices
}

fn device(
    name: &str,
    span: Span,
    table: &Table,
    header: Span,
    registry: &Registry,
    report: &mut Report,
) -> Option<Device> {
    let what = format!("device `{name}`");
    let kind_key = keys::device_kind();
    let Some(kind) = table.text("kind") else {
        let only_kind = [&kind_key];
        let kind: Table = table.get("kind").cloned().into_iter().collect();
        decode(&kind, header, &what, &only_kind, report);
        return None;
    };
    let kind_span = table.get("kind").map_or(header, |entry| entry.item.span);
    let available =
        || registry.devices().filter(|schema| schema.is_available()).map(|schema| schema.kind());
    let Some(schema) = registry.device(kind) else {
        let kinds: Vec<&str> = available().collect();
        let mut diagnostic = Diagnostic::error(format!("no kind of device is called `{kind}`"))
            .at(kind_span, "unknown kind")
            .note(format!("kinds in this build are {}", kinds.join(", ")));
        if let Some(near) = suggest::nearest(kind, kinds) {
            diagnostic =
                diagnostic.fix(kind_span, format!("\"{near}\""), format!("did you mean `{near}`?"));
        }
        report.push(diagnostic);
        return None;
    };
    let keys: Vec<&Key> = std::iter::once(&kind_key).chain(schema.keys()).collect();
    let settings = decode(table, header, &what, &keys, report);
    if !schema.is_available() {
        let kinds: Vec<&str> = available().collect();
        report.push(
            Diagnostic::error(format!("devices of kind `{kind}` are not available in this build"))
                .at(kind_span, "not in this build")
                .help(format!("this build has {}", kinds.join(", "))),
        );
        return None;
    }
    let settings = settings?;
    if let (Some(Value::Address(address)), Some(at)) =
        (settings.value("address"), settings.span("address"))
        && (address.is_unspecified() || address.is_multicast())
    {
        report.push(
            Diagnostic::error(format!("{what} cannot have the address {address}"))
                .at(at, "expected one address of this machine")
                .help("write one, as in \"127.0.0.1\", or \"auto\""),
        );
        return None;
    }
    if let (Some(Value::Address(_)), Some(Value::Count(index)), Some(at)) =
        (settings.value("address"), settings.value("gid_index"), settings.span("gid_index"))
    {
        report.push(
            Diagnostic::error(format!("{what} has both an address and the index of one"))
                .at(at, format!("entry {index} of the GID table, whatever its address is"))
                .help("leave out one of both"),
        );
        return None;
    }
    Some(Device { name: name.to_owned(), kind: schema.kind(), settings, span })
}

fn lcores(root: &Table, declared: &mut Declared, report: &mut Report) -> Vec<Lcore> {
    let keys = keys::lcore();
    let keys: Vec<&Key> = keys.iter().collect();
    let mut lcores = Vec::new();
    for (table, header) in list(root, "lcore", report) {
        let (name, span) = declare("lcore", table, header, &mut declared.lcores, report);
        let settings = decode(table, header, &called("lcore", name), &keys, report);
        let Some(settings) = settings else { continue };
        lcores.push(Lcore {
            name: settings.text("name").to_owned(),
            // The range of the key is that of u32, which no usize lacks here.
            cpu: settings.count_opt("cpu").and_then(|cpu| usize::try_from(cpu).ok()),
            cpu_span: settings.span("cpu"),
            idle: words::meaning(words::IDLE, settings.text("idle")).unwrap_or_default(),
            span,
        });
    }
    lcores
}

/// Nodes whose keys have passed, and whose names have not been looked up.
fn drafts(
    root: &Table,
    registry: &Registry,
    declared: &mut Declared,
    report: &mut Report,
) -> Vec<Draft> {
    let common = keys::node();
    let mut drafts = Vec::new();
    let tables = list(root, "node", report);
    if let Some((_, header)) = tables.get(NODES_MAX) {
        report.push(
            Diagnostic::error(format!("more than {NODES_MAX} nodes")).at(*header, "one too many"),
        );
    }
    for (table, header) in tables.into_iter().take(NODES_MAX) {
        let (name, span) = declare("node", table, header, &mut declared.nodes, report);
        let what = called("node", name);
        let factory = table.text("kind").and_then(|kind| registry.node(kind));
        let Some(factory) = factory else {
            match (table.get("kind"), table.text("kind")) {
                (Some(entry), Some(kind)) => {
                    report.push(unknown_kind(kind, entry.item.span, registry));
                }
                _ => {
                    let kind: Vec<&Key> =
                        common.iter().filter(|key| key.name() == "kind").collect();
                    let table: Table = table.get("kind").cloned().into_iter().collect();
                    decode(&table, header, &what, &kind, report);
                }
            }
            continue;
        };
        let keys: Vec<&Key> = common.iter().chain(factory.schema().keys()).collect();
        let others = |key: &str| kinds_with(registry, key);
        let settings = decode_among(table, header, &what, &keys, &others, report);
        let Some(settings) = settings else { continue };
        drafts.push(Draft {
            name: settings.text("name").to_owned(),
            span,
            factory: factory.clone(),
            transport: settings
                .value("peer")
                .and_then(|_| settings.text_opt("transport"))
                .and_then(Transport::from_name),
            settings,
            retry: None,
        });
    }
    drafts
}

/// The kinds of node that have a key of their own of this name.
fn kinds_with(registry: &Registry, key: &str) -> Vec<&'static str> {
    let has = |schema: &&Schema| schema.keys().iter().any(|known| known.name() == key);
    registry.nodes().map(|factory| factory.schema()).filter(has).map(Schema::kind).collect()
}

fn unknown_kind(kind: &str, span: Span, registry: &Registry) -> Diagnostic {
    let kinds: Vec<&str> = registry.nodes().map(|factory| factory.schema().kind()).collect();
    let mut diagnostic = Diagnostic::error(format!("no kind of node is called `{kind}`"))
        .at(span, "unknown kind")
        .note(format!("kinds are {}", kinds.join(", ")));
    if let Some(near) = suggest::nearest(kind, kinds) {
        diagnostic = diagnostic.fix(span, format!("\"{near}\""), format!("did you mean `{near}`?"));
    }
    diagnostic
}

pub(super) fn called(what: &str, name: Option<&str>) -> String {
    name.map_or_else(|| format!("this {what}"), |name| format!("{what} `{name}`"))
}

/// Notes the name of an lcore or node, so that others can refer to it even where its other keys are wrong. Returns the
/// name and where it stands.
pub(super) fn declare<'a>(
    what: &str,
    table: &'a Table,
    header: Span,
    names: &mut Vec<(String, Span)>,
    report: &mut Report,
) -> (Option<&'a str>, Span) {
    let (Some(name), Some(entry)) = (table.text("name"), table.get("name")) else {
        return (None, header);
    };
    let span = entry.item.span;
    if let Some((_, first)) = names.iter().find(|(known, _)| known == name) {
        report.push(
            Diagnostic::error(format!("two {what}s are called `{name}`"))
                .at(span, "the second")
                .with(*first, "the first")
                .help("give each a name of its own"),
        );
    }
    if !name.is_empty() {
        check_name(what, name, span, report);
        names.push((name.to_owned(), span));
    }
    (Some(name), span)
}

/// Names stand in `--set` paths and in environment variables, which bounds their alphabet.
fn check_name(what: &str, name: &str, span: Span, report: &mut Report) {
    let plain =
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if !plain || name.len() > NAME_BYTES_MAX {
        report.push(
            Diagnostic::error(format!("`{name}` is no name for a {what}"))
                .at(span, format!("expected up to {NAME_BYTES_MAX} letters, digits, `-` and `_`")),
        );
    }
}
