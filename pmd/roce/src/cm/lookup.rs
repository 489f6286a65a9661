//! Looking up the queue pair of a datagram service: SIDR REQ, SIDR REP.

use core::time::Duration;
use std::collections::BTreeMap;

use super::Cm;
use super::active::{behind_header, ip_header, labelled};
use super::config::{CmConfig, Lookup, LookupAnswer, Route};
use super::context::{CmDrop, Context};
use super::error::{AnswerError, ConnectError};
use super::event::{CmEvent, Found, LookupRequest};
use super::limits::{LOOKUP_MEMORY, LOOKUP_PRIVATE_DATA, LOOKUP_REPLY_PRIVATE_DATA};
use super::listener::ListenerId;
use super::mad::Mad;
use super::message::{Message, SidrRep, SidrReq, SidrStatus};
use super::numbers::Numbers;
use super::passive::sender;
use super::private_data::PrivateData;
use super::service::ServiceId;
use super::span;
use crate::ids::{Gid, Instant, Qpn};
use crate::sink::Flow;
use crate::slots::Slots;
use crate::timer::Timers;
use crate::wire::Pkey;

/// A lookup of a [`Cm`], of the side that asks or the one that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LookupId(pub(super) Side, pub(super) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Side {
    Asking,
    Asked,
}

/// A question of this side.
#[derive(Debug)]
struct Asking {
    id: u32,
    route: Route,
    mad: Mad,
    retries_left: u8,
}

/// A question of somebody else.
#[derive(Debug)]
struct Asked {
    id: u32,
    route: Route,
    tid: u64,
    request_id: u32,
    service: ServiceId,
    listener: Option<ListenerId>,
    /// Kept for a while, since it may get lost.
    answer: Option<Mad>,
}

/// The lookups of a manager. Each side has a table of its own, so that strangers who ask cannot keep
/// this side from asking.
#[derive(Debug)]
pub(super) struct Lookups {
    asking: Slots<Asking>,
    asked: Slots<Asked>,
    numbers: [Numbers; 2],
    timers: [Timers; 2],
    /// Questions by who asks, and what they call it.
    by_question: BTreeMap<(Gid, u32), u32>,
    interval: Duration,
}

