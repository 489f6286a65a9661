//! The retry budget: who decides it, how long it is, and what is refused.

use std::time::Duration;

use pmd_graph::config::retry::{Origin, Retry, milliseconds, stall};

use crate::made_up::{QUICKSTART, parse, quickstart, refused, titles};

/// The client's budget under `text`, `sets` and `environment`; none of them may be refused.
fn client(text: &str, sets: &[&str], environment: &[(&str, &str)]) -> Retry {
    let config = parse(text, sets, environment).unwrap_or_else(|report| panic!("{report}"));
    let client = config.node("client").expect("it is declared");
    config.nodes[client].retry.clone().expect("it is reliable")
}

fn values(retry: &Retry) -> [u8; 4] {
    retry.knobs().map(|(_, knob)| knob.value)
}

/// S3-03 and S3-11: 14/7/7/12, which give up after 536.9 ms.
#[test]
fn s3_03_defaults() {
    let retry = client(QUICKSTART, &[], &[]);
    assert_eq!(values(&retry), [14, 7, 7, 12]);
    assert!(retry.knobs().iter().all(|(_, knob)| knob.origin == Origin::Default));
    assert_eq!(retry.ack_timeout(), Some(Duration::from_nanos(67_108_864)));
    assert_eq!(retry.budget(), Some(Duration::from_nanos(536_870_912)));
    assert_eq!(
        retry.to_string(),
        "timeout 14, retry_cnt 7, rnr_retry 7 (infinite), min_rnr_timer 12; a silent peer is given up after 536.9 ms"
    );
}

/// S0-16 and S3-11: the unit is 4.096 us, and the budget is (retry_cnt + 1) timeouts.
#[test]
fn s3_11_budget_in_milliseconds() {
    for (timeout, retry_cnt, shown) in
        [(14, 7, "536.9 ms"), (20, 5, "25769.8 ms"), (8, 0, "1.0 ms"), (1, 0, "0.0 ms")]
    {
        let sets = [
            format!("node.client.timeout={timeout}"),
            format!("node.client.retry_cnt={retry_cnt}"),
        ];
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        assert_eq!(milliseconds(client(QUICKSTART, &sets, &[]).budget().unwrap()), shown);
    }
}

/// S3-01 and S3-02: the node's variable before the general one, and both before the file; `--set` before all.
#[test]
fn s3_02_precedence() {
    let text = quickstart(&[
        ("[device.soft0]", "[retry]\ntimeout = 10\nretry_cnt = 1\n[device.soft0]"),
        ("verify = true", "timeout = 11"),
    ]);
    let retry = client(&text, &[], &[]);
    assert_eq!(values(&retry), [11, 1, 7, 12]);
    let line = |from: &str| 1 + text[..text.find(from).unwrap()].matches('\n').count();
    assert_eq!(retry.timeout.origin, Origin::File { line: line("timeout = 11") });
    assert_eq!(retry.retry_cnt.origin, Origin::File { line: line("retry_cnt = 1") });

    let general = ("SPINWIRE_QP_TIMEOUT", "12");
    let retry = client(&text, &[], &[general]);
    assert_eq!(
        (retry.timeout.value, retry.timeout.origin),
        (12, Origin::Environment("SPINWIRE_QP_TIMEOUT".to_owned()))
    );

    let own = ("SPINWIRE_CLIENT_QP_TIMEOUT", "13");
    assert_eq!(client(&text, &[], &[general, own]).timeout.value, 13);
    assert_eq!(client(&text, &["retry.timeout=15"], &[general, own]).timeout.value, 15);
    let retry = client(&text, &["retry.timeout=15", "node.client.timeout=16"], &[general, own]);
    assert_eq!(
        (retry.timeout.value, retry.timeout.origin),
        (16, Origin::Set("node.client.timeout=16".to_owned()))
    );
}

