//! GID tables: what each entry is good for, and which one to take when nobody says.

use std::fmt;
use std::net::IpAddr;

use pmd_roce::ids::Gid;

/// How a GID's packets look; the index of the source GID fixes it for a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceVersion {
    /// Ethernet frames of type 0x8915, which no router passes.
    V1,
    /// UDP datagrams to port 4791.
    V2,
}

impl fmt::Display for RoceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V1 => "RoCE v1",
            Self::V2 => "RoCE v2",
        })
    }
}

/// What kind of address a GID is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidForm {
    /// An IPv4 address, mapped.
    Ipv4Mapped,
    /// An IPv6 address of wider scope than a link.
    Ipv6,
    /// An IPv6 address of one link.
    LinkLocal,
}

impl GidForm {
    /// The form of `gid`.
    pub fn of(gid: Gid) -> Self {
        match gid.ip() {
            IpAddr::V4(_) => Self::Ipv4Mapped,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Self::LinkLocal,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }
}

impl fmt::Display for GidForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ipv4Mapped => "IPv4-mapped",
            Self::Ipv6 => "IPv6",
            Self::LinkLocal => "link-local",
        })
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, which address vectors name.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// How its packets look.
    pub version: RoceVersion,
    /// The network interface that has the address and is up; without one, nothing can be sent.
    pub netdev: Option<String>,
}

/// What an entry is good for, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Ipv4,
    Ipv6,
    Loopback,
    NoInterface,
    LinkLocal,
    V1,
}

impl GidEntry {
    /// What kind of address it is.
    pub fn form(&self) -> GidForm {
        GidForm::of(self.gid)
    }

    /// In words, what it is good for; the order in which entries are taken follows from it.
    pub fn standing(&self) -> &'static str {
        match self.rank() {
            Standing::Ipv4 => "RoCE v2 at an IPv4 address",
            Standing::Ipv6 => "RoCE v2 at an IPv6 address",
            Standing::Loopback => "RoCE v2, reaches this host only",
            Standing::NoInterface => "RoCE v2, but no interface that is up has the address",
            Standing::LinkLocal => "RoCE v2, but link-local: only where nothing better is",
            Standing::V1 => "RoCE v1, which no router passes",
        }
    }

    /// Private ranges such as 10.0.0.0/8 and fc00::/7 are as good as any: fabrics use them.
    fn rank(&self) -> Standing {
        let ip = self.gid.ip();
        let link_local = match ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        match self.version {
            RoceVersion::V1 => Standing::V1,
            RoceVersion::V2 if link_local => Standing::LinkLocal,
            RoceVersion::V2 if self.netdev.is_none() => Standing::NoInterface,
            RoceVersion::V2 if ip.is_loopback() => Standing::Loopback,
            RoceVersion::V2 if ip.is_ipv4() => Standing::Ipv4,
            RoceVersion::V2 => Standing::Ipv6,
        }
    }
}

/// A port's GID table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable {
    /// Indices the port has, used or not.
    pub len: u32,
    /// Those that hold a GID.
    pub entries: Vec<GidEntry>,
}

/// The entry to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// Its index.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Why this one.
    pub reason: String,
}

/// The address that one end of a connection sends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceGid {
    /// Its index in the GID table of that end's port; none where the end does not tell.
    pub index: Option<u32>,
    /// The GID.
    pub gid: Gid,
    /// How its packets look.
    pub version: RoceVersion,
}

impl fmt::Display for SourceGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, gid, version } = self;
        match index {
            Some(index) => write!(f, "GID {index}, {} ({version})", gid.ip()),
            None => write!(f, "{} ({version})", gid.ip()),
        }
    }
}

/// The addresses of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidPair {
    /// This end's.
    pub local: SourceGid,
    /// The peer's, as it says.
    pub remote: SourceGid,
}

impl fmt::Display for GidPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.local, self.remote)
    }
}

/// Why there is no entry to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    /// The index is beyond the table.
    #[error("gid_index = {index}: the GID table has {len} entries; `spinwire devices` lists them")]
    OutOfRange {
        /// Index asked for.
        index: u32,
        /// Indices there are.
        len: u32,
    },
    /// The entry holds no GID.
    #[error("gid_index = {index}: the entry is empty; `spinwire devices` lists those that are not")]
    Empty {
        /// Index asked for.
        index: u32,
    },
    /// No entry holds a GID.
    #[error("the port has no GID: give its network interface an IP address")]
    NoGid,
    /// An address was asked for as well, which is another entry's.
    #[error(
        "gid_index = {index} is {gid}, and address = \"{address}\" another: leave out one of both"
    )]
    Elsewhere {
        /// Index asked for.
        index: u32,
        /// The address that it means.
        gid: IpAddr,
        /// The address asked for.
        address: IpAddr,
    },
}

