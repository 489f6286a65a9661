//! The table of keys and values: open addressing with linear probing, in one range of hugepages.
//!
//! Its size never changes: a table that holds as many keys as it may takes no more. A quarter of its buckets stays free,
//! so that a probe is short and always ends. Nothing is ever removed: a bucket of a session that has ended counts as
//! empty to everybody else, and is taken over with its key.

use pmd_mem::AccessError;

use crate::extent::Extent;

/// Bytes of a bucket before its value: key (8), owner (4; 0 where the bucket is free), length of the value (4).
const HEAD: usize = 16;

/// Who owns a key: a session's range of keys, never 0.
pub(super) type Owner = u32;

/// How a PUT ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    Kept,
    Full,
}

/// Keys and their values.
#[derive(Debug)]
pub(super) struct Table {
    buckets: Extent,
    count: u64,
    stride: u64,
    capacity: u64,
    held: u64,
    /// Bytes of values kept so far.
    kept: u64,
    /// Of these bytes, those that a fault asks it to flip.
    flips: Vec<u64>,
    /// Those that were flipped, until somebody asks.
    flipped: Vec<u64>,
}

/// Where a key is, or would be.
enum Place {
    /// Its bucket, of whichever owner, with the length of the value.
    Taken { at: u64, owner: Owner, len: u32 },
    /// The free bucket where it belongs.
    Free { at: u64 },
}

/// Buckets for so many keys.
const fn buckets(capacity: u64) -> u64 {
    capacity.saturating_add(capacity / 3 + 1)
}

/// Bytes of a bucket for values of up to `value` bytes.
const fn stride(value: u64) -> u64 {
    (HEAD as u64 + value).next_multiple_of(HEAD as u64)
}

/// Bytes of a table for `capacity` keys with values of up to `value` bytes.
pub(crate) const fn table_bytes(capacity: u64, value: u64) -> u64 {
    buckets(capacity).saturating_mul(stride(value))
}

impl Table {
    /// An empty table in memory of zeros, of at least [`table_bytes`]. Each byte of `flips`, counted over all values as
    /// they are put, is flipped once it is kept.
    pub(super) fn new(memory: Extent, capacity: u64, value: u64, flips: Vec<u64>) -> Self {
        let (count, stride) = (buckets(capacity), stride(value));
        Self {
            buckets: memory,
            count,
            stride,
            capacity,
            held: 0,
            kept: 0,
            flips,
            flipped: Vec::new(),
        }
    }

    /// A byte that was to be flipped and never kept.
    pub(super) fn unflipped(&self) -> Option<u64> {
        self.flips.first().copied()
    }

    /// The bytes that were flipped since the last call.
    pub(super) fn flipped(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.flipped.drain(..)
    }

    /// Copies the value of a key to the front of `into`, which holds the longest one. Returns its length; `None` if
    /// nothing is kept under it.
    pub(super) fn get(
        &self,
        key: u64,
        owner: Owner,
        into: &mut [u8],
    ) -> Result<Option<u32>, AccessError> {
        match self.find(key)? {
            Place::Taken { at, owner: by, len } if by == owner => {
                let len_bytes = (len as usize).min(into.len());
                self.buckets.read_at(at + HEAD as u64, &mut into[..len_bytes])?;
                Ok(Some(len))
            }
            Place::Taken { .. } | Place::Free { .. } => Ok(None),
        }
    }

    /// Keeps `len` bytes from `at` of `from`, at most those of the longest value.
    pub(super) fn put(
        &mut self,
        key: u64,
        owner: Owner,
        from: &Extent,
        at: u64,
        len: u32,
    ) -> Result<Put, AccessError> {
        let bucket = match self.find(key)? {
            Place::Taken { at, .. } => at,
            Place::Free { .. } if self.held == self.capacity => return Ok(Put::Full),
            Place::Free { at } => {
                self.held += 1;
                at
            }
        };
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&key.to_le_bytes());
        head[8..12].copy_from_slice(&owner.to_le_bytes());
        head[12..].copy_from_slice(&len.to_le_bytes());
        self.buckets.write_at(bucket, &head)?;
        from.copy_to(at, &self.buckets, bucket + HEAD as u64, u64::from(len))?;
        if !self.flips.is_empty() {
            self.flip(bucket + HEAD as u64, len)?;
        }
        self.kept += u64::from(len);
        Ok(Put::Kept)
    }

    /// Flips what is to be flipped of a value that was just kept.
    fn flip(&mut self, at: u64, len: u32) -> Result<(), AccessError> {
        let kept = self.kept..self.kept + u64::from(len);
        while let Some(index) = self.flips.iter().position(|flip| kept.contains(flip)) {
            let offset = self.flips.swap_remove(index);
            let at = at + offset - kept.start;
            let mut byte = [0];
            self.buckets.read_at(at, &mut byte)?;
            self.buckets.write_at(at, &[!byte[0]])?;
            self.flipped.push(offset);
        }
        Ok(())
    }

    fn find(&self, key: u64) -> Result<Place, AccessError> {
        let mut index = home(key, self.count);
        loop {
            let at = index * self.stride;
            let mut head = [0; HEAD];
            self.buckets.read_at(at, &mut head)?;
            let [k0, k1, k2, k3, k4, k5, k6, k7, o0, o1, o2, o3, l0, l1, l2, l3] = head;
            let owner = Owner::from_le_bytes([o0, o1, o2, o3]);
            if owner == 0 {
                return Ok(Place::Free { at });
            }
            if u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]) == key {
                let len = u32::from_le_bytes([l0, l1, l2, l3]);
                return Ok(Place::Taken { at, owner, len });
            }
            index = if index + 1 == self.count { 0 } else { index + 1 };
        }
    }
}

