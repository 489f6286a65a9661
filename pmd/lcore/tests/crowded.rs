//! The warning that cores are shared.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pmd_lcore::{Clock, CpuSet, Idle, LcoreSpec, Parts, spawn};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, _event: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

fn warnings(cpus: &[usize]) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Warnings(Arc::clone(&count)), || {
        let spec = |&cpu: &usize| LcoreSpec::new("lc", cpu, Idle::Spin, |_| Ok(Parts::default()));
        let running = spawn(cpus.iter().map(spec).collect(), Clock::system()).unwrap();
        assert!(running.join(Duration::from_secs(30)).iter().all(|ended| ended.outcome.is_ok()));
    });
    count.load(Ordering::Relaxed)
}

#[test]
fn three_lcores_on_one_core_warn_once() {
    let cpus: Vec<usize> = CpuSet::allowed().unwrap().iter().collect();
    assert_eq!(warnings(&[cpus[0]; 3]), 1);
    // One core is shared with the control thread, so even a single lcore is told.
    assert_eq!(warnings(&cpus), usize::from(cpus.len() == 1));
}
