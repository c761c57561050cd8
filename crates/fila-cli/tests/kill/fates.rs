//! What became of messages that fail: acknowledged, in their queue, or among its dead letters, and in one of these only.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::ledger::{Ledger, Name};

/// The knowledge of the consumers about a message.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    /// Acknowledgements that have no answer.
    open: u32,
    /// One was confirmed, or the message was found to be gone while one was open.
    is_over: bool,
}

/// The answer that a consumer expects to its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Anything,
    /// The message was gone when this delivery of it was read: its lease must be, too.
    Refusal,
}

/// In which order messages of one key come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    Any,
    /// First attempts come in the order of sending, because there is only one consumer.
    FirstAttempts,
    /// A message comes when all before it are gone.
    Strict,
}

/// Where all messages of a queue are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) accepted: u64,
    pub(crate) acked: u64,
    pub(crate) there: u64,
    pub(crate) dead: u64,
}

/// The books of all consumers.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    order: Order,
    fates: BTreeMap<Name, Fate>,
    /// By key, since the server was started: the last that came for the first time.
    newest: HashMap<u64, u64>,
    /// By key: all before this one are gone.
    over_below: HashMap<u64, u64>,
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
    pub(crate) fn ordered(order: Order) -> Self {
        Self {
            order,
            ..Self::default()
        }
    }

    pub(crate) fn delivered(&mut self, name: Name, attempt: u32, ledger: &Ledger) -> Expected {
        match self.order {
            Order::Any => {}
            Order::FirstAttempts => self.check_first(name, attempt),
            Order::Strict => self.check_strict(name, ledger),
        }
        match self.fates.entry(name).or_default().is_over {
            true => Expected::Refusal,
            false => Expected::Anything,
        }
    }

    fn check_first(&mut self, name: Name, attempt: u32) {
        if attempt == 1 {
            let (key, place) = name;
            let last = self.newest.insert(key, place);
            assert!(last < Some(place), "{name:?} came after {last:?}");
        }
    }

    fn check_strict(&mut self, name: Name, ledger: &Ledger) {
        let (key, place) = name;
        let below = self.over_below.entry(key).or_default();
        let is_over = |place: u64| self.fates.get(&(key, place)).is_some_and(|it| it.is_over);
        while *below < place && is_over(*below) {
            *below += 1;
        }
        for earlier in *below..place {
            let fate = self.fates.get(&(key, earlier));
            let is_done = fate.is_some_and(|it| it.is_over || it.open > 0);
            let is_there = ledger.is_accepted((key, earlier));
            assert!(is_done || !is_there, "{name:?} overtook {earlier}");
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

    /// Compares the ledger with the state of the server, while no client works, and records the outcome of
    /// acknowledgements that were open when the server died.
    pub(crate) fn audit(
        &mut self,
        ledger: &Ledger,
        queue: &[Name],
        dead_letters: &[Name],
    ) -> Balance {
        self.newest.clear();
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
            // A message that was stored and not answered is there, too.
            accepted += usize::from(place.is_some() || fate.is_over);
        }
        assert!(found.is_empty(), "no producer sent {found:?}");
        let over = self.fates.values().filter(|fate| fate.is_over).count();
        assert_eq!(accepted, over + queue.len() + dead_letters.len());
        self.dead_letters = self.dead_letters.max(dead_letters.len());
        Balance {
            accepted: accepted as u64,
            acked: over as u64,
            there: queue.len() as u64,
            dead: dead_letters.len() as u64,
        }
    }
}

impl std::ops::AddAssign for Balance {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.acked += other.acked;
        self.there += other.there;
        self.dead += other.dead;
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            accepted,
            acked,
            there,
            dead,
        } = self;
        write!(
            f,
            "{accepted} accepted = {acked} acked + {there} there + {dead} dead"
        )
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
