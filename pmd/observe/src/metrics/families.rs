//! Every metric there is.

use std::borrow::Cow;

/// What a metric does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Quantiles, a sum and a count.
    Summary,
}

impl Kind {
    /// As the exposition format spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
        }
    }
}

/// A metric with all its series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it does over time.
    pub kind: Kind,
    /// The labels of its series.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: Cow<'static, str>,
}

impl Family {
    const fn new(
        name: &'static str,
        kind: Kind,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name: Cow::Borrowed(name), kind, labels, help: Cow::Borrowed(help) }
    }

    /// One that is made of a counter's name.
    pub(super) fn counter(
        prefix: &str,
        name: &str,
        labels: &'static [&'static str],
        help: &str,
    ) -> Self {
        let (name, help) = (format!("{prefix}{name}_total"), help.to_owned());
        Self { name: name.into(), kind: Counter, labels, help: help.into() }
    }
}

use Kind::{Counter, Gauge, Summary};

pub(super) const RUN: [Family; 2] = [
    Family::new("spinwire_run_seconds", Gauge, &[], "Time since the lcores were started."),
    Family::new("spinwire_run_ended", Gauge, &[], "1 once the run is over."),
];

const NODE: &[&str] = &["node", "kind"];
const LCORE: &[&str] = &["lcore", "cpu"];

/// What nodes and lcores have done.
pub const NODE_AND_LCORE: [Family; 9] = [
    Family::new(
        "spinwire_node_messages_total",
        Counter,
        NODE,
        "Messages or blocks that the node dealt with.",
    ),
    Family::new("spinwire_node_bytes_total", Counter, NODE, "Their bytes."),
    Family::new(
        "spinwire_node_verified_bytes_total",
        Counter,
        NODE,
        "Bytes that were compared and found equal.",
    ),
    Family::new("spinwire_node_errors_total", Counter, NODE, "What went wrong."),
    Family::new(
        "spinwire_node_connections_total",
        Counter,
        NODE,
        "Queue pairs that were made for the node.",
    ),
    Family::new(
        "spinwire_lcore_busy_seconds_total",
        Counter,
        LCORE,
        "Time in loops that found work.",
    ),
    Family::new(
        "spinwire_lcore_idle_seconds_total",
        Counter,
        LCORE,
        "Time in loops that found none, naps included.",
    ),
    Family::new(
        "spinwire_lcore_longest_gap_seconds",
        Gauge,
        LCORE,
        "Longest time between two loops, beyond what a nap may take.",
    ),
    Family::new(
        "spinwire_lcore_silent_seconds",
        Gauge,
        LCORE,
        "Time since the lcore last told of its queue pairs: one that stands still tells nothing.",
    ),
];

/// Counters of a port, each with what it means. The kernel's names where it has them.
pub const PORT_COUNTERS: &[(&str, &str)] = &[
    ("tx_packets", "Frames handed to the wire."),
    ("rx_packets", "Frames taken from the wire."),
    ("tx_bytes", "Payload bytes sent, by packets or by copy."),
    (
        "rx_bytes",
        "Payload bytes received, by packets or by copy. What a peer writes or reads directly through shared memory, it counts alone.",
    ),
    ("rx_read_requests", "READ requests received."),
    ("rx_write_requests", "WRITE requests received in packets."),
    ("rx_atomic_requests", "Atomic requests received."),
    ("local_ack_timeout_err", "The ACK timer expired: silence from the peer."),
    ("req_transport_retries_exceeded", "retry_cnt used up: status 12."),
    ("rnr_nak_retry_err", "RNR NAKs received: the peer had no receive."),
    ("req_rnr_retries_exceeded", "rnr_retry used up: status 13."),
    ("out_of_buffer", "Messages that came when no receive was posted."),
    ("srq_dry", "Of these, messages that found a shared receive queue dry."),
    ("packet_seq_err", "Sequence error NAKs received: a request was lost."),
    ("implied_nak_seq_err", "ACKs or READ responses that showed that an earlier one was lost."),
    ("duplicate_request", "Requests that came again: the ACK was lost or late."),
    ("out_of_sequence", "Requests that skipped a PSN: one was lost."),
    ("resp_remote_invalid_request", "Requests refused as invalid."),
    ("resp_remote_access_errors", "Requests refused for the memory that they named."),
    ("req_remote_access_errors", "Remote access NAKs received: status 10."),
    ("req_remote_invalid_request", "Invalid request NAKs received: status 9."),
    ("qkey_viol", "Datagrams with a wrong Q_Key."),
    ("cq_overruns", "Completions lost: the completion queue was full."),
    ("retransmits", "Packets sent again."),
    ("link_downed", "Times that the port went down."),
    ("port_xmit_discards", "Frames dropped instead of sent: the port was down."),
    ("rp_cnp_handled", "Congestion notifications received."),
];

