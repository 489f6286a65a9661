//! What is known of a connection when all is over, for [`pmd_observe::why`].

use pmd_observe::Snapshot;
use pmd_observe::why::{self, Evidence, Knobs, Opcode, Path, Peer, Qp, Receives, Symptom};
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::qp::state::{QpState, Transport};
use pmd_roce::work::WcStatus;
use pmd_sim::Path as Route;

use crate::connection::{Conn, End, FAR, Fate, NEAR};
use crate::limits;
use crate::run::{Lab, concerns};
use crate::scenario::Op;

impl Lab<'_> {
    /// The evidence of both ends; `near` saw it.
    pub(crate) fn evidence(&self, index: usize) -> Evidence {
        let plan = &self.scenario.qps[index];
        let conn = &self.conns[index];
        let far_host = conn.ends[FAR].host;
        let is_dead = self.deeds.dead.contains(&far_host);
        Evidence {
            symptom: self.symptom(conn, plan.transport),
            local: self.end(index, NEAR),
            remote: Some(self.end(index, FAR)),
            path: if plan.route == Route::Shared { Path::Local } else { Path::Packet },
            peer: if is_dead { Peer::Dead } else { Peer::Alive },
            sizes: sizes(conn),
            knobs: Knobs::default(),
            // All is told at the end, however long ago the failure was.
            told_after_ns: conn.failed_at.map(|at| {
                let since = self.world.now().since(at);
                u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
            }),
            ..Evidence::default()
        }
    }

    /// What an end has counted since the beginning: of its queue pair where that counts by itself, of its device
    /// where not.
    pub(crate) fn counters(&self, end: &End) -> Snapshot {
        let own = self.world.engine(end.host).query_qp_stats(end.side.qpn);
        let own = own.map(|stats| stats.counters).unwrap_or_default();
        let before: Snapshot = end.baseline.iter().collect();
        let device: Snapshot = self.world.counters(end.host).iter().collect();
        let device = device.since(&before);
        let counts = |name: &str| own.iter().find(|(known, _)| *known == name);
        let both = device
            .iter()
            .map(|(name, count)| (name.to_owned(), counts(name).map_or(count, |(_, count)| count)));
        both.collect()
    }

    fn symptom(&self, conn: &Conn, transport: Transport) -> Symptom {
        if let Some(violation) = conn.violations.first() {
            return Symptom::Mismatch { place: violation.clone() };
        }
        if let Some(scene) = conn.scene {
            let request = &conn.requests[scene.request];
            return Symptom::Completion(why::Request {
                status: scene.status as u8,
                opcode: opcode(request.op),
                bytes: Some(request.size),
                psn: None,
                tries: None,
                remote_addr: Some(conn.ends[FAR].mr.addr + request.far),
            });
        }
        if let Some(ending) = conn.endings.iter().find(|ending| !ending.fate.is_success()) {
            return match ending.fate {
                Fate::Completed(status) => Symptom::Completion(why::Request {
                    status: status as u8,
                    ..why::Request::default()
                }),
                Fate::Event | Fate::Refused => Symptom::Event,
            };
        }
        let now = self.world.now();
        let last = conn.endings.last().map(|ending| ending.at).or(conn.first_post);
        let waits = last.map(|last| now.since(last)).unwrap_or_default();
        if conn.in_flight > 0 && waits >= limits::STALL {
            let for_ns = u64::try_from(waits.as_nanos()).unwrap_or(u64::MAX);
            return Symptom::Stalled { for_ns };
        }
        if conn.failed_at.is_some() {
            return Symptom::Event;
        }
        let takes = conn.requests.iter().filter(|request| request.op.takes_receive());
        let sent = takes.filter(|request| request.fate.is_some_and(Fate::is_success)).count();
        let good = conn.receipts.iter().filter(|(_, status)| *status == WcStatus::Success);
        let arrived = good.count();
        if transport != Transport::Rc && arrived < sent {
            return Symptom::Lost { sent: sent as u64, arrived: arrived as u64 };
        }
        Symptom::None
    }

    /// How long ago a request came to an end last that had come before.
    fn duplicate_age(&self, end: &End) -> Option<u64> {
        let stats = self.world.engine(end.host).query_qp_stats(end.side.qpn)?;
        let age = self.world.now().since(stats.last_duplicate?);
        Some(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
    }

    fn end(&self, index: usize, which: usize) -> why::End {
        let plan = &self.scenario.qps[index];
        let conn = &self.conns[index];
        let end = &conn.ends[which];
        let host = &self.scenario.hosts[end.host.index()];
        let attrs = conn.attrs_at_start[which];
        let state = conn
            .scene
            .map_or_else(|| crate::build::attr(&self.world, end), |scene| scene.attrs[which]);
        let pool = plan.srq.filter(|_| which == FAR).map(|srq| &self.pools[srq]);
        let buffers = pool.map_or(&end.buffers, |pool| &pool.buffers);
        let gap = self.world.longest_wait(end.host);
        let failed = conn.receipts.iter().map(|(_, status)| *status);
        let failed = failed
            .filter(|_| which == FAR)
            .find(|status| !matches!(status, WcStatus::Success | WcStatus::WrFlush));
        let heard = self.events.iter().filter(|heard| heard.host == end.host);
        let heard = heard.filter(|heard| concerns(heard.event.scope(), end));
        why::End {
            name: host.name.clone(),
            after: self.counters(end),
            qp: Qp {
                state: state.map(|attr| attr.cur_state.to_string()),
                transport: Some(transport(plan.transport).to_owned()),
                gid_type: Some(if host.old.contains(&end.gid) { "v1" } else { "v2" }.to_owned()),
                qpn: Some(end.side.qpn.value()),
                qkey: (plan.transport == Transport::Ud).then_some(if which == NEAR {
                    plan.qkey
                } else {
                    plan.to_qkey
                }),
                ..attrs.map(attributes).unwrap_or_default()
            },
            status: failed.map(|status| status as u8),
            events: heard.map(|heard| heard.event.name().to_owned()).collect(),
            receives: Receives {
                posted: Some(buffers.ever),
                waiting: Some(u64::from(buffers.posted)),
                bytes: (which == FAR).then_some(buffers.size),
                shared: pool.is_some(),
            },
            gap_ns: Some(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX)),
            duplicate_age_ns: self.duplicate_age(end),
            ..why::End::default()
        }
    }
}

