//! Services as types: what a queue pair can do is known when it is created.
//!
//! The state of a queue pair is not a type, since it can fall into Error at any instant; its
//! transport is, since that never changes.

use std::fmt;

use pmd_roce::qp::state::Transport;

mod sealed {
    pub trait Sealed {}
}

/// A transport service. Sealed: the set is the specification's.
pub trait Service: sealed::Sealed + fmt::Debug + 'static {
    /// The service as the engine names it.
    const TRANSPORT: Transport;
}

/// Services between exactly two queue pairs.
pub trait Connected: Service {}
/// Services with a send queue.
pub trait Sends: Service {}
/// Services with a receive queue, own or shared.
pub trait Receives: Service {}
/// Services with RDMA WRITE.
pub trait Rdma: Connected + Sends {}
/// Services that acknowledge: RDMA READ, SEND with invalidate, memory windows.
pub trait Reliable: Rdma {}
/// Services with atomics.
pub trait Atomic: Reliable {}

macro_rules! services {
    ($($(#[$doc:meta])* $name:ident: $($can:ident)*;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl Service for $name {
            const TRANSPORT: Transport = Transport::$name;
        }
        $(impl $can for $name {})*
    )*};
}

services! {
    /// Reliable connection.
    Rc: Connected Sends Receives Rdma Reliable Atomic;
    /// Unreliable connection: SEND and WRITE, a lost packet loses its message.
    Uc: Connected Sends Receives Rdma;
    /// Unreliable datagram: one packet per message, any number of peers.
    Ud: Sends Receives;
    /// Sending half of an extended reliable connection.
    XrcIni: Connected Sends Rdma Reliable Atomic;
    /// Receiving half of an extended reliable connection; delivers into many shared queues.
    XrcTgt: Connected;
}
