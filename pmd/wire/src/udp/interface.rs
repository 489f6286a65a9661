//! The interface that has an address: its name, index and MTU (getifaddrs(3), netdevice(7)).

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, ifaddrs, ifreq, sockaddr, sockaddr_in, sockaddr_in6};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Bytes of the largest IP packet it takes.
    pub mtu: usize,
}

impl Interface {
    /// The interface that has `address`, or the loopback interface whose network holds it: every
    /// address of 127.0.0.0/8 is local without being configured.
    pub(super) fn of(address: IpAddr, socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let entries = List::read()?;
        let exact = entries.iter().find(|e| e.address == address);
        let Some(entry) = exact.or_else(|| entries.iter().find(|e| e.loops_back(address))) else {
            return Ok(None);
        };
        Self::named(socket, &entry.name).map(Some)
    }

    /// The interface `name`.
    pub(super) fn named(socket: BorrowedFd<'_>, name: &str) -> io::Result<Self> {
        let (index, mtu) = query(socket, name)?;
        Ok(Self { name: name.to_owned(), index, mtu })
    }
}

/// One address of one interface.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) loopback: bool,
    pub(super) up: bool,
    pub(super) address: IpAddr,
    netmask: Option<IpAddr>,
}

impl Entry {
    fn loops_back(&self, address: IpAddr) -> bool {
        match (self.address, self.netmask, address) {
            (IpAddr::V4(own), Some(IpAddr::V4(mask)), IpAddr::V4(address)) => {
                self.loopback
                    && own.to_bits() & mask.to_bits() == address.to_bits() & mask.to_bits()
            }
            _ => false,
        }
    }
}

/// The list that getifaddrs(3) returns, freed on drop.
pub(super) struct List(*mut ifaddrs);

impl List {
    pub(super) fn read() -> io::Result<Vec<Entry>> {
        let mut head = ptr::null_mut();
        // SAFETY: getifaddrs stores a list at `head`, which lives through the call.
        if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let list = Self(head);
        let mut entries = Vec::new();
        let mut next = list.0;
        // SAFETY: `next` is null or an entry of the list, which stays whole until `list` drops.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ifa_next;
            let Some(address) = ip(entry.ifa_addr) else { continue };
            // SAFETY: getifaddrs gives every entry a name that ends in NUL.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            let has = |flag: c_int| entry.ifa_flags & flag.cast_unsigned() != 0;
            entries.push(Entry {
                name: name.to_string_lossy().into_owned(),
                loopback: has(libc::IFF_LOOPBACK),
                up: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
                address,
                netmask: ip(entry.ifa_netmask),
            });
        }
        Ok(entries)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from getifaddrs and is freed once.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// The address in `name`, an entry of a [`List`]; None for null or another family.
fn ip(name: *const sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or a socket address inside a list that the caller keeps; its first field, the
    // family, is there for every kind.
    let family = unsafe { name.as_ref() }?.sa_family;
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: this family's addresses are sockaddr_in.
            let v4 = unsafe { name.cast::<sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: this family's addresses are sockaddr_in6.
            let v6 = unsafe { name.cast::<sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Index and MTU of the interface `name`. An ioctl and not sysfs, which may show another network
/// namespace.
fn query(socket: BorrowedFd<'_>, name: &str) -> io::Result<(u32, usize)> {
    let index = rustix::net::netdevice::name_to_index(socket, name)?;
    // SAFETY: an ifreq is made of integers and raw pointers, for which all zeros is a value.
    let mut request: ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        // A character of C is signed on some machines.
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: SIOCGIFMTU reads the name in `request` and writes an int back into it.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the union holds the MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok((index, usize::try_from(mtu).map_err(io::Error::other)?))
}
