//! One lcore's queue pairs, from creation to RTS.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;

use pmd_observe::Snapshot;
use pmd_observe::why::{End, Receives};
use pmd_verbs::cm::{Negotiated, UDP_QKEY};
use pmd_verbs::connect::{Hello, PathWish, Role};
use pmd_verbs::roce::engine::QpView;
use pmd_verbs::roce::ids::{LinkId, PathMtu, Psn, Qpn, Rkey, Srqn, WrId, XrcdId};
use pmd_verbs::roce::limits::{MAX_INLINE, MAX_SRQ_WR};
use pmd_verbs::roce::qp::attr::{AddressVector, QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{QpState, Transport as Kind, masks};
use pmd_verbs::{
    Access, CompletionChannel, Context, Cq, Pd, Qp, QpOptions, RecvWr, RemoteAddr, Service, Sge,
    Srq, SrqOptions, XrcTgt,
};

use super::args::Connect;
use super::buffers::{Memory, MemoryError};
use super::cm::{Managed, number};
use super::failure::Failure;
use super::params::Params;
use super::service::Flavour;
use super::test::{Misconnect, Op};

/// The XRC domain of a measurement.
const DOMAIN: XrcdId = XrcdId(1);
/// Q_Key of both ends, where no connection manager hands out its own.
const QKEY: u32 = 0x1111_1111;
/// Requests that a queue pair sends beside the measured ones: news of what arrived.
const NEWS: u32 = 64;

/// The peer's end of a queue pair.
#[derive(Debug)]
pub(super) struct Remote<T: Flavour> {
    pub(super) target: T::Target,
    /// Its first slot, for operations that name memory.
    pub(super) memory: RemoteAddr,
}

/// What goes in a hello beside the queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extra {
    memory: RemoteAddr,
    srqn: Srqn,
    target: Qpn,
    /// Where the server's connection manager listens.
    port: u16,
}

impl Extra {
    fn encode(self) -> Vec<u8> {
        let words = [self.memory.rkey.0, self.srqn.0, self.target.value(), self.port.into()];
        let mut bytes = self.memory.addr.to_be_bytes().to_vec();
        words.iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (addr, words) = bytes.split_first_chunk::<8>()?;
        let (rkey, words) = words.split_first_chunk::<4>()?;
        let (srqn, words) = words.split_first_chunk::<4>()?;
        let (target, words) = words.split_first_chunk::<4>()?;
        let port = u32::from_be_bytes(words.try_into().ok()?);
        Some(Self {
            memory: RemoteAddr {
                addr: u64::from_be_bytes(*addr),
                rkey: Rkey(u32::from_be_bytes(*rkey)),
            },
            srqn: Srqn(u32::from_be_bytes(*srqn)),
            target: Qpn::new(u32::from_be_bytes(*target)),
            port: u16::try_from(port).ok()?,
        })
    }
}

/// One lcore's objects.
#[derive(Debug)]
pub(super) struct Ends<T: Flavour> {
    pub(super) cx: Context,
    pub(super) channel: Option<RefCell<CompletionChannel>>,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    pub(super) qps: Vec<Qp<T>>,
    pub(super) srq: Option<Srq>,
    /// XRC receives on these.
    targets: Vec<Qp<XrcTgt>>,
    pub(super) memory: Memory,
    /// One receive per lane and slot, lanes joined.
    pub(super) receives: Box<[Sge]>,
    /// Which queue pair a completion belongs to, where receives are shared.
    owners: HashMap<Qpn, u32>,
    /// Said to the peer.
    pub(super) hellos: Vec<Hello>,
    /// Once connected.
    pub(super) peers: Vec<Remote<T>>,
    pub(super) path: &'static str,
    pub(super) mtu: PathMtu,
    server: bool,
    /// Where queue pairs find each other by the connection manager.
    managed: Option<Managed>,
    pd: Pd,
}

