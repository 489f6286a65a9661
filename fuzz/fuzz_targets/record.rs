//! Any record of a live run is played or refused: a good one with changes, and whatever follows the beginning of a good one.
#![no_main]

use std::sync::OnceLock;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::{arbitrary, fuzz_target};
use pmd_record::{Recording, replay};
use pmd_roce::ids::WrId;
use pmd_roce::work::{Access, Data, RecvWr, SendFlags, SendOp, SendWr};
use pmd_sim::connect::PD;
use pmd_sim::{Path, QpPlan, World};

/// Bytes of the head of a record.
const HEAD: usize = 512;

/// A run of both kinds of path.
fn good(path: Path) -> Vec<u8> {
    let recording = Recording::in_memory(1 << 20);
    let mut world = World::new(1);
    world.record_to(&recording);
    let (a, b) = (world.add_host("a"), world.add_host("b"));
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let plan = QpPlan::rc();
    let near = world.create_qp(a, plan).expect("a queue pair");
    let far = world.create_qp(b, plan).expect("a queue pair");
    let [here, there] = [a, b].map(|host| world.register(host, PD, 4096, all));
    world.connect(near, far, path).expect("RESET to RTS");
    let into = [there.sge(0, 4096)];
    let receive = RecvWr { wr_id: WrId(9), sges: &into };
    world.post_recv(b, far.qpn, &receive).expect("a receive");
    for (id, op) in [SendOp::Send, SendOp::Write(there.at(8)), SendOp::Read(there.at(0))]
        .into_iter()
        .enumerate()
    {
        let sges = [here.sge(0, 100)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        let wr = SendWr { wr_id: WrId(id as u64), op, data, flags, to: None, srqn: None };
        world.post_send(a, near.qpn, &wr).expect("a request");
    }
    world.run_for(Duration::from_millis(1));
    drop(world);
    recording.finish().expect("room in memory");
    recording.bytes()
}

#[derive(Arbitrary, Debug)]
struct Change {
    at: u16,
    to: u8,
}

// The first byte says which record and what becomes of it, the next two where.
fuzz_target!(|bytes: &[u8]| {
    static GOOD: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let good = GOOD.get_or_init(|| [good(Path::Packets), good(Path::Shared)]);
    let Some(([first, low, high], rest)) = bytes.split_first_chunk() else { return };
    let mut record = good[usize::from(*first & 1)].clone();
    let room = record.len() - HEAD;
    let place = |at: u16| HEAD + usize::from(at) % room;
    let at = place(u16::from_le_bytes([*low, *high]));
    match first & 6 {
        // What follows is anything, to the end or over what was there.
        0 => {
            record.truncate(at);
            record.extend_from_slice(rest);
        }
        2 => drop(record.splice(at..(at + rest.len()).min(record.len()), rest.iter().copied())),
        4 => {
            let changes = Vec::<Change>::arbitrary(&mut Unstructured::new(rest));
            for Change { at, to } in changes.unwrap_or_default() {
                record[place(at)] = to;
            }
        }
        // Something is missing, or comes twice.
        _ => {
            let len = rest.first().map_or(1, |len| usize::from(*len)).min(record.len() - at);
            let piece: Vec<u8> = record.drain(at..at + len).collect();
            if rest.len() > 1 {
                let twice = piece.iter().chain(&piece).copied();
                drop(record.splice(at..at, twice));
            }
        }
    }
    // What it comes to is nobody's promise; that it ends is.
    drop(replay(record.as_slice()));
});
