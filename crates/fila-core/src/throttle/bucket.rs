//! Token buckets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fila_store::{ThrottleKey, Timestamp};
use foldhash::fast::RandomState;

/// A token. Buckets are filled in fractions of it, so that no rate is too low and nothing is lost to rounding.
const TOKEN: u128 = 1 << 64;

/// How fast the messages of a throttle key may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// What comes in a millisecond, in fractions of a token.
    rate: u128,
    /// What a bucket holds.
    burst: u128,
}

impl Throttle {
    /// Returns a throttle of so many tokens per second, and so many at once. Nothing if the rate is negative, the burst
    /// is less than 1, or one of them is no finite number.
    ///
    /// With a rate of 0 nothing passes, whatever the burst is.
    pub fn new(per_second: f64, burst: f64) -> Option<Self> {
        if !(per_second.is_finite() && per_second >= 0.0 && burst.is_finite() && burst >= 1.0) {
            return None;
        }
        let token = TOKEN as f64;
        // The last bit is rounded up: a token that is late by a hair would come a millisecond later.
        let rate = per_second / 1000.0 * token * (1.0 + f64::EPSILON);
        Some(Self {
            rate: rate.ceil() as u128,
            burst: (burst * token) as u128,
        })
    }
}

/// The tokens of one throttle key.
#[derive(Debug)]
pub(crate) struct Bucket {
    throttle: Throttle,
    level: u128,
    /// As of when.
    at: Timestamp,
    /// Since when there is a token that nobody has taken.
    idle_since: Timestamp,
    /// Brokers that wait for tokens, or have; none if there is one broker only.
    parties: Vec<Party>,
}

/// A broker, among others that take from the same bucket.
#[derive(Clone, Copy, Debug)]
struct Party {
    broker: u32,
    is_waiting: bool,
    /// Tokens that it has had, or would have had if it had waited as long as the others.
    taken: u64,
}

/// For how long a token is left to a broker whose turn it is. One that is alive comes for it within a millisecond.
const GRACE: Duration = Duration::from_millis(3);

impl Bucket {
    /// Takes note whether a broker has somebody who waits. One that begins to has no more to make good than the others.
    pub(crate) fn wait(&mut self, broker: u32, is_waiting: bool) {
        let waiting = self.parties.iter().filter(|party| party.is_waiting);
        let least = waiting.map(|party| party.taken).min().unwrap_or(0);
        match self.parties.iter_mut().find(|party| party.broker == broker) {
            Some(party) => {
                if is_waiting && !party.is_waiting {
                    party.taken = party.taken.max(least);
                }
                party.is_waiting = is_waiting;
            }
            None => self.parties.push(Party {
                broker,
                is_waiting,
                taken: least,
            }),
        }
    }

    /// Returns how many tokens there are for a broker: those that others wait for, and have had fewer of, are theirs as
    /// long as they come for them.
    pub(crate) fn tokens_for(&mut self, now: Timestamp, broker: u32) -> u64 {
        let tokens = self.tokens(now);
        if tokens == 0 || self.parties.len() < 2 || now.since(self.idle_since) > GRACE {
            return tokens;
        }
        let own = self.parties.iter().find(|party| party.broker == broker);
        let others = self.parties.iter();
        let others = others.filter(|party| party.is_waiting && party.broker != broker);
        let due = others.map(|party| match own {
            Some(own) => own.taken.saturating_sub(party.taken),
            None => 1,
        });
        tokens.saturating_sub(due.sum())
    }

    fn fill(&mut self, now: Timestamp) {
        // Brokers read their clocks one after the other: a moment that has passed fills nothing.
        if now > self.at {
            let elapsed = u128::from(now.as_millis() - self.at.as_millis());
            let filled = self.throttle.rate.saturating_mul(elapsed);
            let was_empty = self.level < TOKEN;
            self.level = self.level.saturating_add(filled).min(self.throttle.burst);
            self.at = now;
            if was_empty {
                self.idle_since = now;
            }
        }
    }

