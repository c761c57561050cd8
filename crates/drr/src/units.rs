//! Weights, costs and the quantum, and the fixed-point scale that they are counted in.
//!
//! A round is divided into [`TICKS_PER_ROUND`] ticks. In one tick a key earns `weight × grain` of credit,
//! where `grain` is the quantum's share of a tick. Costs are shifted left so that this share is a whole
//! number: all arithmetic on credit is exact integer arithmetic, and nothing drifts.

use core::fmt;
use core::num::NonZeroU64;

/// Ticks in a round, as a power of two.
const ROUND_BITS: u32 = 16;

/// Ticks in a round: the time in which a key of weight one earns one quantum.
pub(crate) const TICKS_PER_ROUND: u64 = 1 << ROUND_BITS;

/// The deepest debt the engine remembers, in scaled cost; anything deeper counts as this.
pub(crate) const CREDIT_FLOOR: i64 = -(1 << 61);

/// A key's share relative to its siblings. Zero would mean starvation, so it cannot be zero.
///
/// ```
/// use drr::Weight;
/// assert_eq!(Weight::new(3).unwrap().value(), 3);
/// assert_eq!(Weight::new(0), None);
/// assert_eq!(Weight::new(u64::MAX), Some(Weight::MAX));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight {
    /// One less than the weight, which makes zero impossible and 65,536 fit.
    less_one: u16,
}

impl Weight {
    /// The default weight.
    pub const ONE: Self = Self { less_one: 0 };

    /// The largest weight: shares range from 1 to 65,536.
    pub const MAX: Self = Self { less_one: u16::MAX };

    /// Returns the weight `value`, capped at [`Weight::MAX`], or `None` for zero.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        match value.checked_sub(1) {
            None => None,
            Some(less_one) if less_one < u16::MAX as u64 => Some(Self {
                less_one: less_one as u16,
            }),
            Some(_) => Some(Self::MAX),
        }
    }

    /// Returns the weight as a number.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u32 {
        self.less_one as u32 + 1
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weight({})", self.value())
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

/// The share of the resource that one piece of work uses, in units of the caller's choice.
///
/// ```
/// use drr::Cost;
/// assert_eq!(Cost::new(250).value(), 250);
/// assert_eq!(Cost::new(0), Cost::ONE); // free work could be dispatched forever
/// assert_eq!(Cost::new(u64::MAX), Cost::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// The smallest cost.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// The largest cost, 2⁴⁴ (4.8 hours in nanoseconds, 16 TiB in bytes); more counts as this.
    pub const MAX: Self = Self::new(1 << 44);

    /// Returns the cost `value`, brought into the range from [`Cost::ONE`] to [`Cost::MAX`].
    #[must_use]
    pub const fn new(value: u64) -> Self {
        const MAX: u64 = 1 << 44;
        let capped = if value > MAX { MAX } else { value };
        match NonZeroU64::new(capped) {
            Some(cost) => Self(cost),
            None => Self::ONE,
        }
    }

    /// Returns the cost as a number.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0.get()
    }
}

/// Whether one piece of work costs as much as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Costs {
    /// Every piece costs the same.
    Equal,
    /// Each has a cost of its own.
    Mixed,
}

/// The cost that a key of weight one may use in a round, and the most credit that any key starts a turn with.
///
/// The best quantum is the cost of a typical piece of work: a key then serves one piece per turn, and
/// waits are as short as they can be. A larger quantum serves several pieces in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantum(NonZeroU64);

impl Quantum {
    /// The largest quantum, 2⁴⁴, as for [`Cost::MAX`].
    pub const MAX: Self = Self(Cost::MAX.0);

    /// Returns the quantum `value`, capped at [`Quantum::MAX`], or `None` for zero.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        match value {
            0 => None,
            _ => Some(Self(Cost::new(value).0)),
        }
    }

    /// Returns the quantum as a number.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0.get()
    }
}

/// How often a key of some weight is visited, and what it is granted each time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visits {
    /// Ticks from one visit to the next.
    pub(crate) stride: u64,
    /// Scaled credit that comes with a visit.
    pub(crate) grant: i64,
}

/// The fixed-point scale of one engine, which follows from its quantum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    quantum: Quantum,
    shift: u32,
    /// Scaled credit that a key of weight one earns in a tick.
    grain: u64,
}

impl Scale {
    pub(crate) const fn new(quantum: Quantum) -> Self {
        // Small quanta are shifted by a whole round, which makes the grain exact. Larger ones by less, so
        // that a grain keeps 16 significant bits and the largest cost stays below the credit floor.
        let shift = match 32u32.saturating_sub(quantum.value().ilog2()) {
            shift if shift > ROUND_BITS => ROUND_BITS,
            shift => shift,
        };
        let grain = (quantum.value() << shift) >> ROUND_BITS;
        Self {
            quantum,
            shift,
            grain,
        }
    }

