use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

use crate::segment::{AccessError, Segment};
use crate::{copy, fork};

/// A part of a [`Segment`], held together with the segment, which stays mapped as long.
///
/// What is checked once, when it is made, costs nothing when it is used: an access has to stay inside, and that is all.
/// Offsets are in bytes from its own start.
#[derive(Clone, Debug)]
pub struct Span {
    base: NonNull<u8>,
    len: u64,
    /// The process that mapped it, see [`fork`].
    process: u32,
    writable: bool,
    segment: Arc<Segment>,
}

// SAFETY: as for the segment, which it keeps mapped.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// `len` bytes of a segment from `offset` on.
    pub fn new(segment: &Arc<Segment>, offset: u64, len: u64) -> Result<Self, AccessError> {
        let at = segment.source(offset, len)?;
        let base = NonNull::new(at).ok_or(AccessError::Misaligned { offset, align: 0 })?;
        Ok(Self {
            base,
            len,
            process: segment.process(),
            writable: segment.is_writable(),
            segment: Arc::clone(segment),
        })
    }

    /// What it is a part of.
    pub const fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Bytes of it.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no byte.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether writes are allowed.
    #[inline]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// `len` bytes of it, to be copied now.
    #[inline(always)]
    pub fn bytes(&self, at: u64, len: u64) -> Result<Bytes<'_>, AccessError> {
        match self.get(at, len) {
            Some(bytes) => Ok(bytes),
            None => Err(self.refusal(at, len)),
        }
    }

    /// As [`Self::bytes`], without a reason.
    #[inline(always)]
    pub(crate) fn get(&self, at: u64, len: u64) -> Option<Bytes<'_>> {
        if at > self.len || len > self.len - at || !fork::same_process(self.process) {
            return None;
        }
        // A checked range fits the address space, so both fit usize.
        #[expect(clippy::cast_possible_truncation, reason = "bounded by a mapping")]
        let (at, len) = (at as usize, len as usize);
        // SAFETY: inside a mapping, which does not wrap around.
        let at = unsafe { self.base.add(at) };
        Some(Bytes { at, len, writable: self.writable, span: PhantomData })
    }

    #[cold]
    fn refusal(&self, offset: u64, len: u64) -> AccessError {
        match self.segment.check_process() {
            Ok(()) => AccessError::OutOfBounds { offset, len, size: self.len },
            Err(forked) => forked,
        }
    }
}

/// A range of mapped memory that was found to be where it should, to be copied from or to at once.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    at: NonNull<u8>,
    len: usize,
    writable: bool,
    span: PhantomData<&'a Span>,
}

impl<'a> Bytes<'a> {
    /// None at all.
    pub(crate) const NONE: Self =
        Self { at: NonNull::dangling(), len: 0, writable: false, span: PhantomData };

    /// `len` of them from `at` on, if there are as many.
    #[inline(always)]
    pub(crate) fn part(self, at: u64, len: u64) -> Option<Self> {
        let there = self.len as u64;
        if at > there || len > there - at {
            return None;
        }
        // Less than what fits.
        #[expect(clippy::cast_possible_truncation, reason = "bounded by a length")]
        let (at, len) = (at as usize, len as usize);
        // SAFETY: inside the range.
        let at = unsafe { self.at.add(at) };
        Some(Self { at, len, ..self })
    }
}

