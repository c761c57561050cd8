//! The ring of one group of siblings: a calendar of visits.
//!
//! A plain ring would be walked round by round. Here every key in the ring is filed under the tick of its
//! next visit, and the hand moves from one occupied bucket to the next, however far apart they are: a key
//! that owes ten thousand rounds is touched once, when its debt is paid.
//!
//! # Buckets
//! Level `e` has 64 buckets of `4ᵉ` ticks. A visit that is `d` ticks away goes to the level where it is
//! between 8 and 32 buckets ahead, so a bucket is never wider than `d/8`, and a key stays where it was
//! filed until it is served: nothing cascades. A bucket is served first in, first out, when the hand
//! reaches its first tick; a visit thus comes at most an eighth of its distance early. The tick in the
//! slot stays exact, so this never adds up.
//!
//! # Invariants
//! - `hand ≤` the first tick of every occupied bucket, and `hand ≤ clock`.
//! - A slot is in exactly the list that its place names; `turn` and `guest` are in none.
//! - `clock` is never more than one tick ahead of the ring's earliest visit, while the ring has one.
//! - A listed slot has credit, unless a late settlement took it: then it moves on when it is visited.

use alloc::vec::Vec;

use crate::slot::{List, NIL, Place, Slot};
use crate::units::{Scale, Visits, Weight};

/// The furthest ahead a visit is filed, in ticks.
const SPAN: i64 = 1 << 61;

/// Levels that cover every distance up to [`SPAN`].
const LEVELS: usize = 30;

/// Buckets of a level.
const BUCKETS: usize = 64;

/// The row of a level that this calendar has not needed yet.
const UNUSED: u8 = u8::MAX;

/// A bucket that is always empty.
const NO_BUCKET: u32 = 0;

/// Time starts 16 rounds before the tick counter wraps, so that every use crosses the wrap at once.
const FIRST_TICK: u64 = 0xffff_ffff_fff0_0000;

/// What the engine has done so far, in countable steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// Keys taken from a ring, including those that had to move on without being served.
    pub visits: u64,
    /// Calendar levels looked at to find the next occupied bucket; at most 30 for one search.
    pub probes: u64,
}

/// A level of buckets, and which of them are occupied.
#[derive(Clone, Copy, Debug)]
struct Row {
    level: u32,
    occupied: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// Where the calendar has been served up to.
    hand: u64,
    /// The tick at which a newcomer joins.
    clock: u64,
    /// How often `clock` has wrapped.
    epoch: u32,
    /// Scaled cost served to guests that has not yet moved the clock by a whole tick.
    carry: u64,
    /// Total weight of the children in the ring, and how many they are.
    weight: u64,
    runnable: u32,
    /// The child whose ring turn it is, and the newcomer that is served before it goes on.
    turn: u32,
    guest: u32,
    /// Children that are late, and newcomers in order of arrival.
    late: List,
    fresh: List,
    /// Whether the last turn that began was a guest's.
    after_guest: bool,
    /// The bucket at `hand` that is served until it is empty, or [`NO_BUCKET`].
    open: u32,
    /// Which rows have an occupied bucket.
    occupied: u32,
    /// The row of each level.
    row_of: [u8; LEVELS],
    rows: Vec<Row>,
    /// [`NO_BUCKET`], then the buckets of each row.
    buckets: Vec<List>,
}

impl Calendar {
    /// Returns an empty calendar that allocates a level when a visit at that distance is first filed.
    pub(crate) fn new() -> Self {
        Self {
            hand: FIRST_TICK,
            clock: FIRST_TICK,
            epoch: 0,
            carry: 0,
            weight: 0,
            runnable: 0,
            turn: NIL,
            guest: NIL,
            late: List::EMPTY,
            fresh: List::EMPTY,
            after_guest: false,
            open: NO_BUCKET,
            occupied: 0,
            row_of: [UNUSED; LEVELS],
            rows: Vec::new(),
            buckets: Vec::from([List::EMPTY]),
        }
    }

    /// Returns an empty calendar with every level in place, which never allocates again.
    pub(crate) fn with_all_levels() -> Self {
        let mut calendar = Self::new();
        for level in 0..LEVELS {
            calendar.add_row(level);
        }
        calendar
    }

    /// Returns how many children are in the ring.
    pub(crate) const fn runnable(&self) -> u32 {
        self.runnable
    }

