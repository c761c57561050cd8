//! Visits filed by tick: the next one is found without walking through the ticks between.
//!
//! Level `e` has 64 buckets of `4ᵉ` ticks. A visit that is `d` ticks ahead of the hand goes to the level
//! where it is between 8 and 32 buckets ahead, so a bucket is never wider than `d/8`, and a key stays where
//! it was filed until it is served: nothing cascades. A bucket is served first in, first out, when the
//! hand reaches its first tick; a visit thus comes at most an eighth of its distance early. The tick in
//! the slot stays exact, so this never adds up.
//!
//! # Invariants
//! - The hand, which the [calendar](crate::calendar) keeps, is never past the first tick of an occupied
//!   bucket; so no occupied bucket of a level is 64 or more ahead of it, and none means two times at once.
//! - `occupied` and the rows' words say exactly which buckets have members.
//! - The open bucket, as long as it has members, begins at the hand.
//! - As long as there is no row, a slot that is filed alone needs none: it is kept as the *lone* one, with the place and
//!   the tick that it would have in its bucket, and goes there when a second slot is filed. So a group that never had two
//!   members that may run takes no memory here. While there is a lone slot, all buckets are empty.

use alloc::vec::Vec;

use crate::calendar::Work;
use crate::slot::{List, NIL, Place, Slots};

/// The furthest ahead a visit is filed, in ticks.
pub(crate) const SPAN: i64 = 1 << 61;

/// Levels that cover every distance up to [`SPAN`].
const LEVELS: usize = 30;

/// Buckets of a level.
const WIDTH: usize = 64;

/// The row of a level that has not been needed yet.
const UNUSED: u8 = u8::MAX;

/// A bucket that is always empty.
const NO_BUCKET: usize = 0;

/// The bit of `occupied` that stands for the lone slot.
const LONE: u32 = 1 << 31;

#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    /// Which rows have an occupied bucket; or [`LONE`].
    occupied: u32,
    /// The lone slot, if `occupied` says that there is one.
    lone: u32,
    /// The bucket at the hand that is served until it is empty, or [`NO_BUCKET`].
    open: usize,
    /// The row of each level.
    row_of: [u8; LEVELS],
    rows: Vec<Row>,
    /// [`NO_BUCKET`], then the buckets of each row; nothing while there are no rows.
    lists: Vec<List>,
}

/// A level of buckets, and which of them are occupied.
#[derive(Clone, Copy, Debug)]
struct Row {
    level: u32,
    occupied: u64,
}

impl Buckets {
    /// Returns empty buckets that allocate a level when a visit at that distance is first filed.
    pub(crate) const fn new() -> Self {
        Self {
            occupied: 0,
            lone: NIL,
            open: NO_BUCKET,
            row_of: [UNUSED; LEVELS],
            rows: Vec::new(),
            lists: Vec::new(),
        }
    }

    /// Returns empty buckets with every level in place, which never allocate again.
    pub(crate) fn with_all_levels() -> Self {
        let mut buckets = Self::new();
        (0..LEVELS).for_each(|level| buckets.add_row(level));
        buckets
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Forgets which bucket was open. The caller moves the hand; all buckets are empty.
    pub(crate) const fn reset(&mut self) {
        self.open = NO_BUCKET;
    }

    /// Returns whether no bucket is occupied: there is a lone slot, or none.
    #[inline]
    pub(crate) const fn are_vacant(&self) -> bool {
        self.occupied & !LONE == 0
    }

    /// Returns whether there never was more than one slot.
    #[inline]
    pub(crate) const fn has_no_rows(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lone slot, if there is one.
    pub(crate) const fn lone(&self) -> Option<u32> {
        match self.occupied {
            LONE => Some(self.lone),
            _ => None,
        }
    }

    /// Returns buckets without rows, with this lone slot.
    pub(crate) const fn with_lone(index: u32) -> Self {
        let mut buckets = Self::new();
        buckets.occupied = LONE;
        buckets.lone = index;
        buckets
    }

    /// Keeps the only slot, whose visit is `lead` ticks ahead of the hand.
    pub(crate) fn keep_lone<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32, lead: u64) {
        slots[index as usize].place = Place::ring(level_of(lead));
        self.occupied = LONE;
        self.lone = index;
    }

    /// Files the lone slot in its bucket, because a second one comes.
    #[cold]
    pub(crate) fn file_lone<S: Slots + ?Sized>(&mut self, slots: &mut S) {
        self.occupied = 0;
        let slot = &slots[self.lone as usize];
        let (level, due) = (slot.place.level(), slot.due);
        self.link(slots, self.lone, level, due);
    }

    /// Files a slot whose visit is `lead` ticks ahead of the hand. There is no lone slot.
    #[inline(always)]
    pub(crate) fn insert<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32, lead: u64) {
        let slot = &mut slots[index as usize];
        let level = level_of(lead);
        slot.place = Place::ring(level);
        let due = slot.due;
        self.link(slots, index, level, due);
    }

