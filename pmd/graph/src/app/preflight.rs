//! Whether what a config names is there, before anything of a run is made: a file to read, a key, an address to listen at.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use pmd_verbs::connect::{Psk, PskError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::pipeline::Pipeline;
use super::refusal::Refusal;
use crate::config::Config;
use crate::diagnostic::{Diagnostic, Report};
use crate::edge::guard;
use crate::plan::Plan;
use crate::plan::fit::{Fit, Problem};

/// How the key files that a config names are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// This machine is to have them.
    Here,
    /// The config may be for another machine: one that is missing is warned about, one that is there is to be sound.
    Elsewhere,
    /// Not yet: who runs the pipeline looks by itself.
    Later,
}

/// What is wrong with the keys that a config names.
pub(super) fn keys(config: &Config, how: Keys) -> Report {
    let mut report = Report { sources: config.report.sources.clone(), diagnostics: Vec::new() };
    if how == Keys::Later {
        return report;
    }
    for node in &config.nodes {
        if node.settings.value("psk_file").is_none() {
            continue;
        }
        let Err(error) = Psk::read(Path::new(node.settings.text("psk_file"))) else { continue };
        let is_missing = matches!(&error, PskError::Unreadable { error, .. } if error.kind() == io::ErrorKind::NotFound);
        let title = format!("the key of `{}` cannot be used", node.name);
        let diagnostic = if is_missing && how == Keys::Elsewhere {
            Diagnostic::warning(title)
        } else {
            Diagnostic::error(title)
        };
        let at = node.settings.span("psk_file").unwrap_or(node.span);
        report.push(diagnostic.at(at, error.to_string()));
    }
    report
}

/// Whether a pipeline fits this machine, and whether its devices can have their addresses.
pub fn fit(pipeline: &Pipeline) -> Fit {
    let plan = &pipeline.plan;
    let mut fit = plan.fit(&pipeline.machine);
    for device in &plan.devices {
        if device.kind == "verbs"
            && let Err(error) = pmd_verbs::nics()
        {
            let what = format!("device `{}`: {error}", device.name);
            fit.problems.push(Problem { what, fixes: Vec::new() });
        }
        if device.kind != "soft" {
            continue;
        }
        let len = pipeline.machine.addresses.len();
        if let Some(index) = device.gid_index().filter(|index| len > 0 && *index >= len) {
            let name = &device.name;
            fit.problems.push(Problem {
                what: format!("device `{name}`: gid_index = {index}: the GID table has {len} entries; `spinwire devices` lists them"),
                fixes: vec![format!("--set device.{name}.gid_index=auto")],
            });
        }
        let has_packets = device.settings.text("wire") != "shm";
        let Some(address) = device.address().filter(|_| has_packets) else { continue };
        // Any port: whether its own is free is seen when it runs, and may change until then.
        let Err(error) = UdpSocket::bind((address, 0)) else { continue };
        if error.kind() == io::ErrorKind::AddrNotAvailable {
            fit.problems.push(Problem {
                what: format!(
                    "device `{}`: no interface has the address {address}: `ip -brief address` lists those that exist",
                    device.name
                ),
                fixes: vec![format!("--set device.{}.address=auto", device.name)],
            });
        }
    }
    fit
}

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