    /// Puts a child that is away into the ring, or ahead of it if it sat out a pass.
    pub(crate) fn join(&mut self, slots: &mut [Slot], index: u32, scale: &Scale) {
        let now = self.ring_lead(slots);
        let slot = &mut slots[index as usize];
        let mut lead = self.recall(slot);
        if slot.credit <= 0 {
            slot.advance(scale); // settled while away
            lead = slot.due.wrapping_sub(self.clock).cast_signed();
        }
        let Visits { grant, .. } = scale.visits(slot.weight);
        let income = scale.income(slot.weight);
        self.weight += u64::from(slot.weight.value());
        self.runnable += 1;
        if lead <= now {
            // The rounds it sat out paid for its debt; what they were worth beyond that is not saved.
            let earned = lead
                .unsigned_abs()
                .saturating_mul(income)
                .min(grant.unsigned_abs());
            slot.credit = (slot.credit + earned.cast_signed()).min(grant);
            slot.due = self.clock;
            slot.place = Place::FRESH;
            self.fresh.push_back(slots, index);
            return;
        }
        // It left in the middle of a turn: what it did not use brings its next visit closer, not more.
        let unused = (slot.credit - grant).max(0).unsigned_abs();
        let pull = (unused / income).min(lead.abs_diff(now));
        slot.credit = slot.credit.min(grant);
        slot.due = slot.due.wrapping_sub(pull);
        self.file(slots, index);
    }

    /// Takes a child out of the ring; its next visit stays due when it was.
    pub(crate) fn leave(&mut self, slots: &mut [Slot], index: u32, scale: &Scale) {
        self.weight -= u64::from(slots[index as usize].weight.value());
        self.runnable -= 1;
        if self.turn == index {
            self.turn = NIL;
            slots[index as usize].advance(scale);
        } else if self.guest == index {
            self.guest = NIL;
            slots[index as usize].advance(scale);
        } else {
            self.unlink(slots, index);
        }
        let slot = &mut slots[index as usize];
        slot.place = Place::AWAY;
        self.remember(slot);
    }

    /// Returns the tick that the next turn counts from, if there is one.
    pub(crate) fn due(
        &mut self,
        slots: &mut [Slot],
        scale: &Scale,
        work: &mut Work,
    ) -> Option<u64> {
        self.end_guest(slots, scale);
        self.end_turn(slots, scale);
        let newcomer = if self.guest == NIL {
            self.fresh.head()
        } else {
            self.guest
        };
        let newcomer = (newcomer != NIL).then(|| {
            slots[newcomer as usize]
                .due
                .wrapping_sub(self.clock)
                .cast_signed()
        });
        let lead = [newcomer, self.earliest_lead(slots, work)]
            .into_iter()
            .flatten()
            .min()?;
        Some(self.clock.wrapping_add(lead.cast_unsigned()))
    }

    /// Moves the clock up to a tick, unless it is past it.
    pub(crate) fn catch_up(&mut self, tick: u64) {
        self.clock_forward(tick.wrapping_sub(self.clock).cast_signed());
    }

    /// Returns whether it is this child's turn.
    pub(crate) const fn is_serving(&self, index: u32) -> bool {
        self.turn == index || self.guest == index
    }

    /// Returns the child whose turn it is.
    #[inline]
    pub(crate) fn next(
        &mut self,
        slots: &mut [Slot],
        scale: &Scale,
        work: &mut Work,
    ) -> Option<u32> {
        // Within a turn there is nothing to decide, unless a newcomer has come.
        let nobody_new = self.guest & self.fresh.head() == NIL;
        match slots.get(self.turn as usize) {
            Some(slot) if slot.credit > 0 && nobody_new => Some(self.turn),
            _ => self.next_turn(slots, scale, work),
        }
    }

    /// Ends the turn that is over, and begins the next one.
    fn next_turn(&mut self, slots: &mut [Slot], scale: &Scale, work: &mut Work) -> Option<u32> {
        if self.guest & self.fresh.head() != NIL
            && let Some(guest) = self.next_guest(slots, scale, work)
        {
            return Some(guest);
        }
        if self.turn != NIL {
            let slot = &mut slots[self.turn as usize];
            if slot.credit > 0 {
                return Some(self.turn);
            }
            slot.advance(scale);
            if self.runnable == 1 {
                // Nobody else is there to wait for.
                self.clock_forward(slot.due.wrapping_sub(self.clock).cast_signed());
                work.visits += 1;
                return Some(self.turn);
            }
            self.file_inline(slots, self.turn);
            self.turn = NIL;
        }
        self.turn = self.take(slots, scale, work)?;
        Some(self.turn)
    }

