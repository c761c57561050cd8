//! A token bucket, fed by time.

use std::time::Duration;

use fila_store::Timestamp;

/// How late a broker may come for the tokens that its messages wait for, in milliseconds.
const LATENESS: u128 = 20;

/// One token. Buckets count in fractions of it, so that no rate is too low and rounding loses nothing.
const TOKEN: u128 = 1 << 64;

/// How fast the messages of a throttle key may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// How much comes in a millisecond, in fractions of a token.
    rate: u128,
    /// How much a bucket holds at most.
    burst: u128,
}

impl Throttle {
    /// Returns a throttle of `per_second` tokens per second, and `burst` at once; none if the rate is negative, the
    /// burst is less than 1, or one of them is not finite.
    ///
    /// With a rate of 0 nothing passes, whatever the burst is.
    pub fn new(per_second: f64, burst: f64) -> Option<Self> {
        if !(per_second.is_finite() && per_second >= 0.0 && burst.is_finite() && burst >= 1.0) {
            return None;
        }
        let token = TOKEN as f64;
        // Rounded up in the last bit: a rate that is slightly too low would delay tokens by a millisecond.
        let rate = per_second / 1000.0 * token * (1.0 + f64::EPSILON);
        Some(Self {
            rate: rate.ceil() as u128,
            burst: (burst * token) as u128,
        })
    }
}

/// The tokens of one throttle key.
///
/// It holds at most its burst. There is one exception: while messages wait for it, it holds at least one token and those of
/// 20 ms, because a broker comes for a token when its clock ticks, or later if its machine is busy. Otherwise tokens would be lost
/// whenever the burst is small.
#[derive(Debug)]
pub struct Bucket {
    throttle: Throttle,
    level: u128,
    /// The time at which `level` was right.
    at: Timestamp,
    /// Whether messages wait for tokens.
    is_awaited: bool,
    /// Whether it began full, and no token was taken since.
    is_new: bool,
}

impl Bucket {
    /// Returns a bucket that holds its burst.
    pub fn full(now: Timestamp, throttle: Throttle) -> Self {
        Self {
            throttle,
            level: throttle.burst,
            at: now,
            is_awaited: false,
            is_new: true,
        }
    }

    /// Returns a bucket without tokens.
    pub fn empty(now: Timestamp, throttle: Throttle) -> Self {
        Self {
            throttle,
            level: 0,
            at: now,
            is_awaited: false,
            is_new: false,
        }
    }

    /// Changes the throttle. The bucket keeps its tokens, up to the new burst. If none was taken since it was new, it is
    /// full.
    pub fn set(&mut self, now: Timestamp, throttle: Throttle) {
        self.fill(now);
        self.throttle = throttle;
        self.level = if self.is_new {
            throttle.burst
        } else {
            self.level.min(self.capacity())
        };
    }

    /// Notes whether messages wait for tokens.
    pub fn set_awaited(&mut self, now: Timestamp, is_awaited: bool) {
        if self.is_awaited != is_awaited {
            self.fill(now);
            self.is_awaited = is_awaited;
            self.level = self.level.min(self.capacity());
        }
    }

    /// Returns how much it holds at most.
    fn capacity(&self) -> u128 {
        let Throttle { rate, burst } = self.throttle;
        if self.is_awaited {
            // Less than a token may be there that cannot be taken yet.
            burst.max(rate.saturating_mul(LATENESS).saturating_add(TOKEN))
        } else {
            burst
        }
    }

    fn fill(&mut self, now: Timestamp) {
        // Brokers read their clocks one after the other, so `now` may be in the past.
        if now > self.at {
            let elapsed = u128::from(now.as_millis() - self.at.as_millis());
            let filled = self.throttle.rate.saturating_mul(elapsed);
            self.level = self.level.saturating_add(filled).min(self.capacity());
            self.at = now;
        }
    }

    /// Returns how many tokens there are.
    pub fn available(&mut self, now: Timestamp) -> u64 {
        if self.throttle.rate == 0 {
            return 0;
        }
        self.fill(now);
        self.last_available()
    }

    /// Returns how many tokens there were when the bucket was last filled.
    pub(super) fn last_available(&self) -> u64 {
        (self.level / TOKEN) as u64
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Timestamp) -> bool {
        let is_there = self.available(now) > 0;
        if is_there {
            self.level -= TOKEN;
            self.is_new = false;
        }
        is_there
    }

    /// Puts back a token that was taken and not used.
    pub fn give_back(&mut self) {
        self.level = self.level.saturating_add(TOKEN).min(self.capacity());
    }

    /// Returns when there will be `tokens` tokens if none is taken; none if the bucket never holds that many.
    pub fn when(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        let fits = u128::from(tokens) * TOKEN <= self.throttle.burst;
        self.arrival(now, tokens).filter(|_| fits)
    }

    /// Returns when the token comes that is `tokens` places away, if all before it are taken; none if it never comes.
    pub fn arrival(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        if self.throttle.rate == 0 {
            return None;
        }
        self.fill(now);
        let wanted = u128::from(tokens) * TOKEN;
        let missing = wanted.saturating_sub(self.level);
        let millis = missing.div_ceil(self.throttle.rate);
        let wait = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        Some(self.at.saturating_add(wait))
    }

    /// Returns a number that orders buckets by their speed.
    pub fn rate(&self) -> u128 {
        self.throttle.rate
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn bucket(rate: f64, burst: f64) -> Bucket {
        Bucket::full(at(0), Throttle::new(rate, burst).unwrap())
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
            assert!(bucket.take(at(5)));
            assert_eq!(bucket.when(at(5), 1), Some(at(5 + wait)), "{rate}");
            assert!(!bucket.take(at(5 + wait - 1)));
            assert!(bucket.take(at(5 + wait)));
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
            taken += u64::from(bucket.take(at(millis))) + u64::from(bucket.take(at(millis)));
            assert_eq!(taken >= 5, at(millis) >= fifth);
        }
        assert_eq!(self::bucket(0.0, 5.0).arrival(at(0), 1), None);
    }