    /// Returns how many tokens there are.
    pub(crate) fn tokens(&mut self, now: Timestamp) -> u64 {
        if self.throttle.rate == 0 {
            return 0;
        }
        self.fill(now);
        (self.level / TOKEN) as u64
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Timestamp, broker: u32) -> bool {
        let is_there = self.tokens(now) > 0;
        if is_there {
            self.level -= TOKEN;
            self.idle_since = now;
            if let Some(party) = self.party(broker) {
                party.taken += 1;
            }
        }
        is_there
    }

    /// Puts back a token that was taken and not used.
    pub(crate) fn give_back(&mut self, broker: u32) {
        self.level = self.level.saturating_add(TOKEN).min(self.throttle.burst);
        if let Some(party) = self.party(broker) {
            party.taken = party.taken.saturating_sub(1);
        }
    }

    fn party(&mut self, broker: u32) -> Option<&mut Party> {
        self.parties.iter_mut().find(|party| party.broker == broker)
    }

    /// Returns when there will be so many tokens, if nobody takes any; never, if the bucket does not hold so many.
    pub(crate) fn when(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        let fits = u128::from(tokens) * TOKEN <= self.throttle.burst;
        self.arrival(now, tokens).filter(|_| fits)
    }

    /// Returns when the token comes that is so many away, if all before it are taken; never, if none comes.
    pub(crate) fn arrival(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        if self.throttle.rate == 0 {
            return None;
        }
        self.fill(now);
        let wanted = u128::from(tokens) * TOKEN;
        let missing = wanted.saturating_sub(self.level);
        let millis = missing.div_ceil(self.throttle.rate);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let wait = Duration::from_millis(millis);
        Some(self.at.saturating_add(wait))
    }

    /// Returns what orders buckets by their speed.
    pub(crate) fn rate(&self) -> u128 {
        self.throttle.rate
    }
}

/// A bucket that brokers share.
#[derive(Debug)]
pub(crate) struct SharedBucket(Mutex<Bucket>);

impl SharedBucket {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Bucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The buckets of all throttle keys that are throttled. Copies are the same.
///
/// Brokers on several threads share them, since a throttle is for all queues. What one broker does with them depends on
/// nothing but what it is told, as long as it is alone.
#[derive(Clone, Debug, Default)]
pub struct Buckets(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    buckets: Mutex<HashMap<ThrottleKey, Arc<SharedBucket>, RandomState>>,
    /// How many brokers take from them.
    brokers: AtomicU32,
}

impl Buckets {
    /// Returns the number of a broker that takes from these from now on.
    pub(crate) fn join(&self) -> u32 {
        self.0.brokers.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells whether more than one broker takes from these.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.brokers.load(Ordering::Relaxed) > 1
    }

    /// Throttles a key from now on. A bucket that is new is full; one that is there keeps the tokens it has, as far as
    /// it holds them.
    ///
    /// The brokers are to be told by [`Command::Rethrottle`](crate::Command::Rethrottle).
    pub fn set(&self, now: Timestamp, key: &ThrottleKey, throttle: Throttle) {
        let mut buckets = self.lock();
        match buckets.get(key) {
            Some(bucket) => {
                let mut bucket = bucket.lock();
                bucket.fill(now);
                bucket.throttle = throttle;
                bucket.level = bucket.level.min(throttle.burst);
            }
            None => drop(buckets.insert(key.clone(), shared(now, throttle, throttle.burst))),
        }
    }

    /// Throttles a key that was throttled before this process began: its bucket is empty. Whatever it gave before, it
    /// gives no second burst.
    pub fn resume(&self, now: Timestamp, key: &ThrottleKey, throttle: Throttle) {
        self.lock().insert(key.clone(), shared(now, throttle, 0));
    }

    /// Throttles a key no longer.
    pub fn remove(&self, key: &ThrottleKey) {
        self.lock().remove(key);
    }

