//! Lcores on real threads.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmd_lcore::spawn::Handle;
use pmd_lcore::{
    Clock, Command, CpuChoice, CpuSet, Ended, Idle, LcoreError, LcoreSpec, Node, NodeState, Parts,
    SpawnError, Topology, Wait, assign, spawn,
};

/// Far more than any of these tests takes.
const PLENTY: Duration = Duration::from_secs(30);

/// Counts its runs. Not `Send`, as real nodes are not.
struct Counter {
    runs: Rc<AtomicUsize>,
    end: usize,
    report: Arc<Mutex<Vec<usize>>>,
    state: NodeState,
}

impl Counter {
    /// Done after `end` runs, each of which is work.
    fn until(end: usize, report: &Arc<Mutex<Vec<usize>>>) -> Box<dyn Node> {
        Box::new(Self {
            runs: Rc::default(),
            end,
            report: Arc::clone(report),
            state: NodeState::Running,
        })
    }
}

impl Node for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    fn run(&mut self, _now: u64) -> usize {
        if self.runs.fetch_add(1, Ordering::Relaxed) + 1 == self.end {
            self.state = NodeState::Done;
        }
        1
    }

    fn state(&self) -> NodeState {
        self.state
    }

    fn stop(&mut self) {
        self.state = NodeState::Done;
    }

    fn finish(&mut self) {
        self.report.lock().unwrap().push(self.runs.load(Ordering::Relaxed));
    }
}

/// Never has anything to do, and is done when stopped, or never.
struct Waiter {
    stubborn: bool,
    state: NodeState,
}

impl Waiter {
    fn parts(stubborn: bool) -> Parts {
        Parts {
            devices: Vec::new(),
            nodes: vec![Box::new(Self { stubborn, state: NodeState::Running })],
        }
    }
}

impl Node for Waiter {
    fn name(&self) -> &str {
        "waiter"
    }

    fn run(&mut self, _now: u64) -> usize {
        0
    }

    fn state(&self) -> NodeState {
        self.state
    }

    fn stop(&mut self) {
        if !self.stubborn {
            self.state = NodeState::Done;
        }
    }
}

/// A core each, or the same one where there is only one.
fn cores<const N: usize>() -> [usize; N] {
    assign(&[CpuChoice::Auto; N], &Topology::detect().unwrap(), &[]).unwrap().try_into().unwrap()
}

fn error(ended: &Ended) -> String {
    ended.outcome.as_ref().unwrap_err().to_string()
}

#[test]
fn lcores_run_pinned_to_their_end_and_report() {
    let report = Arc::default();
    let specs = cores::<2>().map(|cpu| {
        let report = Arc::clone(&report);
        LcoreSpec::new(format!("lc{cpu}"), cpu, Idle::Adaptive, move |context| {
            assert_eq!(CpuSet::allowed()?.iter().collect::<Vec<_>>(), [cpu]);
            assert_eq!((context.cpu, &*context.name), (cpu, &*format!("lc{cpu}")));
            assert_eq!(std::thread::current().name(), Some(&*context.name));
            Ok(Parts { devices: Vec::new(), nodes: vec![Counter::until(1000, &report)] })
        })
    });
    let running = spawn(specs.into(), Clock::start()).unwrap();
    assert_eq!(running.wait(PLENTY), Wait::Ended);
    let ended = running.join(PLENTY);
    assert_eq!(ended.iter().map(|ended| ended.cpu).collect::<Vec<_>>(), cores::<2>());
    for ended in &ended {
        assert!(ended.outcome.is_ok(), "{ended:?}");
        assert_eq!((ended.stats.polls, ended.stats.work), (1000, 1000));
        assert_eq!(ended.stats.idle_ns, 0);
    }
    assert_eq!(*report.lock().unwrap(), [1000, 1000]);
}

/// Two idle lcores on every policy leave room for the control thread, also where all three share one core.
#[test]
fn idle_lcores_obey_and_stop() {
    let first = CpuSet::allowed().unwrap().first().unwrap();
    for (cpus, idle) in
        [(cores::<2>(), Idle::Adaptive), ([first; 2], Idle::Spin), ([first; 2], Idle::Sleep)]
    {
        let spec = |cpu| LcoreSpec::new("idle", cpu, idle, |_| Ok(Waiter::parts(false)));
        let running = spawn(cpus.map(spec).into(), Clock::system()).unwrap();
        let napping = |handle: &Handle| idle == Idle::Spin || handle.stats().naps > 2;
        while !running.lcores().iter().all(|lcore| lcore.stats().polls > 2 && napping(lcore)) {
            assert_eq!(running.wait(Duration::from_millis(1)), Wait::Timeout);
        }
        for lcore in running.lcores() {
            lcore.send(Command::Pause { until: 0 }).unwrap();
        }
        for ended in running.join(PLENTY) {
            assert!(ended.outcome.is_ok(), "{ended:?}");
            assert_eq!(ended.stats.work, 2, "both commands");
        }
    }
}

