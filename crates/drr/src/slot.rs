//! A key's whole scheduling state in half a cache line.
//!
//! Everything that a dispatch needs of a key is here, so a dispatch touches one line per key it visits.
//! What only trees need (parents, calendars of groups) is kept elsewhere and costs flat use nothing.

use core::ops::IndexMut;

use crate::units::{CREDIT_FLOOR, Scale, Visits, Weight};

/// "No slot": the end of a list, or an empty one.
pub(crate) const NIL: u32 = u32::MAX;

/// Where a slot is linked, if at all: a level of the calendar, or one of the other places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u8);

impl Place {
    /// Not in the ring: no work, or parked.
    pub(crate) const AWAY: Self = Self(0x40);
    /// In the ring, late: its visit is in the past; or taken from there for its turn.
    pub(crate) const LATE: Self = Self(0x41);
    /// Woke after an idle pass and waits ahead of the ring.
    pub(crate) const FRESH: Self = Self(0x42);
    /// Taken from the fresh list; its turn lasts while it has credit.
    pub(crate) const GUEST: Self = Self(0x43);

    /// In the ring: in a bucket of this level, or taken from there for its turn.
    #[inline]
    pub(crate) const fn ring(level: u32) -> Self {
        Self(level as u8)
    }

    /// Returns the level of a slot in a bucket.
    #[inline]
    pub(crate) const fn level(self) -> u32 {
        self.0 as u32
    }
}

/// A yes-or-no fact about a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// The key has work: for a leaf, by the caller's word; for a group, because a child may run.
    HasWork = 1,
    /// The key may not run now, whatever work it has.
    Parked = 2,
    /// The slot is a group, with a calendar of its own.
    Group = 4,
    /// The slot has a parent.
    Nested = 8,
}

/// One key or group.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Scaled credit. Away or in a list: what the key will have at its visit `due`.
    pub(crate) credit: i64,
    /// The tick of the key's next visit, or in a turn, of this one.
    pub(crate) due: u64,
    /// The next slot in the list; while away, the epoch of `due`; while free, the next free slot.
    pub(crate) next: u32,
    /// The previous slot in the list.
    pub(crate) prev: u32,
    /// Counts the keys that have lived here, so that a handle of a forgotten one is recognised.
    pub(crate) generation: u32,
    pub(crate) weight: Weight,
    pub(crate) place: Place,
    flags: u8,
}

const _: () = assert!(size_of::<Slot>() == 32, "two slots to a cache line");

impl Slot {
    pub(crate) const FREE: Self = Self {
        credit: 0,
        due: 0,
        next: NIL,
        prev: NIL,
        generation: 0,
        weight: Weight::ONE,
        place: Place::AWAY,
        flags: 0,
    };

    /// Makes a free slot a key that is away.
    pub(crate) fn occupy(&mut self, weight: Weight) {
        self.weight = weight;
        self.place = Place::AWAY;
        self.flags = 0;
    }

    /// Frees the slot: no handle that was given out fits it any more.
    pub(crate) fn vacate(&mut self, next_free: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.next = next_free;
    }

    #[inline]
    pub(crate) const fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }

    pub(crate) const fn set(&mut self, flag: Flag) {
        self.flags |= flag as u8;
    }

    pub(crate) const fn clear(&mut self, flag: Flag) {
        self.flags &= !(flag as u8);
    }

    /// Returns whether a charge concerns the slot alone: it is neither a guest nor in a group.
    #[inline]
    pub(crate) fn pays_alone(&self) -> bool {
        self.place != Place::GUEST && !self.has(Flag::Nested)
    }

    /// Moves on from this visit to the first one at which there is credit, in one step whatever the debt.
    #[inline]
    pub(crate) fn advance(&mut self, scale: &Scale) {
        let Visits { stride, grant } = scale.visits(self.weight);
        self.due = self.due.wrapping_add(stride);
        self.credit += grant;
        if self.credit <= 0 {
            self.skip(stride, grant);
        }
    }

    /// Passes over the visits whose grants only pay off debt.
    fn skip(&mut self, stride: u64, grant: i64) {
        let visits = -self.credit / grant + 1;
        self.due = self.due.wrapping_add(visits.cast_unsigned() * stride);
        self.credit += visits * grant;
    }

    /// Moves back to the first visit at which there is credit, after a refund.
    pub(crate) fn retreat(&mut self, scale: &Scale) {
        let Visits { stride, grant } = scale.visits(self.weight);
        if self.credit > grant {
            let visits = (self.credit - 1) / grant;
            self.due = self.due.wrapping_sub(visits.cast_unsigned() * stride);
            self.credit -= visits * grant;
        }
    }

    /// Takes `amount` of scaled credit, down to the floor.
    #[inline]
    pub(crate) const fn debit(&mut self, amount: i64) {
        let left = self.credit - amount;
        self.credit = if left < CREDIT_FLOOR {
            CREDIT_FLOOR
        } else {
            left
        };
    }

    /// Gives `amount` of scaled credit back, up to the most that debt can be.
    pub(crate) const fn refund(&mut self, amount: i64) {
        let more = self.credit + amount;
        self.credit = if more > -CREDIT_FLOOR {
            -CREDIT_FLOOR
        } else {
            more
        };
    }
}