    pub(crate) fn find(&self, key: &ThrottleKey) -> Option<Arc<SharedBucket>> {
        self.lock().get(key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ThrottleKey, Arc<SharedBucket>, RandomState>> {
        let buckets = self.0.buckets.lock();
        buckets.unwrap_or_else(PoisonError::into_inner)
    }
}

fn shared(at: Timestamp, throttle: Throttle, level: u128) -> Arc<SharedBucket> {
    Arc::new(SharedBucket(Mutex::new(Bucket {
        throttle,
        level,
        at,
        idle_since: at,
        parties: Vec::new(),
    })))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn bucket(rate: f64, burst: f64) -> Bucket {
        let throttle = Throttle::new(rate, burst).unwrap();
        Bucket {
            throttle,
            level: throttle.burst,
            at: at(0),
            idle_since: at(0),
            parties: Vec::new(),
        }
    }

    #[test]
    fn numbers_that_are_no_rate_or_burst_are_refused() {
        for (rate, burst) in [
            (-1.0, 1.0),
            (f64::NAN, 1.0),
            (f64::INFINITY, 1.0),
            (1.0, 0.5),
        ] {
            assert_eq!(Throttle::new(rate, burst), None);
        }
        assert_eq!(Throttle::new(1.0, f64::NAN), None);
        assert!(Throttle::new(f64::MAX, f64::MAX).is_some());
    }

    #[test]
    fn a_bucket_says_to_the_millisecond_when_its_next_token_comes() {
        for (rate, wait) in [
            (1000.0, 1),
            (10.0, 100),
            (3.0, 334),
            (0.1, 10_000),
            (7.0, 143),
        ] {
            let mut bucket = bucket(rate, 1.0);
            assert!(bucket.take(at(5), 0));
            assert_eq!(bucket.when(at(5), 1), Some(at(5 + wait)), "{rate}");
            assert!(!bucket.take(at(5 + wait - 1), 0));
            assert!(bucket.take(at(5 + wait), 0));
        }
    }

    #[test]
    fn a_token_that_is_further_than_the_burst_comes_when_those_before_are_taken() {
        let mut bucket = bucket(10.0, 2.0);
        assert_eq!(bucket.arrival(at(0), 2), Some(at(0)));
        assert_eq!(bucket.when(at(0), 5), None);
        let fifth = bucket.arrival(at(0), 5).unwrap();
        assert_eq!(fifth, at(300));
        let mut taken = 0;
        for millis in 0..=300 {
            taken += u64::from(bucket.take(at(millis), 0)) + u64::from(bucket.take(at(millis), 0));
            assert_eq!(taken >= 5, at(millis) >= fifth);
        }
        assert_eq!(self::bucket(0.0, 5.0).arrival(at(0), 1), None);
    }

    #[test]
    fn a_rate_of_zero_lets_nothing_through_and_no_token_comes_beyond_the_burst() {
        let mut closed = bucket(0.0, 5.0);
        assert!(!closed.take(at(u64::MAX), 0));
        assert_eq!(closed.when(at(0), 1), None);
        let mut small = bucket(1.0, 2.5);
        assert_eq!(
            (small.tokens(at(1_000_000)), small.when(at(0), 3)),
            (2, None)
        );
    }

    #[test]
    fn the_largest_and_the_smallest_numbers_do_no_harm() {
        let mut huge = bucket(f64::MAX, f64::MAX);
        assert!(huge.take(at(u64::MAX), 0));
        assert!(huge.tokens(at(u64::MAX)) > 1 << 40);
        // It was filled again meanwhile.
        let mut full = bucket(f64::MAX, f64::MAX);
        full.give_back(0);
        assert_eq!(full.level, full.throttle.burst);
        let mut tiny = bucket(f64::MIN_POSITIVE, 1.0);
        assert!(tiny.take(at(0), 0));
        assert!(tiny.when(at(0), 1) > Some(at(u64::MAX / 2)));
    }

    #[test]
    fn a_changed_throttle_keeps_the_tokens_and_gives_no_new_burst() {
        let buckets = Buckets::default();
        let key = ThrottleKey::parse("api").unwrap();
        let throttle = |rate, burst| Throttle::new(rate, burst).unwrap();
        buckets.set(at(0), &key, throttle(1.0, 10.0));
        let bucket = buckets.find(&key).unwrap();
        for _ in 0..9 {
            assert!(bucket.lock().take(at(0), 0));
        }
        buckets.set(at(0), &key, throttle(1000.0, 20.0));
        assert_eq!(bucket.lock().tokens(at(0)), 1);
        assert_eq!(bucket.lock().tokens(at(3)), 4);
        buckets.set(at(3), &key, throttle(1000.0, 2.0));
        assert_eq!(bucket.lock().tokens(at(3)), 2);
    }

    #[test]
    fn a_throttle_of_before_begins_without_tokens() {
        let buckets = Buckets::default();
        let key = ThrottleKey::parse("api").unwrap();
        buckets.resume(at(100), &key, Throttle::new(10.0, 20.0).unwrap());
        let bucket = buckets.find(&key).unwrap();
        assert!(!bucket.lock().take(at(199), 0));
        assert!(bucket.lock().take(at(200), 0));
    }

    #[test]
    fn brokers_that_wait_take_turns_and_one_that_does_not_come_is_not_waited_for() {
        let mut bucket = bucket(1_000.0, 10.0);
        bucket.wait(1, true);
        bucket.wait(2, true);
        // The first to come takes half of what is there.
        let mut taken = 0;
        while bucket.tokens_for(at(0), 1) > 0 {
            assert!(bucket.take(at(0), 1));
            taken += 1;
        }
        assert_eq!(taken, 5);
        assert_eq!(bucket.tokens_for(at(0), 2), 5);
        // A third that does not wait leaves one to each.
        assert_eq!(bucket.tokens_for(at(0), 3), 3);
        assert_eq!(bucket.tokens_for(at(3), 1), 8 - 5);
        assert_eq!(bucket.tokens_for(at(4), 1), 9, "it has had its time");
        // What it did not come for it cannot save up.
        bucket.wait(2, false);
        assert_eq!(bucket.tokens_for(at(4), 1), 9);
        assert!(bucket.take(at(4), 1));
        bucket.wait(2, true);
        assert_eq!(bucket.tokens_for(at(4), 1), 8);
    }

    proptest! {
        #[test]
        fn no_window_gives_more_than_its_burst_and_its_rate(
            rate in 0.001..5_000.0_f64,
            burst in 1.0..50.0_f64,
            steps in prop::collection::vec(0..400_u64, 1..300),
        ) {
            let mut bucket = bucket(rate, burst);
            let mut now = 0;
            let mut taken = Vec::new();
            for step in steps {
                now += step;
                while bucket.take(at(now), 0) {
                    taken.push(now);
                }
            }
            for (index, from) in taken.iter().enumerate().step_by(7) {
                for (count, to) in (1_u64..).zip(&taken[index..]) {
                    let most = burst + rate * (to - from) as f64 / 1000.0;
                    prop_assert!(count as f64 <= most + 1e-6, "{count} of {most}");
                }
            }
        }

        #[test]
        fn whoever_takes_all_that_comes_gets_the_whole_rate(
            rate in 0.5..50_000.0_f64,
        ) {
            let mut bucket = bucket(rate, rate.max(1.0));
            while bucket.take(at(0), 0) {}
            let mut taken = 0_u64;
            for now in 1..=10_000 {
                while bucket.take(at(now), 0) {
                    taken += 1;
                }
            }
            prop_assert!(taken as f64 > rate * 10.0 - 1.5, "{taken} of {}", rate * 10.0);
        }
    }
}
