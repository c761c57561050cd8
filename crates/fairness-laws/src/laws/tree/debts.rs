//! What a group owes it owes as a group, whatever its members are called; and so with being new.

use proptest::prelude::*;

use super::super::{in_every, steps};
use crate::driver::TreeDriver;
use crate::trace::Dice;

/// The only key beside the group.
const RIVAL: u32 = 0;

/// The group.
const GROUP: u32 = 0;

/// How the members of a group go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// They run out of work.
    Idle,
    /// They run out of work, and the scheduler forgets them.
    Evicted,
    /// They run out of work, and the group is parked for a while.
    Parked,
}

fn exits() -> impl Strategy<Value = Leaving> {
    prop_oneof![
        Just(Leaving::Idle),
        Just(Leaving::Evicted),
        Just(Leaving::Parked)
    ]
}

/// A group beside a single key, with members that are new whenever it likes.
struct Pair<D> {
    driver: D,
    depth: u32,
    /// The youngest member, and all that may have to be forgotten.
    member: u32,
    members: Vec<u32>,
}

impl<D: TreeDriver> Pair<D> {
    /// Returns a group of this weight whose members are so many groups further down.
    fn new(mut driver: D, weight: u32, depth: u32) -> Self {
        driver.found(GROUP, None, weight);
        for group in 1..depth {
            driver.found(GROUP + group, Some(GROUP + group - 1), 1);
        }
        Self {
            driver,
            depth,
            member: RIVAL,
            members: Vec::new(),
        }
    }

    /// Brings a piece of work of a member that was never there.
    fn enqueue_as_new(&mut self, cost: u64) {
        self.member += 1;
        self.driver.adopt(self.member, GROUP + self.depth - 1);
        self.members.push(self.member);
        self.driver.enqueue(self.member, cost, 1);
    }

    /// Returns whose piece of work was next, if there was one, and its cost.
    fn dispatch(&mut self) -> Option<(Side, u64)> {
        let work = self.driver.dispatch()?;
        self.driver.finish(work, work.cost);
        let side = match work.key {
            RIVAL => Side::Rival,
            member => Side::Group(member),
        };
        Some((side, work.cost))
    }

    fn drain(&mut self) {
        while self.dispatch().is_some() {}
    }

    /// Makes the group go away; none of its members has work.
    fn leave(&mut self, exit: Leaving) {
        match exit {
            Leaving::Idle => self.members.clear(),
            Leaving::Evicted => {
                for member in self.members.drain(..) {
                    self.driver.evict(member);
                }
            }
            Leaving::Parked => self.driver.park_group(GROUP),
        }
    }

    fn come_back(&mut self, exit: Leaving) {
        match exit {
            Leaving::Idle | Leaving::Evicted => {}
            Leaving::Parked => self.driver.unpark_group(GROUP),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Rival,
    /// The group, with this member.
    Group(u32),
}

/// A member's debt is its group's: after one piece of work of a hundred quanta, the others get their hundred before the
/// group is served again, whatever the next member is called, and whether or not the scheduler has forgotten the last.
pub fn new_names_do_not_shed_the_debt_of_a_group<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let world = (1u64..=1000, 10u64..=10_000, exits(), 1u32..=3);
    in_every(150, world, |(quantum, size, exit, depth)| {
        let mut pair = Pair::new(make(quantum), 1, depth);
        // Both have been around, so that neither is a newcomer when it matters.
        for _ in 0..8 {
            pair.enqueue_as_new(quantum);
            pair.driver.enqueue(RIVAL, quantum, 1);
        }
        pair.drain();
        pair.enqueue_as_new(size * quantum);
        pair.drain();
        pair.leave(exit);
        for _ in 0..size + 10 {
            pair.driver.enqueue(RIVAL, quantum, 1);
        }
        pair.enqueue_as_new(quantum);
        pair.come_back(exit);
        let mut others = 0;
        while pair.dispatch().expect("there is work").0 == Side::Rival {
            others += 1;
        }
        // All of it but the turns that both may be ahead or behind by, and the calendar's eighth.
        let slack = pair.driver.slack().quanta.min(size);
        let due = size - size / 8 - 4_u64.min(size) - slack;
        prop_assert!(
            others >= due,
            "the group owed {size} rounds and was served after {others}"
        );
        Ok(())
    });
}

/// A group in which every piece of work has a member of its own, forgotten when it is done, gets the share of its weight
/// in every window, no less and no more.
pub fn names_that_come_and_go_get_one_share<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let cost = || prop_oneof![Just(1u64), 1u64..=2000];
    let world = (
        1u64..=2000,
        (cost(), cost()),
        (1u32..=100, 1u32..=100),
        1u32..=3,
        any::<u64>(),
    );
    in_every(100, world, |(quantum, costs, weights, depth, seed)| {
        let mut pair = Pair::new(make(quantum), weights.0, depth);
        let mut dice = Dice::new(seed);
        let mut cost = |largest: u64| dice.between(1, largest);
        for _ in 0..2 {
            pair.enqueue_as_new(cost(costs.0));
            pair.driver.enqueue(RIVAL, cost(costs.1), weights.1);
        }
        let slack = pair.driver.slack().quanta * quantum;
        let turn = |cost: u64, weight: u32| (quantum + cost + slack) as f64 / f64::from(weight);
        let bound = 8.0 / 7.0 * (turn(costs.0, weights.0) + turn(costs.1, weights.1));
        let (mut level, mut low, mut high) = (0.0, 0.0_f64, 0.0_f64);
        for _ in 0..500 {
            let (side, served) = pair.dispatch().expect("both have work");
            match side {
                Side::Rival => {
                    level -= served as f64 / f64::from(weights.1);
                    pair.driver.enqueue(RIVAL, cost(costs.1), weights.1);
                }
                Side::Group(member) => {
                    level += served as f64 / f64::from(weights.0);
                    pair.enqueue_as_new(cost(costs.0));
                    pair.driver.evict(member);
                }
            }
            (low, high) = (low.min(level), high.max(level));
            prop_assert!(
                high - low <= bound + 1e-6,
                "group and key are {} apart in some window, allowed {bound}",
                high - low
            );
        }
        Ok(())
    });
}

