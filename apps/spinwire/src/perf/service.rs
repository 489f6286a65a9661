//! What differs between transports: how a request is written, where it goes, who receives.

use std::fmt::Debug;

use pmd_verbs::connect::Hello;
use pmd_verbs::roce::engine::PostRecvError;
use pmd_verbs::roce::ids::{Qpn, Srqn};
use pmd_verbs::roce::qp::attr::AddressVector;
use pmd_verbs::{
    Ah, Connected, Data, Imm, Pd, PostRecvListError, Qp, Rc, Rdma, RecvWr, Reliable, RemoteAddr,
    Sends, Uc, Ud, WorkRequest, XrcIni,
};

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Send,
    SendImm(Imm),
    Write(RemoteAddr),
    WriteImm(RemoteAddr, Imm),
    Read(RemoteAddr),
    FetchAdd(RemoteAddr, u64),
    CompareSwap(RemoteAddr, u64, u64),
}

/// A transport whose queue pairs send.
pub(super) trait Flavour: Sends + Sized {
    /// Where requests go, beyond what the queue pair knows.
    type Target: Debug;

    /// The target behind a peer's hello. `srqn` is the peer's shared receive queue.
    fn target(
        pd: &Pd,
        av: &AddressVector,
        peer: &Hello,
        srqn: Srqn,
    ) -> Result<Self::Target, String>;

    /// A request; `None` where the transport has no such operation.
    fn request<'a>(act: Act, data: Data<'a>, to: &Self::Target) -> Option<WorkRequest<'a, Self>>;

    /// Posts receives to a queue pair that has a receive queue of its own.
    fn post_receives(qp: &Qp<Self>, list: &[RecvWr<'_>]) -> Result<(), PostRecvListError>;
}

fn message<'a, T: Connected + Sends>(act: Act, data: Data<'a>) -> Option<WorkRequest<'a, T>> {
    match act {
        Act::Send => Some(WorkRequest::send(data)),
        Act::SendImm(imm) => Some(WorkRequest::send_imm(data, imm)),
        _ => None,
    }
}

fn write<'a, T: Rdma>(act: Act, data: Data<'a>) -> Option<WorkRequest<'a, T>> {
    match act {
        Act::Write(at) => Some(WorkRequest::write(data, at)),
        Act::WriteImm(at, imm) => Some(WorkRequest::write_imm(data, at, imm)),
        act => message(act, data),
    }
}

fn reliable<'a, T: Reliable + pmd_verbs::Atomic>(
    act: Act,
    data: Data<'a>,
) -> Option<WorkRequest<'a, T>> {
    match act {
        Act::Read(at) => Some(WorkRequest::read(data, at)),
        Act::FetchAdd(at, add) => Some(WorkRequest::fetch_add(data, at, add)),
        Act::CompareSwap(at, compare, swap) => {
            Some(WorkRequest::compare_swap(data, at, compare, swap))
        }
        act => write(act, data),
    }
}

impl Flavour for Rc {
    type Target = ();

    fn target(_: &Pd, _: &AddressVector, _: &Hello, _: Srqn) -> Result<(), String> {
        Ok(())
    }

    fn request<'a>(act: Act, data: Data<'a>, (): &()) -> Option<WorkRequest<'a, Self>> {
        reliable(act, data)
    }

    fn post_receives(qp: &Qp<Self>, list: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        qp.post_recv_list(list)
    }
}

impl Flavour for Uc {
    type Target = ();

    fn target(_: &Pd, _: &AddressVector, _: &Hello, _: Srqn) -> Result<(), String> {
        Ok(())
    }

    fn request<'a>(act: Act, data: Data<'a>, (): &()) -> Option<WorkRequest<'a, Self>> {
        write(act, data)
    }

    fn post_receives(qp: &Qp<Self>, list: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        qp.post_recv_list(list)
    }
}

/// Where datagrams of one queue pair go.
#[derive(Debug)]
pub(super) struct Datagrams {
    ah: Ah,
    qpn: Qpn,
    qkey: u32,
}

impl Flavour for Ud {
    type Target = Datagrams;

    fn target(pd: &Pd, av: &AddressVector, peer: &Hello, _: Srqn) -> Result<Datagrams, String> {
        let ah = pd.create_ah(av).map_err(|error| error.to_string())?;
        Ok(Datagrams { ah, qpn: peer.qpn, qkey: peer.qkey })
    }

    fn request<'a>(act: Act, data: Data<'a>, to: &Datagrams) -> Option<WorkRequest<'a, Self>> {
        match act {
            Act::Send => Some(WorkRequest::send_to(data, &to.ah, to.qpn, to.qkey)),
            Act::SendImm(imm) => Some(WorkRequest::send_to_imm(data, &to.ah, to.qpn, to.qkey, imm)),
            _ => None,
        }
    }

    fn post_receives(qp: &Qp<Self>, list: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        qp.post_recv_list(list)
    }
}

impl Flavour for XrcIni {
    type Target = Srqn;

    fn target(_: &Pd, _: &AddressVector, _: &Hello, srqn: Srqn) -> Result<Srqn, String> {
        Ok(srqn)
    }

    fn request<'a>(act: Act, data: Data<'a>, to: &Srqn) -> Option<WorkRequest<'a, Self>> {
        let request = reliable(act, data)?;
        Some(request.toward(*to))
    }

    fn post_receives(_: &Qp<Self>, _: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        Err(PostRecvListError { posted: 0, error: PostRecvError::NoQueue })
    }
}
