//! Every name against what is declared, and every number against the others.

use pmd_graph::config::sheet::Row;
use pmd_graph::config::units::show_time;
use pmd_graph::diagnostic::{Diagnostic, Span};
use pmd_roce::counters::Counters;
use pmd_roce::event::AsyncEvent;
use pmd_roce::ids::Gid;
use pmd_roce::limits::MAX_GIDS;
use pmd_roce::qp::state::Transport;
use pmd_sim::Path as Route;

use super::tables::{Draft, is_within, unknown_word};
use super::{Connection, Deed, Expect, Fault, Op, Policy, Scenario, Work};
use crate::limits;

/// How requests end other than by a completion.
pub(crate) const ENDS: [&str; 3] = ["event", "refused", "open"];

/// Every name that is not declared.
pub(super) fn names(draft: &mut Draft) {
    let Draft { sheet, hosts, cqs, srqs, qps, works, faults, expects } = draft;
    let mut found: Vec<Option<Diagnostic>> = Vec::new();
    for row in cqs.0.iter().chain(&srqs.0) {
        found.push(hosts.1.dangling(row, "host"));
    }
    for row in &qps.0 {
        found.push(hosts.1.dangling(row, "from"));
        found.push(hosts.1.dangling(row, "to"));
        if !srqs.1.is_empty() || !srqs.0.is_empty() {
            found.push(srqs.1.dangling(row, "srq"));
        }
        found.push(cqs.1.dangling(row, "cq"));
    }
    for row in works.iter().chain(expects.iter()) {
        found.push(qps.1.dangling(row, "qp"));
    }
    for row in faults.iter() {
        found.push(hosts.1.dangling(row, "from"));
        found.push(hosts.1.dangling(row, "to"));
        if let Some(group) = row.settings.group_opt("match")
            && let (Some(name), Some(span)) = (group.text_opt("qp"), group.span("qp"))
        {
            found.push(qps.1.dangling_at(name, span));
        }
    }
    found.into_iter().flatten().for_each(|complaint| sheet.report.push(complaint));
    let end = sheet.end();
    for (rows, what, most) in [(hosts, "host", limits::HOSTS_MAX), (qps, "qp", limits::QPS_MAX)] {
        if rows.0.is_empty() && rows.1.is_empty() && sheet.report.errors() == 0 {
            sheet.report.push(
                Diagnostic::error(format!("the scenario has no {what}"))
                    .at(end, format!("expected a [[{what}]]"))
                    .help("start from configs/lab/lost-ack.toml"),
            );
        }
        if let Some(row) = rows.0.get(most) {
            sheet.report.push(
                Diagnostic::error(format!("more than {most} tables [[{what}]]"))
                    .at(row.span, "one too many"),
            );
        }
    }
}

/// What each table says by itself, and together with others.
pub(super) fn sense(scenario: &Scenario, draft: &mut Draft) {
    let mut found = Vec::new();
    for (qp, row) in scenario.qps.iter().zip(&draft.qps.0) {
        connection(scenario, qp, row, &mut found);
    }
    for (index, row) in draft.cqs.0.iter().enumerate() {
        completions(scenario, index, row, &mut found);
    }
    for (work, row) in scenario.works.iter().zip(&draft.works) {
        carried(scenario, work, row, &mut found);
    }
    for (fault, row) in scenario.faults.iter().zip(&draft.faults) {
        possible(scenario, fault, row, &mut found);
    }
    for (expect, row) in scenario.expects.iter().zip(&draft.expects) {
        expected(scenario, expect, row, &mut found);
    }
    addresses(scenario, &draft.hosts.0, &mut found);
    room(scenario, draft, &mut found);
    found.into_iter().for_each(|complaint| draft.sheet.report.push(complaint));
}

/// Every address is one host's, once.
fn addresses(scenario: &Scenario, rows: &[Row], found: &mut Vec<Diagnostic>) {
    let mut taken: Vec<(Gid, Span)> = Vec::new();
    for (host, row) in scenario.hosts.iter().zip(rows) {
        let key = if row.settings.span("gids").is_some() { "gids" } else { "address" };
        let at = place(row, key);
        if host.gids.len() > MAX_GIDS {
            found.push(
                Diagnostic::error(format!("more than {MAX_GIDS} entries in a GID table"))
                    .at(at, "no port has more"),
            );
        }
        for gid in host.gids.iter().chain(&host.second).filter(|gid| **gid != Gid::default()) {
            let ip = gid.ip();
            if ip.is_multicast() || ip.is_unspecified() {
                found.push(
                    Diagnostic::error(format!("a host cannot have the address {ip}"))
                        .at(at, "expected the address of one host"),
                );
            }
            if let Some((_, first)) = taken.iter().find(|(known, _)| known == gid) {
                found.push(
                    Diagnostic::error(format!("{ip} is taken twice"))
                        .at(at, "the second time")
                        .with(*first, "the first time"),
                );
            }
            taken.push((*gid, at));
        }
    }
}