impl Lookups {
    pub(super) fn new(config: &CmConfig) -> Self {
        let places = config.lookups.min(super::limits::MAX_CONNECTIONS);
        Self {
            asking: Slots::new(places),
            asked: Slots::new(places),
            numbers: [0, 1].map(|side| Numbers::new(places, config.seed.rotate_left(11 + side))),
            timers: [(), ()].map(|()| Timers::new(places)),
            by_question: BTreeMap::new(),
            interval: span::of_code(config.response_timeout),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.asking.iter().count() + self.asked.iter().count()
    }

    pub(super) fn next_timeout(&mut self) -> Option<Instant> {
        self.timers.iter_mut().filter_map(Timers::next).min()
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) {
        while let Some(slot) = self.timers[Side::Asking as usize].due(now) {
            let Some(asking) = self.asking.get_mut(slot) else { continue };
            if asking.retries_left > 0 {
                asking.retries_left -= 1;
                cx.counters.resent += 1;
                cx.send_mad(asking.route, asking.mad);
                self.timers[Side::Asking as usize].set(slot, now.after(self.interval));
            } else {
                let id = LookupId(Side::Asking, asking.id);
                cx.events.push_back(CmEvent::LookupUnreachable(id));
                self.forget_asking(slot);
            }
        }
        while let Some(slot) = self.timers[Side::Asked as usize].due(now) {
            self.forget_asked(cx, slot);
        }
    }

    /// Takes a question.
    pub(super) fn handle_request(
        &mut self,
        cx: &mut Context,
        from: &Flow,
        tid: u64,
        req: &SidrReq,
    ) -> Result<(), CmDrop> {
        if let Some(slot) = self.by_question.get(&(from.src, req.request_id)) {
            if let Some(Asked { route, answer: Some(answer), .. }) = self.asked.get(*slot) {
                cx.send_mad(*route, *answer);
            }
            return Err(CmDrop::OutOfState);
        }
        let route = Route::back(from);
        let unknown = SidrRep {
            request_id: req.request_id,
            status: SidrStatus::UNSUPPORTED,
            qpn: Qpn::new(0),
            service: req.service,
            qkey: 0,
            private_data: PrivateData::EMPTY,
        };
        let Some(listener) = cx.listeners.find(req.service, from.dst) else {
            cx.send(route, tid, unknown);
            return Err(CmDrop::Refused);
        };
        let is_member = Pkey::DEFAULT.matches(req.pkey);
        let sender = sender(req.service, &req.private_data, from).filter(|_| is_member);
        let Some((peer, private_data)) = sender else {
            cx.send(route, tid, SidrRep { status: SidrStatus::REJECT, ..unknown });
            return Err(CmDrop::Refused);
        };
        let slot = self.asked.vacant().filter(|_| cx.listeners.enter(listener));
        let Some(slot) = slot else {
            // It asks again; by then there may be room.
            return Err(CmDrop::Refused);
        };
        let id = self.numbers[Side::Asked as usize].number(slot);
        self.by_question.insert((from.src, req.request_id), slot);
        let SidrReq { request_id, service, .. } = *req;
        let listening = Some(listener);
        let asked =
            Asked { id, route, tid, request_id, service, listener: listening, answer: None };
        self.asked.insert(asked);
        let request = LookupRequest { listener, service, peer, route, private_data };
        cx.events.push_back(CmEvent::LookupRequest(LookupId(Side::Asked, id), request));
        Ok(())
    }

    /// Takes an answer.
    pub(super) fn handle_reply(
        &mut self,
        cx: &mut Context,
        from: &Flow,
        rep: &SidrRep,
    ) -> Result<(), CmDrop> {
        let slot = self.numbers[Side::Asking as usize].slot(rep.request_id);
        let asking = self.asking.get(slot).filter(|asking| asking.id == rep.request_id);
        let Asking { id, route, .. } = *asking.ok_or(CmDrop::UnknownId)?;
        if route.destination != from.src || route.source != from.dst {
            return Err(CmDrop::WrongPeer);
        }
        let SidrRep { status, qpn, qkey, private_data, .. } = *rep;
        let reply = match status {
            SidrStatus::SUCCESS => Ok(Found { qpn, qkey, private_data }),
            status => Err(status),
        };
        cx.events.push_back(CmEvent::LookupReply(LookupId(Side::Asking, id), reply));
        self.forget_asking(slot);
        Ok(())
    }

    fn forget_asking(&mut self, slot: u32) {
        if self.asking.remove(slot).is_some() {
            self.timers[Side::Asking as usize].clear(slot);
            self.numbers[Side::Asking as usize].retire(slot);
        }
    }

    fn forget_asked(&mut self, cx: &mut Context, slot: u32) {
        if let Some(asked) = self.asked.remove(slot) {
            self.by_question.remove(&(asked.route.destination, asked.request_id));
            self.timers[Side::Asked as usize].clear(slot);
            self.numbers[Side::Asked as usize].retire(slot);
            if let Some(listener) = asked.listener {
                cx.listeners.leave(listener);
            }
        }
    }

    /// The question that a consumer names, with its slot.
    fn asked_mut(&mut self, number: u32) -> Option<(u32, &mut Asked)> {
        let slot = self.numbers[Side::Asked as usize].slot(number);
        let asked = self.asked.get_mut(slot).filter(|asked| asked.id == number)?;
        Some((slot, asked))
    }
}

impl Cm {
    /// Asks for the queue pair of a datagram service. [`CmEvent::LookupReply`] or
    /// [`CmEvent::LookupUnreachable`] follows, with which the lookup is over.
    ///
    /// # Errors
    /// [`ConnectError`]; nothing was sent.
    pub fn lookup(&mut self, now: Instant, lookup: &Lookup<'_>) -> Result<LookupId, ConnectError> {
        let Lookup { service, source_port, route, private_data } = *lookup;
        if let Some(fault) = route.fault() {
            return Err(ConnectError::Route(fault));
        }
        let header = ip_header(service, source_port, &route);
        let private_data = behind_header(header, private_data, SidrReq::PRIVATE_DATA, "SIDR REQ")?;
        let Lookups { asking, numbers, timers, interval, .. } = &mut self.lookups;
        let slot = asking.vacant().ok_or_else(|| ConnectError::TooMany(asking.capacity()))?;
        let id = numbers[Side::Asking as usize].number(slot);
        let req = SidrReq { request_id: id, pkey: Pkey::DEFAULT, service, private_data };
        let mad = Message::from(req).emit(super::Connection::own_tid(super::ConnId(id)));
        let route = labelled(route, service, source_port);
        let retries_left = self.context.config.max_retries;
        asking.insert(Asking { id, route, mad, retries_left });
        timers[Side::Asking as usize].set(slot, now.after(*interval));
        self.context.send_mad(route, mad);
        Ok(LookupId(Side::Asking, id))
    }

