//! Requests that break a rule: how they end at each side.

use pmd_verbs::roce::engine::PostSendError;
use pmd_verbs::roce::ids::{Lkey, Rkey, WrId};
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::QpState;
use pmd_verbs::{Access, Data, Mr, Qp, Rc, RecvWr, RemoteAddr, Service, Sge, Uc, Ud, WorkRequest};

use super::finding::{Findings, Question, question};
use super::rig::{Ground, QKEY, RECEIVES, Rig, Way, ends, step};

/// One way to break a rule on a reliable connection, and what must come of it.
pub(super) struct Case {
    pub(super) question: Question,
    /// Changes what the responder's queue pair is given.
    responder: fn(&mut QpAttr),
    /// Posts the request that breaks the rule, as number 1.
    post: fn(&Scene<'_>, &Qp<Rc>) -> Result<(), PostSendError>,
    /// How it ends; what is behind it is flushed.
    requester: &'static str,
    /// How the responder's first receive ends; `None`: it is not concerned, and stays in RTS.
    responded: Option<&'static str>,
    /// The responder's event, where there must be one.
    pub(super) event: Option<&'static str>,
}

const LOCAL_PROTECTION: &str = "local protection error (4)";
const FLUSHED: &str = "Work Request Flushed Error (5)";
const INVALID_REQUEST: &str = "remote invalid request error (9)";
const REMOTE_ACCESS: &str = "remote access error (10)";
const REMOTE_OPERATION: &str = "remote operation error (11)";

const LOCAL: Case = Case {
    question: question("", "IBTA 1.4, 11.6.2"),
    responder: |_| {},
    post: |_, _| Ok(()),
    requester: LOCAL_PROTECTION,
    responded: None,
    event: None,
};

const RULE: Case = Case {
    requester: REMOTE_ACCESS,
    responded: Some(FLUSHED),
    event: Some("QP_ACCESS_ERR"),
    ..LOCAL
};

/// Requester status and responder event of each class of fault (IBTA 1.4, 9.9.3, table 58).
const fn by_table_58(name: &'static str) -> Question {
    question(name, "IBTA 1.4, table 58")
}

/// The matrix.
pub(super) const CASES: &[Case] = &[
    Case {
        question: question("bad-lkey", "IBTA 1.4, 11.6.2"),
        post: |_, qp| {
            let sges = [Sge { addr: 0x1000, len: 8, lkey: Lkey(0xffff_fff0) }];
            qp.post_send(&WorkRequest::send(Data::Sges(&sges)).id(1))
        },
        ..LOCAL
    },
    Case {
        question: question("beyond-the-region", "IBTA 1.4, 11.6.2"),
        post: |scene, qp| {
            let mr = &scene.rig.sides[0].mr;
            let sges = [mr.sge(mr.len() - 4, 8)];
            qp.post_send(&WorkRequest::send(Data::Sges(&sges)).id(1))
        },
        ..LOCAL
    },
    Case {
        question: question("lkey-of-another-domain", "IBTA 1.4, 11.6.2; man ibv_alloc_pd"),
        post: |scene, qp| {
            let sges = [scene.other_domains.sge(0, 8)];
            qp.post_send(&WorkRequest::send(Data::Sges(&sges)).id(1))
        },
        ..LOCAL
    },
    Case {
        question: by_table_58("bad-rkey-write"),
        post: |scene, qp| scene.write(qp, scene.bad_rkey()),
        ..RULE
    },
    Case {
        question: by_table_58("bad-rkey-read"),
        post: |scene, qp| scene.read(qp, scene.bad_rkey()),
        ..RULE
    },
    Case {
        question: by_table_58("beyond-the-remote-region"),
        post: |scene, qp| {
            let mr = &scene.rig.sides[1].mr;
            scene.write(qp, mr.remote(mr.len() - 4))
        },
        ..RULE
    },
    Case {
        question: by_table_58("write-without-right"),
        post: |scene, qp| scene.write(qp, scene.read_only.remote(0)),
        ..RULE
    },
    Case {
        question: by_table_58("read-without-right"),
        post: |scene, qp| scene.read(qp, scene.write_only.remote(0)),
        ..RULE
    },
    Case {
        question: by_table_58("atomic-without-right"),
        post: |scene, qp| scene.add(qp, scene.read_only.remote(0)),
        ..RULE
    },
    Case {
        question: by_table_58("rkey-of-another-domain"),
        post: |scene, qp| scene.write(qp, scene.peers_other_domain.remote(0)),
        ..RULE
    },
    Case {
        question: question("write-forbidden", "IBTA 1.4, table 58 (not enabled: unsupported)"),
        responder: |attr| attr.access = Access::REMOTE_READ,
        post: |scene, qp| scene.write(qp, scene.rig.sides[1].remote(0)),
        requester: INVALID_REQUEST,
        event: Some("QP_REQ_ERR"),
        ..RULE
    },
    Case {
        question: question("read-forbidden", "IBTA 1.4, table 58 (not enabled: unsupported)"),
        responder: |attr| attr.access = Access::REMOTE_WRITE,
        post: |scene, qp| scene.read(qp, scene.rig.sides[1].remote(0)),
        requester: INVALID_REQUEST,
        event: Some("QP_REQ_ERR"),
        ..RULE
    },
    Case {
        question: question("atomic-forbidden", "IBTA 1.4, table 58 (not enabled: unsupported)"),
        responder: |attr| attr.access = Access::REMOTE_WRITE,
        post: |scene, qp| scene.add(qp, scene.rig.sides[1].remote(0)),
        requester: INVALID_REQUEST,
        event: Some("QP_REQ_ERR"),
        ..RULE
    },
    Case {
        question: question("atomic-misaligned", "IBTA 1.4, 9.4.5, table 58"),
        post: |scene, qp| scene.add(qp, scene.rig.sides[1].remote(4)),
        requester: INVALID_REQUEST,
        ..RULE
    },
    Case {
        question: question("read-depth", "IBTA 1.4, table 58 (max_dest_rd_atomic 0)"),
        responder: |attr| attr.max_dest_rd_atomic = 0,
        post: |scene, qp| scene.read(qp, scene.rig.sides[1].remote(0)),
        requester: INVALID_REQUEST,
        ..RULE
    },
    Case {
        question: question("send-too-long", "IBTA 1.4, table 58"),
        post: |scene, qp| {
            let sges = [scene.rig.sides[0].sge(0, RECEIVE + 1)];
            qp.post_send(&WorkRequest::send(Data::Sges(&sges)).id(1))
        },
        requester: INVALID_REQUEST,
        responded: Some("local length error (1)"),
        event: None,
        ..RULE
    },
];

/// Bytes of each of the responder's receives.
const RECEIVE: u32 = 64;

/// What cases post with.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    rig: &'a Rig<'a>,
    /// Memory of the requester in a protection domain of its own.
    other_domains: Mr,
    /// Memory of the responder: peers may only read it,
    read_only: Mr,
    /// or only write it,
    write_only: Mr,
    /// or do everything, by queue pairs of another domain.
    peers_other_domain: Mr,
}

