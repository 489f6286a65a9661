//! The record of in-flight work, so that nothing is ever lost.
//!
//! Whatever is submitted to a queue pair is *admitted* here first and *settles* exactly once: by its completion, by
//! an asynchronous event, or by a deadline, whichever comes first. At every moment
//!
//! ```text
//! admitted = settled + in flight
//! ```
//!
//! An [`Account`] holds the books of one queue pair, a [`Ledger`] the accounts of one lcore. Both belong to that lcore
//! alone; other threads see one word, through an [`Admission`], and send messages. Time and randomness are arguments,
//! and nothing here knows a device: whoever drives it hands in completions, events and the time, and does what comes out.
//!
//! The usual path is short: [`Account::admit`] stores a record into a ring, and [`Account::settle_row`] goes along a row of
//! completions that begins with the oldest one. Tickets are numbers that are never given out twice, so that a late completion finds nothing,
//! whatever has happened to its queue pair in between.
//!
//! ```
//! use pmd_ledger::{Account, Depths, Identity, Side, Status, Submission};
//!
//! let identity = Identity { context: 0, qpn: 0x11, send_cq: 3, recv_cq: 3, srq: None, wq: None };
//! let mut account = Account::new(0, identity, Depths { send: 128, recv: 128 }, Some(500_000_000));
//! let ticket = account.admit(Side::Send, Submission::one(42)).unwrap();
//! // The ticket goes to the device as `wr_id`, and comes back with the completion.
//! let mut settled = None;
//! account.settle(ticket, Status::SUCCESS, |end| settled = Some(end));
//! assert_eq!(settled.unwrap().token, 42);
//! assert_eq!(account.balance(Side::Send).in_flight, 0);
//! ```
//!
//! [`recovery`] brings a failed connection back, as a state machine of the same kind.
#![forbid(unsafe_code)]

mod account;
mod event;
mod gate;
mod ledger;
pub mod limits;
mod outcome;
mod queue;
pub mod recovery;
mod submission;
mod teardown;
mod transfer;

pub use account::{Account, Depths, Flushes, Side, State};
pub use event::{Event, EventKind, Identity, Scope, Switches};
pub use gate::{Admission, Refused, Stamp};
pub use ledger::{Effect, Ledger, Member, NoRoom};
pub use outcome::{Cause, Outcome, Settled, Status};
pub use queue::{AdmitError, Balance, Record};
pub use submission::{Replay, Submission, Ticket};
pub use teardown::{Teardown, Wait};
pub use transfer::{Ended, TransferId, Transfers};
