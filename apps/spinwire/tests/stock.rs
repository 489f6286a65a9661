//! The stock programs' counterparts against each other: a server and a client of each, as two processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// An address of the loopback network that no other test takes.
fn address(last: u8) -> String {
    let id = std::process::id();
    format!("127.{}.{}.{last}", 64 + id / 250 % 64, id % 250)
}

fn spinwire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spinwire"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that is ready: its first line on stderr says so.
struct Server {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut child = spinwire(args).spawn().expect("the binary runs");
        let mut log = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut line = String::new();
        log.read_line(&mut line).expect("it says that it serves");
        assert!(line.contains("serving at"), "{line}");
        Self { child, log }
    }

    /// Files that it has open.
    fn files(&self) -> usize {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        all.expect("it runs").count()
    }

    /// Ends at once, without a word to anybody.
    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ended");
    }

    fn end(mut self) -> String {
        let output = self.child.wait_with_output().expect("it ends");
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.log, &mut rest).expect("text");
        assert!(output.status.success(), "{:?}: {rest}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }
}

fn client(args: &[&str]) -> Output {
    spinwire(args).output().expect("the binary runs")
}

fn done(args: &[&str]) -> String {
    let output = client(args);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {:?}: {log}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn rping_pings() {
    let at = address(1);
    let server = Server::start(&["rping", "-s", "-a", &at, "-v"]);
    let pinged = done(&["rping", "-c", "-a", &at, "-C", "9", "-S", "3000", "-V", "-v"]);
    assert_eq!(pinged.lines().filter(|line| line.starts_with("ping data: rdma-ping-")).count(), 9);
    assert!(pinged.ends_with("9 rounds\n"));
    let served = server.end();
    assert!(served.contains("server ping data: rdma-ping-8: ") && served.ends_with("9 rounds\n"));
}

/// S0-28: with `-q` a program moves its queue pair itself, at either end or both, and says so in no other way.
#[test]
fn s0_28_rping_moves_its_own_queue_pair() {
    for (last, server, pinger) in [(21, "-q", "-v"), (22, "-v", "-q"), (23, "-q", "-q")] {
        let at = address(last);
        let served = Server::start(&["rping", "-s", "-a", &at, server]);
        assert!(done(&["rping", "-c", "-a", &at, "-C", "3", pinger]).ends_with("3 rounds\n"));
        assert!(served.end().ends_with("3 rounds\n"));
    }
}

/// P05: programs take an index of the GID table instead of an address; formats of addresses are held to.
#[test]
fn p05_programs_take_an_index_instead_of_an_address() {
    let table = done(&["devices", "--json"]);
    let table: serde_json::Value = serde_json::from_str(&table).expect("an object");
    let len = table["devices"][0]["ports"][0]["gids"].as_array().map_or(0, Vec::len) + 50;
    let (at, beyond) = (address(24), len.to_string());
    for args in [
        &["rping", "-s", "-x", &beyond][..],
        &["rping", "-c", "-a", &at, "-x", &beyond],
        &["ucmatose", "-x", &beyond],
        &["udaddy", "-s", &at, "-x", &beyond],
    ] {
        let refused = client(args);
        let log = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {log}");
        assert!(log.contains(&format!("-x: gid_index = {beyond}: the GID table has")), "{log}");
    }
    let refused = client(&["ucmatose", "-s", &at, "-f", "ipv6"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&format!("{at}: not as -f says")));
    let gid = format!("::ffff:{at}");
    let server = Server::start(&["ucmatose", "-b", &gid, "-f", "gid"]);
    done(&["ucmatose", "-s", &at, "-f", "ip"]);
    server.end();
}

/// A client on the server's own machine finds an address that leads there, whichever the server has.
#[test]
fn a_client_beside_its_server_takes_another_address() {
    let mut child = spinwire(&["rping", "-s"]).spawn().expect("the binary runs");
    let mut log = BufReader::new(child.stderr.take().expect("stderr is piped"));
    let mut line = String::new();
    log.read_line(&mut line).expect("it says that it serves");
    let at = line.split_whitespace().nth(3).unwrap_or_default().to_owned();
    let server = Server { child, log };
    assert_eq!(done(&["rping", "-c", "-a", &at, "-C", "1"]), "1 round\n", "{line}");
    server.end();
}

#[test]
fn ucmatose_exchanges_messages_over_several_connections() {
    let at = address(2);
    let flags = ["-c", "5", "-C", "7", "-S", "3000", "-m", "-a", "16"];
    let server = Server::start(&[&["ucmatose", "-b", &at][..], &flags].concat());
    let told = done(&[&["ucmatose", "-s", &at, "-t", "8"][..], &flags].concat());
    let summary = "5 connections, 35 messages of 3000 bytes in each direction\n";
    assert_eq!(told, format!("{summary}test complete\nreturn status 0\n"));
    assert_eq!(server.end(), told);
}

#[test]
fn udaddy_exchanges_datagrams_over_several_paths() {
    let at = address(3);
    let flags = ["-c", "3", "-C", "8", "-S", "999"];
    let server = Server::start(&[&["udaddy", "-b", &at][..], &flags].concat());
    let told = done(&[&["udaddy", "-s", &at][..], &flags].concat());
    let summary = "3 paths, 24 datagrams of 999 bytes in each direction\n";
    assert_eq!(told, format!("{summary}test complete\nreturn status 0\n"));
    assert_eq!(server.end(), told);
}

/// S0-31, P25: who is refused is told why, in words, and ends with 1; who asks for nonsense with 2.
#[test]
fn s0_31_refusals_are_verdicts() {
    let at = address(4);
    let server = Server::start(&["rping", "-s", "-a", &at, "-p", "7000"]);
    let refused = client(&["rping", "-c", "-a", &at, "-p", "7001", "-C", "1"]);
    let log = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{log}");
    assert!(log.contains("peer-not-ready") && log.contains("nobody listens there (8)"), "{log}");
    let lookup = client(&["udaddy", "-s", &at]);
    let log = String::from_utf8_lossy(&lookup.stderr);
    assert_eq!(lookup.status.code(), Some(1), "{log}");
    assert!(log.contains("no such datagram service"), "{log}");
    assert_eq!(client(&["udaddy", "-s", &at, "-S", "9000"]).status.code(), Some(2));
    assert_eq!(client(&["rping", "-c"]).status.code(), Some(2));
    done(&["rping", "-c", "-a", &at, "-p", "7000", "-C", "1"]);
    server.end();
}

/// A server that serves for ever needs no more for the fiftieth client than for the fifth.
#[test]
fn a_server_keeps_nothing_of_its_clients() {
    let at = address(5);
    let server = Server::start(&["rping", "-s", "-P", "-a", &at]);
    let serve = |clients: u32| {
        for _ in 0..clients {
            assert_eq!(done(&["rping", "-c", "-a", &at, "-C", "1"]), "1 round\n");
        }
        server.files()
    };
    let files = serve(5);
    assert_eq!(serve(45), files);
    server.kill();
}

/// S0-31: who comes when all places are taken is refused, and those who have one are served.
#[test]
fn s0_31_a_client_too_many_is_refused_and_the_others_served() {
    let at = address(6);
    let server = Server::start(&["rping", "-s", "-a", &at, "-d"]);
    let crowd = ["ucmatose", "-s", &at, "-p", "7174", "-c", "3", "-C", "0", "--timeout", "5"];
    let refused = client(&crowd);
    let log = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{log}");
    assert!(log.contains("REJECTED"), "{log}");
    let mut child = server.child;
    let code = child.wait().expect("it ends").code();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut { server.log }, &mut rest).expect("text");
    assert!(matches!(code, Some(0 | 1)) && !rest.contains("panic"), "{code:?}: {rest}");
    assert!(rest.contains("a request of 127.") && !rest.contains("Some("), "{rest}");
}

