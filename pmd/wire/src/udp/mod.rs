//! A plain UDP socket on port 4791: no privilege, no kernel module, any network.
//!
//! **Addresses.** An address belongs to one process: the socket is bound to exactly one, never to
//! the wildcard, and a second process is refused by [`BindError::InUse`]. The lcores of a process
//! share it: [`bind()`] makes a wire for each, and the kernel chooses among them by bits of the
//! destination queue pair number ([`LcoreBits`]). The choice is made once per datagram or merged
//! buffer: a sender like ours merges by the same bits, but what a network card or another sender
//! merges may still hold frames for another lcore's queue pairs.
//!
//! **Source port.** RoCEv2 senders vary the UDP source port per queue pair to spread over paths.
//! A socket has one, so every frame leaves from port 4791 ([`Wire::source_port`]). That is legal,
//! and the ICRC covers it.
//!
//! **Sending.** Frames of one flow and one size (the last may be shorter) leave as one GSO
//! super-packet, unless their destinations belong to different lcores of the peer, which the kernel
//! there tells apart only once per super-packet. With `IP_MTU_DISCOVER` = `IP_PMTUDISC_DO` on an unconnected socket, Linux sends
//! IPv4 identification 0, and the segments of a super-packet count 0, 1, 2 …; that is what
//! [`Wire::send`] tells `fill`. A path that cannot do GSO is found at the first try; from then on
//! frames leave one by one, each with identification 0 and its ICRC adjusted.
//!
//! **Receiving.** UDP_GRO hands over merged datagrams; each is cut up again, and the index of a
//! frame in its buffer is the identification that a sender like ours gave it
//! ([`IpId::Likely`](crate::IpId::Likely)). Merges made by the network card need not begin with
//! the sender's first segment, so that is a guess for the ICRC check to confirm.
//!
//! Sources: udp(7), ip(7), socket(7), recvmmsg(2).

mod bind;
mod cmsg;
mod interface;
mod local;
mod mmsg;
mod multicast;
mod owner;
mod rx;
mod socket;
mod steer;
mod tx;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use bind::{BindError, UdpOptions, bind, bind_auto, max_payload};
pub use interface::Interface;
pub use local::{Claim, LocalAddress, auto_address, claims, local_addresses, unnamed_claims};
pub use owner::Owner;
pub use steer::LcoreBits;

use crate::limits::MAX_PAYLOAD;
use crate::wire::{Flow, JoinError, ROCE_PORT, RxHandler, TxFill, Wire, WireCounters};
use mmsg::Messages;
use multicast::Groups;
use rx::Receiver;
use tx::TxQueue;

/// One lcore's end of a UDP address.
pub struct UdpWire {
    main: Receiver,
    groups: Groups,
    /// Of `main` and every group, so that one descriptor tells of all.
    epoll: OwnedFd,
    rx: Messages,
    tx: TxQueue,
    interface: Interface,
    max_payload: usize,
    receive_buffer: usize,
    counters: WireCounters,
}

impl UdpWire {
    /// The address that frames come from and go to.
    pub fn address(&self) -> IpAddr {
        self.main.address
    }

    /// The interface that has the address.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Bytes the kernel granted for received datagrams, its own bookkeeping included. More in
    /// flight than this holds is lost when the lcore is late.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Frames that can leave in one call; 1 where the kernel or the path has no GSO.
    pub fn segments_max(&self) -> usize {
        self.tx.segments_max()
    }
}

impl Wire for UdpWire {
    fn rx_burst(&mut self, now_ns: u64, handle: &mut RxHandler<'_>) -> usize {
        let mut count = self.main.receive(now_ns, &mut self.rx, &mut self.counters, handle);
        for group in self.groups.receivers() {
            count += group.receive(now_ns, &mut self.rx, &mut self.counters, handle);
        }
        count
    }

    fn send(&mut self, flow: &Flow, to: u32, len: usize, fill: &mut TxFill<'_>) -> bool {
        assert!(len <= MAX_PAYLOAD, "a frame of {len} bytes is longer than any RoCEv2 frame");
        debug_assert_eq!(flow.src_port, ROCE_PORT, "ask source_port() before building frames");
        debug_assert_eq!(flow.src, self.main.address, "the socket has one source address");
        if self.tx.is_full_for(flow, to, len) {
            self.tx.transmit_all(self.main.socket.as_fd(), &mut self.counters);
        }
        let Some((ip_id, frame)) = self.tx.append(flow, to, len) else {
            self.counters.tx_full += 1;
            return false;
        };
        fill(ip_id, frame);
        self.tx.transmit_full(self.main.socket.as_fd(), &mut self.counters);
        true
    }

    fn flush(&mut self, _now_ns: u64) {
        self.tx.transmit_all(self.main.socket.as_fd(), &mut self.counters);
    }

    fn pending(&self) -> usize {
        self.tx.pending()
    }

    fn source_port(&self, _wanted: u16) -> u16 {
        ROCE_PORT
    }

    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.groups.join(group, self.main.address, &self.interface, self.epoll.as_fd())
    }

    fn leave(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.groups.leave(group)
    }

    fn counters(&self) -> WireCounters {
        self.counters
    }

    fn name(&self) -> &'static str {
        "udp"
    }
}

impl fmt::Debug for UdpWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpWire")
            .field("address", &self.main.address)
            .field("interface", &self.interface)
            .field("max_payload", &self.max_payload)
            .field("segments_max", &self.tx.segments_max())
            .field("pending", &self.tx.pending())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::restamp;
    use crate::wire::RxVerdict;

    /// A socket without UDP checksums cannot segment, which stands for every path that cannot.
    #[test]
    fn where_segmentation_is_refused_frames_leave_alone_with_their_icrc_adjusted() {
        let mut wires = [(); 2].map(|()| bind_auto(&UdpOptions::default()).unwrap().remove(0));
        let [from, to] = &mut wires;
        socket::set(&from.main.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let flow = Flow {
            src: from.address(),
            dst: to.address(),
            src_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
        };
        // A frame whose ICRC counts as right for identification 0 when it is 0.
        let mut queue = |number: u8| {
            assert!(from.send(&flow, 0x11, 40, &mut |id, frame| {
                frame.fill(number);
                frame[36..].fill(0);
                restamp(frame, 0, id);
            }));
        };
        (0..5).for_each(&mut queue);
        from.flush(0);
        assert_eq!((from.segments_max(), from.pending()), (1, 0));
        let mut queue = |number: u8| {
            assert!(from.send(&flow, 0x11, 40, &mut |id, frame| {
                assert_eq!(id, 0);
                frame.fill(number);
                frame[36..].fill(0);
            }));
        };
        (5..7).for_each(&mut queue);
        from.flush(0);
        let counters = from.counters();
        assert_eq!((counters.tx_frames, counters.tx_datagrams, counters.tx_lost()), (7, 7, 0));
        let mut number = 0;
        while number < 7 {
            to.rx_burst(0, &mut |frame| {
                assert_eq!(frame.payload[..36], [number; 36]);
                assert_eq!(frame.payload[36..], [0; 4], "the ICRC of frame {number}");
                number += 1;
                RxVerdict { ip_id: 0, dropped: None, rest: 0 }
            });
        }
    }
}
