//! How much of a shared pool one key may hold.
//!
//! A pool that takes everything until it is full lets one key shut out all others. A fixed part per key wastes the pool
//! when few keys are active, and is too much when many are. [`Pool::part`] moves with the free room instead: a key may
//! hold at most three times as much as is free, as in [Choudhury and Hahne, *Dynamic Queue Length Thresholds for
//! Shared-Memory Packet Switches*, 1998](https://doi.org/10.1109/90.664262). So one greedy key gets three quarters of
//! the pool, and `n` greedy keys that fill it together get `3 / (3n + 1)` of it each and leave `1 / (3n + 1)` to a key
//! that holds nothing. Nothing is counted per pool but its use, and nothing that a key holds is taken away. That has a
//! price: `n` greedy keys that come one after another and give nothing back leave `1 / 4ⁿ`.

/// A pool that several keys share, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// How much the pool holds at most.
    pub capacity: u64,
    /// How much all keys hold together.
    pub used: u64,
}

impl Pool {
    /// How often the free room fits into the part of one key.
    pub const PART_PER_FREE: u64 = 3;

    /// Returns the free room.
    #[must_use]
    pub const fn free(self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }

    /// Returns the most that one key may hold now.
    #[must_use]
    pub const fn part(self) -> u64 {
        let part = self.free().saturating_mul(Self::PART_PER_FREE);
        if part < self.capacity {
            part
        } else {
            self.capacity
        }
    }

    /// Tells whether a key that holds `held` may take `more`.
    #[must_use]
    pub const fn admits(self, held: u64, more: u64) -> bool {
        more <= self.free() && held.saturating_add(more) <= self.part()
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// Lets greedy keys take one unit each in turns, until the pool refuses all of them.
    fn fill(capacity: u64, keys: usize) -> (Pool, Vec<u64>) {
        let mut pool = Pool { capacity, used: 0 };
        let mut held = vec![0; keys];
        loop {
            let before = pool.used;
            for held in &mut held {
                if pool.admits(*held, 1) {
                    *held += 1;
                    pool.used += 1;
                }
            }
            if pool.used == before {
                return (pool, held);
            }
        }
    }

    #[test]
    fn greedy_keys_get_equal_parts_and_leave_room_for_a_newcomer() {
        for keys in [1, 2, 3, 10, 100] {
            let (pool, held) = fill(100_000, keys as usize);
            let part = 100_000 * 3 / (3 * keys + 1);
            for held in held {
                assert!(held.abs_diff(part) <= 3, "{keys} keys: {held} of {part}");
            }
            let free = 100_000 / (3 * keys + 1);
            assert!(
                pool.free().abs_diff(free) <= 3 * keys,
                "{keys} keys: {pool:?}"
            );
            assert!(pool.admits(0, pool.free()), "{keys} keys: {pool:?}");
        }
    }

    #[test]
    fn a_key_that_comes_later_gets_three_quarters_of_what_is_left() {
        let mut pool = Pool {
            capacity: 4_096,
            used: 0,
        };
        for free in [1_024, 256, 64, 16, 4] {
            let mut held = 0;
            while pool.admits(held, 1) {
                held += 1;
                pool.used += 1;
            }
            assert_eq!(pool.free(), free);
        }
    }

    #[test]
    fn the_smallest_pools_are_of_use() {
        for (capacity, most) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (8, 6)] {
            assert_eq!(fill(capacity, 1).1, [most], "capacity {capacity}");
        }
    }

    #[test]
    fn a_pool_that_was_made_smaller_than_its_use_takes_nothing() {
        let pool = Pool {
            capacity: 10,
            used: 20,
        };
        assert_eq!((pool.free(), pool.part()), (0, 0));
        assert!(!pool.admits(0, 1));
    }

    #[test]
    fn no_amount_overflows() {
        let pool = Pool {
            capacity: u64::MAX,
            used: 0,
        };
        assert!(pool.admits(0, u64::MAX));
        assert!(!pool.admits(2, u64::MAX - 1) || pool.part() == u64::MAX);
    }
}