/// What a queue pair was brought up with. Before RTR nothing is known of its peer.
fn attributes(attr: QpAttr) -> Qp {
    if matches!(attr.cur_state, QpState::Reset | QpState::Init) {
        return Qp { access: Some(attr.access.bits()), ..Qp::default() };
    }
    Qp {
        dest_qpn: Some(attr.dest_qpn.value()),
        sq_psn: Some(attr.sq_psn.value()),
        rq_psn: Some(attr.rq_psn.value()),
        path_mtu: Some(attr.path_mtu.bytes_u32()),
        timeout: Some(attr.timeout),
        retry_cnt: Some(attr.retry_cnt),
        rnr_retry: Some(attr.rnr_retry),
        min_rnr_timer: Some(attr.min_rnr_timer),
        max_rd_atomic: Some(attr.max_rd_atomic),
        max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
        access: Some(attr.access.bits()),
        sgid_index: Some(attr.av.sgid_index),
        ..Qp::default()
    }
}

const fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Uc => "UC",
        Transport::Ud => "UD",
        _ => "RC",
    }
}

const fn opcode(op: Op) -> Opcode {
    match op {
        Op::Send | Op::SendImm => Opcode::Send,
        Op::Write => Opcode::Write,
        Op::WriteImm => Opcode::WriteImm,
        Op::Read => Opcode::Read,
        Op::CompareSwap | Op::FetchAdd => Opcode::Atomic,
    }
}

/// The largest message that got through and the smallest that did not, where size is what tells them apart.
fn sizes(conn: &Conn) -> Option<(u64, u64)> {
    let scene = conn.scene?;
    let good = conn.requests.iter().filter(|request| request.fate.is_some_and(Fate::is_success));
    let passed = good.map(|request| request.size).max()?;
    let lost = conn.requests[scene.request].size;
    (passed < lost).then_some((passed, lost))
}
