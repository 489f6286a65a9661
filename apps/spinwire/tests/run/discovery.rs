//! Nodes that find each other by multicast: in one process, among several, and beside others that use the same group.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pmd_graph::discovery::{Announcement, LONGEST, QKEY, Who};
use pmd_verbs::roce::ids::{Gid, Qpn};
use pmd_verbs::roce::qp::attr::{AddressVector, QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{Data, Device, DeviceConfig, Qp, QpOptions, Ud, WireChoice, WorkRequest};

use crate::bench::{Running, config, node, report, spinwire, stderr};

/// A group that no other test, and no other run of them, uses at the same time.
fn group(test: u8) -> Ipv4Addr {
    let [a, b, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(239, test, a, b)
}

/// A process with one node, in a file of its own.
fn alone(name: &str) -> String {
    let text = r#"
[memory]
size = "2MiB"
[device.soft0]
kind = "soft"
wire = "udp"
[[lcore]]
name = "lc0"
[[node]]
name = "finder"
kind = "discovery"
lcore = "lc0"
device = "soft0"
interval = "40ms"
"#;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("discovery-{name}.toml"));
    std::fs::write(&path, text).expect("the target folder takes files");
    path.display().to_string()
}

/// Arguments of a process that is called `name` and looks for `names`.
fn finder(name: &str, names: &str, group: Ipv4Addr, more: &[&str]) -> Vec<String> {
    let mut args = vec!["run".to_owned(), alone(name), "--json".to_owned()];
    let sets = [
        format!("node.finder.group={group}"),
        format!("node.finder.announce_as={name}"),
        format!("node.finder.names={names}"),
    ];
    for set in sets.into_iter().chain(more.iter().map(|more| (*more).to_owned())) {
        args.extend(["--set".to_owned(), set]);
    }
    args
}

fn start(args: &[String]) -> Running {
    Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_config_as_it_is() {
    let group = format!("={}", group(78));
    let sets: Vec<String> = ["alpha", "beta", "gamma"]
        .iter()
        .flat_map(|name| ["--set".to_owned(), format!("node.{name}.group{group}")])
        .collect();
    let config = config("discovery.toml");
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let output = spinwire(&[&["run", &config, "--json"], &sets[..]].concat());
    let whole = report(&output);
    assert_eq!(output.status.code(), Some(0), "{whole}");
    for name in ["alpha", "beta", "gamma"] {
        let node = node(&whole, name);
        assert_eq!((&node["errors"], &node["path"]), (&0.into(), &"packet".into()));
        // The name and the generation of both answers.
        assert_eq!(node["verified_bytes"], 2 * 28, "{whole}");
        assert!(node["messages"].as_u64().unwrap() >= 4, "{whole}");
    }
    assert!(stderr(&output).contains("`alpha` found "), "{}", stderr(&output));
}

/// S1-10, S1-43: processes that have an address each, and one of which only listens, begin one after the other and find
/// each other.
#[test]
fn s1_43_processes_find_each_other() {
    let group = group(79);
    let first = start(&finder("one", "two, three", group, &[]));
    std::thread::sleep(Duration::from_millis(100));
    let quiet = ["node.finder.announce=false"];
    let third = start(&finder("three", "one, two", group, &quiet));
    let second = start(&finder("two", "one, three", group, &[]));
    for (name, process) in [("one", first), ("two", second), ("three", third)] {
        let output = process.end();
        let found = report(&output);
        assert_eq!(output.status.code(), Some(0), "{name}: {found}");
        assert_eq!(node(&found, "finder")["errors"], 0, "{name}: {}", stderr(&output));
        // Both that announce themselves are answered by both others; whom the third answers for the first time answers
        // it as well.
        if name != "three" {
            assert_eq!(node(&found, "finder")["verified_bytes"], 2 * 28, "{name}: {found}");
        }
    }
}

#[test]
fn who_is_missing_is_named() {
    let group = group(80);
    let wait = ["node.finder.timeout=300ms"];
    let lonely = start(&finder("one", "two, three, four", group, &wait));
    let other = start(&finder("three", "one", group, &[]));
    let output = lonely.end();
    assert_eq!(output.status.code(), Some(1));
    let verdict = &report(&output)["verdict"];
    assert_eq!((&verdict["code"], &verdict["owner"]), (&"peer-not-ready".into(), &"remote".into()));
    let summary = verdict["summary"].as_str().unwrap();
    assert!(summary.starts_with("`finder` found "), "{summary}");
    assert!(summary.contains("`two`") && summary.ends_with("`four` are missing"), "{summary}");
    assert_eq!(verdict["knob"], "node.finder.timeout");
    drop(other);
}

/// Without somebody to find it goes on until it is told to end, and has then done what it should; with, it has not.
#[test]
fn a_node_that_is_told_to_end() {
    let path = alone("ended");
    let group = format!("node.finder.group={}", group(81));
    let args = ["run", &path, "--json", "--duration", "200ms", "--set", &group];
    let output = spinwire(&args);
    assert_eq!(output.status.code(), Some(0), "{}", report(&output));
    let output = spinwire(&[&args[..], &["--set", "node.finder.expect=1"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let verdict = report(&output)["verdict"].to_string();
    assert!(verdict.contains("`finder` found 0 of 1 others, told to end"), "{verdict}");
}

/// Shared memory has no groups: that is said before anything starts, with the fix.
#[test]
fn shared_memory_is_refused() {
    let config = config("discovery.toml");
    let output = spinwire(&["check", &config, "--set", "device.soft0.wire=shm"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = stderr(&output);
    assert!(
        complaint.contains("`alpha` needs multicast, which `soft0` does not have"),
        "{complaint}"
    );
    assert!(complaint.contains("device.soft0.wire=udp"), "{complaint}");
    assert!(complaint.contains("help: use packets"), "{complaint}");
}

/// A queue pair that sends whatever it likes to a group.
struct Intruder {
    qp: Qp<Ud>,
    group: pmd_verbs::Ah,
    gid: Gid,
}

impl Intruder {
    fn new(group: Ipv4Addr) -> Result<Self, Box<dyn std::error::Error>> {
        let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
        let device = Device::open(&config)?;
        let cx = device.context(0)?;
        let (pd, cq) = (cx.alloc_pd(), cx.create_cq(64)?);
        let cap = QpCap {
            max_send_wr: 32,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 400,
        };
        let options =
            QpOptions { send_cq: &cq, recv_cq: &cq, srq: None, xrcd: None, cap, signal_all: true };
        let qp: Qp<Ud> = pd.create_qp(&options)?;
        let init = QpAttr { qkey: QKEY, ..QpAttr::new(QpState::Init) };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        qp.modify(&init, mask)?;
        qp.modify(&QpAttr::new(QpState::Rtr), AttrMask::STATE)?;
        qp.modify(&QpAttr::new(QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN)?;
        let group = pd.create_ah(&AddressVector::to(group.into()))?;
        Ok(Self { qp, group, gid: device.gid() })
    }

    fn send(&self, bytes: &[u8]) {
        let parts = [bytes];
        let wr = WorkRequest::send_to(Data::Inline(&parts), &self.group, Qpn::MULTICAST, QKEY);
        self.qp.post_send(&wr).expect("its queue has room");
        // Without a loop, a poll is what sends.
        self.qp.send_cq().poll(8, |_| {});
        self.qp.send_cq().poll(8, |_| {});
    }

    /// One datagram of each kind that is none of an honest node.
    fn intrude(&self) {
        let ttl = Duration::from_secs(1);
        let mut bytes = [0; LONGEST];
        let mut announce = |name: &str, gid: Gid, qpn: Qpn| {
            let who = Who { gid, qpn, generation: u64::MAX };
            let announcement = Announcement { who, name, ttl, looking: true, answers: None };
            let len = announcement.encode(&mut bytes);
            bytes[..len].to_vec()
        };
        let mine = self.qp.number();
        // In the name of somebody else, from an address or a queue pair that is not its own.
        let elsewhere = Gid::from(Ipv4Addr::new(127, 9, 9, 9));
        self.send(&announce("honest", elsewhere, mine));
        self.send(&announce("honest", self.gid, Qpn::new(mine.value() ^ 1)));
        let fine = announce("stranger", self.gid, mine);
        self.send(b"NOTIFY * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n\r\n");
        self.send(&fine[..20]);
        self.send(&[0x53; 400]);
        self.send(b"");
        let mut newer = fine;
        newer[4] = 9;
        self.send(&newer);
    }
}

/// Foreign, damaged and oversize datagrams, and those in the name of others, are counted and change nothing.
#[test]
fn intruders_are_counted_and_ignored() {
    let group = group(82);
    let intruder = Intruder::new(group).unwrap();
    let finder_args = finder("finder", "honest", group, &["node.finder.timeout=20s"]);
    let looking = start(&finder_args);
    let over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        let ends = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(400));
            let honest = start(&finder("honest", "finder", group, &["node.finder.timeout=20s"]));
            let outputs = (looking.end(), honest.end());
            over.store(true, Ordering::Relaxed);
            outputs
        });
        while !over.load(Ordering::Relaxed) {
            intruder.intrude();
            std::thread::sleep(Duration::from_millis(20));
        }
        ends.join().unwrap()
    });
    for (name, output) in [("finder", &output.0), ("honest", &output.1)] {
        let found = report(output);
        assert_eq!(output.status.code(), Some(0), "{name}: {found}");
        // The answer of the only other honest node.
        assert_eq!(node(&found, "finder")["verified_bytes"], 28, "{name}: {found}");
        assert!(node(&found, "finder")["errors"].as_u64().unwrap() >= 7, "{name}: {found}");
        let told = stderr(output);
        assert!(!told.contains(" 0 foreign") && !told.contains(" 0 malformed"), "{told}");
    }
    let lost = stderr(&output.0);
    assert!(lost.contains("`finder` found `honest` at 127.0.0."), "{lost}");
}