/// Whether the registered memory of all of it fits.
fn room(scenario: &Scenario, draft: &Draft, found: &mut Vec<Diagnostic>) {
    let mut total = 0_u64;
    let slots = |size: u64, count: u64| (size + 2 * limits::SLOT_GAP).saturating_mul(count);
    let works = scenario.works.iter().zip(&draft.works).map(|(work, row)| {
        let both = work.op.map_or(0, |_| slots(work.size, work.count).saturating_mul(2));
        let receive = scenario.qps[work.qp].receive_size;
        (both.saturating_add(slots(receive, work.post_recv.into())), row, "count")
    });
    let qps = scenario.qps.iter().zip(&draft.qps.0);
    let qps = qps.map(|(qp, row)| (slots(qp.receive_size, qp.receives.into()), row, "receives"));
    let srqs = scenario.srqs.iter().zip(&draft.srqs.0);
    let srqs = srqs.map(|(srq, row)| (slots(srq.size, srq.depth.into()), row, "depth"));
    for (bytes, row, key) in works.chain(qps).chain(srqs) {
        total = total.saturating_add(bytes);
        if total > limits::MEMORY_MAX {
            found.push(
                Diagnostic::error("the scenario needs too much memory")
                    .at(
                        place(row, key),
                        format!("{total} bytes with this, of {}", limits::MEMORY_MAX),
                    )
                    .help("lower the size of messages, or their number"),
            );
            return;
        }
    }
}

fn place(row: &Row, key: &str) -> Span {
    row.settings.span(key).unwrap_or(row.span)
}

fn connection(scenario: &Scenario, qp: &Connection, row: &Row, found: &mut Vec<Diagnostic>) {
    let reliable = qp.transport == Transport::Rc;
    if qp.from == qp.to {
        found.push(
            Diagnostic::error(format!("`{}` is connected to its own host", qp.name))
                .at(place(row, "to"), "the same host as `from`")
                .help("name two hosts"),
        );
    }
    if !reliable {
        for key in
            ["timeout", "retry_cnt", "rnr_retry", "min_rnr_timer", "policy", "alternate", "access"]
        {
            if let Some(span) = row.settings.span(key)
                && !(key == "access" && qp.transport == Transport::Uc)
            {
                found.push(
                    Diagnostic::error(format!("`{key}` does not exist on {:?}", qp.transport))
                        .at(span, "for RC only")
                        .help("remove it, or set transport = \"rc\""),
                );
            }
        }
    }
    if qp.transport != Transport::Ud {
        for key in ["qkey", "to_qkey"] {
            if let Some(span) = row.settings.span(key) {
                found.push(
                    Diagnostic::error(format!("`{key}` does not exist on {:?}", qp.transport))
                        .at(span, "connections have no Q_Key: for UD only"),
                );
            }
        }
    }
    for (key, mtu, host) in [("mtu", qp.mtu, qp.from), ("to_mtu", qp.to_mtu, qp.to)] {
        let host = &scenario.hosts[host];
        if mtu > host.mtu {
            found.push(
                Diagnostic::error(format!("a path MTU of {mtu} is more than its port carries"))
                    .at(place(row, key), format!("the port of `{}` has {}", host.name, host.mtu))
                    .help("lower it, or raise `mtu` of the host"),
            );
        }
    }
    let indices =
        [("sgid_index", qp.sgid_index, qp.from), ("to_sgid_index", qp.to_sgid_index, qp.to)];
    for (key, index, host) in indices {
        let host = &scenario.hosts[host];
        if usize::from(index) >= host.gids.len() {
            let len = host.gids.len();
            found.push(
                Diagnostic::error(format!("`{}` has no address of index {index}", host.name))
                    .at(place(row, key), format!("its GID table has {len} entries"))
                    .help(format!("an index from 0 to {}", len.saturating_sub(1))),
            );
        }
    }
    let has_second = |host: usize| scenario.hosts[host].second.is_some();
    if qp.alternate && !(has_second(qp.from) && has_second(qp.to)) {
        found.push(
            Diagnostic::error(format!("`{}` has no alternate path", qp.name))
                .at(place(row, "alternate"), "expected `second_address` at both hosts"),
        );
    }
    if let Some(srq) = qp.srq.map(|srq| &scenario.srqs[srq]) {
        if srq.host != qp.to {
            found.push(Diagnostic::error(format!("`{}` is on another host", srq.name)).at(
                place(row, "srq"),
                format!("it is on `{}`, receives are at `to`", scenario.hosts[srq.host].name),
            ));
        }
        for key in ["receives", "receive_size", "repost"] {
            if let Some(span) = row.settings.span(key) {
                found.push(
                    Diagnostic::error(format!("`{key}` has no effect on `{}`", qp.name))
                        .at(span, "its receives are those of the shared receive queue")
                        .help("remove it, or `srq`"),
                );
            }
        }
        if qp.transport == Transport::Uc {
            found.push(
                Diagnostic::error("UC takes no shared receive queue")
                    .at(place(row, "srq"), "for RC and UD"),
            );
        }
    }
    if let Some(cq) = qp.cq.map(|cq| &scenario.cqs[cq])
        && cq.host != qp.from
        && cq.host != qp.to
    {
        found.push(Diagnostic::error(format!("`{}` is on another host", cq.name)).at(
            place(row, "cq"),
            format!("it is on `{}`, and neither end is", scenario.hosts[cq.host].name),
        ));
    }
}

