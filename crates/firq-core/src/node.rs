//! A queued task in memory, and the first-in first-out lists that link them.
//!
//! A node is 48 bytes and the payload. It is in the list of its lane and priority, and if it has a deadline,
//! also in a list of the [expiry wheel](crate::expiry); both are doubly linked, so that a task leaves the
//! queue in constant time from anywhere.

use crate::slab::{NIL, Slab, Slot};
use crate::task::Priority;

/// Nanoseconds since the scheduler was made.
pub(crate) type Nanos = u64;

/// The deadline of a task without one.
pub(crate) const NEVER: Nanos = Nanos::MAX;

/// Bits of the packed word: the cost at the bottom, then the priority, whether the task is timed, and the top of the
/// generation.
const COST_BITS: u32 = 45;
const PRIORITY_BITS: u32 = 2;
const TIMED: u64 = 1 << (COST_BITS + PRIORITY_BITS);
const META_BITS: u32 = COST_BITS + PRIORITY_BITS + 1;
const COST_MASK: u64 = (1 << COST_BITS) - 1;
const META_MASK: u64 = (1 << META_BITS) - 1;

const _: () = assert!(drr::Cost::MAX.value() <= COST_MASK);
const _: () = assert!(size_of::<Node<std::num::NonZeroU64>>() == 56);

#[derive(Debug)]
pub(crate) struct Node<T> {
    /// `None` while nothing lives here.
    pub(crate) payload: Option<T>,
    pub(crate) enqueued: Nanos,
    pub(crate) deadline: Nanos,
    /// Cost, priority, a flag and the upper 16 bits of the generation.
    packed: u64,
    /// The lower 32 bits of the generation.
    generation: u32,
    pub(crate) lane: u32,
    pub(crate) next: u32,
    pub(crate) prev: u32,
    pub(crate) expiry_next: u32,
    pub(crate) expiry_prev: u32,
}

impl<T> Node<T> {
    /// Moves a task in.
    #[inline]
    pub(crate) fn occupy(
        &mut self,
        payload: T,
        lane: u32,
        cost: u64,
        priority: Priority,
        times: (Nanos, Nanos),
    ) {
        self.payload = Some(payload);
        (self.enqueued, self.deadline) = times;
        self.lane = lane;
        let meta = cost | (priority.index() as u64) << COST_BITS;
        self.packed = (self.packed & !META_MASK) | meta;
    }

    /// Notes that the time at which the task came is exact.
    #[inline]
    pub(crate) const fn set_timed(&mut self) {
        self.packed |= TIMED;
    }

    /// Returns whether the time at which the task came is exact.
    #[inline]
    pub(crate) const fn is_timed(&self) -> bool {
        self.packed & TIMED != 0
    }

    /// Moves the payload out, and makes every handle to it stale.
    #[inline]
    pub(crate) fn vacate(&mut self) -> T {
        let (generation, wrapped) = self.generation.overflowing_add(1);
        self.generation = generation;
        if wrapped {
            self.packed = self.packed.wrapping_add(1 << META_BITS);
        }
        self.payload.take().expect("a linked node has a payload")
    }

    #[inline]
    pub(crate) const fn cost(&self) -> u64 {
        self.packed & COST_MASK
    }

    #[inline]
    pub(crate) const fn priority(&self) -> Priority {
        match (self.packed >> COST_BITS) & 3 {
            0 => Priority::High,
            1 => Priority::Normal,
            _ => Priority::Low,
        }
    }

    #[inline]
    pub(crate) const fn is_expired(&self, now: Nanos) -> bool {
        self.deadline < now
    }
}

impl<T> Slot for Node<T> {
    fn vacant(generation: u64) -> Self {
        Self {
            payload: None,
            enqueued: 0,
            deadline: NEVER,
            packed: generation >> 32 << META_BITS,
            generation: generation as u32,
            lane: NIL,
            next: NIL,
            prev: NIL,
            expiry_next: NIL,
            expiry_prev: NIL,
        }
    }

    #[inline]
    fn generation(&self) -> u64 {
        (self.packed >> META_BITS) << 32 | u64::from(self.generation)
    }

    fn next_free(&self) -> u32 {
        self.next
    }

    fn set_next_free(&mut self, next: u32) {
        self.next = next;
    }
}

/// Tasks of one lane and priority, oldest first.
///
/// The first node's `prev` and the last one's `next` mean nothing, so that taking the first touches no
/// other node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

impl Fifo {
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
    };

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    pub(crate) fn push_back<T>(&mut self, nodes: &mut Slab<Node<T>>, index: u32) {
        if self.head == NIL {
            self.head = index;
        } else {
            nodes[self.tail].next = index;
            nodes[index].prev = self.tail;
        }
        self.tail = index;
    }

    #[inline]
    pub(crate) fn unlink<T>(&mut self, nodes: &mut Slab<Node<T>>, index: u32) {
        let (next, prev) = (nodes[index].next, nodes[index].prev);
        match (self.head == index, self.tail == index) {
            (true, true) => *self = Self::EMPTY,
            (true, false) => self.head = next,
            (false, true) => self.tail = prev,
            (false, false) => {
                nodes[prev].next = next;
                nodes[next].prev = prev;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_everything_it_is_given() {
        let mut node = Node::vacant((5 << 32) | 7);
        for priority in Priority::ALL {
            node.occupy("work", 3, 1 << 44, priority, (10, 20));
            assert_eq!(node.cost(), 1 << 44);
            assert_eq!(node.priority(), priority);
            assert_eq!((node.enqueued, node.deadline, node.lane), (10, 20, 3));
            assert_eq!(node.generation(), (5 << 32) | 7);
            assert!(!node.is_timed());
            node.set_timed();
            assert!(node.is_timed());
            assert_eq!((node.cost(), node.priority()), (1 << 44, priority));
            assert_eq!(node.generation(), (5 << 32) | 7);
        }
        assert_eq!(node.vacate(), "work");
        assert_eq!(node.generation(), (5 << 32) | 8);
    }

    #[test]
    fn a_generation_goes_on_beyond_32_bits() {
        let mut node = Node::vacant(u64::from(u32::MAX));
        node.occupy((), 0, 9, Priority::Low, (0, 0));
        node.vacate();
        assert_eq!(node.generation(), 1 << 32);
        assert_eq!(node.cost(), 9, "the rest of the word is untouched");
        assert_eq!(node.priority(), Priority::Low);
    }

    #[test]
    fn a_task_at_its_deadline_is_not_yet_expired() {
        let mut node = Node::vacant(0);
        node.occupy((), 0, 1, Priority::Normal, (0, 100));
        assert!(!node.is_expired(100));
        assert!(node.is_expired(101));
    }

    #[test]
    fn any_node_can_be_taken_from_a_list() {
        let order = |list: &Fifo, nodes: &Slab<Node<u32>>| {
            let mut seen = Vec::new();
            let mut at = list.head;
            while !list.is_empty() && seen.last() != Some(&list.tail) {
                seen.push(at);
                at = nodes[at].next;
            }
            seen
        };
        for taken in 0..4 {
            let mut nodes = Slab::new();
            let mut list = Fifo::EMPTY;
            for _ in 0..4 {
                let index = nodes.claim();
                list.push_back(&mut nodes, index);
            }
            list.unlink(&mut nodes, taken);
            let rest: Vec<u32> = (0..4).filter(|&index| index != taken).collect();
            assert_eq!(order(&list, &nodes), rest);
            rest.iter()
                .for_each(|&index| list.unlink(&mut nodes, index));
            assert!(list.is_empty());
        }
    }
}
