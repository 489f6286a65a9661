//! The one way bytes move to and from shared memory.
//!
//! A peer may poll the last byte of a message that is being written, so the last word is stored last, with release order,
//! whatever order the bulk copy has inside; an aligned 8-byte access is one load and one store. The bulk is `memmove`: source
//! and target may be the same pages, even under two addresses.

use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Copies `len` bytes, the last naturally aligned word of the target last.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, in mappings that outlive the call. Either may be changed meanwhile by
/// another process: the bytes copied are then any mixture of old and new, and the caller treats them so.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let end = dst.addr().wrapping_add(len);
    if len >= 8 && end.is_multiple_of(8) {
        // SAFETY: the caller's contract; the target's last 8 bytes are aligned.
        unsafe { with_last_8(dst, src, len - 8) };
    } else if len >= 4 && end.is_multiple_of(4) {
        // SAFETY: the caller's contract; the target's last 4 bytes are aligned.
        unsafe { with_last_4(dst, src, len - 4) };
    } else if len > 0 {
        // SAFETY: the caller's contract.
        unsafe { with_last_1(dst, src, len - 1) };
    }
}

macro_rules! with_last {
    ($name:ident, $atomic:ident, $word:ident) => {
        /// # Safety
        /// As [`copy`], of `body` bytes and one word that is aligned in the target.
        #[inline]
        unsafe fn $name(dst: *mut u8, src: *const u8, body: usize) {
            // SAFETY: `body` bytes and the word lie in the source.
            let from = unsafe { src.add(body) }.cast::<$word>();
            // The last word is read first: when source and target overlap, the bulk may overwrite it.
            let last = if from.is_aligned() {
                // SAFETY: readable and aligned.
                let word = unsafe { $atomic::from_ptr(from.cast_mut()) };
                word.load(Ordering::Acquire)
            } else {
                // SAFETY: readable.
                unsafe { from.read_unaligned() }
            };
            // SAFETY: `body` bytes lie in both.
            unsafe { ptr::copy(src, dst, body) };
            // SAFETY: the word lies in the target.
            let to = unsafe { dst.add(body) }.cast::<$word>();
            // SAFETY: writable and aligned.
            let word = unsafe { $atomic::from_ptr(to) };
            word.store(last, Ordering::Release);
        }
    };
}

with_last!(with_last_8, AtomicU64, u64);
with_last!(with_last_4, AtomicU32, u32);
with_last!(with_last_1, AtomicU8, u8);

#[cfg(test)]
mod tests {
    use super::*;

    /// Every alignment of both ends and every length around the word sizes.
    #[test]
    fn copies_exactly_the_bytes_asked_for() {
        let source: Vec<u8> = (1..=96).collect();
        for to in 0..9 {
            for from in 0..9 {
                for len in 0..70 {
                    let mut target = vec![0; 96];
                    // SAFETY: both ranges lie in vectors of 96 bytes.
                    unsafe {
                        copy(
                            target.as_mut_ptr().wrapping_add(to),
                            source.as_ptr().wrapping_add(from),
                            len,
                        );
                    };
                    let mut expected = vec![0; 96];
                    expected[to..to + len].copy_from_slice(&source[from..from + len]);
                    assert_eq!(target, expected, "to {to} from {from} len {len}");
                }
            }
        }
    }

    #[test]
    fn overlapping_copies_move() {
        for to in 0..20 {
            for from in 0..20 {
                for len in 0..40 {
                    let mut bytes: Vec<u8> = (0..64).collect();
                    let mut expected = bytes.clone();
                    expected.copy_within(from..from + len, to);
                    let base = bytes.as_mut_ptr();
                    // SAFETY: both ranges lie in the vector of 64 bytes.
                    unsafe { copy(base.wrapping_add(to), base.wrapping_add(from), len) };
                    assert_eq!(bytes, expected, "to {to} from {from} len {len}");
                }
            }
        }
    }
}
