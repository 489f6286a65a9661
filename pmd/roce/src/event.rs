//! Asynchronous events, each scoped to what it concerns.

use core::fmt;
use std::collections::VecDeque;

use crate::ids::{CqId, Qpn, Srqn};

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident($element:ident: $kind:ty) = $number:literal, $name:literal, $scope:expr;)*) => {
        /// An event; the kinds of `enum ibv_event_type`, with their numbers. This device raises those of
        /// queue pairs, queues, ports and of itself; the other ones are there for devices that do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AsyncEvent {
            $($(#[$doc])* $variant($kind),)*
            /// The device is beyond repair: every queue pair on it is in error, and no completion can be
            /// expected any more.
            DeviceFatal,
            /// A kind that came after this list was made.
            Unknown(u32),
        }

        impl AsyncEvent {
            /// The event of a device that speaks in numbers: its kind, and the number of the queue pair,
            /// queue or port that it concerns. One that is not known is kept as [`Self::Unknown`].
            pub const fn from_number(number: u32, element: u32) -> Self {
                match number {
                    $($number => { let $element = element; Self::$variant($scope) })*
                    DEVICE_FATAL => Self::DeviceFatal,
                    unknown => Self::Unknown(unknown),
                }
            }

            /// Its number in `enum ibv_event_type`.
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant(_) => $number,)*
                    Self::DeviceFatal => DEVICE_FATAL,
                    Self::Unknown(number) => number,
                }
            }

            /// Its name in `enum ibv_event_type`, without the prefix.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    Self::DeviceFatal => "DEVICE_FATAL",
                    Self::Unknown(_) => "UNKNOWN",
                }
            }
        }
    };
}

/// `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u32 = 8;

events! {
    /// A completion queue overran: it, and every queue pair on it, is in error.
    CqErr(id: CqId) = 0, "CQ_ERR", CqId(id);
    /// A queue pair fell into error for a reason of this side, its completion or receive queue.
    QpFatal(id: Qpn) = 1, "QP_FATAL", Qpn::new(id);
    /// A peer's request made no sense: opcode, sequence, or an operation this queue pair forbids.
    QpReqErr(id: Qpn) = 2, "QP_REQ_ERR", Qpn::new(id);
    /// A peer's request broke memory rights, alignment, length or the READ/atomic limit.
    QpAccessErr(id: Qpn) = 3, "QP_ACCESS_ERR", Qpn::new(id);
    /// Data arrived on a queue pair in RTR: the peer considers the connection established.
    CommEst(id: Qpn) = 4, "COMM_EST", Qpn::new(id);
    /// The send queue is drained after a transition to SQD that asked for this.
    SqDrained(id: Qpn) = 5, "SQ_DRAINED", Qpn::new(id);
    /// The connection goes on over its alternate path.
    PathMig(id: Qpn) = 6, "PATH_MIG", Qpn::new(id);
    /// The connection was to go on over its alternate path, and could not.
    PathMigErr(id: Qpn) = 7, "PATH_MIG_ERR", Qpn::new(id);
    /// Packets pass again.
    PortActive(id: u8) = 9, "PORT_ACTIVE", port(id);
    /// No packet passes for now. Nothing fails by that alone: what is in flight is tried again for as
    /// long as its retries last.
    PortErr(id: u8) = 10, "PORT_ERR", port(id);
    /// InfiniBand: the port has another local identifier.
    LidChange(id: u8) = 11, "LID_CHANGE", port(id);
    /// The port's partition table has changed.
    PkeyChange(id: u8) = 12, "PKEY_CHANGE", port(id);
    /// InfiniBand: another subnet manager is in charge.
    SmChange(id: u8) = 13, "SM_CHANGE", port(id);
    /// A shared receive queue failed.
    SrqErr(id: Srqn) = 14, "SRQ_ERR", Srqn(id);
    /// The requests in a shared receive queue dropped below the armed limit; one shot.
    SrqLimitReached(id: Srqn) = 15, "SRQ_LIMIT_REACHED", Srqn(id);
    /// The queue pair in error will take no more from its shared receive queue.
    LastWqeReached(id: Qpn) = 16, "QP_LAST_WQE_REACHED", Qpn::new(id);
    /// InfiniBand: the subnet manager wants everybody to register again.
    ClientReregister(id: u8) = 17, "CLIENT_REREGISTER", port(id);
    /// The port's GID table has changed: indices are to be looked up again.
    GidChange(id: u8) = 18, "GID_CHANGE", port(id);
    /// A work queue of a receive hash table failed.
    WqFatal(id: u32) = 19, "WQ_FATAL", id;
}

#[expect(clippy::cast_possible_truncation, reason = "a port number is a byte")]
const fn port(number: u32) -> u8 {
    number as u8
}

/// What an event concerns, and with it what fails: nothing beyond the scope does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventScope {
    /// One queue pair.
    Qp(Qpn),
    /// A completion queue, with every queue pair on it.
    Cq(CqId),
    /// A shared receive queue, with every queue pair that takes its receives from it.
    Srq(Srqn),
    /// A work queue.
    Wq(u32),
    /// A port; no queue pair fails by its events.
    Port(u8),
    /// The whole device.
    Device,
}

