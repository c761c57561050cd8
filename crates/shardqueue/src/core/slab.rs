//! A table of slots that are found by number and reused.
//!
//! What lives in a slot is known by its own serial number besides, so an old slot number does no harm.

use std::ops::{Index, IndexMut};

use super::list::NIL;

/// From this many slots on, a table that has become empty gives its memory back.
const RELEASE_FROM: usize = 1024;

const LIVES: &str = "a slot that is linked, running or timed is occupied";

#[derive(Debug)]
enum Entry<V> {
    /// The next vacant slot.
    Vacant(u32),
    Occupied(V),
}

#[derive(Debug)]
pub(crate) struct Slab<V> {
    entries: Vec<Entry<V>>,
    vacant: u32,
    live: usize,
}

impl<V> Slab<V> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: NIL,
            live: 0,
        }
    }

    /// Puts a value into a vacant slot and returns its number.
    #[inline]
    pub(crate) fn insert(&mut self, value: V) -> u32 {
        self.live += 1;
        match self.entries.get_mut(self.vacant as usize) {
            Some(entry) => {
                let slot = self.vacant;
                if let Entry::Vacant(next) = *entry {
                    self.vacant = next;
                }
                *entry = Entry::Occupied(value);
                slot
            }
            None => {
                // Capacities are checked when an executor is made, so that numbers suffice.
                self.entries.push(Entry::Occupied(value));
                (self.entries.len() - 1) as u32
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> V {
        let entry = &mut self.entries[slot as usize];
        let Entry::Occupied(value) = std::mem::replace(entry, Entry::Vacant(self.vacant)) else {
            unreachable!("{LIVES}");
        };
        self.vacant = slot;
        self.live -= 1;
        if self.live == 0 && self.entries.len() >= RELEASE_FROM {
            *self = Self::new();
        }
        value
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut V> {
        match self.entries.get_mut(slot as usize)? {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// Returns what lives, with its slots, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(slot, entry)| match entry {
            Entry::Occupied(value) => Some((slot as u32, value)),
            Entry::Vacant(_) => None,
        })
    }

    /// Returns how many slots are occupied.
    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.live
    }
}

impl<V> Index<u32> for Slab<V> {
    type Output = V;

    #[inline]
    fn index(&self, slot: u32) -> &V {
        match &self.entries[slot as usize] {
            Entry::Occupied(value) => value,
            Entry::Vacant(_) => unreachable!("{LIVES}"),
        }
    }
}

impl<V> IndexMut<u32> for Slab<V> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut V {
        self.get_mut(slot).expect(LIVES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_memory_follows() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..2 * RELEASE_FROM).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.remove(slots[7]), 7);
        assert_eq!(slab.insert(99), slots[7]);
        assert_eq!(slab.iter().count(), slab.len());
        for &slot in &slots {
            slab.remove(slot);
        }
        assert_eq!((slab.len(), slab.entries.capacity()), (0, 0));
        assert!(slab.get_mut(3).is_none());
    }
}
