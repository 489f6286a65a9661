//! Who has a UDP port: from /proc/net/udp to the process, as far as permissions show it.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::local::Claim;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process number.
    pub pid: u32,
    /// Its command name, as `ps -o comm` shows it.
    pub name: String,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// The process that has a UDP socket on `address` (or the wildcard) and `port`. None when it runs
/// under another user, in the kernel, or is gone by now.
pub(super) fn find(address: IpAddr, port: u16) -> Option<Owner> {
    let inodes: Vec<u64> = sockets(port)
        .into_iter()
        .filter(|s| s.address == address || s.address.is_unspecified())
        .map(|s| s.inode)
        .collect();
    processes().find(|owner| held(owner.pid).any(|inode| inodes.contains(&inode)))
}

/// Every address but groups on which somebody has `port`, each once, without its owner.
pub(super) fn unnamed(port: u16) -> Vec<Claim> {
    each_once(&sockets(port))
}

fn each_once(sockets: &[Socket]) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    for socket in sockets.iter().filter(|socket| !socket.address.is_multicast()) {
        if !claims.iter().any(|claim| claim.address == socket.address) {
            claims.push(Claim { address: socket.address, owner: None });
        }
    }
    claims
}

/// The same, with their owners.
pub(super) fn claims(port: u16) -> Vec<Claim> {
    let sockets = sockets(port);
    let mut claims = each_once(&sockets);
    for process in processes() {
        if claims.iter().all(|claim| claim.owner.is_some()) {
            break;
        }
        for inode in held(process.pid) {
            let Some(socket) = sockets.iter().find(|s| s.inode == inode) else { continue };
            for claim in claims.iter_mut().filter(|claim| claim.address == socket.address) {
                claim.owner = Some(process.clone());
            }
        }
    }
    claims
}

/// The UDP sockets on `port`, of both families.
fn sockets(port: u16) -> Vec<Socket> {
    // Of the thread, which may live in another network namespace than its process began in.
    let tables = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
    let text = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
    let all = text.iter().flat_map(|table| table.lines()).filter_map(parse);
    all.filter(|socket| socket.port == port).collect()
}

struct Socket {
    address: IpAddr,
    port: u16,
    inode: u64,
}

/// A line of /proc/net/udp: slot, local address, …, and the inode as the tenth field. Addresses
/// are 32-bit words in host order.
fn parse(line: &str) -> Option<Socket> {
    let mut fields = line.split_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let address = if address.len() == 8 {
        Ipv4Addr::from(word(0)?.to_ne_bytes()).into()
    } else {
        let mut octets = [0; 16];
        for (i, four) in octets.chunks_exact_mut(4).enumerate() {
            four.copy_from_slice(&word(8 * i)?.to_ne_bytes());
        }
        Ipv6Addr::from(octets).into()
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = fields.nth(7)?.parse().ok()?;
    Some(Socket { address, port, inode })
}

fn processes() -> impl Iterator<Item = Owner> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some(Owner { pid, name: name.trim_end().to_owned() })
    })
}

/// The sockets that a process has open, by inode.
fn held(pid: u32) -> impl Iterator<Item = u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).filter_map(|target| {
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    })
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_families_are_understood() {
        let v4 = "  512: 02004D7F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                  1000        0 48123 2 0000000000000000 0";
        let socket = parse(v4).unwrap();
        assert_eq!(socket.address, "127.77.0.2".parse::<IpAddr>().unwrap());
        assert_eq!((socket.port, socket.inode), (4791, 48_123));
        let v6 = "  7: 000080FE00000000FF005450FE770003:12B7 \
                  00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 \
                  00000000     0        0 99 2 0000000000000000 0";
        let socket = parse(v6).unwrap();
        assert_eq!(socket.address, "fe80::5054:ff:300:77fe".parse::<IpAddr>().unwrap());
        assert!(parse("   sl  local_address rem_address   st tx_queue rx_queue").is_none());
        assert!(parse("").is_none());
    }
}