impl<'a> Scene<'a> {
    fn new(rig: &'a Rig<'a>) -> anyhow::Result<Self> {
        let [near, far] = &rig.sides;
        let everything = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let elsewhere = |side: &super::rig::Side| -> anyhow::Result<Mr> {
            let pd = side.cx.alloc_pd();
            Ok(pd.register(side.mr.region(), 0, side.mr.len(), everything)?)
        };
        Ok(Self {
            rig,
            other_domains: elsewhere(near)?,
            read_only: far.register(Access::REMOTE_READ)?,
            write_only: far.register(Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            peers_other_domain: elsewhere(far)?,
        })
    }

    fn bad_rkey(&self) -> RemoteAddr {
        let good = self.rig.sides[1].remote(0);
        RemoteAddr { rkey: Rkey(!good.rkey.0), ..good }
    }

    fn write(&self, qp: &Qp<Rc>, to: RemoteAddr) -> Result<(), PostSendError> {
        let sges = [self.rig.sides[0].sge(0, 64)];
        qp.post_send(&WorkRequest::write(Data::Sges(&sges), to).id(1))
    }

    fn read(&self, qp: &Qp<Rc>, from: RemoteAddr) -> Result<(), PostSendError> {
        let sges = [self.rig.sides[0].sge(0, 64)];
        qp.post_send(&WorkRequest::read(Data::Sges(&sges), from).id(1))
    }

    fn add(&self, qp: &Qp<Rc>, at: RemoteAddr) -> Result<(), PostSendError> {
        let sges = [self.rig.sides[0].sge(0, 8)];
        qp.post_send(&WorkRequest::fetch_add(Data::Sges(&sges), at, 1).id(1))
    }
}

impl Case {
    /// Breaks the rule on a pair of its own, whose ends it gives back; and how both ended, or the refusal.
    pub(super) fn play(&self, rig: &Rig<'_>) -> anyhow::Result<([Qp<Rc>; 2], String)> {
        let scene = Scene::new(rig)?;
        let [a, b] = rig.pair::<Rc>(|side, attr| {
            if side == 1 {
                (self.responder)(attr);
            }
        })?;
        rig.sides[1].receives(&b, RECEIVES, 2, RECEIVE)?;
        if let Err(error) = (self.post)(&scene, &a) {
            return Ok(([a, b], format!("refused when posted: {error}")));
        }
        a.post_send(&WorkRequest::send(Data::Inline(&[b"behind it"])).id(2))?;
        let at_peer = if self.responded.is_some() { 2 } else { 0 };
        let [sent, received] = rig.complete([2, at_peer]);
        let (near, far) = (rig.state(&a), rig.state(&b));
        let seen = format!("{}, {near}; peer: {}, {far}", ends(&sent), ends(&received));
        Ok(([a, b], seen))
    }

