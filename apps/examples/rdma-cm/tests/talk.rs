//! Both programs, with each other.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn a_client_and_a_server_talk() {
    let mut server =
        Command::new(env!("CARGO_BIN_EXE_rdma-server")).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = said.next().unwrap();
    let address = first.strip_prefix("serving at ").unwrap();
    let client = Command::new(env!("CARGO_BIN_EXE_rdma-client")).arg(address).output().unwrap();
    let heard = String::from_utf8(client.stderr).unwrap();
    assert_eq!(heard, "the server says \"and from there\"\n");
    assert_eq!(said.next().unwrap(), "the client says \"hello from here\"");
    assert!(client.status.success() && server.wait().unwrap().success());
}
