//! The guide says what the code does.

use std::fs;
use std::time::Duration;

use pmd_graph::config::retry::milliseconds;
use pmd_observe::{Code, Owner};
use pmd_roce::wire::RnrTimer;

fn page(path: &str) -> String {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(path).expect("the repository has this page")
}

/// The cells of the table rows that start with `first`.
fn rows<'a>(page: &'a str, first: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    let rows = page.lines().filter(move |line| line.starts_with(first));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
}

/// Every code has a row with what to look at, and an owner that there is.
#[test]
fn the_guide_explains_every_verdict() {
    let guide = page("docs/guide.md");
    let section = guide.split("### `why`").nth(1).expect("it has a chapter on verdicts");
    for code in Code::ALL {
        let first = format!("| `{code}` |");
        let row = rows(section, &first).next();
        let row = row.unwrap_or_else(|| panic!("no row for {code}"));
        let [_, meaning, owner, look] = row[..] else { panic!("{row:?}") };
        let owners = [Owner::Local, Owner::Remote, Owner::Fabric, Owner::Config];
        assert!(owner == "-" || owners.iter().any(|known| known.as_str() == owner), "{row:?}");
        assert!(!meaning.is_empty() && !look.is_empty(), "{row:?}");
    }
    let all = section.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(all, Code::ALL.len(), "a row for each, and for nothing else");
}

/// S3-11, S3-13: names, ranges, defaults and the budget of the retry knobs.
#[test]
fn s3_13_the_guide_documents_the_retry_knobs() {
    let guide = page("docs/guide.md");
    for (key, range, default) in [
        ("timeout", "0 to 31", "14"),
        ("retry_cnt", "0 to 7", "7"),
        ("rnr_retry", "0 to 7", "7"),
        ("min_rnr_timer", "0 to 31", "12"),
    ] {
        let environment = format!("`SPINWIRE_QP_{}`", key.to_uppercase());
        let first = format!("| `{key}` | {environment} |");
        let row = rows(&guide, &first).next().unwrap_or_else(|| panic!("no row for {key}"));
        assert_eq!((row[2], row[3]), (range, default), "{key}");
    }
    assert!(guide.contains("`SPINWIRE_<NODE>_QP_RETRY_CNT`"));
    assert!(guide.contains("`(retry_cnt + 1) x 4.096 us x 2^timeout`"));
    let table = guide.split("**The budget**").nth(1).expect("it has a table of budgets");
    let mut checked = 0;
    for row in rows(table, "| 1").chain(rows(table, "| 2")).chain(rows(table, "| 8")) {
        let timeout: u32 = row[0].parse().expect("the first column is an exponent");
        let try_ = Duration::from_nanos(4096) * (1 << timeout);
        let cells = [1, 1, 4, 6, 8].map(|tries| milliseconds(try_ * tries));
        assert_eq!(row[1..], cells, "timeout {timeout}");
        checked += 1;
    }
    assert_eq!(checked, 7);
    for (code, pause) in [(12, "12 is 0.64 ms"), (0, "0 is 655.36 ms")] {
        let timer = RnrTimer::new(code).expect("a code").duration();
        let words = format!("{code} is {} ms", timer.as_secs_f64() * 1e3);
        assert_eq!(words, pause);
        assert!(guide.contains(pause));
    }
}

/// S2-27: the six steps are chapters.
#[test]
fn s2_27_six_steps() {
    let guide = page("docs/guide.md");
    let steps: Vec<&str> = guide.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for (number, words) in [
        "transport",
        "wrapper",
        "asynchronous events",
        "reset instead of destroying",
        "connection manager",
        "Watch",
    ]
    .iter()
    .enumerate()
    {
        assert!(steps[number].starts_with(&format!("{}. ", number + 1)), "{steps:?}");
        assert!(steps[number].contains(words), "{steps:?}");
    }
}

/// Every alert that there is has a row, and every key of the state is named.
#[test]
fn the_guide_lists_alerts_and_keys() {
    let (guide, alerts) = (page("docs/guide.md"), page("configs/alerts.yml"));
    let mut count = 0;
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(guide.contains(alert), "{alert}");
        count += 1;
    }
    assert!(count >= 7);
    let status = pmd_observe::status::Status::default();
    let value = serde_json::to_value(&status).expect("it is JSON");
    for key in value.as_object().expect("an object").keys() {
        let named = guide.contains(&format!("`{key}`")) || guide.contains(&format!("`{key}[]`"));
        assert!(named, "{key}");
    }
}
