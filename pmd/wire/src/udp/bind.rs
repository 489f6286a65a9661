//! Taking an address: one wire per lcore.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;

use super::UdpWire;
use super::interface::Interface;
use super::local::local_addresses;
use super::mmsg::Messages;
use super::multicast::{self, Groups};
use super::owner::{self, Owner};
use super::rx::Receiver;
use super::socket;
use super::steer::{self, LcoreBits};
use super::tx::TxQueue;
use crate::limits::{
    AUTO_ADDRESS_TRIES, GSO_MAX_SEGMENTS, GSO_MIN_SEGMENTS, MAX_LCORES, MAX_PAYLOAD,
};
use crate::wire::{ROCE_PORT, WireCounters};

/// How to take an address.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Wires to make, one per lcore: at least 1.
    pub lcores: usize,
    /// Where a queue pair number tells the lcore, on this side and at peers like us.
    pub lcore_bits: LcoreBits,
    /// Bytes of receive buffer to ask the kernel for. Without CAP_NET_ADMIN it grants at most
    /// twice `net.core.rmem_max`.
    pub receive_buffer: usize,
    /// Bytes of send buffer to ask for; `net.core.wmem_max` limits it likewise.
    pub send_buffer: usize,
    /// Send many frames per call where the kernel can.
    pub gso: bool,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self {
            lcores: 1,
            lcore_bits: LcoreBits { shift: 0, width: 0 },
            receive_buffer: 8 << 20,
            send_buffer: 4 << 20,
            gso: true,
        }
    }
}

/// Why an address could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody has it.
    #[error("{}", in_use(*address, owner.as_ref(), *free))]
    InUse {
        /// The address.
        address: IpAddr,
        /// Who has it, if we may know.
        owner: Option<Owner>,
        /// An address of the same family that nobody has.
        free: Option<IpAddr>,
    },
    /// No interface has it.
    #[error("no interface has the address {0}: `ip -brief address` lists those that exist")]
    NotLocal(IpAddr),
    /// A wildcard, broadcast or multicast address.
    #[error("{0} is not the address of one interface: a wire is bound to exactly one")]
    NotOne(IpAddr),
    /// Somebody has the port on every address.
    #[error("{}", everywhere(owner.as_ref()))]
    Wildcard {
        /// Who, if we may know.
        owner: Option<Owner>,
    },
    /// Every loopback address that was tried is taken.
    #[error("none of {0} loopback addresses is free: name an address instead of \"auto\"")]
    NoneFree(u32),
    /// Options that contradict each other.
    #[error("{lcores} lcores cannot share an address by {bits:?}: at most {max} can")]
    Lcores {
        /// Wires asked for.
        lcores: usize,
        /// Bits that tell them apart.
        bits: LcoreBits,
        /// How many are possible.
        max: usize,
    },
    /// The system refused for another reason.
    #[error("cannot {what} on {address}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The address.
        address: IpAddr,
        /// The reason.
        source: io::Error,
    },
}

fn in_use(address: IpAddr, owner: Option<&Owner>, free: Option<IpAddr>) -> String {
    let owner = match owner {
        Some(owner) => owner.to_string(),
        None => "another user's process or a kernel driver".to_owned(),
    };
    let fix = match free {
        Some(free) => format!("use another, for instance {free}"),
        None if address.is_ipv6() => "stop it, or give this host one more address, as \
                 `ip address add fd00::2/128 dev lo` does"
            .to_owned(),
        None => "stop it, or use wire = \"shm\" within this host".to_owned(),
    };
    format!(
        "UDP port {ROCE_PORT} of {address} belongs to {owner}, and an address serves one \
         process: {fix}"
    )
}

fn everywhere(owner: Option<&Owner>) -> String {
    let (owner, stop) = match owner {
        Some(owner) => (owner.to_string(), "stop it"),
        None => (
            "another user's process or a kernel driver, such as rdma_rxe,".to_owned(),
            "stop it (`sudo modprobe -r rdma_rxe`)",
        ),
    };
    format!(
        "UDP port {ROCE_PORT} of every address belongs to {owner} and no wire can have it: {stop}, \
         or use wire = \"shm\" within this host"
    )
}

