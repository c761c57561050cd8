//! A table of slots that gives its memory back when it has become empty.
//!
//! A slot is reused once its value is gone. Each value has a serial number of its own, so an old slot number
//! does no harm.

use std::ops::{Index, IndexMut};

/// An empty table with room for more slots than this gives its memory back.
const RELEASE_FROM: usize = 1024;

#[derive(Debug)]
pub(crate) struct Slab<V>(slab::Slab<V>);

impl<V> Slab<V> {
    pub(crate) const fn new() -> Self {
        Self(slab::Slab::new())
    }

    /// Puts a value into a vacant slot and returns its number.
    #[inline]
    pub(crate) fn insert(&mut self, value: V) -> u32 {
        // The executor checks its capacities when it is made, so that numbers suffice.
        self.0.insert(value) as u32
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> V {
        let value = self.0.remove(slot as usize);
        if self.0.is_empty() && self.0.capacity() > RELEASE_FROM {
            *self = Self::new();
        }
        value
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&V> {
        self.0.get(slot as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut V> {
        self.0.get_mut(slot as usize)
    }

    /// Returns all values with their slots, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        self.0.iter().map(|(slot, value)| (slot as u32, value))
    }

    /// Returns how many slots are occupied.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<V> Index<u32> for Slab<V> {
    type Output = V;

    #[inline]
    fn index(&self, slot: u32) -> &V {
        &self.0[slot as usize]
    }
}

impl<V> IndexMut<u32> for Slab<V> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut V {
        &mut self.0[slot as usize]
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
        assert_eq!((slab.len(), slab.0.capacity()), (0, 0));
        assert!(slab.get_mut(3).is_none());
    }
}
