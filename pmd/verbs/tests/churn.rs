//! Connections come and go between two processes: nothing of them is left, and no queue pair's number is used for another
//! connection before no packet of its last one can be under way.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::rc::Rc as Shared;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmd_verbs::cm::{
    CmAgent, ConnParam, ConnectError, ConnectParams, EventChannel, EventKind, Id, IdError,
    IdNumber, PortSpace,
};
use pmd_verbs::roce::ids::Qpn;
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::{Cq, CreateQpError, Device, DeviceConfig, Pd, Qp, QpOptions, Rc, WireChoice};

/// Says that the process is the other one.
const SERVER: &str = "SPINWIRE_CHURN_SERVER";
const PORT: u16 = 7473;
/// Connections in all, under way at a time, and at once.
const COUNT: usize = 10_000;
const WINDOW: usize = 64;
const AT_ONCE: usize = 1_000;
/// Exponent of the ACK timeout, from which the time in timewait follows.
const ACK_TIMEOUT: u8 = 13;
const TIMEWAIT: Duration = Duration::from_millis(1 << (ACK_TIMEOUT - 8));
const PATIENCE: Duration = Duration::from_secs(60);

struct Side {
    agent: CmAgent,
    channel: EventChannel,
    pd: Pd,
    cq: Cq,
    live: BTreeMap<IdNumber, (Id, Shared<Qp<Rc>>)>,
}

/// What a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    connections: usize,
    queue_pairs: usize,
    descriptors: usize,
    kilobytes: u64,
}

impl Side {
    fn new() -> Self {
        let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
        let cx = Device::open(&config).unwrap().context(0).unwrap();
        // What is lost in the crowd comes again soon.
        let agent = cx
            .open_cm(|config| (config.connections, config.response_timeout) = (2048, 16))
            .unwrap();
        let channel = agent.create_channel().unwrap();
        let (pd, cq) = (cx.alloc_pd(), cx.create_cq(64).unwrap());
        Self { agent, channel, pd, cq, live: BTreeMap::new() }
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.agent.context().device().gid().ip(), port)
    }

    fn qp(&self, id: &Id) -> Result<Shared<Qp<Rc>>, IdError> {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let options = QpOptions {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: None,
            xrcd: None,
            cap,
            signal_all: true,
        };
        id.create_qp(&self.pd, &options)
    }

    fn holdings(&self) -> Holdings {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Holdings {
            connections: self.agent.command(|cm, _| cm.connections()),
            queue_pairs: self.agent.context().queue_pairs().len(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            kilobytes: rss.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }

    /// Until timewait is over for all of them.
    fn settle(&self) -> Holdings {
        let start = Instant::now();
        loop {
            assert!(self.channel.poll().is_none(), "nobody is left to be told");
            let holdings = self.holdings();
            if holdings.connections + holdings.queue_pairs == 0 {
                return holdings;
            }
            assert!(start.elapsed() < PATIENCE, "{holdings:?}");
        }
    }

    /// As many connections as there shall be, so many of them at a time. Each ends when `ends` says so.
    fn connect(&mut self, to: SocketAddr, count: usize, window: usize, wait_for_all: bool) {
        let param = ConnParam { ack_timeout: Some(ACK_TIMEOUT), ..ConnParam::DEFAULT };
        let params = ConnectParams { param, ..ConnectParams::default() };
        let (mut begun, mut ended, mut up) = (0, 0, Vec::new());
        let mut freed: BTreeMap<Qpn, Instant> = BTreeMap::new();
        let start = Instant::now();
        while ended < count {
            while begun < count && self.live.len() < window {
                let id = self.channel.open(PortSpace::Tcp, to, Duration::ZERO).unwrap();
                let qp = match self.qp(&id) {
                    Ok(qp) => qp,
                    // Those in timewait have the numbers.
                    Err(IdError::CreateQp(CreateQpError::TooMany { .. })) => break,
                    Err(error) => panic!("{error}"),
                };
                if let Some(when) = freed.remove(&qp.number()) {
                    assert!(
                        when.elapsed() >= TIMEWAIT,
                        "{} again after {:?}",
                        qp.number(),
                        when.elapsed()
                    );
                }
                match id.connect(&params) {
                    Ok(()) => {}
                    Err(IdError::Connect(ConnectError::TooMany(_))) => break,
                    Err(error) => panic!("{error}"),
                }
                self.live.insert(id.number(), (id, qp));
                begun += 1;
            }
            if let Some(event) = self.channel.poll() {
                match event.kind() {
                    EventKind::Established(..) => up.push(event.id()),
                    EventKind::Disconnected(_) => {
                        let number = event.id();
                        drop(event);
                        let (id, qp) = self.live.remove(&number).unwrap();
                        freed.insert(qp.number(), Instant::now());
                        drop((id, qp));
                        ended += 1;
                    }
                    other => panic!("{other}"),
                }
            }
            if !wait_for_all || up.len() == count {
                for number in up.drain(..) {
                    self.live[&number].0.disconnect().unwrap();
                }
            }
            assert!(start.elapsed() < PATIENCE, "{ended} of {count} have ended");
        }
    }

    /// Accepts all that come, until told to end.
    fn serve(&mut self, told_to_end: &AtomicBool) {
        let param = ConnParam { ack_timeout: Some(ACK_TIMEOUT), ..ConnParam::DEFAULT };
        let params = ConnectParams { param, ..ConnectParams::default() };
        let listener = self.channel.create_id(PortSpace::Tcp);
        listener.bind(self.at(PORT)).unwrap();
        listener.listen(0).unwrap();
        while !told_to_end.load(Ordering::Relaxed) || !self.live.is_empty() {
            let Some(mut event) = self.channel.poll() else {
                std::thread::yield_now();
                continue;
            };
            match (event.take_id(), event.kind()) {
                (Some(id), _) => {
                    let qp = self.qp(&id).unwrap();
                    id.accept(&params).unwrap();
                    self.live.insert(id.number(), (id, qp));
                }
                (None, EventKind::Established(..)) => {}
                (None, _) => {
                    let number = event.id();
                    drop(event);
                    self.live.remove(&number);
                }
            }
        }
    }
}

/// The other process, where it is one; else nothing.
#[test]
fn the_other_process() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let told = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&told);
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        flag.store(true, Ordering::Relaxed);
    });
    let mut side = Side::new();
    let before = side.holdings();
    println!("\nat {}", side.at(PORT));
    std::io::stdout().flush().unwrap();
    side.serve(&told);
    let after = side.settle();
    assert_eq!(after.descriptors, before.descriptors);
    println!("\nleft {} {}", before.kilobytes, after.kilobytes);
}

