//! Edges whose queue pairs meet by the connection manager: whether there is one to meet at.

use super::Device;
use super::links::{Declared, Draft};
use super::schema::Value;
use crate::diagnostic::{Diagnostic, Report};

/// Complains of an edge whose device has no packets, in which managers talk.
pub(super) fn has_packets(draft: &Draft, device: Option<&Device>) -> Option<Diagnostic> {
    let settings = &draft.settings;
    let is_managed = settings.value("connect").is_some() && settings.text("connect") == "cm";
    let span = settings.span("connect").filter(|_| is_managed)?;
    let device = device.filter(|device| device.kind == "soft")?;
    let wire = device.settings.span("wire").filter(|_| device.settings.text("wire") == "shm")?;
    let complaint = Diagnostic::error(format!("`{}` has no packets to connect by", draft.name))
        .at(span, "connection managers talk in packets")
        .with(wire, format!("`{}` only shares memory", device.name));
    Some(complaint.fix(wire, "\"auto\"", "share memory where the two ends can, and have packets"))
}

/// Complains of an edge that cannot be connected like that, or need not.
pub(super) fn managed(draft: &Draft, drafts: &[Draft], declared: &Declared, report: &mut Report) {
    let settings = &draft.settings;
    let is_managed = settings.value("connect").is_some() && settings.text("connect") == "cm";
    let Some(span) = settings.span("connect").filter(|_| is_managed) else { return };
    if let Some(Value::Text(peer)) = settings.value("peer") {
        report.push(
            Diagnostic::error(format!("`{}` and its peer are in one process", draft.name))
                .at(span, "the connection manager connects two devices")
                .note(format!("`{peer}` is a node of this file"))
                .fix(span, "\"oob\"", "connect them by their channel"),
        );
        return;
    }
    let calls = matches!(settings.value("peer"), Some(Value::Socket(_)));
    if !calls && settings.value("listen").is_none() {
        report.push(
            Diagnostic::warning(format!("`connect` of `{}` has no effect", draft.name))
                .at(span, "all its clients are in this process"),
        );
        return;
    }
    let place = |draft: &Draft| {
        let lcore = draft.settings.text("lcore");
        declared.lcores.iter().position(|(name, _)| name == lcore)
    };
    let device = |draft: &Draft| {
        draft.settings.value("device").map(|_| draft.settings.text("device").to_owned())
    };
    let beside = drafts.iter().filter(|other| device(other) == device(draft));
    let Some(first) = beside.min_by_key(|other| place(other)) else { return };
    if place(first) < place(draft) {
        let (ours, theirs) = (settings.text("lcore"), first.settings.text("lcore"));
        report.push(
            Diagnostic::error(format!("`{}` is not on the first lcore of its device", draft.name))
                .at(span, format!("connections of a device are managed on its first lcore, {theirs}"))
                .with(draft.span, format!("this node is on {ours}"))
                .help(format!("put it on lcore {theirs}, give {ours} a device of its own, or connect = \"oob\"")),
        );
    }
}
