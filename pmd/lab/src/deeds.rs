//! What a fault does to the world, and what ends with it.

use std::collections::BTreeSet;

use pmd_roce::ids::{Gid, Instant, Psn};
use pmd_roce::qp::attr::QpAttr;
use pmd_roce::qp::state::{AttrMask, QpState};
use pmd_sim::fault::FaultId;
use pmd_sim::{Act, Fault as Loss, Filter, HostId};

use crate::build::START;
use crate::connection::{End, FAR, NEAR};
use crate::limits::SLOT_GAP;
use crate::run::{Lab, post_receive};
use crate::scenario::{Deed, Fault};
use crate::timeline::Action;

/// The faults that have begun.
#[derive(Debug)]
pub(crate) struct Deeds {
    /// Faults of frames, by index of the scenario's.
    pub(crate) losses: Vec<(usize, FaultId)>,
    /// Hosts, and of these the connections, that post no receives.
    dry: BTreeSet<(HostId, Option<usize>)>,
    /// Hosts that take no completions.
    deaf: BTreeSet<HostId>,
    pub(crate) dead: BTreeSet<HostId>,
    /// Until when each host has no turn.
    pub(crate) paused_until: Vec<Instant>,
}

impl Deeds {
    pub(crate) fn new(hosts: usize) -> Self {
        Self {
            losses: Vec::new(),
            dry: BTreeSet::new(),
            deaf: BTreeSet::new(),
            dead: BTreeSet::new(),
            paused_until: vec![START; hosts],
        }
    }

    pub(crate) fn stops_receives(&self, host: HostId, conn: Option<usize>) -> bool {
        self.dry.contains(&(host, None)) || self.dry.contains(&(host, conn))
    }

    pub(crate) fn stops_polls(&self, host: HostId) -> bool {
        self.deaf.contains(&host)
    }
}