    /// Returns the newcomer that is served before the ring goes on, if there is one and the ring can wait.
    #[cold]
    fn next_guest(&mut self, slots: &mut [Slot], scale: &Scale, work: &mut Work) -> Option<u32> {
        self.end_guest(slots, scale);
        if self.guest != NIL {
            return Some(self.guest);
        }
        self.end_turn(slots, scale);
        // A newcomer goes first as long as its tick has not passed the ring's; then they take turns.
        if self.fresh.is_empty() || (self.after_guest && self.is_ring_earlier(slots, work)) {
            self.after_guest = false;
            return None;
        }
        self.guest = self.fresh.pop_front(slots);
        self.after_guest = true;
        slots[self.guest as usize].place = Place::GUEST;
        work.visits += 1;
        Some(self.guest)
    }

    /// Files the guest if its turn is over.
    fn end_guest(&mut self, slots: &mut [Slot], scale: &Scale) {
        if self.guest != NIL && slots[self.guest as usize].credit <= 0 {
            let guest = core::mem::replace(&mut self.guest, NIL);
            slots[guest as usize].advance(scale);
            self.file(slots, guest);
        }
    }

    /// Files the child whose ring turn it was, if that is over.
    fn end_turn(&mut self, slots: &mut [Slot], scale: &Scale) {
        if self.turn != NIL && slots[self.turn as usize].credit <= 0 {
            let turn = core::mem::replace(&mut self.turn, NIL);
            slots[turn as usize].advance(scale);
            self.file(slots, turn);
        }
    }

    /// Moves the clock for `amount` of scaled cost that went to the guest.
    ///
    /// Ring turns move the clock by themselves, guests would not: an endless row of newcomers could hold
    /// the ring back for ever. So a guest moves it as if its service had been spread over everyone's
    /// share, until the ring's next visit is overdue and the two take turns.
    pub(crate) fn guest_served(
        &mut self,
        slots: &[Slot],
        amount: i64,
        scale: &Scale,
        work: &mut Work,
    ) {
        let income = scale.income_of_all(self.weight);
        let amount = self.carry.saturating_add(amount.unsigned_abs());
        self.carry = amount % income;
        let ticks = (amount / income).min(SPAN.unsigned_abs()).cast_signed();
        let guest = &slots[self.guest as usize];
        let next = guest.due.wrapping_add(scale.visits(guest.weight).stride);
        let mut lead = next.wrapping_sub(self.clock).cast_signed();
        if let Some(ring) = self.earliest_lead(slots, work) {
            lead = lead.min(ring);
        }
        self.clock_forward(ticks.min(lead + 1));
    }

    /// Moves a child to where its credit belongs, after a refund.
    pub(crate) fn refile(&mut self, slots: &mut [Slot], index: u32, scale: &Scale) {
        let slot = &mut slots[index as usize];
        let Visits { grant, .. } = scale.visits(slot.weight);
        match slot.place {
            Place::AWAY => {} // joining sorts it out
            // It was idle since: what it got back is not saved up.
            Place::FRESH => slot.credit = slot.credit.min(grant),
            _ if self.is_serving(index) => slot.retreat(scale),
            _ if slot.credit > grant => {
                self.unlink(slots, index);
                slots[index as usize].retreat(scale);
                self.file(slots, index);
            }
            _ => {}
        }
    }

    /// Gives a child another weight; its debt stays what it was, and is paid at the new pace.
    pub(crate) fn set_weight(
        &mut self,
        slots: &mut [Slot],
        index: u32,
        weight: Weight,
        scale: &Scale,
    ) {
        let slot = &mut slots[index as usize];
        if slot.place != Place::AWAY {
            self.weight = self.weight - u64::from(slot.weight.value()) + u64::from(weight.value());
        }
        match slot.place {
            // This turn was granted under the old weight; the next visit comes under the new one.
            _ if self.is_serving(index) => slot.weight = weight,
            Place::FRESH => {
                let owed = scale.visits(slot.weight).grant - slot.credit;
                slot.credit = (scale.visits(weight).grant - owed).max(1);
                slot.weight = weight;
            }
            Place::AWAY => {
                let lead = self.recall(slot);
                self.reweigh(slot, lead, weight, scale);
                self.remember(slot);
            }
            _ => {
                self.unlink(slots, index);
                let slot = &mut slots[index as usize];
                let lead = slot.due.wrapping_sub(self.clock).cast_signed();
                self.reweigh(slot, lead, weight, scale);
                self.file(slots, index);
            }
        }
    }

