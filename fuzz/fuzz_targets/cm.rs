//! Any bytes are read as a message of connection management or refused; what was read is written as the
//! same. And a manager with a connection in any state takes whatever its peer and strangers say: it
//! keeps its limits, and gets rid of all of it.
#![no_main]

use std::net::Ipv4Addr;

use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use pmd_roce::cm::limits::{MAD_LEN, OUTBOX};
use pmd_roce::cm::{
    Accept, Cm, CmConfig, CmEvent, ConnParam, Connect, Listen, LocalQp, Lookup, LookupAnswer,
    Message, PortSpace, RejectReason, Route, ServiceId,
};
use pmd_roce::ids::{Gid, Instant, Psn, Qpn};
use pmd_roce::qp::state::Transport;
use pmd_roce::sink::Flow;

const TCP: ServiceId = ServiceId::new(PortSpace::Tcp, 1);
const UDP: ServiceId = ServiceId::new(PortSpace::Udp, 1);
const PLACES: usize = 4;

#[derive(Arbitrary, Debug)]
enum Operation {
    Connect,
    Lookup,
    Accept,
    Reject,
    Establish,
    Disconnect,
    Destroy,
    AnswerLookup,
    CommunicationEstablished,
    Pass {
        milliseconds: u16,
    },
    /// What was sent comes back to the other manager, with some bytes changed.
    Deliver {
        stranger: bool,
        attribute: Option<u8>,
        changes: [(u8, u8); 3],
        keep: bool,
    },
    Raw {
        bytes: Vec<u8>,
    },
}

fn gid(last: u8) -> Gid {
    Ipv4Addr::new(10, 0, 0, last).into()
}

const QP: LocalQp = LocalQp { qpn: Qpn::new(0x11), psn: Psn::new(7), srq: false };

struct World {
    cms: [Cm; 2],
    now: Instant,
    wire: Vec<(usize, [u8; MAD_LEN])>,
    events: Vec<(usize, CmEvent)>,
}

impl World {
    fn turn(&mut self) {
        for (side, cm) in self.cms.iter_mut().enumerate() {
            cm.handle_timeout(self.now);
            while let Some(transmit) = cm.poll_transmit() {
                assert!(Message::parse(&transmit.mad).is_ok());
                self.wire.push((side, transmit.mad));
            }
            self.events.extend(core::iter::from_fn(|| cm.poll_event()).map(|event| (side, event)));
            assert!(cm.connections() <= PLACES && cm.lookups() <= 2 * PLACES);
        }
        assert!(self.wire.len() <= OUTBOX * 8);
    }

    fn deliver(&mut self, side: usize, src: Gid, mad: &[u8]) {
        let dst = gid(2 - u8::from(side == 0));
        let flow = Flow { src, dst, src_port: 55410, traffic_class: 0, hop_limit: 64 };
        self.cms[1 - side].handle_mad(self.now, &flow, mad).ok();
    }

    fn run(&mut self, operation: Operation) {
        let (now, route) = (self.now, Route::between(gid(1), gid(2)));
        let last =
            self.events.last().map(|(side, event)| (*side, event.connection(), event.lookup()));
        match operation {
            Operation::Connect => {
                let connect = Connect {
                    service: TCP,
                    source_port: 5,
                    route,
                    mtu: None,
                    transport: Transport::Rc,
                    qp: QP,
                    param: ConnParam::DEFAULT,
                    private_data: &[1],
                };
                self.cms[0].connect(now, &connect).ok();
            }
            Operation::Lookup => {
                let lookup = Lookup { service: UDP, source_port: 5, route, private_data: &[] };
                self.cms[0].lookup(now, &lookup).ok();
            }
            Operation::Pass { milliseconds } => self.now.0 += u64::from(milliseconds) * 1_000_000,
            Operation::Deliver { stranger, attribute, changes, keep } => {
                let Some((side, mut mad)) = self.wire.last().copied() else { return };
                if !keep {
                    self.wire.pop();
                }
                mad[17] = attribute.unwrap_or(mad[17]);
                for (at, change) in changes {
                    mad[usize::from(at)] ^= change;
                }
                let src = if stranger { gid(9) } else { gid(1 + u8::from(side == 1)) };
                self.deliver(side, src, &mad);
            }
            Operation::Raw { bytes } => self.deliver(0, gid(1), &bytes),
            other => self.answer(now, other, last),
        }
    }

    fn answer(
        &mut self,
        now: Instant,
        operation: Operation,
        last: Option<(usize, Option<pmd_roce::cm::ConnId>, Option<pmd_roce::cm::LookupId>)>,
    ) {
        let Some((side, connection, lookup)) = last else { return };
        let cm = &mut self.cms[side];
        if let (Operation::AnswerLookup, Some(id)) = (&operation, lookup) {
            let found = LookupAnswer::Found { qpn: Qpn::new(1), qkey: 2, private_data: &[] };
            cm.answer_lookup(now, id, &found).ok();
        }
        let Some(id) = connection else { return };
        let accept = Accept { qp: QP, param: ConnParam::DEFAULT, private_data: &[] };
        let answered = match operation {
            Operation::Accept => cm.accept(now, id, &accept),
            Operation::Reject => cm.reject(id, RejectReason::CONSUMER, &[]),
            Operation::Establish => cm.establish(id, &[]),
            Operation::Disconnect => cm.disconnect(now, id, &[]),
            Operation::CommunicationEstablished => cm.communication_established(id),
            _ => cm.destroy(now, id),
        };
        // What comes too late is refused by name.
        if let Err(error) = answered {
            assert!(!error.to_string().is_empty());
        }
    }

    /// Consumers leave, and nobody answers any more.
    fn end(mut self) {
        self.turn();
        for (side, event) in &self.events {
            let cm = &mut self.cms[*side];
            if let Some(id) = event.connection().filter(|id| cm.state(*id).is_some()) {
                cm.destroy(self.now, id).expect("it is there");
            }
            if let Some(id) = event.lookup() {
                cm.destroy_lookup(id).ok();
            }
        }
        for cm in &mut self.cms {
            let mut turns = 0;
            while let Some(next) = cm.poll_timeout() {
                cm.handle_timeout(next);
                while cm.poll_transmit().is_some() {}
                while let Some(event) = cm.poll_event() {
                    if let Some(id) = event.connection() {
                        cm.destroy(next, id).expect("it was told of");
                    }
                }
                turns += 1;
                assert!(turns < 1000, "every wait has an end");
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok((tid, message)) = Message::parse(bytes) {
        assert_eq!(Message::parse(&message.emit(tid)), Ok((tid, message)));
    }
    let mut unstructured = Unstructured::new(bytes);
    let config = |guid, seed| CmConfig {
        connections: PLACES,
        lookups: PLACES,
        max_retries: 3,
        ..CmConfig::new(guid, seed)
    };
    let cms = [Cm::new(config(1, 0x1234_5678)), Cm::new(config(2, 0x8765_4321))];
    let mut world = World { cms, now: Instant(0), wire: Vec::new(), events: Vec::new() };
    for service in [TCP, UDP] {
        let listen = Listen { service, address: None, backlog: 2 };
        world.cms[1].listen(listen).expect("nobody listens yet");
    }
    for _ in 0..64 {
        let Ok(operation) = Operation::arbitrary(&mut unstructured) else { break };
        world.run(operation);
        world.turn();
        if unstructured.is_empty() {
            break;
        }
    }
    world.end();
});
