//! From a scenario to a world: hosts, queues, memory, connections.

use std::collections::{BTreeMap, VecDeque};

use pmd_roce::engine::SrqInit;
use pmd_roce::ids::{CqId, Gid, Instant, Psn, Srqn};
use pmd_roce::limits::{ACK_REQUEST_EVERY, GRH_BYTES};
use pmd_roce::qp::attr::{AddressVector, ModifyQpError, PathMigState, QpAttr, QpCap};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::work::Access;
use pmd_sim::connect::PD;
use pmd_sim::{HostId, Mr, Path, QpPlan, World};

use crate::connection::{Buffers, Conn, End, FAR, Introduction, NEAR, Request};
use crate::limits::{self, SLOT_GAP};
use crate::recover;
use crate::run::{Pool, SetupError, post_receive};
use crate::scenario::{Connection, Cq, Op, Policy, Scenario, Work};

/// Everything that a scenario declares, as it is before anything happens.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) world: World,
    pub(crate) conns: Vec<Conn>,
    pub(crate) pools: Vec<Pool>,
    /// Requests of each work, as numbers of its connection's.
    pub(crate) batches: Vec<Vec<usize>>,
}

/// The beginning of everything.
pub(crate) const START: Instant = Instant(0);

const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Makes the world. Fails where a device refuses what the scenario asks for.
pub(crate) fn build(scenario: &Scenario, seed: u64, records: bool) -> Result<Built, SetupError> {
    let mut world = World::new(seed);
    if records {
        world.record_inputs();
    }
    for (index, host) in scenario.hosts.iter().enumerate() {
        let mut users = scenario.qps.iter().filter(|qp| qp.from == index || qp.to == index);
        let rarely = users.any(|qp| qp.ack_per_message);
        world.add_host_with(&host.name, |config| {
            config.gids.clone_from(&host.gids);
            config.second_port.extend(host.second);
            config.auto_path_mig = host.second.is_some();
            config.mtu = host.mtu;
            config.window_packets = limits::WINDOW_PACKETS;
            config.ack_request_every = if rarely { 0 } else { ACK_REQUEST_EVERY };
        });
        host.old.iter().for_each(|gid| world.make_old(*gid));
    }
    let hosts: Vec<HostId> = world.hosts().collect();
    let cqs: Vec<CqId> =
        scenario.cqs.iter().map(|cq| world.create_cq(hosts[cq.host], cq.depth)).collect();
    let pools = pools(&mut world, scenario, &hosts)?;
    let mut conns = Vec::new();
    let mut batches = vec![Vec::new(); scenario.works.len()];
    for (index, plan) in scenario.qps.iter().enumerate() {
        let works: Vec<(usize, &Work)> =
            scenario.works.iter().enumerate().filter(|(_, work)| work.qp == index).collect();
        let mut layout = Layout::of(plan, &works);
        for (work, requests) in layout.batches.drain(..) {
            batches[work] = requests;
        }
        let parts = Parts {
            hosts: &hosts,
            cqs: &cqs,
            declared: &scenario.cqs,
            srq: plan.srq.map(|srq| (pools[srq].srqn, scenario.srqs[srq].depth)),
        };
        conns.push(connection(&mut world, plan, &parts, layout)?);
    }
    for (plan, conn) in scenario.qps.iter().zip(&mut conns) {
        connect(&mut world, plan, conn)?;
    }
    for pool in &pools {
        if let Some(limit) = pool.limit {
            let armed =
                world.with_engine(pool.host, |engine| engine.arm_srq_limit(pool.srqn, limit));
            armed.map_err(|error| SetupError::of(&pool.name, &error))?;
        }
    }
    for end in conns.iter_mut().flat_map(|conn| &mut conn.ends) {
        end.baseline = *world.counters(end.host);
    }
    Ok(Built { world, conns, pools, batches })
}

fn pools(
    world: &mut World,
    scenario: &Scenario,
    hosts: &[HostId],
) -> Result<Vec<Pool>, SetupError> {
    let mut pools = Vec::new();
    for srq in &scenario.srqs {
        let host = hosts[srq.host];
        let size = srq.size + u64::from(GRH_BYTES);
        let gap = (size + SLOT_GAP).next_multiple_of(64);
        let bytes = usize::try_from(gap * u64::from(srq.depth)).unwrap_or(usize::MAX);
        let mr = world.register(host, PD, bytes, RIGHTS);
        let init = SrqInit { pd: PD, max_wr: srq.depth, max_sge: 1, xrc: None };
        let srqn =
            world.create_srq(host, &init).map_err(|error| SetupError::of(&srq.name, &error))?;
        let free: VecDeque<u32> = (0..srq.depth).collect();
        let buffers = Buffers { size, gap, free, usual: srq.depth, ..Buffers::default() };
        let (name, limit, hold) = (srq.name.clone(), srq.limit, srq.hold);
        let mut pool = Pool { name, host, srqn, mr, buffers, limit, hold };
        pool.fill(world).map_err(|error| SetupError::of(&srq.name, &error))?;
        pools.push(pool);
    }
    Ok(pools)
}

