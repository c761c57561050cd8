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
///
/// A law names a group before it names what is in it. Whether the scheduler makes the group then, or with its first
/// work, is its own affair: where keys are paths, [`Paths`](crate::Paths) keeps the names.
pub trait TreeDriver: Driver {
    /// Names a group of this weight, in its parent or at the top.
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32);

    /// Puts a key that had no work yet into a group.
    fn adopt(&mut self, key: u32, group: u32);

    /// Gives a key that had no work yet the name of a group: its work is the group's own, beside that of the members.
    ///
    /// The weight with which it is enqueued is the group's among its siblings. Laws neither park such a key nor change
    /// its weight: that would mean the whole group.
    fn own(&mut self, key: u32, group: u32);

    /// Keeps all that is in a group from running.
    fn park_group(&mut self, group: u32);

    /// Lets a group run again.
    fn unpark_group(&mut self, group: u32);

    /// Changes the weight of a group among its siblings.
    fn set_group_weight(&mut self, group: u32, weight: u32);
}

/// A scheduler that can limit how much of a group's work runs at a time.
pub trait CapDriver: TreeDriver {
    /// Lets at most so many pieces of work of a group be dispatched and not finished, with `None` any number.
    fn set_group_cap(&mut self, group: u32, in_flight: Option<u32>);
}

/// A scheduler that can say how long a key waits at most.
pub trait BoundDriver: TreeDriver {
    /// Returns how much cost others get at most before this key is served, where no piece of work costs more than
    /// `largest`, no key joins, and no weight changes.
    fn bound(&mut self, key: u32, largest: u64) -> u64;
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
