//! The tables of the file, one by one, into the typed [`Scenario`].

use core::time::Duration;
use std::net::IpAddr;

use pmd_graph::config::schema::{Settings, Value};
use pmd_graph::config::sheet::{Names, Row, Sheet};
use pmd_graph::config::suggest;
use pmd_graph::diagnostic::{Diagnostic, Report, Span};
use pmd_observe::Code;
use pmd_roce::ids::{Gid, PathMtu};
use pmd_roce::qp::state::Transport;
use pmd_roce::wire::Opcode;
use pmd_roce::work::Access;
use pmd_sim::{Frames, Path as Route};

use super::{
    Connection, Cq, Deed, Expect, Fault, Host, Op, Policy, Scenario, Srq, Work, check, keys,
};
use crate::limits;

/// The tables, with their places, while they are checked.
pub(super) struct Draft {
    pub(super) sheet: Sheet,
    pub(super) hosts: (Vec<Row>, Names),
    pub(super) cqs: (Vec<Row>, Names),
    pub(super) srqs: (Vec<Row>, Names),
    pub(super) qps: (Vec<Row>, Names),
    pub(super) works: Vec<Row>,
    pub(super) faults: Vec<Row>,
    pub(super) expects: Vec<Row>,
}

/// Reads every table, and checks what refers to what.
pub(super) fn scenario(mut sheet: Sheet) -> Result<Scenario, Report> {
    let top = sheet.top(&keys::scenario());
    refuse_nodes(&mut sheet);
    let mut draft = Draft {
        hosts: sheet.rows("host", &keys::host()),
        cqs: sheet.rows("cq", &keys::cq()),
        srqs: sheet.rows("srq", &keys::srq()),
        qps: sheet.rows("qp", &keys::qp()),
        works: sheet.rows("work", &keys::work()).0,
        faults: sheet.rows("fault", &keys::fault()).0,
        expects: sheet.rows("expect", &keys::expect()).0,
        sheet,
    };
    check::names(&mut draft);
    if draft.sheet.report.errors() > 0 {
        return Err(draft.sheet.report);
    }
    let scenario = build(&top, &mut draft);
    check::sense(&scenario, &mut draft);
    if draft.sheet.report.errors() > 0 {
        return Err(draft.sheet.report);
    }
    Ok(scenario)
}

/// The laboratory is a closed world: it has queue pairs, and no node that could reach a file or a socket.
fn refuse_nodes(sheet: &mut Sheet) {
    for (kind, span) in sheet.refused("node", "kind") {
        let title = match kind.as_str() {
            "" => "a node has no place in a scenario".to_owned(),
            kind if kind.starts_with("file") || kind.starts_with("block") => {
                format!("`{kind}` touches files, which the laboratory does not have")
            }
            kind => format!("`{kind}` has no place in a scenario"),
        };
        sheet.report.push(
            Diagnostic::error(title)
                .at(span, "a scenario is a closed world of hosts and queue pairs")
                .help("say what it does as [[work]]; `spinwire run` is for pipelines"),
        );
    }
}

