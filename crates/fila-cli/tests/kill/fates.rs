//! What became of messages that fail: acknowledged, in their queue, or among its dead letters, and in one of these only.

use std::collections::BTreeMap;
use std::fmt;

use super::ledger::{Ledger, Name};

/// What the consumers of a message know of it.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    /// Acknowledgements that have no answer.
    open: u32,
    /// One was confirmed, or the message was found to be gone while one was open.
    is_over: bool,
}

/// What a consumer is to expect of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Anything,
    /// The message was gone when this delivery of it was read: its lease must be, too.
    Refusal,
}

/// The books of all consumers.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    fates: BTreeMap<Name, Fate>,
    /// Results that were confirmed, to know when it is time.
    pub(crate) events: u64,
    pub(crate) redriven: u64,
    /// The most dead letters that were there after a crash.
    pub(crate) dead_letters: usize,
    acked: u64,
    failed: u64,
    refused: u64,
}

impl Fates {
    pub(crate) fn delivered(&mut self, name: Name) -> Expected {
        match self.fates.entry(name).or_default().is_over {
            true => Expected::Refusal,
            false => Expected::Anything,
        }
    }

    pub(crate) fn ack_sent(&mut self, name: Name) {
        self.fates.entry(name).or_default().open += 1;
    }

    pub(crate) fn ack_confirmed(&mut self, name: Name, expected: Expected) {
        let fate = self.fates.get_mut(&name).unwrap();
        assert_eq!(expected, Expected::Anything, "{name:?} came back: {fate:?}");
        assert!(!fate.is_over, "{name:?} was acknowledged twice");
        fate.open -= 1;
        fate.is_over = true;
        self.acked += 1;
        self.events += 1;
    }

    pub(crate) fn ack_refused(&mut self, name: Name) {
        self.fates.get_mut(&name).unwrap().open -= 1;
        self.refused += 1;
    }

    pub(crate) fn failed(&mut self) {
        self.failed += 1;
        self.events += 1;
    }

    /// Compares the books with what there is, while nobody is at work, and takes up what has happened to
    /// acknowledgements that were open when the server died.
    pub(crate) fn audit(&mut self, ledger: &Ledger, queue: &[Name], dead_letters: &[Name]) {
        let mut found: BTreeMap<Name, &str> = BTreeMap::new();
        let places = [("queue", queue), ("dead letters", dead_letters)];
        for (place, names) in places {
            for name in names {
                let other = found.insert(*name, place);
                assert_eq!(other, None, "{name:?} is in the {place} as well");
            }
        }
        let mut accepted = 0;
        for (name, is_accepted) in ledger.all() {
            let fate = self.fates.entry(name).or_default();
            let place = found.remove(&name);
            match place {
                Some(place) => assert!(!fate.is_over, "{name:?} is back in the {place}"),
                None if fate.open > 0 => fate.is_over = true,
                None => assert!(fate.is_over || !is_accepted, "{name:?} is lost"),
            }
            fate.open = 0;
            // What was stored and not answered is there, too.
            accepted += usize::from(place.is_some() || fate.is_over);
        }
        assert!(found.is_empty(), "nobody sent {found:?}");
        let over = self.fates.values().filter(|fate| fate.is_over).count();
        assert_eq!(accepted, over + queue.len() + dead_letters.len());
        self.dead_letters = self.dead_letters.max(dead_letters.len());
    }
}

impl fmt::Display for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} acknowledged, {} failed on purpose, {} too late, {} redriven, at most {} dead letters after a crash",
            self.acked, self.failed, self.refused, self.redriven, self.dead_letters
        )
    }
}
