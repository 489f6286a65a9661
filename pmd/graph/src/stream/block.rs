//! What travels.

use super::Buffer;

/// A piece of a stream, in a buffer of its own. Whoever holds it may change its bytes.
#[derive(Debug)]
pub struct Block {
    /// The buffer; goes back to its pool when the block is dropped.
    pub buffer: Buffer,
    /// Bytes of it that count, from its start.
    pub len: u32,
    /// Where they stand in the stream.
    pub offset: u64,
    /// CRC-32C of the bytes, if some stage computed it. Who changes the bytes clears it.
    pub crc32c: Option<u32>,
}
