//! Requests and replies as bytes.

use thiserror::Error;

/// Version of the messages; another one is refused.
pub const VERSION: u8 = 4;
/// Bytes of every message: short enough to be sent inline by any device.
pub const MESSAGE_BYTES: usize = MESSAGE_LEN as usize;
/// The same as operations count.
pub const MESSAGE_LEN: u32 = 32;

/// The commit carries a checksum.
const FLAG_CRC: u16 = 1;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Takes a written range into the store.
    Commit = 1,
    /// Makes everything durable that was committed, by whichever connection.
    Flush = 2,
    /// Flushes, and ends the session on this connection.
    Bye = 3,
    /// Writes a range of the store into the client's buffer of this tag.
    Read = 4,
    /// Does nothing, and is answered at once: the target is there.
    KeepAlive = 5,
}

impl Operation {
    const ALL: [Self; 5] = [Self::Commit, Self::Flush, Self::Bye, Self::Read, Self::KeepAlive];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| *operation as u8 == number)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The range lies outside what was opened.
    OutOfRange = 1,
    /// The stored bytes have another checksum than the request says.
    BadCrc = 2,
    /// The store is full.
    NoSpace = 3,
    /// The request makes no sense at this point.
    Invalid = 4,
    /// The store failed.
    Io = 5,
    /// The store ends before the range does, though it should not.
    Short = 6,
    /// The store takes only ranges that begin and end at multiples of some bytes.
    Misaligned = 7,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Ok,
        Self::OutOfRange,
        Self::BadCrc,
        Self::NoSpace,
        Self::Invalid,
        Self::Io,
        Self::Short,
        Self::Misaligned,
    ];

    /// The word for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OutOfRange => "out-of-range",
            Self::BadCrc => "bad-crc",
            Self::NoSpace => "no-space",
            Self::Invalid => "invalid",
            Self::Io => "io",
            Self::Short => "short",
            Self::Misaligned => "misaligned",
        }
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MessageError {
    /// Another length than every message has.
    #[error("{0} bytes instead of {MESSAGE_BYTES}")]
    Length(usize),
    /// Another version.
    #[error("version {0} instead of {VERSION}: update the older side")]
    Version(u8),
    /// No operation has this number.
    #[error("operation {0} does not exist")]
    Operation(u8),
    /// No status has this number.
    #[error("status {0} does not exist")]
    Status(u16),
    /// Flags that this version does not know.
    #[error("flags {0:#06x} are not known")]
    Flags(u16),
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// The client's name for it, echoed.
    pub tag: u32,
    /// Counts the requests of a connection from 1, echoed.
    pub sequence: u64,
    /// First byte of the range; 0 where the operation has none.
    pub offset: u64,
    /// Bytes of the range; 0 where the operation has none.
    pub len: u32,
    /// CRC-32C of the range, if the client knows it.
    pub crc32c: Option<u32>,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Of the request.
    pub operation: Operation,
    /// Of the request.
    pub tag: u32,
    /// Of the request.
    pub sequence: u64,
    /// How it ended.
    pub status: Status,
    /// With [`Status::Ok`], the blocks that this connection has committed, or for [`Operation::KeepAlive`] for how many
    /// milliseconds the store has had the oldest request of this connection, 0 without one; with [`Status::BadCrc`], the checksum of what
    /// is stored; with [`Status::OutOfRange`], the capacity; with [`Status::Io`] and [`Status::NoSpace`], the error number
    /// of the target's system, if it has one; with [`Status::Short`], the bytes that were there; with
    /// [`Status::Misaligned`], the bytes that ranges are multiples of.
    pub value: u64,
}