/// Where each request of a connection has its bytes.
#[derive(Debug)]
struct Layout {
    requests: Vec<Request>,
    batches: Vec<(usize, Vec<usize>)>,
    /// Bytes of each region, receives apart.
    bytes: u64,
    extra_receives: u32,
}

impl Layout {
    fn of(plan: &Connection, works: &[(usize, &Work)]) -> Self {
        let mut layout =
            Self { requests: Vec::new(), batches: Vec::new(), bytes: SLOT_GAP, extra_receives: 0 };
        for (index, work) in works {
            layout.extra_receives += work.post_recv;
            let Some(op) = work.op else { continue };
            let mut batch = Vec::new();
            for number in 0..work.count {
                let slot = layout.bytes;
                layout.bytes += (work.size + SLOT_GAP).next_multiple_of(64);
                batch.push(layout.requests.len());
                layout.requests.push(Request {
                    op,
                    size: work.size,
                    near: slot,
                    far: work.offset.map_or(slot, |offset| offset + number * work.size),
                    is_alone: work.offset.is_none() && plan.transport != Transport::Ud,
                    bad_rkey: work.bad_rkey,
                    bad_lkey: work.bad_lkey,
                    flying: false,
                    fate: None,
                    delivered: 0,
                });
            }
            layout.batches.push((*index, batch));
        }
        layout
    }
}

/// What connections share.
#[derive(Debug)]
struct Parts<'a> {
    hosts: &'a [HostId],
    cqs: &'a [CqId],
    declared: &'a [Cq],
    /// The shared receive queue and its depth.
    srq: Option<(Srqn, u32)>,
}

fn connection(
    world: &mut World,
    plan: &Connection,
    parts: &Parts<'_>,
    layout: Layout,
) -> Result<Conn, SetupError> {
    let near = end(world, plan, parts, &layout, NEAR)?;
    let far = end(world, plan, parts, &layout, FAR)?;
    let mut conn = Conn {
        name: plan.name.clone(),
        ends: [near, far],
        ah: None,
        requests: layout.requests,
        backlog: VecDeque::new(),
        in_flight: 0,
        degraded: false,
        endings: Vec::new(),
        receipts: Vec::new(),
        first_post: None,
        scene: None,
        attrs_at_start: [None; 2],
        failed_at: None,
        recoveries: Vec::new(),
        resumed_at: None,
        gave_up: false,
        by_content: BTreeMap::new(),
        violations: Vec::new(),
    };
    fill(world, &mut conn);
    Ok(conn)
}