    pub(crate) const fn quantum(&self) -> Quantum {
        self.quantum
    }

    /// Returns a cost in scaled credit: at most 2⁶⁰.
    pub(crate) const fn credit(&self, cost: Cost) -> i64 {
        (cost.value() << self.shift).cast_signed()
    }

    /// Returns how much cost `credit` stands for, rounded up.
    pub(crate) const fn cost(&self, credit: u64) -> u64 {
        (credit >> self.shift) + ((credit & ((1 << self.shift) - 1) != 0) as u64)
    }

    /// Returns how much cost `credit` stands for, rounded down.
    pub(crate) fn cost_below(&self, credit: u128) -> u64 {
        u64::try_from(credit >> self.shift).unwrap_or(u64::MAX)
    }

    /// Returns the visits of a key of weight `weight`.
    ///
    /// There are `weight` visits to a round, as nearly as whole ticks allow, and each grants at most one
    /// quantum: weight makes visits more frequent, not longer, so that a heavy key is interleaved with the
    /// light ones. A visit grants the credit that the key earns from one visit to the next, so the rounding
    /// of the stride costs no share.
    #[inline]
    pub(crate) const fn visits(&self, weight: Weight) -> Visits {
        let stride = match weight.less_one {
            0 => TICKS_PER_ROUND, // spares the most common weight a division
            _ => (TICKS_PER_ROUND as u32 / weight.value()) as u64,
        };
        let grant = (stride * self.income(weight)).cast_signed();
        Visits { stride, grant }
    }

    /// Returns the scaled credit that a key of weight `weight` earns in a tick.
    #[inline]
    pub(crate) const fn income(&self, weight: Weight) -> u64 {
        weight.value() as u64 * self.grain
    }

    /// Returns the scaled credit that keys with `weight` in all earn in a tick.
    pub(crate) const fn income_of_all(&self, weight: u64) -> u64 {
        weight.saturating_mul(self.grain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(quantum: u64) -> Scale {
        Scale::new(Quantum::new(quantum).unwrap())
    }

    #[test]
    fn a_round_grants_weight_times_quantum() {
        for quantum in [1, 7, 1000, 65_537, 131_071, 1 << 32, u64::MAX] {
            let scale = scale(quantum);
            for weight in [1, 2, 3, 5, 1000, 65_535, 65_536, u64::MAX] {
                let weight = Weight::new(weight).unwrap();
                let Visits { stride, grant } = scale.visits(weight);
                // Per round, and times the stride, which need not divide a round.
                let earned = u128::from(TICKS_PER_ROUND) * u128::from(grant.cast_unsigned());
                let quantum_scaled = u128::from(scale.quantum().value()) << scale.shift;
                let due = quantum_scaled * u128::from(weight.value()) * u128::from(stride);
                assert!(earned <= due);
                assert!(
                    earned + (due >> 16) >= due,
                    "within the precision of a grain"
                );
                if quantum < 1 << 17 {
                    assert_eq!(earned, due, "exact for quanta below 2^17");
                }
            }
        }
    }

    #[test]
    fn a_visit_grants_between_half_a_quantum_and_one() {
        let scale = scale(1000);
        let quantum = scale.credit(Cost::new(1000));
        for weight in 1..=65_536 {
            let Visits { grant, .. } = scale.visits(Weight::new(weight).unwrap());
            assert!(
                grant <= quantum && 2 * grant > quantum,
                "weight {weight} is granted {grant}"
            );
        }
    }

    #[test]
    fn every_cost_fits_above_the_credit_floor() {
        for quantum in [1, 1 << 16, 1 << 20, 1 << 32, u64::MAX] {
            let scale = scale(quantum);
            assert!(-scale.credit(Cost::MAX) > CREDIT_FLOOR);
            assert!(scale.grain >= 1);
        }
        assert_eq!(scale(1).credit(Cost::MAX), 1 << 60);
    }

    #[test]
    fn credit_turns_back_into_cost_rounded_up_or_down() {
        let scale = scale(10);
        assert_eq!(scale.cost(0), 0);
        assert_eq!(scale.cost(1), 1);
        assert_eq!(scale.cost(1 << 16), 1);
        assert_eq!(scale.cost((1 << 16) + 1), 2);
        assert_eq!(scale.cost_below(0), 0);
        assert_eq!(scale.cost_below((1 << 16) - 1), 0);
        assert_eq!(scale.cost_below(3 << 16), 3);
        assert_eq!(scale.cost_below(u128::MAX), u64::MAX);
        assert_eq!(
            self::scale(1 << 40).cost(17),
            17,
            "no shift, nothing to round"
        );
    }
}