impl AsyncEvent {
    /// What it concerns. One that is not known concerns the device, and is no reason to fail anything.
    pub const fn scope(self) -> EventScope {
        match self {
            Self::QpFatal(qpn)
            | Self::QpReqErr(qpn)
            | Self::QpAccessErr(qpn)
            | Self::CommEst(qpn)
            | Self::SqDrained(qpn)
            | Self::PathMig(qpn)
            | Self::PathMigErr(qpn)
            | Self::LastWqeReached(qpn) => EventScope::Qp(qpn),
            Self::CqErr(cq) => EventScope::Cq(cq),
            Self::SrqErr(srqn) | Self::SrqLimitReached(srqn) => EventScope::Srq(srqn),
            Self::WqFatal(wq) => EventScope::Wq(wq),
            Self::PortActive(port)
            | Self::PortErr(port)
            | Self::LidChange(port)
            | Self::PkeyChange(port)
            | Self::SmChange(port)
            | Self::ClientReregister(port)
            | Self::GidChange(port) => EventScope::Port(port),
            Self::DeviceFatal | Self::Unknown(_) => EventScope::Device,
        }
    }

    /// The queue pair it concerns, if one.
    pub const fn qpn(self) -> Option<Qpn> {
        match self.scope() {
            EventScope::Qp(qpn) => Some(qpn),
            _ => None,
        }
    }

    /// Whether work in its scope is lost: what is in flight there fails, and what comes is refused.
    pub const fn is_fatal(self) -> bool {
        matches!(
            self,
            Self::QpFatal(_)
                | Self::QpReqErr(_)
                | Self::QpAccessErr(_)
                | Self::CqErr(_)
                | Self::SrqErr(_)
                | Self::WqFatal(_)
                | Self::DeviceFatal
        )
    }

    /// Whether completions of the work that it ends can still come. A queue that overran, or a device
    /// that is gone, has none: whoever waits for them waits for ever.
    pub const fn leaves_completions(self) -> bool {
        !matches!(self, Self::CqErr(_) | Self::DeviceFatal)
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self.scope() {
            EventScope::Qp(qpn) => write!(f, "{name} on queue pair {qpn}"),
            EventScope::Cq(CqId(cq)) => write!(f, "{name} on completion queue {cq}"),
            EventScope::Srq(srqn) => write!(f, "{name} on shared receive queue {srqn}"),
            EventScope::Wq(wq) => write!(f, "{name} on work queue {wq}"),
            EventScope::Port(port) => write!(f, "{name} on port {port}"),
            EventScope::Device => match self {
                Self::Unknown(number) => write!(f, "an event of unknown kind {number}"),
                _ => f.write_str(name),
            },
        }
    }
}

/// Events that nobody has polled yet. An event that is still in the queue is not raised a second
/// time, which bounds the queue.
#[derive(Debug)]
pub(crate) struct EventQueue(VecDeque<AsyncEvent>);

impl EventQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(VecDeque::with_capacity(capacity))
    }

    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if !self.0.contains(&event) {
            self.0.push_back(event);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn poll(&mut self) -> Option<AsyncEvent> {
        self.0.pop_front()
    }

    /// Drops the events of a queue pair that is no more.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.0.retain(|event| event.qpn() != Some(qpn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S3-14 to S3-17, S3-23, E-36, and the list of scopes in `ibv_get_async_event(3)`: what each number
    /// means, whom it concerns and whether it fails anybody. A kind from the future does no harm.
    #[test]
    fn s3_14_every_event_has_its_scope() {
        use EventScope::{Cq, Device, Port, Qp, Srq, Wq};
        let (qp, cq, srq) = (Qp(Qpn::new(7)), Cq(CqId(7)), Srq(Srqn(7)));
        let list = [
            ("CQ_ERR", cq, true),
            ("QP_FATAL", qp, true),
            ("QP_REQ_ERR", qp, true),
            ("QP_ACCESS_ERR", qp, true),
            ("COMM_EST", qp, false),
            ("SQ_DRAINED", qp, false),
            ("PATH_MIG", qp, false),
            ("PATH_MIG_ERR", qp, false),
            ("DEVICE_FATAL", Device, true),
            ("PORT_ACTIVE", Port(7), false),
            ("PORT_ERR", Port(7), false),
            ("LID_CHANGE", Port(7), false),
            ("PKEY_CHANGE", Port(7), false),
            ("SM_CHANGE", Port(7), false),
            ("SRQ_ERR", srq, true),
            ("SRQ_LIMIT_REACHED", srq, false),
            ("QP_LAST_WQE_REACHED", qp, false),
            ("CLIENT_REREGISTER", Port(7), false),
            ("GID_CHANGE", Port(7), false),
            ("WQ_FATAL", Wq(7), true),
            // DEVICE_SPEED_CHANGE, which is newer than this list.
            ("UNKNOWN", Device, false),
        ];
        for (number, (name, scope, is_fatal)) in (0..).zip(list) {
            let event = AsyncEvent::from_number(number, 7);
            assert_eq!(event.number(), number, "{name}");
            assert_eq!((event.name(), event.scope(), event.is_fatal()), (name, scope, is_fatal));
            assert_eq!(event.qpn().is_some(), scope == qp);
        }
        assert_eq!(AsyncEvent::from_number(20, 7), AsyncEvent::Unknown(20));
        assert_eq!(AsyncEvent::from_number(20, 7).to_string(), "an event of unknown kind 20");
        assert_eq!(AsyncEvent::PortErr(1).to_string(), "PORT_ERR on port 1");
        assert!(!AsyncEvent::CqErr(CqId(1)).leaves_completions(), "E-27");
        assert!(AsyncEvent::SrqErr(Srqn(1)).leaves_completions(), "E-27");
    }
}