/// S0-30: where nobody answers, address and port are named, and that nothing came.
#[test]
fn s0_30_silence_is_told_with_its_address() {
    let nobody = address(7);
    for program in [&["rping", "-c", "-C", "1", "-a", &nobody][..], &["udaddy", "-s", &nobody]] {
        let failed = client(&[program, &["--timeout", "1"]].concat());
        let log = String::from_utf8_lossy(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{log}");
        let told = format!("nothing answered at {nobody}, UDP port 4791");
        assert!(log.contains("link-dead") && log.contains(&told), "{log}");
        assert!(log.contains("packets that came here"), "{log}");
    }
}

/// A peer that is killed says nothing any more, and is dead, not slow.
#[test]
fn a_killed_client_is_not_slow() {
    let at = address(8);
    let mut server = Server::start(&["rping", "-s", "-a", &at, "--timeout", "1"]);
    let mut pings = spinwire(&["rping", "-c", "-a", &at, "-v"]).spawn().expect("the binary runs");
    let mut ping = String::new();
    let mut told = BufReader::new(pings.stdout.take().expect("stdout is piped"));
    told.read_line(&mut ping).expect("it pings");
    assert!(ping.starts_with("ping data: "), "{ping}");
    pings.kill().expect("it runs");
    pings.wait().expect("it ended");
    let code = server.child.wait().expect("it ends").code();
    let mut log = String::new();
    std::io::Read::read_to_string(&mut server.log, &mut log).expect("text");
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("peer-dead") && !log.contains("responder-slow"), "{log}");
}

/// An address that is in use is told with the flag that gives another one, of the same family.
#[test]
fn an_address_in_use_is_told_with_its_flag() {
    let at = address(9);
    let server = Server::start(&["rping", "-s", "-a", &at]);
    for (program, flag) in [
        (&["rping", "-s", "-a", &at][..], "-a"),
        (&["rping", "-c", "-a", &at, "-I", &at, "-C", "1"], "-I"),
        (&["ucmatose", "-b", &at], "-b"),
        (&["udaddy", "-s", &at, "-b", &at], "-b"),
    ] {
        let failed = client(program);
        let log = String::from_utf8_lossy(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{log}");
        assert!(log.contains("use another, for instance 127."), "{log}");
        assert!(log.contains(&format!("turn: {flag}\n")), "{log}");
    }
    server.kill();
}

/// What cannot be is refused with what can.
#[test]
fn flags_have_their_ranges() {
    for (args, told) in [
        (&["rping", "-C", "1"][..], "<-s|-c>"),
        (&["rping", "-s", "-p", "0"], "0 is not in 1..=65535"),
        (&["ucmatose", "-p", "0"], "0 is not in 1..=65535"),
        (&["rping", "-s", "--timeout", "0"], "0 is not in 1..=86400"),
        (&["udaddy", "--timeout", "0"], "0 is not in 1..=86400"),
    ] {
        let refused = client(args);
        let log = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{log}");
        assert!(log.contains(told), "{args:?}: {log}");
    }
}
