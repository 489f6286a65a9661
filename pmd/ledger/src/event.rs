//! Asynchronous events: what each concerns, and whether it fails work.

use std::fmt;

use crate::limits::DRAIN_NS;

/// What an event speaks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One queue pair, by context and number.
    Qp,
    /// Every queue pair that completes to one completion queue.
    Cq,
    /// Every queue pair that receives from one shared receive queue.
    Srq,
    /// The queue pair that receives from one work queue.
    Wq,
    /// A port. Its link may come back, and queue pairs survive.
    Port,
    /// Everything of one context.
    Device,
    /// Nobody knows.
    Unknown,
}

macro_rules! kinds {
    ($($variant:ident $number:literal $name:literal $scope:ident $doc:literal,)*) => {
        /// Kinds of `enum ibv_event_type`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EventKind {
            $(#[doc = $doc] $variant,)*
            /// One that this version does not know, by its number: it is logged and fails nothing.
            Unknown(u32),
        }

        impl EventKind {
            /// Every kind that is known, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The kind that verbs number so.
            pub const fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            /// The number that verbs use.
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Unknown(number) => number,
                }
            }

            /// What it speaks about.
            pub const fn scope(self) -> Scope {
                match self {
                    $(Self::$variant => Scope::$scope,)*
                    Self::Unknown(_) => Scope::Unknown,
                }
            }
        }

        impl fmt::Display for EventKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($name),)*
                    Self::Unknown(number) => write!(f, "event type {number}"),
                }
            }
        }
    };
}

kinds! {
    CqErr 0 "CQ_ERR" Cq "The completion queue overran.",
    QpFatal 1 "QP_FATAL" Qp "The queue pair failed on this side.",
    QpReqErr 2 "QP_REQ_ERR" Qp "A peer's request made no sense.",
    QpAccessErr 3 "QP_ACCESS_ERR" Qp "A peer's request broke the rights of memory.",
    CommEst 4 "COMM_EST" Qp "The first packet came while in RTR.",
    SqDrained 5 "SQ_DRAINED" Qp "What was started before SQD is finished.",
    PathMig 6 "PATH_MIG" Qp "The queue pair uses its alternate path.",
    PathMigErr 7 "PATH_MIG_ERR" Qp "The alternate path could not be used.",
    DeviceFatal 8 "DEVICE_FATAL" Device "The device failed as a whole.",
    PortActive 9 "PORT_ACTIVE" Port "The link is up.",
    PortErr 10 "PORT_ERR" Port "The link is down.",
    LidChange 11 "LID_CHANGE" Port "The port's LID changed.",
    PkeyChange 12 "PKEY_CHANGE" Port "The port's P_Key table changed.",
    SmChange 13 "SM_CHANGE" Port "Another subnet manager took over.",
    SrqErr 14 "SRQ_ERR" Srq "The shared receive queue failed.",
    SrqLimitReached 15 "SRQ_LIMIT_REACHED" Srq "The shared receive queue runs low.",
    QpLastWqeReached 16 "QP_LAST_WQE_REACHED" Qp "The queue pair takes no more from its shared receive queue.",
    ClientReregister 17 "CLIENT_REREGISTER" Port "The subnet manager asks for registrations again.",
    GidChange 18 "GID_CHANGE" Port "The port's GID table changed.",
    WqFatal 19 "WQ_FATAL" Wq "The work queue failed.",
}

impl EventKind {
    /// Whether what it concerns is beyond use.
    pub const fn is_fatal(self) -> bool {
        use EventKind::{CqErr, DeviceFatal, QpAccessErr, QpFatal, QpReqErr, SrqErr, WqFatal};
        matches!(self, CqErr | QpFatal | QpReqErr | QpAccessErr | DeviceFatal | SrqErr | WqFatal)
    }

    /// Whether completions of what is in flight still come: not where the completion queue or the device is what failed.
    pub const fn flushes(self) -> bool {
        matches!(self.scope(), Scope::Qp | Scope::Srq | Scope::Wq)
    }
}

/// An event as a monitor hands it to the lcore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The device context that raised it: numbers of objects mean nothing without it.
    pub context: u32,
    /// What happened.
    pub kind: EventKind,
    /// Number of the queue pair, completion queue, shared receive queue, work queue or port; 0 for a device.
    pub on: u32,
}

