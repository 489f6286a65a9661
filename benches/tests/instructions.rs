//! What is written down of instructions keeps the bounds that are promised; `ci/instructions` counts whether it is true.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Numbers of a table of benches/instructions.toml, by name.
fn numbers() -> BTreeMap<&'static str, f64> {
    let lines = include_str!("../instructions.toml").lines();
    let pairs = lines.filter_map(|line| line.split_once(" = "));
    let numbers =
        pairs.filter_map(|(name, value)| Some((name.trim_matches('"'), value.parse().ok()?)));
    numbers.collect()
}

/// S3-38, with a bound of 2 %: what a message of 8 bytes costs by an endpoint beyond what it costs by one that keeps no
/// books, both ends together, each request signalled. A SEND is in the books of both ends, a WRITE in those of one.
#[test]
fn s3_38_the_ledger_costs_at_most_two_percent() {
    let numbers = numbers();
    assert_eq!(numbers["ledger"], 0.02);
    for kind in ["send", "write"] {
        let kept = numbers[format!("per_endpoint {kind}").as_str()];
        let without = numbers[format!("per_endpoint {kind} --no-ledger").as_str()];
        assert!(without > 100.0, "{kind}: {without}");
        assert!(kept <= without * (1.0 + numbers["ledger"]), "{kind}: {kept} against {without}");
    }
}

/// S2-19: RESET and the steps to RTS take less than a fifth of the instructions of another queue pair.
#[test]
fn s2_19_a_reset_costs_a_fifth_of_a_new_queue_pair() {
    let numbers = numbers();
    for path in ["", " --udp"] {
        let [again, anew] = ["reset-reinit", "destroy-create"]
            .map(|how| numbers[format!("per_reconnect {how}{path}").as_str()]);
        assert!(5.0 * again <= anew, "{path}: {again} against {anew}");
    }
}
