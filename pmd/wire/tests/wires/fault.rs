//! What a fault plan does to traffic, on a wire in memory.

use pmd_wire::fault::{Action, Direction, Fault, Match, OpcodeSet, QpnMatch, Rule};
use pmd_wire::memory::{self, MemoryWire};
use pmd_wire::tap::{Capture, Tap};
use pmd_wire::udp::{UdpOptions, bind_auto};
use pmd_wire::{Flow, Wire};

use crate::roce::{Got, SEND_ONLY, accept, fill, flow, ip, receive, send};

const MS: u64 = 1_000_000;

fn rule(action: Action, matching: Match) -> Rule {
    Rule { action, matching }
}

/// Sends PSNs 0..`count` through rules that apply to sending, a burst per millisecond of ten
/// frames, and returns what arrives, in order.
fn sent_through(rules: &[Rule], seed: u64, count: u32) -> (Vec<Got>, Vec<u64>) {
    let (a, b) = pair();
    let mut from = Fault::new(a, rules, seed);
    let mut to = b;
    let got = exchange(&mut from, &mut to, count);
    (got, from.hits().collect())
}

/// As [`sent_through`], with rules that apply to receiving.
fn received_through(rules: &[Rule], seed: u64, count: u32) -> (Vec<Got>, Vec<u64>) {
    let (mut from, b) = pair();
    let mut to = Fault::new(b, rules, seed);
    let got = exchange(&mut from, &mut to, count);
    (got, to.hits().collect())
}

fn pair() -> (MemoryWire, MemoryWire) {
    memory::pair(ip("10.0.0.1"), ip("10.0.0.2"), 64)
}

fn there() -> Flow {
    flow(ip("10.0.0.1"), ip("10.0.0.2"))
}

fn exchange(from: &mut impl Wire, to: &mut impl Wire, count: u32) -> Vec<Got> {
    let mut got = Vec::new();
    for turn in 0..count.div_ceil(10) + 100 {
        let now = u64::from(turn) * MS;
        from.rx_burst(now, &mut |_| panic!("nothing comes back"));
        for psn in (turn * 10..count).take(10) {
            assert!(send(from, &there(), psn % 4, psn, 80));
        }
        from.flush(now);
        to.rx_burst(now, &mut |frame| {
            got.push(Got::of(&frame));
            accept(&frame)
        });
    }
    assert_eq!((from.poll_timeout(), to.poll_timeout()), (None, None), "nothing is held back");
    got
}

fn psns(got: &[Got]) -> Vec<u32> {
    got.iter().map(Got::psn).collect()
}

/// Both directions must do the same to the same frames; returns the PSNs in order of arrival.
fn arrivals(rule: &Rule, count: u32) -> Vec<u32> {
    let (sent, sent_hits) = sent_through(std::slice::from_ref(rule), 1, count);
    let (received, received_hits) = received_through(std::slice::from_ref(rule), 1, count);
    assert_eq!(psns(&sent), psns(&received), "{rule:?}");
    assert_eq!(sent_hits, received_hits);
    if rule.action != Action::Corrupt {
        assert!(sent.iter().chain(&received).all(Got::is_intact), "{rule:?}");
    }
    psns(&sent)
}

#[test]
fn without_rules_nothing_changes() {
    let (got, hits) = sent_through(&[], 1, 100);
    assert_eq!(psns(&got), (0..100).collect::<Vec<_>>());
    assert!(got.iter().all(Got::is_intact) && hits.is_empty());
}

/// S1-33: loss can be injected, of acknowledgements as of anything else.
#[test]
fn dropped_frames_are_those_that_the_conditions_name() {
    let drop = |matching| arrivals(&rule(Action::Drop, matching), 12);
    let without = |gone: &[u32]| (0..12).filter(|psn| !gone.contains(psn)).collect::<Vec<u32>>();
    let all = Match::default();
    assert_eq!(drop(all.clone()), []);
    assert_eq!(drop(Match { after: 10, ..all.clone() }), without(&[10, 11]));
    assert_eq!(drop(Match { every: 5, ..all.clone() }), without(&[4, 9]));
    assert_eq!(drop(Match { after: 3, every: 4, ..all.clone() }), without(&[6, 10]));
    assert_eq!(drop(Match { after: 1, count: 2, ..all.clone() }), without(&[1, 2]));
    // Frames 0 to 9 pass at one moment, the others a millisecond later.
    let healed = Match { after: 5, lasts_ns: MS, ..all.clone() };
    assert_eq!(drop(healed), without(&[5, 6, 7, 8, 9]));
    let lasting = Match { after: 5, lasts_ns: MS + 1, ..all.clone() };
    assert_eq!(drop(lasting), without(&[5, 6, 7, 8, 9, 10, 11]));
    assert_eq!(drop(Match { psn: Some(7), ..all.clone() }), without(&[7]));
    let qpn = |value, mask| Match { qpn: Some(QpnMatch { value, mask }), ..all.clone() };
    assert_eq!(drop(qpn(3, 0xff_ffff)), without(&[3, 7, 11]));
    assert_eq!(drop(qpn(2, 2)), without(&[2, 3, 6, 7, 10, 11]));
    let opcodes = OpcodeSet::NONE.with(SEND_ONLY);
    assert_eq!(drop(Match { opcodes, after: 11, ..all.clone() }), without(&[11]));
    let opcodes = (0..=255).filter(|op| *op != SEND_ONLY).collect();
    assert_eq!(drop(Match { opcodes, ..all.clone() }), without(&[]));
    for (from, to, hit) in [
        (None, Some("10.0.0.2"), true),
        (Some("10.0.0.1"), None, true),
        (Some("10.0.0.1"), Some("10.0.0.2"), true),
        (Some("10.0.0.2"), None, false),
        (None, Some("10.0.0.1"), false),
    ] {
        let matching = Match { from: from.map(ip), to: to.map(ip), ..all.clone() };
        assert_eq!(drop(matching).is_empty(), hit, "{from:?} {to:?}");
    }
    assert_eq!(drop(Match { per_million: 0, ..all }), without(&[]));
}

