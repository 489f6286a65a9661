//! The engine takes the place of either machine of a recorded connection: given what the other one
//! sent, it must send what the kernel's Soft-RoCE sent.
//!
//! Equal means: the same frames in the same order with the same opcodes, PSN offsets, lengths,
//! payload and pad bytes, flags, syndromes, MSNs and all other fields, and timers within the
//! coarseness of the kernel's. Queue pair numbers, PSN bases, addresses and keys are mapped; not
//! looked at are MigReq, ACK credits, the UDP checksum, the IPv4 identification, and a source port
//! that follows from queue pair numbers.
//!
//! Where the engine is not to do as rxe does, the scenario of the trace says so: see
//! [`scenario::Scenario`].
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../trace/mod.rs"]
mod trace;

mod cm;
mod compare;
mod flips;
mod memory;
mod scenario;
mod stand_in;
mod story;

use pmd_roce::ids::Psn;

use scenario::{NO_DATA, SCENARIOS};
use stand_in::{Mapping, StandIn};
use story::{End, Story};

fn story(trace: &str) -> Story {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.trace == trace);
    Story::read(*scenario.expect("a scenario"))
}

/// Replays a trace in the place of both machines: as recorded, with PSNs that wrap in the middle,
/// over IPv6, and with frames that arrive in bursts.
fn replay(trace: &str) {
    let story = story(trace);
    let wrapping = Some([Psn::new(0xff_ffff), Psn::new(0xff_fffe)]);
    for end in End::BOTH {
        for mapping in [
            Mapping::SAME,
            Mapping { first_psns: wrapping, ..Mapping::SAME },
            Mapping { ipv6: true, ..Mapping::SAME },
            Mapping { bursts: true, ..Mapping::SAME },
        ] {
            let outcome = StandIn::new(&story, end, mapping).run(|_, _| {});
            compare::assert_equal(&story, end, mapping, &outcome);
        }
    }
}

macro_rules! replayed {
    ($($test:ident $trace:literal;)*) => {
        $(
            #[test]
            fn $test() {
                replay($trace);
            }
        )*

        const REPLAYED: &[&str] = &[$($trace),*];
    };
}

replayed! {
    rc_send "rc-send";
    rc_write "rc-write";
    rc_write_mtu4096 "rc-write-mtu4096";
    rc_read "rc-read";
    rc_read_mtu4096 "rc-read-mtu4096";
    rc_atomic "rc-atomic";
    rc_pingpong "rc-pingpong";
    uc_pingpong "uc-pingpong";
    ud_pingpong "ud-pingpong";
    nak_rnr "nak-rnr";
    nak_rnr_exhausted "nak-rnr-exhausted";
    nak_access_write "nak-access-write";
    nak_access_read "nak-access-read";
    nak_access_bounds "nak-access-bounds";
    nak_invalid_request "nak-invalid-request";
    drop_write "drop-write";
    drop_ack "drop-ack";
    perftest_write_bw "perftest-write-bw";
    perftest_atomic_lat "perftest-atomic-lat";
    rping "rping";
}

#[test]
fn every_trace_with_data_is_replayed() {
    let mut replayed: Vec<_> = REPLAYED.iter().chain(NO_DATA).copied().collect();
    replayed.sort_unstable();
    let paths = trace::traces();
    let mut there: Vec<_> =
        paths.iter().map(|path| path.file_stem().expect("a name").to_string_lossy()).collect();
    there.sort_unstable();
    assert_eq!(there, replayed);
    assert_eq!(REPLAYED.len(), SCENARIOS.len());
}

/// What is not asked of the engine is as little as the scenarios say.
#[test]
fn traces_differ_from_the_rules_where_it_is_said() {
    for scenario in SCENARIOS {
        let story = Story::read(*scenario);
        let count = |is: fn(&story::Record) -> bool| story.records.iter().filter(|r| is(r)).count();
        assert_eq!(count(|record| record.is_early), scenario.early_resends, "{}", scenario.trace);
        let lost = match scenario.trace {
            "drop-write" => 2,
            "drop-ack" => 6,
            _ => 0,
        };
        assert_eq!(count(|record| record.is_lost), lost, "{}", scenario.trace);
    }
}
