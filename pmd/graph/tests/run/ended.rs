//! Runs that are told to end once they are at work.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pmd_graph::run::{Report, RunOptions};

use crate::double::play_with;

/// Far longer than anything here takes: only a hang meets it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a pipeline, tells it to end as soon as something of each of `metrics` is counted, and returns what was served then.
pub(crate) fn play_until(text: &str, metrics: &'static [&'static str]) -> (Report, String) {
    // A loopback host of this process's own: nobody else is given the port as its end of a call.
    let [.., high, low] = std::process::id().to_be_bytes();
    let free = TcpListener::bind((Ipv4Addr::new(127, 77, high, low), 0)).expect("a port is free");
    let address = free.local_addr().expect("it listens");
    drop(free);
    let interrupt = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&interrupt);
    let watcher = thread::spawn(move || {
        let served = until(address, metrics);
        ends.store(true, Ordering::Relaxed);
        served.unwrap_or_else(|| panic!("not all of {metrics:?} are counted"))
    });
    let options = RunOptions { interrupt: Some(interrupt), ..RunOptions::default() };
    let report = play_with(&format!("[observe]\nlisten = \"{address}\"\n{text}"), options);
    (report, watcher.join().expect("the run is at work"))
}

fn until(address: SocketAddr, metrics: &[&str]) -> Option<String> {
    let all = |served: &String| metrics.iter().all(|metric| counts(served, metric));
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(served) = scrape(address).filter(all) {
            return Some(served);
        }
        thread::sleep(Duration::from_millis(5));
    }
    None
}

fn scrape(address: SocketAddr) -> Option<String> {
    let mut served = String::new();
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").ok()?;
    stream.read_to_string(&mut served).ok()?;
    Some(served)
}

fn counts(served: &str, metric: &str) -> bool {
    let lines = served.lines().filter(|line| line.starts_with(metric));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).any(|count| count > 0.0)
}