#[test]
fn a_rule_for_one_direction_leaves_the_other_alone() {
    let sending = Match { direction: Direction::Tx, ..Match::default() };
    let receiving = Match { direction: Direction::Rx, ..Match::default() };
    let drop = |matching: &Match| [rule(Action::Drop, matching.clone())];
    assert_eq!(sent_through(&drop(&sending), 1, 10).0.len(), 0);
    assert_eq!(sent_through(&drop(&receiving), 1, 10).0.len(), 10);
    assert_eq!(received_through(&drop(&sending), 1, 10).0.len(), 10);
    assert_eq!(received_through(&drop(&receiving), 1, 10).0.len(), 0);
}

#[test]
fn a_partition_stops_both_ways_whatever_the_frame() {
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")] {
        let matching = Match {
            from: Some(ip(from)),
            to: Some(ip(to)),
            opcodes: OpcodeSet::NONE,
            ..Match::default()
        };
        assert_eq!(arrivals(&rule(Action::Partition, matching), 10), []);
    }
    let other = Match { to: Some(ip("10.0.0.3")), ..Match::default() };
    assert_eq!(arrivals(&rule(Action::Partition, other), 10).len(), 10);
}

#[test]
fn delayed_frames_come_later_and_others_pass_them() {
    let third = Match { psn: Some(3), ..Match::default() };
    let got = arrivals(&rule(Action::Delay { ns: 2 * MS }, third), 30);
    // Ten frames a millisecond: the frame of turn 0 comes with, and before, those of turn 2.
    let mut want: Vec<u32> = (0..30).filter(|psn| *psn != 3).collect();
    want.insert(19, 3);
    assert_eq!(got, want);
    // All delayed alike: the order stays.
    let got = arrivals(&rule(Action::Delay { ns: 5 * MS }, Match::default()), 30);
    assert_eq!(got, (0..30).collect::<Vec<_>>());
}

#[test]
fn a_sleeping_loop_is_told_when_a_delayed_frame_is_due() {
    let (a, mut b) = pair();
    let mut from = Fault::new(a, &[rule(Action::Delay { ns: 7 * MS }, Match::default())], 1);
    from.flush(MS);
    assert!(send(&mut from, &there(), 1, 5, 80));
    from.flush(MS);
    assert_eq!((from.poll_timeout(), from.pending()), (Some(8 * MS), 0));
    from.flush(8 * MS - 1);
    assert_eq!(b.rx_burst(0, &mut |_| panic!("too early")), 0);
    from.flush(8 * MS);
    assert_eq!(psns(&receive(&mut b, 1)), [5]);
    assert_eq!(from.poll_timeout(), None);
}

#[test]
fn duplicates_follow_their_original() {
    let second = Match { every: 2, ..Match::default() };
    assert_eq!(arrivals(&rule(Action::Duplicate, second), 6), [0, 1, 1, 2, 3, 3, 4, 5, 5]);
}

#[test]
fn reordered_frames_change_places_with_the_next() {
    let third = Match { every: 3, ..Match::default() };
    let got = arrivals(&rule(Action::Reorder, third.clone()), 9);
    // The last has no next; it comes when it has waited.
    assert_eq!(got, [0, 1, 3, 2, 4, 6, 5, 7, 8]);
}

#[test]
fn a_corrupted_frame_fails_its_icrc_and_no_other_does() {
    let matching = Match { every: 10, ..Match::default() };
    for through in [sent_through, received_through] {
        let (got, hits) = through(&[rule(Action::Corrupt, matching.clone())], 5, 1000);
        assert_eq!((got.len(), hits), (1000, vec![100]));
        let spoiled: Vec<usize> = (0..1000).filter(|n| !got[*n].is_intact()).collect();
        assert_eq!(spoiled, (0..100).map(|n| 10 * n + 9).collect::<Vec<_>>());
        let original = |n: usize| {
            let mut frame = vec![0; 80];
            let psn = u32::try_from(n).unwrap();
            fill(&there(), got[n].ip_id, SEND_ONLY, psn % 4, psn, &mut frame);
            frame
        };
        for n in spoiled {
            let original = original(n);
            let flipped = original.iter().zip(&got[n].payload).map(|(a, b)| (a ^ b).count_ones());
            assert_eq!(flipped.sum::<u32>(), 1, "frame {n}");
        }
    }
}

