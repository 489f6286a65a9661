//! Kernels for larger copies, chosen by size and by what the machine has.
//!
//! Up to [`STRING_MIN`] bytes the widest vectors win, since they start at once; beyond, the string instruction does, which moves
//! whole lines where the processor says that it is fast. Non-temporal stores are never used: the peer reads the bytes next, and
//! would find them in memory instead of a cache.

use core::ptr;

/// From here on, where it is fast, `rep movsb` copies.
#[cfg(target_arch = "x86_64")]
const STRING_MIN: usize = 16 << 10;

/// Moves `len` bytes, in any order.
///
/// # Safety
/// As [`copy`](super::copy), and `len` is at least 64.
#[inline(never)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let (forward, backward) =
        (dst.addr().wrapping_sub(src.addr()), src.addr().wrapping_sub(dst.addr()));
    if forward < len || backward < len {
        // SAFETY: the caller's contract; this one minds the overlap.
        return unsafe { ptr::copy(src, dst, len) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's contract, and the two do not overlap.
    unsafe {
        x86::copy(dst, src, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above.
    unsafe {
        ptr::copy_nonoverlapping(src, dst, len);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid_count, __m256i, __m512i};
    use core::ptr;
    use core::sync::atomic::{AtomicU8, Ordering};
    use std::is_x86_feature_detected;

    use super::STRING_MIN;

    /// What this machine has; 0: nobody has looked yet.
    static MACHINE: AtomicU8 = AtomicU8::new(0);
    const KNOWN: u8 = 1;
    const AVX: u8 = 2;
    const AVX512: u8 = 4;
    const FAST_STRINGS: u8 = 8;

    #[cold]
    fn look() -> u8 {
        let mut machine = KNOWN;
        if is_x86_feature_detected!("avx") {
            machine |= AVX;
        }
        if is_x86_feature_detected!("avx512f") {
            machine |= AVX512;
        }
        // ERMS: leaf 7, EBX bit 9. A processor without the leaf answers zeros, or the last leaf that it has.
        if __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 9 != 0 {
            machine |= FAST_STRINGS;
        }
        MACHINE.store(machine, Ordering::Relaxed);
        machine
    }

    #[inline]
    fn machine() -> u8 {
        match MACHINE.load(Ordering::Relaxed) {
            0 => look(),
            machine => machine,
        }
    }

    /// # Safety
    /// As [`super::copy`], without overlap.
    #[inline]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call per kernel")]
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let machine = machine();
        // SAFETY: the caller's contract; the machine has what each kernel needs.
        unsafe {
            if len > STRING_MIN && machine & FAST_STRINGS != 0 {
                string(dst, src, len);
            } else if len > STRING_MIN {
                ptr::copy_nonoverlapping(src, dst, len);
            } else if machine & AVX512 != 0 {
                avx512(dst, src, len);
            } else if machine & AVX != 0 {
                avx(dst, src, len);
            } else {
                ptr::copy_nonoverlapping(src, dst, len);
            }
        }
    }

    macro_rules! vectors {
        ($name:ident, $feature:literal, $vector:ty) => {
            /// # Safety
            /// As [`super::copy`], without overlap, on a machine that has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
                const SIZE: usize = size_of::<$vector>();

                let load = |at: usize| {
                    let from = src.wrapping_add(at).cast::<$vector>();
                    // SAFETY: whoever calls this stays `SIZE` bytes below the end.
                    unsafe { from.read_unaligned() }
                };
                let store = |at: usize, vector: $vector| {
                    let to = dst.wrapping_add(at).cast::<$vector>();
                    // SAFETY: as above.
                    unsafe { to.write_unaligned(vector) };
                };
                // Both ends as they come; between them, aligned in the target, since a store across two lines costs twice.
                let (head, tail) = (load(0), load(len - SIZE));
                store(0, head);
                let mut at = SIZE - dst.addr() % SIZE;
                while at + 4 * SIZE <= len {
                    let four =
                        [load(at), load(at + SIZE), load(at + 2 * SIZE), load(at + 3 * SIZE)];
                    for vector in four {
                        store(at, vector);
                        at += SIZE;
                    }
                }
                while at + SIZE <= len {
                    store(at, load(at));
                    at += SIZE;
                }
                store(len - SIZE, tail);
            }
        };
    }

    vectors!(avx, "avx", __m256i);
    vectors!(avx512, "avx512f", __m512i);

    /// # Safety
    /// As [`super::copy`], without overlap.
    pub(super) unsafe fn string(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's contract. The direction flag is clear wherever Rust code runs.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rdi") dst => _,
                inout("rsi") src => _,
                options(nostack, preserves_flags)
            );
        };
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        type Kernel = unsafe fn(*mut u8, *const u8, usize);

        /// What this machine can run.
        fn kernels() -> Vec<(&'static str, Kernel)> {
            let mut kernels: Vec<(&'static str, Kernel)> =
                vec![("string", string), ("chosen", super::super::copy)];
            if is_x86_feature_detected!("avx") {
                kernels.push(("avx", avx));
            }
            if is_x86_feature_detected!("avx512f") {
                kernels.push(("avx512", avx512));
            }
            kernels
        }

        /// Each kernel by itself, against the plain one: every size up to some rounds of its loop, then sizes around the
        /// thresholds, at every alignment that matters.
        #[test]
        fn every_kernel_copies_exactly_the_bytes_asked_for() {
            const ROOM: usize = (20 << 10) + 192;

            let source: Vec<u8> = (0..ROOM).map(|i| (i * 7 % 251).to_le_bytes()[0]).collect();
            let mut target = vec![0_u8; ROOM];
            for (name, kernel) in kernels() {
                let around = |size: usize| size - 1..=size + 1;
                let sizes = (64..300)
                    .chain([511, 777, 1024])
                    .chain(around(4096))
                    .chain(around(STRING_MIN))
                    .chain([20 << 10]);
                for len in sizes {
                    for (to, from) in [(0, 0), (1, 0), (0, 1), (8, 0), (33, 5), (63, 63), (64, 31)]
                    {
                        target[..to + len + 64].fill(0);
                        // SAFETY: both ranges lie in vectors of so many bytes that do not overlap.
                        unsafe {
                            kernel(
                                target.as_mut_ptr().wrapping_add(to),
                                source.as_ptr().wrapping_add(from),
                                len,
                            );
                        };
                        assert!(
                            target[to..to + len] == source[from..from + len]
                                && target[..to].iter().all(|byte| *byte == 0)
                                && target[to + len..to + len + 64].iter().all(|byte| *byte == 0),
                            "{name}: to {to} from {from} len {len}"
                        );
                    }
                }
            }
        }
    }
}
