use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io;

use memmap2::{Advice, MmapMut, MmapRaw};

use crate::limits::COMPARE_CHUNK;
use crate::{copy, fork};

/// Mapped memory that others may write at any moment; reached by copy and by atomics, never by reference.
///
/// A copy that races with a writer gives any mixture of old and new bytes, as DMA does: what makes a message whole is the
/// protocol above (a flag stored last, a completion). Offsets are in bytes from the start; every access is bounds-checked.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: u64,
    writable: bool,
    /// The process that mapped it, see [`fork`].
    process: u32,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Mapped(ManuallyDrop<MmapRaw>),
    Foreign,
}

// SAFETY: the memory stays mapped at one address until drop, and is only accessed by copies and atomics, which tolerate
// concurrent writers by contract (see `copy`).
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Why an access to a [`Segment`] was refused; nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The range leaves the segment.
    #[error("bytes {offset} + {len} lie outside a segment of {size} bytes")]
    OutOfBounds {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes of the segment.
        size: u64,
    },
    /// An atomic was asked for at an address that its width does not divide.
    #[error("offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// Byte asked for.
        offset: u64,
        /// Required alignment in bytes.
        align: u64,
    },
    /// The segment is mapped read-only.
    #[error("the segment is mapped read-only")]
    ReadOnly,
    /// This process is a fork: the memory stayed with the parent.
    #[error(
        "the segment was mapped before fork() and stays with the parent; open the device in the child instead"
    )]
    Forked,
}

impl Segment {
    /// Zeroed memory of this process alone, page-aligned; for what is never shared, and for tests and simulation.
    pub fn private(len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        Self::mapped(MmapMut::map_anon(len)?.into(), true)
    }

    /// Takes over a mapping.
    pub(crate) fn mapped(map: MmapRaw, writable: bool) -> io::Result<Self> {
        map.advise(Advice::DontFork)?;
        let base = NonNull::new(map.as_mut_ptr())
            .ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let len = map.len() as u64;
        Ok(Self {
            base,
            len,
            writable,
            process: fork::generation()?,
            backing: Backing::Mapped(ManuallyDrop::new(map)),
        })
    }

    /// Memory that is not ours, such as a consumer's heap buffer.
    ///
    /// # Safety
    /// `len` bytes at `base` stay mapped, readable and (if `writable`) writable until the segment is dropped, and the rest of
    /// the program treats them as memory that a device writes: no reference to them lives across a transfer.
    pub unsafe fn foreign(base: NonNull<u8>, len: u64, writable: bool) -> io::Result<Self> {
        Ok(Self { base, len, writable, process: fork::generation()?, backing: Backing::Foreign })
    }

    /// Bytes of the segment.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether writes are allowed.
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of the first byte in this process, for what only wants a number (a verbs virtual address).
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Refuses in a process forked after the segment was mapped.
    pub fn check_process(&self) -> Result<(), AccessError> {
        if fork::same_process(self.process) { Ok(()) } else { Err(AccessError::Forked) }
    }

