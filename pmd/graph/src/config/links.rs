//! What refers to what: every name against what is declared, every edge against the kinds at its ends.

use std::net::IpAddr;
use std::sync::Arc;

use pmd_verbs::connect::Psk;

use super::managed::managed;
use super::retry::{self, Retry};
use super::schema::{Settings, Value};
use super::tables::dangling;
use super::transport::{Operation, Transport};
use super::{Node, Peer};
use crate::diagnostic::{Diagnostic, Report, Span};
use crate::plan::demand::Need;
use crate::registry::{NodeFactory, Role};

/// The names that the file declares, with the place of each, also of tables whose other keys are wrong.
#[derive(Debug, Default)]
pub(super) struct Declared {
    pub(super) devices: Vec<(String, Span)>,
    pub(super) lcores: Vec<(String, Span)>,
    pub(super) nodes: Vec<(String, Span)>,
}

/// A node whose own keys have passed.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) factory: Arc<dyn NodeFactory>,
    pub(super) settings: Settings,
    pub(super) transport: Option<Transport>,
    pub(super) retry: Option<Retry>,
}

impl Draft {
    fn kind(&self) -> &'static str {
        self.factory.schema().kind()
    }

    fn has_peer(&self) -> bool {
        self.settings.value("peer").is_some()
    }

    fn answers(&self) -> bool {
        match self.factory.schema().rdma_side().map(|rdma| rdma.role) {
            Some(Role::Responder) => true,
            Some(Role::Either) => !self.has_peer(),
            Some(Role::Initiator) | None => false,
        }
    }
}

/// Looks up every name. The result is complete only if nothing was complained about.
pub(super) fn link(drafts: &[Draft], declared: &Declared, report: &mut Report) -> Vec<Node> {
    let before = report.errors();
    for draft in drafts {
        stage(draft, drafts, declared, report);
        edge(draft, drafts, declared, report);
    }
    // A node that did not pass, or an edge to a wrong name, may be what is missed here.
    if drafts.len() == declared.nodes.len() && report.errors() == before {
        for draft in drafts {
            reached(draft, drafts, report);
        }
        cycles(drafts, report);
    }
    for draft in drafts {
        exposed(draft, report);
        managed(draft, drafts, declared, report);
        carried(draft, report);
        queues(draft, report);
    }
    if report.errors() == 0 {
        unused(drafts, declared, report);
    }
    let indexed =
        |list: &[(String, Span)], name: &str| list.iter().position(|(known, _)| known == name);
    let node = |name: &str| drafts.iter().position(|draft| draft.name == name);
    let mut nodes = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let settings = &draft.settings;
        let lookup = |key: &str| settings.value(key).is_some().then(|| settings.text(key));
        let Some(lcore) = indexed(&declared.lcores, settings.text("lcore")) else { continue };
        nodes.push(Node {
            name: draft.name.clone(),
            factory: draft.factory.clone(),
            lcore,
            device: lookup("device").and_then(|name| indexed(&declared.devices, name)),
            to: lookup("to").and_then(node),
            peer: match settings.value("peer") {
                Some(Value::Text(name)) => node(name).map(Peer::Node),
                Some(Value::Socket(address)) => Some(Peer::Remote(*address)),
                _ => None,
            },
            transport: draft.transport,
            listen: match settings.value("listen") {
                Some(Value::Socket(address)) => Some(*address),
                _ => None,
            },
            retry: draft
                .retry
                .clone()
                .filter(|_| draft.transport.is_none_or(Transport::is_reliable)),
            settings: settings.clone(),
            span: draft.span,
        });
    }
    nodes
}

/// Complains if `key` names something that is not in `declared`; returns the name and its place if it is.
fn known<'a>(
    draft: &'a Draft,
    key: &str,
    what: &str,
    declared: &[(String, Span)],
    report: &mut Report,
) -> Option<(&'a str, Span)> {
    let (Some(Value::Text(name)), Some(span)) =
        (draft.settings.value(key), draft.settings.span(key))
    else {
        return None;
    };
    if !declared.iter().any(|(known, _)| known == name) {
        report.push(dangling(what, name, span, declared));
        return None;
    }
    Some((name, span))
}

