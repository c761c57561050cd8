//! Telling refused clients when to come back, so that there is room for them when they do.
//!
//! Nobody can tell a client that comes back from one that comes for the first time, so room cannot be kept for
//! it by name. What can be done, for a tenant that is being refused:
//!
//! - **Its door shuts** when its queue is full, until half of it is free. Otherwise the next request, from
//!   whichever of its clients happens to send one, takes each place that comes free, and those who wait as they
//!   were told never find any.
//! - **Those who are refused are told different moments**, far enough apart for twenty requests to be served in
//!   between. A wait is told in whole seconds, so the moments that can be told are a second apart from each
//!   other; the first is taken near which nobody else was told to come.
//!
//! So those who come back fill the queue slowly: the door is open for as long as it takes half a queue of them
//! to come, and shut for as long as it takes half a queue to be served, which is a twentieth of that.
//!
//! The pace is measured, from the first refusal on and over the last seconds; until there is one, half a queue of
//! clients is told to come with each second. When every moment of the next minute
//! is taken, because there is a flood of clients who do not listen, moments are given out in turn.
//!
//! A tenant has a line only while it is being refused. Their number is bounded; tenants beyond it are told to
//! come back in a second, and their door does not shut.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest that anybody is told to wait, in seconds.
const SECONDS_MAX: u64 = 60;
/// How many requests of a tenant are served for each that comes back.
const SERVED_PER_RETURN: f64 = 20.0;
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
    epoch: Instant,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    lines: HashMap<K, Line>,
    sweep_at: Option<Instant>,
}

#[derive(Debug)]
struct Line {
    is_shut: bool,
    promises: Promises,
    /// The last moment that was promised to somebody.
    promised: Instant,
    /// How many have been refused.
    refused: u64,
    /// Requests served since `since`; both are halved now and then.
    served: f64,
    since: Instant,
}

/// What a refused client is up against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    /// How many requests have to be served before there is room.
    pub(crate) in_the_way: usize,
    /// For how many there is room then.
    pub(crate) at_once: usize,
    /// Whether the refusal shuts the door.
    pub(crate) shuts: bool,
}

impl Line {
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

