//! Reads the golden traces with decoders of others, so that ours is not its own judge.

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_file::pcap::PcapReader;

/// One RoCEv2 frame of a trace.
pub(crate) struct Frame {
    /// Counts from 1 over all frames of the trace, as Wireshark does.
    pub(crate) number: usize,
    /// When it was on the wire, in a time of the recorder's own.
    pub(crate) at: Duration,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// IPv4 identification.
    pub(crate) ip_id: u16,
    pub(crate) src_port: u16,
    /// The IP header as it was on the wire.
    pub(crate) ip_header: Vec<u8>,
    /// BTH to ICRC.
    pub(crate) payload: Vec<u8>,
}

/// All traces, sorted by name.
pub(crate) fn traces() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<_> = directory
        .read_dir()
        .expect("the golden traces")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    paths.sort();
    paths
}

/// The RoCEv2 frames of a trace.
pub(crate) fn frames(path: &Path) -> Vec<Frame> {
    let mut reader = PcapReader::new(File::open(path).expect("a trace")).expect("a pcap header");
    let mut frames: Vec<Frame> = Vec::new();
    for number in 1.. {
        let Some(record) = reader.next_packet() else { break };
        let record = record.expect("a pcap record");
        let sliced = SlicedPacket::from_ethernet(&record.data).expect("an Ethernet frame");
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) =
            (&sliced.net, &sliced.transport)
        else {
            assert!(matches!(sliced.net, Some(NetSlice::Arp(_))), "frame {number}");
            continue;
        };
        assert_eq!(udp.destination_port(), 4791);
        assert!(frames.last().is_none_or(|last| last.at <= record.timestamp), "frame {number}");
        let header = ip.header();
        frames.push(Frame {
            number,
            at: record.timestamp,
            src: header.source_addr().into(),
            dst: header.destination_addr().into(),
            traffic_class: header.dcp().value() << 2 | header.ecn().value(),
            hop_limit: header.ttl(),
            ip_id: header.identification(),
            src_port: udp.source_port(),
            ip_header: header.slice().to_vec(),
            payload: udp.payload().to_vec(),
        });
    }
    frames
}
