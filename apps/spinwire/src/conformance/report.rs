//! What came out, for people and for programs.

use std::fmt::Write as _;

use pmd_verbs::quirks::{Quirk, quirk_of};
use pmd_verbs::roce::qp::state::{QpState, Transport};
use serde_json::{Value, json};

use super::finding::Finding;
use super::spec;
use crate::cli::Part;

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
    /// Its driver, of which deviations may be known.
    driver: String,
    pub(crate) checks: u64,
    pub(crate) cells: Vec<Cell>,
    pub(crate) deviations: Vec<Deviation>,
    pub(crate) unreachable: Vec<Unreachable>,
    /// Services that the device does not have.
    pub(crate) absent: Vec<Transport>,
    pub(crate) findings: Vec<Finding>,
}

impl Deviation {
    fn check(&self) -> String {
        format!("states.{}-{}", self.from, self.to).to_lowercase()
    }
}

impl Report {
    pub(crate) fn new(driver: &str) -> Self {
        Self { driver: driver.to_owned(), ..Self::default() }
    }

    /// Enters what the checks of a part have found.
    pub(crate) fn enter(&mut self, findings: Vec<Finding>) {
        self.checks += findings.len() as u64;
        self.findings.extend(findings);
    }

    /// Whether the device is as specified, or Spinwire knows what to do where it is not.
    pub(crate) fn ok(&self) -> bool {
        self.unanswered() == 0
    }

    /// Deviations that nobody has an answer to.
    fn unanswered(&self) -> usize {
        let states = self.deviations.iter().map(Deviation::check);
        let others = self.deviating().map(|finding| finding.check.clone());
        states.chain(others).filter(|check| self.quirk(check).is_none()).count()
    }

