//! What the state of a run tells of trouble while it lives.

use super::evidence::{End, Evidence, Path, Peer, Qp, Symptom};
use crate::counters::Snapshot;
use crate::limits::{STANDSTILL_S, UNDER_WAY_S};
use crate::status::{self, State, Status};

/// Evidence from the state alone: of the queue pairs that live, the worst one that stands still with work to do, or is on
/// its way up for longer than that takes. No symptom where there is none.
pub fn evidence_of_state(status: &Status) -> Evidence {
    let mut live: Vec<&status::Qp> = status.qps.iter().filter(|qp| !qp.ended).collect();
    live.sort_by(|a, b| a.worse_first(b));
    let Some((qp, seconds)) = live.into_iter().find_map(|qp| Some((qp, stands_for(qp)?))) else {
        return Evidence::default();
    };
    let is_there =
        |other: &&status::Qp| Some(other.qpn) == qp.remote_qpn && other.remote_qpn == Some(qp.qpn);
    let remote = status.qps.iter().find(is_there);
    Evidence {
        symptom: Symptom::Stalled { for_ns: nanoseconds(seconds) },
        local: end(status, qp),
        remote: remote.map(|other| end(status, other)),
        path: if qp.path.as_deref() == Some("local") { Path::Local } else { Path::Packet },
        // Both ends are of one process then.
        peer: if remote.is_some() { Peer::Alive } else { Peer::Unknown },
        ..Evidence::default()
    }
}

/// For how long nothing has become of it, seconds; none where something does.
fn stands_for(qp: &status::Qp) -> Option<f64> {
    let under_way = matches!(qp.state, State::Init | State::Rtr) && qp.state_s > UNDER_WAY_S;
    let stalls = qp.stalled_s > STANDSTILL_S;
    let seconds = if stalls { qp.stalled_s } else { qp.state_s };
    (stalls || under_way).then_some(seconds)
}

fn end(status: &Status, qp: &status::Qp) -> End {
    let device = status.devices.iter().find(|device| device.name == qp.device);
    let lcore = status.lcores.iter().find(|lcore| lcore.name == qp.lcore);
    End {
        name: qp.node.clone(),
        place: format!("process {}, {}, {}", status.pid, qp.device, qp.lcore),
        // Counted since the run began.
        before: Snapshot::default(),
        after: device.map(|device| device.counters.clone()).unwrap_or_default(),
        qp: Qp {
            qpn: Some(qp.qpn),
            dest_qpn: qp.remote_qpn,
            transport: Some(qp.transport.to_uppercase().replace('-', "_")),
            state: Some(qp.state.as_str().to_owned()),
            counters: qp.counters.clone(),
            ..Qp::default()
        },
        gap_ns: lcore.map(|lcore| nanoseconds(lcore.longest_gap_s.max(lcore.silent_s))),
        ..End::default()
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    let span = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Code;
    use crate::why::diagnose;

    fn qp(qpn: u32, remote: u32) -> status::Qp {
        let json = format!(
            r#"{{"device":"soft0","qpn":{qpn},"remote_qpn":{remote},"state":"RTS","node":"client","transport":"rc"}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn counted(name: &'static str, value: u64) -> Snapshot {
        [(name, value)].into_iter().collect()
    }

    #[test]
    fn who_stands_still_is_diagnosed() {
        let stalled =
            status::Qp { stalled_s: 9.0, counters: counted("rnr_nak_retry_err", 700), ..qp(1, 2) };
        let dry = status::Qp { counters: counted("out_of_buffer", 700), ..qp(2, 1) };
        let status = Status { qps: vec![qp(5, 6), dry, stalled], ..Status::default() };
        let evidence = evidence_of_state(&status);
        assert_eq!(evidence.symptom, Symptom::Stalled { for_ns: 9_000_000_000 });
        assert_eq!((evidence.local.qp.qpn, evidence.peer), (Some(1), Peer::Alive));
        let remote = evidence.remote.as_ref().unwrap();
        assert_eq!((remote.qp.qpn, remote.qp.dest_qpn), (Some(2), Some(1)));
        assert_eq!(diagnose(&evidence).code, Code::RnrStall);
    }

    #[test]
    fn who_moves_or_has_nothing_to_do_is_well() {
        let ended = status::Qp { ended: true, stalled_s: 90.0, ..qp(3, 4) };
        let young = status::Qp { state: State::Rtr, state_s: 0.5, ..qp(7, 8) };
        let status = Status { qps: vec![qp(1, 2), ended, young], ..Status::default() };
        assert_eq!(evidence_of_state(&status), Evidence::default());
        let stuck = status::Qp { state: State::Rtr, state_s: 60.0, ..qp(7, 8) };
        let status = Status { qps: vec![stuck], ..Status::default() };
        let evidence = evidence_of_state(&status);
        assert_eq!(evidence.symptom, Symptom::Stalled { for_ns: 60_000_000_000 });
        assert_eq!(evidence.local.qp.state.as_deref(), Some("RTR"));
    }
}