impl Bytes<'_> {
    /// Copies them to as many others, as [`Segment::copy_to`] does.
    #[inline(always)]
    pub fn copy_to(self, to: Bytes<'_>) -> Result<(), AccessError> {
        if !to.writable {
            return Err(AccessError::ReadOnly);
        }
        if self.len != to.len {
            return Err(to.other_length(self.len));
        }
        // SAFETY: both are as long, and in mappings that outlive this call; the target is writable.
        unsafe { copy::copy(to.at.as_ptr(), self.at.as_ptr(), self.len) };
        Ok(())
    }

    /// Writes as many bytes at hand to them.
    #[inline(always)]
    pub fn write(self, from: &[u8]) -> Result<(), AccessError> {
        if !self.writable {
            return Err(AccessError::ReadOnly);
        }
        if self.len != from.len() {
            return Err(self.other_length(from.len()));
        }
        // SAFETY: both are as long, and the span keeps these mapped; they are writable.
        unsafe { copy::copy(self.at.as_ptr(), from.as_ptr(), self.len) };
        Ok(())
    }

    /// How many there are.
    #[inline(always)]
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) const fn is_writable(self) -> bool {
        self.writable
    }

    /// Copies them to `to`, in any order.
    ///
    /// # Safety
    /// As many bytes at `to` are mapped and writable.
    #[inline(always)]
    pub(crate) unsafe fn copy_to_raw(self, to: *mut u8) {
        let from = self.at.as_ptr();
        if self.len == 8 {
            // SAFETY: the caller's contract, and the span keeps these mapped.
            unsafe { copy::copy(to, from, 8) };
        } else {
            // SAFETY: as above.
            unsafe { copy::bulk(to, from, self.len) };
        }
    }

    /// As [`Self::copy_to_raw`], of at most [`copy::SMALL`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn copy_small_to_raw(self, to: *mut u8) {
        // SAFETY: as there.
        unsafe { copy::small(to, self.at.as_ptr(), self.len) };
    }

    /// Copies bytes at `from` to them.
    ///
    /// # Safety
    /// As many bytes at `from` are mapped; these are [writable](Self::is_writable).
    #[inline(always)]
    pub(crate) unsafe fn copy_from_raw(self, from: *const u8) {
        // SAFETY: the caller's contract, and the span keeps these mapped.
        unsafe { copy::copy(self.at.as_ptr(), from, self.len) };
    }

    /// Copies as many bytes of shared words to them. False, and nothing is copied, where there are not as many, or these are
    /// read-only.
    #[inline(always)]
    #[must_use = "nothing was copied where this is false"]
    pub fn copy_from_words(self, from: &[AtomicU64]) -> bool {
        let fits = self.writable && self.len <= size_of_val(from);
        if fits {
            // SAFETY: the words are mapped as long as they are borrowed, and tolerate others.
            unsafe { self.copy_from_raw(from.as_ptr().cast()) };
        }
        fits
    }

    /// The address of the first.
    #[cfg(test)]
    pub(crate) fn address(self) -> u64 {
        self.at.as_ptr().addr() as u64
    }

    #[cold]
    const fn other_length(self, len: usize) -> AccessError {
        AccessError::OutOfBounds { offset: 0, len: len as u64, size: self.len as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_keeps_its_segment_mapped_and_ends_where_it_ends() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        segment.write_at(100, b"spinning wire").unwrap();
        let (from, to) =
            (Span::new(&segment, 100, 13).unwrap(), Span::new(&segment, 200, 16).unwrap());
        drop(segment);
        assert_eq!((from.len(), from.is_empty(), from.is_writable()), (13, false, true));
        let copy = |at, len, to_at, to_len| from.bytes(at, len)?.copy_to(to.bytes(to_at, to_len)?);
        copy(0, 13, 3, 13).unwrap();
        assert!(to.segment().eq_at(203, b"spinning wire").unwrap());

        let outside = |offset, len, size| Err(AccessError::OutOfBounds { offset, len, size });
        assert_eq!(copy(1, 13, 0, 13), outside(1, 13, 13));
        assert_eq!(copy(0, 13, 4, 13), outside(4, 13, 16));
        assert_eq!(copy(u64::MAX, 2, 0, 2), outside(u64::MAX, 2, 13));
        assert_eq!(copy(14, 0, 0, 0), outside(14, 0, 13));
        assert_eq!(copy(0, 8, 0, 7), outside(0, 8, 7));
        assert_eq!(copy(13, 0, 16, 0), Ok(()));
        to.bytes(0, 4).unwrap().write(b"fire").unwrap();
        assert!(to.segment().eq_at(200, b"fire").unwrap());
        assert_eq!(to.bytes(0, 4).unwrap().write(b"fires"), outside(0, 5, 4));
        assert!(Span::new(from.segment(), 4090, 7).is_err());
    }

    #[test]
    fn what_is_read_only_is_not_written() {
        let mut memory = vec![7_u8; 64];
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives what is reached through it, and nobody else uses it.
        let fixed = Arc::new(unsafe { Segment::foreign(base, 64, false) }.unwrap());
        let fixed = Span::new(&fixed, 0, 64).unwrap();
        let bytes = |at| fixed.bytes(at, 8).unwrap();
        assert_eq!(bytes(0).copy_to(bytes(8)), Err(AccessError::ReadOnly));
        assert_eq!(bytes(0).write(&[1; 8]), Err(AccessError::ReadOnly));
        drop((fixed, memory));
    }
}
