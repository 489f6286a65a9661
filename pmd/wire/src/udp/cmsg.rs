//! Control messages: header fields that travel beside a datagram (cmsg(3)).
//!
//! Written and read as bytes, so that no pointer is followed.

use std::mem::size_of;

use libc::{c_int, cmsghdr};

/// Room for every control message that one datagram can carry here.
pub(super) const CONTROL_BYTES: usize = 128;

const ALIGN: usize = size_of::<usize>();
const HEADER: usize = size_of::<cmsghdr>().next_multiple_of(ALIGN);
const INT: usize = size_of::<c_int>();

/// A control buffer, aligned as the kernel wants it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control(pub(super) [u8; CONTROL_BYTES]);

impl Control {
    pub(super) const EMPTY: Self = Self([0; CONTROL_BYTES]);

    /// Appends a message at `at` and returns where the next one goes.
    pub(super) fn push(&mut self, at: usize, level: c_int, kind: c_int, data: &[u8]) -> usize {
        let end = at + HEADER + data.len();
        self.0[at..at + ALIGN].copy_from_slice(&(end - at).to_ne_bytes());
        self.0[at + ALIGN..at + ALIGN + INT].copy_from_slice(&level.to_ne_bytes());
        self.0[at + ALIGN + INT..at + ALIGN + 2 * INT].copy_from_slice(&kind.to_ne_bytes());
        self.0[at + HEADER..end].copy_from_slice(data);
        end.next_multiple_of(ALIGN)
    }
}

/// The messages in `control`: level, type, data.
pub(super) fn read(mut control: &[u8]) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    std::iter::from_fn(move || {
        let (len, rest) = control.split_first_chunk::<ALIGN>()?;
        let (level, rest) = rest.split_first_chunk::<INT>()?;
        let (kind, _) = rest.split_first_chunk::<INT>()?;
        let len = usize::from_ne_bytes(*len);
        let data = control.get(HEADER..len)?;
        let next = len.next_multiple_of(ALIGN).min(control.len());
        control = &control[next..];
        Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data))
    })
}

/// The integer in `data`; the kernel sends some fields as one byte, others as an int.
pub(super) fn int(data: &[u8]) -> Option<u32> {
    match *data {
        [byte] => Some(u32::from(byte)),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_read_back() {
        let mut control = Control::EMPTY;
        let at = control.push(0, 17, 103, &4112_u16.to_ne_bytes());
        let at = control.push(at, 0, 1, &7_i32.to_ne_bytes());
        let got: Vec<_> = read(&control.0[..at]).map(|(l, k, d)| (l, k, d.to_vec())).collect();
        let want = [(17, 103, 4112_u16.to_ne_bytes().to_vec()), (0, 1, vec![7, 0, 0, 0])];
        assert_eq!(got, want);
    }

    #[test]
    fn torn_or_lying_messages_end_the_list() {
        let mut control = Control::EMPTY;
        let at = control.push(0, 17, 103, &[1, 2]);
        assert_eq!(read(&control.0[..at - 6]).count(), 1, "padding may be missing");
        assert_eq!(read(&control.0[..at - 7]).count(), 0, "data may not");
        control.0[..8].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(read(&control.0[..at]).count(), 0);
        control.0[..8].copy_from_slice(&0_u64.to_ne_bytes());
        assert_eq!(read(&control.0[..at]).count(), 0, "length 0 must not loop");
        assert_eq!(int(&[1, 2]), None);
    }
}