fn build(top: &Settings, draft: &mut Draft) -> Scenario {
    let Draft { sheet, hosts, cqs, srqs, qps, works, faults, expects } = draft;
    let index = |rows: &(Vec<Row>, Names), name: &str| {
        rows.0.iter().position(|row| row.settings.text("name") == name).unwrap_or_default()
    };
    let report = &mut sheet.report;
    let host_list: Vec<Host> =
        hosts.0.iter().enumerate().map(|(number, row)| host(number, row, report)).collect();
    let works: Vec<Work> =
        works.iter().map(|row| work(row, index(qps, row.settings.text("qp")))).collect();
    // Where no queue is declared, whoever names one declares it.
    let mut implied: Vec<&str> = Vec::new();
    for name in qps.0.iter().filter_map(|row| row.settings.text_opt("srq")) {
        if srqs.0.is_empty() && !implied.contains(&name) {
            implied.push(name);
        }
    }
    let mut connections: Vec<Connection> = qps
        .0
        .iter()
        .map(|row| {
            let name = |key: &str| row.settings.text(key);
            let ends = (index(hosts, name("from")), index(hosts, name("to")));
            let srq = row.settings.text_opt("srq").map(|name| match &implied[..] {
                [] => index(srqs, name),
                implied => implied.iter().position(|known| *known == name).unwrap_or_default(),
            });
            let cq = row.settings.text_opt("cq").map(|name| index(cqs, name));
            connection(row, ends, srq, cq, &host_list, report)
        })
        .collect();
    for work in &works {
        let (Some(op), Some(qp)) = (work.op, connections.get_mut(work.qp)) else { continue };
        let given = &qps.0[work.qp].settings;
        if op.takes_receive() && given.size_opt("receive_size").is_none() {
            qp.receive_size = qp.receive_size.max(work.size);
        }
        if op.takes_receive() && given.count_opt("receives").is_none() && qp.srq.is_none() {
            qp.receives = qp.depth;
        }
    }
    let declared = srqs.0.iter().map(|row| Srq {
        name: row.settings.text("name").to_owned(),
        host: index(hosts, row.settings.text("host")),
        depth: small(row.settings.count("depth")),
        limit: row.settings.count_opt("limit").map(small),
        size: row.settings.size("size").get(),
        hold: row.settings.time("hold"),
    });
    let implied = implied.iter().enumerate().map(|(index, name)| {
        let users = || connections.iter().filter(|qp| qp.srq == Some(index));
        Srq {
            name: (*name).to_owned(),
            host: users().next().map_or(0, |qp| qp.to),
            depth: users().map(|qp| qp.depth).sum(),
            limit: None,
            size: users().map(|qp| qp.receive_size).max().unwrap_or_default(),
            hold: Duration::ZERO,
        }
    });
    let host_of = |row: &Row, key: &str| row.settings.text_opt(key).map(|name| index(hosts, name));
    Scenario {
        text: String::new(),
        seed: top.count("seed"),
        limit: top.time("limit"),
        cqs: cqs
            .0
            .iter()
            .map(|row| Cq {
                name: row.settings.text("name").to_owned(),
                host: index(hosts, row.settings.text("host")),
                depth: usize::try_from(row.settings.count("depth")).unwrap_or(usize::MAX),
            })
            .collect(),
        srqs: declared.chain(implied).collect(),
        qps: connections,
        faults: faults
            .iter()
            .map(|row| {
                let of = row.settings.group_opt("match").and_then(|group| group.text_opt("qp"));
                let qp = of.map(|name| index(qps, name));
                fault(row, host_of(row, "from"), host_of(row, "to"), qp, report)
            })
            .collect(),
        expects: expects
            .iter()
            .map(|row| expect(row, index(qps, row.settings.text("qp")), report))
            .collect(),
        hosts: host_list,
        works,
    }
    .with_text(sheet.text())
}

impl Scenario {
    fn with_text(mut self, text: &str) -> Self {
        text.clone_into(&mut self.text);
        self
    }
}

/// A number whose range the keys have checked.
pub(super) fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn byte(count: u64) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

fn mtu(bytes: u64) -> PathMtu {
    let bytes = usize::try_from(bytes).unwrap_or_default();
    PathMtu::from_bytes(bytes).unwrap_or(PathMtu::B1024)
}

fn host(number: usize, row: &Row, report: &mut Report) -> Host {
    let settings = &row.settings;
    let first = match settings.value("address") {
        Some(Value::Address(address)) => Gid::from(*address),
        _ => Gid::from(IpAddr::from([10, 0, 0, byte(number as u64 + 1)])),
    };
    let (mut gids, mut old) = (vec![first], Vec::new());
    if let Some(list) = settings.list_opt("gids") {
        gids.clear();
        for text in list {
            match gid(text) {
                Some((gid, is_old)) => {
                    gids.push(gid);
                    old.extend(is_old.then_some(gid));
                }
                None => report.push(
                    Diagnostic::error(format!("`{text}` is no entry of a GID table"))
                        .at(settings.span("gids").unwrap_or(row.span), "in this list")
                        .help("write \"10.0.0.1\", \"10.0.0.1 v1\", \"fe80::1 v2\", or \"-\" for a vacant entry"),
                ),
            }
        }
        if gids.iter().all(|gid| *gid == Gid::default()) {
            report.push(
                Diagnostic::error("a host without an address")
                    .at(settings.span("gids").unwrap_or(row.span), "all entries are vacant"),
            );
        }
    }
    let second = match settings.value("second_address") {
        Some(Value::Address(address)) => Some(Gid::from(*address)),
        _ => None,
    };
    let (name, mtu) = (settings.text("name").to_owned(), mtu(settings.count("mtu")));
    Host { name, gids, second, old, mtu }
}

