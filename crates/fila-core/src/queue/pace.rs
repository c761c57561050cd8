//! Measures the deliveries of each lane in the last minute, and its fair share.
//!
//! Time is cut into slots of ten seconds, and six of them are kept: the present one and the five before it. A delivery
//! adds its cost to the present slot of its queue and of its lane.
//!
//! The *fair share* of a lane is its service by a fluid server: of each delivery, its weight divided by the weights of all
//! lanes in the ring. The queue does not add that up lane by lane. It has a *virtual time* that each delivery advances by
//! `cost / Σ weights`. A lane of weight `w` that was in the ring while virtual time went from `a` to `b` has the fair share
//! `w · (b − a)`. So a lane records the virtual time when it joins, and settles when it leaves, when its weight changes, or
//! when it is explained. (Weighted fair queueing uses the same idea: [Parekh and Gallager, *A Generalized Processor Sharing
//! Approach to Flow Control*, 1993](https://doi.org/10.1109/90.234856).)
//!
//! # Levels
//! Every group has a virtual time of its own: that of its members. A delivery advances the time of each group above its
//! lane, and that of the queue. So the fair share of a member is its part of what its group got, and a group has a share
//! among its siblings as a lane has.
//!
//! # What always holds
//! - Virtual time is exact but for its last bit: the remainder of a division is carried on.
//! - The sum of the fair shares of a level is the cost delivered there while any of its members was in the ring.
//! - A delivery takes constant time per level for any number of lanes, and allocates nothing. A lane takes 80 bytes for
//!   this, and a group 152.

use std::time::Duration;

use drr::{Cost, Weight};
use fila_store::Timestamp;

/// The number of slots, and the length of one in milliseconds.
const SLOTS: u32 = 6;
const SLOT: u64 = 10_000;

/// Fractions of virtual time, as a power of two: of a thousandth of a message for a weight of one.
const FRACTION: u32 = 16;

/// The unit of a lane's counts, as a power of two: 8 thousandths of a message. A slot then holds 34 million messages.
const UNIT: u32 = 3;

/// The deliveries of a queue, and their rate.
#[derive(Debug)]
pub(super) struct Pace {
    /// When counting began.
    since: Timestamp,
    slots: [Slot; SLOTS as usize],
    /// The time of the lanes and groups without a parent.
    pub(super) time: LevelTime,
    /// The largest cost of a delivery so far.
    largest: Cost,
}

/// The deliveries of a queue in ten seconds.
#[derive(Clone, Copy, Debug)]
struct Slot {
    cost: u64,
    deliveries: u64,
    /// The time of the first one.
    first: Timestamp,
}

/// The virtual time of one level: of the lanes and groups without a parent, or of the members of one group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelTime {
    /// The number of the present slot, counted from 1970; the numbers last until the year 3300.
    slot: u32,
    /// Wraps.
    now: u64,
    /// The remainder of the last division, for a ring of this weight.
    carry: u64,
    /// The virtual time at which each slot began.
    began: [u64; SLOTS as usize],
}

impl LevelTime {
    /// Moves on by a delivery on this level, whose members in the ring have this weight together.
    pub(super) fn charge(&mut self, cost: Cost, weight: u64) {
        let weight = weight.max(1);
        // If the weight has changed since, the carried remainder is slightly wrong.
        let moved = (cost.value() << FRACTION).saturating_add(self.carry % weight);
        self.now = self.now.wrapping_add(moved / weight);
        self.carry = moved % weight;
    }

    /// Moves on to the slot of the queue.
    pub(super) fn advance(&mut self, slot: u32) {
        let passed = slot.saturating_sub(self.slot);
        for number in 0..passed.min(SLOTS) {
            self.began[place(slot - number)] = self.now;
        }
        self.slot = self.slot.max(slot);
    }
}

impl Pace {
    pub(super) fn new(now: Timestamp) -> Self {
        let nothing = Slot {
            cost: 0,
            deliveries: 0,
            first: now,
        };
        Self {
            since: now,
            slots: [nothing; SLOTS as usize],
            time: LevelTime {
                slot: slot_at(now),
                ..LevelTime::default()
            },
            largest: Cost::ONE,
        }
    }

