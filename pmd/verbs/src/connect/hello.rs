//! Connection data: typed, versioned, with a generation that tells a stale copy from a fresh one.

use std::fmt;

use pmd_roce::ids::{Gid, PathMtu, Psn, Qpn};
use pmd_roce::qp::state::Transport;
use pmd_wire::shm::Nonce;

use super::ways::Ways;
use crate::endpoint::ConnectError;
use crate::gid::{RoceVersion, SourceGid};

/// Version of the layout below; a peer with another one is refused by name.
pub const HELLO_VERSION: u16 = 2;

/// First bytes of every hello.
const MAGIC: [u8; 4] = *b"SPWR";
/// Bytes before the private data.
const FIXED: usize = 96;
/// In place of an index in a GID table: there is none.
const NO_INDEX: u16 = u16::MAX;
/// Longest private data.
const MAX_PRIVATE: usize = 4096;

/// Which side of the exchange a hello belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The connecting side's.
    Ask,
    /// The accepting side's, with what was negotiated.
    Answer,
}

/// How a side wants to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathWish {
    /// Shared memory where possible, packets elsewhere.
    Any,
    /// Packets: something on this side captures or disturbs them, or the wire is forced.
    Packets,
    /// Shared memory or nothing.
    SharedMemory,
}

/// Which host and user a side runs on. Equal values do not prove a common host; unequal ones
/// disprove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId {
    /// Of the running kernel.
    pub boot_id: [u8; 16],
    /// Effective user.
    pub uid: u32,
}

impl HostId {
    /// Where this process runs.
    pub fn of_this_process() -> Self {
        let boot_id =
            std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = boot_id.trim().split('-').collect();
        Self {
            // Without /proc, nobody shares memory with this process: the handshake fails as well.
            boot_id: u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes(),
            uid: rustix::process::geteuid().as_raw(),
        }
    }
}

/// One side's connection data. It leads into the memory of that side: it crosses channels that nobody else reads, and logs show
/// nothing of what it would take to use it.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// Asked or answered.
    pub role: Role,
    /// Chosen by the connecting side, echoed in the answer: an old answer does not connect.
    pub generation: u32,
    /// Service; must be equal.
    pub transport: Transport,
    /// Queue pair.
    pub qpn: Qpn,
    /// PSN of this side's first packet.
    pub psn: Psn,
    /// Q_Key; UD.
    pub qkey: u32,
    /// Address.
    pub gid: Gid,
    /// Largest path MTU; in the answer, the one to use.
    pub mtu: PathMtu,
    /// READs and atomics this side serves at a time.
    pub responder_resources: u8,
    /// READs and atomics this side wants to have outstanding.
    pub initiator_depth: u8,
    /// How this side wants to be reached; in the answer, what was chosen.
    pub path: PathWish,
    /// Where this side runs.
    pub host: HostId,
    /// The process, for messages about it.
    pub pid: u32,
    /// Which device of its host this is, where it shares memory: prefixes of queue pair numbers are unique only among
    /// processes that see the same directory.
    pub nonce: Option<Nonce>,
    /// How packets of [`Hello::gid`] look.
    pub roce: RoceVersion,
    /// Where [`Hello::gid`] is in the table of its port, for reports.
    pub gid_index: Option<u32>,
    /// The ways in which this side's device can be reached.
    pub ways: Ways,
    /// The queue pairs meet by the connection manager: in the answer, the port where it listens.
    pub manager: Option<u16>,
    /// The application's own bytes.
    pub private: Vec<u8>,
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, transport, qpn, gid, mtu, path, pid, roce, ways, manager, .. } = self;
        f.debug_struct("Hello")
            .field("role", role)
            .field("transport", transport)
            .field("qpn", qpn)
            .field("gid", &gid.to_string())
            .field("roce", roce)
            .field("ways", &ways.to_string())
            .field("mtu", mtu)
            .field("path", path)
            .field("pid", pid)
            .field("manager", manager)
            .field("private", &self.private.len())
            .finish_non_exhaustive()
    }
}

/// The process and the device that a hello speaks for: they stay while a connection does, whatever becomes of its queue
/// pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker {
    transport: Transport,
    host: HostId,
    pid: u32,
    nonce: Option<Nonce>,
}

