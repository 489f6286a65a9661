//! The packet path without a socket: two engines that hand each other frames in memory.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, anyhow, ensure};
use pmd_mem::table::Registration;
use pmd_mem::{Key, MemoryTable, Place, Segment};
use pmd_roce::engine::{Engine, EngineConfig};
use pmd_roce::ids::{CqId, Gid, Instant, Lkey, PathMtu, PdId, Qpn, Rkey, WrId};
use pmd_roce::local::Nobody;
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::qp::attr::{AddressVector, QpCap, QpInit};
use pmd_roce::qp::state::Transport;
use pmd_roce::sink::{CqSink, Flow, Frame, IpId, TxSink};
use pmd_roce::work::{
    Access, Completion, CqOverrun, Data, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
    WcStatus, WindowBind,
};
use std::sync::Arc;

use crate::side::steps;
use crate::{BATCH, Kind};

/// Bytes of a frame: the largest path MTU, headers and ICRC.
const FRAME: usize = 4096 + 128;
/// Frames on the way in one direction.
const FRAMES: usize = 1024;
/// Requests in flight, and receives posted.
const DEPTH: u32 = 64;
/// Nanoseconds that a turn takes by the engines' clock: time only matters where frames get lost,
/// and none does.
const TURN_NS: u64 = 100;
/// Turns without a completion after which something is broken.
const IDLE_TURNS: u32 = 1 << 16;
const PD: PdId = PdId(1);
const SENT: CqId = CqId(0);
const RECEIVED: CqId = CqId(1);

/// Two connected ends, run in turn by the calling thread.
#[derive(Debug)]
pub struct Packets {
    ends: [End; 2],
    request: Request,
    now: Instant,
    in_flight: usize,
    goal: u64,
    completed: u64,
}

/// What is posted again and again.
#[derive(Clone, Copy, Debug)]
struct Request {
    op: SendOp,
    from: Sge,
    into: Sge,
}

impl Packets {
    /// Connects two engines; messages have `size` bytes.
    ///
    /// # Errors
    /// Where a step is refused, or for a kind that cannot be asked for here.
    pub fn new(kind: Kind, size: u32) -> Result<Self> {
        let mut ends = [End::new(1, size)?, End::new(2, size)?];
        let qpns = [ends[0].qpn, ends[1].qpn];
        ends[0].connect(2, qpns[1])?;
        ends[1].connect(1, qpns[0])?;
        let to = RemoteAddr { addr: 0, rkey: Rkey(ends[1].memory.key.0) };
        let op = match kind {
            Kind::Send => SendOp::Send,
            Kind::Write => SendOp::Write(to),
            Kind::Read => SendOp::Read(to),
            Kind::WriteImm | Kind::Atomic | Kind::Mixed => {
                return Err(anyhow!("{kind:?} is measured on a device"));
            }
        };
        let sge = |end: &End| Sge { addr: 0, len: size, lkey: Lkey(end.memory.key.0) };
        let request = Request { op, from: sge(&ends[0]), into: sge(&ends[1]) };
        let mut this = Self { ends, request, now: Instant(0), in_flight: 0, goal: 0, completed: 0 };
        for _ in 0..DEPTH {
            this.post_recv()?;
        }
        Ok(this)
    }

    /// Keeps requests in flight until as many have completed as all runs so far asked for,
    /// `messages` in this one.
    ///
    /// # Errors
    /// Where one fails, or none completes.
    pub fn run(&mut self, messages: u64) -> Result<()> {
        self.goal += messages;
        let mut idle = 0;
        while self.completed < self.goal {
            if self.in_flight + BATCH <= DEPTH as usize {
                for _ in 0..BATCH {
                    self.post_send()?;
                }
            }
            self.turn(0);
            self.turn(1);
            let before = self.completed;
            while let Some(done) = self.ends[0].cqs.take(SENT) {
                ensure!(done.status == WcStatus::Success, "a request failed: {done:?}");
                self.in_flight -= 1;
                self.completed += 1;
            }
            while let Some(done) = self.ends[1].cqs.take(RECEIVED) {
                ensure!(done.status == WcStatus::Success, "a receive failed: {done:?}");
                self.post_recv()?;
            }
            idle = if self.completed == before { idle + 1 } else { 0 };
            ensure!(idle < IDLE_TURNS, "nothing completes any more");
        }
        Ok(())
    }

