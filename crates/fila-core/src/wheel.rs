//! Timers, in a hierarchical timer wheel ([Varghese and Lauck,
//! SOSP 1987](https://doi.org/10.1145/37499.37504)).
//!
//! Level `l` has 64 slots of 64^l milliseconds. A timer lies on the level of the highest digit in which its deadline
//! differs from the present (digits to the base 64), and moves down as the present comes near. Setting and stopping
//! one take constant time; a timer is moved at most once for each level.
//!
//! Timers go off in the order of their deadlines, never early. The wheel begins at the moment it was made, so that
//! short timers need few levels, and levels are made when a timer first lies so far ahead.

use fila_store::Timestamp;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const NIL: u32 = u32::MAX;

/// A timer that is set: can be stopped once, until it goes off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer(u32);

/// Timers that carry a number each.
#[derive(Debug)]
pub(crate) struct Wheel {
    origin: u64,
    /// Milliseconds since the origin; no timer is set for a moment before.
    now: u64,
    levels: Vec<Level>,
    nodes: Vec<Node>,
    free: u32,
}

#[derive(Debug)]
struct Level {
    /// One bit for each slot that has timers.
    occupied: u64,
    slots: [Ends; SLOTS],
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Node {
    deadline: u64,
    value: u32,
    level: u8,
    slot: u8,
    previous: u32,
    next: u32,
}

impl Wheel {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            origin: now.as_millis(),
            now: 0,
            levels: Vec::new(),
            nodes: Vec::new(),
            free: NIL,
        }
    }

    /// Sets a timer. One for a moment that has passed goes off at once.
    pub(crate) fn set(&mut self, deadline: Timestamp, value: u32) -> Timer {
        let node = Node {
            deadline: deadline.as_millis().saturating_sub(self.origin),
            value,
            level: 0,
            slot: 0,
            previous: NIL,
            next: NIL,
        };
        let index = if self.free == NIL {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("there are fewer messages than that")
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        self.file(index);
        Timer(index)
    }

    /// Returns when a timer that has not gone off will.
    pub(crate) fn deadline(&self, timer: Timer) -> Timestamp {
        let deadline = self.nodes[timer.0 as usize].deadline;
        Timestamp::from_millis(self.origin.saturating_add(deadline))
    }

    /// Stops a timer that has not gone off.
    pub(crate) fn stop(&mut self, timer: Timer) {
        self.unlink(timer.0);
        self.release(timer.0);
    }

    /// Returns the number of the next timer that is due at `now`.
    pub(crate) fn next_due(&mut self, now: Timestamp) -> Option<u32> {
        let target = now.as_millis().saturating_sub(self.origin).max(self.now);
        while let Some((level, slot, start)) = self.first() {
            if start > target {
                break;
            }
            self.now = self.now.max(start);
            if level == 0 {
                let index = self.levels[0].slots[slot].first;
                let value = self.nodes[index as usize].value;
                self.stop(Timer(index));
                return Some(value);
            }
            self.move_down(level, slot);
        }
        self.now = target;
        None
    }

    /// Returns a moment not after the next timer's, at which there is something to do.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        let (_, _, start) = self.first()?;
        Some(Timestamp::from_millis(self.origin.saturating_add(start)))
    }

    /// Returns the first slot with timers, and when it begins. Lower levels come before higher ones: their timers share
    /// more digits with the present.
    fn first(&self) -> Option<(usize, usize, u64)> {
        self.levels.iter().enumerate().find_map(|(level, filed)| {
            if filed.occupied == 0 {
                return None;
            }
            let slot = filed.occupied.trailing_zeros();
            let shift = DIGIT_BITS * level as u32;
            let above = self
                .now
                .checked_shr(shift + DIGIT_BITS)
                .map_or(0, |digits| digits << DIGIT_BITS);
            let start = (above | u64::from(slot)) << shift;
            Some((level, slot as usize, start))
        })
    }

    fn move_down(&mut self, level: usize, slot: usize) {
        let mut index = self.levels[level].slots[slot].first;
        self.levels[level].slots[slot] = Ends::EMPTY;
        self.levels[level].occupied &= !(1 << slot);
        while index != NIL {
            let next = self.nodes[index as usize].next;
            self.file(index);
            index = next;
        }
    }

    fn file(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        let moment = node.deadline.max(self.now);
        let digits = u64::BITS - ((moment ^ self.now) | 1).leading_zeros();
        let level = (digits - 1) / DIGIT_BITS;
        let slot = (moment >> (level * DIGIT_BITS)) as usize % SLOTS;
        while self.levels.len() <= level as usize {
            self.levels.push(Level::EMPTY);
        }
        let filed = &mut self.levels[level as usize];
        filed.occupied |= 1 << slot;
        let ends = &mut filed.slots[slot];
        node.level = level as u8;
        node.slot = slot as u8;
        node.previous = ends.last;
        node.next = NIL;
        let last = std::mem::replace(&mut ends.last, index);
        if last == NIL {
            ends.first = index;
        } else {
            self.nodes[last as usize].next = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let node = &self.nodes[index as usize];
        let (previous, next, level, slot) = (node.previous, node.next, node.level, node.slot);
        let filed = &mut self.levels[usize::from(level)];
        let ends = &mut filed.slots[usize::from(slot)];
        if previous == NIL {
            ends.first = next;
        }
        if next == NIL {
            ends.last = previous;
        }
        if ends.first == NIL {
            filed.occupied &= !(1 << slot);
        }
        if previous != NIL {
            self.nodes[previous as usize].next = next;
        }
        if next != NIL {
            self.nodes[next as usize].previous = previous;
        }
    }

    fn release(&mut self, index: u32) {
        self.nodes[index as usize].next = self.free;
        self.free = index;
    }
}

