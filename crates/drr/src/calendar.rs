//! The ring of one group of siblings: a calendar of visits.
//!
//! A plain ring would be walked round by round. Here every key in the ring is filed under the tick of its
//! next visit, and the hand moves from one occupied bucket to the next, however far apart they are: a key
//! that owes ten thousand rounds is touched once, when its debt is paid.
//!
//! # Invariants
//! - `hand ≤` the first tick of every occupied bucket, and `hand ≤ clock`.
//! - A slot is in exactly the list that its place names; `turn` and `guest` are in none.
//! - `clock` is never more than one tick ahead of the ring's earliest visit, while the ring has one.
//! - A listed slot has credit, unless a late settlement took it: then it moves on when it is visited.

use crate::buckets::{Buckets, SPAN};
use crate::slot::{List, NIL, Place, Slot, Slots};
use crate::units::{Scale, Visits, Weight};

/// Time starts 16 rounds before the tick counter wraps, so that every use crosses the wrap at once.
const FIRST_TICK: u64 = 0xffff_ffff_fff0_0000;

/// The number of steps that the engine has taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// Keys taken from a ring, including those that had to move on without being served.
    pub visits: u64,
    /// Calendar levels looked at to find the next occupied bucket; at most 30 for one search.
    pub probes: u64,
}

/// How many newcomers and how many late children are counted to find out how long a child waits.
const COUNTED_MAX: u32 = 1024;

/// The thing that a child of the ring waits for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    /// Nothing: it is being served, and no other child is served before it.
    Guest,
    /// The number of newcomers that came before it.
    Newcomer(u32),
    /// Its tick, so far ahead of the present.
    Ring(u64),
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
    /// How many children there are, in the ring or not; not counted at the top.
    pub(crate) children: u32,
    /// The child whose ring turn it is, and the newcomer that is served before it goes on.
    turn: u32,
    guest: u32,
    /// Children that are late, and newcomers in order of arrival.
    late: List,
    fresh: List,
    /// How many newcomers there are.
    newcomers: u32,
    /// Whether the last turn that began was a guest's.
    after_guest: bool,
    buckets: Buckets,
}

/// Where the only child of a packed calendar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    Turn,
    Guest,
    Late,
    Fresh,
    /// Filed alone.
    Lone,
}

/// A calendar that has at most one child in its ring and no memory for buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    hand: u64,
    clock: u64,
    carry: u64,
    epoch: u32,
    /// The child in the ring, or [`NIL`].
    child: u32,
    pub(crate) children: u32,
    at: Whereabouts,
    after_guest: bool,
}

impl Packed {
    /// A calendar without children.
    pub(crate) const EMPTY: Self = Self {
        hand: FIRST_TICK,
        clock: FIRST_TICK,
        carry: 0,
        epoch: 0,
        child: NIL,
        children: 0,
        at: Whereabouts::Lone,
        after_guest: false,
    };

    /// Returns how many children are in the ring.
    pub(crate) const fn runnable(&self) -> u32 {
        (self.child != NIL) as u32
    }

    /// Returns the calendar.
    #[inline]
    pub(crate) fn unpack(&self, slots: &[Slot]) -> Calendar {
        let mut calendar = Calendar {
            hand: self.hand,
            clock: self.clock,
            epoch: self.epoch,
            carry: self.carry,
            children: self.children,
            after_guest: self.after_guest,
            ..Calendar::new(Buckets::new())
        };
        if let Some(slot) = slots.find(self.child) {
            calendar.runnable = 1;
            calendar.weight = u64::from(slot.weight.value());
            match self.at {
                Whereabouts::Turn => calendar.turn = self.child,
                Whereabouts::Guest => calendar.guest = self.child,
                Whereabouts::Late => calendar.late = List::of(self.child),
                Whereabouts::Fresh => {
                    calendar.fresh = List::of(self.child);
                    calendar.newcomers = 1;
                }
                Whereabouts::Lone => calendar.buckets = Buckets::with_lone(self.child),
            }
        }
        calendar
    }
}