    fn post_send(&mut self) -> Result<()> {
        let Request { op, from, .. } = self.request;
        let data = Data::Sges(&[from]);
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: WrId(0), op, data, flags, to: None, srqn: None };
        let end = &mut self.ends[0];
        end.engine.post_send(end.qpn, &wr)?;
        self.in_flight += 1;
        Ok(())
    }

    fn post_recv(&mut self) -> Result<()> {
        let end = &mut self.ends[1];
        let wr = RecvWr { wr_id: WrId(0), sges: &[self.request.into] };
        Ok(end.engine.post_recv(end.qpn, &wr)?)
    }

    /// One turn of an end, as a device does it.
    fn turn(&mut self, which: usize) {
        self.now.0 += TURN_NS;
        let now = self.now;
        let [one, two] = &mut self.ends;
        let (end, peer) = if which == 0 { (one, two) } else { (two, one) };
        let End { engine, memory, cqs, arrived, .. } = end;
        while let Some(held) = arrived.queue.pop_front() {
            let (flow, ip_id) = (held.flow, IpId::Exact(held.ip_id));
            let frame = Frame { flow, ip_id, payload: &held.bytes[..held.len] };
            engine.handle_frame(now, &frame, memory, cqs);
            arrived.spare.push(held.bytes);
        }
        engine.handle_timeout(now, memory, cqs);
        engine.poll_transmit(now, memory, &mut peer.arrived, &mut Nobody, cqs);
    }
}

#[derive(Debug)]
struct End {
    engine: Engine,
    memory: Registered,
    cqs: Completions,
    arrived: Frames,
    qpn: Qpn,
}

impl End {
    fn new(host: u8, size: u32) -> Result<Self> {
        let mut config = EngineConfig::new(host.into(), 0, vec![gid(host)]);
        config.mtu = PathMtu::B4096;
        let mut engine = Engine::new(config);
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qpn = engine.create_qp(&QpInit {
            transport: Transport::Rc,
            pd: PD,
            send_cq: SENT,
            recv_cq: RECEIVED,
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
        })?;
        let memory = Registered::new(u64::from(size))?;
        Ok(Self { engine, memory, cqs: Completions::new(), arrived: Frames::new(), qpn })
    }

    fn connect(&mut self, peer: u8, qpn: Qpn) -> Result<()> {
        let Self { engine, memory, cqs, .. } = self;
        for (mut attr, mask) in steps(AddressVector::to(gid(peer)), qpn) {
            attr.path_mtu = PathMtu::B4096;
            engine.modify_qp(Instant(0), self.qpn, &attr, mask, memory, cqs)?;
        }
        Ok(())
    }
}

fn gid(host: u8) -> Gid {
    Gid::from(std::net::IpAddr::from(Ipv4Addr::new(10, 0, 0, host)))
}

/// Completion queues in plain memory.
#[derive(Debug)]
struct Completions([VecDeque<Completion>; 2]);

impl Completions {
    fn new() -> Self {
        Self([(); 2].map(|()| VecDeque::with_capacity(2 * DEPTH as usize)))
    }

    fn take(&mut self, cq: CqId) -> Option<Completion> {
        self.0[cq.0 as usize].pop_front()
    }
}

impl CqSink for Completions {
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun> {
        let queue = self.0.get_mut(cq.0 as usize).ok_or(CqOverrun)?;
        if queue.len() == queue.capacity() {
            return Err(CqOverrun);
        }
        queue.push_back(completion);
        Ok(())
    }
}

/// Frames on their way to one end, in buffers that go round.
#[derive(Debug)]
struct Frames {
    queue: VecDeque<Held>,
    spare: Vec<Box<[u8; FRAME]>>,
    ip_id: u16,
}

#[derive(Debug)]
struct Held {
    flow: Flow,
    ip_id: u16,
    len: usize,
    bytes: Box<[u8; FRAME]>,
}

impl Frames {
    fn new() -> Self {
        let spare = (0..FRAMES).map(|_| Box::new([0; FRAME])).collect();
        Self { queue: VecDeque::with_capacity(FRAMES), spare, ip_id: 0 }
    }
}

