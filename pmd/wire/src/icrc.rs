//! Adjusting an ICRC to another IPv4 identification, without the rest of the header.
//!
//! The ICRC (IBTA Annex A17.3.3) is a CRC-32 over, among others, the IPv4 header. A CRC is
//! linear: changing the identification by the difference `d` changes the CRC by the CRC of a
//! message that is `d` at that place and zero elsewhere, whatever else the frame holds.

use crc32fast::Hasher;

/// Bytes of ICRC input between the identification and the payload: the rest of IPv4, and UDP.
const HEADER_AFTER_ID: usize = 14 + 8;
/// The ICRC does not cover itself.
const ICRC: usize = 4;

static ZEROS: [u8; 256] = [0; 256];

/// Makes a frame (BTH to ICRC) that was built for the identification `from` right for `to`.
/// A wrong ICRC stays exactly as wrong. Frames too short to hold one are left alone.
pub(crate) fn restamp(payload: &mut [u8], from: u16, to: u16) {
    if from == to {
        return;
    }
    let len = payload.len();
    let Some((covered, icrc)) = payload.split_last_chunk_mut::<ICRC>() else { return };
    debug_assert_eq!(covered.len() + ICRC, len);
    let after = HEADER_AFTER_ID + covered.len();
    let change = crc(from ^ to, after) ^ crc(0, after);
    *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
}

/// CRC-32 of two bytes followed by `zeros` zero bytes.
fn crc(first: u16, zeros: usize) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&first.to_be_bytes());
    let mut left = zeros;
    while left > 0 {
        let n = left.min(ZEROS.len());
        hasher.update(&ZEROS[..n]);
        left -= n;
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The acknowledgement of golden/rc-send.pcap, frame 7: identification d1e7, ICRC b601846c.
    #[test]
    fn restamping_equals_computing_the_icrc_anew() {
        let masked = |id: u16| {
            let mut input = vec![0xff_u8; 8];
            input.extend([0x45, 0xff, 0x00, 0x30]);
            input.extend(id.to_be_bytes());
            input.extend([0x40, 0x00, 0xff, 0x11, 0xff, 0xff]);
            input.extend([10, 77, 0, 2, 10, 77, 0, 3]);
            input.extend([0xf8, 0x60, 0x12, 0xb7, 0x00, 0x1c, 0xff, 0xff]);
            input.extend([0x11, 0x00, 0xff, 0xff, 0xff, 0x00, 0x00, 0x11]);
            input.extend([0x00, 0x7c, 0x03, 0xc3, 0x1f, 0x00, 0x00, 0x01]);
            crc32fast::hash(&input)
        };
        let mut frame = vec![
            0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x00, 0x7c, 0x03, 0xc3, 0x1f, 0x00,
            0x00, 0x01, 0xb6, 0x01, 0x84, 0x6c,
        ];
        assert_eq!(frame[16..], masked(0xd1e7).to_le_bytes());
        for (from, to) in [(0xd1e7, 0), (0, 1), (1, 0xffff), (0xffff, 0x0100)] {
            restamp(&mut frame, from, to);
            assert_eq!(frame[16..], masked(to).to_le_bytes(), "{to:#x}");
        }
        frame[17] ^= 0x20;
        restamp(&mut frame, 0x0100, 0xd1e7);
        assert_eq!(frame[16..], [0xb6, 0x01 ^ 0x20, 0x84, 0x6c], "an error must survive");
    }

    #[test]
    fn a_frame_too_short_for_an_icrc_is_left_alone() {
        let mut frame = [1, 2, 3];
        restamp(&mut frame, 0, 7);
        assert_eq!(frame, [1, 2, 3]);
    }
}
