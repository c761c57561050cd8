//! Which tasks have expired: a hierarchical timing wheel over the tasks that have a deadline.
//!
//! A dequeuer meets expired tasks at the head of a lane and drops them. Those further back, and those of a
//! scheduler without consumers, would keep their capacity until then. The wheel finds them at their deadline,
//! to the nanosecond, wherever they are; the caller decides when to look.
//!
//! Level `l` has 64 buckets of `64ˡ` ticks, and a tick is 1,024 ns. A task is filed at the level of the
//! highest group of six bits in which its tick differs from the cursor's, and moves down when the cursor
//! reaches its bucket, at most eight times in its life. Filing and taking out are constant work.
//! (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987.)
//!
//! # Invariants
//! - No filed task has a tick before the cursor; one that would is filed at the cursor.
//! - A task is in the bucket that its tick and the cursor name, or in `moving`.
//! - No task expires before `next`.

use crate::node::{NEVER, Nanos, Node};
use crate::slab::{NIL, Slab};

/// Nanoseconds in a tick, as a power of two.
const TICK_BITS: u32 = 10;
/// Buckets of a level, as a power of two.
const LEVEL_BITS: u32 = 6;
const BUCKETS: usize = 1 << LEVEL_BITS;
/// Levels that cover every tick there is.
const LEVELS: usize = (64 - TICK_BITS).div_ceil(LEVEL_BITS) as usize;

#[derive(Debug)]
pub(crate) struct Wheel {
    /// The tick up to which buckets have been emptied.
    cursor: u64,
    /// Nothing happens before this time; [`NEVER`] if the wheel is empty.
    next: Nanos,
    len: usize,
    occupied: [u64; LEVELS],
    /// The first task of each bucket.
    heads: Box<[[u32; BUCKETS]; LEVELS]>,
    /// The rest of a bucket that the cursor has reached.
    moving: u32,
    /// Since the bucket of the present tick was last opened: that tick, and the earliest that a task expires
    /// among those that were put back into it or are new.
    rest: Option<(u64, Nanos)>,
}

