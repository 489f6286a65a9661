//! What two processes of one host say to each other over their control socket.
//!
//! Each side introduces itself by a [`Hello`]. An address proves nothing about the host, containers reuse them; so the other
//! side must run on the same boot of the same kernel, as the same user, speak the same version, and be the very process whose
//! nonce was announced. Only then are descriptors exchanged.
//!
//! One message is one packet of the socket: a type byte, then fields in little-endian order.

use std::fs;
use std::io;

use arrayvec::ArrayVec;

use super::limits::{ADDRESSES_MAX, LCORES_MAX, PREFIX_MAX};

/// Version of this protocol, of the records in the rings, and of the pages.
pub const VERSION: u16 = 2;

/// Longest message in bytes.
pub(crate) const MESSAGE_MAX: usize = 1024;

const MAGIC: [u8; 4] = *b"SpwS";

/// Unpredictable bytes that name one device of one process; connections exchange them to find each other again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 16]);

impl Nonce {
    /// A fresh one from the kernel's randomness.
    pub fn random() -> Self {
        let (a, b) = (pmd_mem::os_entropy().to_ne_bytes(), pmd_mem::os_entropy().to_ne_bytes());
        Self(std::array::from_fn(|i| if i < 8 { a[i] } else { b[i - 8] }))
    }
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) boot_id: [u8; 16],
    pub(crate) uid: u32,
    pub(crate) prefix: u8,
    pub(crate) lcores: u8,
    pub(crate) nonce: Nonce,
    /// Whom the speaker wants to reach, where it knows.
    pub(crate) wants: Option<Nonce>,
    /// The addresses that it answers to, as GIDs.
    pub(crate) addresses: ArrayVec<[u8; 16], ADDRESSES_MAX>,
}

/// Whom a side expects at the other end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) prefix: Option<u8>,
    pub(crate) nonce: Option<Nonce>,
    pub(crate) address: Option<[u8; 16]>,
}

/// Why a process is not one to share memory with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another version of this protocol.
    #[error(
        "it speaks version {theirs} of the shared-memory protocol, not {ours}: run the same spinwire on both ends"
    )]
    Version {
        /// Version of the side that refused.
        ours: u16,
        /// Version of the side that was refused.
        theirs: u16,
    },
    /// Another kernel, or another boot of it.
    #[error("its boot id differs: it runs on another host")]
    Host,
    /// Another user.
    #[error(
        "it runs as uid {theirs}, not {ours}: memory is shared only between processes of one user"
    )]
    User {
        /// User of the side that refused.
        ours: u32,
        /// User of the side that was refused.
        theirs: u32,
    },
    /// Not the process that was meant.
    #[error("it is not the process that was announced (its nonce differs)")]
    Nonce,
    /// It does not answer to the address.
    #[error("it does not answer to that address")]
    Address,
    /// It holds another prefix, or claims an impossible one.
    #[error("it holds the device prefix {0}")]
    Prefix(u8),
    /// Both sides connected at once, or there is a connection already; the other one serves.
    #[error("there is a connection already")]
    Crossed,
    /// It asked for an lcore that does not exist, or has not started.
    #[error("its lcore {0} does not exist or has not started")]
    Lcore(u8),
    /// Its message makes no sense.
    #[error("it sent a control message that makes no sense")]
    Nonsense,
    /// What it exported cannot be used.
    #[error("what it exported cannot be mapped safely")]
    Export,
    /// No room for another one.
    #[error("it has as many peers or links as it can")]
    Full,
    /// It kept this side waiting.
    #[error("it was kept waiting too long, is this process stopped?")]
    Late,
}