fn end(
    world: &mut World,
    plan: &Connection,
    parts: &Parts<'_>,
    layout: &Layout,
    which: usize,
) -> Result<End, SetupError> {
    let is_near = which == NEAR;
    let number = if is_near { plan.from } else { plan.to };
    let host = parts.hosts[number];
    let slots = if is_near { 0 } else { plan.receives + layout.extra_receives };
    let pooled = parts.srq.filter(|_| !is_near);
    let own_depth = if is_near { plan.depth } else { 1 } + slots + pooled.map_or(0, |(_, all)| all);
    let shared = plan.cq.filter(|cq| parts.declared[*cq].host == number).map(|cq| parts.cqs[cq]);
    let cq = shared.unwrap_or_else(|| world.create_cq(host, own_depth as usize + 1));
    let qp = QpPlan {
        cap: QpCap {
            max_send_wr: if is_near { plan.depth } else { 1 },
            max_recv_wr: slots.max(1),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        cqs: Some((cq, cq)),
        srq: pooled.map(|(srqn, _)| srqn),
        access: plan.access,
        qkey: if is_near { plan.qkey } else { plan.to_qkey },
        path_mtu: if is_near { plan.mtu } else { plan.to_mtu },
        timeout: plan.timeout,
        retry_cnt: plan.retry_cnt,
        rnr_retry: plan.rnr_retry,
        min_rnr_timer: plan.min_rnr_timer,
        sq_psn: Psn::new(world.rng().bits32()),
        max_rd_atomic: plan.rd_atomic,
        max_dest_rd_atomic: if is_near { plan.rd_atomic } else { plan.to_rd_atomic },
        sq_sig_all: true,
        ..QpPlan::of(plan.transport)
    };
    let side = world.create_qp(host, qp).map_err(|error| SetupError::of(&plan.name, &error))?;
    let grh = if plan.transport == Transport::Ud { u64::from(GRH_BYTES) } else { 0 };
    let size = plan.receive_size + grh;
    let gap = (size + SLOT_GAP).next_multiple_of(64);
    let bytes = layout.bytes + gap * u64::from(slots);
    let mr = world.register(host, PD, usize::try_from(bytes).unwrap_or(usize::MAX), RIGHTS);
    let sgid_index = if is_near { plan.sgid_index } else { plan.to_sgid_index };
    let gid = world.engine(host).gids(1).get(usize::from(sgid_index)).copied().unwrap_or_default();
    let buffers = Buffers {
        base: layout.bytes,
        size,
        is_bad: plan.bad_receives,
        gap,
        free: (0..slots).collect(),
        posted: 0,
        usual: if is_near { 0 } else { plan.receives },
        ever: 0,
    };
    let peer = Introduction { qpn: side.qpn, psn: Psn::new(0), gid };
    let baseline = *world.counters(host);
    let (generation, recovery) = (0, None);
    Ok(End { host, side, mr, buffers, gid, sgid_index, generation, peer, recovery, baseline })
}

/// Gives every request bytes that belong to it alone.
fn fill(world: &mut World, conn: &mut Conn) {
    let mut rng = world.rng().fork();
    for (index, request) in conn.requests.iter().enumerate() {
        if request.op.is_atomic() {
            continue;
        }
        let reads = request.op == Op::Read;
        let end = &conn.ends[if reads { FAR } else { NEAR }];
        let at = end.mr.addr + if reads { request.far } else { request.near };
        let len = usize::try_from(request.size).unwrap_or_default();
        let mut memory = world.memory_mut(end.host);
        let Some(bytes) = memory.bytes_mut(at, len) else { continue };
        rng.fill(bytes);
        if let Some(first) = bytes.first_chunk::<8>() {
            conn.by_content.insert(*first, index);
        }
    }
}

/// The way from an end to `to` on the host `peer`.
pub(crate) fn address(
    world: &mut World,
    end: &End,
    peer: HostId,
    to: Gid,
    path: Path,
) -> AddressVector {
    let link = world.address(end.host, peer, path).link;
    AddressVector { sgid_index: end.sgid_index, link, ..AddressVector::to(to) }
}

/// Walks both ends to RTS, or leaves the far one in INIT.
fn connect(world: &mut World, plan: &Connection, conn: &mut Conn) -> Result<(), SetupError> {
    let [near, far] = [NEAR, FAR].map(|end| conn.ends[end].introduction());
    conn.ends[NEAR].peer = far;
    conn.ends[FAR].peer = near;
    let steps = |world: &mut World, conn: &mut Conn| -> Result<(), Box<dyn core::error::Error>> {
        for end in [FAR, NEAR] {
            world.to_init(conn.ends[end].side)?;
        }
        for _ in 0..conn.ends[FAR].buffers.usual {
            post_receive(world, &mut conn.ends[FAR])?;
        }
        for (this, other) in [(FAR, NEAR), (NEAR, FAR)] {
            if this == FAR && plan.hold_init {
                continue;
            }
            let peer = conn.ends[other].host;
            let end = &conn.ends[this];
            let av = address(world, end, peer, end.peer.gid, plan.route);
            let psn = plan.rq_psn.filter(|_| this == FAR).map_or(end.peer.psn, Psn::new);
            let (attr, mask) = end.side.rtr_attr(av, end.peer.qpn, psn);
            world.modify_qp(end.host, end.side.qpn, &attr, mask)?;
            world.to_rts(end.side)?;
        }
        if plan.alternate {
            load_alternate(world, plan, conn)?;
        }
        if plan.transport == Transport::Ud {
            let end = &conn.ends[NEAR];
            let av = address(world, end, conn.ends[FAR].host, end.peer.gid, plan.route);
            conn.ah = Some(world.create_ah(end.host, &av)?);
        }
        Ok(())
    };
    steps(world, conn).map_err(|error| SetupError::of(&plan.name, &error))?;
    conn.attrs_at_start = [NEAR, FAR].map(|end| attr(world, &conn.ends[end]));
    if plan.policy == Policy::Reconnect {
        recover::arm(conn);
    }
    Ok(())
}

/// Gives both ends the path between their second ports as the alternate one, to be armed by the next messages.
fn load_alternate(world: &mut World, plan: &Connection, conn: &Conn) -> Result<(), ModifyQpError> {
    for (this, other) in [(NEAR, FAR), (FAR, NEAR)] {
        let end = &conn.ends[this];
        let second = world.engine(conn.ends[other].host).gids(2).first().copied();
        let to = AddressVector::to(second.unwrap_or_default());
        let attr = QpAttr {
            alt_av: AddressVector { port: 2, ..to },
            alt_port: 2,
            alt_timeout: plan.timeout,
            path_mig_state: PathMigState::Rearm,
            ..QpAttr::new(QpState::Rts)
        };
        let mask = AttrMask::STATE | AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
        world.modify_qp(end.host, end.side.qpn, &attr, mask)?;
    }
    Ok(())
}

/// A queue pair's attributes as they are.
pub(crate) fn attr(world: &World, end: &End) -> Option<QpAttr> {
    world.engine(end.host).query_qp(end.side.qpn).map(|view| view.attr)
}

/// Part of a region, for whoever compares.
pub(crate) fn bytes(world: &World, end: &End, at: u64, len: u64) -> Vec<u8> {
    let Mr { addr, .. } = end.mr;
    let len = usize::try_from(len).unwrap_or_default();
    world.memory(end.host).bytes(addr + at, len).map(<[u8]>::to_vec).unwrap_or_default()
}