#[test]
fn a_node_that_will_not_stop_is_cut_off_and_named() {
    let [cpu] = cores();
    let spec = LcoreSpec::new("lc0", cpu, Idle::Yield, |_| Ok(Waiter::parts(true)));
    let running = spawn(vec![spec], Clock::system()).unwrap();
    let ended = running.join(Duration::from_millis(2));
    assert_eq!(error(&ended[0]), "lcore `lc0`: still busy at the end of the time to drain: waiter");
}

#[test]
fn a_panic_is_an_error_that_names_the_lcore() {
    let [cpu] = cores();
    let bad = LcoreSpec::new("bad", cpu, Idle::Adaptive, |_| panic!("page {} is on fire", 7));
    let good = LcoreSpec::new("good", cpu, Idle::Adaptive, |_| Ok(Waiter::parts(false)));
    let running = spawn(vec![bad, good], Clock::system()).unwrap();
    assert_eq!(running.wait(PLENTY), Wait::Failed);
    let ended = running.join(PLENTY);
    assert_eq!(error(&ended[0]), "lcore `bad` panicked: page 7 is on fire");
    assert!(ended[1].outcome.is_ok());
}

#[test]
fn a_start_that_fails_says_why() {
    let [cpu] = cores();
    let spec = LcoreSpec::new("lc0", cpu, Idle::Adaptive, |_| Err("no hugepages".into()));
    let running = spawn(vec![spec], Clock::system()).unwrap();
    assert_eq!(running.wait(PLENTY), Wait::Failed);
    assert_eq!(error(&running.join(PLENTY)[0]), "lcore `lc0` did not start: no hugepages");
}

#[test]
fn a_missing_core_is_refused_before_anything_starts() {
    let started = Arc::new(AtomicBool::new(false));
    let spec = |name, cpu| {
        let started = Arc::clone(&started);
        LcoreSpec::new(name, cpu, Idle::Adaptive, move |_| {
            started.store(true, Ordering::Relaxed);
            Ok(Parts::default())
        })
    };
    let error =
        spawn(vec![spec("lc0", cores::<1>()[0]), spec("lc1", 1000)], Clock::system()).unwrap_err();
    let available = CpuSet::allowed().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "lcore `lc1`: core 1000 does not exist or is outside of this process's affinity mask; available: {available}"
        )
    );
    assert!(matches!(error, SpawnError::Core { .. }));
    assert!(!started.load(Ordering::Relaxed));
    assert_eq!(Arc::strong_count(&started), 1);
}

/// Holds its lcore until the test lets go.
struct Hog(Arc<AtomicBool>);

impl Node for Hog {
    fn name(&self) -> &str {
        "hog"
    }

    fn run(&mut self, _now: u64) -> usize {
        while !self.0.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        0
    }

    fn state(&self) -> NodeState {
        NodeState::Running
    }

    fn stop(&mut self) {}
}

#[test]
fn an_lcore_that_does_not_react_is_left_behind_and_named() {
    let [cpu] = cores();
    let release = Arc::new(AtomicBool::new(false));
    let hog = Hog(Arc::clone(&release));
    let spec = LcoreSpec::new("lc0", cpu, Idle::Adaptive, move |_| {
        Ok(Parts { devices: Vec::new(), nodes: vec![Box::new(hog)] })
    });
    let running = spawn(vec![spec], Clock::system()).unwrap();
    let ended = running.join(Duration::from_millis(1));
    assert!(matches!(ended[0].outcome, Err(LcoreError::Stuck { .. })), "{ended:?}");
    assert_eq!(
        error(&ended[0]),
        "lcore `lc0` does not react: something on it has not returned for 1.001s"
    );
    release.store(true, Ordering::Release);
}

#[test]
fn dropping_tells_the_lcores_to_stop() {
    let [cpu] = cores();
    let report = Arc::default();
    let sent = Arc::clone(&report);
    let spec = LcoreSpec::new("lc0", cpu, Idle::Adaptive, move |_| {
        Ok(Parts { devices: Vec::new(), nodes: vec![Counter::until(usize::MAX, &sent)] })
    });
    drop(spawn(vec![spec], Clock::system()).unwrap());
    // The thread drops its share of the report when it ends.
    while Arc::strong_count(&report) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(report.lock().unwrap().len(), 1);
}

#[test]
fn no_lcores_have_ended() {
    let running = spawn(Vec::new(), Clock::system()).unwrap();
    assert_eq!(running.wait(PLENTY), Wait::Ended);
    assert!(running.join(PLENTY).is_empty());
}