impl Calendar {
    /// Packs the calendar, if it is small enough.
    #[inline]
    pub(crate) fn pack(&self) -> Option<Packed> {
        if self.runnable > 1 || !self.buckets.has_no_rows() {
            return None;
        }
        let places = [
            (self.turn, Whereabouts::Turn),
            (self.guest, Whereabouts::Guest),
            (self.late.head(), Whereabouts::Late),
            (self.fresh.head(), Whereabouts::Fresh),
        ];
        let taken = places.into_iter().find(|&(child, _)| child != NIL);
        let lone = || (self.buckets.lone().unwrap_or(NIL), Whereabouts::Lone);
        let (child, at) = taken.unwrap_or_else(lone);
        Some(Packed {
            hand: self.hand,
            clock: self.clock,
            carry: self.carry,
            epoch: self.epoch,
            child,
            children: self.children,
            at,
            after_guest: self.after_guest,
        })
    }

    /// Returns a calendar without children.
    pub(crate) const fn new(buckets: Buckets) -> Self {
        Self {
            hand: FIRST_TICK,
            clock: FIRST_TICK,
            epoch: 0,
            carry: 0,
            weight: 0,
            runnable: 0,
            children: 0,
            turn: NIL,
            guest: NIL,
            late: List::EMPTY,
            fresh: List::EMPTY,
            newcomers: 0,
            after_guest: false,
            buckets,
        }
    }

    /// Returns how many children are in the ring.
    pub(crate) const fn runnable(&self) -> u32 {
        self.runnable
    }

