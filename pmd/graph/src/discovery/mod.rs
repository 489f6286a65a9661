//! How nodes that do not know each other's addresses meet: datagrams to a multicast group, and answers one to one.
//!
//! **Announcing.** Whoever wants to be found sends an [`Announcement`] to the group at an interval: its name, where it is
//! reached (address and queue pair), its generation, which grows when it starts anew, and how long others may believe in
//! it without hearing it again.
//!
//! **Answering.** Who hears of somebody for the first time, or of somebody who is still looking, answers with a datagram
//! to that queue pair alone: an announcement of its own that repeats whom it answers. Then both sides know each other,
//! and the one that was answered knows that it was heard.
//!
//! **Ignoring.** A datagram counts only if it came from the address and the queue pair that it names. A generation older
//! than one that is known is an echo of the past.
//!
//! **Trusting.** Nothing proves a name: whoever can send to the group can take one, and with a greater generation take it
//! over. What is found is an address to connect to, not an identity.
//!
//! Datagrams are big-endian, as what else travels in them, have the Q_Key [`QKEY`], and start with a magic number and
//! [`VERSION`].

mod message;

pub use message::{Announcement, LONGEST, NAME_LONGEST, NoAnnouncement, VERSION, WHO_BYTES, Who};

/// The Q_Key of all queue pairs that speak this protocol: "SPDA".
pub const QKEY: u32 = 0x5350_4441;
