//! A slab that grows and shrinks by chunks.
//!
//! Slots are found by number and reused once they are released. Growing moves no slot, so it
//! takes the same short time at any size. A chunk without live slots is given back as a whole, apart from a
//! few that are kept, so that memory follows use and small swings allocate nothing. The last few slots that were released
//! are kept at hand and reused first, without a look at their chunks, which count them as live.
//!
//! # Invariants
//! - A chunk that has room, a released slot or place for another one, is in `open` if it has memory and in
//!   `bare` if it has none.
//! - The generation of a slot never goes back, also when its chunk was given back meanwhile.

/// Slots in a chunk, as a power of two.
const CHUNK_BITS: u32 = 9;

/// Slots in a chunk.
const CHUNK: usize = 1 << CHUNK_BITS;

/// Chunks without live slots that are kept.
const SPARE: usize = 16;

/// Released slots that are kept at hand.
const AT_HAND: usize = 16;

/// "No slot": the end of a list, or an empty one.
pub(crate) const NIL: u32 = u32::MAX;

/// What lives in a slab.
pub(crate) trait Slot {
    /// Returns a slot that nothing lives in, of this generation.
    fn vacant(generation: u64) -> Self;

    /// Returns how many values have lived in the slot, if the type counts them.
    fn generation(&self) -> u64;

    /// Returns the next released slot of the chunk, as it was set.
    fn next_free(&self) -> u32;

    /// Keeps the number of another slot while nothing lives in this one.
    fn set_next_free(&mut self, next: u32);
}

#[derive(Debug)]
struct Chunk<V> {
    slots: Vec<V>,
    /// The first released slot, or [`NIL`].
    free: u32,
    live: u32,
    /// The generation that new slots begin with.
    generation: u64,
    is_open: bool,
}

/// Slots that are no longer in use. Dropping them takes a while: do it without holding a lock.
pub(crate) type Retired<V> = Option<Vec<V>>;

#[derive(Debug)]
pub(crate) struct Slab<V> {
    chunks: Vec<Chunk<V>>,
    /// Chunks that have memory and room.
    open: Vec<u32>,
    /// Chunks that have given their memory back.
    bare: Vec<u32>,
    live: usize,
    /// Chunks that have memory, but no live slots.
    spare: usize,
    /// Released slots that count as live, the last one on top.
    at_hand: [u32; AT_HAND],
    at_hand_len: usize,
}

