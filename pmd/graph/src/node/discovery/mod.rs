//! `discovery`: announces itself to a group, and finds out who else is there.

mod neighbours;
mod port;

use std::time::{Duration, SystemTime};

use pmd_observe::{Code, Owner};
use pmd_verbs::Ah;

use super::{Node, NodeContext, Record, Turn};
use crate::discovery::{Announcement, LONGEST, NoAnnouncement, WHO_BYTES, Who};
use crate::failure::Failure;
use crate::limits::DISCOVERY_LINGER;
use neighbours::{Heard, Name, Neighbours, nanoseconds};
use port::{Datagram, Port};

pub(crate) use port::RECEIVE_BYTES;

pub(crate) struct Discovery {
    port: Port,
    finder: Finder,
    /// When it announces itself next.
    next: u64,
    /// When it looks no longer; `None` before its first turn.
    deadline: Option<u64>,
    /// When it leaves, having found everybody: until then it answers others that are not so far.
    leave: Option<u64>,
    stopping: bool,
}

/// What a node knows and wants to know.
struct Finder {
    node: String,
    name: Name,
    me: Who,
    announces: bool,
    interval: u64,
    ttl: Duration,
    timeout: Duration,
    expect: usize,
    /// Names that must be found.
    names: Vec<String>,
    began: u64,
    neighbours: Neighbours<Ah>,
    tally: Tally,
}

/// Datagrams by what they were.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    announcements: u64,
    answers: u64,
    repeated: u64,
    stale: u64,
    /// Its own, which a group sends back.
    own: u64,
    /// Of another node that has the same name.
    namesakes: u64,
    foreign: u64,
    malformed: u64,
    no_room: u64,
    expired: u64,
}

impl Discovery {
    pub(crate) fn build(cx: &NodeContext<'_>) -> Result<Box<dyn Node>, Failure> {
        let settings = cx.settings();
        let verbs = cx.verbs()?;
        let group = settings.address_opt("group");
        let group = group.unwrap_or_else(|| group_for(verbs.device().gid().is_ipv4()));
        let port = Port::open(&verbs, cx.extent("messages"), group)?;
        // Later starts have greater generations, on whichever host: whole clocks are far enough apart for that.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let generation = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let width = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let finder = Finder {
            node: cx.name().to_owned(),
            name: Name::new(settings.text_opt("announce_as").unwrap_or_else(|| cx.name())),
            me: Who { gid: port.gid(), qpn: port.qpn(), generation },
            announces: settings.flag("announce"),
            interval: nanoseconds(settings.time("interval")),
            ttl: settings.time("ttl"),
            timeout: settings.time("timeout"),
            expect: width(settings.count_opt("expect").unwrap_or(0)),
            names: names(settings.text_opt("names").unwrap_or_default())
                .map(str::to_owned)
                .collect(),
            began: 0,
            neighbours: Neighbours::new(width(settings.count("neighbours"))),
            tally: Tally::default(),
        };
        let (next, deadline, leave) = (0, None, None);
        Ok(Box::new(Self { port, finder, next, deadline, leave, stopping: false }))
    }
}

impl Node for Discovery {
    fn run(&mut self, now: u64, record: &mut Record) -> Result<Turn, Failure> {
        let Self { port, finder, .. } = self;
        let deadline = *self.deadline.get_or_insert_with(|| {
            finder.began = now;
            record.begin(now);
            record.path("packet");
            now.saturating_add(nanoseconds(finder.timeout))
        });
        let mut work = port.poll(|port, datagram| finder.hear(now, port, datagram, record))?;
        let expired = finder.neighbours.expire(now);
        finder.tally.expired += expired as u64;
        if self.stopping {
            finder.tell();
            let unfinished = finder.seeks() && self.leave.is_none();
            return if unfinished { Err(finder.missing("told to end")) } else { Ok(Turn::Done) };
        }
        if finder.announces && now >= self.next {
            finder.announce(port);
            self.next = now.saturating_add(finder.interval);
            work += 1;
        }
        match self.leave {
            None if finder.seeks() && finder.has_found_all() => {
                let linger = finder.interval.saturating_mul(DISCOVERY_LINGER);
                self.leave = Some(now.saturating_add(linger));
            }
            None if finder.seeks() && now >= deadline => {
                finder.tell();
                record.error();
                return Err(finder.missing(&format!("looking for {:?}", finder.timeout)));
            }
            Some(leave) if now >= leave => {
                finder.tell();
                return Ok(Turn::Done);
            }
            Some(_) | None => {}
        }
        Ok(Turn::Worked(work + expired))
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    fn next_timeout(&self) -> Option<u64> {
        let announce = self.finder.announces.then_some(self.next);
        let deadline = self.deadline.filter(|_| self.finder.seeks());
        let end = self.leave.or(deadline);
        [announce, end, self.finder.neighbours.next_expiry()].into_iter().flatten().min()
    }
}

impl Finder {
    /// Whether it ends once it has found whom it looks for.
    fn seeks(&self) -> bool {
        self.expect > 0 || !self.names.is_empty()
    }

    /// Whether a neighbour counts as found: it was heard, and where this node announces itself, it has said so.
    fn counts(&self, confirmed: bool) -> bool {
        confirmed || !self.announces
    }

    fn found(&self) -> usize {
        self.neighbours.iter().filter(|known| self.counts(known.confirmed)).count()
    }

    fn has_found(&self, name: &str) -> bool {
        self.neighbours.find(name).is_some_and(|known| self.counts(known.confirmed))
    }

    fn has_found_all(&self) -> bool {
        self.found() >= self.expect && self.names.iter().all(|name| self.has_found(name))
    }

