//! Requests and replies as bytes: a head, and behind it a value.

use thiserror::Error;

/// Version of the messages; another one is refused.
pub const VERSION: u8 = 2;
/// Bytes of a request before its value.
pub const REQUEST_BYTES: usize = 24;
/// Bytes of a reply before its value.
pub const REPLY_BYTES: usize = 16;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// The value of a key.
    Get = 1,
    /// Keep this value under a key, instead of the one before.
    Put = 2,
    /// A sign of life.
    KeepAlive = 3,
}

impl Operation {
    fn from_number(number: u8) -> Result<Self, MessageError> {
        let known = [Self::Get, Self::Put, Self::KeepAlive];
        known
            .into_iter()
            .find(|operation| *operation as u8 == number)
            .ok_or(MessageError::Operation(number))
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done; a GET's value follows.
    Ok = 0,
    /// Nothing is kept under the key.
    NotFound = 1,
    /// As many keys are kept as there is room for.
    Full = 2,
    /// The key lies outside the session's range.
    OutOfRange = 3,
    /// The value is longer than the server keeps.
    TooLong = 4,
}

impl Status {
    const ALL: [Self; 5] = [Self::Ok, Self::NotFound, Self::Full, Self::OutOfRange, Self::TooLong];

    /// The word for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotFound => "not-found",
            Self::Full => "full",
            Self::OutOfRange => "out-of-range",
            Self::TooLong => "too-long",
        }
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MessageError {
    /// Fewer than the head has.
    #[error("a message of {0} bytes is shorter than its head")]
    Short(usize),
    /// Another length than the head says.
    #[error("a value of {said} bytes is announced, and {found} follow")]
    Length {
        /// Bytes of the value, by its head.
        said: u32,
        /// Bytes behind the head.
        found: usize,
    },
    /// Another version.
    #[error("version {0} instead of {VERSION}: update the older side")]
    Version(u8),
    /// No operation has this number.
    #[error("operation {0} does not exist")]
    Operation(u8),
    /// No status has this number.
    #[error("status {0} does not exist")]
    Status(u16),
    /// Bytes that mean nothing in this version are not zero.
    #[error("flags {0:#06x} are not known")]
    Flags(u16),
}

/// A request of a client; its value stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Bytes of the value; 0 for all but [`Operation::Put`].
    pub len: u32,
    /// The client's name for it, echoed.
    pub tag: u64,
    /// Which key; 0 for [`Operation::KeepAlive`], which has none.
    pub key: u64,
}

/// The answer to a request; its value stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Of the request.
    pub operation: Operation,
    /// How it ended.
    pub status: Status,
    /// Bytes of the value; 0 for all but a [`Operation::Get`] that found one.
    pub len: u32,
    /// Of the request.
    pub tag: u64,
}

