//! Barriers: a barrier opens when every job that was accepted before it has ended.
//!
//! A barrier counts: it begins with how many jobs of its scope (a key, or the whole shard) are alive, and each
//! of them that ends takes one off. Jobs that are accepted later are told apart by their order. With no
//! barriers set, which is nearly always, the end of a job costs one comparison.

use std::collections::HashMap;

/// Names a barrier, to take it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BarrierId {
    scope: Option<u32>,
    serial: u64,
}

#[derive(Debug)]
struct PendingBarrier<B> {
    serial: u64,
    /// Jobs accepted from here on do not count.
    before: u64,
    remaining: usize,
    bell: B,
}

#[derive(Debug)]
pub(crate) struct Barriers<B> {
    /// By lane, or `None` for all lanes. A lane with a barrier has jobs, so it keeps its number.
    scopes: HashMap<Option<u32>, Vec<PendingBarrier<B>>>,
    serial: u64,
}

impl<B> Barriers<B> {
    pub(crate) fn new() -> Self {
        Self {
            scopes: HashMap::new(),
            serial: 0,
        }
    }

    /// Sets a barrier behind `remaining` jobs, which is not zero.
    pub(crate) fn set(
        &mut self,
        scope: Option<u32>,
        before: u64,
        remaining: usize,
        bell: B,
    ) -> BarrierId {
        let serial = self.serial;
        self.serial += 1;
        self.scopes.entry(scope).or_default().push(PendingBarrier {
            serial,
            before,
            remaining,
            bell,
        });
        BarrierId { scope, serial }
    }

    /// Takes a barrier down.
    pub(crate) fn remove(&mut self, id: BarrierId) {
        if let Some(barriers) = self.scopes.get_mut(&id.scope) {
            barriers.retain(|barrier| barrier.serial != id.serial);
            if barriers.is_empty() {
                self.scopes.remove(&id.scope);
            }
        }
    }

    /// Takes one job off every barrier that counts it, and rings those that have none left.
    #[inline]
    pub(crate) fn ended(&mut self, lane: u32, order: u64, ring: impl FnMut(B)) {
        if !self.scopes.is_empty() {
            self.count_down(lane, order, ring);
        }
    }

    fn count_down(&mut self, lane: u32, order: u64, mut ring: impl FnMut(B)) {
        for scope in [Some(lane), None] {
            let Some(barriers) = self.scopes.get_mut(&scope) else {
                continue;
            };
            let concerned = |barrier: &mut PendingBarrier<B>| {
                if order < barrier.before {
                    barrier.remaining -= 1;
                }
                barrier.remaining == 0
            };
            barriers
                .extract_if(.., concerned)
                .for_each(|barrier| ring(barrier.bell));
            if barriers.is_empty() {
                self.scopes.remove(&scope);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.scopes.values().map(Vec::len).sum()
    }
}
