//! Announcements as bytes.

use std::time::Duration;

use pmd_verbs::roce::ids::{Gid, Qpn};
use thiserror::Error;

/// First bytes of every announcement.
const MAGIC: [u8; 4] = *b"SPDA";
/// Version of the layout; another one is refused.
pub const VERSION: u8 = 1;
/// Bytes of a [`Who`].
pub const WHO_BYTES: usize = 28;
/// Bytes before the first [`Who`].
const HEAD: usize = 12;
/// Longest name, in bytes.
pub const NAME_LONGEST: usize = 63;
/// Longest announcement, in bytes.
pub const LONGEST: usize = HEAD + 2 * WHO_BYTES + NAME_LONGEST;

/// It answers somebody, who is named behind the announcer.
const FLAG_ANSWER: u8 = 1;
/// The announcer still waits for answers.
const FLAG_LOOKING: u8 = 2;

/// Where somebody is reached, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Address.
    pub gid: Gid,
    /// Queue pair.
    pub qpn: Qpn,
    /// Grows with every start.
    pub generation: u64,
}

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement<'a> {
    /// The announcer.
    pub who: Who,
    /// What it calls itself: 1 to [`NAME_LONGEST`] bytes.
    pub name: &'a str,
    /// How long it is to be believed in, in whole milliseconds.
    pub ttl: Duration,
    /// Whether it still waits for answers.
    pub looking: bool,
    /// Whom it answers; `None`: it is for everybody.
    pub answers: Option<Who>,
}

/// Why bytes are no announcement.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoAnnouncement {
    /// They do not start as one.
    #[error("somebody else uses this group")]
    Foreign,
    /// Another version.
    #[error("version {0} instead of {VERSION}")]
    Version(u8),
    /// A field makes no sense.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

impl Who {
    fn encode(&self) -> [u8; WHO_BYTES] {
        let mut bytes = [0; WHO_BYTES];
        bytes[..4].copy_from_slice(&self.qpn.value().to_be_bytes());
        bytes[4..12].copy_from_slice(&self.generation.to_be_bytes());
        bytes[12..].copy_from_slice(&self.gid.0);
        bytes
    }

    fn decode(bytes: &[u8; WHO_BYTES]) -> Result<Self, NoAnnouncement> {
        let at = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        if at(0) >> 24 != 0 {
            return Err(NoAnnouncement::Damaged("a queue pair has a number of 24 bits"));
        }
        Ok(Self {
            gid: Gid(std::array::from_fn(|i| bytes[12 + i])),
            qpn: Qpn::new(at(0)),
            generation: u64::from(at(4)) << 32 | u64::from(at(8)),
        })
    }
}

impl Announcement<'_> {
    /// Writes it to the front of `into`: magic (4), version, flags, length of the name, zero, time to live in
    /// milliseconds (4), the announcer, whom it answers, name. Returns its length.
    ///
    /// # Panics
    /// With a name that is too long: a mistake of the program.
    pub fn encode(&self, into: &mut [u8; LONGEST]) -> usize {
        let name = self.name.as_bytes();
        assert!(name.len() <= NAME_LONGEST, "a name is checked before it is announced");
        let answer = if self.answers.is_some() { FLAG_ANSWER } else { 0 };
        let looking = if self.looking { FLAG_LOOKING } else { 0 };
        into[..4].copy_from_slice(&MAGIC);
        into[4] = VERSION;
        into[5] = answer | looking;
        into[6] = u8::try_from(name.len()).unwrap_or(u8::MAX);
        into[7] = 0;
        let ttl = u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX);
        into[8..HEAD].copy_from_slice(&ttl.to_be_bytes());
        let mut end = HEAD;
        for who in std::iter::once(self.who).chain(self.answers) {
            into[end..end + WHO_BYTES].copy_from_slice(&who.encode());
            end += WHO_BYTES;
        }
        into[end..end + name.len()].copy_from_slice(name);
        end + name.len()
    }
}