/// S0-33: ten thousand connections one after the other and a thousand at once leave no connection, queue pair, descriptor or
/// memory behind, on either side.
#[test]
fn s0_33_connections_leave_nothing_behind() {
    if std::env::var_os(SERVER).is_some() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["the_other_process", "--exact", "--nocapture"])
        .env(SERVER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let at = lines.find_map(|line| line.strip_prefix("at ").map(str::to_owned)).unwrap();
    let mut side = Side::new();
    let to: SocketAddr = at.parse().unwrap();

    side.connect(to, AT_ONCE, AT_ONCE, true);
    let before = side.settle();
    let start = Instant::now();
    side.connect(to, COUNT, WINDOW, false);
    println!("{:.0} connections per second", COUNT as f64 / start.elapsed().as_secs_f64());
    let start = Instant::now();
    side.connect(to, AT_ONCE, AT_ONCE, true);
    println!("{AT_ONCE} at once in {:?}", start.elapsed());
    let after = side.settle();
    assert_eq!(after.descriptors, before.descriptors);
    assert!(after.kilobytes < before.kilobytes + 4096, "{before:?} {after:?}");

    drop(child.stdin.take());
    let left = lines.find_map(|line| line.strip_prefix("left ").map(str::to_owned)).unwrap();
    let sizes: Vec<u64> = left.split(' ').map(|size| size.parse().unwrap()).collect();
    assert!(sizes[1] < sizes[0] + (24 << 10), "kilobytes of the server: {left}");
    assert!(child.wait().unwrap().success());
}
