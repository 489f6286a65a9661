//! What a responder does about a request that it cannot execute.

use super::Answer;
use super::inbound::Fault;
use crate::counters::tally;
use crate::device::{Device, Io};
use crate::event::AsyncEvent;
use crate::ids::{Psn, Qpn};
use crate::qp::Qp;
use crate::sink::CqSink;
use crate::transition::Cause;
use crate::wire::{Msn, NakCode, RnrTimer, Syndrome};
use crate::work::WcStatus;

/// What a fault means on a reliable connection (IBTA 1.4, table 58).
struct Consequence {
    /// What the peer is told.
    syndrome: Syndrome,
    /// How the receive that the message was filling ends.
    receive: WcStatus,
    /// Raised unless the receive's completion says it all.
    event: Option<QpEvent>,
}

type QpEvent = fn(Qpn) -> AsyncEvent;

/// The table. `None`: the peer may try again.
fn consequence(fault: Fault) -> Option<Consequence> {
    use AsyncEvent::{QpAccessErr, QpReqErr};
    use NakCode::{InvalidRequest, RemoteAccessError, RemoteOperationalError};
    let (syndrome, receive, event): (_, _, Option<QpEvent>) = match fault {
        Fault::NoReceive => return None,
        Fault::Sequence | Fault::Forbidden | Fault::SharedQueue => {
            (Syndrome::Nak(InvalidRequest), WcStatus::RemInvReq, Some(QpReqErr))
        }
        Fault::Length | Fault::Misaligned | Fault::TooManyReads => {
            (Syndrome::Nak(InvalidRequest), WcStatus::RemInvReq, Some(QpAccessErr))
        }
        Fault::RemoteAccess => {
            (Syndrome::Nak(RemoteAccessError), WcStatus::RemAccess, Some(QpAccessErr))
        }
        // The data was taken: the sender has done its part.
        Fault::Invalidation => (Syndrome::ACK, WcStatus::RemInvReq, Some(QpAccessErr)),
        Fault::ReceiveTooSmall => (Syndrome::Nak(InvalidRequest), WcStatus::LocLen, None),
        Fault::LocalProtection => (Syndrome::Nak(RemoteOperationalError), WcStatus::LocProt, None),
    };
    Some(Consequence { syndrome, receive, event })
}

/// What the peer is told about a fault.
pub(crate) fn syndrome(qp: &Qp, fault: Fault) -> Syndrome {
    consequence(fault).map_or_else(
        || Syndrome::Rnr {
            timer: RnrTimer::new(qp.attr.min_rnr_timer).expect("modify checks the field's width"),
        },
        |consequence| consequence.syndrome,
    )
}

/// Tells the peer that the request at `psn` is refused, after `msn` messages, and falls into Error
/// where the fault is for good.
pub(crate) fn refuse<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    fault: Fault,
    psn: Psn,
    msn: Msn,
) {
    let syndrome = syndrome(qp, fault);
    let msn = if matches!(syndrome, Syndrome::Ack { .. }) { msn.plus(1) } else { msn };
    answer(qp, dev, Answer { psn, msn, syndrome });
    match fault {
        Fault::NoReceive => qp.responder.told_back = true,
        _ => qp.responder.parting = true,
    }
    suffer(qp, dev, io, fault);
}

/// What a fault that the peer was told of does to this side.
pub(crate) fn suffer<M, C: CqSink>(
    qp: &mut Qp,
    dev: &mut Device,
    io: &mut Io<'_, M, C>,
    fault: Fault,
) {
    let Some(Consequence { syndrome, receive, event }) = consequence(fault) else {
        tally!(qp, dev, out_of_buffer);
        return;
    };
    count(qp, dev, syndrome);
    qp.fail_receive(dev, io.cq, receive);
    let cause = event.map_or(Cause::Receive(receive), |event| Cause::Event(event(qp.qpn)));
    qp.enter_error(dev, io.cq, Some(cause));
}

/// Counts a refusal.
pub(crate) fn count(qp: &mut Qp, dev: &mut Device, syndrome: Syndrome) {
    match syndrome {
        Syndrome::Nak(NakCode::RemoteAccessError) => tally!(qp, dev, resp_remote_access_errors),
        Syndrome::Nak(NakCode::InvalidRequest) => tally!(qp, dev, resp_remote_invalid_request),
        _ => {}
    }
}

/// Has the answer sent. It acknowledges all before it, so that an ACK still due says nothing more.
fn answer(qp: &mut Qp, dev: &mut Device, answer: Answer) {
    qp.responder.ack = None;
    qp.responder.refusal = Some(answer);
    dev.ready.push(qp.slot);
}
