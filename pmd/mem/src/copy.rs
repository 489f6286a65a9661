//! The one way bytes move to and from shared memory.
//!
//! A peer may poll the last byte of a message that is being written, so the last word is stored last, with release order,
//! whatever order the bulk copy has inside; an aligned 8-byte access is one load and one store. Source and target may overlap,
//! and may be the same pages, even under two addresses: the bytes are then moved, or a mixture.
//!
//! Small copies load everything before they store anything, in pieces that overlap, so that few branches choose among sizes.
//! Larger ones are left to the machine's best [kernel].

mod kernel;

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What a register holds on every machine.
#[cfg(target_arch = "x86_64")]
type Vector = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Vector = u128;

/// Copies `len` bytes, the last naturally aligned word of the target last.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, in mappings that outlive the call. Either may be changed meanwhile by
/// another process: the bytes copied are then any mixture of old and new, and the caller treats them so.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let (to, from) = (dst.cast::<u64>(), src.cast::<u64>().cast_mut());
    if len == 8 && to.is_aligned() && from.is_aligned() {
        // SAFETY: readable, aligned, and atomic accesses tolerate others.
        let from = unsafe { AtomicU64::from_ptr(from) };
        // SAFETY: writable and aligned.
        let to = unsafe { AtomicU64::from_ptr(to) };
        return to.store(from.load(Ordering::Acquire), Ordering::Release);
    }
    // SAFETY: the caller's contract.
    unsafe { copy_any(dst, src, len) };
}

/// # Safety
/// As [`copy`].
unsafe fn copy_any(dst: *mut u8, src: *const u8, len: usize) {
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
            unsafe { bulk(dst, src, body) };
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

/// Moves `len` bytes in any order.
///
/// # Safety
/// As [`copy`].
#[inline]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call per size")]
pub(crate) unsafe fn bulk(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if len <= SMALL {
            small(dst, src, len);
        } else {
            kernel::copy(dst, src, len);
        }
    }
}

/// Up to so many bytes, a copy is a few moves and calls nothing.
pub(crate) const SMALL: usize = 64;

/// Moves `len` bytes in any order, at most [`SMALL`].
///
/// # Safety
/// As [`copy`].
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call per size")]
pub(crate) unsafe fn small(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's contract, and the pieces of each arm cover its sizes without leaving them.
    unsafe {
        match len {
            8 => pieces::<u64, 1>(dst, src, len),
            9..=15 => pieces::<u64, 2>(dst, src, len),
            16..=32 => pieces::<Vector, 2>(dst, src, len),
            33..=SMALL => pieces::<Vector, 4>(dst, src, len),
            4..=7 => pieces::<u32, 2>(dst, src, len),
            2..=3 => pieces::<u16, 2>(dst, src, len),
            1 => pieces::<u8, 1>(dst, src, len),
            _ => {}
        }
    }
}

/// Moves `len` bytes as `N` pieces, of which the first half lie at the start and the second half at the end.
///
/// # Safety
/// As [`copy`]; half of the pieces (rounded up) are at most `len` bytes, and all of them at least `len`.
#[inline]
unsafe fn pieces<T: Copy, const N: usize>(dst: *mut u8, src: *const u8, len: usize) {
    let size = size_of::<T>();
    let at = |i: usize| if i < N.div_ceil(2) { i * size } else { len - (N - i) * size };
    // SAFETY: every piece lies within `len` bytes.
    let all: [T; N] =
        core::array::from_fn(|i| unsafe { src.wrapping_add(at(i)).cast::<T>().read_unaligned() });
    for (i, piece) in all.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { dst.wrapping_add(at(i)).cast::<T>().write_unaligned(piece) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every alignment of both ends and every length around the word sizes.
    #[test]
    fn copies_exactly_the_bytes_asked_for() {
        copies_exactly(copy);
        copies_exactly(bulk);
    }

    fn copies_exactly(copy: unsafe fn(*mut u8, *const u8, usize)) {
        const ROOM: usize = 352;

        let source: Vec<u8> = (0..ROOM).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
        let mut target = vec![0; ROOM];
        for to in 0..17 {
            for from in 0..17 {
                for len in 0..300 {
                    target.fill(0);
                    // SAFETY: both ranges lie in vectors of so many bytes.
                    unsafe {
                        copy(
                            target.as_mut_ptr().wrapping_add(to),
                            source.as_ptr().wrapping_add(from),
                            len,
                        );
                    };
                    assert!(
                        target[to..to + len] == source[from..from + len]
                            && target[..to]
                                .iter()
                                .chain(&target[to + len..])
                                .all(|byte| *byte == 0),
                        "to {to} from {from} len {len}"
                    );
                }
            }
        }
    }

    #[test]
    fn overlapping_copies_move() {
        let before: Vec<u8> = (0..640_u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let mut bytes = before.clone();
        for to in 0..20 {
            for from in 0..20 {
                for len in (0..100).chain([128, 300, 512, 600]) {
                    bytes.copy_from_slice(&before);
                    let mut expected = before.clone();
                    expected.copy_within(from..from + len, to);
                    let base = bytes.as_mut_ptr();
                    // SAFETY: both ranges lie in the vector.
                    unsafe { copy(base.wrapping_add(to), base.wrapping_add(from), len) };
                    assert_eq!(bytes, expected, "to {to} from {from} len {len}");
                }
            }
        }
    }

    /// What a poller of the last byte relies on. It sees the bytes of each round whole, since the writer's last store is the one
    /// that it waits for.
    #[test]
    fn the_last_byte_comes_last() {
        for len in [9_usize, 24, 41, 64, 65, 200, 1000, 4096, 20_000] {
            let mut target = vec![0_u8; len + 8];
            let at = target.as_mut_ptr();
            // SAFETY: the byte lies in the vector; both threads go by pointers that are derived from this one.
            let last = unsafe { AtomicU8::from_ptr(at.wrapping_add(len)) };
            // SAFETY: as above.
            let first = unsafe { AtomicU8::from_ptr(at.wrapping_add(1)) };
            let acknowledged = AtomicU8::new(0);
            let to = at.addr();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=50_u8 {
                        let source = vec![round; len];
                        let target = core::ptr::with_exposed_provenance_mut::<u8>(to);
                        // SAFETY: so many bytes lie behind the first of the vector.
                        unsafe { copy(target.wrapping_add(1), source.as_ptr(), len) };
                        while acknowledged.load(Ordering::Acquire) != round {
                            std::thread::yield_now();
                        }
                    }
                });
                for round in 1..=50_u8 {
                    while last.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                    assert_eq!(first.load(Ordering::Relaxed), round, "len {len}");
                    acknowledged.store(round, Ordering::Release);
                }
            });
        }
    }
}