/// The lcore of a node and its next stage.
fn stage(draft: &Draft, drafts: &[Draft], declared: &Declared, report: &mut Report) {
    known(draft, "lcore", "lcore", &declared.lcores, report);
    let Some((name, span)) = known(draft, "to", "node", &declared.nodes, report) else { return };
    let Some(next) = drafts.iter().find(|next| next.name == name) else { return };
    if !next.factory.schema().has_input() {
        report.push(
            Diagnostic::error(format!("`{name}` takes nothing from an earlier stage"))
                .at(span, format!("a {} has no input", next.kind()))
                .with(next.span, "declared here")
                .help("`to` names a stage; the far end of an RDMA edge is the `peer` of a client"),
        );
        return;
    }
    let (ours, theirs) = (draft.settings.text("lcore"), next.settings.text("lcore"));
    if ours != theirs {
        let mut diagnostic =
            Diagnostic::error(format!("`{}` and its next stage are on two lcores", draft.name))
                .at(span, format!("`{name}` is on {theirs}, `{}` on {ours}", draft.name))
                .note("stages of one pipeline share an lcore; between lcores there are RDMA edges");
        if let Some(lcore) = next.settings.span("lcore") {
            diagnostic = diagnostic.fix(lcore, format!("\"{ours}\""), "put them on one lcore");
        }
        report.push(diagnostic);
    }
}

/// The device and the far end of an RDMA edge.
fn edge(draft: &Draft, drafts: &[Draft], declared: &Declared, report: &mut Report) {
    known(draft, "device", "device", &declared.devices, report);
    let Some(rdma) = draft.factory.schema().rdma_side() else { return };
    if let Some((name, span)) = known(draft, "peer", "node", &declared.nodes, report)
        && let Some(far) = drafts.iter().find(|far| far.name == name)
    {
        let theirs = far.factory.schema().rdma_side();
        if std::ptr::eq(far, draft) {
            report.push(
                Diagnostic::error(format!("`{name}` is its own peer"))
                    .at(span, "an RDMA edge joins two nodes"),
            );
        } else if !far.answers() || theirs.is_none_or(|theirs| theirs.protocol != rdma.protocol) {
            let candidates: Vec<&str> = drafts
                .iter()
                .filter(|other| other.answers() && other.name != draft.name)
                .filter(|other| {
                    other
                        .factory
                        .schema()
                        .rdma_side()
                        .is_some_and(|side| side.protocol == rdma.protocol)
                })
                .map(|other| other.name.as_str())
                .collect();
            let why = if far.answers() { "speaks another protocol" } else { "accepts no clients" };
            let diagnostic =
                Diagnostic::error(format!("`{name}` cannot be the peer of `{}`", draft.name))
                    .at(span, format!("a {} {why}", far.kind()))
                    .with(far.span, "declared here");
            report.push(match candidates.as_slice() {
                [] => diagnostic,
                names => diagnostic.help(format!(
                    "peers for a {} here: {}",
                    draft.kind(),
                    names.join(", ")
                )),
            });
        }
    }
    if draft.has_peer() && draft.settings.value("listen").is_some() {
        let span = draft.settings.span("listen").unwrap_or(draft.span);
        report.push(
            Diagnostic::error(format!("`{}` has a peer and listens", draft.name))
                .at(span, "a node does one or the other")
                .help("remove `listen`, or `peer`"),
        );
    }
}

