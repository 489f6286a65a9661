//! Connections by the connection manager's protocol, with any RoCEv2 device that speaks it: a network
//! card, the Linux kernel, another software NIC.
//!
//! Shaped like `rdma_cm(7)`: an [`EventChannel`] tells what happens to its [`Id`]s, each of which listens,
//! or is one connection or one lookup of a datagram service. What comes of a command is an [`Event`],
//! acknowledged by dropping it; events that are held can be [listed](EventChannel::unacknowledged).
//!
//! | active | passive |
//! |---|---|
//! | [`resolve_addr`](Id::resolve_addr) → `ADDR_RESOLVED` | [`bind`](Id::bind), [`listen`](Id::listen) |
//! | [`resolve_route`](Id::resolve_route) → `ROUTE_RESOLVED` | |
//! | [`create_qp`](Id::create_qp), post receives | |
//! | [`connect`](Id::connect) | `CONNECT_REQUEST` with a new id |
//! | | [`create_qp`](Id::create_qp), post receives, [`accept`](Id::accept) |
//! | `ESTABLISHED` | `ESTABLISHED` |
//! | [`disconnect`](Id::disconnect) → `DISCONNECTED`, `TIMEWAIT_EXIT` | `DISCONNECTED`, `TIMEWAIT_EXIT` |
//!
//! An id with a queue pair moves it: to INIT at once, so that receives can be posted, and on to RTS before the
//! peer can know of it. An id without one ("CM only") is told the queue pair's number in
//! [`ConnectParams::qp`], tells the terms, and leaves the moves to its owner: an accepting one brings the queue pair to
//! RTS by [`Id::negotiate`] and [`advance`] before it accepts, a connecting one has `CONNECT_RESPONSE`, and ends with
//! [`Id::establish`].
//!
//! What goes wrong, and the event that says so:
//!
//! | event | raised when |
//! |---|---|
//! | `ADDR_ERROR` | no address of the device leads to that destination |
//! | `ROUTE_ERROR` | the port of the address is down |
//! | `CONNECT_ERROR` | the peer accepts, and the queue pair cannot be moved to RTS |
//! | `UNREACHABLE` | no answer in all the time that there is; a lookup that is refused |
//! | `REJECTED` | the peer refuses, with its [`RejectReason`] as status |
//! | `DISCONNECTED` | either side ends the connection, or the peer is gone |
//! | `TIMEWAIT_EXIT` | no packet of the connection can be under way any more |
//! | `DEVICE_REMOVAL` | the device failed beyond repair: every id of it is told |
//! | `ADDR_CHANGE` | the interface under the device has another hardware address |
//! | `MULTICAST_ERROR` | a group cannot be joined |
//!
//! Below that is [`CmAgent`], the device's state machine itself ([`pmd_roce::cm`]) on queue pair 1 of its first
//! lcore, driven by the lcore's own turns, for programs that want no ids.

mod agent;
mod books;
mod channel;
mod commands;
mod desk;
mod event;
mod held;
mod id;
mod id_error;
mod managed;
mod ports;
mod provider;
mod wait;
mod watch;

pub use agent::{CmAgent, OpenCmError};
pub use channel::EventChannel;
pub use event::{
    AddrFault, ConnectFault, Established, Event, EventKind, Membership, Request, Unreached,
};
pub use held::HeldEvent;
pub use id::{ConnectParams, Id, IdNumber};
pub use id_error::{IdError, IdStays};
pub use managed::ManagedQp;
pub use pmd_roce::cm::*;
pub use provider::{IdState, IdView, UDP_QKEY, advance};
pub use wait::CmFailure;