/// Everything that crosses the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hello(Box<Hello>),
    /// The last message: why the sender closes.
    Refuse(Refusal),
    /// With the memory table's descriptor, then one per lcore.
    Exports {
        table_bytes: u64,
        page_bytes: u64,
    },
    /// With a descriptor.
    Region {
        id: u32,
        bytes: u64,
        writable: bool,
    },
    /// A region that stays in the sender's process.
    Private {
        id: u32,
    },
    /// A region that is no more.
    Retire {
        id: u32,
    },
    /// With the descriptor of the segment that `from`, an lcore of the sender, writes toward `to`.
    Attach {
        from: u8,
        to: u8,
        bytes: u64,
    },
    /// Answer to an attach from `from`, an lcore of the receiver: `to` cannot be linked.
    Decline {
        from: u8,
        to: u8,
        refusal: Refusal,
    },
    /// The sender closes in good order.
    Bye,
    /// An lcore of the receiver sleeps, and there is news for it.
    Wake {
        lcore: u8,
    },
}

/// The kernel's boot id: see random(4).
pub(crate) fn boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.trim().split('-').collect();
    let id = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(id.to_be_bytes())
}

impl Hello {
    /// Whether its sender may be shared with. `uid` is what the kernel says of the sender, `ours` is what this side says itself.
    pub(crate) fn check(&self, ours: &Self, uid: u32, expected: &Expected) -> Result<(), Refusal> {
        if self.version != ours.version {
            return Err(Refusal::Version { ours: ours.version, theirs: self.version });
        }
        if self.boot_id != ours.boot_id {
            return Err(Refusal::Host);
        }
        if uid != ours.uid || self.uid != ours.uid {
            return Err(Refusal::User {
                ours: ours.uid,
                theirs: if uid == ours.uid { self.uid } else { uid },
            });
        }
        if !(1..=PREFIX_MAX).contains(&self.prefix)
            || expected.prefix.is_some_and(|prefix| prefix != self.prefix)
        {
            return Err(Refusal::Prefix(self.prefix));
        }
        if !(1..=LCORES_MAX).contains(&usize::from(self.lcores)) {
            return Err(Refusal::Nonsense);
        }
        if expected.nonce.is_some_and(|nonce| nonce != self.nonce)
            || self.wants.is_some_and(|nonce| nonce != ours.nonce)
        {
            return Err(Refusal::Nonce);
        }
        if expected.address.is_some_and(|address| !self.addresses.contains(&address)) {
            return Err(Refusal::Address);
        }
        Ok(())
    }
}

impl Refusal {
    fn encode(self) -> (u8, u32, u32) {
        match self {
            Self::Version { ours, theirs } => (1, ours.into(), theirs.into()),
            Self::Host => (2, 0, 0),
            Self::User { ours, theirs } => (3, ours, theirs),
            Self::Nonce => (4, 0, 0),
            Self::Address => (5, 0, 0),
            Self::Prefix(prefix) => (6, prefix.into(), 0),
            Self::Crossed => (7, 0, 0),
            Self::Lcore(lcore) => (8, lcore.into(), 0),
            Self::Nonsense => (9, 0, 0),
            Self::Export => (10, 0, 0),
            Self::Full => (11, 0, 0),
            Self::Late => (12, 0, 0),
        }
    }

    fn decode(code: u8, a: u32, b: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Version { ours: a.try_into().ok()?, theirs: b.try_into().ok()? },
            2 => Self::Host,
            3 => Self::User { ours: a, theirs: b },
            4 => Self::Nonce,
            5 => Self::Address,
            6 => Self::Prefix(a.try_into().ok()?),
            7 => Self::Crossed,
            8 => Self::Lcore(a.try_into().ok()?),
            9 => Self::Nonsense,
            10 => Self::Export,
            11 => Self::Full,
            12 => Self::Late,
            _ => return None,
        })
    }
}

