//! The engine's own types as bytes.

use pmd_roce::engine::{EngineConfig, SrqInit};
use pmd_roce::event::{AsyncEvent, EventScope};
use pmd_roce::ids::{
    CqId, Gid, Instant, LinkId, Lkey, PathMtu, PdId, Psn, Qpn, Rkey, Srqn, WrId, XrcdId,
};
use pmd_roce::local::{
    DatagramRecord, LocalFault, PublishedQp, Push, Record, RecordKind, Source, Target,
};
use pmd_roce::memory::{Asker, AtomicOp, MemoryFault};
use pmd_roce::qp::attr::{AddressVector, PathMigState, QpAttr, QpCap, QpInit};
use pmd_roce::qp::state::{AttrMask, QpState, Transport};
use pmd_roce::sink::{Flow, IpId};
use pmd_roce::work::{
    Access, AhId, Completion, Data, Datagram, Imm, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, WindowBind,
};

use crate::digest::Digest;
use crate::pack::{Blob, Cursor, Damaged, Pack, pack_enum, pack_number, pack_struct};

pack_number!(AhId, CqId, Gid, Imm, Instant, LinkId, Lkey, PdId, Rkey, Srqn, WrId, XrcdId);

macro_rules! pack_24_bits {
    ($($name:ident),+) => {$(
        impl Pack for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.value().put(out);
            }

            fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
                let value = u32::take(from)?;
                let number = Self::new(value);
                if number.value() == value { Ok(number) } else { Err(Damaged(stringify!($name))) }
            }
        }
    )+};
}
pack_24_bits!(Qpn, Psn);

macro_rules! pack_flags {
    ($($name:ident),+) => {$(
        impl Pack for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.bits().put(out);
            }

            fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
                Self::from_bits(u32::take(from)?).ok_or(Damaged(stringify!($name)))
            }
        }
    )+};
}
pack_flags!(Access, AttrMask, SendFlags);

macro_rules! pack_codes {
    ($($name:ident, $all:expr;)+) => {$(
        impl Pack for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }

            fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
                let code = from.byte()?;
                let known = $all.into_iter().find(|known| *known as u8 == code);
                known.ok_or(Damaged(stringify!($name)))
            }
        }
    )+};
}
pack_codes!(
    PathMtu, PathMtu::ALL;
    QpState, QpState::ALL;
    Transport, Transport::ALL;
    PathMigState, [PathMigState::Migrated, PathMigState::Rearm, PathMigState::Armed];
);

pack_struct!(EngineConfig {
    process,
    lcore,
    gids,
    second_port,
    seed,
    auto_path_mig,
    max_qps,
    max_srqs,
    max_ahs,
    window_packets,
    ack_request_every,
    mtu,
    source_port,
});
pack_struct!(SrqInit { pd, max_wr, max_sge, xrc });
pack_struct!(QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data });
pack_struct!(QpInit { transport, pd, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all });
pack_struct!(AddressVector {
    is_global,
    dgid,
    sgid_index,
    hop_limit,
    traffic_class,
    flow_label,
    sl,
    port,
    link,
});
pack_struct!(QpAttr {
    state,
    cur_state,
    sqd_notify,
    access,
    pkey_index,
    port,
    qkey,
    av,
    path_mtu,
    timeout,
    retry_cnt,
    rnr_retry,
    min_rnr_timer,
    sq_psn,
    rq_psn,
    max_rd_atomic,
    max_dest_rd_atomic,
    dest_qpn,
    alt_av,
    alt_pkey_index,
    alt_port,
    alt_timeout,
    path_mig_state,
});
pack_struct!(Sge { addr, len, lkey });
pack_struct!(RemoteAddr { addr, rkey });
pack_struct!(WindowBind { window, new_key, region, addr, len, access });
pack_struct!(Datagram { ah, qpn, qkey });
pack_struct!(Asker { pd, qpn });
pack_struct!(Flow { src, dst, src_port, traffic_class, hop_limit });
pack_struct!(DatagramRecord { qkey, flow });
pack_struct!(PublishedQp {
    state,
    peer,
    access,
    pd,
    max_dest_rd_atomic,
    min_rnr_timer,
    rq_psn,
    posted,
});
pack_struct!(Record { kind, dst, src, seq, len, imm, solicited, srqn });

pack_enum!(IpId { 0 => Exact(id), 1 => Likely(id) });
pack_enum!(AtomicOp { 0 => CompareSwap { compare, swap }, 1 => FetchAdd(add) });
pack_enum!(SendOp {
    0 => Send,
    1 => SendImm(imm),
    2 => SendInvalidate(key),
    3 => Write(at),
    4 => WriteImm(at, imm),
    5 => Read(at),
    6 => CompareSwap { at, compare, swap },
    7 => FetchAdd { at, add },
    8 => BindWindow(bind),
    9 => LocalInvalidate(key),
});
pack_enum!(MemoryFault { 0 => UnknownKey, 1 => WrongDomain, 2 => NoPermission, 3 => OutOfBounds });
pack_enum!(LocalFault { 0 => Local, 1 => RemoteAccess, 2 => NotYet, 3 => Gone });
pack_enum!(Target { 0 => Qp(published), 1 => Absent, 2 => Gone });
pack_enum!(Push { 0 => At(position), 1 => Full, 2 => LocalFault, 3 => Gone });
pack_enum!(RecordKind {
    0 => Send,
    1 => Datagram(datagram),
    2 => SendInvalidate(key),
    3 => WriteImm,
    4 => Nak { syndrome },
    5 => SourceFault,
    6 => Violation { access, syndrome },
    7 => Starved,
});