impl Lab<'_> {
    pub(crate) fn begin(&mut self, index: usize) {
        let scenario = self.scenario;
        let fault = &scenario.faults[index];
        let host = |which: Option<usize>| which.map(|host| self.hosts[host]);
        let (from, to) = (host(fault.from), host(fault.to));
        if let Some(until) = fault.until {
            self.timeline.enter(START.after(until), Action::End(index));
        }
        match fault.deed {
            Deed::Frames(act) => {
                let loss = self.loss(fault, act, from, to);
                self.lose(index, loss);
            }
            Deed::Partition => {
                for (from, to) in [(from, to), (to, from)] {
                    let loss = self.loss(fault, Act::Drop, from, to);
                    self.lose(index, loss);
                }
            }
            _ => {
                if let Some(host) = to.or(from) {
                    self.strike(fault, host);
                }
            }
        }
    }

    fn lose(&mut self, index: usize, loss: Loss) {
        let id = self.world.add_fault(loss);
        self.deeds.losses.push((index, id));
    }

    fn loss(&self, fault: &Fault, act: Act, from: Option<HostId>, to: Option<HostId>) -> Loss {
        let ends = fault.qp.map(|qp| &self.conns[qp].ends);
        let first = ends.map_or(Psn::new(0), |ends| ends[NEAR].side.plan.sq_psn);
        let until = fault.until.map_or(Instant(u64::MAX), |until| START.after(until));
        Loss {
            from,
            to,
            at: START.after(fault.at),
            until,
            filter: Filter {
                psn: fault.psn.map(|psn| first.plus(psn)),
                pair: ends.map(|ends| [NEAR, FAR].map(|end| ends[end].side.qpn)),
                longer_than: fault.longer_than.and_then(|bytes| usize::try_from(bytes).ok()),
                after: fault.after,
                every: fault.every,
                count: fault.count,
                chance: fault.per_million,
                ..Filter::of(fault.frames)
            },
            act,
        }
    }

    /// What happens to a host.
    fn strike(&mut self, fault: &Fault, host: HostId) {
        let now = self.world.now();
        match fault.deed {
            Deed::Frames(_) | Deed::Partition => {}
            Deed::Pause => {
                let until = fault.until.map_or(now, |until| START.after(until));
                self.world.pause(host, until.since(now));
                self.deeds.paused_until[host.index()] = until;
            }
            Deed::StopRecv => {
                self.deeds.dry.insert((host, fault.qp));
            }
            Deed::StopPoll => {
                self.deeds.deaf.insert(host);
            }
            Deed::KillCq => {
                let cqs: BTreeSet<_> = self
                    .struck(fault)
                    .into_iter()
                    .flat_map(|conn| &self.conns[conn].ends)
                    .filter(|end| end.host == host)
                    .flat_map(End::cqs)
                    .collect();
                cqs.into_iter().for_each(|cq| self.world.kill_cq(host, cq));
            }
            Deed::KillSrq => {
                for pool in self.pools.iter().filter(|pool| pool.host == host) {
                    let killed = self.world.kill_srq(host, pool.srqn);
                    debug_assert!(killed.is_ok(), "the pool was made on this host");
                }
            }
            Deed::KillDevice => self.world.kill_device(host),
            Deed::PortDown => self.world.set_port(host, false),
            Deed::PortUp => self.world.set_port(host, true),
            Deed::Drain => self.steer(fault, host, QpState::Rts, QpState::Sqd),
            Deed::Flip(place) => self.flip(fault, host, place),
            Deed::MoveGid => self.move_gid(host),
            Deed::KillHost => {
                self.world.kill_host(host);
                self.deeds.dead.insert(host);
                for conn in self.conns.iter_mut().filter(|conn| conn.ends[NEAR].host == host) {
                    conn.abandon(now);
                    conn.degraded = true;
                    conn.refuse_backlog(now);
                }
            }
        }
    }

    /// Moves the queue pairs that a host has of the connections concerned, those that are in `from`.
    fn steer(&mut self, fault: &Fault, host: HostId, from: QpState, to: QpState) {
        let (mask, attr) = match to {
            QpState::Sqd => (
                AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
                QpAttr { sqd_notify: true, ..QpAttr::new(to) },
            ),
            to => (AttrMask::STATE, QpAttr::new(to)),
        };
        for conn in self.struck(fault) {
            let ends = self.conns[conn].ends.iter().filter(|end| end.host == host);
            for qpn in ends.map(|end| end.side.qpn) {
                if self.world.state(host, qpn) == Some(from) {
                    let moved = self.world.modify_qp(host, qpn, &attr, mask);
                    debug_assert!(moved.is_ok(), "an edge of the table");
                }
            }
        }
    }

    fn flip(&mut self, fault: &Fault, host: HostId, place: u64) {
        for conn in self.struck(fault) {
            let ends = self.conns[conn].ends.iter().filter(|end| end.host == host);
            for end in ends {
                let at = end.mr.addr + SLOT_GAP + place;
                if let Some([byte]) = self.world.memory_mut(host).bytes_mut(at, 1) {
                    *byte ^= 1;
                }
            }
        }
    }

    /// The connections that a fault of queues concerns.
    fn struck(&self, fault: &Fault) -> Vec<usize> {
        (0..self.conns.len()).filter(|conn| fault.qp.is_none_or(|qp| qp == *conn)).collect()
    }

    /// The last address of the host moves to the index behind the table's end, and leaves its own vacant.
    fn move_gid(&mut self, host: HostId) {
        let mut gids = self.world.engine(host).gids(1).to_vec();
        let last = gids.iter().rposition(|gid| *gid != Gid::default());
        let Some(at) = last.filter(|_| gids.len() < pmd_roce::limits::MAX_GIDS) else { return };
        gids.push(gids[at]);
        gids[at] = Gid::default();
        let moved = self.world.set_gids(host, &gids);
        debug_assert!(moved.is_ok(), "the table is one entry longer");
    }

    pub(crate) fn cease(&mut self, index: usize) {
        let scenario = self.scenario;
        let fault = &scenario.faults[index];
        let Some(host) = fault.to.or(fault.from).map(|host| self.hosts[host]) else { return };
        match fault.deed {
            Deed::StopRecv => {
                self.deeds.dry.remove(&(host, fault.qp));
                for conn in self.struck(fault) {
                    let end = &mut self.conns[conn].ends[FAR];
                    while end.host == host && !end.buffers.free.is_empty() {
                        // Only a dead device takes none, and its event has said so.
                        if post_receive(&mut self.world, end).is_err() {
                            break;
                        }
                    }
                }
                for pool in self.pools.iter_mut().filter(|pool| pool.host == host) {
                    if pool.fill(&mut self.world).is_err() {
                        pool.buffers.free.clear();
                    }
                }
            }
            Deed::StopPoll => {
                self.deeds.deaf.remove(&host);
            }
            Deed::PortDown => self.world.set_port(host, true),
            Deed::Drain => self.steer(fault, host, QpState::Sqd, QpState::Rts),
            _ => {}
        }
    }
}