/// What belongs to an account: how events find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The device context.
    pub context: u32,
    /// The queue pair.
    pub qpn: u32,
    /// Where sends complete.
    pub send_cq: u32,
    /// Where receives complete.
    pub recv_cq: u32,
    /// The shared receive queue, if it has one.
    pub srq: Option<u32>,
    /// The work queue, if its receives are one.
    pub wq: Option<u32>,
}

impl Identity {
    /// Whether the event speaks about this queue pair, directly or through what it uses.
    pub fn concerns(&self, event: &Event) -> bool {
        self.context == event.context
            && match event.kind.scope() {
                Scope::Qp => self.qpn == event.on,
                Scope::Cq => self.send_cq == event.on || self.recv_cq == event.on,
                Scope::Srq => self.srq == Some(event.on),
                Scope::Wq => self.wq == Some(event.on),
                Scope::Device => true,
                Scope::Port | Scope::Unknown => false,
            }
    }
}

/// What events may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Master switch: whether events are looked at. On by default.
    pub events: bool,
    /// Whether a fatal event fails work, or is only told. On by default.
    pub fail: bool,
    /// How long flushed completions are waited for, which say more than the event, nanoseconds. 0: not at all.
    pub drain_ns: u64,
}

impl Default for Switches {
    fn default() -> Self {
        Self { events: true, fail: true, drain_ns: DRAIN_NS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: Identity =
        Identity { context: 1, qpn: 7, send_cq: 20, recv_cq: 21, srq: Some(30), wq: Some(40) };

    const fn event(context: u32, kind: EventKind, on: u32) -> Event {
        Event { context, kind, on }
    }

    /// S3-14, S3-15, S3-16, S3-18, S3-23: each event reaches what it speaks about, in its own context only.
    #[test]
    fn s3_18_async_scope_matching() {
        use EventKind::{CqErr, DeviceFatal, QpAccessErr, QpFatal, QpReqErr, SrqErr, WqFatal};
        let concerned = [
            (QpFatal, 7),
            (QpReqErr, 7),
            (QpAccessErr, 7),
            (CqErr, 20),
            (CqErr, 21),
            (SrqErr, 30),
            (WqFatal, 40),
            (DeviceFatal, 0),
        ];
        for (kind, on) in concerned {
            assert!(kind.is_fatal());
            assert!(QP.concerns(&event(1, kind, on)), "{kind}");
            assert!(!QP.concerns(&event(2, kind, on)), "{kind} of another device");
            if kind != DeviceFatal {
                assert!(!QP.concerns(&event(1, kind, on + 100)), "{kind} of something else");
            }
        }
        let bare = Identity { srq: None, wq: None, ..QP };
        assert!(!bare.concerns(&event(1, SrqErr, 30)) && !bare.concerns(&event(1, WqFatal, 40)));
    }

    /// S3-17: the link may recover.
    #[test]
    fn s3_17_a_port_event_concerns_no_queue_pair() {
        for &kind in EventKind::ALL.iter().filter(|kind| kind.scope() == Scope::Port) {
            assert!(!kind.is_fatal() && !QP.concerns(&event(1, kind, 1)), "{kind}");
        }
    }

    /// Only where completions can come are they waited for.
    #[test]
    fn completions_are_expected_unless_their_queue_is_gone() {
        let silent: Vec<_> =
            EventKind::ALL.iter().filter(|kind| kind.is_fatal() && !kind.flushes()).collect();
        assert_eq!(silent, [&EventKind::CqErr, &EventKind::DeviceFatal]);
    }

    #[test]
    fn numbers_are_those_of_verbs_and_new_ones_are_survived() {
        for (number, &kind) in (0..).zip(EventKind::ALL) {
            assert_eq!((kind.number(), EventKind::from_number(number)), (number, kind));
        }
        let new = EventKind::from_number(20);
        assert_eq!((new, new.to_string()), (EventKind::Unknown(20), "event type 20".into()));
        assert!(!new.is_fatal() && !QP.concerns(&event(1, new, 7)));
    }
}