/// An address and whether it is one of RoCE v1.
fn gid(text: &str) -> Option<(Gid, bool)> {
    if text == "-" {
        return Some((Gid::default(), false));
    }
    let mut words = text.split_whitespace();
    let address: IpAddr = words.next()?.parse().ok()?;
    let old = match (words.next(), words.next()) {
        (None | Some("v2"), None) => false,
        (Some("v1"), None) => true,
        _ => return None,
    };
    Some((address.into(), old))
}

fn connection(
    row: &Row,
    (from, to): (usize, usize),
    srq: Option<usize>,
    cq: Option<usize>,
    hosts: &[Host],
    report: &mut Report,
) -> Connection {
    let settings = &row.settings;
    let transport = match settings.text("transport") {
        "uc" => Transport::Uc,
        "ud" => Transport::Ud,
        _ => Transport::Rc,
    };
    let least =
        [from, to].into_iter().filter_map(|host| hosts.get(host)).map(|host| host.mtu).min();
    let path_mtu = settings.count_opt("mtu").map(mtu).or(least).unwrap_or(PathMtu::B1024);
    let depth = small(settings.count("depth"));
    let rd_atomic = byte(settings.count("rd_atomic"));
    let qkey = small(settings.count("qkey"));
    Connection {
        name: settings.text("name").to_owned(),
        from,
        to,
        transport,
        route: if settings.text("path") == "shared" { Route::Shared } else { Route::Packets },
        timeout: byte(settings.count("timeout")),
        retry_cnt: byte(settings.count("retry_cnt")),
        rnr_retry: byte(settings.count("rnr_retry")),
        min_rnr_timer: byte(settings.count("min_rnr_timer")),
        depth,
        receives: settings.count_opt("receives").map_or(0, small),
        receive_size: settings.size_opt("receive_size").map_or(0, |size| size.get()),
        bad_receives: settings.text("receive_lkey") == "bad",
        repost: settings.flag("repost"),
        srq,
        cq,
        access: access(row, report),
        rd_atomic,
        to_rd_atomic: settings.count_opt("to_rd_atomic").map_or(rd_atomic, byte),
        rq_psn: settings.count_opt("rq_psn").map(small),
        qkey,
        to_qkey: settings.count_opt("to_qkey").map_or(qkey, small),
        sgid_index: byte(settings.count("sgid_index")),
        to_sgid_index: byte(settings.count("to_sgid_index")),
        mtu: path_mtu,
        to_mtu: settings.count_opt("to_mtu").map_or(path_mtu, mtu),
        ack_per_message: settings.text("acks") == "message",
        hold_init: settings.text_opt("hold").is_some(),
        alternate: settings.flag("alternate"),
        policy: match settings.text("policy") {
            "reconnect" => Policy::Reconnect,
            _ => Policy::None,
        },
    }
}

fn access(row: &Row, report: &mut Report) -> Access {
    const RIGHTS: [(&str, Access); 3] = [
        ("write", Access::REMOTE_WRITE),
        ("read", Access::REMOTE_READ),
        ("atomic", Access::REMOTE_ATOMIC),
    ];
    let Some(list) = row.settings.list_opt("access") else {
        return RIGHTS.into_iter().map(|(_, right)| right).collect();
    };
    let mut access = Access::empty();
    for word in list {
        match RIGHTS.iter().find(|(known, _)| known == word) {
            Some((_, right)) => access |= *right,
            None => report.push(unknown_word(
                word,
                "right",
                row.settings.span("access").unwrap_or(row.span),
                RIGHTS.iter().map(|(known, _)| *known),
            )),
        }
    }
    access
}

/// A word within a value that is none of those that there are.
pub(super) fn unknown_word<'a>(
    word: &str,
    what: &str,
    span: Span,
    words: impl Iterator<Item = &'a str> + Clone,
) -> Diagnostic {
    let known: Vec<&str> = words.clone().collect();
    let diagnostic = Diagnostic::error(format!("no {what} is called `{word}`"))
        .at(span, format!("unknown {what}"))
        .note(format!("there are {}", known.join(", ")));
    match suggest::nearest(word, words) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None => diagnostic,
    }
}