/// Whether connection data crosses a network that nobody has called trusted.
fn exposed(draft: &Draft, report: &mut Report) {
    let settings = &draft.settings;
    let far = ["listen", "peer"].into_iter().find_map(|key| match settings.value(key) {
        Some(Value::Socket(address)) => Some((key, *address)),
        _ => None,
    });
    let key = settings.span("psk_file");
    if let Some(at) = key
        && Psk::parse(settings.text("psk_file").as_bytes()).is_ok()
    {
        let place =
            format!("it stands in {}, line {}", report.sources.name(at), report.sources.line(at));
        // Not at its place: that would show it.
        report.push(
            Diagnostic::error(format!(
                "`psk_file` of `{}` is a key, not the name of a file with one",
                draft.name
            ))
            .note(place)
            .note("whoever sees the config or the command line has seen the key")
            .help("give a file, not the key, and make a new one: (umask 077; head -c 32 /dev/urandom | base64 > FILE)")
            .help("if a file has that name, begin it with ./ or /./"),
        );
        return;
    }
    if let (Some(key), None) = (key, far) {
        report.push(
            Diagnostic::warning(format!("`psk_file` of `{}` has no effect", draft.name))
                .at(key, "both ends of the edge are in this process"),
        );
    }
    // A group is refused for what it is.
    let crosses = |ip: IpAddr| !ip.is_loopback() && !ip.is_multicast();
    let Some((name, address)) = far.filter(|(_, address)| crosses(address.ip())) else { return };
    if key.is_none() && !settings.flag("plaintext") {
        report.push(
            Diagnostic::error(format!(
                "connection data of `{}` would cross a network in the clear",
                draft.name
            ))
            .at(
                settings.span(name).unwrap_or(draft.span),
                format!("{} is not on this host's loopback", address.ip()),
            )
            .note("whoever reads the keys in it can reach the memory that the two ends register")
            .help("give both ends one key: psk_file = \"FILE\", made by (umask 077; head -c 32 /dev/urandom | base64 > FILE)")
            .help("or, where every host and switch of the network is trusted: plaintext = true"),
        );
    }
}

/// Whether the transport has every operation that the node posts, and every field that it sets.
fn carried(draft: &Draft, report: &mut Report) {
    let Some(transport) = draft.transport else { return };
    if !transport.is_reliable() {
        for (key, span) in retry::given(&draft.settings) {
            report.push(
                Diagnostic::error(format!("`{key}` does not exist on {transport}"))
                    .at(span, "only RC retries")
                    .help(format!("remove it, or set transport = \"{}\"", Transport::Rc.name())),
            );
        }
    }
    let mut needs = draft
        .factory
        .traffic(&draft.settings)
        .map(|traffic| traffic.operations)
        .unwrap_or_default();
    if let Some(Value::Socket(address)) = draft.settings.value("peer")
        && address.ip().is_multicast()
    {
        needs.push(Need {
            operation: Operation::Multicast,
            reason: "the peer is a multicast address",
        });
    }
    let place = draft.settings.span("transport").unwrap_or(draft.span);
    for Need { operation, reason } in needs {
        let Some(lack) = transport.lacks(operation) else { continue };
        let mut diagnostic =
            Diagnostic::error(format!("`{}` needs {operation} on {transport}", draft.name))
                .at(place, format!("{transport} cannot carry {operation}"))
                .note(reason)
                .note(lack);
        let mut able = [Transport::Rc, Transport::Uc, Transport::Ud].into_iter();
        if let Some(able) = able.find(|other| other.lacks(operation).is_none()) {
            let quoted = format!("\"{}\"", able.name());
            let text = format!("use transport = {quoted}");
            diagnostic = match draft.settings.span("transport") {
                Some(span) => diagnostic.fix(span, quoted, text),
                None => diagnostic.help(text),
            };
        }
        report.push(diagnostic);
    }
}

