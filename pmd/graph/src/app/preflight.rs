//! Whether what a config names is there, before anything of a run is made: a file to read, a key, an address to listen at.

use std::io;
use std::net::SocketAddr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::refusal::Refusal;
use crate::edge::guard;
use crate::plan::Plan;

/// Looks at everything that a plan names outside of itself.
///
/// # Errors
/// The first thing that cannot be had, the key that names it, and what to do.
pub(super) fn look(plan: &Plan) -> Result<(), Refusal> {
    for node in &plan.nodes {
        let name = &node.name;
        if let Err(reason) = node.factory.preflight(&node.settings) {
            return Err(Refusal::usage(format!("node `{name}`: {reason}"))
                .turn(&format!("node.{name}.path")));
        }
        if let Err(error) = guard(&node.settings) {
            return Err(Refusal::usage(format!("node `{name}`: {error}"))
                .turn(&format!("node.{name}.psk_file")));
        }
        if let Some(at) = node.listen {
            listens(at, &format!("node.{name}.listen"))?;
        }
    }
    plan.observe.listen.map_or(Ok(()), |at| listens(at, "observe.listen"))
}

/// Whether a socket can listen there.
fn listens(at: SocketAddr, key: &str) -> Result<(), Refusal> {
    let Err(error) = bind(at) else { return Ok(()) };
    let help = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another socket listens there: end its process, or set another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has that address: `ip address` lists them"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: set another port",
        // What is wrong with the machine is told where it is used.
        _ => return Ok(()),
    };
    Err(Refusal::usage(format!("cannot listen at {key} = \"{at}\": {error}; {help}")).turn(key))
}

/// Takes the address and lets go of it. It does not listen: whoever waits for the node would find somebody who leaves.
fn bind(at: SocketAddr) -> io::Result<()> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // As listeners are bound: connections of an earlier one that are not over yet are in nobody's way.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(rustix::net::bind(&socket, &at)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn an_address_is_taken_while_somebody_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // A connection that lingers is no listener.
        let caller = TcpStream::connect(at).unwrap();
        drop((listener.accept().unwrap(), listener, caller));
        bind(at).unwrap();
        assert!(TcpStream::connect(at).is_err(), "nobody listens there for a moment");
        let nowhere = bind("192.0.2.77:7471".parse().unwrap()).unwrap_err();
        assert_eq!(nowhere.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
