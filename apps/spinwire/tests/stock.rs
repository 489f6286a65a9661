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

#[test]
fn ucmatose_exchanges_messages_over_several_connections() {
    let at = address(2);
    let flags = ["-c", "5", "-C", "7", "-S", "3000", "-m", "-a", "16"];
    let server = Server::start(&[&["ucmatose", "-b", &at][..], &flags].concat());
    let told = done(&[&["ucmatose", "-s", &at, "-t", "8"][..], &flags].concat());
    assert_eq!(told, "5 connections, 35 messages of 3000 bytes in each direction\n");
    assert_eq!(server.end(), told);
}

#[test]
fn udaddy_exchanges_datagrams_over_several_paths() {
    let at = address(3);
    let flags = ["-c", "3", "-C", "8", "-S", "999"];
    let server = Server::start(&[&["udaddy", "-b", &at][..], &flags].concat());
    let told = done(&[&["udaddy", "-s", &at][..], &flags].concat());
    assert_eq!(told, "3 paths, 24 datagrams of 999 bytes in each direction\n");
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
