//! Telling refused clients when to come back, so that there is room for them when they do.
//!
//! The layer cannot tell a client that comes back from one that comes for the first time, so it cannot reserve room
//! for it. For a tenant that is being refused, it does two things instead:
//!
//! - **It refuses some requests early**: none while the tenant's queue is half empty, and more the fuller it is.
//!   Otherwise the next request from any client takes each place that comes free, and clients that wait as they were
//!   told never find any. So there is room for every client most of the time, and the queue still never runs empty.
//! - **It tells refused clients different moments**, far enough apart for fifteen requests to be served in between.
//!   `Retry-After` is in whole seconds, so clients that are refused together can only be told moments that are whole
//!   seconds apart. A few may share a moment if no others come near it: a sixteenth of a queue, for which there is
//!   room most of the time. A client gets the first moment that has room.
//!
//! One request in sixteen then comes from a client that was refused before. As many as come back must be refused, so
//! one request in sixteen is refused, and fifteen of sixteen find room.
//!
//! We tried to admit no request until half of the queue is free, and it does not work. Clients that are refused
//! together come back together, fill the queue at the same moment of some second, and so make more clients
//! synchronise with them, until all are.
//!
//! The pace is measured, from the first refusal on and over the last seconds; until there is one, half a queue of
//! clients is told to come with each second. When every moment of the next minute
//! is taken, because many clients ignore the header, moments are given out in turn.
//!
//! A tenant has a line only while it is being refused, until four seconds after the last moment that a client of it
//! was told. Every refusal, an early one too, tells a moment of the next 60 seconds. The number of lines is bounded;
//! tenants beyond it are told to come back in a second, and are not refused early.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest wait that a client is told, in seconds.
const SECONDS_MAX: u64 = 60;
/// How many requests of a tenant are served for each that comes back.
const SERVED_PER_RETURN: f64 = 15.0;
/// Over which time a tenant's pace is measured, at most.
const MEMORY: Duration = Duration::from_secs(4);
/// Over how many requests it is averaged how full a tenant's queue is.
const FILL_MEMORY: f64 = 64.0;
/// The most tenants that have a line at the same time.
const LINES_MAX: usize = 1024;
/// How often the lines that have ended are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The lines of all tenants that are being refused.
#[derive(Debug)]
pub(crate) struct Lines<K> {
    /// The number of lines, so that requests need no lock while there are none.
    count: AtomicUsize,
    epoch: Instant,
    state: Mutex<LinesState<K>>,
}

#[derive(Debug)]
struct LinesState<K> {
    lines: HashMap<K, Line>,
    sweep_at: Option<Instant>,
}

#[derive(Debug)]
struct Line {
    /// Whether a request was refused because the tenant's own queue was full.
    was_full: bool,
    /// How full the tenant's queue has been of late, from 0 to 1.
    fill: f64,
    /// How much of a request is due to be refused early, less than one.
    early: f64,
    promises: Promises,
    /// The last moment that a client was told.
    promised: Instant,
    /// How many have been refused.
    refused: u64,
    /// Requests served since `since`; both are halved now and then.
    served: f64,
    since: Instant,
}

/// The competition that a refused client has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    /// How many requests have to be served before there is room.
    pub(crate) in_the_way: usize,
    /// For how many there is room then.
    pub(crate) at_once: usize,
    /// Whether the tenant's own queue is full, and not the whole queue.
    pub(crate) is_of_one: bool,
}

impl Line {
    /// Returns whether the last promised moment is so long ago that its client has come or will not.
    fn has_ended(&self, now: Instant) -> bool {
        self.promised + MEMORY <= now
    }

    /// Returns how many requests of the tenant are served per second, if that can be said.
    fn pace(&self, now: Instant) -> Option<f64> {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        (self.served >= 1.0 && seconds > 0.0).then(|| self.served / seconds)
    }
}