impl TxSink for Frames {
    fn send(
        &mut self,
        flow: &Flow,
        _to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool {
        let Some(mut bytes) = self.spare.pop() else { return false };
        self.ip_id = self.ip_id.wrapping_add(1);
        fill(self.ip_id, &mut bytes[..len]);
        self.queue.push_back(Held { flow: *flow, ip_id: self.ip_id, len, bytes });
        true
    }
}

/// One registered region behind a memory table, as a device has it.
#[derive(Debug)]
struct Registered {
    table: MemoryTable,
    bytes: Segment,
    key: Key,
}

impl Registered {
    fn new(len: u64) -> Result<Self> {
        let entries = Arc::new(Segment::private(MemoryTable::bytes(16))?);
        let table = MemoryTable::new(&entries, 16, None, pmd_mem::os_entropy)?;
        let rights = pmd_mem::Access::LOCAL_WRITE | pmd_mem::Access::REMOTE;
        let key = table.register(&Registration {
            region: 0,
            region_len: len,
            offset: 0,
            length: len,
            va: 0,
            pd: PD.0,
            access: rights,
        })?;
        let bytes = Segment::private(len).context("memory for messages")?;
        Ok(Self { table, bytes, key })
    }

    fn local(&self, pd: PdId, sge: &Sge, at: u32, len: usize, write: bool) -> Found {
        let va = sge.addr.wrapping_add(at.into());
        let found = self.table.check_local(Key(sge.lkey.0), pd.0, va, len as u64, write);
        found.map_err(|_| MemoryFault::NoPermission)
    }

    fn remote(&self, by: Asker, at: RemoteAddr, len: u64, rights: Access) -> Found {
        let rights = pmd_mem::Access::from_bits_truncate(rights.bits());
        let (key, pd, qpn) = (Key(at.rkey.0), by.pd.0, by.qpn.value());
        let found = self.table.check_remote(key, pd, qpn, at.addr, len, rights);
        found.map_err(|_| MemoryFault::NoPermission)
    }

    fn read(&self, place: Option<Place>, into: &mut [u8]) -> Result<(), MemoryFault> {
        let Some(place) = place else { return Ok(()) };
        self.bytes.read_at(place.offset, into).map_err(|_| MemoryFault::OutOfBounds)
    }

    fn write(&self, place: Option<Place>, from: &[u8]) -> Result<(), MemoryFault> {
        let Some(place) = place else { return Ok(()) };
        self.bytes.write_at(place.offset, from).map_err(|_| MemoryFault::OutOfBounds)
    }
}

type Found = Result<Option<Place>, MemoryFault>;

impl Memory for Registered {
    fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), MemoryFault> {
        self.local(pd, sge, 0, sge.len as usize, write).map(|_| ())
    }

    fn gather(&self, pd: PdId, sge: &Sge, offset: u32, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.read(self.local(pd, sge, offset, into.len(), false)?, into)
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        from: &[u8],
    ) -> Result<(), MemoryFault> {
        self.write(self.local(pd, sge, offset, from.len(), true)?, from)
    }

    fn check_remote(
        &self,
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    ) -> Result<(), MemoryFault> {
        self.remote(by, at, len, rights).map(|_| ())
    }

    fn read_remote(&self, by: Asker, at: RemoteAddr, into: &mut [u8]) -> Result<(), MemoryFault> {
        self.read(self.remote(by, at, into.len() as u64, Access::REMOTE_READ)?, into)
    }

    fn write_remote(&mut self, by: Asker, at: RemoteAddr, from: &[u8]) -> Result<(), MemoryFault> {
        self.write(self.remote(by, at, from.len() as u64, Access::REMOTE_WRITE)?, from)
    }

    // What no request of this file asks for is refused.

    fn atomic_remote(&mut self, _: Asker, _: RemoteAddr, _: AtomicOp) -> Result<u64, MemoryFault> {
        Err(MemoryFault::NoPermission)
    }

    fn invalidate(&mut self, _: Asker, _: Rkey) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn bind(&mut self, _: Asker, _: &WindowBind) -> Result<(), MemoryFault> {
        Err(MemoryFault::NoPermission)
    }
}