impl<T: Flavour> Ends<T> {
    /// Queue pairs in INIT, with their receives posted.
    pub(super) fn create(
        cx: Context,
        params: &Params,
        lcore: u32,
        server: bool,
    ) -> Result<Self, Failure> {
        let qps = params.qps_of(lcore);
        let pd = cx.alloc_pd();
        let mut channel =
            params.events.then(|| cx.create_channel()).transpose().map_err(Failure::device)?;
        let is_xrc = T::TRANSPORT == Kind::XrcIni;
        let news = if params.transport.is_reliable() { 0 } else { NEWS };
        let sends = params.tx_depth.max(16) + news;
        let receives = if params.receives(server) { params.rx_depth } else { 0 };
        let pool = (receives * qps).min(MAX_SRQ_WR);
        let recv_depth = if is_xrc { pool } else { receives * qps };
        let mut cq = |depth: u32| {
            let depth = depth.max(1);
            let cq = channel
                .as_mut()
                .map_or_else(|| cx.create_cq(depth), |channel| channel.create_cq(depth));
            cq.map_err(Failure::device)
        };
        let (send_cq, recv_cq) = (cq(sends * qps)?, cq(recv_depth)?);
        let memory = Memory::create(&pd, params, qps, server).map_err(|error| match error {
            MemoryError::Region { .. } => Failure::Unfit(error.to_string()),
            MemoryError::Register(_) => Failure::device(error),
        })?;
        let srq = is_xrc
            .then(|| {
                let xrc = Some((DOMAIN, recv_cq.clone()));
                pd.create_srq(&SrqOptions { max_wr: pool.max(1), max_sge: 1, xrc })
            })
            .transpose()
            .map_err(Failure::device)?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives.max(1),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: if params.inline == 0 { 0 } else { MAX_INLINE.min(params.inline) },
        };
        let signal_all = params.cq_mod == 1;
        let options = QpOptions {
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: None,
            xrcd: None,
            cap,
            signal_all,
        };
        let made = (0..qps).map(|_| pd.create_qp(&options)).collect::<Result<Vec<Qp<T>>, _>>();
        let made = made.map_err(Failure::device)?;
        let targets = QpOptions { xrcd: Some(DOMAIN), ..options.clone() };
        let targets = (0..if is_xrc { qps } else { 0 })
            .map(|_| pd.create_qp(&targets))
            .collect::<Result<Vec<Qp<XrcTgt>>, _>>()
            .map_err(Failure::device)?;
        let numbers = if is_xrc {
            targets.iter().map(Qp::number).collect::<Vec<_>>()
        } else {
            made.iter().map(Qp::number).collect()
        };
        let slots = memory.sink.as_ref().filter(|_| receives > 0).map_or(0, |sink| sink.slots());
        let each = (0..qps).flat_map(|qp| (0..slots).map(move |slot| (qp, slot)));
        let sges = each.filter_map(|(qp, slot)| Some(memory.sink.as_ref()?.receive(qp, slot)));
        let mut ends = Self {
            channel: channel.map(RefCell::new),
            send_cq,
            recv_cq,
            qps: made,
            srq,
            targets,
            receives: sges.collect(),
            memory,
            owners: numbers.into_iter().zip(0..).collect(),
            hellos: Vec::new(),
            peers: Vec::new(),
            path: "none",
            mtu: cx.device().mtu(),
            server,
            managed: None,
            cx,
            pd,
        };
        if params.connect == Connect::Cm {
            let mtu = asked_mtu(params);
            ends.managed = Some(Managed::open(&ends.cx, T::TRANSPORT, mtu, server)?);
        }
        ends.initialise(params)?;
        if !(server && params.no_post_recv) {
            ends.post_receives(if is_xrc { pool } else { receives })?;
        }
        ends.say_hello(params);
        Ok(ends)
    }

    /// Receives have lanes of their own: one per queue pair, or one for all where they are shared.
    pub(super) fn lanes(&self) -> usize {
        if self.srq.is_some() { 1 } else { self.qps.len() }
    }

    /// Posts receives to one lane.
    pub(super) fn post_list(&self, lane: usize, list: &[RecvWr<'_>]) -> Result<(), Failure> {
        match &self.srq {
            Some(srq) => srq.post_recv_list(list)?,
            None => T::post_receives(&self.qps[lane], list)?,
        }
        Ok(())
    }

    /// The queue pair that a received message came to.
    pub(super) fn owner(&self, lane: usize, qpn: Qpn) -> u32 {
        match &self.srq {
            Some(_) => self.owners.get(&qpn).copied().unwrap_or_default(),
            None => u32::try_from(lane).unwrap_or_default(),
        }
    }

    fn post_receives(&self, depth: u32) -> Result<(), Failure> {
        if depth == 0 {
            return Ok(());
        }
        let per_lane = self.receives.len() / self.lanes();
        for lane in 0..self.lanes() {
            let slots = &self.receives[lane * per_lane..][..per_lane];
            for (slot, sge) in slots.iter().enumerate().cycle().take(depth as usize) {
                let wr = RecvWr { wr_id: receive_id(lane, slot), sges: std::slice::from_ref(sge) };
                self.post_list(lane, &[wr])?;
            }
        }
        Ok(())
    }

    fn initialise(&self, params: &Params) -> Result<(), Failure> {
        let access = match params.test.op() {
            _ if self.server && params.misconnect == Some(Misconnect::AccessQp) => Access::empty(),
            Op::Send if params.alternates => Access::REMOTE_WRITE,
            Op::Send => Access::empty(),
            Op::Write => Access::REMOTE_WRITE,
            Op::Read => Access::REMOTE_READ,
            Op::Atomic => Access::REMOTE_ATOMIC,
        };
        let attr = QpAttr { access, qkey: self.qkey(params), ..QpAttr::new(QpState::Init) };
        self.qps.iter().try_for_each(|qp| step(qp, &attr))?;
        self.targets.iter().try_for_each(|qp| step(qp, &attr))
    }

    fn say_hello(&mut self, params: &Params) {
        let exported = match params.test.op() {
            Op::Send if !params.alternates => None,
            Op::Send | Op::Write => self.memory.sink.as_ref(),
            Op::Read | Op::Atomic => self.memory.source.as_ref(),
        };
        let asked = asked_mtu(params);
        let port = self.managed.as_ref().map_or(0, Managed::port);
        let hellos = self.qps.iter().zip(0..).map(|(qp, index)| {
            let mut hello = self.cx.hello(T::TRANSPORT, qp.number());
            let extra = Extra {
                memory: exported.map(|area| area.remote(index)).unwrap_or_default(),
                srqn: self.srq.as_ref().map(Srq::number).unwrap_or_default(),
                target: self.targets.get(index as usize).map(Qp::number).unwrap_or_default(),
                port,
            };
            hello.qkey = qkey_of(params);
            hello.mtu = asked.map_or(hello.mtu, |asked| asked.min(hello.mtu));
            hello.responder_resources = params.outs;
            hello.initiator_depth = params.outs;
            hello.private = extra.encode();
            hello
        });
        self.hellos = hellos.collect();
    }

    /// Brings every queue pair to RTS. Afterwards, what was an ask is the answer, with what was chosen.
    pub(super) fn connect(&mut self, params: &Params, peers: &[Hello]) -> Result<(), Failure> {
        if peers.len() != self.qps.len() {
            return Err(Failure::Usage(format!(
                "the peer connects {} queue pairs of an lcore with {}",
                peers.len(),
                self.qps.len()
            )));
        }
        let managed = self.managed.take();
        let found = managed.map(|managed| self.meet(managed, params, peers)).transpose()?;
        let peers = found.as_deref().unwrap_or(peers);
        let mut found: Option<AddressVector> = None;
        for (index, peer) in peers.iter().enumerate() {
            let ours = &self.hellos[index];
            // All of them lead to one lcore of the peer.
            let av = match found {
                Some(av) => av,
                None => *found.insert(
                    self.cx.path(ours, peer).map_err(|error| Failure::Usage(error.to_string()))?,
                ),
            };
            let extra = extra(peer)?;
            self.mtu = ours.mtu.min(peer.mtu);
            let attr = self.attr(params, index, peer, av);
            let stays = self.server && params.misconnect == Some(Misconnect::Init);
            let to = if self.targets.is_empty() { peer.qpn } else { extra.target };
            // In INIT, where nobody reaches it; or the connection manager has brought it up.
            if !stays && self.managed.is_none() {
                up(&self.qps[index], &QpAttr { dest_qpn: to, ..attr })?;
            }
            if let Some(target) = self.targets.get(index).filter(|_| !stays) {
                up(target, &QpAttr { dest_qpn: peer.qpn, ..attr })?;
            }
            let target = T::target(&self.pd, &av, peer, extra.srqn).map_err(Failure::Device)?;
            self.peers.push(Remote { target, memory: extra.memory });
            self.path = if av.link.is_some() { "local" } else { "packet" };
            let hello = &mut self.hellos[index];
            if peer.role == Role::Ask {
                hello.role = Role::Answer;
                hello.generation = peer.generation;
                hello.mtu = self.mtu;
                hello.path = match av.link {
                    Some(_) => PathWish::SharedMemory,
                    None => PathWish::Packets,
                };
            }
        }
        Ok(())
    }

    /// Brings every queue pair up by the connection manager, or looks it up there. Returns what the peers are known as then.
    fn meet(
        &mut self,
        mut managed: Managed,
        params: &Params,
        peers: &[Hello],
    ) -> Result<Vec<Hello>, Failure> {
        let Some(first) = peers.first() else { return Ok(Vec::new()) };
        let path = self.cx.path(&self.hellos[0], first);
        let link = path.map_err(|error| Failure::Usage(error.to_string()))?.link;
        let at = SocketAddr::new(first.gid.ip(), extra(first)?.port);
        let mut found = peers.to_vec();
        let datagrams = T::TRANSPORT == Kind::Ud;
        let stays = self.server && params.misconnect == Some(Misconnect::Init);
        if datagrams && !stays {
            // Whoever is asked must be ready for what follows the answer.
            for (index, peer) in peers.iter().enumerate() {
                let av = AddressVector { link, ..AddressVector::to(peer.gid) };
                up(&self.qps[index], &self.attr(params, index, peer, av))?;
            }
        }
        for (index, peer) in found.iter_mut().enumerate() {
            let (ours, number) = (&self.hellos[index], number(index, &self.hellos[index]));
            let connect = |index: usize, terms: &Negotiated| {
                let attr = self.agreed(params, index, &peers[index], link, terms);
                if stays { Ok(()) } else { up(&self.qps[index], &attr) }
            };
            match (self.server, datagrams) {
                (false, false) => {
                    managed.ask::<T>(ours, number, at, params, |terms| connect(index, terms))?;
                }
                (true, false) => managed.answer::<T>(&self.hellos, peers, params, connect)?,
                (false, true) => {
                    (peer.qpn, peer.qkey) = managed.look_up(number, at)?;
                }
                (true, true) => drop(managed.tell(&self.hellos, peers)?),
            }
        }
        self.managed = Some(managed);
        Ok(found)
    }

    /// What a queue pair is told that the connection manager brings up.
    fn agreed(
        &self,
        params: &Params,
        index: usize,
        peer: &Hello,
        link: Option<LinkId>,
        terms: &Negotiated,
    ) -> QpAttr {
        let av = AddressVector { link, ..terms.av };
        let attr = self.attr(params, index, peer, av);
        // Connected wrongly on purpose, it stays so.
        let ahead = attr.rq_psn.value().wrapping_sub(peer.psn.value());
        QpAttr {
            path_mtu: attr.path_mtu.min(terms.path_mtu),
            dest_qpn: terms.dest_qpn,
            sq_psn: terms.sq_psn,
            rq_psn: Psn::new(terms.rq_psn.value().wrapping_add(ahead)),
            max_rd_atomic: terms.max_rd_atomic,
            max_dest_rd_atomic: terms.max_dest_rd_atomic,
            timeout: terms.timeout,
            retry_cnt: terms.retry_cnt,
            rnr_retry: terms.rnr_retry,
            ..attr
        }
    }

    fn attr(&self, params: &Params, index: usize, peer: &Hello, av: AddressVector) -> QpAttr {
        let wrong = params.misconnect.filter(|_| self.server);
        let path_mtu = match (wrong, self.mtu) {
            (Some(Misconnect::Mtu), PathMtu::B256) => PathMtu::B512,
            (Some(Misconnect::Mtu), _) => PathMtu::B256,
            (_, mtu) => mtu,
        };
        let ahead = if wrong == Some(Misconnect::Psn) { 1 << 20 } else { 0 };
        QpAttr {
            av,
            path_mtu,
            qkey: self.qkey(params),
            timeout: params.timeout,
            retry_cnt: params.retry_cnt,
            rnr_retry: params.rnr_retry,
            min_rnr_timer: params.min_rnr_timer,
            // Both directions of an XRC connection start from the PSN of their end.
            sq_psn: self.hellos[index].psn,
            rq_psn: Psn::new(peer.psn.value() + ahead),
            max_rd_atomic: params.outs.min(peer.responder_resources),
            max_dest_rd_atomic: params.outs,
            ..QpAttr::new(QpState::Rtr)
        }
    }

    fn qkey(&self, params: &Params) -> u32 {
        let wrong = self.server && params.misconnect == Some(Misconnect::Qkey);
        qkey_of(params) + u32::from(wrong)
    }

    /// State and memory of the first queue pair.
    pub(super) fn view(&self) -> Option<QpView> {
        self.qps.first().map(Qp::query)
    }

    /// Every counter of the lcore.
    pub(super) fn counters(&self) -> Snapshot {
        self.cx.snapshot()
    }

    /// What this lcore knows of one of its queue pairs; of the first, for all of them, where it has no such.
    pub(super) fn evidence(&self, wanted: Option<u32>) -> End {
        let mut own = self.qps.iter().map(Qp::number).chain(self.targets.iter().map(Qp::number));
        let known = own.find(|qpn| Some(qpn.value()) == wanted);
        let first = self.qps.first().map(Qp::number);
        let Some(qpn) = known.or(first) else {
            return End { after: self.counters(), ..End::default() };
        };
        let mut end = self.cx.evidence(qpn);
        if known.is_none() && self.qps.len() > 1 {
            // Nobody knows which of them it is about.
            end.qp.counters = Snapshot::default();
        }
        if let Some(pool) = self.srq.as_ref().and_then(Srq::query) {
            let (posted, waiting) = (Some(pool.posted.into()), Some(pool.len.into()));
            end.receives = Receives { posted, waiting, bytes: None, shared: true };
        }
        end
    }
}

