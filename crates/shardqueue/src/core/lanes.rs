//! The keys of a shard: a lane for each, and the ring that says which is next.
//!
//! Lanes are [`Keyed`] by the names of their keys. A lane is busy while its key has a job, or a submission
//! that waits for room.
//!
//! # Idle keys
//! A lane without jobs is kept for a while, because its key may come back and must find its debt. The shard
//! keeps about [`IDLE_MAX`] such lanes, and up to [`IDLE_LIMIT`] if they owe something. Keys that come once
//! thus cost nothing in the long run. The [groups](super::groups) that a lane is in are kept with it.

use std::sync::Arc;

use drr::{Keyed, Quantum, Weight};
use foldhash::fast::RandomState;

use super::groups::{GroupLoad, Names};
use super::lane::Lane;

/// Idle keys that are kept in any case.
const IDLE_MAX: usize = 4096;

/// Idle keys that are kept if they owe something.
const IDLE_LIMIT: usize = 4 * IDLE_MAX;

/// The number of lanes from which on memory is given back when all keys are idle.
const TRIM_FROM: usize = 8 * IDLE_MAX;

/// Lanes by the names of their keys.
pub(crate) type Lanes = Keyed<Arc<str>, Lane, RandomState, GroupLoad>;

pub(crate) fn new(quantum: Quantum, hasher: RandomState) -> Lanes {
    Keyed::new(quantum, hasher)
        .keep_idle(IDLE_MAX)
        .keep_debts(IDLE_LIMIT)
}

/// Returns the lane of a key, which gets one if it has none, and whether it is new.
#[inline]
pub(crate) fn find_or_add(lanes: &mut Lanes, names: &Names, key: &str) -> (u32, bool) {
    let weight = if names.has_weights() {
        if let Some(lane) = lanes.find(key) {
            return (lane, false);
        }
        names.weight(key)
    } else {
        Weight::ONE
    };
    let mut is_new = false;
    let new = || {
        is_new = true;
        (Arc::from(key), Lane::new())
    };
    let lane = lanes.find_or_insert_within(key, weight, names, new);
    (lane, is_new)
}

/// Lets a lane be forgotten if its key has neither a job nor a submission that waits.
///
/// The number stays valid for the step under way: of [`IDLE_MAX`] idle lanes, those used last go last.
#[inline]
pub(crate) fn release(lanes: &mut Lanes, lane: u32) {
    if lanes[lane].is_idle() {
        lanes.set_idle(lane);
        lanes.tidy();
    }
}

/// Gives back the memory of many keys when none of them has jobs left or waits for room.
///
/// The shard forgets the debts of these keys, too: there is no other key that they owe anything to.
pub(crate) fn trim(lanes: &mut Lanes) {
    if lanes.extent() >= TRIM_FROM && lanes.busy() == 0 {
        lanes.clear();
    }
}
