//! Counters by name, as somebody reads them.
//!
//! Writers keep plain integers of their own and never reset them; a reader takes a [`Snapshot`] now and then, and
//! what happened in between is the difference of two.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::report::{Align, Table};

/// The half of a connection that a counter speaks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Counted where requests are sent.
    Requester,
    /// Counted where requests are executed.
    Responder,
    /// Counted by the port, whatever the queue pair does.
    Port,
}

/// One counter of an RDMA port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name under `/sys/class/infiniband/DEVICE/ports/PORT/hw_counters/`, as NICs spell it.
    pub name: &'static str,
    /// The name that the kernel's software RoCE driver gives the same thing, where that differs.
    pub rxe: Option<&'static str>,
    /// The half it speaks about.
    pub side: Side,
    /// What one count means.
    pub meaning: &'static str,
}

const fn define(
    name: &'static str,
    rxe: Option<&'static str>,
    side: Side,
    meaning: &'static str,
) -> Definition {
    Definition { name, rxe, side, meaning }
}

/// The counters that tell what happened to a connection, requester first.
///
/// Every device kind reports these names, so that rules and dashboards need one set.
pub const HW_COUNTERS: &[Definition] = {
    use Side::{Port, Requester, Responder};
    &[
        define(
            "local_ack_timeout_err",
            None,
            Requester,
            "the ACK timer expired: silence from the peer",
        ),
        define(
            "req_transport_retries_exceeded",
            Some("retry_exceeded_err"),
            Requester,
            "retry_cnt used up: a queue pair failed with status 12",
        ),
        define(
            "rnr_nak_retry_err",
            Some("rcvd_rnr_err"),
            Requester,
            "an RNR NAK arrived: the peer had no receive",
        ),
        define(
            "req_rnr_retries_exceeded",
            Some("retry_rnr_exceeded_err"),
            Requester,
            "rnr_retry used up: a queue pair failed with status 13",
        ),
        define(
            "packet_seq_err",
            Some("rcvd_seq_err"),
            Requester,
            "a sequence error NAK arrived: a request was lost",
        ),
        define(
            "implied_nak_seq_err",
            None,
            Requester,
            "an ACK or READ response showed that an earlier one was lost",
        ),
        define(
            "req_remote_invalid_request",
            None,
            Requester,
            "an invalid request NAK arrived (status 9)",
        ),
        define(
            "req_remote_access_errors",
            None,
            Requester,
            "a remote access NAK arrived (status 10)",
        ),
        define("req_cqe_error", None, Requester, "a send completed in error"),
        define("req_cqe_flush_error", None, Requester, "a send was flushed (status 5)"),
        define(
            "out_of_buffer",
            Some("send_rnr_err"),
            Responder,
            "a message came and no receive was posted",
        ),
        define(
            "duplicate_request",
            None,
            Responder,
            "a request came again: its ACK was lost or late",
        ),
        define(
            "out_of_sequence",
            Some("out_of_seq_request"),
            Responder,
            "a request skipped a PSN: one was lost",
        ),
        define(
            "resp_local_length_error",
            None,
            Responder,
            "a message was longer than the receive buffer",
        ),
        define(
            "resp_remote_access_errors",
            None,
            Responder,
            "a request named memory it may not touch",
        ),
        define("resp_cqe_error", None, Responder, "a receive completed in error"),
        define("resp_cqe_flush_error", None, Responder, "a receive was flushed (status 5)"),
        define("rx_write_requests", None, Responder, "WRITE requests received"),
        define("rx_read_requests", None, Responder, "READ requests received"),
        define("rx_atomic_requests", None, Responder, "atomic requests received"),
        define("qkey_viol", None, Port, "a datagram with the wrong Q_Key was dropped"),
        define("rx_icrc_encapsulated", None, Port, "a packet with a wrong ICRC was dropped"),
        define("np_ecn_marked_roce_packets", None, Port, "packets received with congestion marked"),
        define("np_cnp_sent", None, Port, "congestion notifications sent"),
        define("rp_cnp_handled", None, Port, "congestion notifications that slowed a sender"),
    ]
};

/// What is known of `name`, under a NIC's or the software driver's spelling.
pub fn definition(name: &str) -> Option<&'static Definition> {
    HW_COUNTERS.iter().find(|counter| counter.name == name || counter.rxe == Some(name))
}

/// The values of some counters at one instant, by name.
///
/// As JSON: one object, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Snapshot {
    values: BTreeMap<Cow<'static, str>, u64>,
}

