//! The queue pair that announcements leave from and come to: UD, a member of the group.
//!
//! An endpoint is one connection to one peer; here one queue pair speaks with everybody, each through an address handle,
//! so it is made of the verbs objects themselves.

use std::net::IpAddr;

use pmd_observe::{Code, Owner};
use pmd_verbs::roce::ids::{Gid, Qpn};
use pmd_verbs::roce::qp::attr::{QpAttr, QpCap};
use pmd_verbs::roce::qp::state::{AttrMask, QpState};
use pmd_verbs::roce::wire::grh::Grh;
use pmd_verbs::{
    Access, Ah, Completion, Context, Cq, Data, Mr, Pd, Qp, QpOptions, RecvWr, Ud, WcOpcode,
    WcStatus, WorkRequest,
};

use crate::discovery::{LONGEST, QKEY};
use crate::extent::Extent;
use crate::failure::Failure;
use crate::limits::{DISCOVERY_RECEIVES, DISCOVERY_SENDS};

/// Bytes of one receive: the area of a GRH, and more than the longest announcement, so that a datagram which is too long
/// is seen to be.
const RECEIVE: u32 = 256;
/// Bytes of all receives.
pub(crate) const RECEIVE_BYTES: u64 = DISCOVERY_RECEIVES as u64 * RECEIVE as u64;

const _: () = assert!(Grh::LEN + LONGEST < RECEIVE as usize);

/// A datagram, as far as it fits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    /// Where it came from; `None` where its header does not tell.
    pub(super) from: Option<Gid>,
    pub(super) qpn: Qpn,
    pub(super) bytes: &'a [u8],
}

pub(super) struct Port {
    // Before the domain that it belongs to.
    qp: Qp<Ud>,
    group: Ah,
    memory: Mr,
    messages: Extent,
    pd: Pd,
    cq: Cq,
    gid: Gid,
    completions: Vec<Completion>,
}

impl Port {
    /// Joins `group`, and posts its receives in `messages`.
    pub(super) fn open(cx: &Context, messages: Extent, group: IpAddr) -> Result<Self, Failure> {
        let refused = |what: &str, error: &dyn std::fmt::Display| {
            Failure::local(format!("no queue pair for datagrams: {what}: {error}"))
        };
        let pd = cx.alloc_pd();
        let depth = DISCOVERY_RECEIVES + DISCOVERY_SENDS;
        let cq = cx.create_cq(depth).map_err(|error| refused("completion queue", &error))?;
        let cap = QpCap {
            max_send_wr: DISCOVERY_SENDS,
            max_recv_wr: DISCOVERY_RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: u32::try_from(LONGEST).unwrap_or(u32::MAX),
        };
        let options =
            QpOptions { send_cq: &cq, recv_cq: &cq, srq: None, xrcd: None, cap, signal_all: true };
        let qp: Qp<Ud> = pd.create_qp(&options).map_err(|error| refused("creating it", &error))?;
        let (region, at, len) = (messages.region(), messages.offset(), messages.len());
        let memory = pd
            .register(region, at, len, Access::LOCAL_WRITE)
            .map_err(|error| refused("registering its memory", &error))?;
        connect(&qp).map_err(|error| refused("making it ready", &error))?;
        let address = Gid::from(group);
        qp.attach_multicast(address).map_err(|error| {
            let device = cx.device().name();
            Failure::new(
                Code::InvalidRequest,
                Owner::Config,
                format!("cannot join the group {group}: {error}"),
            )
            .because(format!("device `{device}` answers to {}", cx.device().gid().ip()))
            .turn(format!("device.{device}.wire"))
        })?;
        let group = pd.create_ah(&cx.address(address));
        let port = Self {
            group: group.map_err(|error| refused("addressing the group", &error))?,
            qp,
            memory,
            messages,
            pd,
            cq,
            gid: cx.device().gid(),
            completions: Vec::with_capacity(depth as usize),
        };
        for number in 0..DISCOVERY_RECEIVES {
            port.receive(number)?;
        }
        Ok(port)
    }

    /// Its address.
    pub(super) fn gid(&self) -> Gid {
        self.gid
    }

    /// Its number.
    pub(super) fn qpn(&self) -> Qpn {
        self.qp.number()
    }

    /// The way to one address; `None` where there can be none.
    pub(super) fn reach(&self, gid: Gid) -> Option<Ah> {
        self.pd.create_ah(&self.pd.context().address(gid)).ok()
    }

    /// Sends to everybody in the group. `false`: the queue is full, and nothing was sent.
    pub(super) fn send_to_group(&self, bytes: &[u8]) -> bool {
        self.send(bytes, &self.group, Qpn::MULTICAST)
    }

    /// Sends to one queue pair. `false`: the queue is full, and nothing was sent.
    pub(super) fn send(&self, bytes: &[u8], to: &Ah, qpn: Qpn) -> bool {
        self.qp.post_send(&WorkRequest::send_to(Data::Inline(&[bytes]), to, qpn, QKEY)).is_ok()
    }

    /// Hands over what has come, with the port to answer from. Returns how much was found.
    pub(super) fn poll(
        &mut self,
        mut each: impl FnMut(&Self, Datagram<'_>),
    ) -> Result<usize, Failure> {
        let mut completions = std::mem::take(&mut self.completions);
        let found = self.cq.poll(completions.capacity(), |completion| completions.push(completion));
        for completion in completions.drain(..) {
            if completion.opcode == WcOpcode::Recv {
                self.deliver(&completion, &mut each)?;
            }
        }
        self.completions = completions;
        Ok(found)
    }

    fn deliver(
        &self,
        completion: &Completion,
        each: &mut impl FnMut(&Self, Datagram<'_>),
    ) -> Result<(), Failure> {
        let number = u32::try_from(completion.wr_id.0).unwrap_or(u32::MAX);
        let mut bytes = [0; RECEIVE as usize];
        let mut datagram = Datagram { from: None, qpn: completion.src_qpn, bytes: &[] };
        match completion.status {
            WcStatus::Success => {
                let len = (completion.byte_len as usize).min(bytes.len());
                let bytes = &mut bytes[..len];
                self.messages.read_at(u64::from(number) * u64::from(RECEIVE), bytes)?;
                if let Some((area, body)) = bytes.split_first_chunk::<{ Grh::LEN }>() {
                    datagram.from = Grh::parse(area).map(|grh| grh.src);
                    datagram.bytes = body;
                }
            }
            // Longer than any announcement: as good as one without bytes.
            WcStatus::LocLen => {}
            status => {
                let failure =
                    Failure::local(format!("datagrams are not received any more: {status}"));
                return Err(failure);
            }
        }
        self.receive(number)?;
        each(self, datagram);
        Ok(())
    }

    fn receive(&self, number: u32) -> Result<(), Failure> {
        let sge = self.memory.sge(u64::from(number) * u64::from(RECEIVE), RECEIVE);
        let wr = RecvWr { wr_id: pmd_verbs::roce::ids::WrId(number.into()), sges: &[sge] };
        self.qp
            .post_recv(&wr)
            .map_err(|error| Failure::local(format!("posting a receive: {error}")))
    }
}

/// RESET to RTS: a datagram queue pair needs no peer.
fn connect(qp: &Qp<Ud>) -> Result<(), pmd_verbs::ModifyQpError> {
    let init = QpAttr { qkey: QKEY, ..QpAttr::new(QpState::Init) };
    let steps = [
        (init, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY),
        (QpAttr::new(QpState::Rtr), AttrMask::STATE),
        (QpAttr::new(QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN),
    ];
    steps.iter().try_for_each(|(attr, mask)| qp.modify(attr, *mask))
}
