//! How a session opens.

use super::{MessageError, VERSION};

/// Bytes of an [`Open`].
pub const OPEN_BYTES: usize = 32;
/// Bytes of an [`Opened`] before the reference.
const OPENED_FIXED: usize = 16;

/// What a client asks for when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Chosen by the client: connections of one session share what they store.
    pub session: u64,
    /// Bytes that the session will store; 0 when it does not know.
    pub bytes: u64,
    /// Connections that the session will open.
    pub connections: u16,
    /// Requests that this connection wants in flight.
    pub depth: u32,
}

impl Open {
    /// As bytes: version (1), zeros (3), depth (4), session (8), bytes (8), connections (2), zeros (6).
    pub fn encode(&self) -> [u8; OPEN_BYTES] {
        let mut bytes = [0; OPEN_BYTES];
        bytes[0] = VERSION;
        bytes[4..8].copy_from_slice(&self.depth.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.connections.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`MessageError`] for another length or version.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes: &[u8; OPEN_BYTES] =
            bytes.try_into().map_err(|_| MessageError::Length(bytes.len()))?;
        if bytes[0] != VERSION {
            return Err(MessageError::Version(bytes[0]));
        }
        let at = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        Ok(Self {
            session: u64::from_le_bytes(at(8)),
            bytes: u64::from_le_bytes(at(16)),
            connections: u16::from_le_bytes([bytes[24], bytes[25]]),
            depth: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
    }
}

/// What the target grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of the exported memory.
    pub capacity: u64,
    /// Requests that may be in flight on this connection.
    pub depth: u32,
    /// The exported memory, as the device encodes it.
    pub memory: Vec<u8>,
}

impl Opened {
    /// As bytes: version (1), zeros (3), depth (4), capacity (8), then the reference.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(OPENED_FIXED + self.memory.len());
        bytes.extend([VERSION, 0, 0, 0]);
        bytes.extend(self.depth.to_le_bytes());
        bytes.extend(self.capacity.to_le_bytes());
        bytes.extend(&self.memory);
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`MessageError`] for too few bytes or another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let (fixed, memory) =
            bytes.split_first_chunk::<OPENED_FIXED>().ok_or(MessageError::Length(bytes.len()))?;
        if fixed[0] != VERSION {
            return Err(MessageError::Version(fixed[0]));
        }
        Ok(Self {
            capacity: u64::from_le_bytes(std::array::from_fn(|i| fixed[8 + i])),
            depth: u32::from_le_bytes(std::array::from_fn(|i| fixed[4 + i])),
            memory: memory.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn opening_survives(session: u64, bytes: u64, connections: u16, depth: u32) {
            let open = Open { session, bytes, connections, depth };
            prop_assert_eq!(Open::decode(&open.encode()), Ok(open));
        }

        #[test]
        fn a_grant_survives_with_references_of_any_length(
            capacity: u64, depth: u32, memory in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let opened = Opened { capacity, depth, memory };
            prop_assert_eq!(Opened::decode(&opened.encode()), Ok(opened));
        }

        #[test]
        fn any_bytes_are_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let length = bytes.len();
            prop_assert!(Open::decode(&bytes).is_err() || length == OPEN_BYTES);
            prop_assert!(Opened::decode(&bytes).is_err() || length >= OPENED_FIXED);
        }
    }
}
