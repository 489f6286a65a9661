//! How a session opens.

use super::{MessageError, VERSION};

/// Bytes of an [`Open`] before the reference.
pub const OPEN_BYTES: usize = 52;
/// Buffers begin at multiples of this, in bytes: direct I/O needs it.
pub const BUFFER_BYTES: u64 = 4096;
/// Bytes of an [`Opened`] before the reference.
const OPENED_FIXED: usize = 32;

/// Where a session's part of a store lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The store's own number: the same after a restart only if what was stored is still there.
    pub store: u64,
    /// First byte of the part.
    pub start: u64,
}

/// What a client asks for when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Chosen by the client: connections of one session share what they store.
    pub session: u64,
    /// Bytes that the session will store; 0 when it does not know.
    pub bytes: u64,
    /// Connections that the session will open.
    pub connections: u16,
    /// Requests that this connection wants in flight.
    pub depth: u32,
    /// Bytes from one buffer to the next, where requests have buffers: a multiple of [`BUFFER_BYTES`], and no less than
    /// any range.
    pub stride: u32,
    /// How long the client is silent at most, in milliseconds; 0: as long as it likes.
    pub keep_alive_ms: u32,
    /// What the session had at the target before, when it comes back.
    pub held: Option<Held>,
    /// The client's memory with a buffer for each request in flight, as the device encodes it; empty for a client that
    /// does not ask for [`Operation::Read`](super::Operation::Read).
    pub memory: Vec<u8>,
}

/// Where the bytes of a request lie in the exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The memory is the store: a range lies at its offset, and may be read there.
    Store,
    /// The memory holds a buffer for each request: a range lies at its tag times the stride.
    Buffers,
}

impl Open {
    /// As bytes: version (1), whether it comes back (1), zeros (2), depth (4), session (8), bytes (8), connections (2),
    /// zeros (2), stride (4), keep-alive (4), store (8), start (8), then the reference.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; OPEN_BYTES];
        bytes[0] = VERSION;
        bytes[1] = u8::from(self.held.is_some());
        bytes[4..8].copy_from_slice(&self.depth.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.connections.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.stride.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.keep_alive_ms.to_le_bytes());
        if let Some(Held { store, start }) = self.held {
            bytes[36..44].copy_from_slice(&store.to_le_bytes());
            bytes[44..52].copy_from_slice(&start.to_le_bytes());
        }
        bytes.extend(&self.memory);
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`MessageError`] for too few bytes or another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let (bytes, memory) =
            bytes.split_first_chunk::<OPEN_BYTES>().ok_or(MessageError::Length(bytes.len()))?;
        if bytes[0] != VERSION {
            return Err(MessageError::Version(bytes[0]));
        }
        let at = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let held = Held { store: u64::from_le_bytes(at(36)), start: u64::from_le_bytes(at(44)) };
        Ok(Self {
            session: u64::from_le_bytes(at(8)),
            bytes: u64::from_le_bytes(at(16)),
            connections: u16::from_le_bytes([bytes[24], bytes[25]]),
            depth: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            stride: u32::from_le_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]),
            keep_alive_ms: u32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]),
            held: (bytes[1] != 0).then_some(held),
            memory: memory.to_vec(),
        })
    }
}

/// What the target grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes that the session may store.
    pub capacity: u64,
    /// Where the bytes of a request lie in the exported memory.
    pub place: Place,
    /// Requests that may be in flight on this connection.
    pub depth: u32,
    /// Where the session's part lies.
    pub held: Held,
    /// The exported memory, as the device encodes it.
    pub memory: Vec<u8>,
}

impl Opened {
    /// As bytes: version (1), place (1), zeros (2), depth (4), capacity (8), store (8), start (8), then the reference.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(OPENED_FIXED + self.memory.len());
        bytes.extend([VERSION, u8::from(self.place == Place::Buffers), 0, 0]);
        bytes.extend(self.depth.to_le_bytes());
        bytes.extend(self.capacity.to_le_bytes());
        bytes.extend(self.held.store.to_le_bytes());
        bytes.extend(self.held.start.to_le_bytes());
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
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fixed[at + i]));
        Ok(Self {
            capacity: word(8),
            place: if fixed[1] == 0 { Place::Store } else { Place::Buffers },
            depth: u32::from_le_bytes(std::array::from_fn(|i| fixed[4 + i])),
            held: Held { store: word(16), start: word(24) },
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
        fn opening_survives(
            session: u64, bytes: u64, connections: u16, depth: u32, stride: u32, keep_alive_ms: u32,
            held in prop::option::of((any::<u64>(), any::<u64>())),
            memory in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let held = held.map(|(store, start)| Held { store, start });
            let open =
                Open { session, bytes, connections, depth, stride, keep_alive_ms, held, memory };
            prop_assert_eq!(Open::decode(&open.encode()), Ok(open));
        }

        #[test]
        fn a_grant_survives_with_references_of_any_length(
            capacity: u64, depth: u32, store: u64, start: u64,
            memory in prop::collection::vec(any::<u8>(), 0..300),
            place in prop::sample::select(&[Place::Store, Place::Buffers]),
        ) {
            let held = Held { store, start };
            let opened = Opened { capacity, place, depth, held, memory };
            prop_assert_eq!(Opened::decode(&opened.encode()), Ok(opened));
        }

        #[test]
        fn any_bytes_are_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let length = bytes.len();
            prop_assert!(Open::decode(&bytes).is_err() || length >= OPEN_BYTES);
            prop_assert!(Opened::decode(&bytes).is_err() || length >= OPENED_FIXED);
        }
    }
}