impl Message {
    pub(crate) fn encode(&self) -> ArrayVec<u8, MESSAGE_MAX> {
        let mut out = ArrayVec::new();
        // The longest message, a Hello with all addresses, is far below the capacity (tested).
        let mut put = |bytes: &[u8]| out.extend(bytes.iter().copied());
        match self {
            Self::Hello(hello) => {
                put(&[1]);
                put(&MAGIC);
                put(&hello.version.to_le_bytes());
                put(&hello.boot_id);
                put(&hello.uid.to_le_bytes());
                put(&[hello.prefix, hello.lcores]);
                put(&hello.nonce.0);
                put(&hello.wants.map_or([0; 16], |nonce| nonce.0));
                for address in &hello.addresses {
                    put(address);
                }
            }
            Self::Refuse(refusal) => {
                let (code, a, b) = refusal.encode();
                put(&[2, code]);
                put(&a.to_le_bytes());
                put(&b.to_le_bytes());
            }
            Self::Exports { table_bytes, page_bytes } => {
                put(&[3]);
                put(&table_bytes.to_le_bytes());
                put(&page_bytes.to_le_bytes());
            }
            Self::Region { id, bytes, writable } => {
                put(&[4]);
                put(&id.to_le_bytes());
                put(&bytes.to_le_bytes());
                put(&[u8::from(*writable)]);
            }
            Self::Retire { id } => {
                put(&[5]);
                put(&id.to_le_bytes());
            }
            Self::Attach { from, to, bytes } => {
                put(&[6, *from, *to]);
                put(&bytes.to_le_bytes());
            }
            Self::Decline { from, to, refusal } => {
                let (code, a, b) = refusal.encode();
                put(&[7, *from, *to, code]);
                put(&a.to_le_bytes());
                put(&b.to_le_bytes());
            }
            Self::Bye => put(&[8]),
            Self::Private { id } => {
                put(&[9]);
                put(&id.to_le_bytes());
            }
            Self::Wake { lcore } => put(&[10, *lcore]),
        }
        out
    }

    /// The meaning of a message; `None` when it has none. Of a [`Hello`] of another version only the version is right.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let message = match fields.u8()? {
            1 => Self::Hello(Box::new(fields.hello()?)),
            2 => Self::Refuse(fields.refusal()?),
            3 => Self::Exports { table_bytes: fields.u64()?, page_bytes: fields.u64()? },
            4 => Self::Region {
                id: fields.u32()?,
                bytes: fields.u64()?,
                writable: fields.u8()? != 0,
            },
            5 => Self::Retire { id: fields.u32()? },
            6 => Self::Attach { from: fields.u8()?, to: fields.u8()?, bytes: fields.u64()? },
            7 => Self::Decline { from: fields.u8()?, to: fields.u8()?, refusal: fields.refusal()? },
            8 => Self::Bye,
            9 => Self::Private { id: fields.u32()? },
            10 => Self::Wake { lcore: fields.u8()? },
            _ => return None,
        };
        fields.0.is_empty().then_some(message)
    }
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn refusal(&mut self) -> Option<Refusal> {
        Refusal::decode(self.u8()?, self.u32()?, self.u32()?)
    }

    fn hello(&mut self) -> Option<Hello> {
        if self.take()? != MAGIC {
            return None;
        }
        let version = self.take().map(u16::from_le_bytes)?;
        if version != VERSION {
            self.0 = &[];
            return Some(Hello { version, ..Hello::unknown() });
        }
        let mut hello = Hello {
            version,
            boot_id: self.take()?,
            uid: self.u32()?,
            prefix: self.u8()?,
            lcores: self.u8()?,
            nonce: Nonce(self.take()?),
            wants: self.take().map(|nonce| (nonce != [0; 16]).then_some(Nonce(nonce)))?,
            addresses: ArrayVec::new(),
        };
        while !self.0.is_empty() {
            hello.addresses.try_push(self.take()?).ok()?;
        }
        Some(hello)
    }
}

