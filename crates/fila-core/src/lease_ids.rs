//! Lease ids that a client cannot guess.
//!
//! A lease id is the only thing that a client needs to settle a delivery, so a client must not be able to compute the ids
//! of other clients' deliveries from its own. The queue counts its leases and encrypts the count: a Feistel network of
//! four rounds ([Luby and Rackoff](https://doi.org/10.1137/0217022)) with [SipHash](https://doi.org/10.1007/978-3-642-34931-7_28)
//! as its round function. It is a permutation, so two leases never have the same id.
//!
//! The driver draws the key, once per start. Each queue derives its own key from it: otherwise the ids of one queue would
//! be the ids of every other queue, and a client could learn them in a queue of its own.
//!
//! A queue whose leases outlive a [planned stop](crate::Broker::keep_leases) goes on with its key and its count: so the ids
//! that it gives next are none of those that it gave before.

use std::fmt;

use fila_store::{Epoch, QueueId};
use siphasher::sip::SipHasher13;

use crate::LeaseId;

/// The rounds of the network. With three or fewer, an attacker can tell its output from chance.
const ROUNDS: u32 = 4;

/// A secret key for lease ids.
#[derive(Clone, Copy)]
pub struct LeaseKey([u8; 16]);

impl LeaseKey {
    /// Makes a key. A server takes the bytes from the operating system's generator, at each start.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Leaves the secret out.
impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseKey").finish_non_exhaustive()
    }
}

/// The lease ids of one queue, one after the other.
pub(crate) struct LeaseIds {
    state: LeaseIdState,
    round: SipHasher13,
}

/// The key of a queue's lease ids, and the next number: with both, another start goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseIdState {
    pub(crate) key: [u64; 2],
    pub(crate) next: u64,
}

impl LeaseIds {
    pub(crate) fn new(key: LeaseKey, queue: QueueId, epoch: Epoch) -> Self {
        let shared = SipHasher13::new_with_key(&key.0);
        let derive = |part: u64| {
            let input = (u128::from(part) << 64) | u128::from(queue.get());
            shared.hash(&input.to_le_bytes())
        };
        Self::resume(LeaseIdState {
            key: [derive(0), derive(1)],
            // Another owner of the queue has another epoch; no owner lives to give 2^40 leases.
            next: u64::from(epoch.get()) << 40,
        })
    }

    /// Goes on where an earlier start stopped.
    pub(crate) fn resume(state: LeaseIdState) -> Self {
        let [first, second] = state.key;
        Self {
            state,
            round: SipHasher13::new_with_keys(first, second),
        }
    }

    /// Returns what a later start needs to go on.
    pub(crate) fn state(&self) -> LeaseIdState {
        self.state
    }

    #[inline]
    pub(crate) fn next(&mut self) -> LeaseId {
        let number = self.state.next;
        self.state.next += 1;
        LeaseId::from_number(self.permute(number))
    }

    /// Returns the number of a lease: a later lease of the queue has a greater one.
    pub(crate) fn number(&self, lease: LeaseId) -> u64 {
        let id = lease.get();
        let (mut left, mut right) = ((id >> 32) as u32, id as u32);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.mask(round, left), left);
        }
        u64::from(left) << 32 | u64::from(right)
    }

    fn permute(&self, number: u64) -> u64 {
        let (mut left, mut right) = ((number >> 32) as u32, number as u32);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.mask(round, right));
        }
        u64::from(left) << 32 | u64::from(right)
    }

    fn mask(&self, round: u32, half: u32) -> u32 {
        let input = u64::from(round) << 32 | u64::from(half);
        self.round.hash(&input.to_le_bytes()) as u32
    }
}

/// Leaves the secret out.
impl fmt::Debug for LeaseIdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseIdState").finish_non_exhaustive()
    }
}

/// Leaves the secret out.
impl fmt::Debug for LeaseIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseIds").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn ids(key: u8, queue: u64, count: usize) -> Vec<u64> {
        let queue = QueueId::new(queue);
        let mut ids = LeaseIds::new(LeaseKey::new([key; 16]), queue, Epoch::FIRST);
        (0..count).map(|_| ids.next().get()).collect()
    }

    #[test]
    fn a_million_ids_are_distinct_and_so_are_their_differences() {
        const COUNT: usize = 1_000_000;
        let ids = ids(1, 1, COUNT);
        let distinct: HashSet<u64> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), COUNT);
        let differences = ids.windows(2).map(|two| two[1].wrapping_sub(two[0]));
        let differences: HashSet<u64> = differences.collect();
        // With random ids, one pair in 2^25 would be a repetition.
        assert!(differences.len() > COUNT - 4, "{}", differences.len());
    }

    #[test]
    fn every_bit_of_an_id_changes_as_often_as_not() {
        let ids = ids(1, 1, 100_000);
        for bit in 0..64 {
            let changes = ids
                .windows(2)
                .filter(|two| (two[0] ^ two[1]) >> bit & 1 == 1);
            let changes = changes.count();
            // Ten standard deviations.
            assert!((48_400..51_600).contains(&changes), "bit {bit}: {changes}");
        }
    }

    #[test]
    fn another_key_or_another_queue_has_other_ids() {
        let own: HashSet<u64> = ids(1, 1, 100_000).into_iter().collect();
        for (key, queue) in [(2, 1), (1, 2)] {
            let others = ids(key, queue, 100_000);
            assert!(others.iter().all(|id| !own.contains(id)), "{key} {queue}");
        }
    }

    #[test]
    fn an_id_has_the_number_it_was_made_of() {
        let mut ids = LeaseIds::new(LeaseKey::new([5; 16]), QueueId::new(9), Epoch::FIRST);
        for number in 1 << 40..(1 << 40) + 10_000 {
            let id = ids.next();
            assert_eq!(ids.number(id), number);
        }
    }

    #[test]
    fn ids_that_go_on_are_those_that_would_have_come_next() {
        let mut ids = LeaseIds::new(LeaseKey::new([5; 16]), QueueId::new(9), Epoch::FIRST);
        let first = ids.next();
        let mut resumed = LeaseIds::resume(ids.state());
        assert_eq!(resumed.number(first), ids.number(first));
        assert_eq!(resumed.next(), ids.next());
    }

    #[test]
    fn the_secret_is_not_printed() {
        let key = LeaseKey::new([77; 16]);
        let ids = LeaseIds::new(key, QueueId::new(1), Epoch::FIRST);
        let state = ids.state();
        assert!(!format!("{key:?} {ids:?} {state:?}").contains(|c: char| c.is_ascii_digit()));
    }
}
