//! The last answers of a hook, by the headers of the message.
//!
//! Two halves: new answers go into one. When that is full, it becomes the old half, and the previous old half is dropped.
//! A lookup moves an answer to the new half, so answers in use stay, without a list in the order of use. The cache keeps
//! no headers, only a 64-bit hash of them with a secret of this process, so clients cannot construct collisions.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

use fila_store::Schedule;
use foldhash::quality::RandomState;

use crate::telemetry::{TRACEPARENT, TRACESTATE};

/// Answers in each half.
const HALF: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct LastGood {
    secret: RandomState,
    halves: Mutex<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    new: HashMap<u64, Schedule, RandomState>,
    old: HashMap<u64, Schedule, RandomState>,
}

impl Halves {
    fn keep(&mut self, number: u64, answer: Schedule) {
        if self.new.len() >= HALF {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(number, answer);
    }
}

impl LastGood {
    pub(super) fn remember(&self, headers: &[(String, String)], answer: &Schedule) {
        let number = self.number(headers);
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        match halves.new.get_mut(&number) {
            Some(known) if known == answer => {}
            Some(known) => *known = answer.clone(),
            None => halves.keep(number, answer.clone()),
        }
    }

    pub(super) fn find(&self, headers: &[(String, String)]) -> Option<Schedule> {
        let number = self.number(headers);
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = halves.new.get(&number) {
            return Some(found.clone());
        }
        let found = halves.old.remove(&number)?;
        halves.keep(number, found.clone());
        Some(found)
    }

    /// Hashes headers in any order. Trace headers differ for every message and no policy depends on them, so they do not
    /// count.
    fn number(&self, headers: &[(String, String)]) -> u64 {
        let policy = headers
            .iter()
            .filter(|(name, _)| name != TRACEPARENT && name != TRACESTATE);
        let numbers = policy.map(|header| self.secret.hash_one(header));
        numbers.fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use fila_store::FairnessKey;

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
        let halves = cache.halves.lock().unwrap();
        assert!(halves.new.len() + halves.old.len() <= 2 * HALF);
    }
}
