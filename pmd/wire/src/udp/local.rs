//! The addresses of this machine, and who has their RoCE port: what one can know without binding
//! anything, so that looking disturbs nobody.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use super::bind::loopback_addresses;
use super::interface::{Interface, List};
use super::owner::{self, Owner};
use super::socket;
use crate::wire::ROCE_PORT;

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface that has it.
    pub interface: Interface,
    /// Whether the interface is the loopback.
    pub loopback: bool,
    /// Whether the interface is up and has its carrier.
    pub up: bool,
}

/// An address whose RoCE port somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The address; unspecified where every address of the machine is meant.
    pub address: IpAddr,
    /// The process, if we may know.
    pub owner: Option<Owner>,
}

impl Claim {
    /// Whether it keeps others from `address`.
    pub fn covers(&self, address: IpAddr) -> bool {
        self.address == address || self.address.is_unspecified()
    }
}

/// Every address of every interface, as getifaddrs(3) lists them.
///
/// # Errors
/// When the kernel does not tell.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let any = socket::new(Ipv4Addr::LOCALHOST.into())?;
    let mut known: Vec<LocalAddress> = Vec::new();
    for entry in List::read()? {
        let seen = known.iter().find(|local| local.interface.name == entry.name);
        let interface = match seen {
            Some(local) => local.interface.clone(),
            None => match Interface::named(any.as_fd(), &entry.name) {
                Ok(interface) => interface,
                // It is gone since it was listed.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => return Err(error),
            },
        };
        let (loopback, up) = (entry.loopback, entry.up);
        known.push(LocalAddress { address: entry.address, interface, loopback, up });
    }
    Ok(known)
}

/// Who has the RoCE port of which address, multicast groups apart.
pub fn claims() -> Vec<Claim> {
    owner::claims(ROCE_PORT)
}

/// The same without looking for the processes, which is far cheaper.
pub fn unnamed_claims() -> Vec<Claim> {
    owner::unnamed(ROCE_PORT)
}

/// The address that [`bind_auto`](super::bind_auto()) would try first, given who has what.
pub fn auto_address(claims: &[Claim]) -> Option<Ipv4Addr> {
    loopback_addresses().find(|address| !claims.iter().any(|c| c.covers((*address).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_listed_with_its_interface() {
        let all = local_addresses().unwrap();
        let lo = all.iter().find(|local| local.address == Ipv4Addr::LOCALHOST).unwrap();
        assert!(lo.loopback && lo.up && lo.interface.index > 0 && lo.interface.mtu >= 1280);
    }

    #[test]
    fn the_first_address_that_nobody_has_is_next() {
        let claim = |address: [u8; 4]| Claim { address: address.into(), owner: None };
        assert_eq!(auto_address(&[]), Some(Ipv4Addr::new(127, 0, 0, 1)));
        let taken = [claim([127, 0, 0, 1]), claim([127, 0, 0, 2]), claim([127, 0, 0, 4])];
        assert_eq!(auto_address(&taken), Some(Ipv4Addr::new(127, 0, 0, 3)));
        assert_eq!(auto_address(&[claim([0; 4])]), None, "a wildcard leaves nothing");
    }
}