impl<'a> Announcement<'a> {
    /// From a datagram.
    ///
    /// # Errors
    /// [`NoAnnouncement`] says what is wrong with it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, NoAnnouncement> {
        let damaged = NoAnnouncement::Damaged;
        if !bytes.starts_with(&MAGIC) {
            return Err(NoAnnouncement::Foreign);
        }
        let (head, rest) =
            bytes.split_first_chunk::<HEAD>().ok_or_else(|| damaged("it is cut short"))?;
        let [_, _, _, _, version, flags, length, zero, t0, t1, t2, t3] = *head;
        if version != VERSION {
            return Err(NoAnnouncement::Version(version));
        }
        if flags & !(FLAG_ANSWER | FLAG_LOOKING) != 0 || zero != 0 {
            return Err(damaged("flags that are not known"));
        }
        let cut = || damaged("it is cut short");
        let (who, mut rest) = rest.split_first_chunk::<WHO_BYTES>().ok_or_else(cut)?;
        let mut answers = None;
        if flags & FLAG_ANSWER != 0 {
            let (whom, after) = rest.split_first_chunk::<WHO_BYTES>().ok_or_else(cut)?;
            answers = Some(Who::decode(whom)?);
            rest = after;
        }
        if rest.len() != usize::from(length) || rest.is_empty() || rest.len() > NAME_LONGEST {
            return Err(damaged("its name has another length"));
        }
        let name = std::str::from_utf8(rest).ok().filter(|name| !name.contains(char::is_control));
        Ok(Self {
            who: Who::decode(who)?,
            name: name.ok_or_else(|| damaged("its name is no text"))?,
            ttl: Duration::from_millis(u32::from_be_bytes([t0, t1, t2, t3]).into()),
            looking: flags & FLAG_LOOKING != 0,
            answers,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn who() -> impl Strategy<Value = Who> {
        (any::<[u8; 16]>(), 0..1_u32 << 24, any::<u64>()).prop_map(|(gid, qpn, generation)| Who {
            gid: Gid(gid),
            qpn: Qpn::new(qpn),
            generation,
        })
    }

    proptest! {
        #[test]
        fn announcements_survive(
            who in who(), name in "[a-z0-9-]{1,63}", ttl: u32, looking: bool,
            answers in prop::option::of(who()),
        ) {
            let ttl = Duration::from_millis(ttl.into());
            let announcement = Announcement { who, name: &name, ttl, looking, answers };
            let mut bytes = [0xee; LONGEST];
            let len = announcement.encode(&mut bytes);
            prop_assert_eq!(Announcement::decode(&bytes[..len]), Ok(announcement));
            for cut in 0..len {
                prop_assert!(Announcement::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_an_announcement_or_an_error(
            flags in 0..5_u8, tail in prop::collection::vec(any::<u8>(), 0..140),
        ) {
            let bytes = [&MAGIC[..], &[VERSION, flags], &tail].concat();
            if let Ok(announcement) = Announcement::decode(&bytes) {
                let mut again = [0; LONGEST];
                let len = announcement.encode(&mut again);
                prop_assert_eq!(&again[..len], &bytes[..]);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let who = Who { gid: Gid([7; 16]), qpn: Qpn::new(0x12_3456), generation: 9 };
        let ttl = Duration::from_secs(1);
        let announcement = Announcement { who, name: "alpha", ttl, looking: true, answers: None };
        let mut bytes = [0; LONGEST];
        let len = announcement.encode(&mut bytes);
        assert_eq!(len, 12 + 28 + 5);
        assert_eq!(
            bytes[..16],
            [b'S', b'P', b'D', b'A', 1, 2, 5, 0, 0, 0, 3, 0xe8, 0, 0x12, 0x34, 0x56]
        );
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            Announcement::decode(&bytes[..len]).map(|_| ()).unwrap_err()
        };
        assert_eq!(Announcement::decode(b"M-SEARCH * HTTP/1.1"), Err(NoAnnouncement::Foreign));
        assert_eq!(with(4, 2), NoAnnouncement::Version(2));
        assert_eq!(with(5, 4), NoAnnouncement::Damaged("flags that are not known"));
        assert_eq!(with(6, 4), NoAnnouncement::Damaged("its name has another length"));
        assert_eq!(with(12, 1), NoAnnouncement::Damaged("a queue pair has a number of 24 bits"));
        assert_eq!(with(len - 1, 7), NoAnnouncement::Damaged("its name is no text"));
    }
}