    /// Answers a question. The answer is remembered for a while, since it may get lost.
    ///
    /// # Errors
    /// [`AnswerError`]; nothing was sent.
    pub fn answer_lookup(
        &mut self,
        now: Instant,
        lookup: LookupId,
        answer: &LookupAnswer<'_>,
    ) -> Result<(), AnswerError> {
        let (status, qpn, qkey, private_data) = match *answer {
            LookupAnswer::Found { qpn, qkey, private_data } => {
                (SidrStatus::SUCCESS, qpn, qkey, private_data)
            }
            LookupAnswer::Refused { status, private_data } => {
                (status, Qpn::new(0), 0, private_data)
            }
        };
        let private_data = PrivateData::new(private_data, LOOKUP_REPLY_PRIVATE_DATA, "SIDR REP")?;
        let LookupId(Side::Asked, number) = lookup else {
            return Err(AnswerError::NoSuchConnection);
        };
        let found = self.lookups.asked_mut(number).filter(|(_, asked)| asked.answer.is_none());
        let (slot, asked) = found.ok_or(AnswerError::NoSuchConnection)?;
        let Asked { request_id, service, route, tid, .. } = *asked;
        let rep = SidrRep { request_id, status, qpn, service, qkey, private_data };
        let mad = Message::from(rep).emit(tid);
        asked.answer = Some(mad);
        if let Some(listener) = asked.listener.take() {
            self.context.listeners.leave(listener);
        }
        self.context.send_mad(route, mad);
        self.lookups.timers[Side::Asked as usize].set(slot, now.after(LOOKUP_MEMORY));
        Ok(())
    }

    /// Forgets a lookup of either side, without a word.
    ///
    /// # Errors
    /// [`AnswerError::NoSuchConnection`]: it is over.
    pub fn destroy_lookup(&mut self, lookup: LookupId) -> Result<(), AnswerError> {
        let LookupId(side, number) = lookup;
        let slot = self.lookups.numbers[side as usize].slot(number);
        match side {
            Side::Asking => {
                let is_there = self.lookups.asking.get(slot).is_some_and(|a| a.id == number);
                is_there.then(|| self.lookups.forget_asking(slot))
            }
            Side::Asked => {
                let is_there = self.lookups.asked_mut(number).is_some();
                is_there.then(|| self.lookups.forget_asked(&mut self.context, slot))
            }
        }
        .ok_or(AnswerError::NoSuchConnection)?;
        let of_lookup = |event: &CmEvent| event.lookup() == Some(lookup);
        self.context.events.retain(|event| !of_lookup(event));
        Ok(())
    }
}

const _: () = assert!(SidrReq::PRIVATE_DATA - super::IpHeader::LEN == LOOKUP_PRIVATE_DATA);
