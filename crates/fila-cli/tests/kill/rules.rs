//! The server must never deliver more messages of a key than its cap, more than a throttle's rate, or a message that is
//! paused. The ledger lasts through all restarts.
//!
//! The client counts a delivery when it reads it, which is after the server made it. So a count here is never more than
//! the server's, and a rule that is broken here was broken there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

/// A queue, or one key of it, that was paused before the server began.
pub(crate) type Bar = (&'static str, Option<u64>);

/// A throttle that never changes.
struct Rate {
    keys: BTreeSet<u64>,
    per_second: f64,
    burst: f64,
    begun: Instant,
    total: u64,
    /// Of this server: since when it is and what its bucket had then, since when there are consumers, and how many it
    /// has let through.
    since: Instant,
    tokens: f64,
    consumed_since: Instant,
    count: u64,
    /// The most of what was allowed that a server has used.
    used: f64,
}

#[derive(Default)]
pub(crate) struct Rules {
    /// How many of a key may be with consumers at once.
    caps: BTreeMap<u64, u32>,
    held: BTreeMap<u64, u32>,
    most: BTreeMap<u64, u32>,
    barred: BTreeSet<Bar>,
    rate: Option<Rate>,
}

impl Rules {
    pub(crate) fn cap(&mut self, key: u64, cap: u32) {
        self.caps.insert(key, cap);
    }

    /// Puts these keys under one throttle for the rest of the run.
    pub(crate) fn throttle(&mut self, keys: BTreeSet<u64>, per_second: f64, burst: f64) {
        let now = Instant::now();
        self.rate = Some(Rate {
            keys,
            per_second,
            burst,
            begun: now,
            total: 0,
            since: now,
            tokens: burst,
            consumed_since: now,
            count: 0,
            used: 0.0,
        });
    }

    /// Says that a server is about to be started: leases are gone, and buckets are empty.
    pub(crate) fn begin(&mut self) {
        self.held.clear();
        if let Some(rate) = &mut self.rate {
            rate.since = Instant::now();
            (rate.tokens, rate.count) = (0.0, 0);
        }
    }

    /// Says that consumers are about to come. Before, nothing was delivered.
    pub(crate) fn consumers_come(&mut self) {
        if let Some(rate) = &mut self.rate {
            rate.consumed_since = Instant::now();
        }
    }

    pub(crate) fn bar(&mut self, bar: Bar, is_barred: bool) {
        match is_barred {
            true => self.barred.insert(bar),
            false => self.barred.remove(&bar),
        };
    }

    pub(crate) fn delivered(&mut self, queue: &'static str, key: u64) {
        for bar in [(queue, None), (queue, Some(key))] {
            assert!(!self.barred.contains(&bar), "{bar:?} is paused");
        }
        if let Some(cap) = self.caps.get(&key) {
            let held = self.held.entry(key).or_default();
            *held += 1;
            assert!(*held <= *cap, "{held} of key {key} are held, of {cap}");
            let most = self.most.entry(key).or_default();
            *most = (*most).max(*held);
        }
        if let Some(rate) = &mut self.rate
            && rate.keys.contains(&key)
        {
            rate.took_one();
        }
    }

    /// Says that a result is about to be sent.
    pub(crate) fn answered(&mut self, key: u64) {
        if let Some(held) = self.held.get_mut(&key) {
            *held = held.saturating_sub(1);
        }
    }
}

impl Rate {
    fn took_one(&mut self) {
        (self.total, self.count) = (self.total + 1, self.count + 1);
        // The broker's clock ticks in milliseconds: a stopwatch between two ticks sees one more.
        let worth = |since: Instant| self.per_second * (since.elapsed().as_secs_f64() + 0.001);
        let (total, count) = (self.total as f64, self.count as f64);
        let allowed = self.burst + worth(self.begun);
        assert!(total <= allowed, "{total} of {allowed:.1} in all");
        let allowed = self.tokens + worth(self.since);
        let allowed = allowed.min(self.burst + worth(self.consumed_since));
        assert!(count <= allowed, "{count} of {allowed:.1} since the start");
        self.used = self.used.max(count / allowed);
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.caps.iter().map(|(key, cap)| {
            let most = self.most.get(key).copied().unwrap_or_default();
            format!("{most} of {cap}")
        });
        let held: Vec<String> = held.collect();
        write!(f, "held at most {}", held.join(", "))?;
        let Some(rate) = &self.rate else {
            return Ok(());
        };
        let allowed = rate.burst + rate.per_second * rate.begun.elapsed().as_secs_f64();
        write!(
            f,
            "; through the throttle {} of {allowed:.0} allowed, at most {:.0} % of what a server might",
            rate.total,
            rate.used * 100.0
        )
    }
}