impl Hello {
    /// The address that it names.
    pub fn source(&self) -> SourceGid {
        SourceGid { index: self.gid_index, gid: self.gid, version: self.roce }
    }

    /// Who says it.
    pub fn speaker(&self) -> Speaker {
        let Self { transport, host, pid, nonce, .. } = *self;
        Speaker { transport, host, pid, nonce }
    }

    /// As bytes for a channel.
    ///
    /// # Panics
    /// With more than 4096 private bytes.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.private.len() <= MAX_PRIVATE, "private data is bounded by the caller");
        let mut out = Vec::with_capacity(FIXED + self.private.len());
        out.extend(MAGIC);
        out.extend(HELLO_VERSION.to_be_bytes());
        out.push(match self.role {
            Role::Ask => 0,
            Role::Answer => 1,
        });
        out.push(match self.path {
            PathWish::Any => 0,
            PathWish::Packets => 1,
            PathWish::SharedMemory => 2,
        });
        out.extend(self.generation.to_be_bytes());
        out.push(transport_code(self.transport));
        out.push(self.mtu as u8);
        out.push(self.responder_resources);
        out.push(self.initiator_depth);
        out.extend(self.qpn.value().to_be_bytes());
        out.extend(self.psn.value().to_be_bytes());
        out.extend(self.qkey.to_be_bytes());
        out.extend(self.gid.0);
        out.extend(self.host.boot_id);
        out.extend(self.host.uid.to_be_bytes());
        out.extend(self.pid.to_be_bytes());
        out.extend(self.nonce.map_or([0; 16], |nonce| nonce.0));
        out.push(match self.roce {
            RoceVersion::V1 => 1,
            RoceVersion::V2 => 2,
        });
        out.push(self.ways.bits());
        out.extend([u8::from(self.manager.is_some()), 0]);
        out.extend(self.manager.unwrap_or_default().to_be_bytes());
        let index = self.gid_index.and_then(|index| u16::try_from(index).ok());
        out.extend(index.unwrap_or(NO_INDEX).to_be_bytes());
        out.extend(u32::try_from(self.private.len()).unwrap_or(0).to_be_bytes());
        debug_assert_eq!(out.len(), FIXED);
        out.extend(&self.private);
        out
    }

    /// From a peer's bytes.
    ///
    /// # Errors
    /// [`ConnectError::Malformed`] and [`ConnectError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ConnectError> {
        let malformed = |what| move || ConnectError::Malformed(what);
        let magic = bytes.get(..4).ok_or_else(malformed("too short"))?;
        if magic != MAGIC {
            return Err(ConnectError::Malformed("another program answers there"));
        }
        let theirs = be16(bytes, 4).ok_or_else(malformed("too short"))?;
        if theirs != HELLO_VERSION {
            return Err(ConnectError::Version { theirs, ours: HELLO_VERSION });
        }
        let fixed = bytes.get(..FIXED).ok_or_else(malformed("too short"))?;
        let word = |at| be32(fixed, at).unwrap_or_default();
        let array = |at: usize| -> [u8; 16] { fixed[at..at + 16].try_into().unwrap_or_default() };
        let private_len = word(FIXED - 4) as usize;
        if private_len > MAX_PRIVATE || bytes.len() != FIXED + private_len {
            return Err(ConnectError::Malformed(
                "the private data has another length than announced",
            ));
        }
        Ok(Self {
            role: match fixed[6] {
                0 => Role::Ask,
                1 => Role::Answer,
                _ => return Err(ConnectError::Malformed("neither asks nor answers")),
            },
            path: match fixed[7] {
                0 => PathWish::Any,
                1 => PathWish::Packets,
                2 => PathWish::SharedMemory,
                _ => return Err(ConnectError::Malformed("unknown kind of path")),
            },
            generation: word(8),
            transport: transport_from(fixed[12]).ok_or_else(malformed("unknown transport"))?,
            mtu: PathMtu::from_code(fixed[13]).ok_or_else(malformed("unknown path MTU"))?,
            responder_resources: fixed[14],
            initiator_depth: fixed[15],
            qpn: qpn(word(16))?,
            psn: Psn::new(word(20)),
            qkey: word(24),
            gid: Gid(array(28)),
            host: HostId { boot_id: array(44), uid: word(60) },
            pid: word(64),
            nonce: Some(array(68)).filter(|bytes| *bytes != [0; 16]).map(Nonce),
            roce: match fixed[84] {
                1 => RoceVersion::V1,
                2 => RoceVersion::V2,
                _ => return Err(ConnectError::Malformed("unknown version of RoCE")),
            },
            gid_index: be16(fixed, 90).filter(|index| *index != NO_INDEX).map(u32::from),
            ways: Ways::from_bits(fixed[85]),
            manager: match fixed[86] {
                0 => None,
                1 => be16(fixed, 88),
                _ => return Err(ConnectError::Malformed("unknown way to connect")),
            },
            private: bytes[FIXED..].to_vec(),
        })
    }
}

