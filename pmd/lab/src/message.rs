//! Requests on their way out, and messages on their way in, which must be what was sent.

use pmd_roce::ids::WrId;
use pmd_roce::limits::GRH_BYTES;
use pmd_roce::work::{Completion, Data, Datagram, Imm, RemoteAddr, SendFlags, SendOp, SendWr};
use pmd_sim::World;

use crate::connection::{Conn, NEAR};
use crate::scenario::Op;

/// Posts a request; whether the queue pair took it.
pub(crate) fn post(world: &mut World, conn: &Conn, index: usize, qkey: u32) -> bool {
    let request = &conn.requests[index];
    let [near, far] = &conn.ends;
    let mut sge = near.mr.sge(request.near, u32::try_from(request.size).unwrap_or(u32::MAX));
    if request.bad_lkey {
        sge.lkey.0 = !sge.lkey.0;
    }
    let mut at: RemoteAddr = far.mr.at(request.far);
    if request.bad_rkey {
        at.rkey.0 = !at.rkey.0;
    }
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let imm = Imm(number.to_be_bytes());
    let op = match request.op {
        Op::Send => SendOp::Send,
        Op::SendImm => SendOp::SendImm(imm),
        Op::Write => SendOp::Write(at),
        Op::WriteImm => SendOp::WriteImm(at, imm),
        Op::Read => SendOp::Read(at),
        Op::CompareSwap => SendOp::CompareSwap { at, compare: 0, swap: u64::from(number) + 1 },
        Op::FetchAdd => SendOp::FetchAdd { at, add: 1 },
    };
    let to = conn.ah.map(|ah| Datagram { ah, qpn: near.peer.qpn, qkey });
    let wr_id = WrId(u64::from(near.generation) << 32 | u64::from(number));
    let sges = [sge];
    let data = Data::Sges(if request.size == 0 { &[] } else { &sges });
    let wr = SendWr { wr_id, op, data, flags: SendFlags::SIGNALED, to, srqn: None };
    world.post_send(near.host, near.side.qpn, &wr).is_ok()
}

/// A message reached the receive at `at`: it must be what was sent, and come once.
pub(crate) fn delivered(
    world: &World,
    conn: &mut Conn,
    end: usize,
    completion: &Completion,
    at: u64,
) {
    let skip = if completion.grh() { u64::from(GRH_BYTES) } else { 0 };
    let len = u64::from(completion.byte_len).saturating_sub(skip);
    let len = usize::try_from(len).unwrap_or_default();
    let memory = world.memory(conn.ends[end].host);
    let arrived = memory.bytes(at + skip, len);
    let request = match completion.imm() {
        Some(Imm(bytes)) => Some(u32::from_be_bytes(bytes) as usize),
        None => arrived.and_then(|bytes| conn.by_content.get(bytes.first_chunk::<8>()?).copied()),
    };
    let Some(request) = request.filter(|request| *request < conn.requests.len()) else {
        // What is shorter than a name of its own cannot be told apart.
        if len >= 8 {
            conn.violations.push("a message arrived that nobody sent".to_owned());
        }
        return;
    };
    let sent = &conn.requests[request];
    if matches!(sent.op, Op::Send | Op::SendImm) {
        let near = &conn.ends[NEAR];
        let source = world.memory(near.host);
        let same = source.bytes(near.mr.addr + sent.near, len) == arrived;
        if !same || len as u64 != sent.size {
            conn.violations.push(format!("the message of request {request} arrived altered"));
        }
    }
    conn.requests[request].delivered += 1;
    if conn.requests[request].delivered > 1 {
        conn.violations.push(format!("the message of request {request} arrived twice"));
    }
}
