//! Generators: the random worlds that the laws are checked in.

use proptest::prelude::*;

/// A small seeded generator for what happens inside a run; the seed comes from the trace.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Returns dice that always fall the same way for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next random number (SplitMix64).
    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `low` to `high`.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }

    /// Returns true once in `n` times.
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }
}

/// One key of a random world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its weight.
    pub weight: u32,
    /// Its cheapest and its dearest piece of work.
    pub costs: (u64, u64),
}

impl Tenant {
    /// Returns a key whose work always costs the same.
    #[must_use]
    pub const fn steady(weight: u32, cost: u64) -> Self {
        Self {
            weight,
            costs: (cost, cost),
        }
    }

    /// Returns the cost of its next piece of work.
    pub const fn cost(&self, dice: &mut Dice) -> u64 {
        dice.between(self.costs.0, self.costs.1)
    }
}

/// A random world: a quantum, some keys, and the seed of all that happens in it.
#[derive(Clone, Debug)]
pub struct World {
    /// The quantum of the scheduler.
    pub quantum: u64,
    /// The keys, numbered from zero.
    pub tenants: Vec<Tenant>,
    /// The seed of the run's dice.
    pub seed: u64,
}

impl World {
    /// Returns the dearest cost of a key.
    #[must_use]
    pub fn cost_max(&self, key: usize) -> u64 {
        self.tenants[key].costs.1
    }
}

/// Worlds of `keys` keys with weights from 1 to 1,000 and costs from 1 to 10,000, even and skewed.
pub fn worlds(keys: std::ops::Range<usize>) -> impl Strategy<Value = World> {
    let weight = prop_oneof![Just(1), 1u32..10, 1u32..=1000, Just(1000)];
    let cost = prop_oneof![Just(1u64), 1u64..10, 1u64..=10_000, Just(10_000)];
    let tenant = (weight, cost.clone(), cost).prop_map(|(weight, a, b)| Tenant {
        weight,
        costs: (a.min(b), a.max(b)),
    });
    let quantum = prop_oneof![Just(1u64), 1u64..100, Just(1000), 1u64..=20_000];
    (quantum, prop::collection::vec(tenant, keys), any::<u64>()).prop_map(
        |(quantum, tenants, seed)| World {
            quantum,
            tenants,
            seed,
        },
    )
}
