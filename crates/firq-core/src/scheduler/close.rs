//! Closing.
//!
//! Once capacity is closed, nothing is reserved any more. The number of queued tasks can only fall, and zero is
//! final: a drain has ended exactly when capacity is closed *and* empty, which is one look at one word. The
//! caller that makes it so wakes all consumers: the closer, or the last one to release room. Phase and capacity
//! are set before any consumer is woken.

use std::hash::Hash;
use std::task::Waker;

use super::{Phase, Scheduler};
use crate::outcome::{CloseMode, DropReason};
use crate::shard::CHUNK;
use crate::sync::Ordering;

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Closes at once, as [`close_immediate`](Self::close_immediate) does.
    pub fn close(&self) {
        self.close_immediate();
    }

    /// Takes no more tasks, drops the queued ones, and wakes all waiting callers with `Closed`.
    ///
    /// The dropped tasks go to `on_drop`, with [`DropReason::Closed`].
    pub fn close_immediate(&self) {
        self.enter_phase(Phase::Closed);
        self.consumers.call_all();
        for shard in 0..self.hints.len() as u32 {
            self.discard_all(shard);
        }
    }

    /// Takes no more tasks and hands out the queued ones; after that, all callers get `Closed`.
    ///
    /// Returns at once. Paused tenants run again, so that their queued tasks are done.
    pub fn close_drain(&self) {
        self.enter_phase(Phase::Draining);
        for shard in 0..self.hints.len() as u32 {
            self.resume_all(shard);
        }
        if self.capacity.is_drained() {
            self.consumers.call_all();
        }
    }

    /// Closes in one way or the other. A scheduler that drains can still be closed at once.
    pub fn close_with_mode(&self, mode: CloseMode) {
        match mode {
            CloseMode::Immediate => self.close_immediate(),
            CloseMode::Drain => self.close_drain(),
        }
    }

    /// Returns whether the scheduler takes no more tasks.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.capacity.is_closed()
    }

    fn enter_phase(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        let wakers = self.topology.in_order(|| self.capacity.close());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Drops everything that a shard has queued, a bounded number of tasks at a time.
    fn discard_all(&self, shard: u32) {
        let mut from = Some(0);
        while let Some(start) = from {
            let mut effects = self.effects();
            from = self.topology.with_both(shard, |ring, shard| {
                shard.is_closed = true;
                shard.discard_from(ring, start, CHUNK, DropReason::Closed, &mut effects)
            });
            self.apply(effects);
            self.topology.make_way(Some(shard));
        }
    }

    /// Lets all tenants of a shard run, a bounded number of lanes at a time.
    fn resume_all(&self, shard: u32) {
        let mut from = Some(0);
        while let Some(start) = from {
            let mut effects = self.effects();
            from = self.topology.with_both(shard, |ring, shard| {
                let (lanes, next) = shard.lanes_from(start, CHUNK);
                for lane in lanes {
                    shard.set_paused(ring, lane, false, &mut effects);
                }
                next
            });
            self.apply(effects);
        }
    }
}
