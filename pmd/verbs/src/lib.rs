//! RDMA verbs for poll-mode programs: devices, queue pairs, endpoints.
//!
//! [`Device`] is opened once per process; each lcore takes its [`Context`] and creates objects in
//! it, which stay on its thread: [`Pd`], [`Mr`], [`Mw`], [`Cq`], [`Srq`], [`Qp`], [`Ah`]. Their
//! methods are the verbs of the man pages, their rules the specification's. Programs that only
//! want to move bytes use [`endpoint::Endpoint`] instead, and [`connect`] to find each other.
// All of it is in `rdma_core`.
#![deny(unsafe_code)]

mod ah;
mod attr;
pub mod cm;
mod comp_channel;
pub mod connect;
mod context;
mod cq;
mod device;
mod discover;
mod disturb;
mod doorbell;
pub mod endpoint;
mod event;
mod evidence;
pub mod gid;
mod journal;
mod mr;
mod mw;
mod pd;
mod provider;
mod qp;
pub mod quirks;
mod rdma_core;
mod sleeper;
mod soft;
mod srq;
mod survey;
mod transition;
mod transport;
mod work_request;

pub use ah::Ah;
pub use attr::{DeviceAttr, PortAttr, PortState};
pub use comp_channel::CompletionChannel;
pub use context::Context;
pub use cq::{Cq, CreateCqError, MAX_CQE};
pub use device::{Device, DeviceConfig, MAX_LCORES, OpenError, WireChoice};
pub use discover::{SoftAddress, SoftAddresses, Taken, soft_addresses};
pub use disturb::{Disturb, FaultText, PlacedFault};
pub use doorbell::Doorbell;
pub use event::{EVENT_PATIENCE, Event, Stays, StaysBecause, Unacknowledged};
pub use evidence::failed_request;
pub use journal::JournalReader;
pub use mr::{Mr, RegisterError};
pub use mw::Mw;
pub use pd::Pd;
pub use pmd_ledger as ledger;
pub use pmd_observe::journal::By;
pub use pmd_record as record;
pub use pmd_roce as roce;
pub use pmd_roce::work::{
    Access, Completion, Data, Imm, RecvWr, RemoteAddr, Sge, WcOpcode, WcStatus,
};
pub use pmd_wire::shm::{CpuClaim, CpuHolder, Directory as Rendezvous, DirectoryError};
pub use qp::{
    CreateQpError, JoinGroupError, ModifyQpError, PostListError, PostRecvListError, Qp, QpOptions,
    Retired,
};
pub use rdma_core::{LibraryError, NicChoice, NicError, NicInfo, nics};
pub use srq::{Srq, SrqOptions};
pub use survey::{QpStatus, Survey};
pub use transport::{
    Atomic, Connected, Rc, Rdma, Receives, Reliable, Sends, Service, Uc, Ud, XrcIni, XrcTgt,
};
pub use work_request::WorkRequest;
