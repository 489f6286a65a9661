//! Where frames and completions go, and what a frame is.

use crate::ids::{CqId, Gid, Qpn};
use crate::wire::packet::DropReason;
use crate::work::{Completion, CqOverrun, WcOpcode};

/// The IP and UDP fields of a frame that vary; the destination port is always 4791.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Sender.
    pub src: Gid,
    /// Receiver, or a multicast group.
    pub dst: Gid,
    /// UDP source port: entropy for switches, constant per queue pair.
    pub src_port: u16,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
}

/// What is known about the IPv4 identification, which the ICRC covers. Meaningless for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpId {
    /// The wire saw the header.
    Exact(u16),
    /// The wire hides the header; a sender like ours would have used this value.
    Likely(u16),
}

/// A frame as received: everything after the UDP header, BTH to ICRC.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Addresses.
    pub flow: Flow,
    /// IPv4 identification.
    pub ip_id: IpId,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// What became of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOutcome {
    /// The IPv4 identification that satisfied the ICRC; 0 for IPv6 and where none did.
    pub ip_id: u16,
    /// Why the frame had no effect, if so.
    pub dropped: Option<DropReason>,
    /// Bytes of the frame's message that are on their way, as far as this side knows; 0 where the
    /// sender waits for an answer.
    pub rest: u64,
}

/// Takes frames that the engine wants sent.
pub trait TxSink {
    /// Lends `len` bytes for one frame (UDP payload, ICRC included) to queue pair `to` and has `fill`
    /// write all of them. `fill` gets the IPv4 identification the frame will carry and is called at most once.
    /// Returns false, without calling `fill`, when there is no room now.
    fn send(
        &mut self,
        flow: &Flow,
        to: Qpn,
        len: usize,
        fill: &mut dyn FnMut(u16, &mut [u8]),
    ) -> bool;
}

/// Takes completions.
pub trait CqSink {
    /// Appends to a completion queue.
    ///
    /// # Errors
    /// [`CqOverrun`] when it is full: the engine then fails every queue pair on it.
    fn push(&mut self, cq: CqId, completion: Completion) -> Result<(), CqOverrun>;

    /// Appends as many completions as `fill` says that it wrote, from the first on, into the slots that
    /// it is lent: they lie in a row, and there are none where the queue is full.
    ///
    /// # Errors
    /// [`CqOverrun`] when what was written is lost.
    #[inline]
    fn fill(
        &mut self,
        cq: CqId,
        fill: impl FnOnce(&mut [Completion]) -> usize,
    ) -> Result<(), CqOverrun> {
        let mut slot = [Completion::new(WcOpcode::Recv, 0)];
        match fill(&mut slot) {
            0 => Ok(()),
            _ => self.push(cq, slot[0]),
        }
    }
}