    /// Counts a delivery. The lanes and groups in the ring that have no parent have this weight together.
    pub(super) fn charge(&mut self, now: Timestamp, cost: Cost, weight: u64) {
        self.advance(now);
        let slot = &mut self.slots[place(self.time.slot)];
        if slot.deliveries == 0 {
            slot.first = now;
        }
        slot.deliveries += 1;
        slot.cost += cost.value();
        self.time.charge(cost, weight);
        self.largest = self.largest.max(cost);
    }

    /// Moves on to the slot of this moment.
    pub(super) fn advance(&mut self, now: Timestamp) {
        let slot = slot_at(now);
        let passed = slot.saturating_sub(self.time.slot);
        for number in 0..passed.min(SLOTS) {
            self.slots[place(slot - number)] = Slot {
                cost: 0,
                deliveries: 0,
                first: now,
            };
        }
        self.time.advance(slot);
    }

    /// Returns the number of the present slot.
    pub(super) const fn slot(&self) -> u32 {
        self.time.slot
    }

    /// Returns the time that the slots cover.
    pub(super) fn reach(&self, now: Timestamp) -> Duration {
        let first = u64::from((self.time.slot + 1).saturating_sub(SLOTS)) * SLOT;
        now.since(Timestamp::from_millis(first).max(self.since))
    }

    /// Returns the cost delivered in that time.
    pub(super) fn total(&self) -> u64 {
        self.slots.iter().map(|slot| slot.cost).sum()
    }

    pub(super) fn deliveries(&self) -> u64 {
        self.slots.iter().map(|slot| slot.deliveries).sum()
    }

    pub(super) fn largest(&self) -> Cost {
        self.largest
    }

    /// Returns the mean time between two deliveries: in this slot and the one before if they have deliveries, or else in all
    /// slots. `None` if there was only one delivery.
    pub(super) fn interval(&self, now: Timestamp) -> Option<Duration> {
        self.interval_over(now, 2)
            .or_else(|| self.interval_over(now, SLOTS))
    }

    fn interval_over(&self, now: Timestamp, slots: u32) -> Option<Duration> {
        let slots = (0..slots).map(|back| {
            let slot = self.time.slot.saturating_sub(back);
            &self.slots[place(slot)]
        });
        let slots: Vec<&Slot> = slots.filter(|slot| slot.deliveries > 0).collect();
        let first = slots.iter().map(|slot| slot.first).min()?;
        let deliveries: u64 = slots.iter().map(|slot| slot.deliveries).sum();
        // Timestamps have a resolution of a millisecond.
        let elapsed = now.since(first).max(Duration::from_millis(1));
        // The first delivery is at the start of the time, and the last one, on average, half an interval before its end.
        let interval = elapsed.as_secs_f64() / (deliveries as f64 - 0.5);
        (deliveries > 1).then(|| Duration::from_secs_f64(interval))
    }
}

/// The deliveries and the fair share of one lane or group.
#[derive(Clone, Debug, Default)]
pub(super) struct Share {
    /// The last slot of the queue to which it has added something.
    slot: u32,
    /// In units.
    served: [u32; SLOTS as usize],
    ideal: [u32; SLOTS as usize],
    /// The part below one unit, in thousandths and in their fractions.
    served_rest: u32,
    ideal_rest: u32,
    /// The virtual time of the last settlement, or of joining the ring.
    settled: u64,
    /// The virtual time of its last delivery, if there was one.
    delivered: u64,
}

impl Share {
    /// Counts a delivery, by which the time of its level has moved on already.
    pub(super) fn charge(&mut self, time: &LevelTime, cost: Cost) {
        self.advance(time);
        let cost = cost.value() + u64::from(self.served_rest);
        let served = &mut self.served[place(self.slot)];
        *served = served.saturating_add(u32::try_from(cost >> UNIT).unwrap_or(u32::MAX));
        self.served_rest = (cost & ((1 << UNIT) - 1)) as u32;
        self.delivered = time.now;
    }

