//! Damaged, foreign and hostile frames.

use std::net::IpAddr;

use pmd_roce::ids::{Gid, Lkey, Qpn, WrId, XrcdId};
use pmd_roce::qp::attr::QpInit;
use pmd_roce::qp::state::Transport;
use pmd_roce::sink::{Flow, Frame, IpId};
use pmd_roce::wire::DropReason;
use pmd_roce::wire::icrc::{self, IcrcHeader};
use pmd_roce::work::{RecvWr, SendOp, Sge, WcStatus};

use crate::support::{self, DST, DST_ADDR, Host, Pair, Sent, attr, gid, shared};

fn v6(last: u8) -> Gid {
    let mut gid = Gid::from("fd77::".parse::<IpAddr>().unwrap());
    gid.0[15] = last;
    gid
}

/// A UC pair and one WRITE ONLY frame of it.
fn frame(ipv6: bool) -> (Host, Sent) {
    let address = if ipv6 { v6 } else { gid };
    let mut hosts = [1, 2].map(|last| Host::with(last, |config| config.gids = vec![address(last)]));
    let qpns = [0, 1].map(|side: usize| hosts[side].create(Transport::Uc));
    for side in [0, 1] {
        let last = if side == 0 { 2 } else { 1 };
        let mut wanted = attr(last, qpns[1 - side]);
        wanted.av.dgid = address(last);
        hosts[side].bring_up(qpns[side], &wanted);
    }
    hosts[0].post(qpns[0], 1, SendOp::Write(shared(0)), 21);
    hosts[0].poll();
    let sent = hosts[0].out.frames.pop_front().unwrap();
    let [_, receiver] = hosts;
    (receiver, sent)
}

/// Every single flipped bit outside the masked byte is dropped as `icrc`, on IPv6 and on IPv4 with the header at hand;
/// the whole frame is taken afterwards.
#[test]
fn every_flipped_bit_is_an_icrc_drop() {
    for ipv6 in [false, true] {
        let (mut host, sent) = frame(ipv6);
        for bit in 0..sent.payload.len() * 8 {
            // Byte 4 of the BTH is masked: switches change it on the way.
            if bit / 8 == 4 {
                continue;
            }
            let mut damaged = sent.clone();
            damaged.payload[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(host.deliver(&damaged).dropped, Some(DropReason::Icrc), "bit {bit}");
        }
        let flips = sent.payload.len() as u64 * 8 - 8;
        assert_eq!(host.engine.counters().drops[DropReason::Icrc as usize], flips);
        assert_eq!(host.deliver(&sent).dropped, None);
    }
}

/// A wire that hides the IPv4 header: the likely identification, 0, or the one that fits; and the answer says which.
#[test]
fn hidden_ip_id_is_solved() {
    let (mut host, sent) = frame(false);
    for ip_id in [0, 5, 0xfedc] {
        let mut payload = sent.payload.clone();
        let Flow { src, dst, src_port, .. } = sent.flow;
        icrc::seal(&IcrcHeader { src, dst, src_port, ip_id }, &mut payload);
        for likely in [0, 5] {
            let frame = Frame { flow: sent.flow, ip_id: IpId::Likely(likely), payload: &payload };
            let outcome = host.engine.handle_frame(host.now, &frame, &mut host.mem, &mut host.cqs);
            assert_eq!((outcome.ip_id, outcome.dropped), (ip_id, None));
        }
        let frame = Frame { flow: sent.flow, ip_id: IpId::Exact(ip_id ^ 1), payload: &payload };
        let outcome = host.engine.handle_frame(host.now, &frame, &mut host.mem, &mut host.cqs);
        assert_eq!(outcome.dropped, Some(DropReason::Icrc));
    }
}

/// Truncated frames are counted as such, at every length.
#[test]
fn truncated_frames_are_dropped() {
    let (mut host, sent) = frame(true);
    for len in 0..sent.payload.len() {
        let cut = Sent { payload: sent.payload[..len].to_vec(), ..sent.clone() };
        let expected = if len < 16 { DropReason::Truncated } else { DropReason::Icrc };
        assert_eq!(host.deliver(&cut).dropped, Some(expected), "{len} bytes");
    }
}

/// E-18: MigReq is sent set, and both are taken.
#[test]
fn s1_59_mig_req_is_sent_set_and_ignored_on_receipt() {
    let (mut host, sent) = frame(false);
    assert!(sent.packet().headers.bth.mig_req);
    let mut other = sent.clone();
    other.payload[1] &= !0x40;
    let Flow { src, dst, src_port, .. } = sent.flow;
    icrc::seal(&IcrcHeader { src, dst, src_port, ip_id: sent.ip_id }, &mut other.payload);
    for sent in [&sent, &other] {
        assert_eq!(host.deliver(sent).dropped, None);
    }
}

/// A partition key of another partition is dropped.
#[test]
fn foreign_partition_is_dropped() {
    let (mut host, mut sent) = frame(false);
    sent.payload[2] = 0x80;
    sent.payload[3] = 0x01;
    let Flow { src, dst, src_port, .. } = sent.flow;
    icrc::seal(&IcrcHeader { src, dst, src_port, ip_id: sent.ip_id }, &mut sent.payload);
    assert_eq!(host.deliver(&sent).dropped, Some(DropReason::BadPkey));
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.0 >> 20
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low byte is meant")]
    fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}

/// Frames with a right ICRC and arbitrary contents, some close to sense, never bring the engine down, and no request
/// completes twice.
#[test]
fn hostile_frames_never_panic() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut host = Host::new(1);
        let peer = Qpn::new(0x99);
        let transports =
            [Transport::Rc, Transport::Uc, Transport::Ud, Transport::XrcIni, Transport::XrcTgt];
        let qpns = transports.map(|transport| {
            let xrcd = (transport == Transport::XrcTgt).then_some(XrcdId(1));
            let init = QpInit { xrcd, ..support::init(transport) };
            let qpn = host.engine.create_qp(&init).unwrap();
            host.bring_up(qpn, &attr(2, peer));
            if matches!(transport, Transport::Rc | Transport::Uc | Transport::Ud) {
                for wr in 0..8 {
                    let sges = [Sge { addr: DST_ADDR, len: 2000, lkey: Lkey(DST) }];
                    let wr = RecvWr { wr_id: WrId(1000 + wr), sges: &sges };
                    host.engine.post_recv(qpn, &wr).unwrap();
                }
            }
            qpn
        });
        for wr in 0..4 {
            host.post(qpns[0], 2 * wr, SendOp::Write(shared(0)), 2500);
            host.post(qpns[0], 2 * wr + 1, SendOp::Read(shared(0)), 2500);
        }
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1500 {
            if random.next().is_multiple_of(16) {
                host.poll();
                host.out.frames.clear();
            }
            host.deliver(&hostile(&mut random, &qpns));
            for wc in host.completions() {
                assert!(seen.insert((wc.qpn, wc.wr_id)), "seed {seed}: {wc:?} twice");
            }
        }
    }
}

