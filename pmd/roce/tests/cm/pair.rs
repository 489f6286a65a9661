//! Two managers, a network with faults between them, and a clock that jumps.

use core::time::Duration;
use std::net::Ipv4Addr;

use pmd_roce::cm::{
    Accept, Cm, CmConfig, CmEvent, CmState, ConnId, ConnParam, Connect, ConnectRequest, Listen,
    LocalQp, Message, PortSpace, Route, ServiceId,
};
use pmd_roce::ids::{Gid, Instant, Psn, Qpn};
use pmd_roce::qp::state::Transport;
use pmd_roce::sink::Flow;
use pmd_sim::Rng;

pub(crate) const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7471);
pub(crate) const SOURCE_PORT: u16 = 40_000;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// What the network does to a message, in parts of a million.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    /// Up to so much later.
    pub(crate) delay: Duration,
}

struct Flying {
    at: Instant,
    order: u64,
    to: Side,
    mad: Vec<u8>,
}

type Filter = Box<dyn FnMut(Side, &Message) -> bool>;

/// Client and server. Events pile up until they are asked for.
pub(crate) struct Pair {
    pub(crate) client: Cm,
    pub(crate) server: Cm,
    pub(crate) now: Instant,
    pub(crate) gids: [Gid; 2],
    pub(crate) faults: Faults,
    /// Says of each message, by its sender, whether it passes.
    pub(crate) passes: Filter,
    pub(crate) rng: Rng,
    /// Each message that was sent, with its sender and time.
    pub(crate) log: Vec<(Duration, Side, &'static str)>,
    /// The same, as datagrams.
    pub(crate) sent: Vec<(Side, Vec<u8>)>,
    /// Messages that changed nothing where they arrived.
    pub(crate) refused: u32,
    flying: Vec<Flying>,
    order: u64,
}

pub(crate) fn ipv4(last: u8) -> Gid {
    Ipv4Addr::new(10, 77, 0, last).into()
}

pub(crate) const fn qp(qpn: u32, psn: u32) -> LocalQp {
    LocalQp { qpn: Qpn::new(qpn), psn: Psn::new(psn), srq: false }
}

/// An acceptance by queue pair 0x22.
pub(crate) const fn accept(private_data: &[u8]) -> Accept<'_> {
    Accept { qp: qp(0x22, 0x222), param: ConnParam::DEFAULT, private_data }
}

