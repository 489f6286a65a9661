//! Mempools: buffers of one size in a segment, with a cache per lcore.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::MEMPOOL_BUFFERS_MAX;
use crate::segment::Segment;
use crate::stack::IndexStack;

/// What to make.
#[derive(Clone, Debug)]
pub struct MempoolSpec {
    /// Names the pool in leak reports.
    pub name: String,
    /// First byte of the pool in its segment.
    pub offset: u64,
    /// Bytes of a buffer.
    pub size: u32,
    /// Buffers. Those in the caches of idle lcores are out of reach: add twice the bulk for each.
    pub count: u32,
    /// Each buffer begins at a multiple of this from the start of the segment, a power of two; 64 keeps buffers from sharing lines.
    pub align: u32,
}

/// Why a pool was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MempoolError {
    /// The alignment is no power of two, or a number is 0 or too large.
    #[error("mempool {name}: {count} buffers of {size} bytes aligned to {align} make no sense")]
    Shape {
        /// The pool.
        name: String,
        /// Bytes of a buffer.
        size: u32,
        /// Buffers.
        count: u32,
        /// Alignment in bytes.
        align: u32,
    },
    /// The segment is too small.
    #[error("mempool {name}: {need} bytes do not fit a segment of {have}")]
    DoesNotFit {
        /// The pool.
        name: String,
        /// Bytes up to the end of the pool.
        need: u64,
        /// Bytes of the segment.
        have: u64,
    },
}

/// Buffers of one size. Lcores get and put them through a [`Cache`] each.
pub struct Mempool {
    name: String,
    /// Tells buffers of different pools apart.
    id: u32,
    segment: Arc<Segment>,
    first: u64,
    stride: u64,
    size: u32,
    count: u32,
    free: IndexStack,
    counts: Mutex<Counts>,
}

/// How many buffers went out and came back, by the caches that live and, in sum, by those that do not.
#[derive(Default)]
struct Counts {
    live: Vec<Arc<Flow>>,
    outstanding_of_dropped: i64,
}

/// Written by one cache with plain stores, read by anyone.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flow {
    got: AtomicU64,
    put: AtomicU64,
}

impl Flow {
    fn outstanding(&self) -> i64 {
        let put = self.put.load(Ordering::Acquire);
        self.got.load(Ordering::Acquire).wrapping_sub(put).cast_signed()
    }
}

/// A buffer that its holder owns until it puts it back. Dropping it leaks it, which [`Mempool::outstanding`] shows.
#[must_use = "put it back into a cache of its pool"]
#[derive(Debug)]
pub struct Buffer {
    index: u32,
    pool: u32,
}

impl Buffer {
    /// Its number in the pool, for tables beside it.
    pub const fn index(&self) -> u32 {
        self.index
    }
}

impl Mempool {
    /// Carves `spec` out of `segment`. Nothing is allocated later.
    pub fn new(segment: &Arc<Segment>, spec: &MempoolSpec) -> Result<Arc<Self>, MempoolError> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let MempoolSpec { name, offset, size, count, align } = spec;
        let (size, count, align) = (*size, *count, *align);
        let shape = || MempoolError::Shape { name: name.clone(), size, count, align };
        if size == 0 || count == 0 || count > MEMPOOL_BUFFERS_MAX || !align.is_power_of_two() {
            return Err(shape());
        }
        let stride = u64::from(size).next_multiple_of(u64::from(align));
        let first = offset.checked_next_multiple_of(u64::from(align)).ok_or_else(shape)?;
        // Below 2^64: a stride is at most 2^32.
        let need = (stride * u64::from(count - 1) + u64::from(size)).saturating_add(first);
        if need > segment.len() {
            return Err(MempoolError::DoesNotFit { name: name.clone(), need, have: segment.len() });
        }
        Ok(Arc::new(Self {
            name: name.clone(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            segment: Arc::clone(segment),
            first,
            stride,
            size,
            count,
            free: IndexStack::full(count),
            counts: Mutex::new(Counts::default()),
        }))
    }

