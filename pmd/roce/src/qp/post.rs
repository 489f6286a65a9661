//! What may be posted.

use super::Qp;
use super::state::{QpState, Transport};
use crate::device::Device;
use crate::error::{PostRecvError, PostSendError};
use crate::limits::MAX_MESSAGE;
use crate::work::{Data, RecvWr, SendFlags, SendOp, SendWr};

/// Appends a send request, or refuses it with nothing changed.
#[inline]
pub(crate) fn send(qp: &mut Qp, dev: &mut Device, wr: &SendWr<'_>) -> Result<(), PostSendError> {
    if qp.transport() == Transport::XrcTgt {
        return Err(PostSendError::Operation("an XRC target has no send queue"));
    }
    if !qp.state().accepts_post_send() {
        return Err(PostSendError::NotReady(qp.state()));
    }
    operation(qp, wr)?;
    let len = length(qp, dev, wr)?;
    destination(qp, dev, wr)?;
    if qp.sq.is_full() {
        return Err(PostSendError::Full);
    }
    let mut flags = wr.flags;
    flags.set(SendFlags::SIGNALED, qp.init.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED));
    qp.sq.post(wr, len, flags);
    // In SQD it waits; in SQE and Error its turn is to be flushed.
    if qp.state() != QpState::Sqd {
        dev.wake(qp);
    }
    Ok(())
}

/// Appends a receive, or refuses it with nothing changed.
#[inline]
pub(crate) fn recv(qp: &mut Qp, dev: &mut Device, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
    if qp.init.srq.is_some() || matches!(qp.transport(), Transport::XrcIni | Transport::XrcTgt) {
        return Err(PostRecvError::NoQueue);
    }
    if !qp.state().accepts_post_recv() {
        return Err(PostRecvError::NotReady(qp.state()));
    }
    qp.rq.post(wr)?;
    if qp.is_local() {
        // Peers on the same host see a receive more.
        dev.pages.touch_receives(qp.slot);
    }
    if qp.state() == QpState::Error {
        dev.wake(qp);
    }
    Ok(())
}

/// Operations per transport, as the table in ibv_post_send(3).
#[inline]
fn operation(qp: &Qp, wr: &SendWr<'_>) -> Result<(), PostSendError> {
    let refuse = |why| Err(PostSendError::Operation(why));
    match qp.transport() {
        Transport::Ud if !matches!(wr.op, SendOp::Send | SendOp::SendImm(_)) => {
            return refuse("UD has SEND only, with or without immediate");
        }
        Transport::Uc if wr.op.is_read_or_atomic() => {
            return refuse("UC has no READ and no atomics: use RC");
        }
        Transport::Uc if matches!(wr.op, SendOp::SendInvalidate(_)) => {
            return refuse("UC has no SEND with invalidate: use RC");
        }
        _ => {}
    }
    if wr.op.is_read_or_atomic() {
        if qp.attr.max_rd_atomic == 0 {
            return refuse("max_rd_atomic is 0: set it to the READs and atomics in flight");
        }
        if matches!(wr.data, Data::Inline(_)) {
            return refuse("READ and atomics bring data: give them registered memory");
        }
    }
    Ok(())
}

/// Message bytes, within what the queue and the transport take.
#[inline]
fn length(qp: &Qp, dev: &Device, wr: &SendWr<'_>) -> Result<u32, PostSendError> {
    let len = match wr.data {
        Data::Sges(sges) => {
            let max = qp.init.cap.max_send_sge;
            if sges.len() > max as usize {
                return Err(PostSendError::TooManySges { max });
            }
            sges.iter().map(|sge| u64::from(sge.len)).sum()
        }
        Data::Inline(pieces) => {
            let len: usize = pieces.iter().map(|piece| piece.len()).sum();
            let max = qp.init.cap.max_inline_data;
            if len > max as usize {
                return Err(PostSendError::InlineTooLong { max });
            }
            len as u64
        }
    };
    if wr.op.is_local() && len != 0 {
        return Err(PostSendError::Operation("binding and invalidating carry no data"));
    }
    let is_atomic = wr.op.is_read_or_atomic() && !matches!(wr.op, SendOp::Read(_));
    if is_atomic && len != 8 {
        return Err(PostSendError::Operation("an atomic brings exactly eight bytes"));
    }
    let max = match qp.transport() {
        #[expect(clippy::cast_possible_truncation, reason = "at most 4096")]
        Transport::Ud => dev.config.mtu.bytes() as u32,
        _ => MAX_MESSAGE,
    };
    u32::try_from(len).ok().filter(|len| *len <= max).ok_or(PostSendError::TooLong { len, max })
}

#[inline]
fn destination(qp: &Qp, dev: &Device, wr: &SendWr<'_>) -> Result<(), PostSendError> {
    let refuse = |why| Err(PostSendError::Destination(why));
    match qp.transport() {
        Transport::Ud => match wr.to {
            None => refuse("UD needs an address handle, a queue pair number and a Q_Key"),
            Some(to) if dev.ahs.get(to.ah).is_none() => refuse("no such address handle"),
            Some(_) => Ok(()),
        },
        Transport::XrcIni if wr.srqn.is_none() => {
            refuse("XRC needs the number of a shared receive queue at the peer")
        }
        _ => Ok(()),
    }
}
