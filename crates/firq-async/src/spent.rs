//! The cost of a finished task, as its handler or a clock reports it.

use std::time::Duration;

/// How much of the shared resource a finished task has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spent {
    /// The measured time, if the dispatcher [settles by that](crate::Dispatcher::settle_by_elapsed), or else
    /// the declared cost.
    #[default]
    Measured,
    /// This much, in the units of [`Task::cost`](firq_core::Task::cost).
    Exactly(u64),
}

/// The return types of a handler: nothing, the cost of its task, or a result of either.
pub trait IntoSpent {
    /// Returns the cost of the task.
    fn into_spent(self) -> Spent;
}

impl IntoSpent for Spent {
    fn into_spent(self) -> Spent {
        self
    }
}

impl IntoSpent for () {
    fn into_spent(self) -> Spent {
        Spent::Measured
    }
}

/// A failed task costs the measured amount.
impl<S: IntoSpent, E> IntoSpent for Result<S, E> {
    fn into_spent(self) -> Spent {
        self.map_or(Spent::Measured, S::into_spent)
    }
}

/// Returns the cost of a task that took this long: one for each `unit` of time begun, and at least one.
#[must_use]
pub fn cost_of_time(elapsed: Duration, unit: Duration) -> u64 {
    let units = elapsed.as_nanos().div_ceil(unit.as_nanos().max(1));
    u64::try_from(units).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_charged_in_units_begun() {
        let unit = Duration::from_millis(10);
        for (millis, cost) in [(0, 1), (1, 1), (10, 1), (11, 2), (100, 10)] {
            assert_eq!(cost_of_time(Duration::from_millis(millis), unit), cost);
        }
        assert_eq!(cost_of_time(Duration::MAX, Duration::ZERO), u64::MAX);
    }

    #[test]
    fn handlers_may_say_nothing_a_figure_or_that_they_failed() {
        assert_eq!(().into_spent(), Spent::Measured);
        assert_eq!(Spent::Exactly(7).into_spent(), Spent::Exactly(7));
        assert_eq!(
            Ok::<_, ()>(Spent::Exactly(7)).into_spent(),
            Spent::Exactly(7)
        );
        assert_eq!(Err::<Spent, _>("no").into_spent(), Spent::Measured);
    }
}
