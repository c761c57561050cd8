//! Turns between the takers of one bucket.

use std::time::Duration;

use fila_store::Timestamp;

use super::{Bucket, Throttle};

/// For how long a token is left to the taker whose turn it is. A running broker comes for it within a millisecond.
const GRACE: Duration = Duration::from_millis(3);

/// A bucket with several takers: the brokers of a server, say.
///
/// Takers that wait for tokens take turns. A taker leaves tokens to the others that wait and have had fewer, for as long
/// as they need to come for them. A single taker has no turns. The type has no lock: its owner adds one.
#[derive(Debug)]
pub struct SharedBucket {
    bucket: Bucket,
    /// Since when there is a token that no taker has taken.
    idle_since: Timestamp,
    /// The takers that wait for tokens, or did.
    takers: Vec<Taker>,
}

#[derive(Clone, Copy, Debug)]
struct Taker {
    number: usize,
    is_waiting: bool,
    /// How many tokens it has had, or would have had if it had waited as long as the others.
    taken: u64,
}

impl SharedBucket {
    /// Returns a bucket without takers.
    pub fn new(now: Timestamp, bucket: Bucket) -> Self {
        Self {
            bucket,
            idle_since: now,
            takers: Vec::new(),
        }
    }

    /// Changes the throttle, as [`Bucket::set`] does.
    pub fn set(&mut self, now: Timestamp, throttle: Throttle) {
        self.fill(now);
        self.bucket.set(now, throttle);
    }

    /// Fills the bucket, and returns how many tokens there are.
    fn fill(&mut self, now: Timestamp) -> u64 {
        let was_empty = self.bucket.last_available() == 0;
        let tokens = self.bucket.available(now);
        if was_empty && tokens > 0 {
            self.idle_since = now;
        }
        tokens
    }

    /// Notes whether a taker waits. A taker that begins to wait is owed no more than the others.
    pub fn set_waiting(&mut self, now: Timestamp, taker: usize, is_waiting: bool) {
        let waiting = self.takers.iter().filter(|it| it.is_waiting);
        let least = waiting.map(|it| it.taken).min().unwrap_or(0);
        if let Some(taker) = self.taker(taker) {
            if is_waiting && !taker.is_waiting {
                taker.taken = taker.taken.max(least);
            }
            taker.is_waiting = is_waiting;
        } else {
            self.takers.push(Taker {
                number: taker,
                is_waiting,
                taken: least,
            });
        }
        self.fill(now);
        let is_awaited = self.takers.iter().any(|it| it.is_waiting);
        self.bucket.set_awaited(now, is_awaited);
    }

    /// Returns how many tokens a taker may take. The others that wait and have had fewer come first, for 3 ms.
    pub fn available(&mut self, now: Timestamp, taker: usize) -> u64 {
        let tokens = self.fill(now);
        if tokens == 0 || self.takers.len() < 2 || now.since(self.idle_since) > GRACE {
            return tokens;
        }
        let own = self.takers.iter().find(|it| it.number == taker);
        let others = self.takers.iter();
        let due = others
            .filter(|it| it.is_waiting && it.number != taker)
            .map(|it| own.map_or(1, |own| own.taken.saturating_sub(it.taken)))
            .sum();
        tokens.saturating_sub(due)
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Timestamp, taker: usize) -> bool {
        let is_taken = self.bucket.take(now);
        if is_taken {
            self.idle_since = now;
            if let Some(taker) = self.taker(taker) {
                taker.taken += 1;
            }
        }
        is_taken
    }

    /// Puts back a token that a taker took and did not use.
    pub fn give_back(&mut self, taker: usize) {
        self.bucket.give_back();
        if let Some(taker) = self.taker(taker) {
            taker.taken = taker.taken.saturating_sub(1);
        }
    }

    /// Returns when there will be `tokens` tokens if none is taken; none if the bucket never holds that many.
    pub fn when(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        self.fill(now);
        self.bucket.when(now, tokens)
    }

    /// Returns when the token comes that is `tokens` places away, if all before it are taken; none if it never comes.
    pub fn arrival(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        self.fill(now);
        self.bucket.arrival(now, tokens)
    }

    /// Returns a number that orders buckets by their speed.
    pub fn rate(&self) -> u128 {
        self.bucket.rate()
    }

    fn taker(&mut self, number: usize) -> Option<&mut Taker> {
        self.takers.iter_mut().find(|it| it.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn brokers_that_wait_take_turns_and_one_that_does_not_come_is_not_waited_for() {
        let throttle = Throttle::new(1_000.0, 10.0).unwrap();
        let mut bucket = SharedBucket::new(at(0), Bucket::full(at(0), throttle));
        bucket.set_waiting(at(0), 1, true);
        bucket.set_waiting(at(0), 2, true);
        // The first to come takes half of what is there.
        let mut taken = 0;
        while bucket.available(at(0), 1) > 0 {
            assert!(bucket.take(at(0), 1));
            taken += 1;
        }
        assert_eq!(taken, 5);
        assert_eq!(bucket.available(at(0), 2), 5);
        // A third that does not wait leaves one to each.
        assert_eq!(bucket.available(at(0), 3), 3);
        assert_eq!(bucket.available(at(3), 1), 8 - 5);
        assert_eq!(bucket.available(at(4), 1), 9, "it has had its time");
        // A broker saves no tokens up while it does not wait.
        bucket.set_waiting(at(4), 2, false);
        assert_eq!(bucket.available(at(4), 1), 9);
        assert!(bucket.take(at(4), 1));
        bucket.set_waiting(at(4), 2, true);
        assert_eq!(bucket.available(at(4), 1), 8);
    }
}