    /// Returns the scaled cost by which a child is ahead of its share.
    pub(crate) fn debt(&self, slots: &[Slot], index: u32, scale: &Scale) -> u64 {
        let slot = &slots[index as usize];
        let lead = match slot.place {
            _ if self.is_serving(index) => return slot.credit.min(0).unsigned_abs(),
            Place::AWAY => self.lead_away(slot),
            _ => slot.due.wrapping_sub(self.clock).cast_signed(),
        };
        let owed = i128::from(scale.visits(slot.weight).grant) - i128::from(slot.credit);
        let owed = owed + i128::from(lead) * i128::from(scale.income(slot.weight));
        u64::try_from(owed.max(0)).unwrap_or(u64::MAX)
    }

    /// Gives a new child its place in time: level with the last in the ring, owing nothing.
    pub(crate) fn welcome(&self, slots: &mut [Slot], index: u32, scale: &Scale) {
        let due = self
            .clock
            .wrapping_add(self.ring_lead(slots).cast_unsigned());
        let slot = &mut slots[index as usize];
        slot.due = due;
        slot.credit = scale.visits(slot.weight).grant;
        self.remember(slot);
    }

    /// Returns the ticks from now to the visit of a child that is away; negative if it is past.
    pub(crate) fn lead_away(&self, slot: &Slot) -> i64 {
        let epochs = slot.next.wrapping_sub(self.epoch).cast_signed();
        let lead = (i128::from(epochs) << 64) + i128::from(slot.due) - i128::from(self.clock);
        lead.clamp(-i128::from(SPAN), i128::from(SPAN)) as i64
    }

    /// Makes the visit of a child that is away one near the clock again, and returns the ticks to it.
    fn recall(&self, slot: &mut Slot) -> i64 {
        let lead = self.lead_away(slot);
        slot.due = self.clock.wrapping_add(lead.cast_unsigned());
        lead
    }

    /// Notes the epoch of a visit, so that it keeps its meaning however long the child is away.
    fn remember(&self, slot: &mut Slot) {
        let lead = i128::from(slot.due.wrapping_sub(self.clock).cast_signed());
        let epochs = (i128::from(self.clock) + lead) >> 64;
        slot.next = self.epoch.wrapping_add(epochs as u32);
    }

    fn reweigh(&self, slot: &mut Slot, lead: i64, weight: Weight, scale: &Scale) {
        let owed = scale.visits(slot.weight).grant - slot.credit;
        if lead > 0 {
            let paid_at =
                i128::from(lead) * i128::from(slot.weight.value()) / i128::from(weight.value());
            slot.due = self
                .clock
                .wrapping_add(paid_at.min(i128::from(SPAN)) as u64);
        }
        slot.weight = weight;
        slot.credit = scale.visits(weight).grant - owed;
        if slot.credit <= 0 {
            slot.advance(scale);
        }
    }

    /// Links a child under its next visit.
    fn file(&mut self, slots: &mut [Slot], index: u32) {
        self.file_inline(slots, index);
    }

    #[inline(always)]
    fn file_inline(&mut self, slots: &mut [Slot], index: u32) {
        if self.occupied == 0 {
            self.hand = self
                .clock
                .wrapping_add(self.ring_lead(slots).cast_unsigned());
            self.open = NO_BUCKET;
        }
        let slot = &mut slots[index as usize];
        let mut lead = slot.due.wrapping_sub(self.hand);
        if lead > SPAN.unsigned_abs() {
            if lead.cast_signed() < 0 {
                self.file_late(slots, index);
                return;
            }
            lead = SPAN.unsigned_abs();
            slot.due = self.hand.wrapping_add(lead);
        }
        let level = ((lead | 8).ilog2() - 3) / 2;
        slot.place = Place::ring(level);
        let mut bucket = self.bucket(level, slot.due);
        if bucket >= self.buckets.len() {
            self.add_row(level as usize);
            bucket = self.bucket(level, slots[index as usize].due);
        }
        let list = &mut self.buckets[bucket];
        let was_empty = list.is_empty();
        list.push_back(slots, index);
        if was_empty {
            self.mark_occupied(bucket);
        }
    }