    /// Copies bytes out.
    #[inline]
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let from = self.source(offset, into.len() as u64)?;
        // SAFETY: `from` was bounds-checked and is readable; `into` is ours.
        unsafe { copy::copy(into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// Copies bytes in; a peer that sees the last aligned word sees all of them.
    #[inline]
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let to = self.target(offset, from.len() as u64)?;
        // SAFETY: `to` was bounds-checked and is writable; `from` is ours.
        unsafe { copy::copy(to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies `len` bytes from here to `to`, which may be the same memory.
    #[inline]
    pub fn copy_to(
        &self,
        offset: u64,
        to: &Self,
        to_offset: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        let source = self.source(offset, len)?;
        let target = to.target(to_offset, len)?;
        // A checked range fits the address space, so its length fits usize.
        #[expect(clippy::cast_possible_truncation, reason = "bounded by a mapping")]
        let len = len as usize;
        // SAFETY: both ranges were bounds-checked, the target is writable.
        unsafe { copy::copy(target, source, len) };
        Ok(())
    }

    /// Sets `len` bytes to `byte`.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<(), AccessError> {
        let to = self.target(offset, len)?;
        #[expect(clippy::cast_possible_truncation, reason = "bounded by a mapping")]
        let len = len as usize;
        // SAFETY: bounds-checked and writable.
        unsafe { to.write_bytes(byte, len) };
        Ok(())
    }

    /// Index of the first byte that differs from `expected`, if any does.
    pub fn mismatch_at(&self, offset: u64, expected: &[u8]) -> Result<Option<usize>, AccessError> {
        self.source(offset, expected.len() as u64)?;
        let mut copied = [0; COMPARE_CHUNK];
        for (i, expected) in expected.chunks(COMPARE_CHUNK).enumerate() {
            let start = i * COMPARE_CHUNK;
            let copied = &mut copied[..expected.len()];
            self.read_at(offset + start as u64, copied)?;
            if copied != expected {
                return Ok(copied
                    .iter()
                    .zip(expected)
                    .position(|(a, b)| a != b)
                    .map(|at| start + at));
            }
        }
        Ok(None)
    }

    /// Whether the bytes equal `expected`.
    pub fn eq_at(&self, offset: u64, expected: &[u8]) -> Result<bool, AccessError> {
        Ok(self.mismatch_at(offset, expected)?.is_none())
    }

    /// Eight bytes as an atomic: for RDMA atomics and for positions that two sides share.
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        let at = self.aligned(self.target(offset, 8)?, offset, 8)?;
        // SAFETY: in bounds, aligned and writable; mapped as long as `self`; others use it atomically or tolerate mixtures.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Four bytes as an atomic.
    #[inline]
    pub fn atomic_u32(&self, offset: u64) -> Result<&AtomicU32, AccessError> {
        let at = self.aligned(self.target(offset, 4)?, offset, 4)?;
        // SAFETY: as `atomic_u64`.
        Ok(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// The process that mapped it, see [`fork`].
    pub(crate) const fn process(&self) -> u32 {
        self.process
    }

    /// Start of a range that may be read.
    #[inline]
    pub(crate) fn source(&self, offset: u64, len: u64) -> Result<*mut u8, AccessError> {
        self.check_process()?;
        if offset > self.len || len > self.len - offset {
            return Err(AccessError::OutOfBounds { offset, len, size: self.len });
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded by a mapping")]
        let offset = offset as usize;
        Ok(self.base.as_ptr().wrapping_add(offset))
    }

    /// Start of a range that may be written.
    #[inline]
    pub(crate) fn target(&self, offset: u64, len: u64) -> Result<*mut u8, AccessError> {
        if self.writable { self.source(offset, len) } else { Err(AccessError::ReadOnly) }
    }

    #[inline]
    pub(crate) fn aligned(
        &self,
        at: *mut u8,
        offset: u64,
        align: u64,
    ) -> Result<*mut u8, AccessError> {
        if (at.addr() as u64).is_multiple_of(align) {
            Ok(at)
        } else {
            Err(AccessError::Misaligned { offset, align })
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // In a fork the range was never mapped, and may by now hold something else: it is not ours to unmap.
        if fork::same_process(self.process)
            && let Backing::Mapped(map) = &mut self.backing
        {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(map) };
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;

    fn segment() -> Segment {
        Segment::private(8192).unwrap()
    }

    #[test]
    fn bytes_go_in_and_come_out() {
        let segment = segment();
        segment.write_at(100, b"spinning wire").unwrap();
        let mut out = [0; 13];
        segment.read_at(100, &mut out).unwrap();
        assert_eq!(&out, b"spinning wire");
        assert!(segment.eq_at(100, b"spinning wire").unwrap());
        assert_eq!(segment.mismatch_at(100, b"spinning fire").unwrap(), Some(9));
        segment.fill(4000, 3000, 0xa5).unwrap();
        assert!(segment.eq_at(4000, &[0xa5; 3000]).unwrap());
        let mut expected = [0xa5; 3001];
        expected[2999] = 0;
        assert_eq!(segment.mismatch_at(4000, &expected).unwrap(), Some(2999));
    }

    #[test]
    fn copies_between_segments_and_within_one() {
        let (a, b) = (segment(), segment());
        a.write_at(0, &[7; 64]).unwrap();
        a.copy_to(0, &b, 8000, 64).unwrap();
        assert!(b.eq_at(8000, &[7; 64]).unwrap());
        a.write_at(0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        a.copy_to(0, &a, 3, 8).unwrap();
        assert!(a.eq_at(0, &[1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap());
    }

    #[test]
    fn every_access_is_bounds_checked() {
        let segment = segment();
        let outside = |offset, len| AccessError::OutOfBounds { offset, len, size: 8192 };
        assert_eq!(segment.read_at(8192, &mut [0]), Err(outside(8192, 1)));
        assert_eq!(segment.write_at(8190, &[0; 3]), Err(outside(8190, 3)));
        assert_eq!(segment.fill(u64::MAX, u64::MAX, 0), Err(outside(u64::MAX, u64::MAX)));
        assert_eq!(segment.eq_at(8000, &[0; 193]), Err(outside(8000, 193)));
        assert_eq!(segment.copy_to(0, &segment, 8191, 2), Err(outside(8191, 2)));
        assert_eq!(segment.copy_to(8191, &segment, 0, 2), Err(outside(8191, 2)));
        assert_eq!(segment.atomic_u64(8188).unwrap_err(), outside(8188, 8));
        assert_eq!(segment.read_at(8192, &mut []), Ok(()));
    }

    #[test]
    fn atomics_need_their_alignment() {
        let segment = segment();
        assert_eq!(
            segment.atomic_u64(12).unwrap_err(),
            AccessError::Misaligned { offset: 12, align: 8 }
        );
        assert_eq!(
            segment.atomic_u32(14).unwrap_err(),
            AccessError::Misaligned { offset: 14, align: 4 }
        );
        segment.atomic_u64(16).unwrap().store(0x0807_0605_0403_0201, Ordering::Release);
        assert_eq!(
            segment.atomic_u32(20).unwrap().load(Ordering::Acquire),
            u32::from_ne_bytes(if cfg!(target_endian = "little") {
                [5, 6, 7, 8]
            } else {
                [4, 3, 2, 1]
            })
        );
    }

    #[test]
    fn foreign_memory_is_reached_but_not_freed() {
        let mut buffer = vec![0_u8; 64];
        let base = NonNull::new(buffer.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the segment and is not touched meanwhile.
        let segment = unsafe { Segment::foreign(base, 64, true) }.unwrap();
        segment.write_at(8, &[9; 4]).unwrap();
        drop(segment);
        assert_eq!(buffer[8..12], [9; 4]);
    }
}