    #[test]
    fn a_rate_of_zero_lets_nothing_through_and_no_token_comes_beyond_the_burst() {
        let mut closed = bucket(0.0, 5.0);
        assert!(!closed.take(at(u64::MAX)));
        assert_eq!(closed.when(at(0), 1), None);
        let mut small = bucket(1.0, 2.5);
        assert_eq!(
            (small.available(at(1_000_000)), small.when(at(0), 3)),
            (2, None)
        );
    }

    #[test]
    fn the_largest_and_the_smallest_numbers_do_no_harm() {
        let mut huge = bucket(f64::MAX, f64::MAX);
        assert!(huge.take(at(u64::MAX)));
        assert!(huge.available(at(u64::MAX)) > 1 << 40);
        // It was filled again meanwhile.
        let mut full = bucket(f64::MAX, f64::MAX);
        full.give_back();
        assert_eq!(full.level, full.throttle.burst);
        let mut tiny = bucket(f64::MIN_POSITIVE, 1.0);
        assert!(tiny.take(at(0)));
        assert!(tiny.when(at(0), 1) > Some(at(u64::MAX / 2)));
    }

    #[test]
    fn a_changed_throttle_keeps_the_tokens_and_gives_no_new_burst() {
        let throttle = |rate, burst| Throttle::new(rate, burst).unwrap();
        let mut bucket = bucket(1.0, 10.0);
        for _ in 0..9 {
            assert!(bucket.take(at(0)));
        }
        bucket.set(at(0), throttle(1000.0, 20.0));
        assert_eq!(bucket.available(at(0)), 1);
        assert_eq!(bucket.available(at(3)), 4);
        bucket.set(at(3), throttle(1000.0, 2.0));
        assert_eq!(bucket.available(at(3)), 2);
    }

    #[test]
    fn a_bucket_that_nothing_was_taken_from_stays_full_when_its_burst_changes() {
        let throttle = |rate, burst| Throttle::new(rate, burst).unwrap();
        let mut bucket = bucket(10.0, 10.0);
        bucket.set(at(1), throttle(10.0, 20.0));
        assert_eq!(bucket.available(at(1)), 20);
        bucket.set(at(1), throttle(10.0, 5.0));
        bucket.set(at(1), throttle(10.0, 30.0));
        assert!(bucket.take(at(1)));
        bucket.set(at(1), throttle(10.0, 40.0));
        assert_eq!(bucket.available(at(1)), 29, "no second burst");
        let mut empty = Bucket::empty(at(0), throttle(10.0, 10.0));
        empty.set(at(0), throttle(10.0, 20.0));
        assert_eq!(empty.available(at(0)), 0);
    }

    #[test]
    fn an_awaited_bucket_holds_a_token_and_those_of_20_ms_and_an_idle_one_its_burst() {
        let mut bucket = bucket(5_000.0, 1.0);
        assert!(bucket.take(at(0)) && !bucket.take(at(0)));
        bucket.set_awaited(at(0), true);
        assert_eq!(bucket.available(at(1)), 5, "a tick's worth");
        assert_eq!(bucket.available(at(20)), 100);
        assert_eq!(bucket.available(at(1_000)), 101, "late by too much");
        bucket.set_awaited(at(1_000), false);
        assert_eq!(bucket.available(at(2_000)), 1, "no message waited");
        bucket.set_awaited(at(2_000), true);
        assert_eq!(bucket.available(at(2_000)), 1, "it was idle until now");
        // Where the burst is larger, nothing changes.
        for (rate, burst) in [(5_000.0, 101.0), (10.0, 2.0)] {
            let mut bucket = self::bucket(rate, burst);
            bucket.set_awaited(at(0), true);
            assert_eq!(bucket.available(at(1_000)), burst as u64);
        }
    }

    #[test]
    fn an_empty_bucket_begins_without_tokens() {
        let mut bucket = Bucket::empty(at(100), Throttle::new(10.0, 20.0).unwrap());
        assert!(!bucket.take(at(199)));
        assert!(bucket.take(at(200)));
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
                while bucket.take(at(now)) {
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
        fn late_takers_get_the_whole_rate_and_hardly_more_than_20_ms_of_it_at_once(
            rate in 0.5..50_000.0_f64,
            burst in 1.0..50.0_f64,
            steps in prop::collection::vec(1..=20_u64, 500),
        ) {
            let mut bucket = bucket(rate, burst);
            bucket.set_awaited(at(0), true);
            let (mut now, mut taken) = (0, Vec::new());
            for step in steps {
                while bucket.take(at(now)) {
                    taken.push(now);
                }
                now += step;
            }
            while bucket.take(at(now)) {
                taken.push(now);
            }
            let all = burst + rate * now as f64 / 1000.0;
            prop_assert!(taken.len() as f64 > all - 1.5, "{} of {all}", taken.len());
            prop_assert!(taken.len() as f64 <= all + 1e-6, "{} of {all}", taken.len());
            let most_at_once = burst.max(1.0 + rate * 0.02);
            for from in (0..taken.len()).step_by(taken.len() / 50 + 1) {
                for to in (from..taken.len()).step_by(taken.len() / 50 + 1) {
                    let millis = (taken[to] - taken[from]) as f64;
                    let most = most_at_once + rate * millis / 1000.0;
                    prop_assert!((to - from) as f64 + 1.0 <= most + 1e-6, "{from} {to} {most}");
                }
            }
        }
    }
}
