//! How a session opens.

use super::{MessageError, VERSION};

/// Bytes of an [`Open`].
pub const OPEN_BYTES: usize = 32;
/// Bytes of an [`Opened`].
pub const OPENED_BYTES: usize = 24;

/// What a client asks for when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Chosen by the client: connections of one session share its range of keys.
    pub session: u64,
    /// Keys that the session will use.
    pub keys: u64,
    /// Bytes of its longest value.
    pub value: u32,
    /// Connections that the session will open.
    pub connections: u16,
    /// Requests that this connection wants in flight.
    pub depth: u32,
    /// How long the client is silent at most, in milliseconds; 0: as long as it likes.
    pub keep_alive_ms: u32,
}

impl Open {
    /// As bytes: version (1), zero (1), connections (2), depth (4), session (8), keys (8), value (4), keep-alive (4).
    pub fn encode(&self) -> [u8; OPEN_BYTES] {
        let mut bytes = [0; OPEN_BYTES];
        bytes[0] = VERSION;
        bytes[2..4].copy_from_slice(&self.connections.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.depth.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.keys.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.value.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.keep_alive_ms.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`MessageError`] for another length or version.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes: &[u8; OPEN_BYTES] = whole(bytes)?;
        Ok(Self {
            session: u64::from_le_bytes(take(bytes, 8)),
            keys: u64::from_le_bytes(take(bytes, 16)),
            value: u32::from_le_bytes(take(bytes, 24)),
            connections: u16::from_le_bytes(take(bytes, 2)),
            depth: u32::from_le_bytes(take(bytes, 4)),
            keep_alive_ms: u32::from_le_bytes(take(bytes, 28)),
        })
    }
}

/// What the server grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// First key of the session's range; as many follow as it asked for.
    pub first: u64,
    /// Requests that may be in flight on this connection.
    pub depth: u32,
    /// The range's own number: a session that comes back and is given another one finds nothing of what it put.
    pub range: u64,
}

impl Opened {
    /// As bytes: version (1), zeros (3), depth (4), first key (8), range (8).
    pub fn encode(&self) -> [u8; OPENED_BYTES] {
        let mut bytes = [0; OPENED_BYTES];
        bytes[0] = VERSION;
        bytes[4..8].copy_from_slice(&self.depth.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.range.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`MessageError`] for another length or version.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes: &[u8; OPENED_BYTES] = whole(bytes)?;
        Ok(Self {
            first: u64::from_le_bytes(take(bytes, 8)),
            depth: u32::from_le_bytes(take(bytes, 4)),
            range: u64::from_le_bytes(take(bytes, 16)),
        })
    }
}

fn whole<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], MessageError> {
    let array: &[u8; N] = bytes.try_into().map_err(|_| MessageError::Length {
        said: u32::try_from(N).unwrap_or(u32::MAX),
        found: bytes.len(),
    })?;
    if array[0] == VERSION { Ok(array) } else { Err(MessageError::Version(array[0])) }
}

fn take<const N: usize, const ALL: usize>(bytes: &[u8; ALL], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn openings_survive(
            session: u64, keys: u64, value: u32, connections: u16, depth: u32, first: u64,
            keep_alive_ms: u32, range: u64,
        ) {
            let open = Open { session, keys, value, connections, depth, keep_alive_ms };
            prop_assert_eq!(Open::decode(&open.encode()), Ok(open));
            let opened = Opened { first, depth, range };
            prop_assert_eq!(Opened::decode(&opened.encode()), Ok(opened));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let open =
            Open { session: 1, keys: 2, value: 3, connections: 4, depth: 5, keep_alive_ms: 6 };
        let open = open.encode();
        assert_eq!(Open::decode(&open[..31]), Err(MessageError::Length { said: 32, found: 31 }));
        let mut old = open;
        old[0] = 9;
        assert_eq!(Open::decode(&old), Err(MessageError::Version(9)));
        assert_eq!(Opened::decode(b"block"), Err(MessageError::Length { said: 24, found: 5 }));
    }
}
