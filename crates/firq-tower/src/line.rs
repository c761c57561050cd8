//! Telling refused clients when to come back, so that there is room for them when they do.
//!
//! Nobody can tell a client that comes back from one that comes for the first time, so room cannot be kept for
//! it by name. What can be done, for a tenant that is refused:
//!
//! - **Its door stays shut** until an eighth of its queue is free. Otherwise the next request, from whichever
//!   of its clients happens to send one, takes each place that comes free, and those who wait as they were
//!   told never find any.
//! - **Those who are refused form a line**: each is told a later moment than the one before. They come back at
//!   no more than a tenth of the pace at which the tenant is served, and so they find the door open nine
//!   times of ten: of the time it takes to fill an eighth of the queue at that pace, a tenth is enough to
//!   serve it.
//!
//! The pace is measured, from the first refusal on and over the last seconds. A line that would reach further
//! than a minute starts over, so a flood of clients who do not listen cannot push those who do away for ever.
//!
//! A tenant has a line only while it is being refused. Their number is bounded; tenants beyond it are told to
//! come back in a second, and their door does not stay shut.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest that anybody is told to wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How many requests of a tenant are served for each that comes back.
const SERVED_PER_RETURN: f64 = 10.0;
/// Over which time a tenant's pace is measured, at most.
const MEMORY: Duration = Duration::from_secs(4);
/// The most tenants that have a line at the same time.
const LINES_MAX: usize = 4096;
/// How often lines are looked through for those that have ended.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The lines of all tenants that are being refused.
#[derive(Debug)]
pub(crate) struct Lines<K> {
    /// How many there are, so that nobody needs the lock while there is none.
    count: AtomicUsize,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    lines: HashMap<K, Line>,
    sweep_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    is_shut: bool,
    /// The moment that was promised last.
    promised: Instant,
    /// Requests served since `since`; both are halved now and then.
    served: f64,
    since: Instant,
}

impl Line {
    /// Returns how many requests of the tenant are served per second, if that can be said.
    fn pace(&self, now: Instant) -> Option<f64> {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        (self.served >= 1.0 && seconds > 0.0).then(|| self.served / seconds)
    }
}