impl Hello {
    const fn unknown() -> Self {
        Self {
            version: 0,
            boot_id: [0; 16],
            uid: 0,
            prefix: 0,
            lcores: 0,
            nonce: Nonce([0; 16]),
            wants: None,
            addresses: ArrayVec::new_const(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            boot_id: [1; 16],
            uid: 1000,
            prefix: 5,
            lcores: 2,
            nonce: Nonce([2; 16]),
            wants: None,
            addresses: [[3; 16], [4; 16]].into_iter().collect(),
        }
    }

    #[test]
    fn every_message_survives_the_socket() {
        let full = Hello {
            wants: Some(Nonce([9; 16])),
            addresses: (0..32).map(|i| [i; 16]).collect(),
            ..hello()
        };
        let messages = [
            Message::Hello(Box::new(hello())),
            Message::Hello(Box::new(full)),
            Message::Exports { table_bytes: 1 << 20, page_bytes: 4096 },
            Message::Region { id: 7, bytes: 1 << 40, writable: true },
            Message::Private { id: 7 },
            Message::Retire { id: 7 },
            Message::Wake { lcore: 3 },
            Message::Attach { from: 1, to: 7, bytes: 69632 },
            Message::Decline { from: 1, to: 7, refusal: Refusal::Lcore(7) },
            Message::Bye,
        ];
        for message in messages {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message.clone()));
            for cut in 0..bytes.len() {
                // Cut between addresses, a Hello is still one; anywhere else, nothing is.
                let decoded = Message::decode(&bytes[..cut]);
                assert!(
                    decoded.is_none() || matches!(decoded, Some(Message::Hello(_))),
                    "{message:?} cut at {cut}"
                );
            }
            let longer: Vec<u8> = bytes.iter().copied().chain([0]).collect();
            assert_eq!(Message::decode(&longer), None);
        }
        for code in 0..=255 {
            if let Some(refusal) = Refusal::decode(code, 5, 6) {
                assert_eq!(
                    Message::decode(&Message::Refuse(refusal).encode()),
                    Some(Message::Refuse(refusal))
                );
                assert_eq!(refusal.encode().0, code);
            } else {
                assert!(!(1..=12).contains(&code));
            }
        }
    }

    #[test]
    fn another_version_is_named_whatever_follows() {
        let mut bytes = Message::Hello(Box::new(hello())).encode();
        bytes[5] = 9;
        bytes.truncate(12);
        let Some(Message::Hello(decoded)) = Message::decode(&bytes) else { panic!("a Hello") };
        let refusal = decoded.check(&hello(), 1000, &Expected::default());
        assert_eq!(refusal, Err(Refusal::Version { ours: VERSION, theirs: 9 }));
    }

    /// DESIGN section 5: user, boot id and nonce, and what else makes a process the wrong one.
    #[test]
    fn only_the_process_that_was_meant_passes() {
        let ours = Hello { prefix: 6, nonce: Nonce([7; 16]), ..hello() };
        let expected =
            Expected { prefix: Some(5), nonce: Some(Nonce([2; 16])), address: Some([4; 16]) };
        let check = |theirs: Hello, uid| theirs.check(&ours, uid, &expected);
        assert_eq!(check(hello(), 1000), Ok(()));
        assert_eq!(check(Hello { wants: Some(Nonce([7; 16])), ..hello() }, 1000), Ok(()));
        assert_eq!(check(Hello { boot_id: [0; 16], ..hello() }, 1000), Err(Refusal::Host));
        assert_eq!(check(hello(), 0), Err(Refusal::User { ours: 1000, theirs: 0 }));
        assert_eq!(
            check(Hello { uid: 7, ..hello() }, 1000),
            Err(Refusal::User { ours: 1000, theirs: 7 })
        );
        assert_eq!(check(Hello { prefix: 4, ..hello() }, 1000), Err(Refusal::Prefix(4)));
        assert_eq!(check(Hello { nonce: Nonce([3; 16]), ..hello() }, 1000), Err(Refusal::Nonce));
        assert_eq!(
            check(Hello { wants: Some(Nonce([8; 16])), ..hello() }, 1000),
            Err(Refusal::Nonce)
        );
        assert_eq!(
            check(Hello { addresses: [[3; 16]].into_iter().collect(), ..hello() }, 1000),
            Err(Refusal::Address)
        );
        for lcores in [0, 9] {
            assert_eq!(check(Hello { lcores, ..hello() }, 1000), Err(Refusal::Nonsense));
        }
        for prefix in [0, 128] {
            let refusal = Hello { prefix, ..hello() }.check(&ours, 1000, &Expected::default());
            assert_eq!(refusal, Err(Refusal::Prefix(prefix)));
        }
    }

    #[test]
    fn this_machine_has_a_boot_id() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }
}