    /// A cache for one lcore, which moves `bulk` buffers at a time from and to the pool and holds up to twice as many.
    ///
    /// # Panics
    /// When `bulk` is 0.
    pub fn cache(self: &Arc<Self>, bulk: u16) -> Cache {
        assert_ne!(bulk, 0, "a cache moves at least one buffer at a time");
        let flow = Arc::new(Flow::default());
        self.counts().live.push(Arc::clone(&flow));
        let bulk = usize::from(bulk);
        Cache { pool: Arc::clone(self), held: vec![0; 2 * bulk].into(), len: 0, bulk, flow }
    }

    /// First byte of a buffer in the segment.
    ///
    /// # Panics
    /// When the buffer is of another pool.
    #[inline]
    pub fn offset(&self, buffer: &Buffer) -> u64 {
        assert_eq!(buffer.pool, self.id, "a buffer of another mempool");
        self.first + self.stride * u64::from(buffer.index)
    }

    /// Bytes of a buffer.
    pub const fn buffer_len(&self) -> u32 {
        self.size
    }

    /// Buffers of the pool.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The name, for leak reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The memory the buffers lie in.
    pub const fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Buffers that somebody holds: neither in the pool nor in a cache. What is left at the end leaked.
    pub fn outstanding(&self) -> u64 {
        let counts = self.counts();
        let live: i64 = counts.live.iter().map(|flow| flow.outstanding()).sum();
        u64::try_from(live + counts.outstanding_of_dropped).unwrap_or(0)
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool")
            .field("name", &self.name)
            .field("count", &self.count)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// One lcore's stock of buffers: getting and putting touches the shared pool once per bulk.
#[derive(Debug)]
pub struct Cache {
    pool: Arc<Mempool>,
    held: Box<[u32]>,
    len: usize,
    bulk: usize,
    flow: Arc<Flow>,
}

impl Cache {
    /// A buffer, the one put last if there is a choice; None when the pool is empty.
    #[inline]
    pub fn get(&mut self) -> Option<Buffer> {
        if self.len == 0 {
            self.len = self.pool.free.pop(&mut self.held[..self.bulk]);
            // The pool's first comes out first.
            self.held[..self.len].reverse();
        }
        self.len = self.len.checked_sub(1)?;
        let got = &self.flow.got;
        got.store(got.load(Ordering::Relaxed) + 1, Ordering::Release);
        Some(Buffer { index: self.held[self.len], pool: self.pool.id })
    }

    /// Gives a buffer back, from wherever it was got.
    ///
    /// # Panics
    /// When the buffer is of another pool.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a buffer is given back once")]
    pub fn put(&mut self, buffer: Buffer) {
        let Buffer { index, pool } = buffer;
        assert_eq!(pool, self.pool.id, "a buffer of another mempool");
        if self.len == self.held.len() {
            // The older half goes: the newer is warm.
            self.pool.free.push(&self.held[..self.bulk]);
            self.held.copy_within(self.bulk.., 0);
            self.len -= self.bulk;
        }
        self.held[self.len] = index;
        self.len += 1;
        let put = &self.flow.put;
        put.store(put.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// The pool behind it.
    pub const fn pool(&self) -> &Arc<Mempool> {
        &self.pool
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.pool.free.push(&self.held[..self.len]);
        let mut counts = self.pool.counts();
        counts.live.retain(|flow| !Arc::ptr_eq(flow, &self.flow));
        counts.outstanding_of_dropped += self.flow.outstanding();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: u32) -> Arc<Mempool> {
        let segment = Arc::new(Segment::private(1 << 16).unwrap());
        let spec = MempoolSpec { name: "blocks".into(), offset: 100, size: 100, count, align: 64 };
        Mempool::new(&segment, &spec).unwrap()
    }

    #[test]
    fn buffers_are_aligned_and_apart() {
        let pool = pool(10);
        let mut cache = pool.cache(4);
        let buffers: Vec<Buffer> = std::iter::from_fn(|| cache.get()).collect();
        let offsets: Vec<u64> = buffers.iter().map(|buffer| pool.offset(buffer)).collect();
        assert_eq!(offsets, (0..10).map(|i| 128 + 128 * i).collect::<Vec<u64>>());
        for (buffer, byte) in buffers.iter().zip(1..) {
            pool.segment().fill(pool.offset(buffer), u64::from(pool.buffer_len()), byte).unwrap();
        }
        for (buffer, byte) in buffers.iter().zip(1..) {
            assert!(pool.segment().eq_at(pool.offset(buffer), &[byte; 100]).unwrap());
        }
        assert_eq!(pool.outstanding(), 10);
        buffers.into_iter().for_each(|buffer| cache.put(buffer));
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn the_warmest_buffer_comes_first() {
        let pool = pool(10);
        let mut cache = pool.cache(2);
        let (a, b) = (cache.get().unwrap(), cache.get().unwrap());
        let (a_index, b_index) = (a.index(), b.index());
        cache.put(a);
        cache.put(b);
        let got = [cache.get().unwrap(), cache.get().unwrap()];
        assert_eq!(got.each_ref().map(Buffer::index), [b_index, a_index]);
    }

    #[test]
    fn buffers_travel_between_lcores_and_leaks_are_counted() {
        let pool = pool(8);
        let (mut giver, mut taker) = (pool.cache(2), pool.cache(2));
        for _ in 0..100 {
            let buffer = giver.get().unwrap();
            assert_eq!(pool.outstanding(), 1);
            taker.put(buffer);
            assert_eq!(pool.outstanding(), 0);
        }
        let leaked = giver.get();
        assert!(leaked.is_some());
        assert_eq!(pool.outstanding(), 1);
        drop(giver);
        drop(taker);
        assert_eq!(pool.outstanding(), 1, "the caches are gone, the leak is not");
        let mut last = pool.cache(8);
        assert_eq!(std::iter::from_fn(|| last.get()).count(), 7);
        assert_eq!(pool.outstanding(), 8);
    }

    #[test]
    fn four_lcores_share_a_pool() {
        let pool = pool(40);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut cache = pool.cache(3);
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..2000_u64 {
                        let held: Vec<Buffer> =
                            (0..round % 4).filter_map(|_| cache.get()).collect();
                        let mark = |buffer: &Buffer| {
                            (round << 8 | u64::from(buffer.index())).to_ne_bytes()
                        };
                        for buffer in &held {
                            pool.segment().write_at(pool.offset(buffer), &mark(buffer)).unwrap();
                        }
                        for buffer in held {
                            assert!(
                                pool.segment().eq_at(pool.offset(&buffer), &mark(&buffer)).unwrap()
                            );
                            cache.put(buffer);
                        }
                    }
                });
            }
        });
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    #[should_panic(expected = "a buffer of another mempool")]
    fn a_foreign_buffer_is_a_bug() {
        let (one, other) = (pool(2), pool(2));
        let buffer = one.cache(1).get().unwrap();
        other.cache(1).put(buffer);
    }

    #[test]
    fn impossible_pools_are_refused() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let spec = MempoolSpec { name: "p".into(), offset: 0, size: 1024, count: 4, align: 64 };
        assert!(Mempool::new(&segment, &spec).is_ok());
        let refused = |spec: MempoolSpec| Mempool::new(&segment, &spec).unwrap_err();
        for spec in [
            MempoolSpec { size: 0, ..spec.clone() },
            MempoolSpec { count: 0, ..spec.clone() },
            MempoolSpec { align: 48, ..spec.clone() },
            MempoolSpec { offset: u64::MAX, ..spec.clone() },
        ] {
            assert!(matches!(refused(spec), MempoolError::Shape { .. }));
        }
        let too_long = refused(MempoolSpec { offset: 1, ..spec });
        assert_eq!(
            too_long,
            MempoolError::DoesNotFit { name: "p".into(), need: 64 + 4096, have: 4096 }
        );
    }
}
