//! Multicast groups: a socket each, bound to the group's address.
//!
//! Several processes of a host may be members of one group, so these sockets share their address
//! (SO_REUSEADDR), and each gets a copy.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::interface::Interface;
use super::rx::Receiver;
use super::socket;
use crate::limits::MAX_GROUPS;
use crate::wire::{JoinError, ROCE_PORT};

/// The groups that a wire is a member of.
#[derive(Debug)]
pub(super) struct Groups {
    members: Vec<Receiver>,
    receive_buffer: usize,
}

impl Groups {
    pub(super) fn new(receive_buffer: usize) -> Self {
        Self { members: Vec::new(), receive_buffer }
    }

    pub(super) fn receivers(&mut self) -> &mut [Receiver] {
        &mut self.members
    }

    /// Joins on the interface that has the wire's address.
    pub(super) fn join(
        &mut self,
        group: IpAddr,
        address: IpAddr,
        interface: &Interface,
        epoll: BorrowedFd<'_>,
    ) -> Result<(), JoinError> {
        if !group.is_multicast() || group.is_ipv4() != address.is_ipv4() {
            return Err(JoinError::NotAGroup(group, address));
        }
        if self.members.iter().any(|member| member.address == group) {
            return Ok(());
        }
        if self.members.len() == MAX_GROUPS {
            return Err(JoinError::TooMany(MAX_GROUPS));
        }
        let failed = |what| move |source| JoinError::Os { what, group, source };
        let socket = self.open(group, address, interface).map_err(failed("join"))?;
        epoll::add(epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|errno| failed("watch")(errno.into()))?;
        self.members.push(Receiver::new(socket, group));
        Ok(())
    }

    fn open(
        &self,
        group: IpAddr,
        address: IpAddr,
        interface: &Interface,
    ) -> std::io::Result<OwnedFd> {
        let fd = socket::new(group)?;
        socket::configure(fd.as_fd(), group)?;
        socket::size_buffers(fd.as_fd(), self.receive_buffer, 0)?;
        socket::set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        rustix::net::bind(&fd, &socket::with_port(group, ROCE_PORT, interface.index))?;
        match (group, address) {
            (IpAddr::V4(group), IpAddr::V4(address)) => {
                // Else it would also hear what other sockets of this host joined elsewhere.
                socket::set(&fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
                let request = membership(group.octets(), address.octets(), interface.index);
                socket::set(&fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, request)?;
            }
            (IpAddr::V6(group), _) => {
                let request = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: interface.index,
                };
                socket::set(&fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, request)?;
            }
            _ => {}
        }
        Ok(fd)
    }

    /// Closing the socket ends the membership and its place in the epoll set.
    pub(super) fn leave(&mut self, group: IpAddr) -> Result<(), JoinError> {
        let at = self.members.iter().position(|member| member.address == group);
        self.members.swap_remove(at.ok_or(JoinError::NotAMember(group))?);
        Ok(())
    }
}

/// Where frames to groups leave by default: the interface that has the wire's address.
pub(super) fn send_through(
    fd: BorrowedFd<'_>,
    address: IpAddr,
    interface: &Interface,
) -> std::io::Result<()> {
    match address {
        IpAddr::V4(v4) => {
            let request = membership([0; 4], v4.octets(), interface.index);
            socket::set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, request)
        }
        IpAddr::V6(_) => {
            socket::set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, interface.index)
        }
    }
}

fn membership(group: [u8; 4], address: [u8; 4], interface: u32) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group) },
        imr_address: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
        imr_ifindex: interface.cast_signed(),
    }
}
