//! What may be posted.

use super::Qp;
use super::route::Route;
use super::sq::{SendWqe, Verb};
use super::state::{QpState, Transport};
use crate::device::Device;
use crate::error::{PostRecvError, PostSendError};
use crate::limits::MAX_MESSAGE;
use crate::work::{Data, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr};

/// Appends send requests up to the first that is refused, which changes nothing.
///
/// # Errors
/// How many were appended, and why the next one was not.
#[inline]
pub(crate) fn send<'a, 'b: 'a>(
    qp: &mut Qp,
    dev: &mut Device,
    list: impl IntoIterator<Item = &'a SendWr<'b>>,
) -> Result<(), (usize, PostSendError)> {
    if !qp.route().sends {
        can_send(qp, dev).map_err(|error| (0, error))?;
    }
    let usual = Usual::of(qp);
    let mut list = list.into_iter();
    let mut next = list.next();
    let mut posted = 0;
    let outcome = loop {
        posted += qp.sq.fill(|wqe| {
            let is_usual = next.is_some_and(|wr| usual.put(wr, wqe));
            if is_usual {
                next = list.next();
            }
            is_usual
        }) as usize;
        let Some(wr) = next else { break Ok(()) };
        match any(qp, dev, wr, usual.flags) {
            Ok(()) => (posted, next) = (posted + 1, list.next()),
            Err(error) => break Err((posted, error)),
        }
    };
    // In SQD they wait; in SQE and Error their turn is to be flushed.
    if posted > 0 && (usual.sends || qp.state() != QpState::Sqd) {
        dev.wake(qp);
    }
    outcome
}

/// Appends the usual request, to be run at once. False: there is something special about it, and nothing has
/// changed.
#[inline]
pub(crate) fn send_usual(qp: &mut Qp, dev: &mut Device, wr: &SendWr<'_>) -> bool {
    let usual = Usual::of(qp);
    let is_posted = qp.sq.post_only(|wqe| usual.put(wr, wqe));
    if is_posted {
        dev.wake(qp);
    }
    is_posted
}

/// Appends a request of any kind.
#[inline(never)]
fn any(qp: &mut Qp, dev: &Device, wr: &SendWr<'_>, flags: SendFlags) -> Result<(), PostSendError> {
    let len = check(qp, dev, wr)?;
    if qp.sq.is_full() {
        return Err(PostSendError::Full);
    }
    qp.sq.post(wr, len, wr.flags | flags);
    Ok(())
}

#[inline]
fn can_send(qp: &Qp, dev: &Device) -> Result<(), PostSendError> {
    if qp.transport() == Transport::XrcTgt {
        return Err(PostSendError::Operation("an XRC target has no send queue"));
    }
    match qp.state() {
        QpState::Rts => Ok(()),
        state => can_send_in(state, dev),
    }
}

/// Out of RTS a request may wait or be flushed, unless the device itself is gone.
#[cold]
fn can_send_in(state: QpState, dev: &Device) -> Result<(), PostSendError> {
    if dev.fatal {
        return Err(PostSendError::DeviceFatal);
    }
    if state.accepts_post_send() { Ok(()) } else { Err(PostSendError::NotReady(state)) }
}

/// What the usual request of a queue pair is known by, so that it need not be checked rule by rule.
struct Usual {
    /// It is connected, in RTS, and takes an element.
    sends: bool,
    reads: bool,
    /// Flags that hold for every request.
    flags: SendFlags,
}

impl Usual {
    #[inline]
    fn of(qp: &Qp) -> Self {
        let &Route { sends, reads, flags, .. } = qp.route();
        Self { sends, reads, flags }
    }

    /// Puts a SEND, WRITE or READ with one element where it belongs, if it is one which [`check`] would
    /// allow.
    #[inline(always)]
    fn put(&self, wr: &SendWr<'_>, wqe: &mut SendWqe) -> bool {
        let Data::Sges([only]) = wr.data else { return false };
        let what = match wr.op {
            SendOp::Send if self.sends => (Verb::Send, RemoteAddr::default()),
            SendOp::Write(at) if self.sends => (Verb::Write, at),
            SendOp::Read(at) if self.reads => (Verb::Read, at),
            _ => return false,
        };
        if only.len > MAX_MESSAGE {
            return false;
        }
        wqe.put(wr.wr_id, what, only, wr.flags | self.flags);
        true
    }
}

/// Message bytes of a request that may be posted.
fn check(qp: &Qp, dev: &Device, wr: &SendWr<'_>) -> Result<u32, PostSendError> {
    operation(qp, wr)?;
    let len = length(qp, dev, wr)?;
    destination(qp, dev, wr)?;
    Ok(len)
}

/// Appends the usual receive, of one element, where it only waits for a message. False: there is
/// something special about it, and nothing has changed.
#[inline]
pub(crate) fn recv_usual(qp: &mut Qp, dev: &mut Device, wr: &RecvWr<'_>) -> bool {
    let [only] = wr.sges else { return false };
    // A queue pair without receives of its own has no room.
    if !qp.route().receives || !qp.rq.post_only(wr.wr_id, only) {
        return false;
    }
    dev.pages.touch_receives(qp);
    true
}

/// Appends receives up to the first that is refused, which changes nothing.
///
/// # Errors
/// How many were appended, and why the next one was not.
#[inline]
pub(crate) fn recv<'a, 'b: 'a>(
    qp: &mut Qp,
    dev: &mut Device,
    list: impl IntoIterator<Item = &'a RecvWr<'b>>,
) -> Result<(), (usize, PostRecvError)> {
    if qp.init.srq.is_some() || matches!(qp.transport(), Transport::XrcIni | Transport::XrcTgt) {
        return Err((0, PostRecvError::NoQueue));
    }
    if matches!(qp.state(), QpState::Reset | QpState::Error) {
        can_receive_in(qp.state(), dev).map_err(|error| (0, error))?;
    }
    let mut posted = 0;
    let outcome = list.into_iter().try_for_each(|wr| {
        qp.rq.post(wr).map_err(|error| (posted, error))?;
        posted += 1;
        Ok(())
    });
    // Peers on the same host see that there are more.
    dev.pages.touch_receives(qp);
    if qp.state() == QpState::Error {
        dev.wake(qp);
    }
    outcome
}

/// A receive may be posted to be flushed, unless the device itself is gone.
#[cold]
fn can_receive_in(state: QpState, dev: &Device) -> Result<(), PostRecvError> {
    if dev.fatal {
        return Err(PostRecvError::DeviceFatal);
    }
    if state.accepts_post_recv() { Ok(()) } else { Err(PostRecvError::NotReady(state)) }
}

/// Operations per transport, as the table in ibv_post_send(3).
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