/// The bucket where the search for a key begins: the output function of SplitMix64 (Steele, Lea, Flood 2014), scaled to
/// the number of buckets by its upper bits.
fn home(key: u64, count: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::region;

    const VALUE: u64 = 20;

    fn table(capacity: u64) -> (Table, Extent) {
        let bytes = table_bytes(capacity, VALUE);
        let whole = Extent::new(region((bytes + 4096).next_multiple_of(4096)), 0, bytes + 4096);
        let memory = whole.part(0, bytes).unwrap();
        (Table::new(memory, capacity, VALUE, Vec::new()), whole.part(bytes, 64).unwrap())
    }

    fn put(table: &mut Table, from: &Extent, key: u64, owner: Owner, value: &[u8]) -> Put {
        from.write_at(0, value).unwrap();
        table.put(key, owner, from, 0, u32::try_from(value.len()).unwrap()).unwrap()
    }

    fn get(table: &Table, key: u64, owner: Owner) -> Option<Vec<u8>> {
        let mut into = [0xee; 20];
        let len = table.get(key, owner, &mut into).unwrap()?;
        Some(into[..len as usize].to_vec())
    }

    #[test]
    fn a_full_table_says_so_and_keeps_what_it_has() {
        let (mut table, from) = table(3);
        for key in 0..3 {
            assert_eq!(put(&mut table, &from, key, 1, &[7; 20]), Put::Kept);
        }
        assert_eq!(put(&mut table, &from, 3, 1, b"no room"), Put::Full);
        assert_eq!(put(&mut table, &from, 2, 1, b"again"), Put::Kept);
        assert_eq!(get(&table, 2, 1), Some(b"again".to_vec()));
        assert_eq!((get(&table, 0, 1), get(&table, 3, 1)), (Some(vec![7; 20]), None));
    }

    #[test]
    fn keys_of_a_session_that_ended_are_as_empty_and_make_room() {
        let (mut table, from) = table(2);
        for key in [8, 9] {
            put(&mut table, &from, key, 1, b"old");
        }
        assert_eq!(get(&table, 8, 2), None);
        assert_eq!(put(&mut table, &from, 8, 2, b"new"), Put::Kept);
        assert_eq!(
            (get(&table, 8, 2), get(&table, 9, 1)),
            (Some(b"new".to_vec()), Some(b"old".to_vec()))
        );
    }

    proptest! {
        /// Whatever is put and asked for, in a table that is full more often than not, the answers are those of a map.
        #[test]
        fn the_answers_are_those_of_a_map(
            capacity in 1..40_u64,
            work in prop::collection::vec(
                (0..60_u64, 1..3_u32, prop::option::of(prop::collection::vec(any::<u8>(), 0..20))), 0..300,
            ),
        ) {
            let (mut table, from) = table(capacity);
            let mut model: HashMap<u64, (Owner, Vec<u8>)> = HashMap::new();
            for (key, owner, value) in work {
                // Far apart and close together.
                let key = if key % 2 == 0 { key } else { u64::MAX - key };
                match value {
                    Some(value) => {
                        let full = model.len() as u64 == capacity && !model.contains_key(&key);
                        let expected = if full { Put::Full } else { Put::Kept };
                        prop_assert_eq!(put(&mut table, &from, key, owner, &value), expected);
                        if !full {
                            model.insert(key, (owner, value));
                        }
                    }
                    None => {
                        let kept = model.get(&key).filter(|(by, _)| *by == owner);
                        prop_assert_eq!(get(&table, key, owner), kept.map(|(_, value)| value.clone()));
                    }
                }
            }
        }
    }
}
