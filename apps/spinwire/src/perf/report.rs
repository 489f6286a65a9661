//! What a measurement came to, for people and for programs.

use pmd_graph::run::GidReport;
use pmd_observe::report::{BytesPerSecond, Nanos};
use pmd_observe::{Latency, Snapshot, Verdict};
use pmd_verbs::gid::GidPair;
use serde_json::{Map, Value, json};

use super::lcore::Step;
use super::params::Params;
use super::session::{Halves, Sample};
use super::tally::Tally;
use super::test::Op;

/// What is known of the run beside its figures.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) processes: u8,
    /// How the ends found each other.
    pub(super) connect: &'static str,
    /// Whether nobody on the way could read what they told each other.
    pub(super) sealed: bool,
    pub(super) path: &'static str,
    /// The addresses of this end and of the other.
    pub(super) gids: Option<GidPair>,
    pub(super) mtu: u32,
    pub(super) qp_bytes: u64,
    /// CPUs of client and server.
    pub(super) cpus: [Vec<usize>; 2],
    /// Processes whose lcores polled on those CPUs when they were chosen.
    pub(super) shared_with: Vec<Option<u32>>,
    /// Nanoseconds from one CPU to the other, before and after.
    pub(super) probe: [Option<u64>; 2],
    pub(super) clock: &'static str,
    /// Whether somebody wanted an end before it was reached.
    pub(super) interrupted: bool,
    /// What kept everything in packets though shared memory may have been there.
    pub(super) packets_by: Option<&'static str>,
}

/// The figures of one size.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) size: u32,
    pub(super) messages: u64,
    pub(super) lost: u64,
    pub(super) elapsed: u64,
    pub(super) latency: Latency,
    pub(super) verified: u64,
    pub(super) gap: u64,
    /// Messages of each lcore of client and server.
    pub(super) lcores: [Vec<u64>; 2],
    /// Whether this end has timed it: the client has.
    pub(super) timed: bool,
}

impl Row {
    /// From what both ends did, and how bytes went between them.
    pub(super) fn of(sample: &Sample, params: &Params, path: &str) -> Self {
        let (local, remote) = (&sample.local, &sample.remote);
        let sent = local.sent + if params.bidirectional { remote.sent } else { 0 };
        // Where nothing acknowledges, what counts is what arrived.
        let lost = if params.test.is_latency() { local.lost } else { lost(sample, params, path) };
        let messages = if params.test.is_latency() { sent } else { sent.saturating_sub(lost) };
        Self {
            size: sample.size,
            messages,
            lost,
            elapsed: local.elapsed().max(if params.bidirectional { remote.elapsed() } else { 0 }),
            latency: local
                .latency
                .as_ref()
                .map(|histogram| histogram.latency())
                .unwrap_or_default(),
            verified: sample.verified,
            gap: remote.gap,
            timed: true,
            lcores: [local, remote]
                .map(|tally| tally.each.iter().map(|(_, count)| *count).collect()),
        }
    }

    /// What a server saw of it, in the order in which it was served.
    pub(super) fn served(steps: &[(Step, Tally)]) -> Vec<Self> {
        let mut rows = Vec::new();
        let mut verified = 0;
        for (step, tally) in steps {
            match *step {
                Step::Verify { .. } => verified += tally.verified,
                Step::Measure { size, .. } => rows.push(Self {
                    size,
                    messages: tally.received.max(tally.sent),
                    lost: 0,
                    elapsed: 0,
                    latency: Latency::default(),
                    verified: std::mem::take(&mut verified),
                    gap: tally.gap,
                    lcores: [tally.each.iter().map(|(_, count)| *count).collect(), Vec::new()],
                    timed: false,
                }),
            }
        }
        rows
    }

    fn per_second(&self, amount: f64) -> f64 {
        if self.elapsed == 0 { 0.0 } else { amount * 1e9 / approx(self.elapsed) }
    }

    pub(super) fn messages_per_s(&self) -> f64 {
        self.per_second(approx(self.messages))
    }

    pub(super) fn bytes_per_s(&self) -> f64 {
        self.per_second(approx(self.messages) * f64::from(self.size))
    }
}