    /// Returns how far the ring is behind the clock: the ticks, never positive, from the clock to a tick
    /// that no child in the ring is before.
    fn ring_lead(&self, slots: &[Slot]) -> i64 {
        if self.occupied != 0 {
            return self.hand.wrapping_sub(self.clock).cast_signed();
        }
        // Those that are not filed, because they are being served or have just come.
        [self.turn, self.guest, self.fresh.head()]
            .into_iter()
            .filter(|&index| index != NIL)
            .map(|index| {
                slots[index as usize]
                    .due
                    .wrapping_sub(self.clock)
                    .cast_signed()
            })
            .fold(0, i64::min)
    }

    #[cold]
    fn file_late(&mut self, slots: &mut [Slot], index: u32) {
        let slot = &mut slots[index as usize];
        let lead = slot.due.wrapping_sub(self.hand).cast_signed().max(-SPAN);
        slot.due = self.hand.wrapping_add(lead.cast_unsigned());
        slot.place = Place::LATE;
        self.late.push_back(slots, index);
    }

    /// Takes a child out of the list that its place names.
    fn unlink(&mut self, slots: &mut [Slot], index: u32) {
        match slots[index as usize].place {
            Place::LATE => self.late.unlink(slots, index),
            Place::FRESH => self.fresh.unlink(slots, index),
            place => {
                let bucket = self.bucket(place.level(), slots[index as usize].due);
                self.buckets[bucket].unlink(slots, index);
                if self.buckets[bucket].is_empty() {
                    self.mark_vacant(bucket);
                }
            }
        }
    }

    /// Takes the next child with credit from the ring.
    #[inline]
    fn take(&mut self, slots: &mut [Slot], scale: &Scale, work: &mut Work) -> Option<u32> {
        loop {
            let index = if self.late.is_empty() {
                self.pop_earliest(slots, work)?
            } else {
                self.late.pop_front(slots)
            };
            work.visits += 1;
            let slot = &mut slots[index as usize];
            if slot.credit > 0 {
                return Some(index);
            }
            slot.advance(scale); // settled since it was filed
            self.file(slots, index);
        }
    }

    /// Takes the first child of the earliest occupied bucket, and moves the hand there.
    #[inline]
    fn pop_earliest(&mut self, slots: &mut [Slot], work: &mut Work) -> Option<u32> {
        if self.buckets[self.open as usize].is_empty() {
            self.open_earliest(work)?;
        }
        let list = &mut self.buckets[self.open as usize];
        let index = list.pop_front(slots);
        if list.is_empty() {
            self.mark_vacant(self.open as usize);
        }
        Some(index)
    }

    fn open_earliest(&mut self, work: &mut Work) -> Option<()> {
        let (bucket, start) = self.earliest_bucket(work)?;
        self.open = bucket;
        self.hand = start;
        self.clock_forward(start.wrapping_sub(self.clock).cast_signed());
        Some(())
    }

    /// Returns the earliest occupied bucket and its first tick.
    fn earliest_bucket(&self, work: &mut Work) -> Option<(u32, u64)> {
        if !self.buckets[self.open as usize].is_empty() {
            return Some((self.open, self.hand));
        }
        let mut best = None;
        let mut best_ahead = u64::MAX;
        let mut rows = self.occupied;
        while rows != 0 {
            let row = rows.trailing_zeros();
            rows &= rows - 1;
            work.probes += 1;
            let Row { level, occupied } = self.rows[row as usize];
            let now = self.hand >> (2 * level);
            let next = now.wrapping_add(u64::from(
                occupied.rotate_right((now & 63) as u32).trailing_zeros(),
            ));
            let start = next << (2 * level);
            let ahead = start.wrapping_sub(self.hand);
            if ahead < best_ahead {
                best_ahead = ahead;
                best = Some((1 + row * BUCKETS as u32 + (next & 63) as u32, start));
            }
        }
        best
    }

    /// Returns the bucket for a visit at `tick` on a level, beyond the last one if the level has no row yet.
    #[inline]
    fn bucket(&self, level: u32, tick: u64) -> usize {
        1 + usize::from(self.row_of[level as usize]) * BUCKETS
            + ((tick >> (2 * level)) & 63) as usize
    }

    #[cold]
    fn add_row(&mut self, level: usize) {
        self.row_of[level] = self.rows.len() as u8;
        self.rows.push(Row {
            level: level as u32,
            occupied: 0,
        });
        self.buckets
            .resize(self.buckets.len() + BUCKETS, List::EMPTY);
    }

