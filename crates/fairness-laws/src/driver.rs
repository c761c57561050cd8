//! The operations that a scheduler must offer to be tested.

use std::fmt::Debug;

/// A piece of work that was dispatched and is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// The key of the work.
    pub key: u32,
    /// Its place among all that was enqueued for this key, counted from zero.
    pub sequence: u64,
    /// The cost that the driver charged for it.
    pub cost: u64,
    /// Whatever the driver needs to recognise it.
    pub ticket: u64,
}

/// A scheduler under test. Keys are small numbers, and a key exists once it is first named.
pub trait Driver {
    /// Adds a piece of work for a key, which has this weight from now on.
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32);

    /// Takes the next piece of work; `None` only if no key may run.
    fn dispatch(&mut self) -> Option<Dispatched>;

    /// Reports the true cost of a piece of work.
    fn finish(&mut self, work: Dispatched, actual: u64);

    /// Keeps a key from running, whatever work it has.
    fn park(&mut self, key: u32);

    /// Lets a key run again.
    fn unpark(&mut self, key: u32);

    /// Changes the weight of a key and of all its work that waits.
    fn set_weight(&mut self, key: u32, weight: u32);

    /// Forgets a key that has no work, as eviction would.
    fn evict(&mut self, key: u32);

    /// Returns by how much the bounds of this scheduler are wider than those of one serial engine.
    fn slack(&self) -> Slack {
        Slack::default()
    }
}

/// A scheduler whose keys can live in groups that compete as one.
pub trait TreeDriver: Driver {
    /// Puts a key that has no work yet into a group of this weight.
    fn adopt(&mut self, key: u32, group: u32, group_weight: u32);
}

/// A scheduler that counts its steps.
pub trait CountingDriver: Driver {
    /// Returns how many keys the scheduler has looked at since it was made, to find the next one.
    fn steps(&self) -> u64;
}

/// The slack that a scheduler adds to the bounds of the engine, for example because it takes work in batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slack {
    /// Cost that a key may get on top, in quanta.
    pub quanta: u64,
    /// Dispatches that a newcomer may have to wait on top.
    pub dispatches: u64,
}