/// `N` bytes from `at`: the message is as long as it must be.
fn take<const N: usize>(bytes: &[u8; MESSAGE_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

fn whole(bytes: &[u8]) -> Result<&[u8; MESSAGE_BYTES], MessageError> {
    let bytes: &[u8; MESSAGE_BYTES] =
        bytes.try_into().map_err(|_| MessageError::Length(bytes.len()))?;
    if bytes[0] == VERSION { Ok(bytes) } else { Err(MessageError::Version(bytes[0])) }
}

impl Request {
    /// As bytes: version, operation, flags (2), CRC (4), sequence (8), offset (8), length (4), tag (4).
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.operation as u8;
        if let Some(crc) = self.crc32c {
            bytes[2..4].copy_from_slice(&FLAG_CRC.to_le_bytes());
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    /// From the bytes of a message.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes = whole(bytes)?;
        let operation =
            Operation::from_number(bytes[1]).ok_or(MessageError::Operation(bytes[1]))?;
        let flags = u16::from_le_bytes(take(bytes, 2));
        if flags & !FLAG_CRC != 0 {
            return Err(MessageError::Flags(flags));
        }
        Ok(Self {
            operation,
            tag: u32::from_le_bytes(take(bytes, 28)),
            sequence: u64::from_le_bytes(take(bytes, 8)),
            offset: u64::from_le_bytes(take(bytes, 16)),
            len: u32::from_le_bytes(take(bytes, 24)),
            crc32c: (flags & FLAG_CRC != 0).then(|| u32::from_le_bytes(take(bytes, 4))),
        })
    }
}

impl Reply {
    /// As bytes: version, operation, status (2), tag (4), sequence (8), value (8), zeros (8).
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.operation as u8;
        bytes[2..4].copy_from_slice(&(self.status as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// From the bytes of a message.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes = whole(bytes)?;
        let operation =
            Operation::from_number(bytes[1]).ok_or(MessageError::Operation(bytes[1]))?;
        let number = u16::from_le_bytes(take(bytes, 2));
        let status = Status::ALL.into_iter().find(|status| *status as u16 == number);
        Ok(Self {
            operation,
            tag: u32::from_le_bytes(take(bytes, 4)),
            sequence: u64::from_le_bytes(take(bytes, 8)),
            status: status.ok_or(MessageError::Status(number))?,
            value: u64::from_le_bytes(take(bytes, 16)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation() -> impl Strategy<Value = Operation> {
        proptest::sample::select(&Operation::ALL)
    }

    proptest! {
        #[test]
        fn requests_survive(
            operation in operation(), tag: u32, sequence: u64, offset: u64, len: u32, crc32c: Option<u32>,
        ) {
            let request = Request { operation, tag, sequence, offset, len, crc32c };
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn replies_survive(
            operation in operation(), tag: u32, sequence: u64, value: u64,
            status in proptest::sample::select(&Status::ALL),
        ) {
            let reply = Reply { operation, tag, sequence, status, value };
            prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: [u8; MESSAGE_BYTES]) {
            if let Ok(request) = Request::decode(&bytes) {
                // What was understood is encoded the same, but for bytes that mean nothing.
                prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
            }
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(&reply.encode()[..24], &bytes[..24]);
            }
        }
    }

    #[test]
    fn numbers_stay() {
        let bytes = |operation| {
            let request =
                Request { operation, tag: 0, sequence: 0, offset: 0, len: 0, crc32c: None };
            request.encode()[1]
        };
        assert_eq!(Operation::ALL.map(bytes), [1, 2, 3, 4, 5]);
        let statuses = Status::ALL.map(|status| status as u16);
        assert_eq!(statuses, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_commit_as_bytes() {
        let request = Request {
            operation: Operation::Commit,
            tag: 0x0102_0304,
            sequence: 5,
            offset: 0x1_0000,
            len: 0x1000,
            crc32c: Some(0xaabb_ccdd),
        };
        let expected = [
            4, 1, 1, 0, 0xdd, 0xcc, 0xbb, 0xaa, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0,
            0x10, 0, 0, 4, 3, 2, 1,
        ];
        assert_eq!(request.encode(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = Request {
            operation: Operation::Bye,
            tag: 0,
            sequence: 1,
            offset: 0,
            len: 0,
            crc32c: None,
        }
        .encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Request::decode(&bytes)
        };
        assert_eq!(Request::decode(&good[..31]), Err(MessageError::Length(31)));
        assert_eq!(with(0, 9), Err(MessageError::Version(9)));
        assert_eq!(with(1, 6), Err(MessageError::Operation(6)));
        assert_eq!(with(3, 0x80), Err(MessageError::Flags(0x8000)));
        let mut reply = good;
        reply[2] = 9;
        assert_eq!(Reply::decode(&reply), Err(MessageError::Status(9)));
    }
}
