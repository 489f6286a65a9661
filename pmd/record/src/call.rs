//! What an engine asks of its surroundings while it works on an input, and what it hands them.

use core::fmt;

use pmd_roce::ids::{CqId, LinkId, PdId, Psn, Qpn, Rkey};
use pmd_roce::local::{PublishedQp, Record};
use pmd_roce::memory::{Asker, AtomicOp};
use pmd_roce::sink::Flow;
use pmd_roce::wire::bth::{Bth, BthView};
use pmd_roce::work::{Access, RemoteAddr, Sge, WindowBind};

use crate::pack::{Blob, pack_enum};
use crate::vocabulary::{Finished, Origin, Sum};

/// Bytes of a frame that are kept: the transport header, and the extended one of most packets.
const HEAD: usize = 32;

/// A call, without its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// No more calls.
    Done,
    // Memory.
    CheckLocal {
        pd: PdId,
        sge: Sge,
        write: bool,
    },
    Gather {
        pd: PdId,
        sge: Sge,
        offset: u32,
        len: u64,
    },
    Scatter {
        pd: PdId,
        sge: Sge,
        offset: u32,
        from: Sum,
    },
    CheckRemote {
        by: Asker,
        at: RemoteAddr,
        len: u64,
        rights: Access,
    },
    ReadRemote {
        by: Asker,
        at: RemoteAddr,
        len: u64,
    },
    WriteRemote {
        by: Asker,
        at: RemoteAddr,
        from: Sum,
    },
    AtomicRemote {
        by: Asker,
        at: RemoteAddr,
        op: AtomicOp,
    },
    Invalidate {
        by: Asker,
        key: Rkey,
    },
    Bind {
        by: Asker,
        bind: WindowBind,
    },
    // Completion queues and the wire.
    Push {
        cq: CqId,
        completion: Finished,
    },
    Send {
        flow: Flow,
        to: Qpn,
        len: u64,
    },
    Frame {
        head: Blob,
        sum: Sum,
    },
    // Peers that share memory.
    Target {
        link: LinkId,
        qpn: Qpn,
    },
    Glance {
        link: LinkId,
        qpn: Qpn,
    },
    Write {
        link: LinkId,
        pd: PdId,
        from: Origin,
        target: (PdId, Qpn),
        to: RemoteAddr,
    },
    Read {
        link: LinkId,
        pd: PdId,
        into: Vec<Sge>,
        target: (PdId, Qpn),
        from: RemoteAddr,
    },
    Atomic {
        link: LinkId,
        target: (PdId, Qpn),
        at: RemoteAddr,
        op: AtomicOp,
    },
    PushRecord {
        link: LinkId,
        pd: PdId,
        record: Record,
        payload: Origin,
    },
    Consumed {
        link: LinkId,
    },
    Show {
        qpn: Qpn,
        page: Option<PublishedQp>,
    },
    ShowReceives {
        qpn: Qpn,
        rq_psn: Psn,
        posted: u32,
    },
    Publish,
    Fence,
    // A record that arrived.
    CopyTo {
        pd: PdId,
        offset: u32,
        sge: Sge,
    },
    IsBorrowed,
}

pack_enum!(Call {
    0 => Done,
    1 => CheckLocal { pd, sge, write },
    2 => Gather { pd, sge, offset, len },
    3 => Scatter { pd, sge, offset, from },
    4 => CheckRemote { by, at, len, rights },
    5 => ReadRemote { by, at, len },
    6 => WriteRemote { by, at, from },
    7 => AtomicRemote { by, at, op },
    8 => Invalidate { by, key },
    9 => Bind { by, bind },
    10 => Push { cq, completion },
    11 => Send { flow, to, len },
    12 => Frame { head, sum },
    13 => Target { link, qpn },
    14 => Glance { link, qpn },
    15 => Write { link, pd, from, target, to },
    16 => Read { link, pd, into, target, from },
    17 => Atomic { link, target, at, op },
    18 => PushRecord { link, pd, record, payload },
    19 => Consumed { link },
    20 => Show { qpn, page },
    21 => ShowReceives { qpn, rq_psn, posted },
    22 => Publish,
    23 => Fence,
    24 => CopyTo { pd, offset, sge },
    25 => IsBorrowed,
});

impl Call {
    /// A frame that is on its way out.
    pub(crate) fn frame(frame: &[u8]) -> Self {
        let head = frame[..frame.len().min(HEAD)].to_vec();
        Self::Frame { head: Blob(head), sum: Sum::of(frame) }
    }

    /// Whether somebody outside can tell that it happened: the rest are questions.
    pub(crate) const fn is_output(&self) -> bool {
        matches!(
            self,
            Self::Scatter { .. }
                | Self::WriteRemote { .. }
                | Self::AtomicRemote { .. }
                | Self::Invalidate { .. }
                | Self::Bind { .. }
                | Self::Push { .. }
                | Self::Frame { .. }
                | Self::Write { .. }
                | Self::Read { .. }
                | Self::Atomic { .. }
                | Self::PushRecord { .. }
                | Self::Show { .. }
                | Self::ShowReceives { .. }
                | Self::CopyTo { .. }
        )
    }
}

/// A frame in words: what its first bytes say, and how long it is.
pub(crate) fn words(head: &[u8], len: u64) -> String {
    let bth = BthView::new_checked(head).ok().and_then(|view| Bth::parse(view).ok());
    match bth {
        Some(Bth { opcode, dest_qp, psn, .. }) => {
            format!("{} to {dest_qp}, psn {psn}, {len} bytes", opcode.name())
        }
        None => format!("{len} bytes that are no packet"),
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("nothing more"),
            Self::Frame { head, sum } => {
                write!(f, "the frame {}, hash {:016x}", words(&head.0, sum.len), sum.hash)
            }
            Self::Push { cq, completion } => write!(f, "on completion queue {cq}: {completion:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}
