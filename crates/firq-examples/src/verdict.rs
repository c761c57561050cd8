//! Whether an example has shown what it says.

use std::fmt::Display;

use crate::BoxError;

/// Collects what a run has shown, and fails the example if it has not.
///
/// An example that prints its lesson whatever happened teaches nothing. So each lesson comes with a condition
/// that is computed from the run, loose enough to hold on a busy machine.
#[must_use = "an example fails only by `conclude`"]
#[derive(Debug, Default)]
pub struct Verdict {
    unseen: usize,
}

impl Verdict {
    /// Returns a verdict on nothing yet.
    pub fn new() -> Self {
        println!("\nWhat was seen:");
        Self::default()
    }

    /// Prints a lesson, and notes whether it was seen.
    pub fn lesson(&mut self, was_seen: bool, lesson: impl Display) {
        match was_seen {
            true => println!("  [ok] {lesson}"),
            false => println!("  [NOT SEEN] {lesson}"),
        }
        self.unseen += usize::from(!was_seen);
    }

    /// Ends the example.
    ///
    /// # Errors
    /// If a lesson was not seen.
    pub fn conclude(self) -> Result<(), BoxError> {
        match self.unseen {
            0 => Ok(()),
            unseen => Err(format!("{unseen} of the lessons did not hold in this run").into()),
        }
    }
}
