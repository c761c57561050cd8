//! The messages that were sent, confirmed and received.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A key and a place among its messages.
pub(crate) type Name = (u64, u64);

/// The state of a message, as its clients know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    is_accepted: bool,
    ack: Ack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ack {
    #[default]
    None,
    /// Sent, with an unknown outcome.
    Sent,
    Confirmed,
}

/// The books of all clients.
pub(crate) struct Ledger {
    is_ordered: bool,
    messages: BTreeMap<Name, Account>,
    /// Delivered since the last start, and not acknowledged.
    held: BTreeSet<Name>,
    /// Things that have happened, to know when it is time.
    pub(crate) events: u64,
    redelivered: u64,
    /// Sent again, and stored before.
    duplicates: u64,
}

impl Ledger {
    pub(crate) fn new(is_ordered: bool) -> Self {
        Self {
            is_ordered,
            messages: BTreeMap::new(),
            held: BTreeSet::new(),
            events: 0,
            redelivered: 0,
            duplicates: 0,
        }
    }

    pub(crate) fn sent(&mut self, name: Name) {
        let before = self.messages.insert(name, Account::default());
        assert!(before.is_none(), "{name:?} is sent once");
    }

    pub(crate) fn accepted(&mut self, name: Name, is_duplicate: bool) {
        self.events += 1;
        self.duplicates += u64::from(is_duplicate);
        self.messages.get_mut(&name).unwrap().is_accepted = true;
    }

    pub(crate) fn delivered(&mut self, name: Name, attempt: u32) {
        let account = self.messages.get(&name);
        let account = *account.unwrap_or_else(|| panic!("{name:?} was never sent"));
        assert_ne!(
            account.ack,
            Ack::Confirmed,
            "{name:?} came back after its acknowledgement was confirmed"
        );
        let is_new = self.held.insert(name);
        assert!(is_new, "{name:?} is leased already, attempt {attempt}");
        if account.ack == Ack::Sent {
            self.redelivered += 1;
        }
        if self.is_ordered {
            // Whatever was accepted before it has been deleted, or it would be next.
            let (key, place) = name;
            let before = self.messages.range((key, 0)..(key, place));
            for (earlier, account) in before {
                let is_done = account.ack != Ack::None || !account.is_accepted;
                assert!(is_done, "{name:?} overtook {earlier:?}");
            }
        }
    }

    pub(crate) fn acked(&mut self, name: Name) {
        self.messages.get_mut(&name).unwrap().ack = Ack::Sent;
    }

    pub(crate) fn ack_confirmed(&mut self, name: Name) {
        self.events += 1;
        self.held.remove(&name);
        self.messages.get_mut(&name).unwrap().ack = Ack::Confirmed;
    }

    /// Leases do not survive.
    pub(crate) fn after_a_crash(&mut self) {
        self.held.clear();
    }

    /// Returns all messages that were sent, and whether they were accepted.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Name, bool)> + '_ {
        let messages = self.messages.iter();
        messages.map(|(name, account)| (*name, account.is_accepted))
    }

    pub(crate) fn is_accepted(&self, name: Name) -> bool {
        self.messages.get(&name).is_some_and(|it| it.is_accepted)
    }

    /// Checks that all is accounted for, now that the queue has been drained.
    pub(crate) fn close(&self) {
        for (name, account) in &self.messages {
            assert!(
                account.is_accepted,
                "{name:?} was sent until it was answered"
            );
            // The outcome of an acknowledgement that was under way is unknown; all others must have come in the end.
            assert_ne!(account.ack, Ack::None, "{name:?} is lost: {account:?}");
        }
        let accepted = self.count(|it| it.is_accepted);
        let acked = self.count(|it| it.is_accepted && it.ack == Ack::Confirmed);
        let unknown = self.count(|it| it.is_accepted && it.ack == Ack::Sent);
        assert_eq!(accepted, acked + unknown);
        println!("{self}");
    }

    fn count(&self, is: impl Fn(&Account) -> bool) -> usize {
        self.messages.values().filter(|account| is(account)).count()
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sent, {} accepted, {} of these when sent again, {} acknowledged, {} acknowledgements unknown, {} delivered again after such",
            self.messages.len(),
            self.count(|it| it.is_accepted),
            self.duplicates,
            self.count(|it| it.ack == Ack::Confirmed),
            self.count(|it| it.ack == Ack::Sent),
            self.redelivered,
        )
    }
}
