//! From a tenant's quantum to its weight in the engine.
//!
//! The engine knows weights from 1 to 65,536 and grants every key at most one quantum per visit: a key of
//! twice the weight is visited twice as often. What matters is the ratio to the *neutral* weight, that of a
//! tenant with the base quantum.
//!
//! As long as every quantum is a multiple of the base, the neutral weight is 1 and weights are multiples: all
//! ratios are exact, up to 65,536. The first quantum that is not a multiple makes the scale finer for
//! all tenants: the neutral weight is then chosen so that common shares are exact. For a base
//! quantum up to 65 it is a multiple of the base, so that every whole quantum has an exact weight. Beyond
//! that it is 60, which has more divisors than any other number of its size: a half, a third, a tenth of the
//! base and their multiples are exact, others are rounded to the nearest sixtieth of the base. That leaves
//! room for a thousand times the base. The finer scale costs evenness, not share: the engine's ticks are
//! fixed, so the visits of heavy keys are spaced a little less evenly.

use drr::Weight;

/// The neutral weight on the fine scale of base quanta that do not divide anything near it.
const FINE: u64 = 60;

/// The largest neutral weight; with it, a thousand times the base still has a weight.
const FINE_MAX: u64 = 65;

/// How fine quanta are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Multiples of the base only.
    Coarse,
    /// Fractions of the base too.
    Fine,
}

/// How the quanta of tenants translate to weights, given the base quantum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    base: u64,
    /// The neutral weight on the fine scale.
    neutral: Weight,
}

impl Shares {
    pub(crate) const fn new(base: u64) -> Self {
        let neutral = match base {
            0 => 1, // refused by the configuration's checks
            1..=FINE_MAX => FINE_MAX / base * base,
            _ => FINE,
        };
        let neutral = match Weight::new(neutral) {
            Some(neutral) => neutral,
            None => Weight::ONE,
        };
        Self { base, neutral }
    }

    /// Returns the scale that a quantum needs.
    pub(crate) const fn needs(&self, quantum: u64) -> Scale {
        if quantum.is_multiple_of(self.base) && quantum > 0 {
            Scale::Coarse
        } else {
            Scale::Fine
        }
    }

    /// Returns the weight of a tenant with the base quantum.
    #[inline]
    pub(crate) const fn neutral(&self, scale: Scale) -> Weight {
        match scale {
            Scale::Coarse => Weight::ONE,
            Scale::Fine => self.neutral,
        }
    }

    /// Returns the weight of a tenant with a quantum of its own, as near as there is one.
    pub(crate) fn weight(&self, quantum: u64, scale: Scale) -> Weight {
        let base = u128::from(self.base);
        let neutral = u128::from(self.neutral(scale).value());
        let value = (u128::from(quantum) * neutral + base / 2) / base;
        let value = u64::try_from(value).unwrap_or(u64::MAX).max(1);
        Weight::new(value).unwrap_or(Weight::ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(base: u64, quantum: u64, scale: Scale) -> (u64, u64) {
        let shares = Shares::new(base);
        let value = |weight: Weight| u64::from(weight.value());
        (
            value(shares.weight(quantum, scale)),
            value(shares.neutral(scale)),
        )
    }

    #[test]
    fn whole_multiples_are_exact_up_to_a_thousand_on_both_scales() {
        for base in [1, 2, 7, 10, 33, 65, 66, 100, 1000, 4096, 1 << 44] {
            for times in [1, 2, 3, 10, 999, 1000] {
                for scale in [Scale::Coarse, Scale::Fine] {
                    let (weight, neutral) = ratio(base, base * times, scale);
                    assert_eq!(weight, neutral * times, "{times} × {base}");
                }
                assert_eq!(Shares::new(base).needs(base * times), Scale::Coarse);
            }
        }
    }

    #[test]
    fn every_quantum_is_exact_beside_a_small_base() {
        for base in 1..=65 {
            for quantum in 1..=1000 {
                let (weight, neutral) = ratio(base, quantum, Scale::Fine);
                assert_eq!(weight * base, neutral * quantum);
            }
        }
    }

    #[test]
    fn common_fractions_of_a_large_base_are_exact() {
        for part in [2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60] {
            assert_eq!(Shares::new(60_000).needs(60_000 / part), Scale::Fine);
            let (weight, neutral) = ratio(60_000, 60_000 / part, Scale::Fine);
            assert_eq!(weight * part, neutral);
        }
    }

    #[test]
    fn extremes_are_capped_and_every_tenant_has_a_share() {
        for scale in [Scale::Coarse, Scale::Fine] {
            assert_eq!(ratio(1000, 0, scale).0, 1);
            assert_eq!(ratio(u64::MAX, 1, scale).0, 1);
            assert_eq!(ratio(1, u64::MAX, scale).0, 65_536);
        }
        assert_eq!(ratio(u64::MAX, u64::MAX, Scale::Fine), (60, 60));
    }
}
