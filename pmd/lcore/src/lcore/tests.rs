use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::idle::Idle;
use crate::limits::COMMANDS_MAX;
use crate::mailbox::{Sender, mailbox};

/// What the parts of a test were asked, in order.
type Log = Rc<RefCell<Vec<&'static str>>>;

struct Device {
    log: Log,
    unsent: Rc<Cell<usize>>,
}

impl Progress for Device {
    fn name(&self) -> &str {
        "soft0"
    }

    fn rx(&mut self, _now: u64) -> usize {
        self.log.borrow_mut().push("rx");
        1
    }

    fn tx(&mut self, _now: u64) -> usize {
        self.log.borrow_mut().push("tx");
        self.unsent.set(self.unsent.get().saturating_sub(1));
        100
    }

    fn is_settled(&self) -> bool {
        self.unsent.get() == 0
    }
}

/// A node whose state the test sets; told to stop, it takes `drain` more runs.
struct Stage {
    name: &'static str,
    log: Log,
    state: Rc<Cell<NodeState>>,
    drain: Option<usize>,
    stopping: bool,
}

impl Node for Stage {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&mut self, _now: u64) -> usize {
        self.log.borrow_mut().push(self.name);
        match &mut self.drain {
            Some(0) if self.stopping => self.state.set(NodeState::Done),
            Some(left) if self.stopping => *left -= 1,
            _ => {}
        }
        10
    }

    fn state(&self) -> NodeState {
        self.state.get()
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.log.borrow_mut().push("stop");
    }

    fn finish(&mut self) {
        self.log.borrow_mut().push("finish");
    }
}

struct Bench {
    lcore: Lcore,
    control: Sender<Command>,
    log: Log,
    unsent: Rc<Cell<usize>>,
    states: Vec<Rc<Cell<NodeState>>>,
}

/// An lcore with one device and the named nodes, which drain within `drain` runs, or never.
fn bench(names: &[&'static str], drain: Option<usize>) -> Bench {
    let log = Log::default();
    let unsent = Rc::new(Cell::new(0));
    let states: Vec<_> = names.iter().map(|_| Rc::new(Cell::new(NodeState::Running))).collect();
    let stage = |(&name, state): (&&'static str, &Rc<Cell<NodeState>>)| -> Box<dyn Node> {
        Box::new(Stage {
            name,
            log: Rc::clone(&log),
            state: Rc::clone(state),
            drain,
            stopping: false,
        })
    };
    let device = Device { log: Rc::clone(&log), unsent: Rc::clone(&unsent) };
    let parts = Parts {
        devices: vec![Box::new(device)],
        nodes: names.iter().zip(&states).map(stage).collect(),
    };
    let (control, mailbox) = mailbox(COMMANDS_MAX);
    Bench { lcore: Lcore::new(parts, mailbox), control, log, unsent, states }
}

impl Bench {
    fn asked(&self) -> Vec<&'static str> {
        self.log.take()
    }
}

#[test]
fn one_loop_is_receive_run_send() {
    let mut bench = bench(&["source", "client"], None);
    assert_eq!(bench.lcore.poll(5), 121);
    assert_eq!(bench.asked(), ["rx", "source", "client", "tx"]);
    assert_eq!(bench.lcore.ended(5), None);
    let stats = bench.lcore.stats().read();
    assert_eq!((stats.polls, stats.busy_polls, stats.work), (1, 1, 121));
}

#[test]
fn it_ends_when_the_last_node_is_done() {
    let mut bench = bench(&["source", "client"], None);
    bench.states[0].set(NodeState::Done);
    bench.lcore.poll(1);
    assert_eq!(bench.lcore.ended(1), None);
    bench.states[1].set(NodeState::Done);
    bench.lcore.poll(2);
    assert_eq!(bench.lcore.ended(2), Some(Ok(())));
}

#[test]
fn devices_send_what_they_owe_before_the_end() {
    let mut bench = bench(&["client"], None);
    bench.states[0].set(NodeState::Done);
    bench.unsent.set(2);
    bench.lcore.poll(1);
    assert_eq!(bench.lcore.ended(1), None);
    bench.lcore.poll(2);
    assert_eq!(bench.lcore.ended(2), Some(Ok(())));
}

#[test]
fn a_device_that_cannot_settle_is_named_when_the_linger_is_over() {
    let mut bench = bench(&["client"], None);
    bench.states[0].set(NodeState::Done);
    bench.unsent.set(usize::MAX);
    assert_eq!(bench.lcore.ended(1_000), None);
    assert_eq!(bench.lcore.ended(after(1_000, LINGER) - 1), None);
    let busy = vec![String::from("soft0")];
    assert_eq!(bench.lcore.ended(after(1_000, LINGER)), Some(Err(LoopError::Undrained { busy })));
}

#[test]
fn a_stop_is_passed_on_once_and_waits_for_the_drain() {
    let mut bench = bench(&["source", "client"], Some(1));
    let stop = Command::Stop { deadline: 1_000 };
    bench.control.send(stop).unwrap();
    bench.control.send(stop).unwrap();
    bench.lcore.poll(1);
    assert_eq!(
        bench.asked(),
        ["stop", "stop", "rx", "source", "client", "tx"],
        "once for each node"
    );
    assert_eq!(bench.lcore.ended(1), None);
    bench.lcore.poll(2);
    assert_eq!(bench.lcore.ended(2), Some(Ok(())));
}