impl Pack for AsyncEvent {
    fn put(&self, out: &mut Vec<u8>) {
        self.number().put(out);
        match self.scope() {
            EventScope::Qp(qpn) => qpn.value(),
            EventScope::Cq(CqId(element)) | EventScope::Srq(Srqn(element)) => element,
            EventScope::Wq(element) => element,
            EventScope::Port(port) => port.into(),
            EventScope::Device => 0,
        }
        .put(out);
    }

    fn take(from: &mut Cursor<'_>) -> Result<Self, Damaged> {
        Ok(Self::from_number(Pack::take(from)?, Pack::take(from)?))
    }
}

/// Bytes that only need to be the same again: how many, and their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) len: u64,
    pub(crate) hash: u64,
}

pack_struct!(Sum { len, hash });

impl Sum {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { len: bytes.len() as u64, hash: Digest::of(bytes) }
    }
}

/// Where the bytes of a local operation come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Sges(Vec<Sge>),
    Inline(Sum),
}

pack_enum!(Origin { 0 => Sges(sges), 1 => Inline(sum) });

impl Origin {
    pub(crate) fn of(source: Source<'_>) -> Self {
        match source {
            Source::Sges(sges) => Self::Sges(sges.to_vec()),
            Source::Inline(bytes) => Self::Inline(Sum::of(bytes)),
        }
    }
}

/// The bytes of a request, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    Sges(Vec<Sge>),
    Inline(Blob),
}

pack_enum!(Bytes { 0 => Sges(sges), 1 => Inline(bytes) });

/// A request for a send queue, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) wr_id: WrId,
    pub(crate) op: SendOp,
    pub(crate) bytes: Bytes,
    pub(crate) flags: SendFlags,
    pub(crate) to: Option<Datagram>,
    pub(crate) srqn: Option<Srqn>,
}

pack_struct!(Request { wr_id, op, bytes, flags, to, srqn });

impl Request {
    pub(crate) fn of(wr: &SendWr<'_>) -> Self {
        let SendWr { wr_id, op, data, flags, to, srqn } = *wr;
        let bytes = match data {
            Data::Sges(sges) => Bytes::Sges(sges.to_vec()),
            // They are copied one behind the other when they are posted.
            Data::Inline(pieces) => Bytes::Inline(Blob(pieces.concat())),
        };
        Self { wr_id, op, bytes, flags, to, srqn }
    }

    pub(crate) fn with<R>(&self, act: impl FnOnce(&SendWr<'_>) -> R) -> R {
        let Self { wr_id, op, bytes, flags, to, srqn } = self;
        let (wr_id, op, flags, to, srqn) = (*wr_id, *op, *flags, *to, *srqn);
        match bytes {
            Bytes::Sges(sges) => {
                act(&SendWr { wr_id, op, data: Data::Sges(sges), flags, to, srqn })
            }
            Bytes::Inline(bytes) => {
                let pieces = [bytes.0.as_slice()];
                act(&SendWr { wr_id, op, data: Data::Inline(&pieces), flags, to, srqn })
            }
        }
    }
}

/// A request for a receive queue, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) wr_id: WrId,
    pub(crate) sges: Vec<Sge>,
}

pack_struct!(Receive { wr_id, sges });

impl Receive {
    pub(crate) fn of(wr: &RecvWr<'_>) -> Self {
        Self { wr_id: wr.wr_id, sges: wr.sges.to_vec() }
    }

    pub(crate) fn as_wr(&self) -> RecvWr<'_> {
        RecvWr { wr_id: self.wr_id, sges: &self.sges }
    }
}

/// A completion, as it was handed to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) wr_id: WrId,
    pub(crate) status: u8,
    pub(crate) opcode: u8,
    pub(crate) qpn: Qpn,
    pub(crate) byte_len: u32,
    pub(crate) imm: Option<Imm>,
    pub(crate) invalidated: Option<Rkey>,
    pub(crate) src_qpn: Qpn,
    pub(crate) grh: bool,
    pub(crate) solicited: bool,
}

pack_struct!(Finished {
    wr_id,
    status,
    opcode,
    qpn,
    byte_len,
    imm,
    invalidated,
    src_qpn,
    grh,
    solicited,
});

impl Finished {
    pub(crate) fn of(completion: &Completion) -> Self {
        Self {
            wr_id: completion.wr_id,
            status: completion.status as u8,
            opcode: completion.opcode as u8,
            qpn: completion.qpn,
            byte_len: completion.byte_len,
            imm: completion.imm(),
            invalidated: completion.invalidated(),
            src_qpn: completion.src_qpn,
            grh: completion.grh(),
            solicited: completion.solicited(),
        }
    }
}