impl<K: Hash + Eq + Clone> Lines<K> {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            count: AtomicUsize::new(0),
            epoch: now,
            state: Mutex::new(LinesState {
                lines: HashMap::new(),
                sweep_at: None,
            }),
        }
    }

    /// Returns whether a request of a tenant is to be refused though its queue is not full yet. `fill` says how full
    /// it is, from 0 to 1.
    pub(crate) fn refuses_early(
        &self,
        tenant: &K,
        now: impl FnOnce() -> Instant,
        fill: impl FnOnce() -> f64,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        let now = now();
        let mut state = self.lock();
        let line = state.lines.get_mut(tenant);
        let Some(line) = line.filter(|line| line.was_full && !line.has_ended(now)) else {
            return false;
        };
        // Requests that follow an answer find the queue just shortened, others do not: on average all see the same.
        // But a request that finds it half empty is admitted, though it was full a while ago.
        let fill = fill();
        line.fill += (fill - line.fill) / FILL_MEMORY;
        // At a steady rate rather than by chance: refusals are spread evenly.
        line.early += (2.0 * line.fill.min(fill) - 1.0).clamp(0.0, 1.0);
        let refuses = line.early >= 1.0;
        if refuses {
            line.early -= 1.0;
        }
        refuses
    }

    /// Counts a request that is being served.
    pub(crate) fn count_served(&self, tenant: &K, now: impl FnOnce() -> Instant) {
        if self.is_empty() {
            return;
        }
        let now = now();
        let mut state = self.lock();
        self.sweep(&mut state, now);
        if let Some(line) = state.lines.get_mut(tenant) {
            line.served += 1.0;
            let age = now.saturating_duration_since(line.since);
            if age > MEMORY {
                line.served /= 2.0;
                line.since += age / 2;
            }
        }
    }

    /// Counts a request that passes. It has found the queue empty, so it is never one to be refused early.
    pub(crate) fn count_passed(&self, tenant: &K, now: impl Fn() -> Instant) {
        if self.is_empty() {
            return;
        }
        self.refuses_early(tenant, &now, || 0.0);
        self.count_served(tenant, &now);
    }

    /// Puts a refused client in its tenant's line, and returns how long it is to wait, in whole seconds.
    pub(crate) fn join(&self, tenant: &K, crowd: Crowd, now: Instant) -> Duration {
        let mut guard = self.lock();
        let state = &mut *guard;
        self.sweep(state, now);
        if state.lines.len() >= LINES_MAX && !state.lines.contains_key(tenant) {
            return Duration::from_secs(1);
        }
        let line = state.lines.entry(tenant.clone()).or_insert_with(|| Line {
            was_full: false,
            fill: 1.0,
            early: 0.0,
            promises: Promises::default(),
            promised: now,
            refused: 0,
            served: 0.0,
            since: now,
        });
        line.was_full |= crowd.is_of_one;
        line.refused += 1;
        let seconds = match line.pace(now) {
            Some(pace) => {
                let before = (crowd.in_the_way as f64 / pace).min(SECONDS_MAX as f64 - 1.0);
                let apart = (SERVED_PER_RETURN / pace).min(SECONDS_MAX as f64);
                let first = 1 + before as u64;
                let spread = Spread {
                    apart: Duration::from_secs_f64(apart),
                    at_once: (crowd.at_once / 8).clamp(1, 100) as u8,
                };
                let since_epoch = now.saturating_duration_since(self.epoch);
                let free = line.promises.promise(since_epoch, spread, first);
                free.unwrap_or(first + line.refused % (SECONDS_MAX - first + 1))
            }
            // Before any request was served, as many clients are called back at a time as will find room.
            None => 1 + ((line.refused - 1) / crowd.at_once.max(1) as u64).min(SECONDS_MAX - 1),
        };
        let wait = Duration::from_secs(seconds);
        line.promised = line.promised.max(now + wait);
        self.count.store(state.lines.len(), Ordering::Relaxed);
        wait
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Forgets the lines whose last moment has passed.
    fn sweep(&self, state: &mut LinesState<K>, now: Instant) {
        if state.sweep_at.is_some_and(|sweep_at| now < sweep_at) {
            return;
        }
        state.sweep_at = Some(now + SWEEP_EVERY);
        state.lines.retain(|_, line| !line.has_ended(now));
        self.count.store(state.lines.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, LinesState<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How finely promised moments are told apart.
const BIN: Duration = Duration::from_millis(10);
const BINS_PER_SECOND: u64 = 100;
const BINS: u64 = BINS_PER_SECOND * (SECONDS_MAX + 4);

/// For how long the search for a free moment is skipped when there was none.
const PAUSE: Duration = Duration::from_millis(100);

/// The moments of the next minute at which clients were told to come: a ring of how many, for every 10 ms.
#[derive(Debug)]
struct Promises {
    counts: Box<[u8]>,
    /// The first bin, counted from the epoch, that has not passed.
    present: u64,
    /// Until when, counted from the epoch, every moment is taken.
    full_until: Duration,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            counts: vec![0; BINS as usize].into(),
            present: 0,
            full_until: Duration::ZERO,
        }
    }
}

impl Promises {
    /// Promises the first moment that is `first` or more whole seconds ahead and around which there is room.
    /// Returns how many seconds ahead it is; `None` if there is none such.
    fn promise(&mut self, now: Duration, spread: Spread, first: u64) -> Option<u64> {
        if now < self.full_until {
            return None;
        }
        let present = (now.as_nanos() / BIN.as_nanos()) as u64;
        self.pass(present);
        let reach = spread.apart.saturating_mul(spread.at_once.into());
        let reach = (reach.as_nanos() / BIN.as_nanos()) as u64;
        let has_room = |&seconds: &u64| {
            let bin = present + seconds * BINS_PER_SECOND;
            let from = bin.saturating_sub(reach).max(present);
            let to = (bin + reach).min(present + BINS - 1);
            let mut left = spread.at_once;
            (from..=to).all(|bin| {
                let count = self.counts[(bin % BINS) as usize];
                let fits = count < left;
                left = left.saturating_sub(count);
                fits
            })
        };
        let Some(seconds) = (first..=SECONDS_MAX).find(has_room) else {
            self.full_until = now + PAUSE;
            return None;
        };
        let bin = (present + seconds * BINS_PER_SECOND) % BINS;
        self.counts[bin as usize] += 1; // fewer than `at_once`
        Some(seconds)
    }

    /// Forgets what has passed.
    fn pass(&mut self, present: u64) {
        for bin in self.present..present.min(self.present + BINS) {
            self.counts[(bin % BINS) as usize] = 0;
        }
        self.present = self.present.max(present);
    }
}

/// How clients are to come back.
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// How long after each other, on average.
    apart: Duration,
    /// How many may come at the same moment, if there is a longer pause around them; at least 1.
    at_once: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A crowd before a queue of a hundred.
    fn crowd(in_the_way: usize) -> Crowd {
        Crowd {
            in_the_way,
            at_once: 50,
            is_of_one: true,
        }
    }

    /// Serves one request every `every` for a while.
    fn serve(lines: &Lines<u8>, tenant: u8, every: Duration, now: &mut Instant, time: Duration) {
        let end = *now + time;
        while *now < end {
            *now += every;
            lines.count_served(&tenant, || *now);
        }
    }

    /// A line of a tenant that is served `pace` times a second.
    fn line(pace: u32) -> (Lines<u8>, Instant) {
        let mut now = Instant::now();
        let lines = Lines::new(now);
        lines.join(&1, crowd(0), now);
        serve(&lines, 1, SECOND / pace, &mut now, 3 * SECOND);
        (lines, now)
    }

    #[test]
    fn before_there_is_a_pace_half_a_queue_is_called_back_at_a_time() {
        let now = Instant::now();
        let lines = Lines::new(now);
        let waits: Vec<u64> = (0..120)
            .map(|_| lines.join(&1, crowd(0), now).as_secs())
            .collect();
        assert!(waits.is_sorted());
        assert_eq!((waits[0], waits[60], waits[119]), (1, 2, 3));
        let endless = (0..10_000).map(|_| lines.join(&1, crowd(0), now).as_secs());
        assert_eq!(endless.max(), Some(SECONDS_MAX));
    }

    #[test]
    fn clients_refused_together_are_told_to_come_a_few_at_a_time() {
        let (lines, now) = line(100);
        let waits: Vec<u64> = (0..10)
            .map(|_| lines.join(&1, crowd(0), now).as_secs())
            .collect();
        // Six at once are an eighth of the 50 that there is room for.
        assert_eq!(waits, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn refused_clients_come_back_at_a_fifteenth_of_the_pace() {
        let (lines, mut now) = line(100); // so 150 ms apart
        let mut moments = Vec::new();
        for _ in 0..100 {
            moments.push(now + lines.join(&1, crowd(0), now));
            now += SECOND / 100;
            lines.count_served(&1, || now);
        }
        moments.sort_unstable();
        for group in moments.windows(7) {
            let apart = group[6] - group[0];
            assert!(
                apart >= 6 * 3 * SECOND / 20 - 2 * BIN,
                "{apart:?} for seven"
            );
        }
    }

    #[test]
    fn no_client_is_told_a_time_before_there_is_room() {
        let (lines, now) = line(10);
        let wait = lines.join(&1, crowd(50), now);
        assert!((5 * SECOND..7 * SECOND).contains(&wait), "{wait:?}");
    }

    #[test]
    fn a_flood_cannot_push_the_others_away_for_ever() {
        let (lines, now) = line(1);
        for _ in 0..100_000 {
            assert!(lines.join(&1, crowd(5), now).as_secs() <= SECONDS_MAX);
        }
        let waits = (0..100).map(|_| lines.join(&1, crowd(5), now));
        let shortest = waits.min();
        assert!(
            shortest < Some(20 * SECOND),
            "moments are given out in turn: {shortest:?}"
        );
    }

    #[test]
    fn a_few_may_come_together_if_no_other_is_near() {
        let spread = Spread {
            apart: 10 * BIN,
            at_once: 3,
        };
        let mut promises = Promises::default();
        let now = Duration::from_secs(1_000);
        let together: Vec<_> = (0..7)
            .map_while(|_| promises.promise(now, spread, 1))
            .collect();
        assert_eq!(together, [1, 1, 1, 2, 2, 2, 3]);
        assert_eq!(
            promises.promise(now + 25 * BIN, spread, 1),
            Some(3),
            "too near to the first three"
        );
        assert_eq!(promises.promise(now + 35 * BIN, spread, 1), Some(1));
    }

    #[test]
    fn promises_are_forgotten_when_they_have_passed() {
        let spread = Spread {
            apart: 50 * BIN,
            at_once: 1,
        };
        let mut promises = Promises::default();
        let mut now = Duration::from_secs(1_000);
        for _ in 0..1_000 {
            assert_eq!(promises.promise(now, spread, 1), Some(1));
            now += 51 * BIN; // far enough, and each is forgotten before its place comes again
        }
    }

    #[test]
    fn when_every_slot_is_taken_the_search_pauses_for_a_while() {
        let spread = Spread {
            apart: BIN,
            at_once: 1,
        };
        let mut promises = Promises::default();
        let now = Duration::from_secs(1_000);
        let moments = (0..100).map_while(|_| promises.promise(now, spread, 1));
        assert_eq!(moments.count(), 60);
        assert_eq!(
            promises.promise(now + 2 * BIN, spread, 1),
            None,
            "though it is free"
        );
        assert_eq!(promises.promise(now + PAUSE, spread, 1), Some(1));
        assert_eq!(promises.promise(now + 180 * SECOND, spread, 60), Some(60));
    }

    #[test]
    fn early_refusals_are_the_more_the_fuller_the_queue_and_evenly_spread() {
        let now = Instant::now();
        let lines = Lines::new(now);
        assert!(
            !lines.refuses_early(&1, || now, || 1.0),
            "no request has been refused yet"
        );
        lines.join(&1, crowd(0), now);
        for (fill, refused) in [(1.0, 100), (0.75, 50), (0.6, 20), (0.5, 0), (0.0, 0)] {
            for _ in 0..1_000 {
                lines.refuses_early(&1, || now, || fill);
            }
            let answers: Vec<bool> = (0..100)
                .map(|_| lines.refuses_early(&1, || now, || fill))
                .collect();
            let count = answers.iter().filter(|&&refuses| refuses).count();
            assert!(
                count.abs_diff(refused) <= 1,
                "{count} at {fill}, not {refused}"
            );
            for part in answers.chunks(20) {
                let count = part.iter().filter(|&&refuses| refuses).count();
                assert!(count.abs_diff(refused / 5) <= 1, "{count} of 20 at {fill}");
            }
        }
        assert!(!lines.refuses_early(&2, || now, || 1.0), "another's");
        let everybodys = Crowd {
            is_of_one: false,
            ..crowd(0)
        };
        lines.join(&2, everybodys, now);
        assert!(
            !lines.refuses_early(&2, || now, || 1.0),
            "its own queue was not full"
        );
    }

    #[test]
    fn it_counts_how_full_the_queue_is_on_average_and_that_it_is_half_empty_now() {
        let now = Instant::now();
        let lines = Lines::new(now);
        lines.join(&1, crowd(0), now);
        assert!(
            !lines.refuses_early(&1, || now, || 0.4),
            "it was full a moment ago"
        );
        for _ in 0..1_000 {
            lines.refuses_early(&1, || now, || 0.5);
        }
        let refused = (0..20).filter(|_| lines.refuses_early(&1, || now, || 0.8));
        assert!(refused.count() <= 2, "it has not been full for long");
    }

    #[test]
    fn early_refusals_end_four_seconds_after_the_last_promised_moment() {
        let now = Instant::now();
        let lines = Lines::new(now);
        let wait = lines.join(&1, crowd(0), now);
        assert_eq!(wait, SECOND);
        let early = |after| lines.refuses_early(&1, || now + after, || 1.0);
        assert!(early(wait + MEMORY - BIN));
        assert!(!early(wait + MEMORY));
    }

    #[test]
    fn lines_end_and_are_bounded() {
        let mut now = Instant::now();
        let lines = Lines::new(now);
        for tenant in 0..2 * LINES_MAX as u32 {
            assert!(lines.join(&tenant, crowd(1), now) <= SECOND);
        }
        assert_eq!(lines.lock().lines.len(), LINES_MAX);
        now += 2 * MEMORY;
        lines.count_served(&0, || now);
        assert!(lines.is_empty() && lines.lock().lines.is_empty());
    }

    #[test]
    fn a_pace_is_that_of_the_last_seconds() {
        let (lines, mut now) = line(1_000);
        for _ in 0..10 {
            lines.join(&1, crowd(0), now); // a client is still in line
            serve(&lines, 1, SECOND / 10, &mut now, SECOND);
        }
        let pace = lines.lock().lines[&1].pace(now);
        assert!(
            pace.is_some_and(|pace| (5.0..150.0).contains(&pace)),
            "{pace:?}"
        );
    }
}