#[test]
fn a_drain_ends_at_the_deadline_and_names_who_was_busy() {
    let mut bench = bench(&["source", "client"], None);
    bench.control.send(Command::Stop { deadline: 1_000 }).unwrap();
    bench.control.send(Command::Stop { deadline: 5_000 }).unwrap();
    bench.states[0].set(NodeState::Done);
    bench.lcore.poll(1);
    assert_eq!(bench.lcore.ended(999), None);
    let outcome = bench.lcore.ended(1_000).unwrap().unwrap_err();
    assert_eq!(outcome.to_string(), "still busy at the end of the time to drain: client");
}

#[test]
fn a_failed_node_stops_the_others_and_is_named() {
    let mut bench = bench(&["source", "client"], Some(0));
    bench.states[1].set(NodeState::Failed);
    assert_eq!(bench.lcore.ended(1), None, "the source may drain");
    assert_eq!(bench.asked(), ["stop", "stop"]);
    bench.states[0].set(NodeState::Failed);
    let failed = LoopError::Failed { node: String::from("client") };
    assert_eq!(bench.lcore.ended(2), Some(Err(failed)));
}

#[test]
fn a_failure_gives_the_others_bounded_time() {
    let mut bench = bench(&["source", "client"], None);
    bench.states[1].set(NodeState::Failed);
    assert_eq!(bench.lcore.ended(0), None);
    assert_eq!(bench.lcore.ended(after(0, FAILURE_DRAIN) - 1), None);
    let failed = LoopError::Failed { node: String::from("client") };
    assert_eq!(bench.lcore.ended(after(0, FAILURE_DRAIN)), Some(Err(failed)));
}

#[test]
fn a_pause_polls_nothing_but_still_obeys() {
    let mut bench = bench(&["client"], None);
    bench.control.send(Command::Pause { until: 100 }).unwrap();
    assert_eq!(bench.lcore.poll(1), 1);
    assert_eq!(bench.lcore.poll(99), 0);
    assert_eq!(bench.asked(), Vec::<&str>::new());
    bench.control.send(Command::Stop { deadline: 50 }).unwrap();
    bench.lcore.poll(99);
    assert_eq!(bench.asked(), ["stop"]);
    assert!(bench.lcore.ended(99).is_some());
    bench.lcore.poll(100);
    assert_eq!(bench.asked(), ["rx", "client", "tx"]);
}

#[test]
fn running_to_the_end_finishes_every_node_once() {
    for idle in Idle::ALL {
        let mut bench = bench(&["source", "client"], Some(3));
        bench.control.send(Command::Stop { deadline: u64::MAX }).unwrap();
        assert_eq!(bench.lcore.run(&Clock::system(), Pacer::new(idle, false)), Ok(()));
        let asked = bench.asked();
        assert_eq!(asked.iter().filter(|&&what| what == "finish").count(), 2);
        assert_eq!(asked[asked.len() - 2..], ["finish", "finish"]);
    }
}

#[test]
fn no_nodes_end_at_once() {
    let mut bench = bench(&[], None);
    bench.lcore.poll(0);
    assert_eq!(bench.lcore.ended(0), Some(Ok(())));
}

/// A device that never has work, though it may call naps off.
struct Dozer {
    polls: Rc<Cell<u64>>,
    armed: Rc<Cell<u64>>,
    due: Option<u64>,
    rings: bool,
}

impl Progress for Dozer {
    fn name(&self) -> &str {
        "dozer"
    }

    fn rx(&mut self, _now: u64) -> usize {
        self.polls.set(self.polls.get() + 1);
        0
    }

    fn tx(&mut self, _now: u64) -> usize {
        0
    }

    fn next_timeout(&self) -> Option<u64> {
        self.due
    }

    fn arm<'a>(&'a mut self, doorbells: &mut Doorbells<'a>) {
        self.armed.set(self.armed.get() + 1);
        if self.rings {
            doorbells.ring();
        }
    }
}

/// Ends after some polls of the dozer.
struct Until {
    polls: Rc<Cell<u64>>,
    end: u64,
}

impl Node for Until {
    fn name(&self) -> &str {
        "until"
    }

    fn run(&mut self, _now: u64) -> usize {
        0
    }

    fn state(&self) -> NodeState {
        if self.polls.get() < self.end { NodeState::Running } else { NodeState::Done }
    }

    fn stop(&mut self) {}
}

/// How often the doorbells were armed, and how often the lcore napped, in five polls: four rests.
fn naps(due: Option<u64>, rings: bool) -> (u64, u64) {
    let (polls, armed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let device = Dozer { polls: Rc::clone(&polls), armed: Rc::clone(&armed), due, rings };
    let node = Until { polls, end: 5 };
    let parts = Parts { devices: vec![Box::new(device)], nodes: vec![Box::new(node)] };
    let mut lcore = Lcore::new(parts, mailbox(2).1);
    assert_eq!(lcore.run(&Clock::system(), Pacer::new(Idle::Sleep, false)), Ok(()));
    // The last poll publishes what happened before it.
    (armed.get(), lcore.stats().read().naps)
}

#[test]
fn a_nap_arms_the_doorbells() {
    assert_eq!(naps(None, false), (4, 4));
    assert_eq!(naps(Some(u64::MAX), false), (4, 4));
}

#[test]
fn work_that_arrives_while_arming_calls_the_nap_off() {
    assert_eq!(naps(None, true), (4, 0));
}

#[test]
fn nobody_naps_past_a_timer() {
    assert_eq!(naps(Some(0), false), (0, 0));
}