    fn announcement(&self, answers: Option<Who>) -> Announcement<'_> {
        let unheard = self.neighbours.iter().any(|known| !known.confirmed);
        let looking = self.announces && (unheard || !self.has_found_all());
        Announcement { who: self.me, name: self.name.as_str(), ttl: self.ttl, looking, answers }
    }

    fn announce(&self, port: &Port) {
        let mut bytes = [0; LONGEST];
        let len = self.announcement(None).encode(&mut bytes);
        // A full queue holds announcements that have not left: one more would not be heard sooner.
        port.send_to_group(&bytes[..len]);
    }

    /// A datagram has come.
    fn hear(&mut self, now: u64, port: &Port, datagram: Datagram<'_>, record: &mut Record) {
        let announcement = match Announcement::decode(datagram.bytes) {
            Ok(announcement) => announcement,
            Err(error) => {
                match error {
                    NoAnnouncement::Foreign => self.tally.foreign += 1,
                    NoAnnouncement::Version(_) | NoAnnouncement::Damaged(_) => {
                        self.tally.malformed += 1;
                    }
                }
                return record.error();
            }
        };
        let who = announcement.who;
        if (datagram.from, datagram.qpn) != (Some(who.gid), who.qpn) {
            // Whoever sent it speaks for somebody else.
            self.tally.foreign += 1;
            return record.error();
        }
        if (who.gid, who.qpn) == (self.me.gid, self.me.qpn) {
            self.tally.own += 1;
            return;
        }
        if announcement.name == self.name.as_str() {
            self.tally.namesakes += 1;
            return record.error();
        }
        record.message(now, datagram.bytes.len() as u64);
        let heard = self.neighbours.hear(now, &announcement, || port.reach(who.gid));
        match heard {
            Heard::New => {}
            Heard::Again => self.tally.repeated += 1,
            Heard::Stale => self.tally.stale += 1,
            Heard::Full | Heard::Unreachable => self.tally.no_room += 1,
        }
        match announcement.answers {
            Some(answered) => {
                self.tally.answers += 1;
                if answered == self.me && self.neighbours.confirm(&who) {
                    record.verified(WHO_BYTES as u64);
                    record.latency(now.saturating_sub(self.began));
                }
            }
            None => self.tally.announcements += 1,
        }
        let asked = announcement.answers.is_none() && announcement.looking;
        let known = heard == Heard::New || heard == Heard::Again;
        if known && (asked || heard == Heard::New) {
            self.answer(port, announcement.name, who);
        }
    }

    /// Tells a neighbour that it was heard.
    fn answer(&self, port: &Port, name: &str, who: Who) {
        let Some(known) = self.neighbours.find(name) else { return };
        let mut bytes = [0; LONGEST];
        let len = self.announcement(Some(who)).encode(&mut bytes);
        // With a full queue, it is answered when it asks again.
        port.send(&bytes[..len], &known.handle, who.qpn);
    }

    /// Says what it has found.
    fn tell(&self) {
        let (node, found) = (&self.node, self.list());
        tracing::info!("`{node}` found {found}: {}", self.tally);
    }

    /// Whom it has found, in words.
    fn list(&self) -> String {
        let found: Vec<String> = self
            .neighbours
            .iter()
            .filter(|known| self.counts(known.confirmed))
            .map(|known| format!("`{}` at {}", known.name.as_str(), known.who.gid.ip()))
            .collect();
        if found.is_empty() { "nobody".to_owned() } else { found.join(", ") }
    }

    /// It ends without having found everybody.
    fn missing(&self, how: &str) -> Failure {
        let (node, found, tally) = (&self.node, self.found(), self.tally);
        let missing: Vec<String> = self
            .names
            .iter()
            .filter(|name| !self.has_found(name))
            .map(|name| format!("`{name}`"))
            .collect();
        let (wanted, are) = (self.expect.max(self.names.len()), missing.join(", "));
        let summary = match missing.len() {
            0 => format!("`{node}` found {found} of {wanted} others, {how}"),
            1 => format!("`{node}` found {found} of {wanted} others, {how}: {are} is missing"),
            _ => format!("`{node}` found {found} of {wanted} others, {how}: {are} are missing"),
        };
        let mut failure = Failure::new(Code::PeerNotReady, Owner::Remote, summary)
            .because(format!("found {}", self.list()))
            .because(tally.to_string());
        let unconfirmed = self.neighbours.iter().filter(|known| !self.counts(known.confirmed));
        for known in unconfirmed {
            failure =
                failure.because(format!("heard `{}`, and was not answered", known.name.as_str()));
        }
        if tally.namesakes > 0 {
            let name = self.name.as_str();
            failure = failure
                .because(format!("another node announces itself as `{name}`: set announce_as"));
        }
        if self.announces && tally.own == 0 {
            failure = failure.because(format!(
                "its own announcements did not come back: no interface carries multicast from {}",
                self.me.gid.ip()
            ));
        }
        failure.turn(format!("node.{node}.timeout"))
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { announcements, answers, repeated, stale, foreign, malformed, .. } = self;
        write!(
            f,
            "{announcements} announcements and {answers} answers heard, {repeated} of them repetitions, {stale} stale; {foreign} foreign and {malformed} malformed datagrams, {} beyond the table; {} neighbours expired",
            self.no_room, self.expired
        )
    }
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery").field("node", &self.finder.node).finish_non_exhaustive()
    }
}

/// The names of a list.
pub(crate) fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The group where none was given: of the organisation for IPv4 (RFC 2365), of the site for IPv6 (RFC 4291).
fn group_for(ipv4: bool) -> std::net::IpAddr {
    if ipv4 {
        std::net::Ipv4Addr::new(239, 192, 83, 68).into()
    } else {
        std::net::Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x5350, 0x4441).into()
    }
}
