//! The order in which peers and the consumer learn of a fall, seen from outside of one call.

use std::cell::RefCell;
use std::net::Ipv4Addr;

use pmd_roce::engine::{Engine, EngineConfig};
use pmd_roce::ids::{CqId, Gid, Instant, LinkId, PdId, Psn, Qpn, Rkey, WrId};
use pmd_roce::local::{
    LocalFault, LocalPeer, Nobody, Pair, PublishedQp, Push, Record, Source, Target,
};
use pmd_roce::memory::{Asker, AtomicOp, Memory, MemoryFault};
use pmd_roce::qp::attr::{AddressVector, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{QpState, Transport, masks};
use pmd_roce::sink::{CqSink, Flow, TxSink};
use pmd_roce::work::{
    Access, Completion, CqOverrun, Data, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus,
    WindowBind,
};

/// What was seen, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Page(QpState),
    Completion(WcStatus),
}

/// A peer's view of the pages; nobody is on the other side.
struct Pages<'a>(&'a RefCell<Vec<Seen>>);

impl LocalPeer for Pages<'_> {
    type Straight<'a>
        = Nobody
    where
        Self: 'a;

    fn straight(&mut self, _: LinkId, _: Pair) -> Option<Nobody> {
        None
    }

    fn target(&self, _: LinkId, _: Qpn) -> Target {
        Target::Absent
    }

    fn glance(&self, _: LinkId, _: Qpn) -> Option<u64> {
        None
    }

    fn write(
        &mut self,
        _: LinkId,
        _: PdId,
        _: Source<'_>,
        _: (PdId, Qpn),
        _: RemoteAddr,
    ) -> Result<(), LocalFault> {
        Err(LocalFault::Gone)
    }

    fn read(
        &mut self,
        _: LinkId,
        _: PdId,
        _: &[Sge],
        _: (PdId, Qpn),
        _: RemoteAddr,
    ) -> Result<(), LocalFault> {
        Err(LocalFault::Gone)
    }

    fn atomic(
        &mut self,
        _: LinkId,
        _: (PdId, Qpn),
        _: RemoteAddr,
        _: AtomicOp,
    ) -> Result<u64, LocalFault> {
        Err(LocalFault::Gone)
    }

    fn push(&mut self, _: LinkId, _: PdId, _: &Record, _: Source<'_>) -> Push {
        Push::Full
    }

    fn consumed(&self, _: LinkId) -> u64 {
        0
    }

    fn show(&mut self, _: Qpn, qp: Option<&PublishedQp>) {
        self.0.borrow_mut().extend(qp.map(|page| Seen::Page(page.state)));
    }

    fn show_receives(&mut self, _: Qpn, _: Psn, _: u32) {}

    fn publish(&mut self) {}

    fn fence(&mut self) {}
}

/// The consumer's view of its completions.
struct Completions<'a>(&'a RefCell<Vec<Seen>>);

impl CqSink for Completions<'_> {
    fn push(&mut self, _: CqId, completion: Completion) -> Result<(), CqOverrun> {
        self.0.borrow_mut().push(Seen::Completion(completion.status));
        Ok(())
    }
}

/// No memory is registered, and no frame is sent.
struct Nothing;

impl Memory for Nothing {
    fn check_local(&self, _: PdId, _: &Sge, _: bool) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn gather(&self, _: PdId, _: &Sge, _: u32, _: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn scatter(&mut self, _: PdId, _: &Sge, _: u32, _: &[u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn check_remote(&self, _: Asker, _: RemoteAddr, _: u64, _: Access) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn read_remote(&self, _: Asker, _: RemoteAddr, _: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn write_remote(&mut self, _: Asker, _: RemoteAddr, _: &[u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn atomic_remote(&mut self, _: Asker, _: RemoteAddr, _: AtomicOp) -> Result<u64, MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn invalidate(&mut self, _: Asker, _: Rkey) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }

    fn bind(&mut self, _: Asker, _: &WindowBind) -> Result<(), MemoryFault> {
        Err(MemoryFault::UnknownKey)
    }
}

impl TxSink for Nothing {
    fn send(&mut self, _: &Flow, _: Qpn, _: usize, _: &mut dyn FnMut(u16, &mut [u8])) -> bool {
        false
    }
}

/// S4-01: peers see the queue pair in Error before its consumer sees a completion that says so: the
/// consumer may reuse its memory at once, and what peers still copy from it must not count.
#[test]
fn s4_01_peers_see_the_fall_first() {
    let gid = Gid::from(Ipv4Addr::LOCALHOST);
    let mut engine = Engine::new(EngineConfig::new(1, 0, vec![gid]));
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 0,
        max_inline_data: 16,
    };
    let qpn = engine
        .create_qp(&QpInit {
            transport: Transport::Rc,
            pd: PdId(0),
            send_cq: CqId(0),
            recv_cq: CqId(0),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
        })
        .unwrap();
    let seen = RefCell::new(Vec::new());
    let (mut peers, mut cq) = (Pages(&seen), Completions(&seen));
    let mut from = QpState::Reset;
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let attr = QpAttr {
            av: AddressVector { link: Some(LinkId(0)), ..AddressVector::to(gid) },
            dest_qpn: Qpn::new(99),
            sq_psn: Psn::new(5),
            timeout: 1,
            ..QpAttr::new(to)
        };
        let mask = masks(Transport::Rc, from, to).unwrap().required;
        engine.modify_qp(Instant(0), qpn, &attr, mask, &mut Nothing, &mut cq).unwrap();
        from = to;
    }
    let (wr_id, op, data) = (WrId(1), SendOp::Send, Data::Inline(&[b"x"]));
    let flags = SendFlags::empty();
    engine.post_send(qpn, &SendWr { wr_id, op, data, flags, to: None, srqn: None }).unwrap();
    // 8.192 us of silence, and no retry.
    for now in [Instant(0), Instant(8192)] {
        engine.handle_timeout(now, &mut Nothing, &mut cq);
        engine.poll_transmit(now, &mut Nothing, &mut Nothing, &mut peers, &mut cq);
    }
    let fall = [Seen::Page(QpState::Error), Seen::Completion(WcStatus::RetryExc)];
    let seen = seen.borrow();
    assert_eq!(seen[..3], [&[Seen::Page(QpState::Rts)], &fall[..]].concat());
}
