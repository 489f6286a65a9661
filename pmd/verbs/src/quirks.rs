//! Where devices are known to differ from the specification, and what is done about it: one table, which providers adapt
//! to and `spinwire conformance` answers from.
//!
//! A deviation has the name of the check that finds it (`spinwire conformance`); those that no check can find, since they
//! show on the wire or in another kernel's connection manager only, are here all the same.

/// What a device of some driver does otherwise than specified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirk {
    /// The driver, as [`Device::driver`](crate::Device::driver) names it.
    pub driver: &'static str,
    /// The check that it deviates in, or the begin of the names of several.
    pub check: &'static str,
    /// What the device does.
    pub does: &'static str,
    /// What Spinwire does about it.
    pub answer: &'static str,
}

const fn quirk(
    driver: &'static str,
    check: &'static str,
    does: &'static str,
    answer: &'static str,
) -> Quirk {
    Quirk { driver, check, does, answer }
}

/// The kernel's driver over Ethernet.
const RXE: &str = "rxe";

/// The table.
pub const QUIRKS: &[Quirk] = &[
    quirk(
        RXE,
        "errors.send-too-long",
        "a SEND that is longer than the receive is answered with NAK 0x63 (remote operational error) instead of 0x61, and the \
         receive ends with LOC_QP_OP instead of LOC_LEN",
        "status 11 with a receive that was too short is diagnosed as a length error, as status 9 is",
    ),
    quirk(
        RXE,
        "errors.receive-bad-lkey",
        "a receive in memory that nobody registered ends with LOC_QP_OP instead of LOC_PROT",
        "the receive has failed either way, and with it its queue pair: nothing goes by which of both it was",
    ),
    quirk(
        RXE,
        "errors.bad-lkey",
        "a request from memory that nobody registered ends with LOC_QP_OP instead of LOC_PROT",
        "the request has failed either way, and with it its queue pair: nothing goes by which of both it was",
    ),
    quirk(
        RXE,
        "errors.lkey-of-another-domain",
        "a request from memory of another protection domain ends with LOC_QP_OP instead of LOC_PROT",
        "the request has failed either way, and with it its queue pair: nothing goes by which of both it was",
    ),
    quirk(
        RXE,
        "errors.atomic-misaligned",
        "a misaligned atomic is refused when it is posted, before the peer can refuse it",
        "the refusal is an error of the request alone; the queue pair goes on",
    ),
    quirk(
        RXE,
        "errors.ud-too-long",
        "a datagram that is longer than the path MTU is accepted when it is posted",
        "nodes make no datagram longer than the path MTU; other users of Qp<Ud> have to mind it themselves",
    ),
    quirk(
        RXE,
        "events.cq-overrun",
        "a completion queue that is full raises nothing, and its queue pairs go on without the completions that are lost",
        "a completion queue holds all that can complete on it: a config with a smaller one is refused",
    ),
    quirk(
        RXE,
        "events.",
        "COMM_EST, QP_REQ_ERR, QP_ACCESS_ERR and QP_FATAL are never raised",
        "an endpoint learns of its end by completions and by its state, not by events alone",
    ),
    quirk(
        RXE,
        "flush.posted-after-error",
        "a receive that is posted in Error does not complete",
        "an endpoint that has failed takes no receives any more; other users of Qp must not wait for them",
    ),
    quirk(
        RXE,
        "flush.send-queue-error",
        "a failed send of an unreliable connection leads to Error, not to SQE",
        "the state is asked for and not assumed, and the way back is by RESET, which leads out of both",
    ),
    quirk(
        RXE,
        "flush.send-queue-error-to-rts",
        "there is no SQE to come back from",
        "the way back is by RESET",
    ),
    quirk(
        RXE,
        "flush.posted-in-sqd",
        "what was posted in SQD does not start by itself in RTS",
        "neither endpoints nor recovery drain by SQD: they wait for what is in flight",
    ),
    quirk(
        RXE,
        "query.lowest-values",
        "the hop limit of an address vector reads 64, whatever was set",
        "nothing is decided by an address vector that was read back",
    ),
    quirk(
        RXE,
        "query.highest-values",
        "hop limit and service level of an address vector read 64 and 0, whatever was set",
        "nothing is decided by an address vector that was read back",
    ),
    quirk(
        RXE,
        "reset.from-every-state",
        "attributes read in RESET as they were set before",
        "the ways out of RESET set every attribute that they need",
    ),
    quirk(
        RXE,
        "srq.last-wqe",
        "QP_LAST_WQE_REACHED is never raised",
        "the end of a queue pair waits for it no longer than it is told to, and says so",
    ),
    quirk(
        RXE,
        "timing.retry-count-7",
        "retry_cnt = 7 retries for ever",
        "a peer that is gone is told of by the control channel; where there is none, retry_cnt = 6 or less bounds the wait",
    ),
    quirk(
        RXE,
        "cm.rnr-retry",
        "the active side takes its RNR retry limit from the REP, not from its own parameters",
        "both sides of our connection manager send the limit that they mean",
    ),
    quirk(
        RXE,
        "wire.read-resume",
        "a READ that is resumed is answered from RESPONSE MIDDLE on, without a FIRST",
        "our requester takes a resumed READ from any response of it",
    ),
    quirk(
        RXE,
        "wire.migreq",
        "MigReq is 0, although no path was migrated",
        "our responder accepts both",
    ),
    quirk(
        RXE,
        "wire.egress-drop",
        "a packet that is dropped as it leaves is taken for an RNR NAK with timer 0",
        "rnr_nak_retry_err at the requester without out_of_buffer at the responder shows it: both stand in the evidence",
    ),
];

/// What is known of the devices of a driver.
pub fn quirks_of(driver: &str) -> impl Iterator<Item = &'static Quirk> {
    QUIRKS.iter().filter(move |quirk| quirk.driver == driver)
}

/// What is done about a deviation of such a device, if it is a known one.
pub fn quirk_of(driver: &str, check: &str) -> Option<&'static Quirk> {
    quirks_of(driver).find(|quirk| match quirk.check.strip_suffix('.') {
        Some(_) => check.starts_with(quirk.check),
        None => check == quirk.check,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_is_known_by_its_driver_and_its_check() {
        let known = quirk_of("rxe", "errors.send-too-long").unwrap();
        assert!(known.does.contains("0x63"));
        let of = |check| quirk_of("rxe", check).map(|quirk| quirk.check);
        assert_eq!(of("events.bad-rkey-read"), Some("events."));
        assert_eq!(of("events.cq-overrun"), Some("events.cq-overrun"), "what is said of it alone");
        assert_eq!(quirk_of("rxe", "errors.send-too"), None, "names are whole");
        assert_eq!(quirk_of("soft", "errors.send-too-long"), None, "of others it is not known");
        assert_eq!(quirks_of("soft").count(), 0);
    }

    #[test]
    fn no_deviation_is_listed_twice() {
        for (at, quirk) in QUIRKS.iter().enumerate() {
            assert!(
                !QUIRKS[..at].iter().any(|q| (q.driver, q.check) == (quirk.driver, quirk.check))
            );
        }
    }
}
