//! The log of transitions.

use std::io;
use std::sync::{Arc, Mutex};

use pmd_verbs::endpoint::{EndpointOptions, Local, Op, Pending, Token};
use pmd_verbs::roce::qp::attr::QpAttr;
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::{Device, DeviceConfig, Rc, WireChoice};
use tracing::Level;

use crate::support::{World, go, mask, region, step};

/// Collects what is logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `run` logs, down to this level.
fn logged(level: Level, run: impl FnOnce()) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, run);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// P12: whoever can be reached and has no receive posted is warned, before anybody meets it as an RNR.
#[test]
fn p12_connecting_without_receives_is_warned_about() {
    let device = Device::open(&DeviceConfig { lcores: 2, ..DeviceConfig::default() }).unwrap();
    let cxs = [device.context(0).unwrap(), device.context(1).unwrap()];
    let warnings = |recv_depth: u32, posts: bool| {
        let options = EndpointOptions { recv_depth, ..EndpointOptions::default() };
        let mut ends = cxs.clone().map(|cx| cx.prepare(&options).unwrap());
        if posts {
            let memory = region(4096);
            for end in &mut ends {
                let key = end.endpoint().register(&memory).unwrap();
                let into = Local { key, offset: 0, len: 64 };
                end.endpoint().submit(Op::Recv { into }, Token(1)).unwrap();
            }
        }
        let text = logged(Level::WARN, || {
            let [a, b] = &mut ends;
            b.connect(&a.hello(b"")).unwrap();
            a.connect(&b.hello(b"")).unwrap();
        });
        text.matches("has no receive posted").count()
    };
    assert_eq!(warnings(4, false), 2, "both ends");
    assert_eq!(warnings(4, true), 0);
    assert_eq!(warnings(0, false), 0, "who has no receives wants no messages");
}

/// S2-12, S2-14, P02: one line per attempt, refused or not, with states, mask and attributes, so
/// that the log alone tells which step was skipped and which attribute was missing.
#[test]
fn s2_12_every_attempt_is_logged_with_its_attributes() {
    let world = World::new(WireChoice::Udp);
    let qp = world.sides[0].qp::<Rc>(|_| {});
    let attr = world.attr(0, world.sides[1].qp::<Rc>(|_| {}).number());
    let text = logged(Level::DEBUG, || {
        let skipped = QpAttr { state: QpState::Rtr, ..attr };
        qp.modify(&skipped, mask(pmd_verbs::roce::qp::state::Transport::Rc, QpState::Rtr))
            .unwrap_err();
        step(&qp, &attr, QpState::Init);
        let incomplete =
            mask(pmd_verbs::roce::qp::state::Transport::Rc, QpState::Rtr) - AttrMask::DEST_QPN;
        qp.modify(&skipped, incomplete).unwrap_err();
        step(&qp, &attr, QpState::Rtr);
        step(&qp, &attr, QpState::Rts);
        go(&qp, QpState::Error);
    });
    let lines: Vec<_> = text.lines().filter(|line| line.contains(" -> ")).collect();
    assert_eq!(lines.len(), 6, "{text}");
    let who = format!("soft0: RC {} ", qp.number());
    assert!(lines.iter().all(|line| line.trim_start().starts_with("DEBUG") && line.contains(&who)));
    let has =
        |line: usize, what: &str| assert!(lines[line].contains(what), "{what}: {}", lines[line]);
    has(0, "RESET -> RTR, STATE | AV | PATH_MTU | RQ_PSN | MIN_RNR_TIMER");
    has(0, "refused: RC RESET -> RTR: skips INIT; go RESET -> INIT -> RTR");
    has(
        1,
        "RESET -> INIT, STATE | ACCESS_FLAGS | PKEY_INDEX | PORT: qp_state=INIT qp_access_flags=0x6",
    );
    has(1, "pkey_index=0 port_num=1");
    has(2, "refused: RC INIT -> RTR: missing DEST_QPN");
    has(3, &format!("dest_qp_num={} rq_psn=0x100000", attr.dest_qpn));
    has(3, "sgid_index=0 hop_limit=64");
    has(4, "RTR -> RTS");
    has(4, "sq_psn=0x200000 max_rd_atomic=4 timeout=14 retry_cnt=7 rnr_retry=7");
    has(5, "RTS -> ERR, STATE: qp_state=ERR");
}
