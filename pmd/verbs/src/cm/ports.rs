//! Ports that an id did not choose.

use pmd_roce::cm::PortSpace;

/// Ports that nobody has by name, as Linux chooses them.
const FIRST: u16 = 32_768;
const LAST: u16 = 60_999;

/// A port that is free, from a random one on; `None`: all are taken.
pub(super) fn choose(random: u64, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
    let count = LAST - FIRST + 1;
    let start = u16::try_from(random % u64::from(count)).unwrap_or_default();
    (0..count).map(|step| FIRST + (start + step) % count).find(|port| !is_taken(*port))
}

/// Whether two ids of a name space cannot have one port: at the same address, or one at all of them.
pub(super) fn overlap(
    (space, ip): (PortSpace, std::net::IpAddr),
    (other, at): (PortSpace, std::net::IpAddr),
) -> bool {
    space == other && (ip == at || ip.is_unspecified() || at.is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_free_port_is_found_wherever_the_search_begins() {
        assert_eq!(choose(0, |_| false), Some(FIRST));
        assert_eq!(choose(u64::from(LAST - FIRST), |port| port == LAST), Some(FIRST));
        assert_eq!(choose(7, |port| port != FIRST + 3), Some(FIRST + 3));
        assert_eq!(choose(7, |_| true), None);
    }

    #[test]
    fn ports_overlap_at_one_address_or_at_all() {
        let [one, other, any] = ["127.0.0.1", "127.0.0.2", "0.0.0.0"].map(|ip| ip.parse().unwrap());
        let meets = |a: IpAddr, b: IpAddr| overlap((PortSpace::Tcp, a), (PortSpace::Tcp, b));
        assert!(meets(one, one) && meets(one, any) && meets(any, other));
        assert!(!meets(one, other));
        assert!(!overlap((PortSpace::Tcp, one), (PortSpace::Udp, one)));
    }
}