impl Snapshot {
    /// The value of `name`; none where the source does not count it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.values.get(name).copied()
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.values.iter().map(|(name, &value)| (name.as_ref(), value))
    }

    /// Whether there is no counter at all.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Keeps only the counters with names that are wanted.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.values.retain(|name, _| wanted(name));
    }

    /// Spells every name that [`definition`] knows as a NIC does.
    #[must_use]
    pub fn canonical(self) -> Self {
        let rename =
            |name: Cow<'static, str>| definition(&name).map_or(name, |counter| counter.name.into());
        self.values.into_iter().map(|(name, value)| (rename(name), value)).collect()
    }

    /// How far each counter moved since `earlier`.
    ///
    /// A counter that `earlier` lacks started from zero. One that went back was restarted by its owner (a reloaded
    /// driver), so that all it shows is new.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let moved =
            |name: &str, now: u64| now.checked_sub(earlier.get(name).unwrap_or(0)).unwrap_or(now);
        self.values.iter().map(|(name, &now)| (name.clone(), moved(name, now))).collect()
    }

    /// Only the counters that are not zero.
    #[must_use]
    pub fn nonzero(&self) -> Self {
        let nonzero = self.values.iter().filter(|&(_, &value)| value != 0);
        nonzero.map(|(name, &value)| (name.clone(), value)).collect()
    }

    /// Name, value and meaning, a line each.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("counter", Align::Left),
            ("value", Align::Right),
            ("meaning", Align::Left),
        ]);
        for (name, value) in self.iter() {
            let meaning = definition(name).map_or("", |counter| counter.meaning);
            table.row([name.to_owned(), value.to_string(), meaning.to_owned()]);
        }
        table
    }
}

/// Values under one name add up, so that snapshots of several queue pairs or lcores can be chained into one.
impl<N: Into<Cow<'static, str>>> FromIterator<(N, u64)> for Snapshot {
    fn from_iter<I: IntoIterator<Item = (N, u64)>>(pairs: I) -> Self {
        let mut snapshot = Self::default();
        snapshot.extend(pairs);
        snapshot
    }
}

impl<N: Into<Cow<'static, str>>> Extend<(N, u64)> for Snapshot {
    fn extend<I: IntoIterator<Item = (N, u64)>>(&mut self, pairs: I) {
        for (name, value) in pairs {
            let sum = self.values.entry(name.into()).or_default();
            *sum = sum.saturating_add(value);
        }
    }
}

/// `name=value`, separated by spaces: one line of evidence.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.iter().try_for_each(|(name, value)| {
            write!(f, "{separator}{name}={value}")?;
            separator = " ";
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pairs: &[(&'static str, u64)]) -> Snapshot {
        pairs.iter().copied().collect()
    }

    /// S0-18: the names that a diagnosis of status 12 and 13 needs, spelled as the kernel spells them.
    #[test]
    fn s0_18_names_of_the_kernel() {
        let required = [
            ("local_ack_timeout_err", Side::Requester),
            ("req_transport_retries_exceeded", Side::Requester),
            ("rnr_nak_retry_err", Side::Requester),
            ("req_rnr_retries_exceeded", Side::Requester),
            ("packet_seq_err", Side::Requester),
            ("out_of_buffer", Side::Responder),
            ("duplicate_request", Side::Responder),
            ("out_of_sequence", Side::Responder),
            ("qkey_viol", Side::Port),
        ];
        for (name, side) in required {
            assert_eq!(
                definition(name).map(|counter| (counter.name, counter.side)),
                Some((name, side))
            );
        }
        assert_eq!(definition("carrier_pigeons"), None);
    }

    #[test]
    fn names_are_declared_once() {
        let mut names: Vec<&str> =
            HW_COUNTERS.iter().flat_map(|c| [Some(c.name), c.rxe]).flatten().collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn difference_of_two_snapshots() {
        let before = snapshot(&[("out_of_buffer", 5), ("packet_seq_err", 9), ("restarted", 100)]);
        let after =
            snapshot(&[("out_of_buffer", 12), ("packet_seq_err", 9), ("restarted", 3), ("new", 4)]);
        let moved = after.since(&before);
        assert_eq!(
            moved,
            snapshot(&[("out_of_buffer", 7), ("packet_seq_err", 0), ("restarted", 3), ("new", 4)])
        );
        assert_eq!(moved.nonzero().to_string(), "new=4 out_of_buffer=7 restarted=3");
        assert_eq!(moved.get("packet_seq_err"), Some(0));
        assert_eq!(moved.get("absent"), None);
    }

    #[test]
    fn one_name_twice_adds_up() {
        let mut sum = snapshot(&[("a", 1), ("b", 2), ("a", 10)]);
        sum.extend([(String::from("b"), 30)]);
        assert_eq!(sum, snapshot(&[("a", 11), ("b", 32)]));
    }

    #[test]
    fn software_spelling_becomes_the_nic_spelling() {
        let rxe = snapshot(&[("rcvd_rnr_err", 3), ("sent_pkts", 8), ("duplicate_request", 1)]);
        let nic = snapshot(&[("rnr_nak_retry_err", 3), ("sent_pkts", 8), ("duplicate_request", 1)]);
        assert_eq!(rxe.canonical(), nic);
    }

    #[test]
    fn json_is_one_object_and_reads_back() {
        let values = snapshot(&[("b", 2), ("a", 1)]);
        let json = serde_json::to_string(&values).unwrap();
        assert_eq!(json, r#"{"a":1,"b":2}"#);
        assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), values);
    }

    #[test]
    fn table_explains_what_it_knows() {
        let table = snapshot(&[("out_of_buffer", 12), ("private", 3)]).table().to_string();
        assert_eq!(
            table,
            "counter        value  meaning\n\
             out_of_buffer     12  a message came and no receive was posted\n\
             private            3\n"
        );
    }
}