    fn mark_occupied(&mut self, bucket: usize) {
        let (row, bit) = ((bucket - 1) / BUCKETS, (bucket - 1) % BUCKETS);
        self.rows[row].occupied |= 1 << bit;
        self.occupied |= 1 << row;
    }

    fn mark_vacant(&mut self, bucket: usize) {
        let (row, bit) = ((bucket - 1) / BUCKETS, (bucket - 1) % BUCKETS);
        self.rows[row].occupied &= !(1 << bit);
        if self.rows[row].occupied == 0 {
            self.occupied &= !(1 << row);
        }
    }

    /// Returns the ticks from the clock to the ring's next visit (negative if it is overdue), if any.
    fn earliest_lead(&self, slots: &[Slot], work: &mut Work) -> Option<i64> {
        let start = if self.turn != NIL && slots[self.turn as usize].credit > 0 {
            self.hand // its own tick may be later: others in its bucket, or in finer ones, come before that
        } else if !self.late.is_empty() {
            slots[self.late.head() as usize].due
        } else {
            self.earliest_bucket(work)?.1
        };
        Some(start.wrapping_sub(self.clock).cast_signed())
    }

    /// Returns whether the ring's next visit is due before the first newcomer came.
    fn is_ring_earlier(&self, slots: &[Slot], work: &mut Work) -> bool {
        let arrival = slots[self.fresh.head() as usize]
            .due
            .wrapping_sub(self.clock)
            .cast_signed();
        self.earliest_lead(slots, work)
            .is_some_and(|lead| lead < arrival)
    }

    fn clock_forward(&mut self, ticks: i64) {
        let (clock, wrapped) = self.clock.overflowing_add(ticks.max(0).unsigned_abs());
        self.clock = clock;
        self.epoch = self.epoch.wrapping_add(u32::from(wrapped));
    }
}

#[cfg(test)]
impl Calendar {
    /// Checks every invariant of the module documentation; `children` are all that belong here.
    pub(crate) fn audit(&self, slots: &[Slot], children: &[u32]) {
        use crate::audit::members;
        use std::collections::BTreeMap;

        let mut places = BTreeMap::new();
        for (number, list) in self.buckets.iter().enumerate() {
            let found = members(list, slots);
            if number == NO_BUCKET as usize {
                assert!(found.is_empty(), "the bucket that is always empty");
                continue;
            }
            let (row, bit) = ((number - 1) / BUCKETS, (number - 1) % BUCKETS);
            assert_eq!(self.rows[row].occupied >> bit & 1 == 1, !found.is_empty());
            for index in found {
                let slot = &slots[index as usize];
                let level = self.rows[row].level;
                assert_eq!(slot.place, Place::ring(level));
                let start = slot.due >> (2 * level) << (2 * level);
                let ahead = start.wrapping_sub(self.hand).cast_signed();
                assert!(ahead >= 0, "the hand has passed an occupied bucket");
                assert!(
                    ahead >> (2 * level) < BUCKETS as i64,
                    "a bucket beyond the horizon"
                );
                assert_eq!(self.bucket(level, slot.due), number);
                places.insert(index, number);
            }
        }
        for (row, Row { occupied, .. }) in self.rows.iter().enumerate() {
            assert_eq!(self.occupied >> row & 1 == 1, *occupied != 0);
        }
        for (list, place) in [(&self.late, Place::LATE), (&self.fresh, Place::FRESH)] {
            for index in members(list, slots) {
                assert_eq!(slots[index as usize].place, place);
                assert!(places.insert(index, usize::MAX).is_none(), "listed twice");
            }
        }
        for index in [self.turn, self.guest] {
            if index != NIL {
                assert!(
                    places.insert(index, usize::MAX).is_none(),
                    "listed and in turn"
                );
            }
        }
        if self.guest != NIL {
            assert_eq!(slots[self.guest as usize].place, Place::GUEST);
        }
        assert!(
            self.clock.wrapping_sub(self.hand).cast_signed() >= 0,
            "the hand is past the clock"
        );
        let here: Vec<u32> = children
            .iter()
            .copied()
            .filter(|&child| slots[child as usize].place != Place::AWAY)
            .collect();
        assert_eq!(
            places.len(),
            here.len(),
            "exactly the children that may run are in the ring"
        );
        assert!(here.iter().all(|child| places.contains_key(child)));
        assert_eq!(self.runnable as usize, here.len());
        let weight: u64 = here
            .iter()
            .map(|&child| u64::from(slots[child as usize].weight.value()))
            .sum();
        assert_eq!(self.weight, weight);
    }
}
