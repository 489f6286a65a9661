//! UDP as RoCEv2 uses it: one destination port, and a source port that spreads flows over the
//! equal paths of a fabric (IBTA annex A17.9.2). These are the formulas Linux uses.

use crate::ids::Qpn;

/// Destination port of every packet, requests and responses alike.
pub const PORT: u16 = 4791;

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;

/// First of the source ports, which fill the dynamic range.
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// Source port of a connection whose path has this flow label (20 bits).
pub const fn source_port_of_flow(label: u32) -> u16 {
    let folded = (label ^ label >> 14 & 0x3f) & 0x3fff;
    FIRST_SOURCE_PORT | folded as u16
}

/// Source port of a connection whose path has no flow label.
pub const fn source_port_of_pair(local: Qpn, remote: Qpn) -> u16 {
    let mut mixed = local.value() as u64 * remote.value() as u64;
    mixed ^= mixed >> 20;
    mixed ^= mixed >> 40;
    source_port_of_flow((mixed & 0xf_ffff) as u32)
}

/// Source port of a connection whose path may have a flow label; 0 is none.
pub const fn source_port(label: u32, local: Qpn, remote: Qpn) -> u16 {
    match label {
        0 => source_port_of_pair(local, remote),
        label => source_port_of_flow(label),
    }
}

/// Source port of what a datagram queue pair sends.
pub const fn source_port_of_sender(local: Qpn) -> u16 {
    // Multiplicative hash by the golden ratio, of which the top 14 bits remain.
    FIRST_SOURCE_PORT + (local.value().wrapping_mul(0x61c8_8647) >> 18) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_those_of_linux() {
        // rc-pingpong, and the CM and datagrams of ud-pingpong.
        assert_eq!(source_port_of_pair(Qpn::new(0x11), Qpn::new(0x11)), 49441);
        assert_eq!(source_port_of_sender(Qpn::GSI), 55410);
        assert_eq!(source_port_of_sender(Qpn::new(0x11)), 57236);
        let (long, other) = (Qpn::new(0xab_cdef), Qpn::new(0x12_3456));
        assert_eq!(source_port_of_pair(long, other), 50120);
        assert_eq!(source_port_of_pair(other, long), 50120);
        assert_eq!(source_port_of_sender(Qpn::new(0xff_ffff)), 63821);
        assert_eq!(source_port_of_flow(0), 0xc000);
        assert_eq!(source_port_of_flow(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
        assert_eq!(source_port_of_flow(0x4_0001), 0xc000 | (1 ^ 0x10));
    }
}