/// Whether a completion queue holds all that can complete on it.
fn completions(scenario: &Scenario, index: usize, row: &Row, found: &mut Vec<Diagnostic>) {
    let cq = &scenario.cqs[index];
    let users = scenario.qps.iter().filter(|qp| qp.cq == Some(index));
    let needed: u64 = users
        .map(|qp| {
            let receives = qp.srq.map_or(qp.receives, |srq| scenario.srqs[srq].depth);
            u64::from(if cq.host == qp.from { qp.depth } else { receives })
        })
        .sum();
    if (cq.depth as u64) < needed && !row.settings.flag("overcommit") {
        found.push(
            Diagnostic::error(format!("the completion queue `{}` is too small", cq.name))
                .at(
                    place(row, "depth"),
                    format!("{} entries, and {needed} completions can be outstanding", cq.depth),
                )
                .fix(
                    place(row, "depth"),
                    needed.to_string(),
                    "make it at least the sum of the depths",
                )
                .help("or write overcommit = true, to see what happens"),
        );
    }
}

fn carried(scenario: &Scenario, work: &Work, row: &Row, found: &mut Vec<Diagnostic>) {
    let qp = &scenario.qps[work.qp];
    if work.post_recv > 0 && qp.srq.is_some() {
        found.push(
            Diagnostic::error(format!("`post_recv` has no effect on `{}`", qp.name))
                .at(place(row, "post_recv"), "its receives are those of the shared receive queue")
                .help("remove it, or `srq`"),
        );
    }
    let Some(op) = work.op else {
        if work.post_recv == 0 {
            found.push(
                Diagnostic::error("a work that does nothing")
                    .at(row.span, "it has neither `op` nor `post_recv`")
                    .help("write op = \"write\""),
            );
        }
        return;
    };
    let is_two_sided = matches!(op, Op::Send | Op::SendImm);
    let lacks = match qp.transport {
        Transport::Ud => !is_two_sided,
        Transport::Uc => op == Op::Read || op.is_atomic(),
        _ => false,
    };
    if lacks {
        found.push(
            Diagnostic::error(format!(
                "{:?} cannot carry {}",
                qp.transport,
                row.settings.text("op")
            ))
            .at(place(row, "op"), format!("`{}` is {:?}", qp.name, qp.transport))
            .help("set transport = \"rc\""),
        );
    }
    if qp.transport == Transport::Ud && work.size > qp.mtu.bytes() as u64 {
        found.push(
            Diagnostic::error("a datagram is one packet")
                .at(place(row, "size"), format!("the path carries {} bytes", qp.mtu)),
        );
    }
    if op.is_atomic() && row.settings.span("size").is_some() && row.settings.size("size").get() != 8
    {
        found.push(Diagnostic::error("an atomic has 8 bytes").at(place(row, "size"), "remove it"));
    }
    if !is_within(work.at, scenario.limit) {
        found.push(never(row, "at", scenario));
    }
}

fn never(row: &Row, key: &str, scenario: &Scenario) -> Diagnostic {
    Diagnostic::error("the scenario ends before this")
        .at(place(row, key), format!("its limit is {}", show_time(scenario.limit)))
        .help("raise `limit`, which stands before the first table")
}