/// Where slots are kept: in a row, or in a copy of one that is changed without changing it.
pub(crate) trait Slots: IndexMut<usize, Output = Slot> {
    /// Returns the slot of this index, if there is one.
    fn find(&self, index: u32) -> Option<&Slot>;
}

impl Slots for [Slot] {
    #[inline]
    fn find(&self, index: u32) -> Option<&Slot> {
        self.get(index as usize)
    }
}

/// A first-in, first-out list through the slots, from which any member can be taken.
///
/// The first member's `prev` and the last one's `next` mean nothing, so that taking the first touches no
/// other slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
    };

    /// Returns a list of one member.
    pub(crate) const fn of(index: u32) -> Self {
        Self {
            head: index,
            tail: index,
        }
    }

    #[inline]
    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    pub(crate) const fn tail(&self) -> u32 {
        self.tail
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    pub(crate) fn push_back<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if self.head == NIL {
            self.head = index;
        } else {
            slots[self.tail as usize].next = index;
            slots[index as usize].prev = self.tail;
        }
        self.tail = index;
    }

    /// Takes the first member, which there must be.
    #[inline]
    pub(crate) fn pop_front<S: Slots + ?Sized>(&mut self, slots: &S) -> u32 {
        let index = self.head;
        self.head = if index == self.tail {
            NIL
        } else {
            slots[index as usize].next
        };
        index
    }

    pub(crate) fn unlink<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if self.head == index {
            self.pop_front(slots);
            return;
        }
        let Slot { next, prev, .. } = slots[index as usize];
        if self.tail == index {
            self.tail = prev;
        } else {
            slots[prev as usize].next = next;
            slots[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Quantum;

    fn scale() -> Scale {
        Scale::new(Quantum::new(10).unwrap())
    }

    fn slot(credit: i64) -> Slot {
        Slot {
            credit,
            due: 1 << 40,
            ..Slot::FREE
        }
    }

    #[test]
    fn a_visit_moves_on_to_the_first_with_credit_and_back_to_the_first_without_surplus() {
        let Visits { stride, grant } = scale().visits(Weight::ONE);
        for turns in 0..5 {
            for rest in [0, 1, grant - 1] {
                let debt = turns * grant + rest;
                let mut moved = slot(-debt);
                moved.advance(&scale());
                assert_eq!(moved.credit, grant - rest);
                assert_eq!(moved.due, (1 << 40) + (turns as u64 + 1) * stride);
                // After a refund of the debt, the slot goes back to the first visit with credit.
                moved.refund(debt);
                moved.retreat(&scale());
                assert!((1..=grant).contains(&moved.credit));
                let earned = (moved.due as i64 - (1 << 40)) / stride as i64 * grant;
                assert_eq!(moved.credit, earned, "one visit's grant for each visit");
            }
        }
    }

    #[test]
    fn credit_stops_at_the_floor_and_at_the_ceiling() {
        let mut slot = slot(0);
        for _ in 0..10 {
            slot.debit(1 << 60);
        }
        assert_eq!(slot.credit, CREDIT_FLOOR);
        slot.advance(&scale());
        assert!(slot.credit > 0);
        for _ in 0..10 {
            slot.refund(1 << 60);
        }
        assert_eq!(slot.credit, -CREDIT_FLOOR);
        slot.retreat(&scale());
        assert!(slot.credit > 0);
    }
}
