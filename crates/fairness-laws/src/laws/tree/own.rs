//! A group that has work of its own name beside its members.

use proptest::prelude::*;

use super::super::in_every;
use crate::driver::TreeDriver;
use crate::trace::Dice;

/// The key beside the group, the key of the group's own work, and the first of its members.
const RIVAL: u32 = 0;
const OWN: u32 = 1;
const FIRST: u32 = 2;

/// How many members come and go.
const MEMBERS: u32 = 4;

/// One share, whatever is in the group: its own work alone, with members, or members alone; in every window, before, while
/// and after the members come and go. Among the members, its own work is one more of weight 1.
pub fn a_group_with_work_of_its_own_gets_one_share<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let world = (
        1u64..=2000,
        (1u64..=2000, 1u64..=2000),
        (1u32..=100, 1u32..=100),
        (1u32..=3, any::<u64>()),
    );
    in_every(150, world, |(quantum, costs, weights, (depth, seed))| {
        let mut house = House::new(&make, (quantum, depth, seed), costs, weights);
        let bound = 8.0 / 7.0 * (house.turn(costs.0, weights.0) + house.turn(costs.1, weights.1));
        let mut range = Range::default();
        let mut inside = Range::default();
        for _ in 0..600 {
            house.come_and_go();
            let before = house.both_stay();
            let (key, cost) = house.dispatch();
            let level = match key {
                RIVAL => -(cost as f64) / f64::from(weights.1),
                _ => cost as f64 / f64::from(weights.0),
            };
            range.add(level);
            prop_assert!(
                range.width() <= bound + 1e-6,
                "group and key are {} apart in some window, allowed {bound}",
                range.width()
            );
            // The first member has weight 1 as the group's own work has.
            if !before || !house.both_stay() {
                inside = Range::default();
            } else if key == OWN || key == FIRST {
                let side = if key == OWN { 1.0 } else { -1.0 };
                inside.add(side * cost as f64);
                // A quantum more, for one of them that joined.
                let bound = 16.0 / 7.0 * house.turn(costs.0, 1) + quantum as f64;
                prop_assert!(
                    inside.width() <= bound + 1e-6,
                    "own work and a member are {} apart in some window, allowed {bound}",
                    inside.width()
                );
            }
        }
        Ok(())
    });
}

/// The range that a difference has taken.
#[derive(Default)]
struct Range {
    now: f64,
    low: f64,
    high: f64,
}

impl Range {
    fn add(&mut self, change: f64) {
        self.now += change;
        self.low = self.low.min(self.now);
        self.high = self.high.max(self.now);
    }

    fn width(&self) -> f64 {
        self.high - self.low
    }
}

/// A group with work of its own, beside a key.
struct House<D> {
    driver: D,
    dice: Dice,
    quantum: u64,
    costs: (u64, u64),
    weights: (u32, u32),
    /// How much waits for the group's own key and for each member, and who keeps bringing more.
    waiting: [u32; FIRST as usize + MEMBERS as usize],
    stays: [bool; FIRST as usize + MEMBERS as usize],
}

impl<D: TreeDriver> House<D> {
    fn new(
        make: &impl Fn(u64) -> D,
        (quantum, depth, seed): (u64, u32, u64),
        costs: (u64, u64),
        weights: (u32, u32),
    ) -> Self {
        let mut driver = make(quantum);
        // The group and the key are in `depth - 1` others: what holds at the top holds below.
        for group in 1..depth {
            driver.found(group, (group > 1).then(|| group - 1), 1);
        }
        let above = (depth > 1).then(|| depth - 1);
        driver.found(0, above, weights.0);
        if let Some(above) = above {
            driver.adopt(RIVAL, above);
        }
        driver.own(OWN, 0);
        for member in FIRST..FIRST + MEMBERS {
            driver.adopt(member, 0);
        }
        let mut house = Self {
            driver,
            dice: Dice::new(seed),
            quantum,
            costs,
            weights,
            waiting: Default::default(),
            stays: Default::default(),
        };
        for key in [RIVAL, OWN] {
            house.stays[key as usize] = true;
            house.enqueue(key);
            house.enqueue(key);
        }
        house
    }

    fn enqueue(&mut self, key: u32) {
        let (largest, weight) = match key {
            RIVAL => (self.costs.1, self.weights.1),
            OWN => (self.costs.0, self.weights.0),
            FIRST => (self.costs.0, 1),
            member => (self.costs.0, member),
        };
        let cost = self.dice.between(1, largest);
        self.driver.enqueue(key, cost, weight);
        self.waiting[key as usize] += 1;
    }

    /// Lets one of the group come, or go as soon as its work is done. One of them at least stays.
    fn come_and_go(&mut self) {
        if !self.dice.one_in(15) {
            return;
        }
        let key = self
            .dice
            .between(u64::from(OWN), u64::from(FIRST + MEMBERS - 1)) as u32;
        let at = key as usize;
        self.stays[at] ^= true;
        if self.stays[OWN as usize..].iter().all(|stays| !stays) {
            self.stays[at] = true;
        }
        if self.stays[at] && self.waiting[at] < 2 {
            self.enqueue(key);
            self.enqueue(key);
        }
    }

    /// Returns whether the group's own work and that of its first member are both there to stay.
    fn both_stay(&self) -> bool {
        [OWN, FIRST]
            .iter()
            .all(|&key| self.stays[key as usize] && self.waiting[key as usize] > 0)
    }

    fn dispatch(&mut self) -> (u32, u64) {
        let work = self.driver.dispatch().expect("both have work");
        let at = work.key as usize;
        self.waiting[at] -= 1;
        if self.stays[at] {
            self.enqueue(work.key);
        }
        self.driver.finish(work, work.cost);
        if self.waiting[at] == 0 {
            self.driver.evict(work.key);
        }
        (work.key, work.cost)
    }

    fn turn(&self, cost: u64, weight: u32) -> f64 {
        let slack = self.driver.slack().quanta * self.quantum;
        (self.quantum + cost + slack) as f64 / f64::from(weight)
    }
}
