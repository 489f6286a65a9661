//! Sockets and their options.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Default TTL and hop limit of RoCEv2, which saves a control message per datagram.
pub(super) const HOP_LIMIT: u8 = 64;

/// A non-blocking UDP socket of the family of `address`.
pub(super) fn new(address: IpAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::DGRAM, flags, None)?;
    if address.is_ipv6() {
        // Before it is bound, or the kernel refuses.
        set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    Ok(fd)
}

/// The socket address of `address`; `scope` names the interface of a link-local one.
pub(super) fn with_port(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => {
            SocketAddrV6::new(v6, port, 0, scope).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

/// Sets what every socket of this wire needs: no fragmentation, the fields of the IP header as
/// control messages, the number of overflows, merged datagrams where the kernel can.
pub(super) fn configure(fd: BorrowedFd<'_>, address: IpAddr) -> io::Result<()> {
    let ttl = c_int::from(HOP_LIMIT);
    if address.is_ipv4() {
        set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IP, libc::IP_TTL, ttl)?;
        set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, ttl)?;
        set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    } else {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, ttl)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        // RoCEv2 devices, the kernel's among them, send no UDP checksum; the ICRC covers more.
        set(fd, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    match set(fd, libc::SOL_UDP, libc::UDP_GRO, 1) {
        // Before Linux 5.0: every datagram is then received by itself.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        result => result,
    }
}

/// Asks for buffers of so many bytes; the kernel grants what its limits and our privilege allow.
/// Returns the receive buffer granted.
pub(super) fn size_buffers(fd: BorrowedFd<'_>, receive: usize, send: usize) -> io::Result<usize> {
    for (bytes, force, plain) in [
        (receive, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (send, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        let bytes = c_int::try_from(bytes / 2).unwrap_or(c_int::MAX / 2);
        if set(fd, libc::SOL_SOCKET, force, bytes).is_err() {
            set(fd, libc::SOL_SOCKET, plain, bytes)?;
        }
    }
    let granted = get(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(usize::try_from(granted).unwrap_or(0))
}

/// setsockopt(2) with a value of any plain type.
pub(super) fn set<T: Copy>(fd: impl AsFd, level: c_int, option: c_int, value: T) -> io::Result<()> {
    let len = socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let value: *const c_void = (&raw const value).cast();
    // SAFETY: `value` points to `len` readable bytes that live through the call; the kernel only
    // reads them. What a pointer inside them points to is the caller's affair (`steer`).
    let result = unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, option, value, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// getsockopt(2) of an int.
pub(super) fn get(fd: impl AsFd, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the new length to `len`; both
    // live through the call.
    let result = unsafe {
        libc::getsockopt(raw, level, option, (&raw mut value).cast::<c_void>(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
