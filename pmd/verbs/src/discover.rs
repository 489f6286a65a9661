//! Where a software NIC can be opened on this machine. Looking takes nothing and disturbs nobody.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use pmd_roce::ids::{Gid, PathMtu};
use pmd_wire::udp::{self, Claim, LocalAddress};

use crate::attr::PortState;
use crate::gid::{GidChoice, GidEntry, GidError, GidTable, RoceVersion};

/// An address on which a software NIC can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftAddress {
    /// The address as a GID.
    pub gid: GidEntry,
    /// The interface that has it.
    pub interface: String,
    /// Bytes of the largest IP packet that the interface takes.
    pub interface_mtu: usize,
    /// Whether the interface is up.
    pub state: PortState,
    /// The largest path MTU there; `None`: not even 256 bytes fit.
    pub active_mtu: Option<PathMtu>,
    /// Who has it already; an address serves one process.
    pub taken: Option<Taken>,
}

/// An address is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// By this process, as far as permissions show it: else by another user's, or the kernel.
    pub owner: Option<String>,
}

/// The addresses of this machine as the GID table of its software NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftAddresses {
    /// All of them; the index of an entry is its place.
    pub addresses: Vec<SoftAddress>,
    /// The best of the free ones, toward peers anywhere.
    pub choice: Option<GidChoice>,
    /// What `address = "auto"` takes, toward peers of this host: the first free loopback address.
    pub auto: Option<Ipv4Addr>,
}

/// Lists the addresses of this machine and who has them.
///
/// # Errors
/// When the kernel does not tell.
pub fn soft_addresses() -> io::Result<SoftAddresses> {
    Ok(list(&udp::local_addresses()?, &udp::claims()))
}

/// The address that an index of the table means, free or not.
///
/// # Errors
/// The outer one when the kernel does not tell its addresses, the inner one when the index means none, or means another
/// than `address`.
pub(crate) fn address_at(
    index: u32,
    address: Option<IpAddr>,
) -> io::Result<Result<IpAddr, GidError>> {
    let found = list(&udp::local_addresses()?, &udp::unnamed_claims());
    Ok(found.at(index, address))
}

/// The index of an address, where the table has it.
///
/// # Errors
/// When the kernel does not tell its addresses.
pub(crate) fn index_of(address: IpAddr) -> io::Result<Option<u32>> {
    Ok(list(&udp::local_addresses()?, &udp::unnamed_claims()).index_of(address))
}

impl SoftAddresses {
    /// The address that an index means, free or not; it must be `address` where that is given as well.
    ///
    /// # Errors
    /// [`GidError`].
    pub fn at(&self, index: u32, address: Option<IpAddr>) -> Result<IpAddr, GidError> {
        let entries: Vec<GidEntry> = self.addresses.iter().map(|one| one.gid.clone()).collect();
        let len = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let gid = GidTable { len, entries }.choose(Some(index))?.gid.ip();
        match address {
            Some(address) if address != gid => Err(GidError::Elsewhere { index, gid, address }),
            _ => Ok(gid),
        }
    }

    /// The index of an address.
    pub fn index_of(&self, address: IpAddr) -> Option<u32> {
        let entry = self.addresses.iter().find(|one| one.gid.gid == Gid::from(address));
        entry.map(|one| one.gid.index)
    }
}

fn list(local: &[LocalAddress], claims: &[Claim]) -> SoftAddresses {
    let addresses: Vec<SoftAddress> = (0..)
        .zip(with_loopback_claims(local, claims))
        .map(|(index, local)| entry(index, &local, claims))
        .collect();
    let free = addresses.iter().filter(|address| address.taken.is_none());
    let table = GidTable {
        len: u32::try_from(addresses.len()).unwrap_or(u32::MAX),
        entries: free.map(|address| address.gid.clone()).collect(),
    };
    // No choice means that nothing is free, which the list shows.
    SoftAddresses { choice: table.choose(None).ok(), auto: udp::auto_address(claims), addresses }
}

/// The addresses, and those of the loopback network that exist because somebody took them: all of
/// 127.0.0.0/8 is local without being configured.
fn with_loopback_claims(local: &[LocalAddress], claims: &[Claim]) -> Vec<LocalAddress> {
    let mut all = local.to_vec();
    let Some(lo) = local.iter().find(|l| l.loopback && l.address.is_ipv4()) else { return all };
    let mut taken: Vec<IpAddr> = claims
        .iter()
        .map(|claim| claim.address)
        .filter(|address| address.is_ipv4() && address.is_loopback())
        .filter(|address| !local.iter().any(|l| l.address == *address))
        .collect();
    taken.sort_unstable();
    all.extend(taken.into_iter().map(|address| LocalAddress { address, ..lo.clone() }));
    all
}