fn qpn(word: u32) -> Result<Qpn, ConnectError> {
    if word >> 24 == 0 && word > 1 {
        Ok(Qpn::new(word))
    } else {
        Err(ConnectError::Malformed("no such queue pair number"))
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

const TRANSPORTS: [(u8, Transport); 5] = [
    (0, Transport::Rc),
    (1, Transport::Uc),
    (3, Transport::Ud),
    (5, Transport::XrcIni),
    (6, Transport::XrcTgt),
];

fn transport_code(transport: Transport) -> u8 {
    TRANSPORTS.iter().find(|(_, t)| *t == transport).map_or(u8::MAX, |(code, _)| *code)
}

fn transport_from(code: u8) -> Option<Transport> {
    TRANSPORTS.iter().find(|(c, _)| *c == code).map(|(_, t)| *t)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Hello {
        Hello {
            role: Role::Ask,
            generation: 0x0102_0304,
            transport: Transport::Rc,
            qpn: Qpn::new(0x02_0005),
            psn: Psn::new(0xab_cdef),
            qkey: 0x1111,
            gid: Gid([7; 16]),
            mtu: PathMtu::B4096,
            responder_resources: 16,
            initiator_depth: 8,
            path: PathWish::Any,
            host: HostId { boot_id: [9; 16], uid: 1000 },
            pid: 42,
            nonce: Some(Nonce([5; 16])),
            roce: RoceVersion::V2,
            gid_index: Some(3),
            ways: Ways::ROCE_V2_IPV6,
            manager: Some(4791),
            private: b"region".to_vec(),
        }
    }

    #[test]
    fn a_hello_survives_the_channel() {
        let hello = sample();
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello.clone()));
        let apart =
            Hello { nonce: None, manager: None, roce: RoceVersion::V1, gid_index: None, ..hello };
        assert_eq!(Hello::decode(&apart.encode()), Ok(apart));
    }

    /// S0-43: of connection data, only what identifies it is shown.
    #[test]
    fn s0_43_what_opens_memory_is_never_shown() {
        let shown = format!("{:?}", sample());
        assert!(shown.contains("manager: Some(4791)") && shown.contains("private: 6"), "{shown}");
        // PSN, Q_Key, generation, nonce, and what the application says.
        for secret in ["11259375", "abcdef", "4369", "16909060", "5, 5", "114", "region"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
    }

    #[test]
    fn truncated_and_longer_hellos_are_refused() {
        let bytes = sample().encode();
        for len in 0..bytes.len() {
            assert!(
                matches!(Hello::decode(&bytes[..len]), Err(ConnectError::Malformed(_))),
                "{len} bytes"
            );
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(matches!(Hello::decode(&longer), Err(ConnectError::Malformed(_))));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = sample().encode();
        bytes[5] = 9;
        assert_eq!(
            Hello::decode(&bytes),
            Err(ConnectError::Version { theirs: 9, ours: HELLO_VERSION })
        );
    }

    #[test]
    fn no_byte_can_make_decoding_panic() {
        let bytes = sample().encode();
        for at in 0..bytes.len() {
            for flip in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << flip;
                if let Ok(hello) = Hello::decode(&bad) {
                    assert_eq!(hello.private.len(), 6);
                }
            }
        }
    }
}
