//! What an engine counts: plain integers with one writer, read by anybody as deltas.

use crate::wire::packet::DropReason;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one engine; names as under the kernel's `hw_counters` where it has them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Frames without effect, by reason.
            pub drops: [u64; DropReason::ALL.len()],
        }

        impl Counters {
            /// Every counter with its name; drops as `drop_` and the reason.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name),)*]
                    .into_iter()
                    .chain(DropReason::ALL.iter().map(|r| (r.counter_name(), self.drops[*r as usize])))
            }
        }
    };
}

counters! {
    /// Frames handed to the wire.
    tx_packets,
    /// Frames taken from the wire.
    rx_packets,
    /// Payload bytes sent, by packets or by copy.
    tx_bytes,
    /// Payload bytes received, by packets or from a ring.
    rx_bytes,
    /// Requests served for READ.
    rx_read_requests,
    /// Requests served for WRITE.
    rx_write_requests,
    /// Requests served for atomics.
    rx_atomic_requests,
    /// ACK timers that ran out at the requester.
    local_ack_timeout_err,
    /// Requests that failed because retries ran out.
    req_transport_retries_exceeded,
    /// RNR NAKs a requester got.
    rnr_nak_retry_err,
    /// Requests that failed because RNR retries ran out.
    req_rnr_retries_exceeded,
    /// Messages that found no receive at the responder.
    out_of_buffer,
    /// Of these, messages for which a shared receive queue was dry.
    srq_dry,
    /// NAKs for a sequence error that a requester got.
    packet_seq_err,
    /// Responses missing inside a stream, seen by a requester.
    implied_nak_seq_err,
    /// Requests a responder had seen before.
    duplicate_request,
    /// Requests ahead of the expected PSN at a responder.
    out_of_sequence,
    /// Requests a responder refused as invalid.
    resp_remote_invalid_request,
    /// Requests a responder refused for access.
    resp_remote_access_errors,
    /// Requests that completed with a remote access error.
    req_remote_access_errors,
    /// Requests that completed with a remote invalid request error.
    req_remote_invalid_request,
    /// Datagrams with a wrong Q_Key.
    qkey_viol,
    /// Completions lost because the queue was full.
    cq_overruns,
    /// Packets sent again.
    retransmits,
    /// Times that a port went down.
    link_downed,
    /// Frames that were dropped instead of sent, since the port was down.
    port_xmit_discards,
    /// Congestion notification packets that arrived.
    rp_cnp_handled,
}

macro_rules! qp_counters {
    ($($name:ident,)*) => {
        /// What an engine counts for each of its queue pairs apart; see [`Counters`] for what the names
        /// mean.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each means what it means in the engine's counters")]
        pub struct QpCounters {
            $(pub $name: u64,)*
        }

        impl QpCounters {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

qp_counters! {
    local_ack_timeout_err,
    req_transport_retries_exceeded,
    rnr_nak_retry_err,
    req_rnr_retries_exceeded,
    out_of_buffer,
    packet_seq_err,
    implied_nak_seq_err,
    duplicate_request,
    out_of_sequence,
    resp_remote_invalid_request,
    resp_remote_access_errors,
    req_remote_access_errors,
    req_remote_invalid_request,
    qkey_viol,
    retransmits,
}

/// Counts something that happened to a queue pair, for it and for its engine.
macro_rules! tally {
    ($qp:expr, $dev:expr, $name:ident) => {{
        $dev.counters.$name += 1;
        $qp.book.counters.$name += 1;
    }};
}
pub(crate) use tally;