impl GidTable {
    /// The entry to use: the one that `index` asks for, else RoCE v2 at an IPv4 address before
    /// RoCE v2 at an IPv6 address, link-local ones only where nothing better is, RoCE v1 last;
    /// among equals the lowest index.
    ///
    /// # Errors
    /// [`GidError`] for an index without a GID, or a table without any.
    pub fn choose(&self, index: Option<u32>) -> Result<GidChoice, GidError> {
        let (entry, reason) = match index {
            Some(index) if index >= self.len => {
                return Err(GidError::OutOfRange { index, len: self.len });
            }
            Some(index) => {
                let entry = self.entries.iter().find(|entry| entry.index == index);
                (
                    entry.ok_or(GidError::Empty { index })?,
                    format!("gid_index = {index} was asked for"),
                )
            }
            None => {
                let better = |entry: &&GidEntry| (entry.rank(), entry.form(), entry.index);
                let entry = self.entries.iter().min_by_key(better).ok_or(GidError::NoGid)?;
                (entry, self.reason(entry))
            }
        };
        Ok(GidChoice { index: entry.index, gid: entry.gid, reason })
    }

    /// What speaks for `chosen`, and against the entries before it.
    fn reason(&self, chosen: &GidEntry) -> String {
        let interface =
            chosen.netdev.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        let passed = self.entries.iter().filter(|entry| entry.index < chosen.index);
        let passed: String = passed
            .map(|entry| format!("; not index {}: {}", entry.index, entry.standing()))
            .collect();
        format!("{}{interface}{passed}", chosen.standing())
    }
}

#[cfg(test)]
mod tests {
    use RoceVersion::{V1, V2};

    use super::*;

    fn table(entries: &[(&str, RoceVersion, Option<&str>)]) -> GidTable {
        let entries: Vec<GidEntry> = (0..)
            .zip(entries)
            .map(|(index, (address, version, netdev))| GidEntry {
                index,
                gid: Gid::from(address.parse::<IpAddr>().unwrap()),
                version: *version,
                netdev: netdev.map(str::to_owned),
            })
            .collect();
        GidTable { len: 16, entries }
    }

    fn chosen(entries: &[(&str, RoceVersion, Option<&str>)]) -> u32 {
        table(entries).choose(None).unwrap().index
    }

    const ETH: Option<&str> = Some("eth0");

    /// P05: the worlds in which people got the wrong GID.
    #[test]
    fn p05_the_worlds_in_which_people_got_the_wrong_gid() {
        assert_eq!(chosen(&[("fe80::5054:ff:fe12:3456", V2, ETH), ("10.102.9.101", V2, ETH)]), 1);
        let pairs = [
            ("fe80::1", V1, ETH),
            ("fe80::1", V2, ETH),
            ("192.168.7.3", V1, ETH),
            ("192.168.7.3", V2, ETH),
        ];
        assert_eq!(chosen(&pairs), 3);
        assert_eq!(chosen(&[("fe80::1", V2, ETH), ("fd00:7::3", V2, ETH)]), 1, "a private range");
        assert_eq!(chosen(&[("10.0.0.1", V2, None), ("10.0.0.2", V2, ETH)]), 1);
        assert_eq!(
            chosen(&[("fe80::1", V1, ETH), ("fe80::1", V2, ETH)]),
            1,
            "nothing else is there"
        );
    }

    /// P05: the whole order, each against the next.
    #[test]
    fn p05_the_order() {
        let order = [
            ("10.102.9.101", V2, ETH),
            ("2001:db8::7", V2, ETH),
            ("127.0.0.1", V2, Some("lo")),
            ("10.102.9.101", V2, None),
            ("2001:db8::7", V2, None),
            ("169.254.3.4", V2, ETH),
            ("fe80::1", V2, ETH),
            ("10.102.9.101", V1, ETH),
        ];
        for pair in order.windows(2) {
            assert_eq!(chosen(pair), 0, "{pair:?}");
            assert_eq!(chosen(&[pair[1], pair[0]]), 1, "{pair:?}");
        }
        assert_eq!(
            chosen(&[("10.0.0.1", V2, ETH), ("11.0.0.1", V2, ETH)]),
            0,
            "RFC 1918 is no flaw"
        );
    }

    /// P05: an index that was asked for is taken, whatever it is, and checked against the table.
    #[test]
    fn p05_an_explicit_index_wins_and_is_range_checked() {
        let table = table(&[("fe80::1", V1, ETH), ("10.0.0.1", V2, ETH)]);
        let choice = table.choose(Some(0)).unwrap();
        assert_eq!((choice.index, choice.reason.as_str()), (0, "gid_index = 0 was asked for"));
        assert_eq!(table.choose(Some(16)), Err(GidError::OutOfRange { index: 16, len: 16 }));
        assert_eq!(table.choose(Some(2)), Err(GidError::Empty { index: 2 }));
        let text = table.choose(Some(99)).unwrap_err().to_string();
        assert!(text.starts_with("gid_index = 99: the GID table has 16 entries"), "{text}");
        assert_eq!(GidTable::default().choose(None), Err(GidError::NoGid));
    }

    /// P05: the reason says what speaks for the choice and against the ones before it.
    #[test]
    fn p05_the_reason_names_what_was_passed_over() {
        let choice = table(&[("fe80::1", V2, ETH), ("10.0.0.1", V2, ETH)]).choose(None).unwrap();
        assert_eq!(
            choice.reason,
            "RoCE v2 at an IPv4 address of eth0; not index 0: RoCE v2, but link-local: only where \
             nothing better is"
        );
        assert_eq!(choice.gid.to_string(), "::ffff:10.0.0.1");
    }
}
