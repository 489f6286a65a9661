//! Any bytes are read as a packet or refused by name; what was read is written as the same packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pmd_roce::ids::PathMtu;
use pmd_roce::wire::Packet;
use pmd_roce::wire::grh::Grh;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(packet) = Packet::parse(bytes) {
        assert!(packet.buffer_len() <= bytes.len());
        for mtu in PathMtu::ALL {
            let obeys = packet.obeys_payload_rule(mtu);
            assert!(!obeys || packet.payload.len() <= mtu.bytes());
        }
        let mut again = vec![0; packet.buffer_len()];
        packet.emit(&mut again);
        assert_eq!(Packet::parse(&again), Ok(packet));
    }
    if let Some(grh) = bytes.first_chunk().and_then(Grh::parse) {
        let mut area = [0; Grh::LEN];
        grh.emit(&mut area);
        assert_eq!(Grh::parse(&area), Some(grh));
    }
});
