//! A world being played on a scheduler, with the books kept beside it.

use crate::driver::{Dispatched, Driver};
use crate::trace::{Dice, World};

/// A scheduler in a world, with a record of its history for the laws.
#[derive(Debug)]
pub(crate) struct Run<D> {
    pub(crate) world: World,
    pub(crate) driver: D,
    pub(crate) dice: Dice,
    /// Service each key has got.
    pub(crate) served: Vec<u64>,
    /// Pieces of work that each key has waiting, and how many it has ever had.
    pub(crate) waiting: Vec<u64>,
    enqueued: Vec<u64>,
    dispatched: Vec<u64>,
}

impl<D: Driver> Run<D> {
    pub(crate) fn new(make: &impl Fn(u64) -> D, world: World) -> Self {
        let keys = world.tenants.len();
        Self {
            driver: make(world.quantum),
            dice: Dice::new(world.seed),
            served: vec![0; keys],
            waiting: vec![0; keys],
            enqueued: vec![0; keys],
            dispatched: vec![0; keys],
            world,
        }
    }

    pub(crate) fn enqueue(&mut self, key: usize) {
        let cost = self.world.tenants[key].cost(&mut self.dice);
        self.enqueue_cost(key, cost);
    }

    pub(crate) fn enqueue_cost(&mut self, key: usize, cost: u64) {
        self.driver
            .enqueue(key as u32, cost, self.world.tenants[key].weight);
        self.waiting[key] += 1;
        self.enqueued[key] += 1;
    }

    /// Gives every key enough work to stay backlogged for a while.
    pub(crate) fn fill(&mut self) {
        for key in 0..self.world.tenants.len() {
            while self.waiting[key] < 4 {
                self.enqueue(key);
            }
        }
    }

    /// Dispatches one piece of work and finishes it at its declared cost.
    pub(crate) fn dispatch(&mut self) -> Option<Dispatched> {
        let work = self.dispatch_only()?;
        self.driver.finish(work, work.cost);
        self.served[work.key as usize] += work.cost;
        Some(work)
    }

    /// Dispatches one piece of work; each key's work comes out in the order it went in.
    pub(crate) fn dispatch_only(&mut self) -> Option<Dispatched> {
        let work = self.driver.dispatch()?;
        let key = work.key as usize;
        assert!(
            self.waiting[key] > 0,
            "{work:?} was dispatched, but its key has no work"
        );
        assert_eq!(
            work.sequence, self.dispatched[key],
            "a key's work comes out in the order it went in"
        );
        self.waiting[key] -= 1;
        self.dispatched[key] += 1;
        Some(work)
    }

    /// Dispatches one piece of work with every key backlogged before and after.
    pub(crate) fn dispatch_backlogged(&mut self) -> Dispatched {
        let work = self.dispatch().expect("every key has work");
        self.enqueue(work.key as usize);
        work
    }

    /// Returns the most a key gets in one turn: a quantum, and one piece of work that overshoots it.
    pub(crate) fn turn_max(&self, key: usize) -> u64 {
        let slack = self.driver.slack().quanta * self.world.quantum;
        self.world.quantum + self.world.cost_max(key) + slack
    }
}