fn hostile(random: &mut Random, qpns: &[Qpn]) -> Sent {
    let lens = [0, 4, 16, 20, 28, 100, 1024, 1040, 1052, 256];
    let len = lens[usize::from(random.byte()) % lens.len()];
    let mut payload: Vec<u8> = (0..12 + len + 4).map(|_| random.byte()).collect();
    let qpn = qpns[usize::from(random.byte()) % qpns.len()];
    let classes = [0, 0x20, 0x60, 0x80, 0xa0];
    payload[0] = classes[usize::from(random.byte()) % 5] | random.byte() & 0x1f;
    payload[1] &= 0xc0;
    payload[2..4].fill(0xff);
    payload[5..8].copy_from_slice(&qpn.value().to_be_bytes()[1..]);
    payload[9..12].copy_from_slice(&[0, 0, random.byte() % 16]);
    if random.next().is_multiple_of(2) && len >= 16 {
        // A RETH, or what is taken for one, that is near the truth.
        payload[12..20].copy_from_slice(&(support::SHARED_ADDR).to_be_bytes());
        payload[20..24].copy_from_slice(&support::SHARED.to_be_bytes());
        payload[24..28].copy_from_slice(&[0, 0, random.byte() % 16, random.byte()]);
    }
    let flow = Flow { src: gid(2), dst: gid(1), src_port: 1, traffic_class: 0, hop_limit: 1 };
    let header = IcrcHeader { src: flow.src, dst: flow.dst, src_port: 1, ip_id: 9 };
    icrc::seal(&header, &mut payload);
    Sent { flow, ip_id: 9, payload }
}

/// A congestion notification is understood, and changes nothing yet.
#[test]
fn cnp_is_counted() {
    let (mut host, mut sent) = frame(false);
    sent.payload[0] = 0x81;
    sent.payload.truncate(12);
    sent.payload.extend([0; 20]);
    let Flow { src, dst, src_port, .. } = sent.flow;
    icrc::seal(&IcrcHeader { src, dst, src_port, ip_id: sent.ip_id }, &mut sent.payload);
    assert_eq!(host.deliver(&sent).dropped, None);
    assert_eq!(host.engine.counters().rp_cnp_handled, 1);
}

/// Destroying a queue pair forgets what is outstanding, and its number names nothing afterwards.
#[test]
fn destroyed_queue_pairs_are_gone() {
    let mut pair = Pair::rc();
    let [a, b] = pair.qpns;
    pair.hosts[1].post_recv(b, 1, 0, 64);
    pair.hosts[0].post(a, 1, SendOp::Send, 8);
    pair.hosts[0].poll();
    pair.hosts[0].engine.destroy_qp(a).unwrap();
    assert_eq!(pair.hosts[0].engine.poll_timeout(), None);
    assert!(pair.hosts[0].engine.query_qp(a).is_none());
    let sent = pair.hosts[0].out.frames.pop_front().unwrap();
    pair.hosts[1].deliver(&sent);
    assert_eq!(pair.hosts[1].statuses(), [(1, WcStatus::Success)]);
    pair.hosts[1].poll();
    let ack = pair.hosts[1].out.frames.pop_front().unwrap();
    assert_eq!(pair.hosts[0].deliver(&ack).dropped, Some(DropReason::UnknownQp));
    let again = pair.hosts[0].create(Transport::Rc);
    assert_ne!(again, a);
}