#[test]
fn the_first_rule_that_acts_wins_and_the_others_still_count() {
    let rules = [
        rule(Action::Drop, Match { every: 2, ..Match::default() }),
        rule(Action::Duplicate, Match { every: 3, ..Match::default() }),
    ];
    let (got, hits) = sent_through(&rules, 1, 12);
    // The third and ninth are doubled; the sixth and twelfth fall to the first rule.
    assert_eq!(psns(&got), [0, 2, 2, 4, 6, 8, 8, 10]);
    assert_eq!(hits, [6, 2]);
}

#[test]
fn one_seed_gives_one_outcome_and_another_seed_another() {
    let rules = [
        rule(Action::Drop, Match { per_million: 100_000, ..Match::default() }),
        rule(Action::Reorder, Match { per_million: 100_000, ..Match::default() }),
        rule(Action::Delay { ns: 3 * MS }, Match { per_million: 50_000, ..Match::default() }),
        rule(Action::Corrupt, Match { per_million: 50_000, ..Match::default() }),
        rule(Action::Duplicate, Match { per_million: 50_000, ..Match::default() }),
    ];
    for through in [sent_through, received_through] {
        let first = through(&rules, 42, 2000);
        assert_eq!(first, through(&rules, 42, 2000));
        assert_ne!(first, through(&rules, 43, 2000));
        let drops = first.1[0];
        assert!((120..280).contains(&drops), "a tenth of 2000, give or take: {drops}");
    }
}

/// A wire that is full, or a pool that is, refuses and loses nothing.
#[test]
fn backpressure_reaches_the_sender() {
    let (a, mut b) = memory::pair(ip("10.0.0.1"), ip("10.0.0.2"), 8);
    let mut from = Fault::new(a, &[rule(Action::Delay { ns: MS }, Match::default())], 1);
    let mut accepted = 0;
    while send(&mut from, &there(), 1, accepted, 80) {
        accepted += 1;
    }
    assert!(accepted > 1000);
    let mut got = Vec::new();
    for turn in 1.. {
        from.flush(MS * turn);
        let burst = receive(&mut b, 8.min(accepted as usize - got.len()));
        got.extend(psns(&burst));
        if got.len() == accepted as usize {
            break;
        }
    }
    assert_eq!(got, (0..accepted).collect::<Vec<_>>());
    assert_eq!((from.pending(), from.poll_timeout()), (0, None));
    assert!(send(&mut from, &there(), 1, 0, 80), "there is room again");
}

/// Over a socket, whose identifications depend on how frames are gathered: held frames are made
/// right for the one they leave with.
#[test]
fn frames_held_back_satisfy_the_icrc_on_a_udp_wire() {
    let [a, mut b] = [(); 2].map(|()| bind_auto(&UdpOptions::default()).unwrap().remove(0));
    let there = flow(a.address(), b.address());
    let rules = [
        rule(Action::Delay { ns: MS }, Match { every: 3, ..Match::default() }),
        rule(Action::Duplicate, Match { every: 4, ..Match::default() }),
        rule(Action::Reorder, Match { every: 5, ..Match::default() }),
    ];
    let mut from = Fault::new(a, &rules, 1);
    for psn in 0..60 {
        assert!(send(&mut from, &there, 1, psn, 80));
    }
    from.flush(0);
    from.flush(MS);
    let copies = usize::try_from(from.hits().nth(1).unwrap()).unwrap();
    let got = receive(&mut b, 60 + copies);
    assert!(got.iter().all(Got::is_intact));
    assert!(got.iter().any(|g| g.ip_id > 30), "gathered all the same");
    let mut all = psns(&got);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, (0..60).collect::<Vec<_>>());
}

/// A tap under a fault plan records why a frame went no further.
#[test]
fn wrappers_nest() {
    let path = std::env::temp_dir().join(format!("pmd-wire-nest-{}", std::process::id()));
    let capture = Capture::create(&path).unwrap();
    let (mut a, b) = pair();
    let tap: Box<dyn Wire> = Box::new(Tap::new(b, &capture, "lc0", 0));
    let mut to = Fault::new(tap, &[rule(Action::Drop, Match::default())], 1);
    assert!(send(&mut a, &there(), 1, 1, 80));
    a.flush(0);
    assert_eq!(to.rx_burst(0, &mut |_| panic!("dropped")), 0);
    assert_eq!((to.name(), to.source_port(50_000), to.max_payload()), ("memory", 50_000, 4160));
    drop(to);
    assert_eq!(capture.finish().unwrap().frames, 1);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let comment = b"dropped: fault: drop";
    assert!(bytes.windows(comment.len()).any(|w| w == comment));
}