    /// Shuts the door behind a tenant that has just been let in, if that has filled its queue.
    pub(crate) fn shut_behind(&self, tenant: &K, is_full: impl FnOnce() -> bool) {
        if self.is_empty() {
            return;
        }
        if let Some(line) = self.lock().lines.get_mut(tenant) {
            line.is_shut = line.is_shut || is_full();
        }
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

    /// Puts a refused client in its tenant's line, and returns how long it is to wait, in whole seconds.
    pub(crate) fn join(&self, tenant: &K, crowd: Crowd, now: Instant) -> Duration {
        let mut guard = self.lock();
        let state = &mut *guard;
        self.sweep(state, now);
        if state.lines.len() >= LINES_MAX && !state.lines.contains_key(tenant) {
            return Duration::from_secs(1);
        }
        let line = state.lines.entry(tenant.clone()).or_insert_with(|| Line {
            is_shut: false,
            promises: Promises::default(),
            promised: now,
            refused: 0,
            served: 0.0,
            since: now,
        });
        line.is_shut |= crowd.shuts;
        line.refused += 1;
        let seconds = match line.pace(now) {
            Some(pace) => {
                let before = (crowd.in_the_way as f64 / pace).min(SECONDS_MAX as f64 - 1.0);
                let apart = (SERVED_PER_RETURN / pace).min(SECONDS_MAX as f64);
                let (first, apart) = (1 + before as u64, Duration::from_secs_f64(apart));
                let since_epoch = now.saturating_duration_since(self.epoch);
                let free = line.promises.promise(since_epoch, apart, first);
                free.unwrap_or(first + line.refused % (SECONDS_MAX - first + 1))
            }
            // Before anybody has been served, as many are called back at a time as there will be room for.
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

/// How finely promised moments are told apart.
const BIN: Duration = Duration::from_millis(5);
const BINS_PER_SECOND: u64 = 200;
const WORDS: usize = (BINS_PER_SECOND * (SECONDS_MAX + 4)).div_ceil(64) as usize;
const BINS: u64 = WORDS as u64 * 64;

/// The moments of the next minute at which somebody was told to come: a ring with a bit for every 5 ms.
#[derive(Debug)]
struct Promises {
    bits: Box<[u64; WORDS]>,
    /// The first bin, counted from the epoch, that has not passed.
    present: u64,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            bits: Box::new([0; WORDS]),
            present: 0,
        }
    }
}

impl Promises {
    /// Promises the first moment that is `first` or more whole seconds ahead and `apart` from all others. Returns
    /// how many seconds ahead it is; `None` if there is none such.
    fn promise(&mut self, now: Duration, apart: Duration, first: u64) -> Option<u64> {
        let present = (now.as_nanos() / BIN.as_nanos()) as u64;
        self.pass(present);
        let apart = (apart.as_nanos() / BIN.as_nanos()) as u64;
        let is_free = |&seconds: &u64| {
            let bin = present + seconds * BINS_PER_SECOND;
            let last = (bin + apart).min(present + BINS - 1);
            !self.any(bin.saturating_sub(apart).max(present), last)
        };
        let seconds = (first..=SECONDS_MAX).find(is_free)?;
        let bin = (present + seconds * BINS_PER_SECOND) % BINS;
        self.bits[(bin / 64) as usize] |= 1 << (bin % 64);
        Some(seconds)
    }

    /// Forgets what has passed.
    fn pass(&mut self, present: u64) {
        for bin in self.present..present.min(self.present + BINS) {
            let bin = bin % BINS;
            self.bits[(bin / 64) as usize] &= !(1 << (bin % 64));
        }
        self.present = self.present.max(present);
    }

    /// Returns whether anything is promised from one bin to another, fewer than all bins apart.
    fn any(&self, from: u64, to: u64) -> bool {
        let mut bin = from;
        while bin <= to {
            let at = bin % BINS;
            let (word, bit) = ((at / 64) as usize, at % 64);
            let count = (64 - bit).min(to - bin + 1);
            let mask = (u64::MAX >> (64 - count)) << bit;
            if self.bits[word] & mask != 0 {
                return true;
            }
            bin += count;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A crowd that shuts the door.
    fn crowd(in_the_way: usize) -> Crowd {
        Crowd {
            in_the_way,
            at_once: 50,
            shuts: true,
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
    fn those_who_are_refused_at_once_are_told_to_come_a_second_apart() {
        let (lines, now) = line(100);
        let waits: Vec<u64> = (0..10)
            .map(|_| lines.join(&1, crowd(0), now).as_secs())
            .collect();
        assert_eq!(waits, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn those_who_come_back_come_at_a_twentieth_of_the_pace() {
        let (lines, mut now) = line(100); // so 200 ms apart
        let mut moments = Vec::new();
        for _ in 0..100 {
            moments.push(now + lines.join(&1, crowd(0), now));
            now += SECOND / 100;
            lines.count_served(&1, || now);
        }
        moments.sort_unstable();
        for pair in moments.windows(2) {
            let apart = pair[1] - pair[0];
            assert!(apart >= SECOND / 5 - 2 * BIN, "{apart:?}");
        }
    }

    #[test]
    fn nobody_is_told_a_moment_before_there_is_room() {
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
    fn promises_are_forgotten_when_they_have_passed() {
        let mut promises = Promises::default();
        let apart = 100 * BIN;
        let mut now = Duration::from_secs(1_000);
        for _ in 0..1_000 {
            assert_eq!(promises.promise(now, apart, 1), Some(1));
            now += apart + BIN; // far enough, and each is forgotten before its place comes again
        }
        let mut crowded = Promises::default();
        let moments = (0..100).map_while(|_| crowded.promise(now, BIN, 1));
        assert_eq!(moments.count(), 60);
        assert_eq!(crowded.promise(now + 2 * BIN, BIN, 1), Some(1));
        assert_eq!(
            crowded.promise(now + 3 * Duration::from_secs(60), BIN, 60),
            Some(60)
        );
    }

    #[test]
    fn a_shut_door_opens_when_there_is_room_enough() {
        let now = Instant::now();
        let lines = Lines::new(now);
        assert!(!lines.is_shut(&1, || false));
        lines.join(&1, crowd(0), now);
        assert!(lines.is_shut(&1, || false));
        assert!(!lines.is_shut(&2, || false), "another's door");
        assert!(!lines.is_shut(&1, || true));
        assert!(!lines.is_shut(&1, || false), "it stays open");
        let harmless = Crowd {
            shuts: false,
            ..crowd(0)
        };
        lines.join(&1, harmless, now);
        assert!(
            !lines.is_shut(&1, || false),
            "this refusal does not shut it"
        );
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
            lines.join(&1, crowd(0), now); // somebody is still there
            serve(&lines, 1, SECOND / 10, &mut now, SECOND);
        }
        let pace = lines.lock().lines[&1].pace(now);
        assert!(
            pace.is_some_and(|pace| (5.0..150.0).contains(&pace)),
            "{pace:?}"
        );
    }
}