impl<K: Hash + Eq + Clone> Lines<K> {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            state: Mutex::new(State {
                lines: HashMap::new(),
                sweep_at: None,
            }),
        }
    }

    /// Returns whether a tenant's door is shut. `is_low` says whether enough of its queue is free to open it.
    pub(crate) fn is_shut(&self, tenant: &K, is_low: impl FnOnce() -> bool) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut state = self.lock();
        let Some(line) = state.lines.get_mut(tenant) else {
            return false;
        };
        if line.is_shut && is_low() {
            line.is_shut = false;
        }
        line.is_shut
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

    /// Puts a refused client in its tenant's line, and returns how long it is to wait.
    ///
    /// `in_the_way` is how many requests have to be served before the door opens; `shuts` says whether the
    /// refusal shuts it.
    pub(crate) fn join(
        &self,
        tenant: &K,
        in_the_way: usize,
        shuts: bool,
        now: Instant,
    ) -> Duration {
        let mut guard = self.lock();
        let state = &mut *guard;
        self.sweep(state, now);
        if state.lines.len() >= LINES_MAX && !state.lines.contains_key(tenant) {
            return Duration::from_secs(1);
        }
        let line = state.lines.entry(tenant.clone()).or_insert(Line {
            is_shut: false,
            promised: now,
            served: 0.0,
            since: now,
        });
        line.is_shut |= shuts;
        let pace = line.pace(now).unwrap_or(f64::INFINITY);
        let opens = now + seconds(in_the_way as f64 / pace);
        let next = line.promised + seconds(SERVED_PER_RETURN / pace);
        line.promised = match next.max(opens) {
            next if next > now + WAIT_MAX => opens.min(now + WAIT_MAX),
            next => next,
        };
        let wait = line.promised.saturating_duration_since(now);
        self.count.store(state.lines.len(), Ordering::Relaxed);
        wait
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Forgets the lines in which nobody can be any more.
    fn sweep(&self, state: &mut State<K>, now: Instant) {
        if state.sweep_at.is_some_and(|sweep_at| now < sweep_at) {
            return;
        }
        state.sweep_at = Some(now + SWEEP_EVERY);
        state.lines.retain(|_, line| line.promised + MEMORY > now);
        self.count.store(state.lines.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a time that is not longer than anybody has to wait.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, WAIT_MAX.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Serves one request every `every` for a while.
    fn serve(lines: &Lines<u8>, tenant: u8, every: Duration, now: &mut Instant, time: Duration) {
        let end = *now + time;
        while *now < end {
            *now += every;
            lines.count_served(&tenant, || *now);
        }
    }

    #[test]
    fn those_who_are_refused_are_told_ever_later_moments_at_a_tenth_of_the_pace() {
        let (lines, mut now) = (Lines::new(), Instant::now());
        lines.join(&1, 0, true, now);
        serve(&lines, 1, SECOND / 100, &mut now, 3 * SECOND); // 100 a second
        let first = lines.join(&1, 0, true, now);
        let waits: Vec<Duration> = (0..20).map(|_| lines.join(&1, 0, true, now)).collect();
        for (number, wait) in waits.iter().enumerate() {
            let expected = first + SECOND / 10 * (number as u32 + 1);
            assert!(
                wait.abs_diff(expected) < SECOND / 50,
                "{wait:?}, not {expected:?}"
            );
        }
    }

    #[test]
    fn nobody_is_told_a_moment_before_the_door_opens() {
        let (lines, mut now) = (Lines::new(), Instant::now());
        lines.join(&1, 0, true, now);
        serve(&lines, 1, SECOND / 10, &mut now, 3 * SECOND);
        let wait = lines.join(&1, 50, true, now);
        assert!((4 * SECOND..6 * SECOND).contains(&wait), "{wait:?}");
    }

    #[test]
    fn a_flood_cannot_push_the_others_away_for_ever() {
        let (lines, mut now) = (Lines::new(), Instant::now());
        lines.join(&1, 0, true, now);
        serve(&lines, 1, SECOND, &mut now, 3 * SECOND);
        for _ in 0..100_000 {
            assert!(lines.join(&1, 5, true, now) <= WAIT_MAX);
        }
        let waits: Vec<Duration> = (0..100).map(|_| lines.join(&1, 5, true, now)).collect();
        let shortest = waits.iter().min().copied();
        assert!(
            shortest < Some(20 * SECOND),
            "the line starts over: {shortest:?}"
        );
    }

    #[test]
    fn a_shut_door_opens_when_there_is_room_enough() {
        let (lines, now) = (Lines::new(), Instant::now());
        assert!(!lines.is_shut(&1, || false));
        lines.join(&1, 0, true, now);
        assert!(lines.is_shut(&1, || false));
        assert!(!lines.is_shut(&2, || false), "another's door");
        assert!(!lines.is_shut(&1, || true));
        assert!(!lines.is_shut(&1, || false), "it stays open");
        lines.join(&1, 0, false, now);
        assert!(
            !lines.is_shut(&1, || false),
            "this refusal does not shut it"
        );
    }

    #[test]
    fn lines_end_and_are_bounded() {
        let (lines, mut now) = (Lines::new(), Instant::now());
        for tenant in 0..2 * LINES_MAX as u32 {
            assert!(lines.join(&tenant, 1, true, now) <= SECOND);
        }
        assert_eq!(lines.lock().lines.len(), LINES_MAX);
        now += 2 * MEMORY;
        lines.count_served(&0, || now);
        assert!(lines.is_empty() && lines.lock().lines.is_empty());
    }

    #[test]
    fn a_pace_is_that_of_the_last_seconds() {
        let (lines, mut now) = (Lines::new(), Instant::now());
        lines.join(&1, 0, true, now);
        serve(&lines, 1, SECOND / 1000, &mut now, 4 * SECOND);
        for _ in 0..10 {
            lines.join(&1, 0, true, now); // somebody is still there
            serve(&lines, 1, SECOND / 10, &mut now, SECOND);
        }
        let pace = lines.lock().lines[&1].pace(now);
        assert!(
            pace.is_some_and(|pace| (5.0..150.0).contains(&pace)),
            "{pace:?}"
        );
    }
}
