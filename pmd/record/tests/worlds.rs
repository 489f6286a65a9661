//! Worlds of the simulator on record: each replays exactly, and whatever is altered is found.
#![expect(clippy::unwrap_used, reason = "what a test sets up must work")]

use std::sync::Arc;
use std::time::Duration;

use pmd_record::limits::RECORD_BYTES;
use pmd_record::{Ending, Recording, Replay, ReplayError, replay};
use pmd_roce::cm::{
    Accept, CmEvent, ConnParam, Connect, Listen, LocalQp, PortSpace, Route, ServiceId,
};
use pmd_roce::ids::{Psn, Qpn, WrId};
use pmd_roce::qp::state::{QpState, Transport};
use pmd_roce::work::{Access, Data, RecvWr, SendFlags, SendOp, SendWr, WcStatus};
use pmd_sim::connect::PD;
use pmd_sim::{Act, Fault, Filter, Frames, Path, QpPlan, Rng, World};

const REGION: usize = 64 << 10;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Bytes of the head of a record.
const HEAD: usize = 512;
/// Bytes before those of a part.
const PART_HEAD: usize = 16;

/// Two hosts that do a bit of everything, over a network that does its worst, for so many rounds. Returns
/// the completions of the first host.
fn live(seed: u64, path: Path, rounds: u64, recording: &Arc<Recording>) -> Vec<WcStatus> {
    let mut world = World::new(seed);
    world.record_to(recording);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let (a, b) = (world.add_host("a"), world.add_host("b"));
    let plan = QpPlan { timeout: 8, retry_cnt: 3, rnr_retry: 3, ..QpPlan::rc() };
    let (near, far) = (world.create_qp(a, plan).unwrap(), world.create_qp(b, plan).unwrap());
    let [here, there] = [a, b].map(|host| world.register(host, PD, REGION, ALL));
    world.connect(near, far, path).unwrap();
    for act in [Act::Drop, Act::Duplicate, Act::Reorder, Act::Corrupt] {
        world.add_fault(Fault::random(act, 20_000));
    }
    let mut statuses = Vec::new();
    for id in 0..rounds {
        let len = u32::try_from(rng.between(1, 5000)).unwrap();
        let at = rng.below(56 << 10) & !7;
        let op = match rng.below(5) {
            0 => SendOp::Write(there.at(at)),
            1 => SendOp::Read(there.at(at)),
            2 => SendOp::FetchAdd { at: there.at(at), add: 7 },
            _ => SendOp::Send,
        };
        let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { len };
        let (sge, into) = ([here.sge(at, len)], [there.sge(0, 8192)]);
        world.post_recv(b, far.qpn, &RecvWr { wr_id: WrId(id), sges: &into }).unwrap();
        let (data, flags) = (Data::Sges(&sge), SendFlags::SIGNALED);
        let wr = SendWr { wr_id: WrId(id), op, data, flags, to: None, srqn: None };
        let posted = world.post_send(a, near.qpn, &wr).is_ok();
        let span = Duration::from_micros(rng.below(50));
        world.run_until(span, |_| false);
        for cq in [near.send_cq, far.recv_cq] {
            let host = if cq == near.send_cq { a } else { b };
            while let Some(completion) = world.poll_cq(host, cq) {
                statuses.extend((host == a).then_some(completion.status));
            }
        }
        if !posted || world.state(a, near.qpn) == Some(QpState::Error) {
            for side in [near, far] {
                world.set_state(side.host, side.qpn, QpState::Reset).unwrap();
            }
            world.connect(near, far, path).unwrap();
        }
    }
    statuses
}

fn record(seed: u64, path: Path, rounds: u64) -> (Vec<u8>, Vec<WcStatus>) {
    let recording = Recording::in_memory(RECORD_BYTES);
    let statuses = live(seed, path, rounds, &recording);
    let bytes = recording.finish().unwrap();
    assert_eq!(bytes, recording.bytes().len() as u64);
    (recording.bytes(), statuses)
}

fn played(bytes: &[u8]) -> Replay {
    replay(bytes).unwrap()
}