impl Ends {
    const EMPTY: Self = Self {
        first: NIL,
        last: NIL,
    };
}

impl Level {
    const EMPTY: Self = Self {
        occupied: 0,
        slots: [Ends::EMPTY; SLOTS],
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const START: u64 = 1_700_000_000_123;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(START + millis)
    }

    fn due(wheel: &mut Wheel, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| wheel.next_due(at(now))).collect()
    }

    #[test]
    fn timers_go_off_at_their_moment_and_not_before() {
        for distance in [0, 1, 63, 64, 65, 4095, 4096, 1 << 30, 1 << 40] {
            let mut wheel = Wheel::new(at(0));
            wheel.set(at(distance), 7);
            if distance > 0 {
                assert!(due(&mut wheel, distance - 1).is_empty(), "{distance}");
            }
            assert_eq!(due(&mut wheel, distance), [7], "{distance}");
            assert_eq!(wheel.next_wake(), None);
        }
    }

    #[test]
    fn the_latest_moment_there_is_can_be_waited_for() {
        let mut wheel = Wheel::new(at(0));
        wheel.set(Timestamp::from_millis(u64::MAX), 1);
        assert!(due(&mut wheel, 1 << 50).is_empty());
        assert!(wheel.next_wake().is_some());
        assert_eq!(wheel.next_due(Timestamp::from_millis(u64::MAX)), Some(1));
    }

    #[test]
    fn a_moment_that_has_passed_is_due_at_once() {
        let mut wheel = Wheel::new(at(0));
        assert!(due(&mut wheel, 1000).is_empty());
        wheel.set(at(3), 1);
        wheel.set(Timestamp::from_millis(0), 2);
        assert_eq!(due(&mut wheel, 1000), [1, 2]);
    }

    proptest! {
        /// Against a sorted map: the same timers, in the order of their deadlines, whatever is set, stopped and
        /// jumped over; and a driver that sleeps until the next wake misses none.
        #[test]
        fn the_wheel_is_a_sorted_map(steps in prop::collection::vec((0..4u8, 0..1u64 << 20, 0..40u32), 1..200)) {
            let mut wheel = Wheel::new(at(0));
            let mut model: BTreeMap<u32, (u64, Timer)> = BTreeMap::new();
            let mut now = 0;
            for (value, (kind, span, shift)) in steps.into_iter().enumerate() {
                let value = value as u32;
                let span = span >> (shift % 20);
                match kind {
                    0 | 1 => {
                        let timer = wheel.set(at(now + span), value);
                        model.insert(value, (now + span, timer));
                    }
                    2 => {
                        if let Some((_, (_, timer))) = model.pop_first() {
                            wheel.stop(timer);
                        }
                    }
                    _ => {
                        now += span;
                        let first = model.values().map(|(deadline, _)| *deadline).min();
                        let wake = wheel.next_wake().map(|wake| wake.as_millis() - START);
                        prop_assert_eq!(first.is_some(), wake.is_some());
                        if let (Some(first), Some(wake)) = (first, wake) {
                            prop_assert!(wake <= first);
                        }
                        let fired = due(&mut wheel, now);
                        let mut last = 0;
                        for value in fired {
                            let (deadline, _) = model.remove(&value).expect("it was set");
                            prop_assert!(last <= deadline && deadline <= now);
                            last = deadline;
                        }
                        prop_assert!(model.values().all(|(deadline, _)| *deadline > now));
                    }
                }
            }
        }
    }
}