    /// Begins to count the fair share of a lane or group that has joined the ring.
    pub(super) fn join(&mut self, time: &LevelTime) {
        self.settled = time.now;
    }

    /// Goes on in the time of another level, as if the last delivery were of now: the old level's time means nothing there.
    pub(super) fn restart(&mut self, time: &LevelTime) {
        self.join(time);
        self.delivered = time.now;
    }

    /// Counts the fair share, up to now, of a lane or group in the ring.
    pub(super) fn settle(&mut self, time: &LevelTime, weight: Weight) {
        self.advance(time);
        // Ages in virtual time; only the last minute counts.
        let ago = |moment: u64| time.now.wrapping_sub(moment);
        let mut end = 0;
        for back in 0..SLOTS {
            let number = place(self.slot.saturating_sub(back));
            let began = ago(time.began[number]);
            let length = began.min(ago(self.settled)).saturating_sub(end);
            end = began;
            let earned = u128::from(length) * u128::from(weight.value());
            let earned = earned + u128::from(self.ideal_rest);
            let units = u32::try_from(earned >> (FRACTION + UNIT)).unwrap_or(u32::MAX);
            self.ideal[number] = self.ideal[number].saturating_add(units);
            self.ideal_rest = (earned & ((1 << (FRACTION + UNIT)) - 1)) as u32;
        }
        self.settled = time.now;
    }

    /// Forgets slots that are more than a minute old.
    pub(super) fn advance(&mut self, time: &LevelTime) {
        let passed = time.slot.saturating_sub(self.slot).min(SLOTS);
        for number in 0..passed {
            let number = place(time.slot - number);
            self.served[number] = 0;
            self.ideal[number] = 0;
        }
        self.slot = time.slot;
    }

    /// Returns the cost delivered to it, in thousandths of a message.
    pub(super) fn served(&self) -> u64 {
        let units: u64 = self.served.iter().map(|&units| u64::from(units)).sum();
        (units << UNIT) + u64::from(self.served_rest)
    }

    /// Returns what is left of that at the present moment of the pace. Nothing changes.
    pub(super) fn served_at(&self, pace: &Pace) -> u64 {
        let passed = (pace.slot() - self.slot).min(SLOTS);
        let left = (passed..SLOTS).map(|back| self.served[place(pace.slot().saturating_sub(back))]);
        left.map(|units| u64::from(units) << UNIT).sum()
    }

    /// Returns its fair share.
    pub(super) fn ideal(&self) -> u64 {
        let units: u64 = self.ideal.iter().map(|&units| u64::from(units)).sum();
        (units << UNIT) + u64::from(self.ideal_rest >> FRACTION)
    }

    /// Returns the virtual time since its last delivery, in thousandths of a message for a weight of one. The value is
    /// meaningless if there was no delivery.
    pub(super) fn since_delivery(&self, time: &LevelTime) -> u64 {
        time.now.wrapping_sub(self.delivered) >> FRACTION
    }
}

/// The messages that came to a lane in the last half minute to minute.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// The number of the last half minute in which one came.
    half: u32,
    /// How many came then, and in the half minute before.
    latest: u32,
    before: u32,
}

/// Half a minute, in slots.
const HALF: u32 = SLOTS / 2;

impl Arrivals {
    /// Counts a message.
    #[inline]
    pub(super) fn count(&mut self, now: Timestamp) {
        let half = slot_at(now) / HALF;
        if half != self.half {
            self.before = if half == self.half + 1 {
                self.latest
            } else {
                0
            };
            self.latest = 0;
            self.half = half;
        }
        self.latest = self.latest.saturating_add(1);
    }