fn possible(scenario: &Scenario, fault: &Fault, row: &Row, found: &mut Vec<Diagnostic>) {
    let deed = row.settings.text("do");
    let at_deed = place(row, "do");
    if let Some(until) = fault.until {
        if until <= fault.at {
            found.push(
                Diagnostic::error("a fault is over before it begins")
                    .at(place(row, "until"), format!("it begins at {}", show_time(fault.at))),
            );
        }
        if !fault.deed.lasts() {
            found.push(
                Diagnostic::error(format!("`{deed}` happens at once"))
                    .at(place(row, "until"), "so there is nothing that could end")
                    .help("remove `until`"),
            );
        }
    }
    if !is_within(fault.at, scenario.limit) {
        found.push(never(row, "at", scenario));
    }
    let match_span = place(row, "match");
    match fault.deed {
        Deed::Frames(_) => {
            if let Some(qp) = fault.qp.map(|qp| &scenario.qps[qp])
                && qp.route == Route::Shared
            {
                found.push(
                    Diagnostic::error(format!("`{}` has no frames", qp.name))
                        .at(match_span, "its path is shared memory")
                        .help("set path = \"packets\""),
                );
            }
            if fault.psn.is_some() && fault.qp.is_none() {
                found.push(
                    Diagnostic::error("a PSN without a connection")
                        .at(match_span, "PSNs count from where a connection began")
                        .help("add qp = \"…\""),
                );
            }
        }
        Deed::Partition => {
            let nobody = fault.from.is_none() && fault.to.is_none();
            if nobody || fault.from == fault.to {
                found.push(
                    Diagnostic::error("a partition has two sides")
                        .at(at_deed, "expected `from` and `to`, two hosts, or one that is cut off"),
                );
            }
        }
        _ if fault.to.or(fault.from).is_none() => found.push(
            Diagnostic::error(format!("`{deed}` happens to a host"))
                .at(at_deed, "expected `to`, the host"),
        ),
        Deed::Flip(_) if fault.qp.is_none() => found.push(
            Diagnostic::error("a flip is of a connection's bytes")
                .at(at_deed, "expected `match = { qp = \"…\" }`"),
        ),
        Deed::Pause if fault.until.is_none() => found.push(
            Diagnostic::error("a pause has an end")
                .at(at_deed, "expected `until`")
                .help("a host that never comes back is do = \"kill-host\""),
        ),
        Deed::KillSrq => {
            let host = fault.to.or(fault.from);
            let has = scenario.srqs.iter().any(|srq| Some(srq.host) == host);
            if !has {
                found.push(
                    Diagnostic::error("there is no shared receive queue on this host")
                        .at(place(row, "to"), "expected the host of a [[srq]]"),
                );
            }
        }
        _ => {}
    }
    if !fault.deed.is_of_frames()
        && let Some(group) = row.settings.group_opt("match")
    {
        for key in ["opcode", "psn", "after", "count", "every", "longer_than", "per_million"] {
            if let Some(span) = group.span(key) {
                found.push(
                    Diagnostic::error(format!("`{key}` has no effect on `{deed}`"))
                        .at(span, "it picks frames"),
                );
            }
        }
    }
}

fn expected(scenario: &Scenario, expect: &Expect, row: &Row, found: &mut Vec<Diagnostic>) {
    let qp = &scenario.qps[expect.qp];
    for (key, tally) in [("statuses", &expect.statuses), ("receives", &expect.receives)] {
        for (name, _) in tally.iter().flatten() {
            let is_status = name.parse::<u8>().is_ok_and(|status| status <= 23);
            let is_end = key == "statuses" && ENDS.contains(&name.as_str());
            if !is_status && !is_end {
                found.push(
                    Diagnostic::error(format!("`{name}` is no status"))
                        .at(place(row, key), "expected numbers from 0 to 23, as in \"12\"")
                        .note("as enum ibv_wc_status has them; of requests also \"event\", \"refused\" and \"open\""),
                );
            }
        }
    }
    for (name, _) in expect.events.iter().flatten() {
        let mut names = (0..=19).map(|number| AsyncEvent::from_number(number, 0).name());
        if !names.any(|known| known == name) {
            let names = (0..=19).map(|number| AsyncEvent::from_number(number, 0).name());
            found.push(unknown_word(name, "event", place(row, "events"), names));
        }
    }
    let counters = Counters::default();
    let lists = [("counters", &expect.counters), ("to_counters", &expect.to_counters)];
    let named = lists
        .into_iter()
        .flat_map(|(key, tally)| tally.iter().map(move |(name, _)| (key, name)))
        .chain(expect.still.iter().map(|name| ("still", name)));
    for (key, name) in named {
        if !counters.iter().any(|(known, _)| known == name) {
            let names: Vec<&str> = counters.iter().map(|(known, _)| known).collect();
            found.push(unknown_word(name, "counter", place(row, key), names.into_iter()));
        }
    }
    if expect.rate_within.is_some() && scenario.faults.is_empty() {
        found.push(
            Diagnostic::error("a rate before and after, and no fault in between")
                .at(place(row, "rate_within"), "expected a [[fault]]"),
        );
    }
    if expect.recovers == Some(true) && qp.policy != Policy::Reconnect {
        found.push(
            Diagnostic::error(format!("`{}` has no policy that brings it back", qp.name))
                .at(place(row, "recovers"), "expected policy = \"reconnect\" there"),
        );
    }
    if let (Some(least), Some(most)) = (expect.at_least, expect.within)
        && least > most
    {
        found.push(
            Diagnostic::error("`at_least` is more than `within`")
                .at(place(row, "at_least"), format!("within = {}", show_time(most))),
        );
    }
}