/// `N` bytes from `at` of a head, which is as long as it must be.
fn take<const N: usize, const HEAD: usize>(bytes: &[u8; HEAD], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

/// The head of a message of version [`VERSION`].
fn head<const HEAD: usize>(bytes: &[u8]) -> Result<&[u8; HEAD], MessageError> {
    let head = bytes.first_chunk::<HEAD>().ok_or(MessageError::Short(bytes.len()))?;
    if head[0] == VERSION { Ok(head) } else { Err(MessageError::Version(head[0])) }
}

/// Whether `len` bytes follow the head of a message of `whole` bytes.
fn followed(len: u32, head: usize, whole: usize) -> Result<(), MessageError> {
    let found = whole.saturating_sub(head);
    if found == len as usize { Ok(()) } else { Err(MessageError::Length { said: len, found }) }
}

impl Request {
    /// The head as bytes: version, operation, zeros (2), length of the value (4), tag (8), key (8).
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.operation as u8;
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    /// From the head of a message of `whole` bytes.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with them.
    pub fn decode(bytes: &[u8], whole: usize) -> Result<Self, MessageError> {
        let head: &[u8; REQUEST_BYTES] = head(bytes)?;
        let operation = Operation::from_number(head[1])?;
        match u16::from_le_bytes(take(head, 2)) {
            0 => {}
            flags => return Err(MessageError::Flags(flags)),
        }
        let len = u32::from_le_bytes(take(head, 4));
        followed(len, REQUEST_BYTES, whole)?;
        if operation != Operation::Put && len > 0 {
            return Err(MessageError::Length { said: 0, found: len as usize });
        }
        let (tag, key) = (u64::from_le_bytes(take(head, 8)), u64::from_le_bytes(take(head, 16)));
        Ok(Self { operation, len, tag, key })
    }
}

impl Reply {
    /// The head as bytes: version, operation, status (2), length of the value (4), tag (8).
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut bytes = [0; REPLY_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.operation as u8;
        bytes[2..4].copy_from_slice(&(self.status as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    /// From the head of a message of `whole` bytes.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with them.
    pub fn decode(bytes: &[u8], whole: usize) -> Result<Self, MessageError> {
        let head: &[u8; REPLY_BYTES] = head(bytes)?;
        let operation = Operation::from_number(head[1])?;
        let number = u16::from_le_bytes(take(head, 2));
        let status = Status::ALL.into_iter().find(|status| *status as u16 == number);
        let len = u32::from_le_bytes(take(head, 4));
        followed(len, REPLY_BYTES, whole)?;
        Ok(Self {
            operation,
            status: status.ok_or(MessageError::Status(number))?,
            len,
            tag: u64::from_le_bytes(take(head, 8)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn puts_survive(len in 0..100_000_u32, tag: u64, key: u64) {
            let request = Request { operation: Operation::Put, len, tag, key };
            let whole = REQUEST_BYTES + len as usize;
            prop_assert_eq!(Request::decode(&request.encode(), whole), Ok(request));
        }

        #[test]
        fn replies_survive(
            len in 0..100_000_u32, tag: u64, status in proptest::sample::select(&Status::ALL),
        ) {
            let reply = Reply { operation: Operation::Get, status, len, tag };
            let whole = REPLY_BYTES + len as usize;
            prop_assert_eq!(Reply::decode(&reply.encode(), whole), Ok(reply));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..40), version in 1..4_u8, op in 0..5_u8,
        ) {
            let mut bytes = bytes;
            if let [first, second, ..] = &mut bytes[..] {
                (*first, *second) = (version, op);
            }
            let whole = bytes.len();
            if let Ok(request) = Request::decode(&bytes, whole) {
                prop_assert_eq!(&request.encode()[..], &bytes[..REQUEST_BYTES]);
            }
            if let Ok(reply) = Reply::decode(&bytes, whole) {
                prop_assert_eq!(&reply.encode()[..], &bytes[..REPLY_BYTES]);
            }
        }
    }

    #[test]
    fn a_put_as_bytes() {
        let put = Request {
            operation: Operation::Put,
            len: 0x0102,
            tag: 0x0a0b,
            key: 0x1122_3344_5566_7788,
        };
        let expected = [
            2, 2, 0, 0, 2, 1, 0, 0, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44,
            0x33, 0x22, 0x11,
        ];
        assert_eq!(put.encode(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = Request { operation: Operation::Get, len: 0, tag: 1, key: 2 }.encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Request::decode(&bytes, REQUEST_BYTES)
        };
        assert_eq!(Request::decode(&good[..23], 23), Err(MessageError::Short(23)));
        assert_eq!(Request::decode(&good, 25), Err(MessageError::Length { said: 0, found: 1 }));
        assert_eq!(with(4, 1), Err(MessageError::Length { said: 1, found: 0 }));
        assert_eq!(with(0, 1), Err(MessageError::Version(1)));
        assert_eq!(with(1, 9), Err(MessageError::Operation(9)));
        assert_eq!(with(3, 0x80), Err(MessageError::Flags(0x8000)));
        let mut get = good;
        get[4] = 1;
        let carries = Err(MessageError::Length { said: 0, found: 1 });
        assert_eq!(Request::decode(&get, REQUEST_BYTES + 1), carries, "a GET carries no value");
        let mut reply =
            Reply { operation: Operation::Put, status: Status::Ok, len: 0, tag: 0 }.encode();
        reply[2] = 9;
        assert_eq!(Reply::decode(&reply, REPLY_BYTES), Err(MessageError::Status(9)));
    }
}
