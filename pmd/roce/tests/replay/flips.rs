//! Every single bit of a frame that the ICRC covers, flipped.

use pmd_roce::ids::Gid;
use pmd_roce::sink::{Flow, IpId};
use pmd_roce::wire::DropReason;
use pmd_roce::wire::icrc::{self, IcrcHeader};

use crate::compare;
use crate::stand_in::{Arriving, Mapping, StandIn};
use crate::story::End;

/// Between them: every operation of RC that rxe sends, UC and UD, as requester and as responder.
const TRACES: [&str; 10] = [
    "rc-send",
    "rc-write",
    "rc-read",
    "rc-read-mtu4096",
    "rc-atomic",
    "nak-rnr-exhausted",
    "nak-access-bounds",
    "drop-ack",
    "uc-pingpong",
    "ud-pingpong",
];

/// FECN, BECN and six reserved bits: routers may change them, so that the ICRC leaves them out.
const CONGESTION_BYTE: usize = 4;

/// How much of the IPv4 header the engine is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    Exact,
    Hidden,
}

/// How many flips were tried, and how many of them passed for another identification.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    tried: usize,
    escaped: usize,
}

/// Before each frame of a trace is handed in, every frame is that differs from it by one covered
/// bit. None has an effect, and the trace goes on as recorded.
fn flip_everything(ipv6: bool, id: Id) -> Tally {
    let mapping = Mapping { ipv6, ..Mapping::SAME };
    let mut tally = Tally::default();
    for trace in TRACES {
        let story = crate::story(trace);
        for end in End::BOTH {
            let stand_in = StandIn::new(&story, end, mapping);
            let outcome = stand_in.run(|stand_in, frame| {
                let before = stand_in.sight();
                each_flip(frame, id, |flipped, ip_id, what, bit| {
                    tally.tried += 1;
                    if id == Id::Hidden && passes_for_another(frame, flipped) {
                        tally.escaped += 1;
                        return;
                    }
                    let outcome = stand_in.hand_in(flipped, ip_id);
                    assert_eq!(
                        outcome.dropped,
                        Some(DropReason::Icrc),
                        "{trace}: {what} bit {bit}"
                    );
                });
                assert_eq!(stand_in.sight(), before, "{trace}");
            });
            compare::assert_equal(&story, end, mapping, &outcome);
        }
    }
    tally
}

/// Calls `try_it` with every neighbour of a frame, what is known about its identification, and the
/// place of the bit.
fn each_flip(frame: &Arriving, id: Id, mut try_it: impl FnMut(&Arriving, IpId, &str, usize)) {
    let known = match id {
        Id::Exact => IpId::Exact(frame.ip_id),
        Id::Hidden => IpId::Likely(0),
    };
    let mut flipped = frame.clone();
    for bit in (0..frame.payload.len() * 8).filter(|bit| bit / 8 != CONGESTION_BYTE) {
        flipped.payload[bit / 8] ^= 1 << (bit % 8);
        try_it(&flipped, known, "payload", bit);
        flipped.payload[bit / 8] ^= 1 << (bit % 8);
    }
    for bit in 0..128 {
        let flip = |gid: Gid| Gid((u128::from_be_bytes(gid.0) ^ (1 << bit)).to_be_bytes());
        let Flow { src, dst, .. } = frame.flow;
        let other_src = Flow { src: flip(src), ..frame.flow };
        let other_dst = Flow { dst: flip(dst), ..frame.flow };
        // The source address is four bytes of an IPv4 header: there is no more of it to damage.
        if !src.is_ipv4() || bit < 32 {
            try_it(&Arriving { flow: other_src, ..frame.clone() }, known, "source", bit);
        }
        try_it(&Arriving { flow: other_dst, ..frame.clone() }, known, "destination", bit);
    }
    for bit in 0..16 {
        let flow = Flow { src_port: frame.flow.src_port ^ 1 << bit, ..frame.flow };
        try_it(&Arriving { flow, ..frame.clone() }, known, "source port", bit);
        if id == Id::Exact && frame.flow.dst.is_ipv4() {
            try_it(frame, IpId::Exact(frame.ip_id ^ 1 << bit), "identification", bit);
        }
    }
}

/// Whether a damaged frame is intact for some identification other than its own. One in 2^16 is: a
/// wire that hides the header cannot do better.
fn passes_for_another(frame: &Arriving, flipped: &Arriving) -> bool {
    let Flow { src, dst, src_port, .. } = flipped.flow;
    if !dst.is_ipv4() {
        return false;
    }
    let header = IcrcHeader { src, dst, src_port, ip_id: 0 };
    let found = icrc::solve_ip_id(&header, &flipped.payload);
    assert_ne!(found, Some(frame.ip_id));
    found.is_some()
}

#[test]
fn every_single_bit_flip_over_ipv4_is_dropped_as_icrc() {
    let tally = flip_everything(false, Id::Exact);
    assert!(tally.tried > 400_000, "{tally:?}");
    assert_eq!(tally.escaped, 0);
}

#[test]
fn every_single_bit_flip_over_ipv6_is_dropped_as_icrc() {
    let tally = flip_everything(true, Id::Exact);
    assert!(tally.tried > 400_000, "{tally:?}");
    assert_eq!(tally.escaped, 0);
}

#[test]
fn every_single_bit_flip_with_a_hidden_id_is_dropped_as_icrc_up_to_the_id() {
    let tally = flip_everything(false, Id::Hidden);
    assert!(tally.tried > 400_000, "{tally:?}");
    assert!(tally.escaped * 10_000 < tally.tried, "{tally:?}");
}
