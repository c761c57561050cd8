//! Buckets that a test changes while brokers take from them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fila_core::{Bucket, SharedBucket, Throttle, TokenSource, Tokens};
use fila_store::{ThrottleKey, Timestamp};

/// The taker that is no broker: the test itself.
const OUTSIDER: usize = usize::MAX;

type TestBucket = Arc<Mutex<SharedBucket>>;

/// The buckets of all keys that are throttled. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets(Arc<Mutex<HashMap<ThrottleKey, TestBucket>>>);

impl Buckets {
    pub(crate) fn set(&self, now: Timestamp, key: &ThrottleKey, throttle: Throttle) {
        if let Some(bucket) = self.bucket(key) {
            return bucket.lock().unwrap().set(now, throttle);
        }
        self.insert(now, key, Bucket::full(now, throttle));
    }

    pub(crate) fn insert(&self, now: Timestamp, key: &ThrottleKey, bucket: Bucket) {
        let bucket = Arc::new(Mutex::new(SharedBucket::new(now, bucket)));
        self.0.lock().unwrap().insert(key.clone(), bucket);
    }

    pub(crate) fn remove(&self, key: &ThrottleKey) {
        self.0.lock().unwrap().remove(key);
    }

    /// Returns how many tokens a bucket has.
    #[allow(dead_code, reason = "unit tests use it, integration tests do not")]
    pub(crate) fn available(&self, now: Timestamp, key: &ThrottleKey) -> u64 {
        let bucket = self.bucket(key).unwrap();
        bucket.lock().unwrap().available(now, OUTSIDER)
    }

    /// Takes a token, as another broker would.
    #[allow(dead_code, reason = "unit tests use it, integration tests do not")]
    pub(crate) fn take(&self, now: Timestamp, key: &ThrottleKey) -> bool {
        let bucket = self.bucket(key).unwrap();
        bucket.lock().unwrap().take(now, OUTSIDER)
    }

    fn bucket(&self, key: &ThrottleKey) -> Option<TestBucket> {
        self.0.lock().unwrap().get(key).cloned()
    }

    /// Returns the buckets as one broker sees them.
    pub(crate) fn source(&self, broker: usize) -> Box<dyn TokenSource> {
        Box::new(BrokerBuckets(self.clone(), broker))
    }
}

#[derive(Debug)]
struct BrokerBuckets(Buckets, usize);

impl TokenSource for BrokerBuckets {
    fn find(&mut self, key: &ThrottleKey) -> Option<Box<dyn Tokens>> {
        Some(Box::new(BrokerTokens(self.0.bucket(key)?, self.1)))
    }
}

#[derive(Debug)]
struct BrokerTokens(TestBucket, usize);

impl Tokens for BrokerTokens {
    fn available(&mut self, now: Timestamp) -> u64 {
        self.0.lock().unwrap().available(now, self.1)
    }

    fn take(&mut self, now: Timestamp) -> bool {
        self.0.lock().unwrap().take(now, self.1)
    }

    fn give_back(&mut self) {
        self.0.lock().unwrap().give_back(self.1);
    }

    fn when(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        self.0.lock().unwrap().when(now, tokens)
    }

    fn arrival(&mut self, now: Timestamp, tokens: u64) -> Option<Timestamp> {
        self.0.lock().unwrap().arrival(now, tokens)
    }

    fn rate(&self) -> u128 {
        self.0.lock().unwrap().rate()
    }

    fn set_waiting(&mut self, now: Timestamp, is_waiting: bool) {
        self.0.lock().unwrap().set_waiting(now, self.1, is_waiting);
    }
}
