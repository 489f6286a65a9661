//! What a failed operation says about the connection.

use pmd_observe::{Code, Owner};
use pmd_verbs::WcStatus;

use super::Peer;
use crate::failure::Failure;

/// The verdict on an operation that ended with `status`. `node` is this end's name, for the setting that applies.
pub(super) fn failure(status: WcStatus, node: &str, peer: &Peer) -> Failure {
    let (code, owner, summary, knob) = match status {
        WcStatus::RetryExc => (
            Code::LinkDead,
            Owner::Fabric,
            format!(
                "{peer} did not answer within the retry budget, and its control channel is still open"
            ),
            Some("timeout"),
        ),
        WcStatus::RnrRetryExc => (
            Code::RnrExhausted,
            Owner::Remote,
            format!("{peer} had no receive posted for as long as the RNR retries lasted"),
            Some("rnr_retry"),
        ),
        WcStatus::RemAccess => (
            Code::AccessMr,
            Owner::Remote,
            format!("the memory of {peer} does not allow this access"),
            None,
        ),
        WcStatus::RemInvReq => {
            (Code::InvalidRequest, Owner::Local, format!("{peer} found the request invalid"), None)
        }
        WcStatus::RemOp => (
            Code::RemoteOperation,
            Owner::Remote,
            format!("{peer} failed while it executed the request"),
            None,
        ),
        WcStatus::LocLen => (
            Code::Length,
            Owner::Local,
            format!("a message of {peer} is longer than its buffer"),
            None,
        ),
        WcStatus::LocProt | WcStatus::LocAccess => (
            Code::LocalProtection,
            Owner::Local,
            "a local buffer is not registered for this use".to_owned(),
            None,
        ),
        WcStatus::Fatal => (Code::DeviceGone, Owner::Local, "the device failed".to_owned(), None),
        _ => (Code::Unknown, Owner::Local, format!("the connection to {peer} failed"), None),
    };
    let failure = Failure::new(code, owner, summary).because(format!(
        "work completion status {}: {}",
        status as u8,
        status.text()
    ));
    match knob {
        Some(knob) => failure.turn(format!("node.{node}.{knob}")),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_and_missing_receives_are_told_apart() {
        let peer = Peer::named("target");
        let silent = failure(WcStatus::RetryExc, "client", &peer).verdict;
        assert_eq!((silent.code, silent.owner), (Code::LinkDead, Owner::Fabric));
        assert_eq!(silent.knob.as_deref(), Some("node.client.timeout"));
        assert!(silent.evidence[0].starts_with("work completion status 12: "), "{silent}");
        let dry = failure(WcStatus::RnrRetryExc, "client", &peer).verdict;
        assert_eq!((dry.code, dry.owner), (Code::RnrExhausted, Owner::Remote));
        assert_eq!(dry.knob.as_deref(), Some("node.client.rnr_retry"));
    }
}