#[test]
fn variables_of_a_node_are_upper_case_with_underscores() {
    let text = QUICKSTART.replace("\"client\"", "\"my-client\"");
    let config = parse(&text, &[], &[("SPINWIRE_MY_CLIENT_QP_RNR_RETRY", "3")]).unwrap();
    let client = &config.nodes[config.node("my-client").unwrap()];
    assert_eq!(client.retry.as_ref().unwrap().rnr_retry.value, 3);
}

/// S3-04: the width of each field, as the config refuses it.
#[test]
fn s3_04_ranges() {
    for (key, max) in [("timeout", 31), ("retry_cnt", 7), ("rnr_retry", 7), ("min_rnr_timer", 31)] {
        let over = format!("node.client.{key}={}", max + 1);
        assert_eq!(titles(&refused(QUICKSTART, &[&over])), [format!("`{key}` is out of range")]);
        let under = format!("retry.{key}=-1");
        assert_eq!(titles(&refused(QUICKSTART, &[&under])), [format!("`{key}` is out of range")]);
    }
    for key in ["rnr_retry", "min_rnr_timer", "retry_cnt"] {
        let max = if key == "min_rnr_timer" { 31 } else { 7 };
        let set = format!("node.client.{key}={max}");
        assert!(parse(QUICKSTART, &[&set], &[]).is_ok());
    }
}

/// S3-05: what the environment gets wrong is warned about once and ignored.
#[test]
fn s3_05_bad_variables_are_ignored() {
    for bad in ["32", "-1", "", "ten", "14.5", "99999999999999999999"] {
        let config = parse(QUICKSTART, &[], &[("SPINWIRE_QP_TIMEOUT", bad)]).unwrap();
        assert_eq!(titles(&config.report), ["SPINWIRE_QP_TIMEOUT is ignored"], "{bad}");
        for node in [0, 2] {
            assert_eq!(config.nodes[node].retry.as_ref().unwrap().timeout.value, 14);
        }
    }
    let both = [("SPINWIRE_CLIENT_QP_TIMEOUT", "x"), ("SPINWIRE_QP_TIMEOUT", "9")];
    assert_eq!(
        parse(QUICKSTART, &[], &both).unwrap().nodes[2].retry.as_ref().unwrap().timeout.value,
        9
    );
}

/// S3-12: what is asked for is what is applied, to the digit.
#[test]
fn s3_12_overrides_are_applied_as_they_are() {
    let sets = ["node.client.timeout=20", "node.client.retry_cnt=5", "node.client.rnr_retry=4"];
    let retry = client(QUICKSTART, &sets, &[]);
    assert_eq!(values(&retry), [20, 5, 4, 12]);
    assert_eq!(
        retry.to_string(),
        "timeout 20, retry_cnt 5, rnr_retry 4, min_rnr_timer 12; a silent peer is given up after 25769.8 ms"
    );
}

/// S0-15: the pause is a code, not a number; 0 is the longest.
#[test]
fn s0_15_rnr_pause() {
    for (code, micros) in [(0, 655_360), (1, 10), (12, 640), (31, 491_520)] {
        let set = format!("node.client.min_rnr_timer={code}");
        assert_eq!(client(QUICKSTART, &[&set], &[]).rnr_pause(), Duration::from_micros(micros));
    }
}

/// S3-06: no ACK timeout is allowed, and said.
#[test]
fn s3_06_timeout_zero_is_warned_about() {
    let config = parse(QUICKSTART, &["node.client.timeout=0"], &[]).unwrap();
    assert_eq!(titles(&config.report), ["timeout = 0 turns the ACK timeout of `client` off"]);
    let retry = config.nodes[2].retry.as_ref().unwrap();
    assert_eq!((retry.ack_timeout(), retry.budget()), (None, None));
    assert!(retry.to_string().ends_with("given up after no time: never"));
}