    /// Returns the weight of the children in the ring.
    pub(crate) const fn weight(&self) -> u64 {
        self.weight
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
            self.newcomers += 1;
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
    pub(crate) fn leave<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32, scale: &Scale) {
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

    /// Returns whether it is this child's turn.
    pub(crate) const fn is_serving(&self, index: u32) -> bool {
        self.turn == index || self.guest == index
    }

    /// Returns the child whose turn it is.
    #[inline]
    pub(crate) fn next<S: Slots + ?Sized>(
        &mut self,
        slots: &mut S,
        scale: &Scale,
        work: &mut Work,
    ) -> Option<u32> {
        // Within a turn there is nothing to decide, unless a newcomer has come.
        let no_newcomer = self.guest & self.fresh.head() == NIL;
        match slots.find(self.turn) {
            Some(slot) if slot.credit > 0 && no_newcomer => Some(self.turn),
            _ => self.next_turn(slots, scale, work),
        }
    }

    /// Ends the turn that is over, and begins the next one.
    fn next_turn<S: Slots + ?Sized>(
        &mut self,
        slots: &mut S,
        scale: &Scale,
        work: &mut Work,
    ) -> Option<u32> {
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
                // There is no other child to wait for.
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
    fn next_guest<S: Slots + ?Sized>(
        &mut self,
        slots: &mut S,
        scale: &Scale,
        work: &mut Work,
    ) -> Option<u32> {
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
        self.newcomers -= 1;
        self.after_guest = true;
        slots[self.guest as usize].place = Place::GUEST;
        work.visits += 1;
        Some(self.guest)
    }

    /// Files the guest if its turn is over.
    fn end_guest<S: Slots + ?Sized>(&mut self, slots: &mut S, scale: &Scale) {
        if self.guest != NIL && slots[self.guest as usize].credit <= 0 {
            let guest = core::mem::replace(&mut self.guest, NIL);
            slots[guest as usize].advance(scale);
            self.file(slots, guest);
        }
    }

    /// Files the child whose ring turn it was, if that is over.
    fn end_turn<S: Slots + ?Sized>(&mut self, slots: &mut S, scale: &Scale) {
        if self.turn != NIL && slots[self.turn as usize].credit <= 0 {
            let turn = core::mem::replace(&mut self.turn, NIL);
            slots[turn as usize].advance(scale);
            self.file(slots, turn);
        }
    }

    /// Moves the clock for `amount` of scaled cost that went to the guest.
    ///
    /// Ring turns move the clock by themselves, guests would not: an endless row of newcomers could hold
    /// the ring back forever. So a guest moves it as if its service had been spread over everyone's
    /// share, until the ring's next visit is overdue and the two take turns.
    pub(crate) fn guest_served<S: Slots + ?Sized>(
        &mut self,
        slots: &S,
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
        // A guest that is alone has no ring to go ahead of.
        if self.runnable > 1
            && let Some(ring) = self.earliest_lead(slots, work)
        {
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

    /// Gives a child another weight; its debt stays what it was, and is paid at the new pace. With the weight that it has, it
    /// keeps its place among the visits of its tick.
    pub(crate) fn set_weight(
        &mut self,
        slots: &mut [Slot],
        index: u32,
        weight: Weight,
        scale: &Scale,
    ) {
        let slot = &mut slots[index as usize];
        if slot.weight == weight {
            return;
        }
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

    /// Returns the scaled cost that the others get at most before it is this child's turn, where none gets more than
    /// `turn` in one, and a turn that begins with a quantum ends less than `reach` further.
    ///
    /// In the ring, no other is before the hand now, but for those that are late, and none is further than `8/7 · reach`
    /// past it when the hand comes to the child's bucket, as the proof of B1 says. The clock, at which others come back,
    /// is at most a tick past that.
    pub(crate) fn bound(
        &self,
        slots: &[Slot],
        index: u32,
        turn: u64,
        reach: u64,
        scale: &Scale,
    ) -> u128 {
        let (others, weight) = self.others(slots, index);
        if others == 0 {
            return 0;
        }
        match self.wait(slots, index, scale) {
            Wait::Guest => 0,
            // Each that came before it, a ring turn before each of them and of this one, and whatever is under way.
            Wait::Newcomer(before) => (2 * u128::from(before) + 2) * u128::from(turn),
            Wait::Ring(ticks) => {
                let ticks = (u128::from(ticks) + 1) * u128::from(weight);
                let ticks = ticks + self.lateness(slots, index);
                let earned = ticks * u128::from(scale.income_of_all(1));
                earned + u128::from(others) * 8 * u128::from(reach) / 7
            }
        }
    }

    /// Returns the scaled cost that the others get at most while this child gets `needed`, from its next turn on.
    ///
    /// That is their share beside it and what B1 adds: `8/7 · (Tᵢ/wᵢ + Tⱼ/wⱼ)` per unit of weight, and a quantum if it
    /// has yet to join.
    pub(crate) fn beside(
        &self,
        slots: &[Slot],
        index: u32,
        needed: u128,
        reach: u64,
        scale: &Scale,
    ) -> u128 {
        let (others, weight) = self.others(slots, index);
        let slot = &slots[index as usize];
        let own = u128::from(slot.weight.value());
        let (others, weight, reach) = (u128::from(others), u128::from(weight), u128::from(reach));
        let share = needed.saturating_mul(weight).div_ceil(own);
        let apart = 8 * (others * reach + (weight * reach).div_ceil(own)).div_ceil(7);
        let joining = match slot.place {
            Place::AWAY | Place::FRESH | Place::GUEST => {
                weight * u128::from(scale.visits(Weight::ONE).grant.unsigned_abs())
            }
            _ => 0,
        };
        share.saturating_add(apart + joining)
    }

    /// Returns how many others are in the ring, and their weight.
    fn others(&self, slots: &[Slot], index: u32) -> (u32, u64) {
        let slot = &slots[index as usize];
        match slot.place {
            Place::AWAY => (self.runnable, self.weight),
            _ => (
                self.runnable - 1,
                self.weight - u64::from(slot.weight.value()),
            ),
        }
    }

    /// Returns what a child waits for; for one that is away, if it joined now.
    fn wait(&self, slots: &[Slot], index: u32, scale: &Scale) -> Wait {
        let mut slot = slots[index as usize].clone();
        let is_away = slot.place == Place::AWAY;
        match slot.place {
            Place::AWAY => _ = self.recall(&mut slot),
            Place::FRESH => return Wait::Newcomer(self.newcomers_before(slots, index)),
            Place::GUEST if slot.credit > 0 => return Wait::Guest,
            _ => {}
        }
        if slot.credit <= 0 {
            slot.advance(scale); // its turn is over, or a settlement has taken what it had
        }
        let present = self.ring_lead(slots);
        let lead = slot.due.wrapping_sub(self.clock).cast_signed();
        if is_away && lead <= present {
            return Wait::Newcomer(self.newcomers);
        }
        Wait::Ring(lead.saturating_sub(present).max(0).unsigned_abs())
    }

    /// Returns by how many ticks the others are late, times their weights. If there are too many to be looked at, the
    /// rest is left out.
    fn lateness(&self, slots: &[Slot], index: u32) -> u128 {
        let present = self
            .clock
            .wrapping_add(self.ring_lead(slots).cast_unsigned());
        let late = |other: u32| {
            let slot = &slots[other as usize];
            let ticks = present.wrapping_sub(slot.due).cast_signed().max(0);
            u128::from(ticks.unsigned_abs()) * u128::from(slot.weight.value())
        };
        let mut sum = 0;
        if self.turn != NIL && self.turn != index {
            sum += late(self.turn);
        }
        let mut next = self.late.head();
        for _ in 0..COUNTED_MAX {
            if next == NIL {
                break;
            }
            if next != index {
                sum += late(next);
            }
            next = if next == self.late.tail() {
                NIL
            } else {
                slots[next as usize].next
            };
        }
        sum
    }

    /// Returns how many newcomers came before one of them, up to a limit on the count.
    fn newcomers_before(&self, slots: &[Slot], index: u32) -> u32 {
        let mut index = index;
        for before in 0..COUNTED_MAX {
            if index == self.fresh.head() {
                return before;
            }
            index = slots[index as usize].prev;
        }
        self.newcomers - 1
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

    /// Gives a child that is away its place in time: its next visit comes so many ticks from now.
    pub(crate) fn place(&self, slot: &mut Slot, lead: i64) {
        slot.due = self.clock.wrapping_add(lead.cast_unsigned());
        self.remember(slot);
    }

    /// Returns the ticks from now to the visit of a child that is away; negative if it is past.
    pub(crate) fn lead_away(&self, slot: &Slot) -> i64 {
        let epochs = slot.next.wrapping_sub(self.epoch).cast_signed();
        if epochs == 0 && slot.due.abs_diff(self.clock) <= SPAN.unsigned_abs() {
            return slot.due.wrapping_sub(self.clock).cast_signed();
        }
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
        let is_ahead = slot.due.wrapping_sub(self.clock).cast_signed() >= 0;
        slot.next = match (is_ahead, slot.due < self.clock) {
            (true, true) => self.epoch.wrapping_add(1), // it is beyond the next wrap
            (false, false) => self.epoch.wrapping_sub(1),
            (true, false) | (false, true) => self.epoch,
        };
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
    fn file<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        self.file_inline(slots, index);
    }

    #[inline(always)]
    fn file_inline<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if self.buckets.are_vacant() {
            if !self.buckets.is_empty() {
                self.buckets.file_lone(slots);
            } else {
                let now = self.ring_lead(slots).cast_unsigned();
                self.hand = self.clock.wrapping_add(now);
                self.buckets.reset();
                if self.buckets.has_no_rows() {
                    return self.file_alone(slots, index);
                }
            }
        }
        if let Some(lead) = self.lead_to_file(slots, index) {
            self.buckets.insert(slots, index, lead);
        }
    }

    /// Files the only child of a calendar that has no memory for buckets yet.
    #[cold]
    fn file_alone<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if let Some(lead) = self.lead_to_file(slots, index) {
            self.buckets.keep_lone(slots, index, lead);
        }
    }

    /// Returns how many ticks a child's visit is ahead of the hand. A child that is late goes to the others that are.
    #[inline(always)]
    fn lead_to_file<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) -> Option<u64> {
        let slot = &mut slots[index as usize];
        let lead = slot.due.wrapping_sub(self.hand);
        if lead <= SPAN.unsigned_abs() {
            return Some(lead);
        }
        if lead.cast_signed() < 0 {
            self.file_late(slots, index);
            return None;
        }
        slot.due = self.hand.wrapping_add(SPAN.unsigned_abs());
        Some(SPAN.unsigned_abs())
    }

    /// Returns how far the ring is behind the clock: the ticks, never positive, from the clock to a tick
    /// that no child in the ring is before.
    fn ring_lead<S: Slots + ?Sized>(&self, slots: &S) -> i64 {
        if !self.buckets.is_empty() {
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
    fn file_late<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        let slot = &mut slots[index as usize];
        let lead = slot.due.wrapping_sub(self.hand).cast_signed().max(-SPAN);
        slot.due = self.hand.wrapping_add(lead.cast_unsigned());
        slot.place = Place::LATE;
        self.late.push_back(slots, index);
    }

    /// Takes a child out of the list that its place names.
    fn unlink<S: Slots + ?Sized>(&mut self, slots: &mut S, index: u32) {
        match slots[index as usize].place {
            Place::LATE => self.late.unlink(slots, index),
            Place::FRESH => {
                self.fresh.unlink(slots, index);
                self.newcomers -= 1;
            }
            _ => self.buckets.remove(slots, index),
        }
    }

    /// Takes the next child with credit from the ring.
    #[inline]
    fn take<S: Slots + ?Sized>(
        &mut self,
        slots: &mut S,
        scale: &Scale,
        work: &mut Work,
    ) -> Option<u32> {
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

    /// Takes the child whose visit is earliest, and moves the hand there.
    #[inline]
    fn pop_earliest<S: Slots + ?Sized>(&mut self, slots: &mut S, work: &mut Work) -> Option<u32> {
        let open = self.buckets.pop_open(slots);
        open.or_else(|| {
            let lone = self.buckets.pop_lone(slots, work);
            self.hand = match lone {
                Some((tick, _)) => tick,
                None => self.buckets.open_earliest(self.hand, work)?,
            };
            self.clock_forward(self.hand.wrapping_sub(self.clock).cast_signed());
            match lone {
                Some((_, index)) => Some(index),
                None => self.buckets.pop_open(slots),
            }
        })
    }

    /// Returns the ticks from the clock to the ring's next visit (negative if it is overdue), if any.
    fn earliest_lead<S: Slots + ?Sized>(&self, slots: &S, work: &mut Work) -> Option<i64> {
        let start = if self.turn != NIL && slots[self.turn as usize].credit > 0 {
            self.hand // its own tick may be later: others in its bucket, or in finer ones, come before that
        } else if !self.late.is_empty() {
            slots[self.late.head() as usize].due
        } else {
            self.buckets.earliest(slots, self.hand, work)?
        };
        Some(start.wrapping_sub(self.clock).cast_signed())
    }

    /// Returns whether the ring's next visit is due before the first newcomer came.
    fn is_ring_earlier<S: Slots + ?Sized>(&self, slots: &S, work: &mut Work) -> bool {
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
        use std::collections::BTreeSet;
        use std::vec::Vec;

        let mut seen = BTreeSet::new();
        let mut see = |index: u32| assert!(seen.insert(index), "a child is in two places");
        self.buckets
            .audit(slots, self.hand)
            .into_iter()
            .for_each(&mut see);
        for (list, place) in [(&self.late, Place::LATE), (&self.fresh, Place::FRESH)] {
            for index in crate::audit::members(list, slots) {
                assert_eq!(slots[index as usize].place, place);
                see(index);
            }
        }
        let newcomers = crate::audit::members(&self.fresh, slots).len();
        assert_eq!(self.newcomers as usize, newcomers);
        if self.turn != NIL {
            see(self.turn);
        }
        if self.guest != NIL {
            assert_eq!(slots[self.guest as usize].place, Place::GUEST);
            see(self.guest);
        }
        assert!(
            self.clock.wrapping_sub(self.hand).cast_signed() >= 0,
            "the hand is past the clock"
        );
        let in_ring = |child: &u32| slots[*child as usize].place != Place::AWAY;
        let here: Vec<u32> = children.iter().copied().filter(in_ring).collect();
        assert_eq!(
            seen,
            here.iter().copied().collect(),
            "exactly those in the ring are listed"
        );
        assert_eq!(self.runnable as usize, here.len());
        let weight = |child: &u32| u64::from(slots[*child as usize].weight.value());
        assert_eq!(self.weight, here.iter().map(weight).sum());
    }
}
