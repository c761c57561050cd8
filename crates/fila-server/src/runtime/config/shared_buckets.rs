//! Token buckets that the brokers of all scheduler threads share: a throttle is for all queues of the server.
//!
//! [`SharedBucket`] lets the brokers take turns; this module adds the locks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fila_core::{Bucket, SharedBucket, Throttle, TokenSource, Tokens};
use fila_store::{ThrottleKey, Timestamp};
use foldhash::fast::RandomState;

/// The buckets of all keys that are throttled. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedBuckets(Arc<Mutex<BucketMap>>);

type BucketMap = HashMap<ThrottleKey, Arc<Mutex<SharedBucket>>, RandomState>;

impl SharedBuckets {
    /// Throttles a key from now on. A new bucket is full; an existing one keeps its tokens, up to the new burst,
    /// and stays full if none was taken.
    ///
    /// The caller then sends [`Command::Rethrottle`](fila_core::Command::Rethrottle) to the brokers.
    pub(crate) fn set(&self, now: Timestamp, key: &ThrottleKey, throttle: Throttle) {
        let mut buckets = lock(&self.0);
        if let Some(bucket) = buckets.get(key) {
            lock(bucket).set(now, throttle);
        } else {
            let bucket = SharedBucket::new(now, Bucket::full(now, throttle));
            buckets.insert(key.clone(), Arc::new(Mutex::new(bucket)));
        }
    }

    /// Throttles a key that was throttled before this process began. Its bucket is empty, so that a restart gives no second
    /// burst.
    pub(crate) fn resume(&self, now: Timestamp, key: &ThrottleKey, throttle: Throttle) {
        let bucket = SharedBucket::new(now, Bucket::empty(now, throttle));
        lock(&self.0).insert(key.clone(), Arc::new(Mutex::new(bucket)));
    }

    /// Throttles a key no longer.
    pub(crate) fn remove(&self, key: &ThrottleKey) {
        lock(&self.0).remove(key);
    }

    /// Returns the buckets as one broker sees them.
    pub(crate) fn for_broker(&self, broker: usize) -> BrokerBuckets {
        BrokerBuckets {
            buckets: self.clone(),
            broker,
        }
    }
}

/// The shared buckets, as one broker sees them.
#[derive(Debug)]
pub(crate) struct BrokerBuckets {
    buckets: SharedBuckets,
    broker: usize,
}

impl TokenSource for BrokerBuckets {
    fn find(&mut self, key: &ThrottleKey) -> Option<Box<dyn Tokens>> {
        let bucket = lock(&self.buckets.0).get(key)?.clone();
        Some(Box::new(BrokerTokens {
            bucket,
            broker: self.broker,
        }))
    }
}

/// One shared bucket, as one broker sees it.
#[derive(Debug)]
struct BrokerTokens {
    bucket: Arc<Mutex<SharedBucket>>,
    broker: usize,
}

impl Tokens for BrokerTokens {
    fn available(&mut self, now: Timestamp) -> u64 {
        lock(&self.bucket).available(now, self.broker)
    }

    fn take(&mut self, now: Timestamp) -> bool {
        lock(&self.bucket).take(now, self.broker)
    }

    fn give_back(&mut self) {
        lock(&self.bucket).give_back(self.broker);
    }

    fn when(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        lock(&self.bucket).when(now, tokens)
    }

    fn arrival(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        lock(&self.bucket).arrival(now, tokens)
    }

    fn rate(&self) -> u128 {
        lock(&self.bucket).rate()
    }

    fn set_waiting(&mut self, now: Timestamp, is_waiting: bool) {
        lock(&self.bucket).set_waiting(now, self.broker, is_waiting);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn key() -> ThrottleKey {
        ThrottleKey::parse("api").unwrap()
    }

    #[test]
    fn brokers_see_the_same_bucket_through_changes_of_its_throttle() {
        let buckets = SharedBuckets::default();
        buckets.resume(at(0), &key(), Throttle::new(10.0, 4.0).unwrap());
        let mut sources = [0, 1].map(|broker| buckets.for_broker(broker));
        let [mut one, mut two] = sources.each_mut().map(|it| it.find(&key()).unwrap());
        assert!(!one.take(at(99)), "it begins without tokens");
        assert!(one.take(at(100)));
        assert!(!two.take(at(100)), "the other broker has had it");
        one.give_back();
        assert!(two.take(at(100)), "it was put back");
        buckets.set(at(100), &key(), Throttle::new(1_000.0, 2.0).unwrap());
        assert_eq!((one.available(at(110)), two.available(at(110))), (2, 2));
        buckets.remove(&key());
        assert!(sources[0].find(&key()).is_none());
    }

    #[test]
    fn threads_together_take_no_more_than_there_is_and_lose_nothing() {
        let buckets = SharedBuckets::default();
        buckets.set(at(0), &key(), Throttle::new(1.0, 1_000.0).unwrap());
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|broker| {
                    let mut tokens = buckets.for_broker(broker).find(&key()).unwrap();
                    scope.spawn(move || {
                        tokens.set_waiting(at(0), true);
                        let mut taken = 0;
                        while tokens.take(at(0)) {
                            taken += 1;
                            if taken % 3 == 0 {
                                tokens.give_back();
                                taken -= 1;
                                assert!(tokens.available(at(10)) <= 1_000);
                            }
                            if taken % 3 == 2 {
                                taken += usize::from(tokens.take(at(0)));
                            }
                        }
                        taken
                    })
                })
                .collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(taken, 1_000);
    }
}
