//! Which member of a group is furthest above its share of the buffer, on every level.
//!
//! As [`lengths`](crate::lengths), with a set of classes for each group instead of one for all lanes. Most sets have few
//! occupied classes, so the lists are found in a hash table; a bitmap for each set names the occupied ones.

use std::collections::HashMap;

use drr::Weight;
use foldhash::fast::RandomState;

use crate::lengths::{WORDS, highest, relative};
use crate::slab::NIL;

/// The set of the members without a group.
const TOP: u32 = 0;

#[derive(Debug)]
pub(crate) struct TreeLengths {
    /// By slot; members without tasks are in no list.
    links: Vec<TreeLink>,
    /// The first slot of the list of a set and a class.
    heads: HashMap<(u32, u32), u32, RandomState>,
    /// By set.
    occupied: Vec<[u64; WORDS]>,
}

/// A member's place in the list of its set and class.
#[derive(Clone, Copy, Debug)]
struct TreeLink {
    next: u32,
    prev: u32,
    set: u32,
    /// 0 if it is in no list.
    class: u32,
}

const UNLINKED: TreeLink = TreeLink {
    next: NIL,
    prev: NIL,
    set: TOP,
    class: 0,
};

/// Returns the set of the members of a group.
const fn set_of(group: Option<u32>) -> u32 {
    match group {
        Some(number) => number + 1,
        None => TOP,
    }
}

impl TreeLengths {
    pub(crate) fn new() -> Self {
        Self {
            links: Vec::new(),
            heads: HashMap::default(),
            occupied: vec![[0; WORDS]],
        }
    }

    /// Moves a member of a group to where its length belongs.
    pub(crate) fn update(&mut self, slot: u32, group: Option<u32>, len: u32, weight: Weight) {
        let (set, class) = (set_of(group), relative(len, weight));
        drr::extend_to(&mut self.links, slot as usize + 1, &UNLINKED);
        let link = self.links[slot as usize];
        if class != link.class || set != link.set {
            self.unlink(slot);
            self.link(slot, set, class);
        }
    }

    /// Returns a member of a group that is furthest above its share, if any has tasks.
    pub(crate) fn longest(&self, group: Option<u32>) -> Option<u32> {
        let set = set_of(group);
        match highest(self.occupied.get(set as usize)?) {
            0 => None,
            class => self.heads.get(&(set, class)).copied(),
        }
    }

    fn link(&mut self, slot: u32, set: u32, class: u32) {
        let mut link = TreeLink {
            set,
            class,
            ..UNLINKED
        };
        if class > 0 {
            drr::extend_to(&mut self.occupied, set as usize + 1, &[0; WORDS]);
            self.occupied[set as usize][class as usize / 64] |= 1 << (class % 64);
            if let Some(next) = self.heads.insert((set, class), slot) {
                link.next = next;
                self.links[next as usize].prev = slot;
            }
        }
        self.links[slot as usize] = link;
    }

    fn unlink(&mut self, slot: u32) {
        let TreeLink {
            next,
            prev,
            set,
            class,
        } = self.links[slot as usize];
        if class == 0 {
            return;
        }
        if next != NIL {
            self.links[next as usize].prev = prev;
        }
        if prev != NIL {
            self.links[prev as usize].next = next;
        } else if next != NIL {
            self.heads.insert((set, class), next);
        } else {
            self.heads.remove(&(set, class));
            self.occupied[set as usize][class as usize / 64] &= !(1 << (class % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EQUAL: Weight = Weight::ONE;

    #[test]
    fn each_group_has_its_own_longest_member() {
        let mut lengths = TreeLengths::new();
        for (slot, group, len) in [(1, None, 9), (2, None, 3), (3, Some(0), 7), (4, Some(0), 8)] {
            lengths.update(slot, group, len, EQUAL);
        }
        assert_eq!(lengths.longest(None), Some(1));
        assert_eq!(lengths.longest(Some(0)), Some(4));
        assert_eq!(lengths.longest(Some(1)), None);
        lengths.update(4, Some(0), 1, EQUAL);
        assert_eq!(lengths.longest(Some(0)), Some(3));
    }

    #[test]
    fn a_member_that_moves_is_where_it_moved_to() {
        let mut lengths = TreeLengths::new();
        lengths.update(1, None, 5, EQUAL);
        lengths.update(1, Some(3), 5, EQUAL);
        assert_eq!(lengths.longest(None), None);
        assert_eq!(lengths.longest(Some(3)), Some(1));
        lengths.update(1, Some(3), 0, EQUAL);
        assert_eq!(lengths.longest(Some(3)), None);
        assert!(lengths.heads.is_empty());
    }

    #[test]
    fn members_of_one_class_leave_its_list_in_any_order() {
        for gone in [1, 2, 3] {
            let mut lengths = TreeLengths::new();
            (1..=3).for_each(|slot| lengths.update(slot, Some(0), 4, EQUAL));
            lengths.update(gone, Some(0), 0, EQUAL);
            let mut left = Vec::new();
            while let Some(slot) = lengths.longest(Some(0)) {
                left.push(slot);
                lengths.update(slot, Some(0), 0, EQUAL);
            }
            left.sort_unstable();
            let others: Vec<u32> = (1..=3).filter(|&slot| slot != gone).collect();
            assert_eq!(left, others);
        }
    }
}
