//! What came out, for people and for programs.

use std::fmt::Write as _;

use pmd_verbs::roce::qp::state::{QpState, Transport};
use serde_json::{Value, json};

use super::spec;

/// Something that is not as specified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deviation {
    pub(crate) transport: Transport,
    pub(crate) from: QpState,
    pub(crate) to: QpState,
    /// Which call it was.
    pub(crate) case: String,
    /// What had to happen.
    pub(crate) expected: String,
    /// What happened.
    pub(crate) got: String,
}

/// A state that a transport's queue pairs cannot be in, so that nothing can be tried from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreachable {
    pub(crate) transport: Transport,
    pub(crate) state: QpState,
    pub(crate) why: String,
}

/// One pair of states of one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) transport: Transport,
    pub(crate) from: QpState,
    pub(crate) to: QpState,
    pub(crate) checks: u64,
    pub(crate) deviations: u64,
}

/// Everything that was found out about a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) checks: u64,
    pub(crate) cells: Vec<Cell>,
    pub(crate) deviations: Vec<Deviation>,
    pub(crate) unreachable: Vec<Unreachable>,
}

impl Report {
    /// Whether the device is as specified.
    pub(crate) fn ok(&self) -> bool {
        self.deviations.is_empty()
    }

    /// As one object with stable keys.
    pub(crate) fn to_json(&self, device: &str) -> Value {
        let deviations = self.deviations.iter().map(|deviation| {
            json!({
                "transport": deviation.transport.name(),
                "from": deviation.from.name(),
                "to": deviation.to.name(),
                "case": deviation.case,
                "expected": deviation.expected,
                "got": deviation.got,
            })
        });
        let unreachable = self.unreachable.iter().map(|unreachable| {
            json!({
                "transport": unreachable.transport.name(),
                "state": unreachable.state.name(),
                "why": unreachable.why,
            })
        });
        json!({
            "ok": self.ok(),
            "device": device,
            "part": "states",
            "checks": self.checks,
            "deviations": deviations.collect::<Vec<_>>(),
            "unreachable": unreachable.collect::<Vec<_>>(),
        })
    }

    /// As a table of checks per transition and transport, and what deviates below it.
    pub(crate) fn to_text(&self, device: &str) -> String {
        let mut text = format!("{device}: queue pair states, checks per transition\n\n");
        let line = |text: &mut String, first: &str, cells: &[String]| {
            // Writing to a String does not fail.
            let _ = write!(text, "{first:<16}");
            for cell in cells {
                let _ = write!(text, "{cell:>12}");
            }
            text.push('\n');
        };
        line(&mut text, "", &spec::TRANSPORTS.map(|transport| transport.name().to_owned()));
        for from in QpState::ALL {
            for to in QpState::ALL {
                let cells = spec::TRANSPORTS.map(|transport| self.shown(transport, from, to));
                line(&mut text, &format!("{from} -> {to}"), &cells);
            }
        }
        text.push('\n');
        for Unreachable { transport, state, why } in &self.unreachable {
            let _ = writeln!(text, "{transport} is never in {state}: {why}");
        }
        for Deviation { transport, from, to, case, expected, got } in &self.deviations {
            let _ = writeln!(
                text,
                "\ndeviation: {transport} {from} -> {to}, {case}\n  expected: {expected}\n  got:      {got}"
            );
        }
        let deviations = match self.deviations.len() {
            1 => "1 deviation".to_owned(),
            deviations => format!("{deviations} deviations"),
        };
        let _ = writeln!(text, "\n{} checks, {deviations}", self.checks);
        text
    }

    fn shown(&self, transport: Transport, from: QpState, to: QpState) -> String {
        let cell = self.cells.iter().find(|c| (c.transport, c.from, c.to) == (transport, from, to));
        match cell {
            None => "-".to_owned(),
            Some(Cell { checks, deviations: 0, .. }) => checks.to_string(),
            Some(Cell { checks, deviations, .. }) => format!("{deviations}/{checks} wrong"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let (transport, from, to) = (Transport::Uc, QpState::Init, QpState::Rtr);
        Report {
            checks: 31,
            cells: vec![Cell { transport, from, to, checks: 30, deviations: 1 }],
            deviations: vec![Deviation {
                transport,
                from,
                to,
                case: "without AV".to_owned(),
                expected: "refused".to_owned(),
                got: "accepted, state RTR".to_owned(),
            }],
            unreachable: vec![Unreachable {
                transport: Transport::Rc,
                state: QpState::Sqe,
                why: "a send that fails leads to ERR".to_owned(),
            }],
        }
    }

    #[test]
    fn programs_get_every_deviation_by_its_keys() {
        let json = report().to_json("soft:127.0.0.1");
        assert_eq!((&json["ok"], &json["checks"]), (&json!(false), &json!(31)));
        assert_eq!(json["device"], "soft:127.0.0.1");
        assert_eq!(
            json["deviations"][0],
            json!({
                "transport": "UC", "from": "INIT", "to": "RTR", "case": "without AV",
                "expected": "refused", "got": "accepted, state RTR",
            })
        );
        assert_eq!(json["unreachable"][0]["state"], "SQE");
        assert_eq!(Report::default().to_json("x")["ok"], true);
    }

    #[test]
    fn people_get_a_table_and_what_deviates() {
        let text = report().to_text("soft:127.0.0.1");
        let row = text.lines().find(|line| line.starts_with("INIT -> RTR")).unwrap();
        let columns: Vec<_> = row["INIT -> RTR".len()..].split_whitespace().collect();
        assert_eq!(columns, ["-", "1/30", "wrong", "-", "-", "-"]);
        assert!(text.contains("deviation: UC INIT -> RTR, without AV\n  expected: refused\n"));
        assert!(text.contains("RC is never in SQE: a send that fails leads to ERR"));
        assert!(text.ends_with("\n31 checks, 1 deviation\n"));
    }
}
