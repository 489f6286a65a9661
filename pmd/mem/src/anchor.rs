//! Atomics inside a segment, held together with the segment that keeps them mapped.

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

use crate::segment::{AccessError, Segment};

/// Layouts that may lie in memory which others write.
///
/// # Safety
/// The type is made of atomics only (so that a foreign write is no data race for the compiler), and every bit pattern is valid.
/// A type that offers stores is only reached through a holder that checked that the segment is writable.
pub(crate) unsafe trait Layout: Sync {}

// SAFETY: an atomic integer.
unsafe impl Layout for AtomicU64 {}

/// A `T`, or a slice of them, at a fixed place of a segment.
pub(crate) struct Anchor<T: ?Sized> {
    at: NonNull<T>,
    segment: Arc<Segment>,
}

impl<T: Layout> Anchor<T> {
    pub(crate) fn one(segment: &Arc<Segment>, offset: u64) -> Result<Self, AccessError> {
        let at = segment.source(offset, size_of::<T>() as u64)?;
        let at = segment.aligned(at, offset, align_of::<T>() as u64)?;
        let at = NonNull::new(at.cast()).ok_or(AccessError::Misaligned { offset, align: 0 })?;
        Ok(Self { at, segment: Arc::clone(segment) })
    }
}

impl<T: Layout> Anchor<[T]> {
    pub(crate) fn many(
        segment: &Arc<Segment>,
        offset: u64,
        count: usize,
    ) -> Result<Self, AccessError> {
        let len = (size_of::<T>() as u64).saturating_mul(count as u64);
        let at = segment.source(offset, len)?;
        let at = segment.aligned(at, offset, align_of::<T>() as u64)?;
        let at = NonNull::new(at.cast()).ok_or(AccessError::Misaligned { offset, align: 0 })?;
        Ok(Self { at: NonNull::slice_from_raw_parts(at, count), segment: Arc::clone(segment) })
    }
}

impl<T: Layout> Anchor<[T]> {
    /// One of the slice, by itself.
    pub(crate) fn element(&self, index: usize) -> Option<Anchor<T>> {
        let at = NonNull::from(self.get(index)?);
        Some(Anchor { at, segment: Arc::clone(&self.segment) })
    }
}

impl<T: ?Sized> Anchor<T> {
    pub(crate) const fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}

impl<T: ?Sized> Deref for Anchor<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: bounds and alignment were checked, the segment stays mapped as long as `self`, and `Layout` promises that
        // the type tolerates foreign writes.
        unsafe { self.at.as_ref() }
    }
}

impl<T: ?Sized> Clone for Anchor<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, segment: Arc::clone(&self.segment) }
    }
}

impl<T: ?Sized> fmt::Debug for Anchor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anchor").field("at", &self.at).finish_non_exhaustive()
    }
}

// SAFETY: `Layout` types are Sync, and a Segment is Send and Sync.
unsafe impl<T: ?Sized + Sync> Send for Anchor<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for Anchor<T> {}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn an_anchor_keeps_its_segment_mapped() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let word = Anchor::<AtomicU64>::one(&segment, 64).unwrap();
        segment.write_at(64, &7_u64.to_ne_bytes()).unwrap();
        let both = Anchor::<[AtomicU64]>::many(&segment, 56, 2).unwrap();
        let second = both.element(1).unwrap();
        assert!(both.element(2).is_none());
        drop((segment, both));
        assert_eq!(word.load(Ordering::Relaxed), 7);
        drop(word);
        assert_eq!(second.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn anchors_are_bounds_and_alignment_checked() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let outside = |offset, len| AccessError::OutOfBounds { offset, len, size: 4096 };
        assert_eq!(Anchor::<AtomicU64>::one(&segment, 4089).unwrap_err(), outside(4089, 8));
        assert_eq!(Anchor::<[AtomicU64]>::many(&segment, 0, 513).unwrap_err(), outside(0, 4104));
        assert_eq!(
            Anchor::<[AtomicU64]>::many(&segment, 0, usize::MAX).unwrap_err(),
            outside(0, u64::MAX)
        );
        assert_eq!(
            Anchor::<AtomicU64>::one(&segment, 4).unwrap_err(),
            AccessError::Misaligned { offset: 4, align: 8 }
        );
    }
}
