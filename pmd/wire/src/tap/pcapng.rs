//! The blocks of a pcapng file that a capture needs.
//!
//! Format: draft-ietf-opsawg-pcapng, sections 4.1 (section header), 4.2 (interface description)
//! and 4.3 (enhanced packet). Written little-endian; readers go by the byte-order magic.

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const LINKTYPE_ETHERNET: u16 = 1;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Before a frame's reason, in its comment.
const DROPPED: &str = "dropped: ";

/// Which way a frame went, as the low two bits of `epb_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    In = 1,
    Out = 2,
}

/// Begins a file.
pub(super) fn section_header(out: &mut Vec<u8>) {
    let begin = open(out, SECTION_HEADER);
    put32(out, BYTE_ORDER_MAGIC);
    out.extend(1_u16.to_le_bytes());
    out.extend(0_u16.to_le_bytes());
    // Length of the section: not known beforehand.
    out.extend(u64::MAX.to_le_bytes());
    option(out, SHB_USERAPPL, &[b"spinwire"]);
    option(out, OPT_END, &[]);
    close(out, begin);
}

/// Describes the next interface; interfaces are numbered in the order of their descriptions.
pub(super) fn interface(out: &mut Vec<u8>, name: &str) {
    let begin = open(out, INTERFACE_DESCRIPTION);
    out.extend(LINKTYPE_ETHERNET.to_le_bytes());
    out.extend(0_u16.to_le_bytes());
    // Frames are never cut short.
    put32(out, 0);
    option(out, IF_NAME, &[name.as_bytes()]);
    // Time stamps in units of 10^-9 s.
    option(out, IF_TSRESOL, &[&[9]]);
    option(out, OPT_END, &[]);
    close(out, begin);
}

/// A frame to record.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) interface: u32,
    pub(super) time_ns: u64,
    pub(super) direction: Direction,
    /// Ethernet, IP and UDP.
    pub(super) headers: &'a [u8],
    pub(super) payload: &'a [u8],
    /// Why the frame was dropped.
    pub(super) comment: Option<&'a str>,
}

impl Packet<'_> {
    /// Bytes that [`Packet::encode`] appends.
    pub(super) fn encoded_len(&self) -> usize {
        let frame = (self.headers.len() + self.payload.len()).next_multiple_of(4);
        let comment = self.comment.map_or(0, |c| 4 + (DROPPED.len() + c.len()).next_multiple_of(4));
        let flags = 4 + 4;
        let end = 4;
        12 + 20 + frame + comment + flags + end
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let begin = open(out, ENHANCED_PACKET);
        put32(out, self.interface);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the time")]
        let (high, low) = ((self.time_ns >> 32) as u32, self.time_ns as u32);
        put32(out, high);
        put32(out, low);
        let len = len32(self.headers.len() + self.payload.len());
        put32(out, len);
        put32(out, len);
        out.extend_from_slice(self.headers);
        out.extend_from_slice(self.payload);
        pad(out, self.headers.len() + self.payload.len());
        if let Some(comment) = self.comment {
            option(out, OPT_COMMENT, &[DROPPED.as_bytes(), comment.as_bytes()]);
        }
        option(out, EPB_FLAGS, &[&(self.direction as u32).to_le_bytes()]);
        option(out, OPT_END, &[]);
        close(out, begin);
    }
}

/// Begins a block, whose length is filled in by [`close`].
fn open(out: &mut Vec<u8>, kind: u32) -> usize {
    let begin = out.len();
    put32(out, kind);
    put32(out, 0);
    begin
}

fn close(out: &mut Vec<u8>, begin: usize) {
    let len = len32(out.len() + 4 - begin);
    out[begin + 4..begin + 8].copy_from_slice(&len.to_le_bytes());
    put32(out, len);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[&[u8]]) {
    let len: usize = value.iter().map(|part| part.len()).sum();
    #[expect(clippy::cast_possible_truncation, reason = "names and reasons are short")]
    let len16 = len as u16;
    out.extend(code.to_le_bytes());
    out.extend(len16.to_le_bytes());
    value.iter().for_each(|part| out.extend_from_slice(part));
    pad(out, len);
}

/// Pads something of `len` bytes to a word.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&[0; 3][..len.next_multiple_of(4) - len]);
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[expect(clippy::cast_possible_truncation, reason = "a block fits the tap's buffer")]
fn len32(len: usize) -> u32 {
    len as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_announced_is_the_length_written() {
        for comment in [None, Some(""), Some("icrc"), Some("psn")] {
            for payload in [&[][..], &[1; 17], &[1; 20]] {
                let packet = Packet {
                    interface: 0,
                    time_ns: 1,
                    direction: Direction::In,
                    headers: &[0; 42],
                    payload,
                    comment,
                };
                let mut out = vec![0xee];
                packet.encode(&mut out);
                assert_eq!(out.len() - 1, packet.encoded_len());
                assert!(packet.encoded_len().is_multiple_of(4));
            }
        }
    }
}
