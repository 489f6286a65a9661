//! `rdma-client SERVER [ADDRESS]`: connects, says hello, and prints the answer.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};

use pmd_verbs::cm::{ConnectParams, PortSpace};
use rdma_cm::{Host, LIMIT, Outcome, PORT, Talk};

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let server: IpAddr = arguments.next().ok_or("usage: rdma-client SERVER [ADDRESS]")?.parse()?;
    let address = arguments.next().map(|address| address.parse()).transpose()?;
    let host = Host::open(address)?;

    let id = host.channel.open(PortSpace::Tcp, SocketAddr::new(server, PORT), LIMIT)?;
    let talk = Talk::on(&host, &id)?;
    host.channel.connect(&id, &ConnectParams::default(), LIMIT)?;
    talk.send(b"hello from here\0")?;
    talk.complete(2)?;
    eprintln!("the server says {:?}", talk.received()?);
    host.channel.disconnect(&id, LIMIT)?;
    Ok(())
}
