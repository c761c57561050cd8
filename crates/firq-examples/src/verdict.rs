//! Checks that an example showed what it claims.

use std::fmt::Display;

use crate::BoxError;

/// Collects the lessons of a run, and fails the example if one of them did not hold.
///
/// Each lesson comes with a condition that the example computes from the run. The condition is loose enough to hold on a
/// busy machine.
#[must_use = "an example fails only by `conclude`"]
#[derive(Debug, Default)]
pub struct Verdict {
    unseen: usize,
}

impl Verdict {
    /// Returns a verdict without lessons.
    pub fn new() -> Self {
        println!("\nWhat was seen:");
        Self::default()
    }

    /// Prints a lesson, and records whether it held.
    pub fn lesson(&mut self, was_seen: bool, lesson: impl Display) {
        let mark = if was_seen { "ok" } else { "NOT SEEN" };
        println!("  [{mark}] {lesson}");
        self.unseen += usize::from(!was_seen);
    }

    /// Ends the example.
    ///
    /// # Errors
    /// If a lesson did not hold.
    pub fn conclude(self) -> Result<(), BoxError> {
        match self.unseen {
            0 => Ok(()),
            unseen => Err(format!("{unseen} of the lessons did not hold in this run").into()),
        }
    }
}
