//! A part of a region that belongs to one node.

use std::sync::Arc;

use pmd_mem::{AccessError, Region};
use pmd_verbs::endpoint::{Local, LocalKey};

use crate::limits::COPY_CHUNK;

/// A range of a region. Like the region's, its bytes are reached by copy only.
#[derive(Clone, Debug)]
pub struct Extent {
    region: Arc<Region>,
    offset: u64,
    len: u64,
}

impl Extent {
    /// `len` bytes from `offset` of `region`. Accesses beyond the region are refused when they happen.
    pub fn new(region: Arc<Region>, offset: u64, len: u64) -> Self {
        Self { region, offset, len }
    }

    /// The region, for an endpoint to register.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// First byte in the region.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `at`; `None` if they do not all belong to it.
    pub fn part(&self, at: u64, len: u64) -> Option<Self> {
        self.check(at, len).ok()?;
        Some(Self { region: Arc::clone(&self.region), offset: self.offset + at, len })
    }

    /// The same range as an operation names it, where the region is registered as `key`. Not checked here: the endpoint
    /// checks what it is given.
    pub fn local(&self, key: LocalKey, at: u64, len: u32) -> Local {
        Local { key, offset: self.offset + at, len }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError`] beyond the end.
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.check(at, into.len() as u64)?;
        self.region.read_at(self.offset + at, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError`] beyond the end.
    pub fn write_at(&self, at: u64, from: &[u8]) -> Result<(), AccessError> {
        self.check(at, from.len() as u64)?;
        self.region.write_at(self.offset + at, from)
    }

    /// Copies `len` bytes from `at` to `other_at` of `other`.
    ///
    /// # Errors
    /// [`AccessError`] beyond the end of either.
    pub fn copy_to(
        &self,
        at: u64,
        other: &Self,
        other_at: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        self.check(at, len)?;
        other.check(other_at, len)?;
        let (from, to) = (self.region.segment(), other.region.segment());
        from.copy_to(self.offset + at, to, other.offset + other_at, len)
    }

    /// CRC-32C of `len` bytes from `at`.
    ///
    /// # Errors
    /// [`AccessError`] beyond the end.
    pub fn crc32c(&self, at: u64, len: u64) -> Result<u32, AccessError> {
        let mut crc = 0;
        self.chunks(at, len, |chunk, _| {
            crc = crc32c::crc32c_append(crc, chunk);
            Ok(true)
        })?;
        Ok(crc)
    }

    /// The first of `len` bytes that differs from those at `other_at` of `other`, counted from `at`.
    ///
    /// # Errors
    /// [`AccessError`] beyond the end of either.
    pub fn mismatch(
        &self,
        at: u64,
        other: &Self,
        other_at: u64,
        len: u64,
    ) -> Result<Option<u64>, AccessError> {
        other.check(other_at, len)?;
        let mut found = None;
        self.chunks(at, len, |chunk, done| {
            let there = other.region.mismatch_at(other.offset + other_at + done, chunk)?;
            found = there.map(|index| done + index as u64);
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Calls `each` with copies of `len` bytes from `at`, chunk by chunk, and how many came before, until it returns
    /// false.
    fn chunks(
        &self,
        at: u64,
        len: u64,
        mut each: impl FnMut(&[u8], u64) -> Result<bool, AccessError>,
    ) -> Result<(), AccessError> {
        self.check(at, len)?;
        let mut buffer = [0; COPY_CHUNK];
        let mut done = 0;
        while done < len {
            let chunk = usize::try_from(len - done).unwrap_or(COPY_CHUNK).min(COPY_CHUNK);
            self.region.read_at(self.offset + at + done, &mut buffer[..chunk])?;
            if !each(&buffer[..chunk], done)? {
                return Ok(());
            }
            done += chunk as u64;
        }
        Ok(())
    }

    fn check(&self, at: u64, len: u64) -> Result<(), AccessError> {
        if at <= self.len && len <= self.len - at {
            Ok(())
        } else {
            Err(AccessError::OutOfBounds { offset: at, len, size: self.len })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::region;

    #[test]
    fn a_part_ends_where_it_ends() {
        let region = region(8192);
        let all = Extent::new(region, 0, 8192);
        let part = all.part(4096, 16).unwrap();
        part.write_at(12, &[1, 2, 3, 4]).unwrap();
        let mut bytes = [0; 4];
        all.read_at(4108, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        let outside = AccessError::OutOfBounds { offset: 13, len: 4, size: 16 };
        assert_eq!(part.write_at(13, &[0; 4]), Err(outside));
        assert!(part.part(8, 9).is_none());
        assert!(part.part(u64::MAX, 2).is_none());
        assert_eq!(part.copy_to(12, &all, 100, 4), Ok(()));
        all.read_at(100, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(part.copy_to(13, &all, 0, 4), Err(outside));
        assert_eq!(all.copy_to(0, &part, 13, 4), Err(outside));
    }

    #[test]
    fn checksum_and_comparison_go_over_chunks() {
        let region = region(4 * COPY_CHUNK as u64);
        let all = Extent::new(region, 0, 4 * COPY_CHUNK as u64);
        let len = COPY_CHUNK as u64 + 17;
        let (a, b) = (all.part(3, len).unwrap(), all.part(2 * COPY_CHUNK as u64, len).unwrap());
        let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
        a.write_at(0, &bytes).unwrap();
        b.write_at(0, &bytes).unwrap();
        assert_eq!(a.crc32c(0, len).unwrap(), crc32c::crc32c(&bytes));
        assert_eq!(a.crc32c(5, 0).unwrap(), 0);
        assert_eq!(a.mismatch(0, &b, 0, len), Ok(None));
        for at in [0, COPY_CHUNK as u64 - 1, COPY_CHUNK as u64, len - 1] {
            let mut byte = [0];
            b.read_at(at, &mut byte).unwrap();
            b.write_at(at, &[byte[0] ^ 1]).unwrap();
            assert_eq!(a.mismatch(0, &b, 0, len), Ok(Some(at)));
            b.write_at(at, &byte).unwrap();
        }
    }
}
