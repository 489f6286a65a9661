//! Asking for cache lines before they are needed.

/// Bytes of a line.
const LINE: usize = 64;
/// Lines of one thing that are asked for at most: more would push out what is needed now.
const MOST: usize = 8;

/// Has the first lines of `soon` brought near, while something else is done. A hint: it reads nothing, waits for nothing and
/// changes nothing that can be seen.
#[inline(always)]
pub fn prefetch<T: ?Sized>(soon: &T) {
    let at = core::ptr::from_ref(soon).cast::<u8>();
    for line in 0..size_of_val(soon).div_ceil(LINE).min(MOST) {
        fetch(at.wrapping_add(line * LINE));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch(at: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    // SAFETY: a prefetch faults at no address (AMD64 manual, volume 3, PREFETCHlevel), and SSE is part of the target.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn fetch(at: *const u8) {
    // SAFETY: a prefetch faults at no address (Arm ARM, C6.2 PRFM), and touches neither stack nor flags.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{at}]",
            at = in(reg) at,
            options(readonly, nostack, preserves_flags)
        );
    };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn fetch(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is asked for, of whatever size, it is as it was.
    #[test]
    fn it_changes_nothing() {
        let bytes: Vec<u8> = (0..=255).cycle().take(LINE * (MOST + 2)).collect();
        let before = bytes.clone();
        for from in [0, 1, LINE - 1, bytes.len()] {
            prefetch(&bytes[from..]);
        }
        prefetch(&());
        prefetch(&bytes);
        assert_eq!(bytes, before);
    }
}
