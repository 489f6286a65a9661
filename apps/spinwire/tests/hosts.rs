//! Measurements and pipelines between two hosts: network namespaces joined by a veth pair.
//!
//! These tests make namespaces, so they run as root, and say so otherwise.

use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Two hosts, 10.9.0.1 and 10.9.0.2, fd09::1 and fd09::2, gone when dropped.
struct Hosts {
    name: String,
}

impl Hosts {
    fn new(test: &str, mtu: u32) -> Self {
        let hosts = Self { name: format!("{test}{}", std::process::id()) };
        let [a, b] = [1, 2].map(|host| hosts.namespace(host));
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("link add v netns {a} type veth peer name v netns {b}"));
        for (namespace, host) in [(&a, 1), (&b, 2)] {
            ip(&format!("-n {namespace} address add 10.9.0.{host}/24 dev v"));
            ip(&format!("-n {namespace} address add fd09::{host}/64 dev v nodad"));
            ip(&format!("-n {namespace} link set v mtu {mtu}"));
            ip(&format!("-n {namespace} link set lo up"));
            ip(&format!("-n {namespace} link set v up"));
        }
        hosts
    }

    fn namespace(&self, host: u8) -> String {
        format!("{}-{host}", self.name)
    }

    /// Starts a program on a host.
    fn start(&self, host: u8, program: &str, args: &[&str]) -> Child {
        let namespace = self.namespace(host);
        Command::new("ip")
            .args(["netns", "exec", &namespace, program])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("iproute2 is installed")
    }

    /// What the host's IP has counted, such as `IpFragCreates`; 0 where the kernel leaves it out.
    fn counted(&self, host: u8, name: &str) -> u64 {
        let output = self.start(host, "nstat", &["-a", "-z", "-s", name]).wait_with_output();
        let output = output.expect("nstat is part of iproute2");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        value.unwrap_or_else(|| panic!("nstat has no {name}: {text}"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in [1, 2] {
            let namespace = self.namespace(host);
            if let Err(error) = Command::new("ip").args(["netns", "del", &namespace]).status() {
                eprintln!("{namespace} stays: {error}");
            }
        }
    }
}

/// Runs `ip ARGUMENTS`.
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "these tests need root: `ip {arguments}` says {error}");
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}{error}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Sends and writes between two hosts over a link of this MTU: every byte arrives, in packets as
/// large as the link takes, and IP never cuts one up.
fn measures(test: &str, mtu: u32, addresses: [&str; 2], path_mtu: u32) {
    let hosts = Hosts::new(test, mtu);
    for (operation, size) in [("send-bw", "64"), ("write-bw", "65536"), ("read-bw", "10000")] {
        let [near, far] = addresses;
        let binary = env!("CARGO_BIN_EXE_spinwire");
        let listen = if far.contains(':') { format!("[{far}]:18515") } else { far.to_owned() };
        let common = ["perf", operation, "--wire", "udp", "-s", size, "-n", "300", "--json"];
        let (ours, theirs) = (format!("soft:{near}"), format!("soft:{far}"));
        let server = ["--device", &theirs, "--listen", &listen, "--plaintext"];
        let server = hosts.start(2, binary, &[&common[..], &server[..]].concat());
        let client = ["--device", &ours, "--peer", &listen, "--plaintext"];
        let client = hosts.start(1, binary, &[&common[..], &client[..]].concat());
        let measured = report(&client.wait_with_output().expect("the client ends"));
        let served = report(&server.wait_with_output().expect("the server ends"));
        assert_eq!((&measured["ok"], &served["ok"]), (&true.into(), &true.into()), "{measured}");
        assert_eq!(measured["wire"], "udp");
        assert_eq!(measured["mtu"], path_mtu, "{operation}");
        assert!(measured["verified_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{measured}");
        assert!(measured["messages_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{measured}");
    }
    for host in [1, 2] {
        for name in ["IpFragCreates", "IpReasmReqds", "Ip6FragCreates", "Ip6ReasmReqds"] {
            assert_eq!(hosts.counted(host, name), 0, "{name} of host {host}");
        }
    }
}

#[test]
fn over_ethernet_as_it_is() {
    measures("eth", 1500, ["10.9.0.1", "10.9.0.2"], 1024);
}

#[test]
fn over_jumbo_frames() {
    measures("jumbo", 9000, ["10.9.0.1", "10.9.0.2"], 4096);
}

#[test]
fn over_ipv6() {
    measures("six", 1500, ["fd09::1", "fd09::2"], 1024);
    measures("sixjumbo", 9000, ["fd09::1", "fd09::2"], 4096);
}

/// S0-47, P05: a pipeline between two hosts, whichever way its queue pairs find each other: every byte arrives in packets, and
/// both reports say which address each end has, as their hosts list it.
#[test]
fn s0_47_a_pipeline_between_two_hosts() {
    let hosts = Hosts::new("edge", 1500);
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("edge-{}", std::process::id()));
    std::fs::write(&file, vec![0x5a; 300_001]).expect("a file to send");
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");
    let binary = env!("CARGO_BIN_EXE_spinwire");
    for (connect, near, far) in [
        ("cm", "10.9.0.1", "10.9.0.2"),
        ("oob", "10.9.0.1", "10.9.0.2"),
        ("cm", "fd09::1", "fd09::2"),
    ] {
        let at = if far.contains(':') { format!("[{far}]:4801") } else { format!("{far}:4801") };
        let start = |host, config: &str, node: &str, sets: &[String]| {
            let config = format!("{configs}/{config}");
            let all =
                [format!("node.{node}.connect={connect}"), format!("node.{node}.plaintext=true")];
            let sets = sets.iter().chain(&all).flat_map(|set| ["--set", set]);
            hosts.start(
                host,
                binary,
                &["run", &config, "--json"].into_iter().chain(sets).collect::<Vec<_>>(),
            )
        };
        let device = |address: &str| format!("device.soft0.address={address}");
        let server = [device(far), format!("node.target.listen={at}")];
        let server = start(2, "quickstart-server.toml", "target", &server);
        let path = format!("node.source.path={}", file.display());
        let client = [device(near), format!("node.client.peer={at}"), path];
        let client = start(1, "quickstart-client.toml", "client", &client);
        let sent = report(&client.wait_with_output().expect("the client ends"));
        let served = report(&server.wait_with_output().expect("the server ends"));
        let node = |report: &Value, name: &str| {
            let nodes = report["nodes"].as_array().cloned().unwrap_or_default();
            nodes.into_iter().find(|node| node["name"] == name).expect("the node is told of")
        };
        let (client, target) = (node(&sent, "client"), node(&served, "target"));
        assert_eq!(
            (&client["verified_bytes"], &client["path"]),
            (&300_001.into(), &"packet".into())
        );
        let (ours, theirs) = (&client["gids"][0], &target["gids"][0]);
        assert_eq!(
            (&ours["local"]["address"], &ours["remote"]["address"]),
            (&near.into(), &far.into())
        );
        assert_eq!((&ours["local"], &ours["remote"]), (&theirs["remote"], &theirs["local"]));
        let listed = hosts.start(1, binary, &["devices", "--json"]).wait_with_output();
        let listed = report(&listed.expect("it ends"));
        let gids = listed["devices"][0]["ports"][0]["gids"].as_array().cloned().unwrap_or_default();
        let index = gids.iter().position(|gid| gid["address"] == near);
        assert_eq!(ours["local"]["index"].as_u64(), index.map(|index| index as u64), "{connect}");
    }
    std::fs::remove_file(&file).expect("it is there");
}

/// S0-32: an interface that gets another hardware address while a connection is up is told of to its id, at the end that has it
/// and nowhere else, and the connection goes on.
#[test]
fn s0_32_another_hardware_address_is_told_to_the_id() {
    use std::io::{BufRead as _, BufReader};

    let hosts = Hosts::new("mac", 1500);
    // The far host learns of another address when it asks next, up to a minute later: it sends to all, instead.
    let all = "10.9.0.1 lladdr ff:ff:ff:ff:ff:ff nud permanent dev v";
    ip(&format!("-n {} neigh replace {all}", hosts.namespace(2)));
    let binary = env!("CARGO_BIN_EXE_spinwire");
    // It shows no pings, which nobody would read.
    let mut server = hosts.start(2, binary, &["rping", "-s", "-a", "10.9.0.2"]);
    let mut log = BufReader::new(server.stderr.take().expect("stderr is piped"));
    let mut line = String::new();
    log.read_line(&mut line).expect("it says that it serves");
    assert!(line.contains("serving at"), "{line}");
    let mut client = hosts.start(1, binary, &["rping", "-c", "-a", "10.9.0.2", "-v", "-d"]);
    let mut pings = BufReader::new(client.stdout.take().expect("stdout is piped")).lines();
    let mut ping = || pings.next().expect("it goes on").expect("text");
    assert!(ping().starts_with("ping data: rdma-ping-0"));
    ip(&format!("-n {} link set v address 02:00:5e:10:00:07", hosts.namespace(1)));
    let events = BufReader::new(client.stderr.take().expect("stderr is piped"));
    // Pings are read meanwhile, so that the client is not held up by a full pipe.
    let told = std::thread::spawn(move || {
        let mut lines = events.lines().map_while(Result::ok);
        lines.any(|line| line.contains("RDMA_CM_EVENT_ADDR_CHANGE"))
    });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !told.is_finished() {
        assert!(std::time::Instant::now() < deadline, "nothing is told");
        ping();
    }
    assert!(told.join().expect("it reads"), "the client has ended");
    assert!((0..3).all(|_| ping().starts_with("ping data: rdma-ping-")), "the connection goes on");
    for child in [&mut client, &mut server] {
        child.kill().expect("it runs");
        child.wait().expect("it ended");
    }
}

/// How long a state may take to come, far longer than it does.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// A directory of a test, removed when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).expect("the target folder takes folders");
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Waits for a state of the run in the directory `name` that is as wanted.
    fn until(&self, name: &str, wanted: impl Fn(&Value) -> bool) {
        let path = self.0.join(name).join("status.json");
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|_| "{}".to_owned());
            let status: Value = serde_json::from_str(&text).expect("readers see a whole file");
            if wanted(&status) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "never as wanted: {status}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Its first queue pair's count of something.
fn of_first(status: &Value, what: impl Fn(&Value) -> Option<u64>) -> u64 {
    status["qps"].as_array().and_then(|qps| what(qps.first()?)).unwrap_or(0)
}

/// P22, S3-17, S0-49: a port goes down under traffic and comes up within the retry budget. The measurement lives through it,
/// and goes on; every byte is checked.
#[test]
fn p22_a_measurement_lives_through_a_port_that_flaps() {
    let (hosts, folder) = (Hosts::new("flap", 9000), Folder::new("hosts-flap"));
    let (binary, run_dir) = (env!("CARGO_BIN_EXE_spinwire"), folder.at("client"));
    // A budget of 8.6 s, of which a try takes 1.1 s.
    let common =
        ["perf", "write-bw", "--wire", "udp", "-D", "600", "-u", "18", "--json", "--plaintext"];
    let (listen, theirs) = (["--listen", "10.9.0.2", "--run-dir"], folder.at("server"));
    let server = ["--device", "soft:10.9.0.2", listen[0], listen[1], listen[2], &theirs];
    let server = hosts.start(2, binary, &[&common[..], &server[..]].concat());
    let client = ["--device", "soft:10.9.0.1", "--peer", "10.9.0.2", "--run-dir", &run_dir];
    let client = hosts.start(1, binary, &[&common[..], &client[..]].concat());
    let sends = |status: &Value| of_first(status, |qp| qp["sends"].as_u64());
    let lost =
        |status: &Value| of_first(status, |qp| qp["counters"]["local_ack_timeout_err"].as_u64());
    // Beyond the pass that compares bytes, whose ends wait for each other: from then on, something is always under way.
    folder.until("client", |status| sends(status) > 1000);
    ip(&format!("-n {} link set v down", hosts.namespace(2)));
    // Somebody has missed an acknowledgement: nothing passes.
    folder.until("client", |status| lost(status) > 0);
    ip(&format!("-n {} link set v up", hosts.namespace(2)));
    let (at_up, mut first) = (std::cell::Cell::new(None), 0);
    folder.until("client", |status| {
        let sends = sends(status);
        match at_up.get() {
            None => at_up.set(Some(sends)),
            Some(before) => return sends > before + 1000,
        }
        false
    });
    first += at_up.get().unwrap_or(0);
    assert!(first > 0, "there was traffic before");
    let interrupted = Command::new("kill").args(["-INT", &client.id().to_string()]).status();
    assert!(interrupted.expect("kill runs").success());
    let measured = report(&client.wait_with_output().expect("the client ends"));
    let served = report(&server.wait_with_output().expect("the server ends"));
    assert_eq!((&measured["ok"], &served["ok"]), (&true.into(), &true.into()), "{measured}");
    assert!(measured["messages_per_s"].as_f64() > Some(0.0), "{measured}");
    assert!(measured["counters"]["local"]["delta"]["local_ack_timeout_err"].as_u64() > Some(0));
}

/// P22, S2-19: a port is down for longer than the retry budget, so that the connections break. They come back by themselves
/// once it is up, and everything is stored and read back as it was.
#[test]
fn p22_a_run_goes_on_after_a_port_was_down_for_long() {
    let (hosts, folder) = (Hosts::new("down", 1500), Folder::new("hosts-down"));
    let binary = env!("CARGO_BIN_EXE_spinwire");
    let device = |host: u8| {
        format!(
            "[memory]\nsize = \"64MiB\"\n[device.soft0]\nkind = \"soft\"\naddress = \"10.9.0.{host}\"\nwire = \"udp\"\n[[lcore]]\nname = \"lc0\"\n"
        )
    };
    let target = device(2)
        + "[[node]]\nname = \"target\"\nkind = \"block-target\"\nlcore = \"lc0\"\ndevice = \"soft0\"\nbackend = \"memory\"\nlisten = \"10.9.0.2:7471\"\nplaintext = true\nserve = 1\n";
    let load = device(1)
        + "[[node]]\nname = \"load\"\nkind = \"block-load\"\nlcore = \"lc0\"\ndevice = \"soft0\"\npeer = \"10.9.0.2:7471\"\nplaintext = true\nspan = \"1MiB\"\nworkload = \"mixed\"\nqps = 2\ndepth = 16\nkeep_alive = \"30s\"\nduration = \"1h\"\nverify = true\ntimeout = 12\nreconnect = \"always\"\nreconnect_timeout = \"50s\"\n";
    let start = |host: u8, name: &str, text: &str| {
        let config = folder.at(&format!("{name}.toml"));
        std::fs::write(&config, text).expect("the folder takes files");
        let run_dir = folder.at(name);
        hosts.start(host, binary, &["run", &config, "--json", "--run-dir", &run_dir])
    };
    let (target, load) = (start(2, "target", &target), start(1, "load", &load));
    let messages = |status: &Value| status["nodes"][0]["messages"].as_u64().unwrap_or(0);
    let reconnects = |status: &Value| {
        let qps = status["qps"].as_array().into_iter().flatten();
        qps.filter(|qp| qp["ended"] == false && qp["reconnects"].as_u64() > Some(0)).count()
    };
    let has_failed = |status: &Value| {
        let qps = status["qps"].as_array().into_iter().flatten();
        qps.filter(|qp| qp["counters"]["req_transport_retries_exceeded"].as_u64() > Some(0)).count()
    };
    folder.until("load", |status| messages(status) > 0);
    ip(&format!("-n {} link set v down", hosts.namespace(1)));
    folder.until("load", |status| has_failed(status) > 0);
    ip(&format!("-n {} link set v up", hosts.namespace(1)));
    folder.until("load", |status| reconnects(status) == 2);
    let back = std::cell::Cell::new(None);
    folder.until("load", |status| match back.get() {
        None => {
            back.set(Some(messages(status)));
            false
        }
        Some(before) => messages(status) > before + 100,
    });
    let told = Command::new("kill").args(["-INT", &load.id().to_string()]).status();
    assert!(told.expect("kill runs").success());
    let made = report(&load.wait_with_output().expect("the load ends"));
    let served = report(&target.wait_with_output().expect("the target ends"));
    assert_eq!((&made["ok"], &served["ok"]), (&true.into(), &true.into()), "{made}");
    let node = &made["nodes"][0];
    assert!(node["verified_bytes"].as_u64() >= Some(1 << 20), "{node}");
    assert!(
        node["bytes_per_s"].as_f64() > Some(0.0) && node["recoveries"]["count"].as_u64() > Some(0),
        "{node}"
    );
}