/// Q_Key of both ends.
fn qkey_of(params: &Params) -> u32 {
    if params.connect == Connect::Cm { UDP_QKEY } else { QKEY }
}

fn asked_mtu(params: &Params) -> Option<PathMtu> {
    params.mtu.and_then(|mtu| PathMtu::from_bytes(mtu as usize))
}

fn extra(peer: &Hello) -> Result<Extra, Failure> {
    Extra::decode(&peer.private).ok_or_else(|| {
        Failure::Usage("the peer is of another version: update the older side".into())
    })
}

/// Names a receive: its lane and slot.
pub(super) fn receive_id(lane: usize, slot: usize) -> WrId {
    WrId((lane as u64) << 32 | slot as u64)
}

fn up<S: Service>(qp: &Qp<S>, attr: &QpAttr) -> Result<(), Failure> {
    step(qp, &QpAttr { state: QpState::Rtr, ..*attr })?;
    step(qp, &QpAttr { state: QpState::Rts, ..*attr })
}

/// One edge of the state table, with what it requires.
fn step<S: Service>(qp: &Qp<S>, attr: &QpAttr) -> Result<(), Failure> {
    let masks = masks(S::TRANSPORT, qp.state(), attr.state)
        .ok_or_else(|| Failure::device(format!("no way from {} to {}", qp.state(), attr.state)))?;
    qp.modify(attr, masks.required).map_err(Failure::device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hello_carries_comes_back() {
        let extra = Extra {
            memory: RemoteAddr { addr: 0x7f00_1234_5678_9abc, rkey: Rkey(0xdead_beef) },
            srqn: Srqn(7),
            target: Qpn::new(0x02_4001),
            port: 65_535,
        };
        assert_eq!(Extra::decode(&extra.encode()), Some(extra));
        assert_eq!(Extra::decode(&extra.encode()[1..]), None);
        assert_eq!(Extra::decode(&[]), None);
    }
}