fn work(row: &Row, qp: usize) -> Work {
    let settings = &row.settings;
    let op = settings.text_opt("op").map(|word| match word {
        "send" => Op::Send,
        "send-imm" => Op::SendImm,
        "write" => Op::Write,
        "write-imm" => Op::WriteImm,
        "read" => Op::Read,
        "compare-swap" => Op::CompareSwap,
        _ => Op::FetchAdd,
    });
    Work {
        at: settings.time("at"),
        qp,
        op,
        size: if op.is_some_and(Op::is_atomic) { 8 } else { settings.size("size").get() },
        count: settings.count("count"),
        every: settings.time_opt("every"),
        offset: settings.count_opt("offset"),
        bad_rkey: settings.text("rkey") == "bad",
        bad_lkey: settings.text("lkey") == "bad",
        post_recv: settings.count_opt("post_recv").map_or(0, small),
    }
}

fn fault(
    row: &Row,
    from: Option<usize>,
    to: Option<usize>,
    qp: Option<usize>,
    report: &mut Report,
) -> Fault {
    let settings = &row.settings;
    let none = Settings::default();
    let group = settings.group_opt("match").unwrap_or(&none);
    let place = |key: &str| settings.span(key).unwrap_or(row.span);
    let deed = Deed::parse(settings.text("do")).unwrap_or_else(|error| {
        let text = settings.text("do");
        let mut diagnostic = Diagnostic::error(format!("`{text}` is nothing that a fault does"))
            .at(place("do"), error.reason);
        if let Some(meant) = error.meant {
            let fix = format!("\"{meant}\"");
            diagnostic = diagnostic.fix(place("do"), fix, format!("did you mean `{meant}`?"));
        }
        report.push(diagnostic);
        Deed::Partition
    });
    let frames = match group.text_opt("opcode").unwrap_or("all") {
        "all" => Frames::All,
        "acks" => Frames::Acks,
        name => Opcode::from_name(name).map_or_else(
            || {
                let names = Opcode::ALL.iter().map(|opcode| opcode.name());
                let at = group.span("opcode").unwrap_or(row.span);
                let names = ["all", "acks"].into_iter().chain(names);
                report.push(unknown_opcode(name, at, names));
                Frames::All
            },
            Frames::Opcode,
        ),
    };
    Fault {
        at: settings.time("at"),
        until: settings.time_opt("until"),
        from,
        to,
        frames,
        psn: group.count_opt("psn").map(small),
        qp,
        after: group.count_opt("after").unwrap_or_default(),
        count: group.count_opt("count"),
        every: group.count_opt("every").unwrap_or(1),
        longer_than: group.size_opt("longer_than").map(|size| size.get()),
        per_million: group.count_opt("per_million").map_or(1_000_000, small),
        deed,
    }
}

fn unknown_opcode<'a>(name: &str, at: Span, names: impl Iterator<Item = &'a str>) -> Diagnostic {
    let diagnostic = Diagnostic::error(format!("no opcode is called `{name}`"))
        .at(at, "unknown opcode")
        .note("as \"acks\", \"RC_SEND_ONLY\", or for RC \"WRITE_LAST\"");
    match suggest::nearest(name, names) {
        Some(near) => diagnostic.fix(at, format!("\"{near}\""), format!("did you mean `{near}`?")),
        None => diagnostic,
    }
}

fn expect(row: &Row, qp: usize, report: &mut Report) -> Expect {
    let settings = &row.settings;
    let verdict = settings.text_opt("verdict").and_then(|name| {
        let code = name.parse::<Code>().ok();
        if code.is_none() {
            let at = settings.span("verdict").unwrap_or(row.span);
            let names = Code::ALL.iter().map(|code| code.as_str());
            report.push(unknown_word(name, "verdict", at, names));
        }
        code
    });
    let tally = |key: &str| settings.tally_opt(key).map(<[_]>::to_vec);
    Expect {
        qp,
        statuses: tally("statuses"),
        receives: tally("receives"),
        events: tally("events"),
        within: settings.time_opt("within"),
        at_least: settings.time_opt("at_least"),
        verdict,
        recovers: settings.flag_opt("recovers"),
        recovers_within: settings.time_opt("recovers_within"),
        rate_within: settings.time_opt("rate_within"),
        siblings: settings.text_opt("siblings").is_some(),
        counters: tally("counters").unwrap_or_default(),
        to_counters: tally("to_counters").unwrap_or_default(),
        still: settings.list_opt("still").map(<[_]>::to_vec).unwrap_or_default(),
    }
}

/// How far a point in time lies in a scenario.
pub(super) fn is_within(at: Duration, limit: Duration) -> bool {
    at <= limit && limit <= limits::LIMIT_MAX
}