/// Takes `address` for this process and makes one wire per lcore, in the order of the lcores.
/// The wires belong together: when one is dropped, the kernel may give its frames to another.
///
/// # Errors
/// [`BindError`].
pub fn bind(address: IpAddr, options: &UdpOptions) -> Result<Vec<UdpWire>, BindError> {
    take(address, options).map_err(|error| match error {
        BindError::InUse { .. } => BindError::InUse {
            address,
            owner: owner::find(address, ROCE_PORT),
            free: free_like(address),
        },
        error => error,
    })
}

/// As [`bind()`], without finding out who has an address in use, which takes long.
fn take(address: IpAddr, options: &UdpOptions) -> Result<Vec<UdpWire>, BindError> {
    check(address, options)?;
    let os = |what| move |source| BindError::Os { what, address, source };
    let first = socket::new(address).map_err(os("open a socket"))?;
    let interface = Interface::of(address, first.as_fd())
        .map_err(os("list the interfaces"))?
        .ok_or(BindError::NotLocal(address))?;
    let name = socket::with_port(address, ROCE_PORT, interface.index);

    // The first socket does not share, so it gets the address only if nobody has it; it opens the
    // address to the others afterwards.
    bind_to(&first, name)?;
    let mut sockets = vec![first];
    if options.lcores > 1 {
        let share = os("share the port between lcores");
        socket::set(&sockets[0], libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(share)?;
    }
    for _ in 1..options.lcores {
        let other = socket::new(address).map_err(os("open a socket"))?;
        let share = os("share the port between lcores");
        socket::set(&other, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(share)?;
        bind_to(&other, name)?;
        sockets.push(other);
    }
    if options.lcores > 1 {
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_LCORES")]
        let lcores = options.lcores as u32;
        let steer = os("choose the lcore by queue pair number");
        steer::attach(sockets[0].as_fd(), options.lcore_bits, lcores).map_err(steer)?;
    }

    let gso = if options.gso { probe_gso(address, &interface) } else { Ok(1) };
    let gso = gso.map_err(os("probe segmentation"))?;
    let wires = sockets.into_iter().map(|s| wire(s, address, &interface, gso, options));
    wires.collect::<io::Result<_>>().map_err(os("set up the socket"))
}

/// As [`bind()`], on the first address of 127.0.0.0/8 that is free.
///
/// # Errors
/// [`BindError`].
pub fn bind_auto(options: &UdpOptions) -> Result<Vec<UdpWire>, BindError> {
    for address in loopback_addresses() {
        match take(address.into(), options) {
            Err(BindError::InUse { .. }) => {}
            result => return result,
        }
    }
    let claims = owner::claims(ROCE_PORT);
    match claims.into_iter().find(|claim| claim.address.is_unspecified()) {
        Some(claim) => Err(BindError::Wildcard { owner: claim.owner }),
        None => Err(BindError::NoneFree(AUTO_ADDRESS_TRIES)),
    }
}

fn check(address: IpAddr, options: &UdpOptions) -> Result<(), BindError> {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(BindError::NotOne(address));
    }
    let bits = options.lcore_bits;
    let are_bits = bits.width < 32 && bits.shift.saturating_add(bits.width) <= 24;
    let max = if are_bits { MAX_LCORES.min(1 << bits.width) } else { 0 };
    if options.lcores == 0 || options.lcores > max {
        return Err(BindError::Lcores { lcores: options.lcores, bits, max });
    }
    Ok(())
}

fn bind_to(socket: &OwnedFd, name: SocketAddr) -> Result<(), BindError> {
    let address = name.ip();
    rustix::net::bind(socket, &name).map_err(|errno| match errno {
        rustix::io::Errno::ADDRINUSE => BindError::InUse { address, owner: None, free: None },
        rustix::io::Errno::ADDRNOTAVAIL => BindError::NotLocal(address),
        _ => BindError::Os { what: "bind", address, source: errno.into() },
    })
}

pub(super) fn loopback_addresses() -> impl Iterator<Item = Ipv4Addr> {
    let first = Ipv4Addr::LOCALHOST.to_bits();
    let network_or_broadcast = |a: &Ipv4Addr| matches!(a.octets()[3], 0 | 255);
    let all = (first..first + AUTO_ADDRESS_TRIES).map(Ipv4Addr::from_bits);
    all.filter(move |address| !network_or_broadcast(address))
}

/// Whether the port of `address` could be bound just now.
/// An address of the same family that nobody has. Of IPv6 there is but one loopback address, so any of this machine's
/// that needs no interface beside it will do.
fn free_like(address: IpAddr) -> Option<IpAddr> {
    if address.is_ipv4() {
        return loopback_addresses().map(IpAddr::from).find(|a| is_free(*a));
    }
    let known = local_addresses().unwrap_or_default().into_iter().map(|local| local.address);
    let far = |a: &IpAddr| matches!(a, IpAddr::V6(v6) if !v6.is_unicast_link_local());
    known.filter(far).find(|a| *a != address && is_free(*a))
}

fn is_free(address: IpAddr) -> bool {
    let name = SocketAddr::new(address, ROCE_PORT);
    socket::new(address).is_ok_and(|probe| rustix::net::bind(&probe, &name).is_ok())
}

/// Bytes after the UDP header that fit IP packets of `mtu` bytes, at most
/// [`MAX_PAYLOAD`].
pub fn max_payload(address: IpAddr, mtu: usize) -> usize {
    let headers = if address.is_ipv4() { 20 + 8 } else { 40 + 8 };
    MAX_PAYLOAD.min(mtu.saturating_sub(headers))
}

fn wire(
    socket: OwnedFd,
    address: IpAddr,
    interface: &Interface,
    segments_max: usize,
    options: &UdpOptions,
) -> io::Result<UdpWire> {
    socket::configure(socket.as_fd(), address)?;
    multicast::send_through(socket.as_fd(), address, interface)?;
    let receive_buffer =
        socket::size_buffers(socket.as_fd(), options.receive_buffer, options.send_buffer)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let max_payload = max_payload(address, interface.mtu);
    Ok(UdpWire {
        main: Receiver::new(socket, address),
        groups: Groups::new(options.receive_buffer),
        epoll,
        rx: Messages::new(),
        tx: TxQueue::new(segments_max, max_payload, options.lcore_bits, address, interface.index),
        interface: interface.clone(),
        max_payload,
        receive_buffer,
        counters: WireCounters::default(),
    })
}

/// How many segments this kernel takes per call, found by sending that many bytes from one
/// throw-away socket to another. The route of real frames is not tried: `TxQueue` copes.
fn probe_gso(address: IpAddr, interface: &Interface) -> io::Result<usize> {
    let name = socket::with_port(address, 0, interface.index);
    let from = socket::new(address)?;
    if socket::get(&from, libc::SOL_UDP, libc::UDP_SEGMENT).is_err() {
        return Ok(1);
    }
    let to = socket::new(address)?;
    rustix::net::bind(&from, &name)?;
    rustix::net::bind(&to, &name)?;
    rustix::net::connect(&from, &SocketAddr::try_from(rustix::net::getsockname(&to)?)?)?;
    let segment: u16 = 1;
    socket::set(&from, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(segment))?;
    let bytes = [0_u8; GSO_MAX_SEGMENTS];
    let takes = |n: &usize| {
        rustix::net::send(&from, &bytes[..*n], rustix::net::SendFlags::DONTWAIT) == Ok(*n)
    };
    Ok([GSO_MAX_SEGMENTS, GSO_MIN_SEGMENTS].into_iter().find(takes).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_everywhere_names_the_way_out() {
        let owner = Owner { pid: 7, name: "other".into() };
        let text = BindError::Wildcard { owner: Some(owner) }.to_string();
        assert_eq!(
            text,
            "UDP port 4791 of every address belongs to process 7 (other) and no wire can have it: \
             stop it, or use wire = \"shm\" within this host"
        );
        let text = BindError::Wildcard { owner: None }.to_string();
        assert!(text.contains("modprobe -r rdma_rxe") && text.contains("\"shm\""), "{text}");
    }

    #[test]
    fn who_has_an_address_in_use_is_offered_one_of_its_family() {
        for address in ["127.0.0.9", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            let free = free_like(address);
            let alike = |free: IpAddr| free.is_ipv4() == address.is_ipv4() && free != address;
            assert!(free.is_none_or(alike), "{free:?}");
            let text = |free| BindError::InUse { address, owner: None, free }.to_string();
            assert_eq!(text(None).contains("ip address add"), address.is_ipv6(), "{}", text(None));
            let other: IpAddr = "fd00::7".parse().unwrap();
            assert!(text(Some(other)).ends_with("use another, for instance fd00::7"));
        }
    }
}