/// Whether the completion queue holds what its queues can complete.
fn queues(draft: &Draft, report: &mut Report) {
    let (Some(depth), Some(span)) =
        (draft.settings.count_opt("cq_depth"), draft.settings.span("cq_depth"))
    else {
        return;
    };
    let Some(traffic) = draft.factory.traffic(&draft.settings) else { return };
    let needed = traffic.qps * traffic.local.completions();
    if depth < needed {
        let title = format!("the completion queue of `{}` is too small", draft.name);
        let taken =
            draft.settings.value("cq_overcommit").is_some() && draft.settings.flag("cq_overcommit");
        let title = if taken { Diagnostic::warning(title) } else { Diagnostic::error(title) };
        report.push(
            title
                .at(span, format!("{depth} entries, and {needed} completions can be outstanding"))
                .note(format!(
                    "qps = {} x (send queue of {} + receive queue of {}): when a QP fails, each work request completes",
                    traffic.qps, traffic.local.send, traffic.local.receive
                ))
                .fix(span, needed.to_string(), "make it at least the sum of the depths, or \"auto\"")
                .help(match taken {
                    true => "it is taken for the sake of cq_overcommit: when it overruns, its queue pairs fail",
                    false => "or set cq_overcommit = true, to see what happens",
                }),
        );
    }
}

/// Whether anything comes to a node that only works on what others give it.
fn reached(draft: &Draft, drafts: &[Draft], report: &mut Report) {
    let names = |key: &str, other: &Draft| matches!(other.settings.value(key), Some(Value::Text(name)) if *name == draft.name);
    if draft.factory.schema().has_input() && !drafts.iter().any(|other| names("to", other)) {
        report.push(
            Diagnostic::error(format!("nothing comes to `{}`", draft.name))
                .at(draft.span, format!("no node has to = \"{}\"", draft.name))
                .note(format!("a {} works on what an earlier stage passes to it", draft.kind())),
        );
    }
    if !draft.answers() {
        return;
    }
    if draft.settings.value("listen").is_none() {
        if !drafts.iter().any(|other| names("peer", other)) {
            report.push(
                Diagnostic::error(format!("nobody can reach `{}`", draft.name))
                    .at(
                        draft.span,
                        format!("no node has peer = \"{}\", and it does not listen", draft.name),
                    )
                    .help("add listen = \"127.0.0.1:7471\" for clients of other processes"),
            );
        }
        if let Some(span) = draft.settings.span("serve") {
            report.push(
                Diagnostic::error(format!("`serve` of `{}` has no effect", draft.name))
                    .at(span, "it counts the clients of a listener")
                    .help("add listen = \"127.0.0.1:7471\", or remove it"),
            );
        }
    }
}

/// Stages that lead back to themselves.
fn cycles(drafts: &[Draft], report: &mut Report) {
    let next = |draft: &Draft| match draft.settings.value("to") {
        Some(Value::Text(name)) => drafts.iter().position(|other| other.name == *name),
        _ => None,
    };
    for (index, draft) in drafts.iter().enumerate() {
        let mut path = vec![draft.name.as_str()];
        let (mut at, mut least) = (next(draft), index);
        while let Some(stage) = at {
            least = least.min(stage);
            path.push(&drafts[stage].name);
            if stage == index || path.len() > drafts.len() {
                break;
            }
            at = next(&drafts[stage]);
        }
        // Each circle is told once, at its first node.
        if at == Some(index) && least == index {
            report.push(
                Diagnostic::error("stages go round in a circle")
                    .at(draft.settings.span("to").unwrap_or(draft.span), path.join(" -> "))
                    .help("let the last stage end in a client or a sink"),
            );
        }
    }
}

/// What is declared and not used.
fn unused(drafts: &[Draft], declared: &Declared, report: &mut Report) {
    for (list, key) in [(&declared.lcores, "lcore"), (&declared.devices, "device")] {
        for (name, span) in list {
            let used = |draft: &Draft| matches!(draft.settings.value(key), Some(Value::Text(used)) if used == name);
            if !drafts.iter().any(used) {
                report.push(
                    Diagnostic::warning(format!("no node uses {key} `{name}`")).at(*span, "unused"),
                );
            }
        }
    }
}
