//! `rdma-server [ADDRESS]`: accepts one connection, prints what it says, and answers.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use pmd_verbs::cm::{CmFailure, ConnectParams, PortSpace};
use rdma_cm::{Host, LIMIT, Outcome, PORT, Talk};

fn main() -> Outcome<()> {
    let address = std::env::args().nth(1).map(|address| address.parse()).transpose()?;
    let host = Host::open(address)?;
    let listener = host.channel.create_id(PortSpace::Tcp);
    listener.bind(SocketAddr::new(host.ip(), PORT))?;
    listener.listen(1)?;
    eprintln!("serving at {}", host.ip());

    let (id, _) = loop {
        match host.channel.request(&listener, LIMIT) {
            // Nobody has come yet.
            Err(CmFailure::Late { .. }) => {}
            other => break other?,
        }
    };
    let talk = Talk::on(&host, &id)?;
    host.channel.accept(&id, &ConnectParams::default(), LIMIT)?;
    talk.complete(1)?;
    eprintln!("the client says {:?}", talk.received()?);
    talk.send(b"and from there\0\0")?;
    talk.complete(1)?;
    host.channel.disconnect(&id, LIMIT)?;
    Ok(())
}