impl Pair {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, |_| {}, |_| {})
    }

    pub(crate) fn with(
        seed: u64,
        client: impl FnOnce(&mut CmConfig),
        server: impl FnOnce(&mut CmConfig),
    ) -> Self {
        let mut rng = Rng::new(seed);
        let mut configs = [3, 2].map(|guid| CmConfig::new(guid, rng.bits()));
        client(&mut configs[0]);
        server(&mut configs[1]);
        Self {
            client: Cm::new(configs[0]),
            server: Cm::new(configs[1]),
            now: Instant(0),
            gids: [ipv4(3), ipv4(2)],
            faults: Faults::default(),
            passes: Box::new(|_, _| true),
            rng,
            log: Vec::new(),
            sent: Vec::new(),
            refused: 0,
            flying: Vec::new(),
            order: 0,
        }
    }

    pub(crate) fn cm(&mut self, side: Side) -> &mut Cm {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Over which messages of a side arrive.
    pub(crate) fn flow(&self, from: Side) -> Flow {
        let (src, dst) = match from {
            Side::Client => (self.gids[0], self.gids[1]),
            Side::Server => (self.gids[1], self.gids[0]),
        };
        Flow { src, dst, src_port: 55410, traffic_class: 0, hop_limit: 64 }
    }

    pub(crate) fn listen(&mut self) {
        self.listen_for(SERVICE);
    }

    pub(crate) fn listen_for(&mut self, service: ServiceId) {
        self.server.listen(Listen { service, address: None, backlog: 16 }).unwrap();
    }

    /// The usual request, from queue pair 0x11.
    pub(crate) fn request<'a>(&self, private_data: &'a [u8]) -> Connect<'a> {
        Connect {
            service: SERVICE,
            source_port: SOURCE_PORT,
            route: Route::between(self.gids[0], self.gids[1]),
            mtu: None,
            transport: Transport::Rc,
            qp: qp(0x11, 0x111),
            param: ConnParam::DEFAULT,
            private_data,
        }
    }

    pub(crate) fn connect(&mut self) -> ConnId {
        let request = self.request(&[]);
        self.client.connect(self.now, &request).unwrap()
    }

    /// Takes out what both sides want sent, and lets the network have its way with it.
    fn gather(&mut self) {
        for side in [Side::Client, Side::Server] {
            while let Some(transmit) = self.cm(side).poll_transmit() {
                let flow = self.flow(side);
                assert_eq!(
                    (transmit.route.source, transmit.route.destination),
                    (flow.src, flow.dst)
                );
                let (_, message) = Message::parse(&transmit.mad).expect("what we send is sound");
                self.log.push((self.now.since(Instant(0)), side, message.name()));
                self.sent.push((side, transmit.mad.to_vec()));
                if !(self.passes)(side, &message) {
                    continue;
                }
                self.fly(side.other(), &transmit.mad);
                if self.rng.chance(self.faults.duplication) {
                    self.fly(side.other(), &transmit.mad);
                }
            }
        }
    }

    fn fly(&mut self, to: Side, mad: &[u8]) {
        if self.rng.chance(self.faults.loss) {
            return;
        }
        let delay = Duration::from_micros(10)
            + Duration::from_nanos(self.rng.below(self.faults.delay.as_nanos() as u64 + 1));
        self.order += 1;
        let (at, order) = (self.now.after(delay), self.order);
        self.flying.push(Flying { at, order, to, mad: mad.to_vec() });
    }

    /// Goes on to the next thing that happens, if it is not later than `until`. False: nothing is.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        self.gather();
        let arrival = self.flying.iter().map(|flying| flying.at).min();
        let timers = [self.client.poll_timeout(), self.server.poll_timeout()];
        let next = timers.into_iter().flatten().chain(arrival).min();
        let Some(next) = next.filter(|next| *next <= until) else { return false };
        self.now = self.now.max(next);
        for side in [Side::Client, Side::Server] {
            let now = self.now;
            self.cm(side).handle_timeout(now);
        }
        self.flying.sort_by_key(|flying| (flying.at, flying.order));
        while self.flying.first().is_some_and(|flying| flying.at <= self.now) {
            let Flying { to, mad, .. } = self.flying.remove(0);
            let (flow, now) = (self.flow(to.other()), self.now);
            // Duplicates are refused, which is no concern of the network.
            self.refused += u32::from(self.cm(to).handle_mad(now, &flow, &mad).is_err());
        }
        self.gather();
        true
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.step(until) {}
        self.now = until;
    }

    /// Until nothing happens without a deadline that is far away.
    pub(crate) fn settle(&mut self) {
        self.run(Duration::from_millis(20));
    }

    pub(crate) fn event(&mut self, side: Side) -> CmEvent {
        self.cm(side).poll_event().expect("an event")
    }

    pub(crate) fn no_event(&mut self, side: Side) {
        assert_eq!(self.cm(side).poll_event(), None, "{side:?}");
    }

    /// The server's request.
    pub(crate) fn requested(&mut self) -> (ConnId, ConnectRequest) {
        match self.event(Side::Server) {
            CmEvent::ConnectRequest(id, request) => (id, request),
            other => panic!("{other:?}"),
        }
    }

    /// Connects both sides: the client's name for it, and the server's.
    pub(crate) fn established(&mut self) -> [ConnId; 2] {
        let client = self.connect();
        self.settle();
        let (server, _) = self.requested();
        self.server.accept(self.now, server, &accept(&[])).unwrap();
        self.settle();
        assert!(matches!(self.event(Side::Client), CmEvent::Reply(id, ..) if id == client));
        self.client.establish(client, &[]).unwrap();
        self.settle();
        assert!(
            matches!(self.event(Side::Server), CmEvent::Established(id, Some(_)) if id == server)
        );
        self.assert_states(client, server, CmState::Established);
        [client, server]
    }

    pub(crate) fn assert_states(&self, client: ConnId, server: ConnId, state: CmState) {
        assert_eq!(self.client.state(client), Some(state));
        assert_eq!(self.server.state(server), Some(state));
    }

    /// Destroys both sides and lets them get over timewait: nothing is left.
    pub(crate) fn assert_nothing_left(&mut self, client: ConnId, server: ConnId) {
        for (side, id) in [(Side::Client, client), (Side::Server, server)] {
            let now = self.now;
            let cm = self.cm(side);
            if cm.state(id).is_some() {
                cm.destroy(now, id).unwrap();
            }
        }
        self.run(Duration::from_secs(600));
        assert_eq!((self.client.connections(), self.server.connections()), (0, 0));
        assert_eq!((self.client.poll_timeout(), self.server.poll_timeout()), (None, None));
        self.no_event(Side::Client);
        self.no_event(Side::Server);
    }

    /// Names of the messages that were sent, by the letter of the sender.
    pub(crate) fn told(&self) -> Vec<String> {
        let letter = |side: &Side| if *side == Side::Client { 'c' } else { 's' };
        self.log.iter().map(|(_, side, name)| format!("{} {name}", letter(side))).collect()
    }
}
