//! The counters of a run over HTTP, as Prometheus text (exposition format 0.0.4).

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use pmd_lcore::Running;

use crate::limits::SCRAPE_WAIT;
use crate::node::Live;
use crate::plan::Plan;

/// Bytes of a request that are read; what it asks for does not matter.
const REQUEST_BYTES: usize = 2048;

/// Where counters are served, from the control thread.
pub(super) struct Scrape {
    listener: TcpListener,
}

impl Scrape {
    pub(super) fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Answers one caller, if one waits. A caller that dawdles costs a bounded wait, and gets nothing.
    pub(super) fn serve(&self, plan: &Plan, live: &[Arc<Live>], running: &Running) {
        let Ok((stream, peer)) = self.listener.accept() else { return };
        if let Err(error) = answer(stream, &text(plan, live, running)) {
            tracing::debug!("counters for {peer}: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, text: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SCRAPE_WAIT))?;
    stream.set_write_timeout(Some(SCRAPE_WAIT))?;
    // A connection that is closed with a request unread would be reset, and the answer lost.
    let asked = stream.read(&mut [0; REQUEST_BYTES])?;
    if asked == 0 {
        return Ok(());
    }
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())
}

/// Every counter with its help, type and labels.
fn text(plan: &Plan, live: &[Arc<Live>], running: &Running) -> String {
    let mut text = String::new();
    let nodes: Vec<(String, [u64; 4])> = plan
        .nodes
        .iter()
        .zip(live)
        .map(|(node, live)| {
            let (counts, _) = live.read();
            let labels = format!("node=\"{}\",kind=\"{}\"", node.name, node.kind);
            (labels, [counts.messages, counts.bytes, counts.verified_bytes, counts.errors])
        })
        .collect();
    let lcores: Vec<(String, [f64; 2])> = running
        .lcores()
        .iter()
        .map(|lcore| {
            let (stats, labels) =
                (lcore.stats(), format!("lcore=\"{}\",cpu=\"{}\"", lcore.name(), lcore.cpu()));
            (labels, [seconds(stats.busy_ns), seconds(stats.idle_ns)])
        })
        .collect();
    let node_counters = [
        ("spinwire_node_messages_total", "Messages or blocks that the node dealt with."),
        ("spinwire_node_bytes_total", "Their bytes."),
        ("spinwire_node_verified_bytes_total", "Bytes that were compared and found equal."),
        ("spinwire_node_errors_total", "What went wrong."),
    ];
    for (index, (name, help)) in node_counters.into_iter().enumerate() {
        let values = nodes.iter().map(|(labels, counts)| (labels, counts[index].to_string()));
        counter(&mut text, name, help, values);
    }
    let lcore_counters = [
        ("spinwire_lcore_busy_seconds_total", "Time in loops that found work."),
        ("spinwire_lcore_idle_seconds_total", "Time in loops that found none, naps included."),
    ];
    for (index, (name, help)) in lcore_counters.into_iter().enumerate() {
        let values = lcores.iter().map(|(labels, times)| (labels, times[index].to_string()));
        counter(&mut text, name, help, values);
    }
    text
}

fn counter<'a>(
    text: &mut String,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (&'a String, String)>,
) {
    // Writing to a string cannot fail.
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter").unwrap_or_default();
    for (labels, value) in values {
        writeln!(text, "{name}{{{labels}}} {value}").unwrap_or_default();
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time for people, far below 2^53 ns")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
