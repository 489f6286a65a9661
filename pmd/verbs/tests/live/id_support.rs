//! Two devices with managers, whose ids connect over UDP.

use std::net::SocketAddr;
use std::rc::Rc as Shared;
use std::time::{Duration, Instant};

use pmd_verbs::cm::{
    CmAgent, CmConfig, ConnParam, ConnectParams, Event, EventChannel, EventKind, Id, PortSpace,
};
use pmd_verbs::roce::ids::WrId;
use pmd_verbs::roce::qp::attr::QpCap;
use pmd_verbs::{
    Access, Completion, Cq, Data, Device, DeviceConfig, Mr, Pd, Qp, QpOptions, Rc, RecvWr, Service,
    WireChoice, WorkRequest,
};

use crate::support::region;

/// The port that tests listen at.
pub(crate) const PORT: u16 = 7471;

/// Nothing here takes longer, by far.
const PATIENCE: Duration = Duration::from_secs(20);

/// One device with a channel, and what a queue pair needs.
pub(crate) struct Side {
    pub(crate) agent: CmAgent,
    pub(crate) channel: EventChannel,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
}

impl Side {
    pub(crate) fn new(configure: impl FnOnce(&mut CmConfig)) -> Self {
        let config = DeviceConfig { wire: WireChoice::Udp, ..DeviceConfig::default() };
        let context = Device::open(&config).unwrap().context(0).unwrap();
        let agent = context.open_cm(configure).unwrap();
        let channel = agent.create_channel().unwrap();
        let (pd, cq) = (context.alloc_pd(), context.create_cq(64).unwrap());
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&region(64 << 10), 0, 64 << 10, rights).unwrap();
        Self { agent, channel, pd, cq, mr }
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.agent.context().device().gid().ip(), port)
    }

    pub(crate) fn qp<T: Service>(&self, id: &Id) -> Shared<Qp<T>> {
        id.create_qp(&self.pd, &self.options()).unwrap()
    }

    pub(crate) fn options(&self) -> QpOptions<'_> {
        let cap = QpCap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        QpOptions {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: None,
            xrcd: None,
            cap,
            signal_all: true,
        }
    }

    /// A receive of 128 bytes at the begin of the memory.
    pub(crate) fn recv(&self) -> [pmd_verbs::Sge; 1] {
        [self.mr.sge(0, 128)]
    }

    /// What has been received there.
    pub(crate) fn text(&self, at: u64, len: usize) -> Vec<u8> {
        let mut text = vec![0; len];
        self.mr.region().read_at(at, &mut text).unwrap();
        text
    }

    pub(crate) fn listen(&self, space: PortSpace) -> Id {
        let id = self.channel.create_id(space);
        id.bind(self.at(PORT)).unwrap();
        id.listen(4).unwrap();
        id
    }

    /// An id that knows the way to the other side's listener.
    pub(crate) fn toward(&self, space: PortSpace, to: &Self) -> Id {
        self.channel.open(space, to.at(PORT), Duration::ZERO).unwrap()
    }
}

/// Timewait of 64 ms, and retries that take no time.
pub(crate) fn params(private_data: &[u8]) -> ConnectParams<'_> {
    let param = ConnParam { ack_timeout: Some(14), ..ConnParam::DEFAULT };
    ConnectParams { param, ..ConnectParams::with(private_data) }
}

/// Messages are sent again every few milliseconds, and only so often.
pub(crate) fn hasty(config: &mut CmConfig) {
    (config.response_timeout, config.packet_lifetime, config.max_retries) = (12, 8, 3);
}

/// The next event of one side, while both make progress.
pub(crate) fn event(sides: &[Side; 2], side: usize) -> Event {
    let start = Instant::now();
    loop {
        let other = sides[1 - side].agent.context();
        other.progress(other.device().now());
        // Its manager moves queue pairs when its events are looked for.
        assert!(sides[1 - side].agent.poll_event().is_none(), "every connection is an id's");
        if let Some(event) = sides[side].channel.poll() {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "no event");
    }
}

/// The name of the next event.
pub(crate) fn name(sides: &[Side; 2], side: usize) -> &'static str {
    event(sides, side).name().strip_prefix("RDMA_CM_EVENT_").unwrap()
}

/// The next request of side 1, and the id for the answer.
pub(crate) fn request(sides: &[Side; 2]) -> (Id, Event) {
    let mut event = event(sides, 1);
    assert!(matches!(event.kind(), EventKind::ConnectRequest(_)), "{event:?}");
    (event.take_id().unwrap(), event)
}

/// Everything that completes on both sides, until there is so much of it; by number.
pub(crate) fn completions(sides: &[Side; 2], count: usize) -> Vec<Completion> {
    let start = Instant::now();
    let mut all = Vec::new();
    while all.len() < count {
        for side in sides {
            side.cq.poll(4, |completion| all.push(completion));
        }
        assert!(start.elapsed() < PATIENCE, "{all:?}");
    }
    all.sort_unstable_by_key(|completion| completion.wr_id.0);
    all
}

pub(crate) fn post_receive(side: &Side, qp: &Qp<Rc>, id: u64) {
    qp.post_recv(&RecvWr { wr_id: WrId(id), sges: &side.recv() }).unwrap();
}

pub(crate) fn send(qp: &Qp<Rc>, id: u64, text: &[u8]) {
    qp.post_send(&WorkRequest::send(Data::Inline(&[text])).id(id)).unwrap();
}

/// A connection of two ids with queue pairs: the ones of both sides.
pub(crate) fn connected(sides: &[Side; 2]) -> ([Id; 2], [Shared<Qp<Rc>>; 2]) {
    let listener = sides[1].listen(PortSpace::Tcp);
    let active = sides[0].toward(PortSpace::Tcp, &sides[1]);
    let client = sides[0].qp::<Rc>(&active);
    active.connect(&params(&[])).unwrap();
    let (passive, _) = request(sides);
    let server = sides[1].qp::<Rc>(&passive);
    passive.accept(&params(&[])).unwrap();
    assert_eq!(name(sides, 0), "ESTABLISHED");
    assert_eq!(name(sides, 1), "ESTABLISHED");
    drop(listener);
    ([active, passive], [client, server])
}
