//! UD, into a shared receive queue, with payloads that travel inline.

use benches::{BATCH, Options, Side};
use pmd_verbs::roce::ids::{Psn, Qpn, WrId};
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{
    Ah, Data, Qp, QpOptions, RecvWr, Sge, Srq, SrqOptions, Ud, WcStatus, WireChoice, WorkRequest,
};

use crate::{MESSAGES, WARM_UP, warm_up};

const QKEY: u32 = 0x1111_1111;
const PAYLOAD: [u8; 32] = [7; 32];
const BATCHES: u64 = BATCH as u64;
/// Turns in which a batch arrives, many times over.
const TURNS: u32 = 1 << 24;

#[test]
fn datagrams_allocate_nothing() {
    for wire in [WireChoice::Shm, WireChoice::Udp] {
        let ends = [0, 1].map(|_| End::open(wire));
        let [near, far] = &ends;
        let to_far = near.handle(far);
        for _ in 0..2 * BATCH {
            far.receive();
        }
        let run = |messages: u64| {
            (0..messages / BATCHES).for_each(|_| batch(near, far, &to_far));
        };
        warm_up(|| run(WARM_UP));
        let counted = allocation_counter::measure(|| run(MESSAGES));
        assert_eq!(counted.count_total, 0, "{wire:?}");
    }
}

struct End {
    qp: Qp<Ud>,
    srq: Srq,
    into: [Sge; 1],
    side: Side,
}

impl End {
    fn open(wire: WireChoice) -> Self {
        let options = Options { wire, qps: 1, depth: 64, size: 4096 };
        let side = Side::open("ud", &options).expect("a device");
        let pd = side.qps[0].pd();
        let many = 4 * u32::try_from(BATCH).expect("a small number");
        let srq = SrqOptions { max_wr: many, max_sge: 1, xrc: None };
        let srq = pd.create_srq(&srq).expect("a shared receive queue");
        let cap = QpCap {
            max_send_wr: many,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: 64,
        };
        let qp = pd.create_qp::<Ud>(&QpOptions {
            send_cq: &side.cq,
            recv_cq: &side.cq,
            srq: Some(&srq),
            xrcd: None,
            cap,
            signal_all: true,
        });
        let qp = qp.expect("a queue pair");
        let attr = QpAttr { qkey: QKEY, sq_psn: Psn::new(1), ..QpAttr::new(QpState::Reset) };
        for (state, mask) in [(QpState::Init, 0x71), (QpState::Rtr, 0x1), (QpState::Rts, 0x1_0001)]
        {
            let mask = AttrMask::from_bits_retain(mask);
            qp.modify(&QpAttr { state, ..attr }, mask).expect("a step of the table");
        }
        Self { qp, srq, into: side.sink(4096), side }
    }

    fn handle(&self, peer: &Self) -> Ah {
        let gid = peer.side.cx.device().gid();
        let av = self.side.cx.path_to(gid, peer.number()).expect("a path");
        self.qp.pd().create_ah(&av).expect("an address handle")
    }

    fn number(&self) -> Qpn {
        self.qp.number()
    }

    fn receive(&self) {
        let wr = RecvWr { wr_id: WrId(0), sges: &self.into };
        self.srq.post_recv(&wr).expect("room for a receive");
    }
}

/// Sends a batch and waits until all of it has arrived.
fn batch(near: &End, far: &End, to_far: &Ah) {
    for _ in 0..BATCH {
        let data = Data::Inline(&[&PAYLOAD]);
        let wr = WorkRequest::send_to(data, to_far, far.number(), QKEY);
        near.qp.post_send(&wr).expect("room for a datagram");
    }
    let (mut sent, mut arrived) = (0, 0);
    for _ in 0..TURNS {
        sent += near.side.cq.poll(BATCH, |wc| assert_eq!(wc.status, WcStatus::Success));
        arrived += far.side.cq.poll(BATCH, |wc| {
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 40 + 32));
            far.receive();
        });
        if (sent, arrived) == (BATCH, BATCH) {
            return;
        }
    }
    panic!("{sent} datagrams sent, {arrived} arrived of {BATCH}");
}