/// Messages that were sent and did not arrive, as far as anybody can tell.
fn lost(sample: &Sample, params: &Params, path: &str) -> u64 {
    // Shared memory loses no WRITE, and there not each of them is told of.
    let told = params.test.op() == Op::Send || path != "local";
    if params.transport.is_reliable() || !told {
        return 0;
    }
    let sent = |tally: &Tally| tally.sent + tally.warmed;
    let one_way = sent(&sample.local).saturating_sub(sample.remote.received);
    let other_way = sent(&sample.remote).saturating_sub(sample.local.received);
    one_way + if params.bidirectional { other_way } else { 0 }
}

#[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
const fn approx(value: u64) -> f64 {
    value as f64
}

/// The lines before the table.
pub(super) fn heading(params: &Params, setting: &Setting) -> String {
    let mut text = String::new();
    let wire = wire(setting.path);
    let both = if params.bidirectional { ", both ways" } else { "" };
    let probe = match setting.probe[0] {
        Some(probe) => format!(", a cache line apart by {probe} ns"),
        None => String::new(),
    };
    let [ours, theirs] = setting
        .cpus
        .clone()
        .map(|cpus| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
    text.push_str(&format!(
        "{}: {} over {wire} ({} path){both}, {} process{}, CPUs {ours} and {theirs}{probe}\n",
        params.test,
        params.transport,
        setting.path,
        setting.processes,
        if setting.processes == 1 { "" } else { "es" },
    ));
    text.push_str(&format!(
        "MTU {}, {} QP{} of {} bytes, tx depth {}, post list {}, CQ moderation {}, inline {}, {} buffers{}\n",
        setting.mtu,
        params.qps,
        if params.qps == 1 { "" } else { "s" },
        setting.qp_bytes,
        params.tx_depth,
        params.post_list,
        params.cq_mod,
        params.inline,
        params.buffers,
        if params.events { ", events" } else { "" },
    ));
    if let Some(GidPair { local, remote }) = setting.gids {
        text.push_str(&format!("this end at {local}, the other at {remote}\n"));
    }
    text.push_str(&columns(params));
    text
}

fn columns(params: &Params) -> String {
    if params.test.is_latency() {
        format!(
            " {:>9} {:>12} {:>11} {:>15} {:>11} {:>13} {:>11}\n",
            "#bytes",
            "#iterations",
            "t_min[us]",
            "t_typical[us]",
            "t_p99[us]",
            "t_p99.9[us]",
            "t_max[us]"
        )
    } else {
        format!(
            " {:>9} {:>12} {:>18} {:>14} {:>12} {:>10}\n",
            "#bytes", "#iterations", "BW average[GB/s]", "MsgRate[M/s]", "t_p50[us]", "lost"
        )
    }
}

/// One line of the table.
pub(super) fn line(params: &Params, row: &Row) -> String {
    let us = |ns: u64| approx(ns) / 1e3;
    if params.test.is_latency() {
        let Latency { min, p50, p99, p999, max } = row.latency;
        format!(
            " {:>9} {:>12} {:>11.3} {:>15.3} {:>11.3} {:>13.3} {:>11.3}\n",
            row.size,
            row.messages,
            us(min),
            us(p50),
            us(p99),
            us(p999),
            us(max)
        )
    } else {
        format!(
            " {:>9} {:>12} {:>18.3} {:>14.6} {:>12.3} {:>10}\n",
            row.size,
            row.messages,
            row.bytes_per_s() / 1e9,
            row.messages_per_s() / 1e6,
            us(row.latency.p50),
            row.lost
        )
    }
}

/// What follows the table.
pub(super) fn ending(
    rows: &[Row],
    setting: &Setting,
    halves: &Halves,
    verdict: &Verdict,
) -> String {
    let verified: u64 = rows.iter().map(|row| row.verified).sum();
    let mut text = String::new();
    for row in rows.iter().filter(|row| !row.timed) {
        text.push_str(&format!("served messages of {} bytes: {}\n", row.size, row.messages));
    }
    if setting.interrupted {
        text.push_str("ended before its time\n");
    }
    text.push_str(&format!("verified {verified} bytes"));
    if let [row] = rows
        && row.timed
    {
        let rate = BytesPerSecond(row.bytes_per_s());
        text.push_str(&format!(", {rate}, longest pause of the responder {}", Nanos(row.gap)));
    }
    if let Some(probe) = setting.probe[1] {
        text.push_str(&format!(", a cache line apart by {probe} ns afterwards"));
    }
    text.push('\n');
    for (end, faults) in ["this end", "the other end"].iter().zip(&halves.faults) {
        for fault in faults {
            text.push_str(&format!("fault at {end}: {fault}\n"));
        }
    }
    text.push_str(&format!("{verdict}\n"));
    text
}

fn wire(path: &str) -> &'static str {
    match path {
        "local" => "shm",
        "packet" => "udp",
        _ => "none",
    }
}