    fn expected(&self) -> String {
        let peer = match self.responded {
            Some(first) => format!("100 {first}, 101 {FLUSHED}, ERR"),
            None => "nothing completes, RTS".to_owned(),
        };
        format!("1 {}, 2 {FLUSHED}, ERR; peer: {peer}", self.requester)
    }
}

const BAD_RECEIVE: Question = by_table_58("receive-bad-lkey");
const UNREADY: Question = question("post-in-wrong-state", "IBTA 1.4, 10.3.1, table 95");
const UC_SILENT: Question = question("uc-write-refused", "IBTA 1.4, 9.8");
const UD_QKEY: Question = question("ud-wrong-qkey", "IBTA 1.4, 10.2.5");
const UD_LONG: Question = question("ud-too-long", "IBTA 1.4, 9.8; man ibv_post_send");

pub(super) fn run(ground: &Ground<'_>, way: Way, found: &mut Findings) -> anyhow::Result<()> {
    for case in CASES {
        let (_, seen) = case.play(&ground.rig(way)?)?;
        found.same(case.question, case.expected(), seen);
    }
    bad_receive(&ground.rig(way)?, found)?;
    wrong_states(&ground.rig(way)?, found)?;
    silent_refusal(&ground.rig(way)?, found)?;
    if way == Way::Packets {
        datagrams(&ground.rig(way)?, found)?;
    }
    Ok(())
}

/// A receive in memory that nobody registered is the responder's fault.
fn bad_receive(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [a, b] = rig.pair::<Rc>(|_, _| {})?;
    let sges = [Sge { addr: 0x1000, len: 64, lkey: Lkey(0xffff_fff0) }];
    b.post_recv(&RecvWr { wr_id: WrId(RECEIVES), sges: &sges })?;
    a.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(1))?;
    let [sent, received] = rig.complete([1, 1]);
    let expected = format!("1 {REMOTE_OPERATION}; peer: 100 {LOCAL_PROTECTION}, ERR");
    let seen = format!("{}; peer: {}, {}", ends(&sent), ends(&received), rig.state(&b));
    found.same(BAD_RECEIVE, expected, seen);
    Ok(())
}

