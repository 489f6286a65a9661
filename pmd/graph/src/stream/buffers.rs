//! Pools of equal buffers for one lcore.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use pmd_mem::{AccessError, Cache, Mempool, MempoolError, MempoolSpec};

use crate::extent::Extent;
use crate::limits::{BUFFER_ALIGN, BUFFER_BULK};

/// A pool of buffers in registered memory. Taking one and giving it back costs an index each; nothing is allocated.
#[derive(Clone, Debug)]
pub struct Buffers(Rc<Pool>);

struct Pool {
    extent: Extent,
    mempool: Arc<Mempool>,
    cache: RefCell<Cache>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mempool.fmt(f)
    }
}

impl Buffers {
    /// Bytes that a buffer of `size` bytes takes of an extent.
    pub const fn stride(size: u64) -> u64 {
        size.saturating_add(BUFFER_ALIGN as u64 - 1) / BUFFER_ALIGN as u64 * BUFFER_ALIGN as u64
    }

    /// As many buffers of `size` bytes as `extent` holds, called `name` where they are reported.
    ///
    /// # Errors
    /// When there would be none.
    pub fn new(name: &str, extent: Extent, size: u32) -> Result<Self, MempoolError> {
        let count = extent.len() / Self::stride(u64::from(size)).max(1);
        let spec = MempoolSpec {
            name: name.to_owned(),
            offset: extent.offset(),
            size,
            count: u32::try_from(count).unwrap_or(u32::MAX),
            align: BUFFER_ALIGN,
        };
        let mempool = Mempool::new(extent.region().segment(), &spec)?;
        let cache = RefCell::new(mempool.cache(BUFFER_BULK));
        Ok(Self(Rc::new(Pool { extent, mempool, cache })))
    }

    /// A buffer, if one is free.
    pub fn take(&self) -> Option<Buffer> {
        let buffer = self.0.cache.borrow_mut().get()?;
        Some(Buffer { pool: Rc::clone(&self.0), buffer: Some(buffer) })
    }

    /// Bytes of each.
    pub fn size(&self) -> u32 {
        self.0.mempool.buffer_len()
    }

    /// How many are taken.
    pub fn taken(&self) -> u64 {
        self.0.mempool.outstanding()
    }
}

/// A buffer of a pool, to which it returns when dropped.
#[derive(Debug)]
pub struct Buffer {
    pool: Rc<Pool>,
    /// Always there until it is given back, at the end.
    buffer: Option<pmd_mem::Buffer>,
}

impl Buffer {
    /// Bytes it can hold.
    pub fn size(&self) -> u32 {
        self.pool.mempool.buffer_len()
    }

    /// The memory of the pool, and where this buffer begins in it.
    pub fn place(&self) -> (&Extent, u64) {
        let Pool { extent, mempool, .. } = &*self.pool;
        let start = self.buffer.as_ref().map(|buffer| mempool.offset(buffer) - extent.offset());
        (extent, start.unwrap_or(0))
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError`] beyond the end.
    pub fn read_at(&self, at: u32, into: &mut [u8]) -> Result<(), AccessError> {
        self.check(at, into.len())?;
        let (extent, start) = self.place();
        extent.read_at(start + u64::from(at), into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError`] beyond the end.
    pub fn write_at(&self, at: u32, from: &[u8]) -> Result<(), AccessError> {
        self.check(at, from.len())?;
        let (extent, start) = self.place();
        extent.write_at(start + u64::from(at), from)
    }

    fn check(&self, at: u32, len: usize) -> Result<(), AccessError> {
        let (offset, len, size) = (u64::from(at), len as u64, u64::from(self.size()));
        if offset + len > size {
            return Err(AccessError::OutOfBounds { offset, len, size });
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.cache.borrow_mut().put(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::region;

    fn pool(size: u32) -> Buffers {
        Buffers::new("test", Extent::new(region(8192), 4096, 4096), size).unwrap()
    }

    #[test]
    fn every_buffer_is_taken_once_and_comes_back() {
        let pool = pool(1000);
        let taken: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((taken.len(), pool.taken()), (4, 4));
        let mut starts: Vec<u64> = taken.iter().map(|buffer| buffer.place().1).collect();
        starts.sort_unstable();
        assert_eq!(starts, [0, 1024, 2048, 3072]);
        drop(taken);
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn a_buffer_does_not_reach_its_neighbour() {
        let pool = pool(64);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!((first.place().1, second.place().1), (0, 64));
        second.write_at(0, &[7; 64]).unwrap();
        let outside = AccessError::OutOfBounds { offset: 63, len: 2, size: 64 };
        assert_eq!(first.write_at(63, &[1, 1]), Err(outside));
        assert_eq!(first.read_at(63, &mut [0, 0]), Err(outside));
        first.write_at(0, &[1; 64]).unwrap();
        let mut bytes = [0; 64];
        second.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64]);
    }

    #[test]
    fn strides_keep_buffers_off_each_others_lines() {
        assert_eq!([1, 64, 65].map(Buffers::stride), [64, 64, 128]);
    }
}