    #[inline(always)]
    fn link<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32, level: u32, due: u64) {
        let mut bucket = self.bucket(level, due);
        if bucket >= self.lists.len() {
            self.add_row(level as usize);
            bucket = self.bucket(level, due);
        }
        let list = &mut self.lists[bucket];
        let was_empty = list.is_empty();
        list.push_back(slots, index);
        if was_empty {
            self.mark_occupied(bucket);
        }
    }

    /// Takes a slot out, wherever it is filed.
    pub(crate) fn remove<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if self.occupied == LONE {
            self.occupied = 0;
            return;
        }
        let slot = &slots[index as usize];
        let bucket = self.bucket(slot.place.level(), slot.due);
        self.lists[bucket].unlink(slots, index);
        if self.lists[bucket].is_empty() {
            self.mark_vacant(bucket);
        }
    }

    /// Takes the first slot of the open bucket, if it has any.
    #[inline]
    pub(crate) fn pop_open<S: Slots + ?Sized>(&mut self, slots: &S) -> Option<u32> {
        let list = self.lists.get_mut(self.open)?;
        if list.is_empty() {
            return None;
        }
        let index = list.pop_front(slots);
        if list.is_empty() {
            self.mark_vacant(self.open);
        }
        Some(index)
    }

    /// Opens the earliest occupied bucket, and returns its first tick, to which the caller moves the hand. There is no
    /// lone slot.
    pub(crate) fn open_earliest(&mut self, hand: u64, work: &mut Work) -> Option<u64> {
        let (bucket, start) = self.earliest_bucket(hand, work)?;
        self.open = bucket;
        Some(start)
    }

    /// Takes the lone slot out, if there is one. Returns it and the first tick of the bucket that it would be in.
    #[inline]
    pub(crate) fn pop_lone<S: Slots + ?Sized>(
        &mut self,
        slots: &S,
        work: &mut Work,
    ) -> Option<(u64, u32)> {
        if self.occupied != LONE {
            return None;
        }
        let start = self.start_of_lone(slots, work);
        self.open = NO_BUCKET;
        self.occupied = 0;
        Some((start, self.lone))
    }

    fn start_of_lone<S: Slots + ?Sized>(&self, slots: &S, work: &mut Work) -> u64 {
        work.probes += 1;
        let slot = &slots[self.lone as usize];
        let width = 2 * slot.place.level();
        slot.due >> width << width
    }

    /// Returns the first tick of the earliest occupied bucket.
    pub(crate) fn earliest<S: Slots + ?Sized>(
        &self,
        slots: &S,
        hand: u64,
        work: &mut Work,
    ) -> Option<u64> {
        if self.occupied == LONE {
            return Some(self.start_of_lone(slots, work));
        }
        let (_, start) = self.earliest_bucket(hand, work)?;
        Some(start)
    }

    /// Returns the earliest occupied bucket and its first tick.
    fn earliest_bucket(&self, hand: u64, work: &mut Work) -> Option<(usize, u64)> {
        if !self.lists.get(self.open)?.is_empty() {
            return Some((self.open, hand));
        }
        let mut best = None;
        let mut best_ahead = u64::MAX;
        let mut rows = self.occupied;
        while rows != 0 {
            let row = rows.trailing_zeros() as usize;
            rows &= rows - 1;
            work.probes += 1;
            let Row { level, occupied } = self.rows[row];
            let now = hand >> (2 * level);
            let ahead = occupied.rotate_right((now & 63) as u32).trailing_zeros();
            let next = now.wrapping_add(u64::from(ahead));
            let start = next << (2 * level);
            let ahead = start.wrapping_sub(hand);
            if ahead < best_ahead {
                best_ahead = ahead;
                best = Some((1 + row * WIDTH + (next & 63) as usize, start));
            }
        }
        best
    }

    /// Returns the bucket for a tick on a level, beyond the last one if the level has no row yet.
    #[inline]
    fn bucket(&self, level: u32, tick: u64) -> usize {
        let row = usize::from(self.row_of[level as usize]);
        1 + row * WIDTH + ((tick >> (2 * level)) & 63) as usize
    }

    #[cold]
    fn add_row(&mut self, level: usize) {
        self.row_of[level] = self.rows.len() as u8;
        let level = level as u32;
        self.rows.push(Row { level, occupied: 0 });
        self.lists.resize(1 + self.rows.len() * WIDTH, List::EMPTY);
    }

    fn mark_occupied(&mut self, bucket: usize) {
        let (row, bit) = ((bucket - 1) / WIDTH, (bucket - 1) % WIDTH);
        self.rows[row].occupied |= 1 << bit;
        self.occupied |= 1 << row;
    }

    fn mark_vacant(&mut self, bucket: usize) {
        let (row, bit) = ((bucket - 1) / WIDTH, (bucket - 1) % WIDTH);
        self.rows[row].occupied &= !(1 << bit);
        if self.rows[row].occupied == 0 {
            self.occupied &= !(1 << row);
        }
    }
}

/// Returns the level of a visit that is so many ticks ahead.
#[inline(always)]
const fn level_of(lead: u64) -> u32 {
    ((lead | 8).ilog2() - 3) / 2
}