/// A group that brings one piece at a time, each as soon as the last is done and each under a new name, gets no more than
/// one that is always backlogged.
pub fn new_names_earn_no_second_boost<D: TreeDriver>(make: impl Fn(u64) -> D) {
    for exit in [Leaving::Idle, Leaving::Evicted] {
        for depth in 1..=3 {
            let mut pair = Pair::new(make(1000), 1, depth);
            for _ in 0..4 {
                pair.driver.enqueue(RIVAL, 1000, 1);
            }
            for _ in 0..10 {
                pair.dispatch();
                pair.driver.enqueue(RIVAL, 1000, 1);
            }
            pair.enqueue_as_new(1000);
            let mut group = 0;
            let dispatches = steps(20_000).max(500);
            for _ in 0..dispatches {
                match pair.dispatch().expect("both have work").0 {
                    Side::Rival => pair.driver.enqueue(RIVAL, 1000, 1),
                    Side::Group(_) => {
                        group += 1;
                        pair.leave(exit);
                        pair.enqueue_as_new(1000);
                    }
                }
            }
            let allowed = u64::from(dispatches / 2) + 2 + pair.driver.slack().quanta;
            assert!(
                group <= allowed,
                "{exit:?}, {depth} levels: new names got {group} of a fair {}",
                dispatches / 2
            );
        }
    }
}

/// A group that was empty for a hundred rounds gets one turn ahead of the others when it returns, as a group, however
/// many members return with it, old or new.
pub fn a_group_that_returns_is_fresh_once<D: TreeDriver>(make: impl Fn(u64) -> D) {
    let members = prop_oneof![1usize..4, 1usize..50];
    let world = (
        (1u64..=2000, 1u64..=2000),
        1u32..=100,
        exits(),
        (members, 1u32..=3),
    );
    in_every(
        100,
        world,
        |((quantum, cost), weight, exit, (members, depth))| {
            let mut pair = Pair::new(make(quantum), weight, depth);
            pair.driver.enqueue(RIVAL, cost, weight);
            for _ in 0..members {
                pair.enqueue_as_new(cost);
            }
            let old = pair.members.clone();
            pair.drain();
            pair.leave(exit);
            let turn = 1 + quantum / cost;
            pair.driver.enqueue(RIVAL, cost, weight);
            for _ in 0..100 * turn {
                pair.driver.enqueue(RIVAL, cost, weight);
                let (side, _) = pair.dispatch().expect("the rival has work");
                prop_assert_eq!(side, Side::Rival);
            }
            // Enough for all members to go on, if each of them were served ahead of the rival.
            for _ in 0..3 * turn {
                for &member in &old {
                    pair.driver.enqueue(member, cost, 1);
                }
                pair.enqueue_as_new(cost);
                pair.driver.enqueue(RIVAL, cost, weight);
            }
            pair.come_back(exit);
            let mut burst = 0;
            while let Some((Side::Group(_), served)) = pair.dispatch() {
                burst += served;
            }
            // Its boost, and the turn that it may have right after.
            let slack = pair.driver.slack().quanta * quantum;
            let allowed = 2 * (quantum + cost + slack);
            prop_assert!(
                burst <= allowed,
                "the group of {members} got {burst} in a row, allowed {allowed}"
            );
            Ok(())
        },
    );
}
