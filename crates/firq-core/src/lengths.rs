//! Which tenant is furthest above its share of the buffer.
//!
//! Lanes are kept by length, relative to their weight, in [log-linear classes](crate::log_linear), each a
//! doubly linked list; a bitmap names the occupied ones. Changing a length is constant work, and finding a
//! longest lane looks at six words. Kept only where a policy asks for it.

use drr::Weight;

use crate::log_linear::{class_of, classes};
use crate::slab::NIL;

/// Bits of a relative length: 32 of a length, and 16 that the weight may scale it by.
const BITS: u32 = 48;
const CLASSES: usize = classes(BITS);
pub(crate) const WORDS: usize = CLASSES.div_ceil(64);

#[derive(Debug)]
pub(crate) struct Lengths {
    heads: Box<[u32; CLASSES]>,
    occupied: [u64; WORDS],
    /// By lane; those without tasks are in no list.
    links: Vec<Link>,
}

/// A lane's place in the list of its class.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    class: u32,
}

const UNLINKED: Link = Link {
    next: NIL,
    prev: NIL,
    class: 0,
};

/// Returns the class of a length, relative to the weight; 0 for no tasks and for nothing else.
pub(crate) fn relative(len: u32, weight: Weight) -> u32 {
    match len {
        0 => 0,
        len => class_of((u64::from(len) << 16) / u64::from(weight.value())) as u32,
    }
}

/// Returns the highest class that is occupied, or 0.
pub(crate) fn highest(occupied: &[u64; WORDS]) -> u32 {
    let word = occupied.iter().rposition(|&word| word != 0);
    word.map_or(0, |word| word as u32 * 64 + occupied[word].ilog2())
}

impl Lengths {
    pub(crate) fn new() -> Self {
        Self {
            heads: Box::new([NIL; CLASSES]),
            occupied: [0; WORDS],
            links: Vec::new(),
        }
    }

    /// Moves a lane to where its length belongs.
    pub(crate) fn update(&mut self, lane: u32, len: u32, weight: Weight) {
        let class = relative(len, weight);
        drr::extend_to(&mut self.links, lane as usize + 1, &UNLINKED);
        if class != self.links[lane as usize].class {
            self.unlink(lane);
            self.link(lane, class);
        }
    }

    /// Returns the class of the longest lanes; 0 if all are empty.
    pub(crate) fn longest_class(&self) -> u32 {
        highest(&self.occupied)
    }

    /// Returns a lane of the longest class, if any lane has tasks.
    pub(crate) fn longest(&self) -> Option<u32> {
        match self.longest_class() {
            0 => None,
            class => Some(self.heads[class as usize]),
        }
    }

    fn link(&mut self, lane: u32, class: u32) {
        let mut link = Link { class, ..UNLINKED };
        if class > 0 {
            link.next = std::mem::replace(&mut self.heads[class as usize], lane);
            self.occupied[class as usize / 64] |= 1 << (class % 64);
            if link.next != NIL {
                self.links[link.next as usize].prev = lane;
            }
        }
        self.links[lane as usize] = link;
    }

    fn unlink(&mut self, lane: u32) {
        let Link { next, prev, class } = self.links[lane as usize];
        if class == 0 {
            return;
        }
        if next != NIL {
            self.links[next as usize].prev = prev;
        }
        if prev != NIL {
            self.links[prev as usize].next = next;
            return;
        }
        self.heads[class as usize] = next;
        if next == NIL {
            self.occupied[class as usize / 64] &= !(1 << (class % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EQUAL: Weight = Weight::ONE;

    fn lengths(lanes: &[(u32, u64)]) -> Lengths {
        let mut lengths = Lengths::new();
        for (lane, &(len, weight)) in (0..).zip(lanes) {
            let weight = Weight::new(weight).expect("not zero");
            lengths.update(lane, len, weight);
        }
        lengths
    }

    #[test]
    fn the_longest_lane_is_found_as_lengths_change() {
        let mut lengths = lengths(&[(3, 1), (5, 1), (0, 1), (5, 1)]);
        assert!([Some(1), Some(3)].contains(&lengths.longest()));
        for (lane, len, longest) in [(1, 0, 3), (3, 2, 0), (2, 1000, 2), (2, 0, 0)] {
            lengths.update(lane, len, EQUAL);
            assert_eq!(lengths.longest(), Some(longest));
        }
    }

    #[test]
    fn length_counts_relative_to_weight() {
        let lengths = lengths(&[(100, 100), (20, 10), (1, 1)]);
        assert_eq!(lengths.longest(), Some(1));
    }

    #[test]
    fn without_tasks_there_is_no_longest() {
        let lengths = lengths(&[(0, 1), (0, 1)]);
        assert_eq!(lengths.longest(), None);
        assert_eq!(lengths.longest_class(), 0);
    }

    #[test]
    fn the_largest_lengths_fit() {
        let lengths = lengths(&[(u32::MAX, 1), (u32::MAX, 65_536)]);
        assert_eq!(lengths.longest(), Some(0));
    }
}