impl<V: Slot> Slab<V> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            open: Vec::new(),
            bare: Vec::new(),
            live: 0,
            spare: 0,
            at_hand: [NIL; AT_HAND],
            at_hand_len: 0,
        }
    }

    /// Returns how many slots are in use.
    pub(crate) const fn len(&self) -> usize {
        self.live - self.at_hand_len
    }

    /// Returns a number above that of every slot.
    pub(crate) const fn end(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// Takes a slot into use.
    #[inline]
    pub(crate) fn claim(&mut self) -> u32 {
        match self.at_hand_len.checked_sub(1) {
            Some(last) => {
                self.at_hand_len = last;
                self.at_hand[last % AT_HAND]
            }
            None => self.claim_in_chunk(),
        }
    }

    fn claim_in_chunk(&mut self) -> u32 {
        let Some(&number) = self.open.last() else {
            return self.claim_in_new_chunk();
        };
        let chunk = &mut self.chunks[number as usize];
        if chunk.live == 0 && !chunk.slots.is_empty() {
            self.spare -= 1;
        }
        let within = if chunk.free == NIL {
            let within = chunk.slots.len();
            if within == 0 && number > 0 {
                chunk.slots.reserve_exact(CHUNK); // the first chunk grows as needed: many slabs stay small
            }
            chunk.slots.push(V::vacant(chunk.generation));
            within
        } else {
            let within = chunk.free as usize;
            chunk.free = chunk.slots[within].next_free();
            within
        };
        chunk.live += 1;
        self.live += 1;
        if chunk.free == NIL && chunk.slots.len() == CHUNK {
            chunk.is_open = false;
            self.open.pop();
        }
        (number << CHUNK_BITS) | within as u32
    }

    #[cold]
    fn claim_in_new_chunk(&mut self) -> u32 {
        if let Some(number) = self.bare.pop() {
            self.open.push(number);
            return self.claim_in_chunk();
        }
        let number = self.chunks.len() as u32;
        assert!(
            number < NIL >> CHUNK_BITS,
            "a slab holds at most 2^32 - 512 slots"
        );
        self.chunks.push(Chunk {
            slots: Vec::new(),
            free: NIL,
            live: 0,
            generation: 0,
            is_open: true,
        });
        self.open.push(number);
        self.claim_in_chunk()
    }

    /// Ends the use of a slot, which its user has made vacant. May return a chunk to be dropped.
    #[inline]
    #[must_use]
    pub(crate) fn release(&mut self, index: u32) -> Retired<V> {
        if self.at_hand_len < AT_HAND {
            self.at_hand[self.at_hand_len] = index;
            self.at_hand_len += 1;
            return None;
        }
        self.release_in_chunk(index)
    }

    fn release_in_chunk(&mut self, index: u32) -> Retired<V> {
        let (number, within) = (index >> CHUNK_BITS, index as usize % CHUNK);
        let chunk = &mut self.chunks[number as usize];
        let slot = &mut chunk.slots[within];
        slot.set_next_free(chunk.free);
        chunk.generation = chunk.generation.max(slot.generation());
        chunk.free = within as u32;
        chunk.live -= 1;
        self.live -= 1;
        if !chunk.is_open {
            chunk.is_open = true;
            self.open.push(number);
        }
        if chunk.live == 0 {
            return self.retire(number);
        }
        None
    }

    /// Gives a chunk back that nothing lives in, unless it is kept as a spare.
    #[cold]
    fn retire(&mut self, number: u32) -> Retired<V> {
        // Chunks with live slots are filled first, so that empty ones stay empty.
        let position = self.open.iter().rposition(|&open| open == number)?;
        self.open.swap(0, position);
        if self.spare < SPARE {
            self.spare += 1;
            return None;
        }
        self.open.swap_remove(0);
        self.bare.push(number);
        let chunk = &mut self.chunks[number as usize];
        chunk.free = NIL;
        Some(std::mem::take(&mut chunk.slots))
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&V> {
        let chunk = self.chunks.get((index >> CHUNK_BITS) as usize)?;
        chunk.slots.get(index as usize % CHUNK)
    }
}

impl<V> std::ops::Index<u32> for Slab<V> {
    type Output = V;

    #[inline]
    fn index(&self, index: u32) -> &V {
        &self.chunks[(index >> CHUNK_BITS) as usize].slots[index as usize % CHUNK]
    }
}

impl<V> std::ops::IndexMut<u32> for Slab<V> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut V {
        &mut self.chunks[(index >> CHUNK_BITS) as usize].slots[index as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Counted {
        generation: u64,
        next: u32,
    }

    impl Slot for Counted {
        fn vacant(generation: u64) -> Self {
            Self {
                generation,
                next: NIL,
            }
        }

        fn generation(&self) -> u64 {
            self.generation
        }

        fn next_free(&self) -> u32 {
            self.next
        }

        fn set_next_free(&mut self, next: u32) {
            self.next = next;
        }
    }

    fn release(slab: &mut Slab<Counted>, index: u32) -> Retired<Counted> {
        slab[index].generation += 1;
        slab.release(index)
    }

    #[test]
    fn a_released_slot_is_reused() {
        let mut slab = Slab::<Counted>::new();
        let (a, b) = (slab.claim(), slab.claim());
        assert_ne!(a, b);
        assert!(release(&mut slab, a).is_none());
        assert_eq!(slab.claim(), a);
        assert_eq!(slab[a].generation, 1);
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn memory_follows_what_is_in_use() {
        let mut slab = Slab::<Counted>::new();
        let slots: Vec<u32> = (0..100_000).map(|_| slab.claim()).collect();
        let retired: usize = slots
            .into_iter()
            .filter_map(|slot| release(&mut slab, slot))
            .map(|slots| slots.len())
            .sum();
        assert!(
            retired >= 100_000 - (SPARE + AT_HAND + 1) * CHUNK,
            "only {retired} slots were given back"
        );
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn a_generation_never_comes_twice() {
        let mut slab = Slab::<Counted>::new();
        let mut seen = std::collections::HashSet::new();
        for round in 0..4 {
            let slots: Vec<u32> = (0..5_000).map(|_| slab.claim()).collect();
            for &slot in &slots {
                assert!(seen.insert((slot, slab[slot].generation)), "round {round}");
            }
            for slot in slots {
                drop(release(&mut slab, slot));
            }
        }
    }

    #[test]
    fn a_slot_that_never_was_is_not_found() {
        let mut slab = Slab::<Counted>::new();
        assert!(slab.get(0).is_none());
        let slot = slab.claim();
        assert!(slab.get(slot).is_some());
        assert!(slab.get(slot + 1).is_none());
        assert!(slab.get(NIL).is_none());
    }
}
