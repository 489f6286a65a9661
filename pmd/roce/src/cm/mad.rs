//! Management datagrams: 256 bytes on the general services interface, of which the first 24 are the
//! header that all of them share (IBTA 1.4, 13.4.2).

use super::limits::MAD_LEN;
use crate::wire::be;

/// A whole management datagram.
pub type Mad = [u8; MAD_LEN];

/// What follows the header.
pub type MadData = [u8; MAD_LEN - MadHeader::LEN];

mod at {
    pub(super) const BASE_VERSION: usize = 0;
    pub(super) const CLASS: usize = 1;
    pub(super) const CLASS_VERSION: usize = 2;
    pub(super) const METHOD: usize = 3;
    pub(super) const TRANSACTION_ID: usize = 8;
    pub(super) const ATTRIBUTE_ID: usize = 16;
}

const BASE_VERSION: u8 = 1;
/// Communication management.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// Every message of connection management is a Send, answers too.
const METHOD_SEND: u8 = 0x03;

/// Why bytes are no message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// A management datagram has one size.
    #[error("{0} bytes are no management datagram, which has 256")]
    Length(usize),
    /// Base version, or version of the class.
    #[error(
        "version {base} of management datagrams, or {class} of connection management, is not known"
    )]
    Version {
        /// Version of the header.
        base: u8,
        /// Version of what follows.
        class: u8,
    },
    /// Another service than connection management.
    #[error("management class {0:#04x} is not served here")]
    Class(u8),
    /// Connection management knows one method.
    #[error("method {0:#04x} is not Send")]
    Method(u8),
    /// No message has this number, or one that is not for RoCE.
    #[error("attribute {0:#06x} is no message that is spoken here")]
    Attribute(u16),
}

/// The header's fields that differ from message to message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// The same for all messages of a handshake, and for a message that is sent again.
    pub transaction_id: u64,
    /// Which message follows.
    pub attribute_id: u16,
}

impl MadHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// Splits a datagram of connection management into header and data.
    ///
    /// # Errors
    /// [`MadError`], but for the attribute, which is for the reader of the data.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &MadData), MadError> {
        let mad: &Mad = bytes.try_into().map_err(|_| MadError::Length(bytes.len()))?;
        let (base, class) = (mad[at::BASE_VERSION], mad[at::CLASS_VERSION]);
        match (mad[at::CLASS], mad[at::METHOD]) {
            (other, _) if other != CLASS => return Err(MadError::Class(other)),
            _ if base != BASE_VERSION || class != CLASS_VERSION => {
                return Err(MadError::Version { base, class });
            }
            (_, other) if other != METHOD_SEND => return Err(MadError::Method(other)),
            _ => {}
        }
        let header = Self {
            transaction_id: be::u64(mad, at::TRANSACTION_ID),
            attribute_id: be::u16(mad, at::ATTRIBUTE_ID),
        };
        let data = mad.last_chunk().ok_or(MadError::Length(bytes.len()))?;
        Ok((header, data))
    }

    /// Writes the header over a datagram.
    pub fn emit(&self, mad: &mut Mad) {
        mad[..Self::LEN].fill(0);
        mad[at::BASE_VERSION] = BASE_VERSION;
        mad[at::CLASS] = CLASS;
        mad[at::CLASS_VERSION] = CLASS_VERSION;
        mad[at::METHOD] = METHOD_SEND;
        be::put_u64(mad, at::TRANSACTION_ID, self.transaction_id);
        be::put_u16(mad, at::ATTRIBUTE_ID, self.attribute_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cm-reject frame 3: a REQ.
    const GOLDEN: [u8; 24] = [
        0x01, 0x07, 0x02, 0x03, 0, 0, 0, 0, 0, 0, 0, 0x02, 0xb7, 0xbc, 0xda, 0x5a, 0, 0x10, 0, 0,
        0, 0, 0, 0,
    ];

    #[test]
    fn golden_bytes_both_ways() {
        let header = MadHeader { transaction_id: 0x2_b7bc_da5a, attribute_id: 0x10 };
        let mut mad = [0xaa; MAD_LEN];
        header.emit(&mut mad);
        assert_eq!(mad[..24], GOLDEN);
        let (read, data) = MadHeader::parse(&mad).unwrap();
        assert_eq!(read, header);
        assert_eq!(data, &[0xaa; 232]);
    }

    #[test]
    fn what_is_for_somebody_else_is_named() {
        let mut mad = [0; MAD_LEN];
        MadHeader { transaction_id: 1, attribute_id: 0x10 }.emit(&mut mad);
        assert_eq!(MadHeader::parse(&mad[..255]).unwrap_err(), MadError::Length(255));
        let spoilt = |at: usize, value| {
            let mut mad = mad;
            mad[at] = value;
            MadHeader::parse(&mad).unwrap_err()
        };
        assert_eq!(spoilt(0, 2), MadError::Version { base: 2, class: 2 });
        assert_eq!(spoilt(1, 4), MadError::Class(4));
        assert_eq!(spoilt(2, 1), MadError::Version { base: 1, class: 1 });
        assert_eq!(spoilt(3, 0x83), MadError::Method(0x83));
    }
}