/// Counters of a queue pair: its part of the port's.
pub const QP_COUNTERS: &[(&str, &str)] = &[
    ("local_ack_timeout_err", "The ACK timer expired: silence from the peer."),
    ("req_transport_retries_exceeded", "retry_cnt used up: status 12."),
    ("rnr_nak_retry_err", "RNR NAKs received: the peer had no receive."),
    ("req_rnr_retries_exceeded", "rnr_retry used up: status 13."),
    ("out_of_buffer", "Messages that came when no receive was posted."),
    ("packet_seq_err", "Sequence error NAKs received: a request was lost."),
    ("implied_nak_seq_err", "ACKs or READ responses that showed that an earlier one was lost."),
    ("duplicate_request", "Requests that came again: the ACK was lost or late."),
    ("out_of_sequence", "Requests that skipped a PSN: one was lost."),
    ("resp_remote_invalid_request", "Requests refused as invalid."),
    ("resp_remote_access_errors", "Requests refused for the memory that they named."),
    ("req_remote_access_errors", "Remote access NAKs received: status 10."),
    ("req_remote_invalid_request", "Invalid request NAKs received: status 9."),
    ("qkey_viol", "Datagrams with a wrong Q_Key."),
    ("retransmits", "Packets sent again."),
];

/// Counters of what carries a device's packets.
pub const WIRE_COUNTERS: &[(&str, &str)] = &[
    ("tx_frames", "Frames that the system took."),
    ("tx_bytes", "Bytes in them."),
    ("tx_datagrams", "Datagrams that carried them."),
    ("tx_full", "Times that a frame had to wait: the queue was full."),
    ("tx_no_buffers", "Frames lost: no room in a queue of the system."),
    ("tx_too_big", "Frames lost: larger than the path takes."),
    ("tx_unreachable", "Frames lost: no way to the destination."),
    ("tx_refused", "Frames lost: nobody listens there."),
    ("tx_denied", "Frames lost: a firewall or policy forbids them."),
    ("tx_other", "Frames lost for another reason."),
    ("rx_frames", "Frames received."),
    ("rx_bytes", "Bytes in them."),
    ("rx_datagrams", "Datagrams that carried them."),
    ("rx_overflow", "Datagrams that the system dropped: the receive buffer was full."),
    ("rx_truncated", "Datagrams dropped: they did not fit a buffer."),
    ("rx_errors", "Receive calls that failed."),
];

pub(super) const DROPS: Family = Family::new(
    "spinwire_port_drops_total",
    Counter,
    &["device", "reason"],
    "Packets without effect, by reason.",
);

const OF_SRQ: &[&str] = &["device", "lcore", "srqn"];

pub(super) const SRQ: [Family; 4] = [
    Family::new("spinwire_srq_receives", Gauge, OF_SRQ, "Receives in the shared receive queue."),
    Family::new("spinwire_srq_depth", Gauge, OF_SRQ, "Receives that fit."),
    Family::new("spinwire_srq_limit", Gauge, OF_SRQ, "The armed limit; 0: none, or it has fired."),
    Family::new("spinwire_srq_dry_total", Counter, OF_SRQ, "Messages that found it dry."),
];

pub(super) const QPS: Family =
    Family::new("spinwire_qps", Gauge, &["device", "state"], "Queue pairs by state, all of them.");
pub(super) const QPS_OMITTED: Family =
    Family::new("spinwire_qps_omitted", Gauge, &[], "Queue pairs without series of their own.");

const OF_QP: &[&str] = &["device", "qpn", "node"];

pub(super) const QP: [Family; 9] = [
    Family::new(
        "spinwire_qp_state",
        Gauge,
        &["device", "qpn", "node", "state"],
        "1 for the state that the queue pair is in, 0 for the others.",
    ),
    Family::new("spinwire_qp_state_seconds", Gauge, OF_QP, "Time since it entered its state."),
    Family::new(
        "spinwire_qp_stalled_seconds",
        Gauge,
        OF_QP,
        "Time for which sends have been in flight and none has completed.",
    ),
    Family::new("spinwire_qp_reconnects_total", Counter, OF_QP, "Times it was connected anew."),
    Family::new("spinwire_qp_sends_total", Counter, OF_QP, "Sends that completed."),
    Family::new("spinwire_qp_sends_in_flight", Gauge, OF_QP, "Sends posted and not completed."),
    Family::new("spinwire_qp_send_depth", Gauge, OF_QP, "Sends that fit."),
    Family::new("spinwire_qp_receives_posted", Gauge, OF_QP, "Receives posted and not completed."),
    Family::new("spinwire_qp_receive_depth", Gauge, OF_QP, "Receives that fit."),
];

pub(super) const ROUND_TRIP: Family = Family::new(
    "spinwire_qp_ack_round_trip_seconds",
    Summary,
    OF_QP,
    "From a packet to its acknowledgement; to a factor of two.",
);
pub(super) const RNR_WAIT: Family = Family::new(
    "spinwire_qp_rnr_wait_seconds",
    Summary,
    OF_QP,
    "How long the peer asked to wait for a receive; the sum grows by 1 a second where it does nothing else.",
);

/// All of them, in the order of the page.
pub(super) fn all() -> Vec<Family> {
    let made = |prefix, labels, names: &[(&str, &str)]| {
        let counter = |(name, help): &(&str, &str)| Family::counter(prefix, name, labels, help);
        names.iter().map(counter).collect::<Vec<_>>()
    };
    let device: &[&str] = &["device"];
    let mut all = RUN.to_vec();
    all.extend(NODE_AND_LCORE);
    all.extend(made("spinwire_port_", device, PORT_COUNTERS));
    all.push(DROPS);
    all.extend(made("spinwire_wire_", device, WIRE_COUNTERS));
    all.extend(SRQ);
    all.extend([QPS, QPS_OMITTED]);
    all.extend(QP);
    all.extend(made("spinwire_qp_", OF_QP, QP_COUNTERS));
    all.extend([ROUND_TRIP, RNR_WAIT]);
    all
}