/// S3-07: 7 is said to be infinite, 6 is not.
#[test]
fn s3_07_rnr_retry_seven_is_infinite() {
    assert!(
        client(QUICKSTART, &["retry.rnr_retry=7"], &[])
            .to_string()
            .contains("rnr_retry 7 (infinite)")
    );
    assert!(!client(QUICKSTART, &["retry.rnr_retry=6"], &[]).to_string().contains("infinite"));
}

#[test]
fn impossible_budgets() {
    let title = "the retry budget of `client` is impossible";
    assert_eq!(titles(&refused(QUICKSTART, &["node.client.timeout=31"])), [title]);
    // 8 x 4.096 us x 2^26 is 36 min 39 s.
    assert!(parse(QUICKSTART, &["node.client.timeout=26"], &[]).is_ok());
    let config = parse(QUICKSTART, &[], &[("SPINWIRE_CLIENT_QP_TIMEOUT", "31")]).unwrap();
    assert_eq!(titles(&config.report), [title]);
    assert_eq!(config.nodes[2].retry.as_ref().unwrap().timeout.value, 14);
}

/// S3-40: nothing is waited for without end, unless somebody wants that: a node's own deadline is 30 s, or longer where retries
/// take longer. One that would end before its retries do is refused.
#[test]
fn s3_40_a_deadline_leaves_retries_their_time() {
    let title = "the deadline of `client` is no longer than its retry budget";
    assert_eq!(titles(&refused(QUICKSTART, &["node.client.stall_timeout=536ms"])), [title]);
    let unreliable = ["node.client.transport=uc", "node.client.verify=false"];
    let short = [&unreliable[..], &["node.client.stall_timeout=536ms"]].concat();
    assert!(parse(QUICKSTART, &short, &[]).is_ok(), "nothing is sent again");
    let stall = |sets: &[&str]| {
        let config = parse(QUICKSTART, sets, &[]).unwrap_or_else(|report| panic!("{report}"));
        let node = &config.nodes[config.node("client").expect("it is declared")];
        stall(&node.settings, node.retry.as_ref())
    };
    let seconds = Duration::from_secs;
    assert_eq!(stall(&[]), Some(seconds(30)));
    assert_eq!(stall(&unreliable), Some(seconds(30)));
    // (7 + 1) x 4.096 us x 2^20 is 34.36 s.
    let patient = Duration::from_nanos(2 * 8 * (4096 << 20));
    assert_eq!(stall(&["node.client.timeout=20"]), Some(patient));
    assert_eq!(stall(&["node.client.timeout=0"]), None, "only the peer's death ends it");
    assert_eq!(stall(&["node.client.timeout=0", "node.client.stall_timeout=1s"]), Some(seconds(1)));
    assert_eq!(stall(&["node.client.stall_timeout=0s"]), None);
}

/// S0-13: the four fields exist for RC only.
#[test]
fn s0_13_only_rc_retries() {
    let sets = ["node.client.transport=uc", "node.client.verify=false", "node.client.retry_cnt=3"];
    assert_eq!(titles(&refused(QUICKSTART, &sets)), ["`retry_cnt` does not exist on UC"]);
    let config = parse(QUICKSTART, &sets[..2], &[("SPINWIRE_QP_RETRY_CNT", "3")]).unwrap();
    assert_eq!(config.nodes[2].retry, None);
}

/// S3-08: the values that are applied stand in one line next to service level and traffic class, each with who decided it.
#[test]
fn s3_08_one_line_says_what_is_applied() {
    let sets = ["node.client.timeout=20", "node.client.retry_cnt=5"];
    let retry = client(QUICKSTART, &sets, &[("SPINWIRE_QP_RNR_RETRY", "3")]);
    assert_eq!(
        retry.applied(),
        "sl 0, traffic_class 0, timeout 20 (--set node.client.timeout=20), retry_cnt 5 (--set node.client.retry_cnt=5), \
         rnr_retry 3 (SPINWIRE_QP_RNR_RETRY), min_rnr_timer 12 (default); retry budget 25769.8 ms"
    );
}