/// Whether the wheel has been turned all the way to the present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// Every expired task was found.
    Fully,
    /// The budget ran out first.
    Partly,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            cursor: 0,
            next: NEVER,
            len: 0,
            occupied: [0; LEVELS],
            heads: Box::new([[NIL; BUCKETS]; LEVELS]),
            moving: NIL,
            rest: None,
        }
    }

    /// Returns a time before which no task expires; [`NEVER`] if there is none with a deadline.
    #[inline]
    pub(crate) const fn next(&self) -> Nanos {
        self.next
    }

    /// Files a task by its deadline.
    pub(crate) fn insert<T>(&mut self, nodes: &mut Slab<Node<T>>, index: u32, now: Nanos) {
        if self.len == 0 {
            self.cursor = self.cursor.max(now >> TICK_BITS);
        }
        self.len += 1;
        let expires = nodes[index].deadline.saturating_add(1);
        self.next = self.next.min(expires);
        self.note_rest(expires);
        self.file(nodes, index);
    }

    /// Takes out a task that was filed.
    pub(crate) fn remove<T>(&mut self, nodes: &mut Slab<Node<T>>, index: u32) {
        let node = &nodes[index];
        let (next, prev) = (node.expiry_next, node.expiry_prev);
        if next != NIL {
            nodes[next].expiry_prev = prev;
        }
        if prev != NIL {
            nodes[prev].expiry_next = next;
        } else if self.moving == index {
            self.moving = next;
        } else {
            let (level, bucket) = self.place(nodes[index].deadline);
            self.heads[level][bucket] = next;
            if next == NIL {
                self.occupied[level] &= !(1 << bucket);
            }
        }
        self.len -= 1;
        if self.len == 0 {
            self.next = NEVER;
        }
    }

    /// Turns the wheel to `now`, taking out at most `budget` tasks, and calls `expired` with those that have.
    pub(crate) fn turn<T>(
        &mut self,
        nodes: &mut Slab<Node<T>>,
        now: Nanos,
        budget: usize,
        mut expired: impl FnMut(&mut Slab<Node<T>>, u32),
    ) -> Turned {
        let mut budget = budget;
        let today = now >> TICK_BITS;
        loop {
            while self.moving != NIL {
                if budget == 0 {
                    self.next = now;
                    return Turned::Partly;
                }
                budget -= 1;
                let index = self.moving;
                self.moving = nodes[index].expiry_next;
                if self.moving != NIL {
                    nodes[self.moving].expiry_prev = NIL;
                }
                if nodes[index].is_expired(now) {
                    self.len -= 1;
                    expired(nodes, index);
                } else {
                    self.note_rest(nodes[index].deadline.saturating_add(1));
                    self.file(nodes, index);
                }
            }
            let rest = self.rest.take();
            let Some((level, bucket, start)) = self.first_bucket() else {
                self.next = NEVER;
                return Turned::Fully;
            };
            if start > today {
                self.next = start << TICK_BITS;
                return Turned::Fully;
            }
            if start == today && level == 0 {
                // The rest of the bucket of the present tick expires later in it.
                if let Some((_, rest)) = rest.filter(|&(tick, rest)| tick == today && rest > now) {
                    self.next = rest;
                    return Turned::Fully;
                }
                self.rest = Some((today, NEVER));
            }
            self.cursor = start;
            self.moving = std::mem::replace(&mut self.heads[level][bucket], NIL);
            self.occupied[level] &= !(1 << bucket);
        }
    }

    fn note_rest(&mut self, expires: Nanos) {
        if let Some((_, rest)) = &mut self.rest {
            *rest = (*rest).min(expires);
        }
    }

    /// Links a task into the bucket of its deadline.
    fn file<T>(&mut self, nodes: &mut Slab<Node<T>>, index: u32) {
        let (level, bucket) = self.place(nodes[index].deadline);
        let head = std::mem::replace(&mut self.heads[level][bucket], index);
        self.occupied[level] |= 1 << bucket;
        nodes[index].expiry_next = head;
        nodes[index].expiry_prev = NIL;
        if head != NIL {
            nodes[head].expiry_prev = index;
        }
    }

    fn place(&self, deadline: Nanos) -> (usize, usize) {
        let tick = (deadline >> TICK_BITS).max(self.cursor);
        let differing = (tick ^ self.cursor) | (BUCKETS as u64 - 1);
        let level = differing.ilog2() / LEVEL_BITS;
        let bucket = (tick >> (level * LEVEL_BITS)) as usize % BUCKETS;
        (level as usize, bucket)
    }

    /// Returns the earliest occupied bucket and its first tick.
    fn first_bucket(&self) -> Option<(usize, usize, u64)> {
        // Whatever is on a lower level is in the cursor's own bucket of the levels above.
        let level = self.occupied.iter().position(|&occupied| occupied != 0)?;
        let bucket = self.occupied[level].trailing_zeros();
        let shift = level as u32 * LEVEL_BITS;
        let above = self.cursor >> shift >> LEVEL_BITS << LEVEL_BITS;
        Some((level, bucket as usize, (above | u64::from(bucket)) << shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Priority;
    use proptest::prelude::*;

    struct World {
        wheel: Wheel,
        nodes: Slab<Node<u32>>,
    }

    impl World {
        fn new() -> Self {
            Self {
                wheel: Wheel::new(),
                nodes: Slab::new(),
            }
        }

        fn insert(&mut self, deadline: Nanos, now: Nanos) -> u32 {
            let index = self.nodes.claim();
            self.nodes[index].occupy(index, 0, 1, Priority::Normal, (now, deadline));
            self.wheel.insert(&mut self.nodes, index, now);
            index
        }

        fn turn(&mut self, now: Nanos, budget: usize) -> (Vec<u32>, Turned) {
            let mut expired = Vec::new();
            let turned = self
                .wheel
                .turn(&mut self.nodes, now, budget, |_, index| expired.push(index));
            (expired, turned)
        }
    }

    #[test]
    fn a_task_is_found_one_nanosecond_after_its_deadline() {
        for deadline in [0, 1, 1023, 1024, 5_000, 1 << 30, (1 << 40) + 17, NEVER - 2] {
            let mut world = World::new();
            let index = world.insert(deadline, 0);
            assert_eq!(world.turn(deadline, 100).0, vec![], "deadline {deadline}");
            assert!(world.wheel.next() <= deadline + 1);
            assert_eq!(world.turn(deadline + 1, 100).0, vec![index]);
            assert_eq!(world.wheel.next(), NEVER);
        }
    }

    #[test]
    fn a_turn_does_no_more_than_its_budget() {
        let mut world = World::new();
        for _ in 0..1000 {
            world.insert(5_000_000, 0);
        }
        let mut turns = 0;
        let mut found = 0;
        loop {
            let (expired, turned) = world.turn(6_000_000, 256);
            assert!(expired.len() <= 256);
            found += expired.len();
            turns += 1;
            if turned == Turned::Fully {
                break;
            }
            assert_eq!(
                world.wheel.next(),
                6_000_000,
                "there is more to do right now"
            );
        }
        assert_eq!((found, turns), (1000, 4));
    }

    #[test]
    fn a_task_can_be_taken_out_of_a_half_emptied_bucket() {
        let mut world = World::new();
        let tasks: Vec<u32> = (0..10).map(|_| world.insert(5_000_000, 0)).collect();
        let (mut gone, turned) = world.turn(6_000_000, 3);
        assert_eq!(turned, Turned::Partly);
        for &index in &tasks {
            if !gone.contains(&index) {
                world.wheel.remove(&mut world.nodes, index);
                gone.push(index);
            }
        }
        assert_eq!(world.turn(7_000_000, 100), (vec![], Turned::Fully));
        assert_eq!(world.wheel.len, 0);
    }

    proptest! {
        #[test]
        fn it_finds_what_a_plain_search_finds(
            steps in prop::collection::vec((0u8..5, 0u64..1 << 22, 1usize..8), 1..300),
        ) {
            let mut world = World::new();
            let mut model: Vec<(u32, Nanos)> = Vec::new();
            let mut now = 0;
            for (verb, number, budget) in steps {
                match verb {
                    0 | 1 => {
                        let deadline = now + (number >> (number % 22));
                        model.push((world.insert(deadline, now), deadline));
                    }
                    4 => {
                        // A turn that is not finished, with time going on.
                        now += number >> (number % 24);
                        for index in world.turn(now, budget).0 {
                            let at = model.iter().position(|task| task.0 == index);
                            let (_, deadline) = model.swap_remove(at.expect("known"));
                            prop_assert!(deadline < now);
                            world.nodes[index].vacate();
                            drop(world.nodes.release(index));
                        }
                    }
                    2 if !model.is_empty() => {
                        let (index, _) = model.swap_remove(number as usize % model.len());
                        world.wheel.remove(&mut world.nodes, index);
                        world.nodes[index].vacate();
                        drop(world.nodes.release(index));
                    }
                    _ => {
                        now += number >> (number % 16);
                        loop {
                            let (expired, turned) = world.turn(now, budget);
                            prop_assert!(expired.len() <= budget);
                            for index in expired {
                                let at = model.iter().position(|task| task.0 == index);
                                let (_, deadline) = model.swap_remove(at.expect("known"));
                                prop_assert!(deadline < now);
                                world.nodes[index].vacate();
                                drop(world.nodes.release(index));
                            }
                            if turned == Turned::Fully {
                                break;
                            }
                        }
                        prop_assert!(model.iter().all(|task| task.1 >= now));
                    }
                }
                let earliest = model.iter().map(|task| task.1 + 1).min();
                prop_assert!(world.wheel.next() <= earliest.unwrap_or(NEVER).max(now));
                prop_assert_eq!(world.wheel.len, model.len());
            }
        }
    }
}
