//! What consumers tell each other inside the messages of a handshake.

use core::fmt;

/// Most bytes that any message has room for: an RTU.
const CAPACITY: usize = 224;

/// More private data than a message has room for. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of private data: {message} has room for {max}")]
pub struct PrivateDataTooLong {
    /// Bytes given.
    pub len: usize,
    /// Room that there is.
    pub max: usize,
    /// The message that was to carry them.
    pub message: &'static str,
}

/// Private data of one message. On the wire it has no length: who receives it sees the whole field,
/// with zeros behind what was sent. Consumers may hand over keys in it, so that it is never printed.
#[derive(Clone, Copy)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; CAPACITY],
}

impl PrivateData {
    /// None.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; CAPACITY] };

    /// These bytes, where `message` has room for `max`.
    ///
    /// # Errors
    /// [`PrivateDataTooLong`].
    pub fn new(
        bytes: &[u8],
        max: usize,
        message: &'static str,
    ) -> Result<Self, PrivateDataTooLong> {
        if bytes.len() > max.min(CAPACITY) {
            return Err(PrivateDataTooLong { len: bytes.len(), max: max.min(CAPACITY), message });
        }
        Ok(Self::of_field(bytes))
    }

    /// The field of a message, all of it; no field is longer than there is room.
    pub(super) fn of_field(field: &[u8]) -> Self {
        let mut data = Self::EMPTY;
        let len = field.len().min(CAPACITY);
        data.bytes[..len].copy_from_slice(&field[..len]);
        #[expect(clippy::cast_possible_truncation, reason = "at most 224")]
        let len = len as u8;
        data.len = len;
        data
    }

    /// Fills the field of a message, with zeros behind.
    pub(super) fn emit(&self, field: &mut [u8]) {
        let len = field.len().min(self.len.into());
        field[..len].copy_from_slice(&self.bytes[..len]);
        field[len..].fill(0);
    }

    /// All bytes: those given, or those of the whole field where it was received.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    /// The bytes up to the last that is not zero: what was sent, where that does not end in zeros.
    pub fn without_padding(&self) -> &[u8] {
        let bytes = self.as_bytes();
        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        &bytes[..len]
    }
}

impl Default for PrivateData {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl PartialEq for PrivateData {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for PrivateData {}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0-36, S0-43: the limit is checked before anything is sent, and nothing is printed.
    #[test]
    fn s0_36_private_data_has_a_limit_and_is_not_printed() {
        let data = PrivateData::new(&[7; 56], 56, "REQ").unwrap();
        assert_eq!(data.as_bytes(), [7; 56]);
        assert_eq!(format!("{data:?}"), "56 bytes");
        let refused = PrivateData::new(&[7; 57], 56, "REQ").unwrap_err();
        assert_eq!(refused, PrivateDataTooLong { len: 57, max: 56, message: "REQ" });
        assert_eq!(refused.to_string(), "57 bytes of private data: REQ has room for 56");
    }

    #[test]
    fn padding_is_told_from_what_was_sent() {
        let mut field = [0xaa; 10];
        PrivateData::new(&[1, 0, 2], 10, "RTU").unwrap().emit(&mut field);
        let received = PrivateData::of_field(&field);
        assert_eq!(received.as_bytes(), [1, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(received.without_padding(), [1, 0, 2]);
        assert_eq!(PrivateData::of_field(&[0; 4]).without_padding(), []);
    }
}
