//! Numbered objects: a table that is filled from the front and reuses the slot freed longest ago,
//! so that a stale number rarely meets a new object.

use std::collections::VecDeque;

/// A table of at most so many objects as it was made for.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    objects: Vec<Option<T>>,
    free: VecDeque<u32>,
}

impl<T> Slots<T> {
    /// Room for `capacity` objects, numbered from 0.
    pub(crate) fn new(capacity: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "tables are far smaller than 2^32")]
        let free = (0..capacity as u32).collect();
        Self { objects: core::iter::repeat_with(|| None).take(capacity).collect(), free }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.objects.len()
    }

    /// The number that the next object gets; `None` when the table is full.
    pub(crate) fn vacant(&self) -> Option<u32> {
        self.free.front().copied()
    }

    /// Puts an object into the slot that [`Slots::vacant`] named.
    pub(crate) fn insert(&mut self, object: T) -> Option<u32> {
        let slot = self.free.pop_front()?;
        self.objects[slot as usize] = Some(object);
        Some(slot)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let object = self.objects.get_mut(slot as usize)?.take()?;
        self.free.push_back(slot);
        Some(object)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.objects.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.objects.get_mut(slot as usize)?.as_mut()
    }

    /// The first object from a number on, with its number.
    pub(crate) fn first_from(&self, from: u32) -> Option<(u32, &T)> {
        let rest = self.objects.get(from as usize..)?;
        let (ahead, object) = (0..).zip(rest).find_map(|(at, slot)| Some((at, slot.as_ref()?)))?;
        Some((from + ahead, object))
    }

    /// All objects, in order of their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.iter_mut().flatten()
    }

    /// All objects, in order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.objects.iter().flatten()
    }
}
