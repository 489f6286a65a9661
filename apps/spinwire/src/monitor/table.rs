//! The same as plain tables, for where there is no terminal.

use pmd_observe::report::{Align, Table};

use super::view::{Choice, LCORES, NODES, QPS, View};

/// Everything, once.
pub(crate) fn text(view: &View, choice: &Choice) -> String {
    let mut text = view.heads().join("\n");
    let rows = view.rows(choice);
    let qps = rows.iter().map(|row| row.cells().to_vec());
    for table in [
        table(&LCORES, view.lcores().iter().map(|row| row.to_vec())),
        table(&NODES, view.nodes().iter().map(|row| row.to_vec())),
        table(&QPS, qps),
    ] {
        text += &format!("\n\n{}", table.to_string().trim_end());
    }
    text + "\n"
}

fn table(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let columns: Vec<(&str, Align)> =
        headings.iter().map(|heading| (*heading, align(heading))).collect();
    let mut table = Table::new(&columns);
    rows.for_each(|row| table.row(row));
    table
}

/// Names stand left, numbers right.
pub(crate) fn align(heading: &str) -> Align {
    match heading {
        "lcore" | "node" | "kind" | "state" | "peer" | "qpn" | "remote" | "path" | "trouble"
        | "waits" => Align::Left,
        _ => Align::Right,
    }
}

#[cfg(test)]
mod tests {
    use pmd_observe::status::{Fill, Qp, State};

    use super::super::view::tests::{qp, run};
    use super::*;

    /// S2-28: the one that is stuck is in the first row, with what is known of it.
    #[test]
    fn s2_28_the_first_row_is_the_one_that_is_stuck() {
        let mut qps: Vec<Qp> = (0..300).map(|qpn| qp(qpn, State::Rts, 900.0)).collect();
        qps.push(Qp {
            peer: Some("target".into()),
            remote_qpn: Some(0x2a801),
            path: Some("packet".into()),
            send: Fill { used: 3, depth: 32 },
            reconnects: 2,
            counters: [("rnr_nak_retry_err", 7)].into_iter().collect(),
            ..qp(0x1b802, State::Rtr, 125.0)
        });
        let text = text(&View::new(vec![run(qps)]), &Choice::default());
        let at = text.lines().position(|line| line.starts_with("state ")).unwrap();
        let row: Vec<&str> = text.lines().nth(at + 1).unwrap().split_whitespace().collect();
        assert_eq!(
            row.join(" "),
            "RTR 125 s - client target 0x01b802 0x02a801 rc packet 3/32 0/0 0 - reconnects=2 rnr_nak_retry_err=7"
        );
        assert_eq!(text.lines().count(), at + 302);
        assert!(text.starts_with("process 4711, 12.5 s, running  [/run]\n\nlcore "), "{text}");
        assert!(text.contains("\nlc0      0  50.0 %      0     0  0 ns     3 s\n"), "{text}");
    }
}