/// One size as an object.
pub(super) fn object(
    params: &Params,
    setting: Option<&Setting>,
    row: Option<&Row>,
    halves: &Halves,
    verdict: &Verdict,
) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    let pair = |[before, after]: &[Snapshot; 2]| json!({ "before": before, "after": after, "delta": after.since(before).nonzero() });
    let path = setting.map_or("none", |setting| setting.path);
    let latency = row.map(|row| row.latency).unwrap_or_default();
    put("ok", json!(verdict.is_ok()));
    put("op", json!(params.test));
    put("transport", json!(params.transport));
    put("wire", json!(wire(path)));
    put("path", json!(path));
    put("size", json!(row.map(|row| row.size).or_else(|| params.sizes().first().copied())));
    put("iters", json!(row.map_or(0, |row| row.messages)));
    // A server has no figures of its own, and makes none up.
    let timed = row.is_none_or(|row| row.timed);
    let figure = |value: Value| if timed { value } else { Value::Null };
    put("messages_per_s", figure(json!(row.map_or(0.0, Row::messages_per_s))));
    put("bytes_per_s", figure(json!(row.map_or(0.0, Row::bytes_per_s))));
    put("latency_ns", figure(json!(latency)));
    put("verified_bytes", json!(row.map_or(0, |row| row.verified)));
    put("lost", json!(row.map_or(0, |row| row.lost)));
    put("elapsed_s", json!(row.map_or(0.0, |row| approx(row.elapsed) / 1e9)));
    put("responder_gap_ns", json!(row.map_or(0, |row| row.gap)));
    let [ours, theirs] = row.map(|row| row.lcores.clone()).unwrap_or_default();
    put("lcore_messages", json!({ "local": ours, "remote": theirs }));
    put("qps", json!(params.qps));
    put("lcores", json!(params.lcores));
    put("tx_depth", json!(params.tx_depth));
    put("post_list", json!(params.post_list));
    put("cq_mod", json!(params.cq_mod));
    put("inline", json!(params.inline));
    put("bidirectional", json!(params.bidirectional));
    put("events", json!(params.events));
    put("alternate_write", json!(params.alternates));
    put("buffers", json!(params.buffers));
    if let Some(setting) = setting {
        put("processes", json!(setting.processes));
        put("mtu", json!(setting.mtu));
        put("qp_memory_bytes", json!(setting.qp_bytes));
        let [local, remote] = &setting.cpus;
        put(
            "cpus",
            json!({ "local": local, "remote": remote, "shared_with": setting.shared_with }),
        );
        put("probe_ns", json!(setting.probe[0]));
        put("probe_after_ns", json!(setting.probe[1]));
        put("clock", json!(setting.clock));
        put("interrupted", json!(setting.interrupted));
    }
    put("counters", json!({ "local": pair(&halves.local), "remote": pair(&halves.remote) }));
    let [local, remote] = &halves.faults;
    put("faults", json!({ "local": local, "remote": remote }));
    put("connect", json!(setting.map(|setting| setting.connect)));
    put("sealed", json!(setting.map(|setting| setting.sealed)));
    put("gids", json!(setting.and_then(|setting| setting.gids).as_ref().map(GidReport::from)));
    put("packets_by", json!(setting.and_then(|setting| setting.packets_by)));
    put("evidence", json!(halves.evidence));
    put("verdict", json!(verdict));
    Value::Object(object)
}
