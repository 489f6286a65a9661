//! Stages without a device.

use std::time::Duration;

use pmd_graph::run::RunOptions;
use pmd_observe::Code;

use crate::double::{play, play_with};
use crate::verified::node;

fn generated(generator: &str, sink: &str) -> String {
    format!(
        r#"
[memory]
size = "16MiB"
hugepages = "none"
[[lcore]]
name = "lc0"
[[node]]
name = "source"
kind = "generator"
lcore = "lc0"
to = "sum"
{generator}
[[node]]
name = "sum"
kind = "crc32c"
lcore = "lc0"
to = "end"
[[node]]
name = "end"
kind = "sink"
lcore = "lc0"
{sink}
"#
    )
}

#[test]
fn a_pattern_arrives_as_it_was_made() {
    for block in [1, 7, 4096, 70_001] {
        let generator = format!("count = 50\nblock = {block}\nseed = 9");
        let report = play(&generated(&generator, "verify = \"pattern\"\nseed = 9"));
        assert!(report.ok, "{report}");
        let end = node(&report, "end");
        assert_eq!((end.messages, end.bytes, end.verified_bytes), (50, 50 * block, 50 * block));
    }
}

#[test]
fn another_pattern_is_refused_by_its_first_byte() {
    let report = play(&generated("count = 50\nseed = 9", "verify = \"pattern\"\nseed = 8"));
    assert_eq!((report.ok, report.verdict.code), (false, Code::DataMismatch));
    assert_eq!(report.verdict.summary, "`end`: byte 0 differs from the pattern");
}

/// With a rate, blocks come at their times: the tenth is due a tenth of a second after the first.
#[test]
fn a_rate_spreads_blocks_over_time() {
    let report = play(&generated("count = 11\nrate = 100", ""));
    assert!(report.ok, "{report}");
    assert_eq!(node(&report, "end").messages, 11);
    assert!(report.elapsed_s >= 0.1, "{}", report.elapsed_s);
}

#[test]
fn a_generator_without_end_is_ended() {
    let options = RunOptions { duration: Some(Duration::from_millis(40)), ..Default::default() };
    let report = play_with(&generated("count = 1000000000000", ""), options);
    assert!(report.ok, "{report}");
    let made = node(&report, "source").messages;
    assert!(made > 0);
    assert_eq!(node(&report, "end").messages, made, "what was on its way has arrived");
}

/// Counters are served while the run goes on, as any Prometheus reads them.
#[test]
fn counters_are_served_over_http() {
    use std::io::{Read, Write};
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = generated("count = 100000000000\nrate = 1000", "");
    let text = format!("[observe]\nlisten = \"{address}\"\n{text}");
    let mut scraped = String::new();
    let interrupt = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = std::sync::Arc::clone(&interrupt);
    let scraper = std::thread::spawn(move || {
        let mut stream = loop {
            if let Ok(stream) = std::net::TcpStream::connect(address) {
                break stream;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        std::thread::sleep(Duration::from_millis(50));
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        stream.read_to_string(&mut scraped).unwrap();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        scraped
    });
    let options = RunOptions { interrupt: Some(interrupt), ..RunOptions::default() };
    let report = play_with(&text, options);
    let scraped = scraper.join().unwrap();
    assert!(report.ok, "{report}");
    assert!(scraped.starts_with("HTTP/1.1 200 OK\r\n"), "{scraped}");
    let value = |name: &str| -> f64 {
        let line = scraped.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name}: {scraped}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(value("spinwire_node_messages_total{node=\"end\",kind=\"sink\"} ") > 0.0);
    assert!(value("spinwire_lcore_idle_seconds_total{lcore=\"lc0\",cpu=") > 0.0);
    assert!(scraped.contains("# TYPE spinwire_node_bytes_total counter\n"), "{scraped}");
}
