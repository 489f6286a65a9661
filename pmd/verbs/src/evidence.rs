//! What an end of a connection knows of itself, for the rules of [`pmd_observe::why`].

use pmd_observe::Snapshot;
use pmd_observe::why::{End, Opcode, Qp, Receives, Request};
use pmd_roce::engine::QpView;
use pmd_roce::ids::{Instant, Qpn};
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::qp::state::{QpState, Transport};
use pmd_roce::work::{Completion, WcOpcode};

use crate::context::Context;
use crate::gid::RoceVersion;

impl Context {
    /// The counters of this lcore's part of the port, engine and wire together.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.counters(|name, value| snapshot.extend([(name, value)]));
        snapshot
    }

    /// What is known here and now of a queue pair of this lcore, and of what counts for it: taken when a connection is
    /// made, it is the baseline of what is taken later ([`End::since`]).
    pub fn evidence(&self, qpn: Qpn) -> End {
        let device = self.device();
        let pid = std::process::id();
        let mut end = End {
            place: format!("process {pid}, device {}, lcore {}", device.name(), self.lcore()),
            after: self.snapshot(),
            faults: device.faults(),
            ..End::default()
        };
        let Some(view) = self.query_qp(qpn) else { return end };
        let (stats, completions, shared) = self.with(|core| {
            let queues = [view.init.send_cq, view.init.recv_cq];
            let own = if queues[0] == queues[1] { &queues[..1] } else { &queues[..] };
            let waiting: Option<u64> = own.iter().map(|cq| core.waiting(*cq)).sum();
            let shared = view.init.srq.map(|srqn| core.query_srq(srqn));
            (core.query_qp_stats(qpn), waiting, shared)
        });
        end.completions = completions;
        end.receives = match shared {
            Some(pool) => Receives {
                posted: pool.map(|pool| pool.posted.into()),
                waiting: pool.map(|pool| pool.len.into()),
                bytes: None,
                shared: true,
            },
            None => Receives {
                posted: Some(view.recv_posted.into()),
                waiting: Some(view.recv_outstanding.into()),
                ..Receives::default()
            },
        };
        let works = matches!(view.attr.cur_state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !works {
            end.journal = device.trouble_of(self.lcore(), qpn);
        }
        end.qp = Qp {
            qpn: Some(qpn.value()),
            transport: Some(view.init.transport.to_string()),
            state: Some(view.attr.cur_state.to_string()),
            gid_type: Some(gid_type(device.roce_version()).to_owned()),
            counters: stats.map(|stats| stats.counters.iter().collect()).unwrap_or_default(),
            ..attributes(&view)
        };
        end.answers = stats.map(|stats| stats.ack_round_trip.count());
        let ns = |since: Instant| device.now().0.saturating_sub(since.0);
        end.duplicate_age_ns = stats.and_then(|stats| stats.last_duplicate).map(ns);
        end
    }
}

/// A request that completed in error.
pub fn failed_request(completion: &Completion) -> Request {
    let opcode = match completion.opcode {
        WcOpcode::Write => Opcode::Write,
        WcOpcode::Read => Opcode::Read,
        WcOpcode::CompareSwap | WcOpcode::FetchAdd => Opcode::Atomic,
        WcOpcode::Recv | WcOpcode::RecvWriteImm => Opcode::Recv,
        _ => Opcode::Send,
    };
    Request { status: completion.status as u8, opcode, ..Request::default() }
}

const fn gid_type(version: RoceVersion) -> &'static str {
    match version {
        RoceVersion::V1 => "v1",
        RoceVersion::V2 => "v2",
    }
}

/// What it was brought up with. Before RTR nothing is known of its peer.
fn attributes(view: &QpView) -> Qp {
    let QpView { init, attr, .. } = view;
    let before_rtr = matches!(attr.cur_state, QpState::Reset | QpState::Init);
    let is_reliable = !matches!(init.transport, Transport::Uc | Transport::Ud);
    let is_datagram = init.transport == Transport::Ud;
    let known = |applies: bool| applies && !before_rtr;
    Qp {
        access: (!is_datagram).then(|| attr.access.bits()),
        qkey: is_datagram.then_some(attr.qkey),
        dest_qpn: known(!is_datagram).then(|| attr.dest_qpn.value()),
        sq_psn: known(true).then(|| attr.sq_psn.value()),
        rq_psn: known(!is_datagram).then(|| attr.rq_psn.value()),
        path_mtu: known(!is_datagram).then(|| attr.path_mtu.bytes_u32()),
        sgid_index: known(!is_datagram).then_some(attr.av.sgid_index),
        path_mig_state: known(is_reliable && has_alternate(attr))
            .then(|| attr.path_mig_state.to_string().to_uppercase()),
        timeout: known(is_reliable).then_some(attr.timeout),
        retry_cnt: known(is_reliable).then_some(attr.retry_cnt),
        rnr_retry: known(is_reliable).then_some(attr.rnr_retry),
        min_rnr_timer: known(is_reliable).then_some(attr.min_rnr_timer),
        max_rd_atomic: known(is_reliable).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: known(is_reliable).then_some(attr.max_dest_rd_atomic),
        ..Qp::default()
    }
}

/// Whether an alternate path was ever loaded: it leads somewhere.
fn has_alternate(attr: &QpAttr) -> bool {
    attr.alt_av != QpAttr::new(attr.state).alt_av
}