#[cfg(test)]
use crate::slot::Slot;

#[cfg(test)]
impl Buckets {
    /// Checks every invariant of the module documentation, and returns all that is filed.
    pub(crate) fn audit(&self, slots: &[Slot], hand: u64) -> Vec<u32> {
        let mut filed = Vec::new();
        for (number, list) in self.lists.iter().enumerate() {
            let found = crate::audit::members(list, slots);
            if number == NO_BUCKET {
                assert!(found.is_empty(), "the bucket that is always empty");
                continue;
            }
            let (row, bit) = ((number - 1) / WIDTH, (number - 1) % WIDTH);
            let Row { level, occupied } = self.rows[row];
            assert_eq!(occupied >> bit & 1 == 1, !found.is_empty());
            for &index in &found {
                let slot = &slots[index as usize];
                assert_eq!(slot.place, Place::ring(level));
                assert_eq!(self.bucket(level, slot.due), number);
                let start = slot.due >> (2 * level) << (2 * level);
                let ahead = start.wrapping_sub(hand).cast_signed();
                assert!(ahead >= 0, "the hand has passed an occupied bucket");
                assert!(ahead >> (2 * level) < WIDTH as i64, "beyond the horizon");
                assert!(
                    number != self.open || ahead == 0,
                    "the open bucket is elsewhere"
                );
            }
            filed.extend(found);
        }
        if self.occupied == LONE {
            assert!(filed.is_empty(), "the lone slot is not alone");
            let slot = &slots[self.lone as usize];
            let width = 2 * slot.place.level();
            let ahead = (slot.due >> width << width).wrapping_sub(hand);
            assert!(ahead.cast_signed() >= 0, "the hand has passed it");
            return Vec::from([self.lone]);
        }
        for (row, Row { occupied, .. }) in self.rows.iter().enumerate() {
            assert_eq!(self.occupied >> row & 1 == 1, *occupied != 0);
        }
        filed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files slots of these ticks one after the other, each with the hand at a tick.
    fn filed(visits: &[(u64, u64)]) -> (Buckets, Vec<Slot>) {
        let mut buckets = Buckets::with_all_levels();
        let mut slots = Vec::new();
        for (index, &(hand, due)) in visits.iter().enumerate() {
            slots.push(Slot::FREE);
            slots[index].due = due;
            buckets.insert(&mut slots[..], index as u32, due - hand);
        }
        (buckets, slots)
    }

    /// Takes everything out in order, from a hand at `start`.
    fn order(buckets: &mut Buckets, slots: &[Slot], start: u64) -> Vec<u32> {
        let mut hand = start;
        let mut order = Vec::new();
        loop {
            while let Some(index) = buckets.pop_open(slots) {
                order.push(index);
            }
            let mut work = Work::default();
            if let Some((tick, index)) = buckets.pop_lone(slots, &mut work) {
                hand = tick;
                order.push(index);
            } else {
                match buckets.open_earliest(hand, &mut work) {
                    Some(tick) => hand = tick,
                    None => return order,
                }
            }
        }
    }

    #[test]
    fn visits_come_in_the_order_of_their_buckets() {
        let (mut buckets, slots) = filed(&[(0, 70_000), (0, 5), (0, 31), (0, 4_000), (0, 5)]);
        assert_eq!(order(&mut buckets, &slots, 0), [1, 4, 2, 3, 0]);
        assert!(buckets.is_empty());
    }

    #[test]
    fn of_two_buckets_that_begin_together_the_finer_comes_first() {
        // The first was filed from afar, into a bucket from 64 to 67; the second from nearby, at 64.
        let (mut buckets, slots) = filed(&[(0, 66), (40, 64)]);
        assert_eq!(order(&mut buckets, &slots, 40), [1, 0]);
    }

    #[test]
    fn a_slot_alone_needs_no_row_and_joins_its_bucket_when_a_second_comes() {
        let mut buckets = Buckets::new();
        let mut slots = Vec::from([Slot::FREE, Slot::FREE]);
        for round in 0..3 {
            slots[0].due = 70_000 * (round + 1);
            buckets.keep_lone(&mut slots[..], 0, 70_000);
            assert!(!buckets.is_empty());
            assert_eq!(order(&mut buckets, &slots, 70_000 * round), [0]);
        }
        assert_eq!(buckets.rows.len(), 0);
        buckets.keep_lone(&mut slots[..], 0, 70_000);
        buckets.remove(&mut slots[..], 0);
        assert!(buckets.is_empty() && buckets.are_vacant());
        buckets.keep_lone(&mut slots[..], 0, 70_000);
        assert!(!buckets.is_empty() && buckets.are_vacant());
        slots[1].due = 140_100;
        buckets.file_lone(&mut slots[..]);
        assert!(!buckets.are_vacant());
        buckets.insert(&mut slots[..], 1, 100);
        assert_eq!(buckets.rows.len(), 2);
        buckets.audit(&slots, 140_000);
        assert_eq!(order(&mut buckets, &slots, 140_000), [1, 0]);
    }
}