    fn deviating(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.deviates)
    }

    fn quirk(&self, check: &str) -> Option<&'static Quirk> {
        quirk_of(&self.driver, check)
    }

    /// As one object with stable keys; `part` is the only one that was checked.
    pub(crate) fn to_json(&self, device: &str, part: Option<Part>) -> Value {
        let answer = |check: &str| self.quirk(check).map(|quirk| quirk.answer);
        let states = self.deviations.iter().map(|deviation| {
            let check = deviation.check();
            json!({
                "part": "states",
                "check": check,
                "transport": deviation.transport.name(),
                "from": deviation.from.name(),
                "to": deviation.to.name(),
                "case": deviation.case,
                "expected": deviation.expected,
                "source": spec::SOURCE,
                "got": deviation.got,
                "answer": answer(&check),
            })
        });
        let others = self.deviating().map(|finding| {
            json!({
                "part": finding.part.name(),
                "check": finding.check,
                "path": finding.path,
                "expected": finding.expected,
                "source": finding.source,
                "got": finding.seen,
                "answer": answer(&finding.check),
            })
        });
        let results = self.findings.iter().map(|finding| {
            json!({
                "part": finding.part.name(),
                "check": finding.check,
                "path": finding.path,
                "expected": finding.expected,
                "source": finding.source,
                "seen": finding.seen,
                "ok": !finding.deviates,
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
            "driver": self.driver,
            "part": part.map_or("all", Part::name),
            "checks": self.checks,
            "results": results.collect::<Vec<_>>(),
            "deviations": states.chain(others).collect::<Vec<_>>(),
            "unanswered": self.unanswered(),
            "unreachable": unreachable.collect::<Vec<_>>(),
            "absent": self.absent.iter().map(|transport| transport.name()).collect::<Vec<_>>(),
        })
    }

    /// As tables, and what is done about deviations below them.
    pub(crate) fn to_text(&self, device: &str) -> String {
        let mut text = String::new();
        if !self.cells.is_empty() {
            self.show_states(&mut text, device);
        }
        let mut part = None;
        for finding in &self.findings {
            if part != Some(finding.part) {
                part = Some(finding.part);
                // Writing to a String does not fail.
                let _ = writeln!(text, "\n{device}: {}\n", finding.part.about());
            }
            self.show(&mut text, finding);
        }
        for deviation in &self.deviations {
            let Deviation { transport, from, to, case, expected, got } = deviation;
            let _ = writeln!(
                text,
                "\ndeviation: {transport} {from} -> {to}, {case}\n  expected: {expected} ({})\n  got:      {got}\n  Spinwire: {}",
                spec::SOURCE,
                self.answer(&deviation.check()),
            );
        }
        for Finding { check, path, expected, source, seen, .. } in self.deviating() {
            let _ = writeln!(
                text,
                "\ndeviation: {check}, {path}\n  expected: {expected} ({source})\n  got:      {seen}\n  Spinwire: {}",
                self.answer(check),
            );
        }
        let deviations = match self.deviations.len() + self.deviating().count() {
            1 => "1 deviation".to_owned(),
            deviations => format!("{deviations} deviations"),
        };
        let _ = write!(text, "\n{} checks, {deviations}", self.checks);
        let _ = match self.unanswered() {
            0 => writeln!(text),
            unanswered => writeln!(text, ", {unanswered} of them without an answer"),
        };
        text
    }

    fn answer(&self, check: &str) -> &'static str {
        self.quirk(check).map_or("has no answer to this", |quirk| quirk.answer)
    }

    /// One row: verdict, check, path, what was expected with its source, and what was seen where that is something else.
    fn show(&self, text: &mut String, finding: &Finding) {
        let Finding { check, path, expected, source, seen, deviates, .. } = finding;
        let verdict = match (deviates, self.quirk(check)) {
            (false, _) => "ok",
            (true, Some(_)) => "deviates",
            (true, None) => "DEVIATES",
        };
        let _ = write!(text, "{verdict:<9} {check:<34} {path:<14} {expected} [{source}]");
        let _ = if seen == expected { writeln!(text) } else { writeln!(text, "; seen: {seen}") };
    }

    fn show_states(&self, text: &mut String, device: &str) {
        let _ = writeln!(text, "{device}: {}\n", Part::States.about());
        let line = |text: &mut String, first: &str, cells: &[String]| {
            let _ = write!(text, "{first:<16}");
            for cell in cells {
                let _ = write!(text, "{cell:>12}");
            }
            text.push('\n');
        };
        line(text, "", &spec::TRANSPORTS.map(|transport| transport.name().to_owned()));
        for from in QpState::ALL {
            for to in QpState::ALL {
                let cells = spec::TRANSPORTS.map(|transport| self.shown(transport, from, to));
                line(text, &format!("{from} -> {to}"), &cells);
            }
        }
        text.push('\n');
        for transport in &self.absent {
            let _ = writeln!(text, "{transport}: the device has no such service");
        }
        for Unreachable { transport, state, why } in &self.unreachable {
            let _ = writeln!(text, "{transport} is never in {state}: {why}");
        }
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
            absent: vec![Transport::XrcTgt],
            ..Report::new("soft")
        }
    }

    fn finding(check: &str, deviates: bool) -> Finding {
        Finding {
            part: Part::Flush,
            check: check.to_owned(),
            path: "packets",
            expected: "this".to_owned(),
            source: "IBTA",
            seen: if deviates { "that" } else { "this" }.to_owned(),
            deviates,
        }
    }

    #[test]
    fn programs_get_every_deviation_by_its_keys() {
        let json = report().to_json("soft:127.0.0.1", Some(Part::States));
        assert_eq!((&json["ok"], &json["checks"]), (&json!(false), &json!(31)));
        assert_eq!((&json["device"], &json["driver"]), (&json!("soft:127.0.0.1"), &json!("soft")));
        assert_eq!((&json["part"], &json["unanswered"]), (&json!("states"), &json!(1)));
        assert_eq!(
            json["deviations"][0],
            json!({
                "part": "states", "check": "states.init-rtr", "transport": "UC", "from": "INIT", "to": "RTR",
                "case": "without AV", "expected": "refused", "source": spec::SOURCE,
                "got": "accepted, state RTR", "answer": null,
            })
        );
        assert_eq!(json["unreachable"][0]["state"], "SQE");
        assert_eq!(json["absent"], json!(["XRC_TGT"]));
        assert_eq!(Report::default().to_json("x", None)["ok"], true);
    }

    /// A deviation that is known of a driver is listed with what is done about it, and is no failure; of another driver the
    /// same one is.
    #[test]
    fn a_known_deviation_has_its_answer() {
        let known = "errors.send-too-long";
        let of = |driver: &str| {
            let mut report = Report::new(driver);
            report.enter(vec![finding(known, true), finding("flush.x", false)]);
            report
        };
        let rxe = of("rxe");
        assert!(rxe.ok());
        let json = rxe.to_json("verbs:rxe0", None);
        assert_eq!((&json["part"], &json["unanswered"]), (&json!("all"), &json!(0)));
        assert!(json["deviations"][0]["answer"].as_str().unwrap().contains("length error"));
        assert_eq!(
            (&json["results"][0]["ok"], &json["results"][1]["ok"]),
            (&json!(false), &json!(true))
        );
        assert_eq!(json["results"].as_array().unwrap().len(), 2);
        let text = rxe.to_text("verbs:rxe0");
        assert!(
            text.contains("\ndeviates  errors.send-too-long ")
                && text.contains("\nok        flush.x "),
            "{text}"
        );
        assert!(text.contains("[IBTA]; seen: that\n"), "{text}");
        assert!(text.ends_with("\n2 checks, 1 deviation\n"), "{text}");
        let soft = of("soft");
        assert!(!soft.ok());
        let text = soft.to_text("soft");
        assert!(text.contains("Spinwire: has no answer to this"), "{text}");
        assert!(text.ends_with("\n2 checks, 1 deviation, 1 of them without an answer\n"), "{text}");
    }

    #[test]
    fn people_get_a_table_and_what_deviates() {
        let text = report().to_text("soft:127.0.0.1");
        let row = text.lines().find(|line| line.starts_with("INIT -> RTR")).unwrap();
        let columns: Vec<_> = row["INIT -> RTR".len()..].split_whitespace().collect();
        assert_eq!(columns, ["-", "1/30", "wrong", "-", "-", "-"]);
        assert!(text.contains("deviation: UC INIT -> RTR, without AV\n  expected: refused ("));
        assert!(text.contains("\nXRC_TGT: the device has no such service\n"));
        assert!(text.contains("RC is never in SQE: a send that fails leads to ERR"));
        assert!(text.ends_with("\n31 checks, 1 deviation, 1 of them without an answer\n"));
    }
}