fn entry(index: u32, local: &LocalAddress, claims: &[Claim]) -> SoftAddress {
    let claim = claims.iter().find(|claim| claim.covers(local.address));
    SoftAddress {
        gid: GidEntry {
            index,
            gid: Gid::from(local.address),
            version: RoceVersion::V2,
            netdev: local.up.then(|| local.interface.name.clone()),
        },
        interface: local.interface.name.clone(),
        interface_mtu: local.interface.mtu,
        state: if local.up { PortState::Active } else { PortState::Down },
        active_mtu: PathMtu::largest_within(udp::max_payload(local.address, local.interface.mtu)),
        taken: claim.map(|claim| Taken { owner: claim.owner.as_ref().map(ToString::to_string) }),
    }
}

#[cfg(test)]
mod tests {
    use pmd_wire::udp::{Interface, Owner};

    use super::*;

    fn local(address: &str, name: &str, mtu: usize, up: bool) -> LocalAddress {
        let loopback = name == "lo";
        let interface = Interface { name: name.into(), index: 1, mtu };
        LocalAddress { address: address.parse().unwrap(), interface, loopback, up }
    }

    fn claim(address: &str, pid: Option<u32>) -> Claim {
        let owner = pid.map(|pid| Owner { pid, name: "spinwire".into() });
        Claim { address: address.parse().unwrap(), owner }
    }

    fn machine() -> Vec<LocalAddress> {
        vec![
            local("127.0.0.1", "lo", 65_536, true),
            local("10.7.0.2", "eth0", 1500, true),
            local("::1", "lo", 65_536, true),
            local("fe80::2", "eth0", 1500, true),
            local("192.168.1.9", "eth1", 9000, false),
        ]
    }

    #[test]
    fn each_address_has_its_mtu_and_state() {
        let found = list(&machine(), &[]);
        let shown: Vec<_> = found.addresses.iter().map(|a| (a.active_mtu, a.state)).collect();
        let (active, down) = (PortState::Active, PortState::Down);
        assert_eq!(
            shown,
            [
                (Some(PathMtu::B4096), active),
                (Some(PathMtu::B1024), active),
                (Some(PathMtu::B4096), active),
                (Some(PathMtu::B1024), active),
                (Some(PathMtu::B4096), down),
            ]
        );
        assert_eq!(found.choice.unwrap().index, 1);
        assert_eq!(found.auto, Some(Ipv4Addr::LOCALHOST));
    }

    /// What is taken is shown with its owner, and not chosen.
    #[test]
    fn taken_addresses_are_not_chosen() {
        let claims =
            [claim("10.7.0.2", Some(77)), claim("127.0.0.2", None), claim("127.0.0.1", Some(8))];
        let found = list(&machine(), &claims);
        let owner = |at: usize| found.addresses[at].taken.as_ref().unwrap().owner.clone();
        assert_eq!(owner(1).as_deref(), Some("process 77 (spinwire)"));
        assert_eq!(found.addresses.len(), 6, "127.0.0.2 exists since somebody has it");
        assert_eq!(found.addresses[5].gid.gid, Gid::from(Ipv4Addr::new(127, 0, 0, 2)));
        assert_eq!(owner(5), None, "who it is, only root may know");
        assert!(found.addresses[3].taken.is_none());
        // ::1 reaches this host only, but eth1 is down and fe80::2 is of one link.
        assert_eq!(found.choice.unwrap().index, 2);
        assert_eq!(found.auto, Some(Ipv4Addr::new(127, 0, 0, 3)));
    }

    /// P05: an index means the entry that is listed, also one that is taken, and must not contradict an address.
    #[test]
    fn p05_an_index_means_the_entry_that_is_listed() {
        let found = list(&machine(), &[claim("127.0.0.2", None), claim("10.7.0.2", None)]);
        let at = |index, address: Option<&str>| {
            found.at(index, address.map(|address| address.parse().unwrap()))
        };
        let (eth0, lo2) = (IpAddr::from([10, 7, 0, 2]), IpAddr::from([127, 0, 0, 2]));
        assert_eq!((at(1, None), at(1, Some("10.7.0.2"))), (Ok(eth0), Ok(eth0)));
        assert_eq!((at(5, None), found.index_of(lo2)), (Ok(lo2), Some(5)));
        assert_eq!(at(6, None), Err(GidError::OutOfRange { index: 6, len: 6 }));
        let both = at(1, Some("::1")).unwrap_err().to_string();
        assert!(both.starts_with("gid_index = 1 is 10.7.0.2, and address = \"::1\""), "{both}");
        assert_eq!(found.index_of(IpAddr::from([127, 0, 0, 9])), None, "nobody has it");
    }

    /// The kernel's own driver has the wildcard.
    #[test]
    fn a_wildcard_takes_everything() {
        let found = list(&machine(), &[claim("0.0.0.0", None)]);
        assert!(found.addresses.iter().all(|address| address.taken.is_some()));
        assert_eq!((found.choice, found.auto), (None, None));
    }
}
