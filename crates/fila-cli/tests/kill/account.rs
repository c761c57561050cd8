//! The knowledge of one client about a value that only it changes.

use std::fmt;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account<T> {
    /// The last confirmed value.
    pub(crate) confirmed: T,
    /// The value that was sent since and has no answer.
    pub(crate) under_way: Option<T>,
    pub(crate) changes: u64,
}

impl<T: Clone + PartialEq + fmt::Debug> Account<T> {
    /// Writes down what is about to be sent.
    pub(crate) fn begin(&mut self, next: T) {
        self.changes += 1;
        self.under_way = Some(next);
    }

    /// Writes down that it was confirmed.
    pub(crate) fn confirm(&mut self) {
        self.confirmed = self.under_way.take().expect("something was sent");
    }

    /// Compares what is there with what was confirmed, and takes up what was under way and has happened.
    pub(crate) fn audit(&mut self, what: &dyn fmt::Debug, found: T) {
        let happened = self.under_way.take().is_some_and(|sent| sent == found);
        assert!(
            found == self.confirmed || happened,
            "{what:?} is {found:?}, and {self:?}"
        );
        self.confirmed = found;
    }
}