/// B4: what happened is on record, whole, and happens again: both paths, faults, errors and recovery.
#[test]
fn b4_every_world_replays_exactly() {
    for seed in 0..100 {
        for path in [Path::Packets, Path::Shared] {
            let (bytes, _) = record(seed, path, 30);
            let replay = played(&bytes);
            assert_eq!((replay.ending.clone(), replay.is_torn), (Ending::Complete, false));
            assert_eq!(replay.engines.len(), 2);
            for engine in &replay.engines {
                let name = &engine.name;
                assert_eq!(engine.difference, None, "seed {seed}, {path:?}, {name}");
                assert!(engine.has_ended && engine.inputs > 30 && engine.outputs > 0, "{engine:?}");
            }
            assert_eq!(replay, played(&bytes), "twice the same");
        }
    }
}

/// Another seed is another record.
#[test]
fn b4_another_seed_is_another_hash() {
    let hash = |seed| played(&record(seed, Path::Packets, 10).0).engines[0].hash;
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

/// The statuses of a run that fails are those of its replay.
#[test]
fn a_run_that_fails_fails_again() {
    let recording = Recording::in_memory(RECORD_BYTES);
    let mut world = World::new(3);
    world.record_to(&recording);
    let (a, b) = (world.add_host("a"), world.add_host("b"));
    let plan = QpPlan { timeout: 8, retry_cnt: 2, ..QpPlan::rc() };
    let (near, far) = (world.create_qp(a, plan).unwrap(), world.create_qp(b, plan).unwrap());
    let [here, there] = [a, b].map(|host| world.register(host, PD, REGION, ALL));
    world.connect(near, far, Path::Packets).unwrap();
    let acks = Filter { after: 10, ..Filter::of(Frames::Acks) };
    world.add_fault(Fault::new(Act::Drop, acks));
    for id in 0..40 {
        let sge = [here.sge(0, 4096)];
        let wr = SendWr {
            wr_id: WrId(id),
            op: SendOp::Write(there.at(0)),
            data: Data::Sges(&sge),
            flags: SendFlags::SIGNALED,
            to: None,
            srqn: None,
        };
        world.post_send(a, near.qpn, &wr).unwrap();
        world.run_for(Duration::from_micros(20));
    }
    world.run_for(Duration::from_secs(1));
    let mut live = [0u64; 3];
    while let Some(completion) = world.poll_cq(a, near.send_cq) {
        let status = [WcStatus::Success, WcStatus::RetryExc, WcStatus::WrFlush];
        live[status.iter().position(|status| *status == completion.status).unwrap()] += 1;
    }
    assert_eq!((live.iter().sum::<u64>(), live[1]), (40, 1));
    drop(world);
    recording.finish().unwrap();
    let replay = played(&recording.bytes());
    let statuses = &replay.engines[0].statuses;
    assert!(replay.is_equal());
    assert_eq!([0, 12, 5].map(|status| statuses.get(&status).copied().unwrap_or(0)), live);
    // 11 times 1.05 ms of silence would be a day for a person: an idle loop is not on record.
    let inputs = replay.engines[0].inputs;
    assert!(inputs < 500, "{inputs} inputs");
    assert!(replay.engines[0].elapsed_ns >= 3 * 1_048_576, "three times the ACK timeout");
}

/// Connection management is on record as what passes queue pair 1: with frames lost, a connection comes up
/// and goes again, and so it does in the replay.
#[test]
fn b4_managed_connections_replay_exactly() {
    let recording = Recording::in_memory(RECORD_BYTES);
    let mut world = World::new(5);
    world.record_to(&recording);
    let (a, b) = (world.add_host("a"), world.add_host("b"));
    for host in [a, b] {
        world.open_cm(host, |_| {});
    }
    world.add_fault(Fault::random(Act::Drop, 300_000));
    let service = ServiceId::new(PortSpace::Tcp, 1);
    let listen = Listen { service, address: None, backlog: 1 };
    world.with_cm(b, |cm, _| cm.listen(listen)).unwrap();
    let qp = LocalQp { qpn: Qpn::new(0x11), psn: Psn::new(1), srq: false };
    let (param, private_data) = (ConnParam::DEFAULT, &[][..]);
    let connect = Connect {
        service,
        source_port: 2,
        route: Route::between(world.gid(a), world.gid(b)),
        mtu: None,
        transport: Transport::Rc,
        qp,
        param,
        private_data,
    };
    world.with_cm(a, |cm, now| cm.connect(now, &connect)).unwrap();
    let mut gone = 0;
    for _ in 0..1000 {
        world.run_for(Duration::from_millis(100));
        while let Some(event) = world.poll_cm_event(b) {
            let CmEvent::ConnectRequest(id, _) = event else { continue };
            let accept = Accept { qp, param, private_data };
            world.with_cm(b, |cm, now| cm.accept(now, id, &accept)).unwrap();
        }
        while let Some(event) = world.poll_cm_event(a) {
            match event {
                CmEvent::Reply(id, ..) => world.with_cm(a, |cm, now| {
                    cm.establish(id, &[]).unwrap();
                    cm.disconnect(now, id, &[]).unwrap();
                }),
                CmEvent::TimewaitExit(..) => gone += 1,
                _ => {}
            }
        }
    }
    assert_eq!(gone, 1);
    drop(world);
    recording.finish().unwrap();
    let replay = played(&recording.bytes());
    assert!(replay.is_equal(), "{replay:?}");
    assert!(replay.engines.iter().all(|engine| engine.frames_out > 1 && engine.inputs > 4));
}

/// The end of a part head, for each part of a record: kind, where its bytes begin, and their count.
fn parts(bytes: &[u8]) -> Vec<(u8, usize, usize)> {
    let (mut parts, mut at) = (Vec::new(), HEAD);
    while at < bytes.len() {
        let len = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        parts.push((bytes[at], at + PART_HEAD, len));
        at += PART_HEAD + len;
    }
    parts
}

/// Whatever bit of an input is altered, or of what came of it: it is found, and nothing panics.
#[test]
fn b4_one_altered_bit_is_found() {
    for path in [Path::Packets, Path::Shared] {
        let (bytes, _) = record(11, path, 4);
        let mut named = 0;
        for (kind, begin, len) in parts(&bytes) {
            for at in begin..begin + len {
                let mut altered = bytes.clone();
                altered[at] ^= 1 << (at % 8);
                match replay(altered.as_slice()) {
                    Err(ReplayError::Damaged { .. }) => {}
                    Err(error) => panic!("byte {at}: {error}"),
                    Ok(replay) => {
                        // The name of an engine may be any: that it is another one, the checksum tells.
                        let name_only = kind == 2 && replay.is_equal();
                        assert!(!replay.is_equal() || name_only, "byte {at} of kind {kind}");
                        assert_eq!(replay.damaged, Some((begin - PART_HEAD) as u64));
                        named += 1;
                    }
                }
            }
        }
        assert!(named > 1000, "{named}");
    }
}

/// An altered byte of a frame is found at that frame: its input is named, with its time.
#[test]
fn b4_an_altered_frame_is_named() {
    let (bytes, _) = record(11, Path::Packets, 4);
    // In what the second host was told, the first frame begins with its opcode, flags, partition and a zero.
    let of_b =
        |(kind, begin, _): &(u8, usize, usize)| *kind == 3 && bytes[begin - PART_HEAD + 4] == 1;
    let (_, begin, len) = parts(&bytes).into_iter().find(of_b).unwrap();
    let head = |at: &usize| bytes[*at] <= 0x0a && bytes[at + 1..at + 5] == [0x40, 0xff, 0xff, 0];
    let at = (begin..begin + len).find(head).unwrap();
    let mut altered = bytes.clone();
    altered[at + 40] ^= 0x10;
    let replay = played(&altered);
    let found = replay.engines.iter().find_map(|engine| engine.difference.clone()).unwrap();
    let text = found.to_string();
    assert!(found.at_ns > 0, "{text}");
    assert!(text.contains("differs: the frame RC_") && text.contains(" psn 0x"), "{text}");
    assert!(text.ends_with("now:       dropped: icrc") || text.contains("Scatter"), "{text}");
}

/// A record of which the end is missing, as `kill -9` leaves it, is played as far as it goes.
#[test]
fn what_is_left_of_a_record_is_played() {
    let (bytes, _) = record(5, Path::Packets, 20);
    let whole = played(&bytes);
    let last = parts(&bytes).len() - 1;
    for len in (HEAD..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let replay = played(&bytes[..len]);
        assert!(replay.is_equal());
        let inputs =
            |replay: &Replay| replay.engines.iter().map(|engine| engine.inputs).sum::<u64>();
        assert!(inputs(&replay) <= inputs(&whole));
        let starts = parts(&bytes).iter().any(|(_, begin, _)| begin - PART_HEAD == len);
        assert_eq!(replay.is_torn, !starts, "{len} bytes");
    }
    let (_, begin, _) = parts(&bytes)[last];
    assert!(!played(&bytes[..begin - PART_HEAD]).engines[1].has_ended);
    for len in 0..HEAD {
        assert!(matches!(replay(&bytes[..len]), Err(ReplayError::Format(_))));
    }
}

/// A record that becomes too long is cut, says so, and the run is as it would have been.
#[test]
fn a_record_has_a_limit_and_the_run_goes_on() {
    let (bytes, statuses) = record(9, Path::Packets, 60);
    let limit = bytes.len() as u64 / 2;
    let recording = Recording::in_memory(limit);
    assert_eq!(live(9, Path::Packets, 60, &recording), statuses);
    let error = recording.finish().unwrap_err().to_string();
    let reason = format!("it has reached its limit of {limit} bytes");
    assert!(error.contains(&reason) && error.contains("the run went on"), "{error}");
    let cut = recording.bytes();
    assert!(cut.len() as u64 <= limit);
    let replay = played(&cut);
    assert_eq!((replay.ending.clone(), replay.is_torn), (Ending::Cut(reason), false));
    assert!(replay.is_equal() && replay.engines.iter().all(|engine| !engine.has_ended));
}

/// Sizes in a file are not believed.
#[test]
fn a_hostile_record_takes_no_memory() {
    let (bytes, _) = record(5, Path::Packets, 1);
    for at in HEAD..HEAD + PART_HEAD {
        let mut altered = bytes.clone();
        altered[at] = 0xff;
        match replay(altered.as_slice()) {
            Err(ReplayError::Damaged { .. }) => {}
            other => {
                let replay = other.unwrap();
                assert!(replay.is_torn || replay.damaged == Some(HEAD as u64), "byte {at}");
            }
        }
    }
    for other in [&b"{\"format\":1}"[..], &[0; 600], &[]] {
        assert!(matches!(replay(other), Err(ReplayError::Format(_))));
    }
}

/// Whatever was done to a record, it is played or refused: nobody panics, and nobody waits.
#[test]
fn spoilt_records_are_played_or_refused() {
    let runs = std::env::var("RUNS").map_or(300, |runs| runs.parse().unwrap());
    let records = [Path::Packets, Path::Shared].map(|path| record(17, path, 12).0);
    let mut rng = Rng::new(0xbad);
    for run in 0..runs {
        let mut bytes = records[rng.index(2)].clone();
        for _ in 0..rng.between(1, 6) {
            let at = HEAD + rng.index(bytes.len() - HEAD);
            match rng.below(4) {
                0 => bytes[at] = 0xff,
                1 => bytes[at] = 0,
                2 => bytes[at] ^= 1 << rng.below(8),
                _ => {
                    let from = HEAD + rng.index(bytes.len() - HEAD);
                    let len = rng.index(64).min(bytes.len() - at.max(from));
                    bytes.copy_within(from..from + len, at);
                }
            }
        }
        match replay(bytes.as_slice()) {
            Ok(_) | Err(ReplayError::Damaged { .. }) => {}
            Err(error) => panic!("run {run}: {error}"),
        }
    }
}