    /// Returns how many come in a second: the mean of the last half minute to minute, also in a queue that is younger. A
    /// backlog that has just been sent is then not taken for the beginning of an endless flood.
    pub(super) fn rate(&self, now: Timestamp) -> f64 {
        let half = slot_at(now) / HALF;
        let count = match half.saturating_sub(self.half) {
            0 => u64::from(self.latest) + u64::from(self.before),
            1 => self.latest.into(),
            _ => 0,
        };
        let first = u64::from(half.saturating_sub(1) * HALF) * SLOT;
        let covered = now.since(Timestamp::from_millis(first));
        count as f64 / covered.as_secs_f64().max(1.0)
    }
}

/// Returns the number of the slot of a moment.
fn slot_at(moment: Timestamp) -> u32 {
    u32::try_from(moment.as_millis() / SLOT).unwrap_or(u32::MAX)
}

/// Returns where the slot of this number is kept.
const fn place(slot: u32) -> usize {
    (slot % SLOTS) as usize
}

const _: () = assert!(size_of::<Share>() == 80, "there may be a million of them");
const _: () = assert!(
    size_of::<Arrivals>() == 12,
    "there may be a million of them"
);
const _: () = assert!(
    size_of::<LevelTime>() == 72,
    "there may be a million of them"
);

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000_000;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(START + millis)
    }

    fn weight(value: u64) -> Weight {
        Weight::new(value).unwrap()
    }

    #[test]
    fn the_fair_shares_sum_up_to_the_delivered_cost() {
        let mut pace = Pace::new(at(0));
        let weights = [1, 3, 7, 1000].map(weight);
        let mut shares = weights.map(|_| Share::default());
        shares.iter_mut().for_each(|share| share.join(&pace.time));
        for millis in 0..50_000 {
            pace.charge(at(millis), Cost::new(1 + millis % 977), 1011);
        }
        for (share, weight) in shares.iter_mut().zip(weights) {
            share.settle(&pace.time, weight);
            let ideal = pace.total() * u64::from(weight.value()) / 1011;
            assert!(share.ideal().abs_diff(ideal) <= 16, "{weight:?}");
        }
    }

    #[test]
    fn only_deliveries_while_a_lane_is_in_the_ring_count_for_its_share() {
        let mut pace = Pace::new(at(0));
        let mut share = Share::default();
        pace.charge(at(0), Cost::new(8000), 1);
        share.join(&pace.time);
        pace.charge(at(1), Cost::new(8000), 2);
        share.settle(&pace.time, weight(1));
        assert_eq!(share.ideal(), 4000);
        pace.charge(at(2), Cost::new(8000), 1);
        share.join(&pace.time);
        pace.charge(at(3), Cost::new(8000), 4);
        share.settle(&pace.time, weight(3));
        assert_eq!(share.ideal(), 4000 + 6000);
    }

    #[test]
    fn a_slot_is_forgotten_after_a_minute_and_not_before() {
        let mut pace = Pace::new(at(0));
        let mut share = Share::default();
        share.join(&pace.time);
        for slot in 0..6 {
            pace.charge(at(slot * 10_000), Cost::new(16), 2);
            share.charge(&pace.time, Cost::new(16));
        }
        share.settle(&pace.time, weight(1));
        assert_eq!((pace.total(), pace.deliveries()), (96, 6));
        assert_eq!((share.served(), share.ideal()), (96, 48));
        assert_eq!(pace.reach(at(55_000)), Duration::from_secs(55));
        pace.advance(at(60_000));
        share.advance(&pace.time);
        assert_eq!((pace.total(), pace.deliveries()), (80, 5));
        assert_eq!((share.served(), share.ideal()), (80, 40));
        assert_eq!(pace.reach(at(63_000)), Duration::from_secs(53));
        pace.advance(at(1_000_000));
        share.advance(&pace.time);
        assert_eq!((pace.total(), pace.deliveries()), (0, 0));
        assert_eq!((share.served(), share.ideal()), (0, 0));
        assert_eq!(pace.interval(at(1_000_000)), None);
    }

    #[test]
    fn a_lane_that_is_looked_at_once_a_minute_is_settled_slot_by_slot() {
        let mut pace = Pace::new(at(0));
        let mut share = Share::default();
        share.join(&pace.time);
        for second in 0..60 {
            pace.charge(at(second * 1000), Cost::new(800), 10);
        }
        share.settle(&pace.time, weight(5));
        assert_eq!(share.ideal(), 24_000);
        // Ten seconds go in every slot, not all in the last one.
        for slots in 1..=6 {
            pace.advance(at(59_999 + slots * 10_000));
            share.advance(&pace.time);
            assert_eq!(share.ideal(), 24_000 - slots * 4000);
        }
    }

    #[test]
    fn costs_below_a_unit_are_not_lost() {
        let mut pace = Pace::new(at(0));
        let mut share = Share::default();
        share.join(&pace.time);
        for _ in 0..1000 {
            pace.charge(at(0), Cost::new(3), 1_000_000);
            share.charge(&pace.time, Cost::new(3));
        }
        assert_eq!(share.served(), 3000);
        for _ in 0..1000 {
            pace.charge(at(0), Cost::new(999), 1_000_000);
            share.settle(&pace.time, weight(65_536));
        }
        let ideal = 1_002_000 * 65_536 / 1_000_000;
        assert!(share.ideal().abs_diff(ideal) <= 8, "{}", share.ideal());
    }

    #[test]
    fn virtual_time_may_wrap() {
        let mut pace = Pace::new(at(0));
        pace.time.now = u64::MAX - 5;
        pace.advance(at(10_000));
        let mut share = Share::default();
        share.join(&pace.time);
        pace.charge(at(10_000), Cost::new(800), 2);
        share.settle(&pace.time, weight(1));
        assert_eq!(share.ideal(), 400);
        share.charge(&pace.time, Cost::ONE);
        pace.charge(at(10_000), Cost::new(1000), 2);
        assert_eq!(share.since_delivery(&pace.time), 500);
    }

    #[test]
    fn the_interval_is_that_of_the_last_ten_to_twenty_seconds_if_there_was_any() {
        let mut pace = Pace::new(at(0));
        assert_eq!(pace.interval(at(0)), None);
        pace.charge(at(0), Cost::ONE, 1);
        assert_eq!(pace.interval(at(500)), None, "one is not enough");
        pace.charge(at(0), Cost::ONE, 1);
        let interval = pace.interval(at(0)).unwrap();
        assert!((600..700).contains(&interval.as_micros()), "{interval:?}");
        for millis in (0..30_000).step_by(1000) {
            pace.charge(at(millis), Cost::ONE, 1);
        }
        for millis in (30_000..50_000).step_by(10) {
            pace.charge(at(millis), Cost::ONE, 1);
        }
        let fast = pace.interval(at(50_000 - 1)).unwrap();
        assert!(fast.as_micros().abs_diff(10_000) < 50, "{fast:?}");
        // No delivery for a while: the interval of all slots counts.
        let now = at(75_000);
        pace.advance(now);
        let slow = pace.interval(now).unwrap();
        assert!((20..30).contains(&slow.as_millis()), "{slow:?}");
    }

    #[test]
    fn a_share_that_moves_to_another_level_counts_from_then_on() {
        let mut pace = Pace::new(at(0));
        let mut share = Share::default();
        share.join(&pace.time);
        for _ in 0..10 {
            pace.charge(at(0), Cost::new(800), 1);
            share.charge(&pace.time, Cost::new(800));
        }
        let mut level = LevelTime::default();
        level.advance(pace.slot());
        share.restart(&level);
        assert_eq!(share.since_delivery(&level), 0);
        level.charge(Cost::new(1000), 2);
        assert_eq!(share.since_delivery(&level), 500);
        share.settle(&level, weight(1));
        assert_eq!(share.ideal(), 500);
    }

    #[test]
    fn the_largest_cost_is_kept() {
        let mut pace = Pace::new(at(0));
        pace.charge(at(0), Cost::new(70), 1);
        pace.charge(at(0), Cost::new(7), 1);
        assert_eq!(pace.largest(), Cost::new(70));
    }
}
