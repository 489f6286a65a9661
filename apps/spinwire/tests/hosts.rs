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
    let binary = env!("CARGO_BIN_EXE_spinwire");
    let mut server = hosts.start(2, binary, &["rping", "-s", "-a", "10.9.0.2", "-v"]);
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