/// Which requests each state takes.
fn wrong_states(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let peer: Qp<Rc> = rig.qp(1, |_| {})?;
    let attr = rig.attr(0, peer.number())?;
    let qp: Qp<Rc> = rig.qp(0, |_| {})?;
    for (state, takes_receives) in
        [(QpState::Reset, false), (QpState::Init, true), (QpState::Rtr, true)]
    {
        if state != QpState::Reset {
            step(&qp, &attr, state)?;
        }
        let send = qp.post_send(&WorkRequest::send(Data::Inline(&[b"early"])).id(1));
        let sges = [rig.sides[0].sge(super::rig::INTO, 64)];
        let receive = qp.post_recv(&RecvWr { wr_id: WrId(RECEIVES), sges: &sges });
        found.same(
            UNREADY,
            format_args!(
                "{state}: a send is refused, a receive {}",
                if takes_receives { "accepted" } else { "refused" }
            ),
            format_args!(
                "{state}: a send is {}, a receive {}",
                rig.refused(&send),
                rig.refused(&receive)
            ),
        );
    }
    Ok(())
}

/// What an unreliable connection refuses, it refuses in silence, and lives.
fn silent_refusal(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [a, b] = rig.pair::<Uc>(|_, _| {})?;
    rig.sides[1].receives(&b, RECEIVES, 1, 64)?;
    let good = rig.sides[1].remote(0);
    let bad = RemoteAddr { rkey: Rkey(!good.rkey.0), ..good };
    a.post_send(&WorkRequest::write(Data::Inline(&[b"nowhere"]), bad).id(1))?;
    let [sent, nothing] = rig.complete([1, 0]);
    a.post_send(&WorkRequest::send(Data::Inline(&[b"message"])).id(2))?;
    let [then, received] = rig.complete([1, 1]);
    found.same(
        UC_SILENT,
        "1 success (0); peer: nothing completes; then 2 success (0); peer: 100 success (0)",
        format_args!(
            "{}; peer: {}; then {}; peer: {}",
            ends(&sent),
            ends(&nothing),
            ends(&then),
            ends(&received)
        ),
    );
    Ok(())
}

/// Datagrams with a wrong key are dropped; one that is longer than a packet is never sent.
fn datagrams(rig: &Rig<'_>, found: &mut Findings) -> anyhow::Result<()> {
    let [a, b] = rig.pair::<Ud>(|_, _| {})?;
    let [near, far] = &rig.sides;
    far.receives(&b, RECEIVES, 1, 4096 + 40)?;
    let ah = near.pd.create_ah(&rig.attr(0, b.number())?.av)?;
    let send = |wr: u64, qkey: u32| {
        let data = Data::Inline(&[b"datagram"]);
        a.post_send(&WorkRequest::send_to(data, &ah, b.number(), qkey).id(wr))
    };
    send(1, QKEY + 1)?;
    let [sent, nothing] = rig.complete([1, 0]);
    send(2, QKEY)?;
    let [then, received] = rig.complete([1, 1]);
    found.same(
        UD_QKEY,
        "1 success (0); peer: nothing completes; then 2 success (0); peer: 100 success (0)",
        format_args!(
            "{}; peer: {}; then {}; peer: {}",
            ends(&sent),
            ends(&nothing),
            ends(&then),
            ends(&received)
        ),
    );
    let len = near.cx.device().mtu().bytes_u32() + 1;
    let sges = [near.sge(0, len)];
    let data = Data::Sges(&sges);
    let answer = a.post_send(&WorkRequest::send_to(data, &ah, b.number(), QKEY).id(3));
    let service = Ud::TRANSPORT;
    found.same(
        UD_LONG,
        format_args!("{service}, {len} bytes: refused"),
        format_args!("{service}, {len} bytes: {}", rig.refused(&answer)),
    );
    Ok(())
}
