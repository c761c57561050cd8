//! The last answers of a hook, by the headers of the message and by the fairness key of the answer.
//!
//! Two halves: new answers go into one. When that is full, it becomes the old half, and the previous old half is dropped.
//! A lookup moves an answer to the new half, so answers in use stay, without a list in the order of use. The cache keeps
//! no headers, only a 64-bit hash of them with a secret of this process, so clients cannot construct collisions.
//!
//! Headers that differ for every message fill the answers by headers only, so a flood of them does not displace the
//! answers by key.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fila_store::{FairnessKey, Schedule};
use foldhash::quality::RandomState;

use crate::telemetry::{TRACEPARENT, TRACESTATE};

/// Answers in each half.
const HALF: usize = 4_096;

/// About how many bytes of answers each half may take.
const HALF_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct LastGood {
    secret: RandomState,
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    by_headers: Halves,
    by_key: Halves,
}

#[derive(Debug, Default)]
struct Halves {
    new: HashMap<u64, Arc<Schedule>, RandomState>,
    old: HashMap<u64, Arc<Schedule>, RandomState>,
    /// Bytes of the new half.
    bytes: usize,
}

impl Halves {
    fn find(&mut self, number: u64) -> Option<Arc<Schedule>> {
        if let Some(found) = self.new.get(&number) {
            return Some(found.clone());
        }
        let found = self.old.remove(&number)?;
        self.keep(number, found.clone());
        Some(found)
    }

    fn keep(&mut self, number: u64, answer: Arc<Schedule>) {
        if self.new.len() >= HALF || self.bytes >= HALF_BYTES {
            self.old = std::mem::take(&mut self.new);
            self.bytes = 0;
        }
        self.bytes += bytes(&answer);
        self.new.insert(number, answer);
    }

    fn has(&self, number: u64, answer: &Schedule) -> bool {
        self.new
            .get(&number)
            .is_some_and(|known| **known == *answer)
    }
}

fn bytes(answer: &Schedule) -> usize {
    let keys = answer
        .throttle_keys
        .iter()
        .map(|key| 32 + key.as_str().len());
    size_of::<Schedule>() + answer.fairness_key.as_bytes().len() + keys.sum::<usize>()
}

impl LastGood {
    pub(super) fn remember(&self, headers: &[(String, String)], answer: &Schedule) {
        let headers = self.number_of_headers(headers);
        let key = self.number_of_key(&answer.fairness_key);
        let mut answers = self.answers();
        let is_known = (
            answers.by_headers.has(headers, answer),
            answers.by_key.has(key, answer),
        );
        if is_known == (true, true) {
            return;
        }
        let answer = Arc::new(answer.clone());
        if !is_known.0 {
            answers.by_headers.keep(headers, answer.clone());
        }
        if !is_known.1 {
            answers.by_key.keep(key, answer);
        }
    }

    /// Returns the last answer for these headers.
    pub(super) fn find(&self, headers: &[(String, String)]) -> Option<Schedule> {
        let number = self.number_of_headers(headers);
        let found = self.answers().by_headers.find(number)?;
        Some(Schedule::clone(&found))
    }

    /// Returns the fairness key of the last answer for these headers.
    pub(super) fn find_key_of(&self, headers: &[(String, String)]) -> Option<FairnessKey> {
        let number = self.number_of_headers(headers);
        let found = self.answers().by_headers.find(number)?;
        Some(found.fairness_key.clone())
    }

    /// Returns the last answer that named this fairness key.
    pub(super) fn find_key(&self, key: &FairnessKey) -> Option<Schedule> {
        let number = self.number_of_key(key);
        let found = self.answers().by_key.find(number)?;
        (found.fairness_key == *key).then(|| Schedule::clone(&found))
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number_of_key(&self, key: &FairnessKey) -> u64 {
        self.secret.hash_one(key.as_bytes())
    }

    /// Hashes headers in any order. Trace headers differ for every message and no policy depends on them, so they do not
    /// count.
    fn number_of_headers(&self, headers: &[(String, String)]) -> u64 {
        let policy = headers
            .iter()
            .filter(|(name, _)| name != TRACEPARENT && name != TRACESTATE);
        let numbers = policy.map(|header| self.secret.hash_one(header));
        numbers.fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use fila_store::ThrottleKey;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn key(name: &str) -> Schedule {
        FairnessKey::new(name.to_owned()).unwrap().into()
    }

    #[test]
    fn the_last_answer_for_the_same_headers_is_found() {
        let cache = LastGood::default();
        let acme = headers(&[("tenant", "acme"), ("plan", "pro")]);
        cache.remember(&acme, &key("first"));
        cache.remember(&acme, &key("second"));
        assert_eq!(cache.find(&acme), Some(key("second")));
        let other_order = headers(&[("plan", "pro"), ("tenant", "acme")]);
        assert_eq!(cache.find(&other_order), Some(key("second")));
        let traced = headers(&[("traceparent", "x"), ("plan", "pro"), ("tenant", "acme")]);
        assert_eq!(cache.find(&traced), Some(key("second")));
        for others in [
            &[("tenant", "acme")][..],
            &[("tenant", "pro"), ("plan", "acme")],
            &[],
        ] {
            assert_eq!(cache.find(&headers(others)), None, "{others:?}");
        }
    }

    #[test]
    fn what_is_used_is_kept_and_the_rest_is_bounded() {
        let cache = LastGood::default();
        let used = headers(&[("tenant", "used")]);
        cache.remember(&used, &key("used"));
        for number in 0..10 * HALF {
            let name = number.to_string();
            cache.remember(&headers(&[("tenant", &name)]), &key(&name));
            assert_eq!(cache.find(&used), Some(key("used")));
        }
        let answers = cache.answers.lock().unwrap();
        for halves in [&answers.by_headers, &answers.by_key] {
            assert!(halves.new.len() + halves.old.len() <= 2 * HALF);
        }
    }

    #[test]
    fn answers_are_found_by_their_key_after_a_flood_of_other_headers() {
        let cache = LastGood::default();
        let answer = Schedule {
            weight: 7.try_into().unwrap(),
            throttle_keys: [ThrottleKey::parse("api").unwrap()].into(),
            ..key("acme")
        };
        cache.remember(&headers(&[("tenant", "acme")]), &answer);
        for number in 0..3 * HALF {
            let id = number.to_string();
            cache.remember(&headers(&[("tenant", "noisy"), ("id", &id)]), &key("noisy"));
        }
        assert_eq!(cache.find(&headers(&[("tenant", "acme")])), None);
        assert_eq!(cache.find_key(&answer.fairness_key), Some(answer));
        assert_eq!(cache.find_key(&FairnessKey::default()), None);
    }

    #[test]
    fn large_answers_are_bounded_in_bytes() {
        let cache = LastGood::default();
        let long = "x".repeat(200);
        for number in 0..2 * HALF {
            let name = format!("{number} {long}");
            let throttle = |at: usize| ThrottleKey::parse(&format!("{at} {name}")).unwrap();
            let answer = Schedule {
                throttle_keys: (0..16).map(throttle).collect(),
                ..key(&name)
            };
            cache.remember(&headers(&[("tenant", &name)]), &answer);
            let answers = cache.answers.lock().unwrap();
            for halves in [&answers.by_headers, &answers.by_key] {
                let kept = halves.new.values().chain(halves.old.values());
                let sum: usize = kept.map(|answer| bytes(answer)).sum();
                assert!(sum <= 2 * (HALF_BYTES + 8_192), "{sum}");
            }
        }
    }
}
