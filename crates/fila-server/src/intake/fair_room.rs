//! Room that many callers share, and for which they wait in turns.
//!
//! While nothing waits, taking room is one atomic operation. Waiters stand in lines, one for each key, and [`drr`]
//! chooses the line whose first waiter is next: a key with a thousand waiters delays another key no more than a key
//! with one. Nothing is taken past waiters that could have it. There is one level of keys: a caller whose names are paths
//! gives their top as the key, so that naming more of them earns no more turns.
//!
//! A key may have a [`Part`], which bounds what it holds by the rule of [`drr::Pool`]. The line of a key whose part is
//! exhausted steps aside until room comes back, so it holds up no other line.

use std::collections::VecDeque;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use drr::{Cost, Keyed, Pool, Quantum, Weight};
use foldhash::fast::RandomState;
use tokio::sync::oneshot;

/// What a line is granted in its turn. A waiter that takes more puts its line into debt, so turns are short.
const QUANTUM: u64 = 4 << 10;

/// Room in bytes, shared by keys.
#[derive(Debug)]
pub(crate) struct FairRoom<K> {
    capacity: u64,
    used: AtomicU64,
    /// The number of waiters, and one more once the room is closed.
    waiting: AtomicUsize,
    turns: Mutex<Turns<K>>,
}

/// What one key holds of a room.
#[derive(Debug)]
pub(crate) struct Part<K> {
    key: K,
    held: AtomicU64,
}

/// The room is closed: no more is given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

#[derive(Debug)]
struct Turns<K> {
    lines: Keyed<K, Line<K>, RandomState>,
    /// The lines that stepped aside, in this order, each with the number of that step. An entry whose line has come
    /// back since counts for nothing.
    aside: VecDeque<(u32, u64)>,
    next_number: u64,
    is_closed: bool,
}

/// The waiters of one key, in the order in which they came.
#[derive(Debug)]
struct Line<K> {
    waiters: VecDeque<Waiter<K>>,
    /// The number of the step by which it stepped aside.
    aside: Option<u64>,
}

#[derive(Debug)]
struct Waiter<K> {
    /// Grows along a line.
    number: u64,
    bytes: u64,
    part: Option<Arc<Part<K>>>,
    granted: oneshot::Sender<()>,
}

impl<K> Part<K> {
    pub(crate) fn new(key: K) -> Self {
        Self {
            key,
            held: AtomicU64::new(0),
        }
    }
}

impl<K: Clone + Eq + Hash> FairRoom<K> {
    pub(crate) fn new(capacity: u64) -> Self {
        let quantum = Quantum::new(QUANTUM).expect("it is in range");
        Self {
            capacity,
            used: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            turns: Mutex::new(Turns {
                lines: Keyed::new(quantum, RandomState::default()),
                aside: VecDeque::new(),
                next_number: 0,
                is_closed: false,
            }),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns how many bytes are taken.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes room, if there is some and nothing waits for it.
    pub(crate) fn try_take(&self, bytes: u64, part: Option<&Part<K>>) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0 && self.take(bytes, part)
    }

    /// Joins the line of a key. The caller has the room once the turn completes, and gives it back.
    pub(crate) fn wait(
        self: &Arc<Self>,
        key: &K,
        bytes: u64,
        part: Option<Arc<Part<K>>>,
    ) -> Result<Turn<K>, Closed> {
        let mut turns = self.lock();
        if turns.is_closed {
            return Err(Closed);
        }
        // From here on, a caller that gives room back looks for waiters.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let number = turns.next_number;
        turns.next_number += 1;
        let (granted, on_grant) = oneshot::channel();
        let waiter = Waiter {
            number,
            bytes,
            part: part.clone(),
            granted,
        };
        let line = turns.join(key, waiter);
        self.grant(&mut turns);
        Ok(Turn {
            room: self.clone(),
            line,
            number,
            bytes,
            part,
            granted: on_grant,
            is_over: false,
        })
    }

    /// Tells whether callers of other keys wait.
    pub(crate) fn do_others_wait(&self, key: &K) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let turns = self.lock();
        let own = turns.lines.find(key);
        let is_waiting = own.is_some_and(|line| !turns.lines.is_idle(line));
        turns.lines.busy() > usize::from(is_waiting)
    }

    /// Gives room back, and passes it on to waiters.
    pub(crate) fn give_back(&self, bytes: u64, part: Option<&Part<K>>) {
        self.free(bytes, part);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let mut turns = self.lock();
            turns.call_back(part.map(|part| &part.key));
            self.grant(&mut turns);
        }
    }

    /// Lets all waiters go without room, and gives out no more.
    pub(crate) fn close(&self) {
        let mut turns = self.lock();
        if turns.is_closed {
            return;
        }
        turns.is_closed = true;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let lines = Keyed::new(turns.lines.engine().quantum(), RandomState::default());
        turns.lines = lines;
        turns.aside.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Turns<K>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: u64, part: Option<&Part<K>>) -> bool {
        let held = part.map_or(0, |part| part.held.load(Ordering::Relaxed));
        let taken = self
            .used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                let used = used.saturating_add(bytes);
                // The rule looks at the room that is left after the taking, so that some is always left.
                let capacity = self.capacity;
                let is_within = part.is_none() || held + bytes <= Pool { capacity, used }.part();
                (used <= capacity && is_within).then_some(used)
            });
        if let (Ok(_), Some(part)) = (taken, part) {
            part.held.fetch_add(bytes, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    fn free(&self, bytes: u64, part: Option<&Part<K>>) {
        if let Some(part) = part {
            part.held.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.used.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Gives room to waiters, each line in its turn, until there is no more.
    fn grant(&self, turns: &mut Turns<K>) {
        while let Some(line) = turns.lines.next_lane() {
            let Some(first) = turns.lines[line].waiters.front() else {
                turns.rest(line);
                continue;
            };
            if !self.take(first.bytes, first.part.as_deref()) {
                if first.part.is_none() {
                    // It stays the next one.
                    return;
                }
                turns.step_aside(line);
                continue;
            }
            let Some(waiter) = turns.pop(line) else {
                continue;
            };
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if waiter.granted.send(()).is_err() {
                self.free(waiter.bytes, waiter.part.as_deref());
            }
        }
    }
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Adds a waiter to the line of its key, and returns the line.
    fn join(&mut self, key: &K, waiter: Waiter<K>) -> u32 {
        let new = || {
            let line = Line {
                waiters: VecDeque::new(),
                aside: None,
            };
            (key.clone(), line)
        };
        let line = self.lines.find_or_insert_with(key, Weight::ONE, new);
        self.lines[line].waiters.push_back(waiter);
        self.lines.set_busy(line);
        self.lines.wake(line);
        line
    }

    /// Takes out the first waiter of a line, and charges the line.
    fn pop(&mut self, line: u32) -> Option<Waiter<K>> {
        let waiter = self.lines[line].waiters.pop_front()?;
        self.lines.charge(line, Cost::new(waiter.bytes));
        if self.lines[line].waiters.is_empty() {
            self.rest(line);
        }
        Some(waiter)
    }

    /// Takes out a waiter that no longer waits.
    fn leave(&mut self, line: u32, number: u64) {
        let waiters = &mut self.lines[line].waiters;
        if let Ok(place) = waiters.binary_search_by_key(&number, |waiter| waiter.number) {
            waiters.remove(place);
        }
        if waiters.is_empty() {
            self.come_back(line);
            self.rest(line);
        }
    }

    fn rest(&mut self, line: u32) {
        self.lines.sleep(line);
        self.lines.set_idle(line);
    }

    fn step_aside(&mut self, line: u32) {
        let step = self.next_number;
        self.next_number += 1;
        self.lines.park(line);
        self.lines[line].aside = Some(step);
        self.aside.push_back((line, step));
    }

    /// Lets the line of a key that holds less than before take part again, and the line that stepped aside first.
    fn call_back(&mut self, key: Option<&K>) {
        if let Some(line) = key.and_then(|key| self.lines.find(key)) {
            self.come_back(line);
        }
        while let Some((line, step)) = self.aside.pop_front() {
            let found = self.lines.get(line);
            if found.is_some_and(|found| found.aside == Some(step)) {
                return self.come_back(line);
            }
        }
    }

    fn come_back(&mut self, line: u32) {
        if self.lines[line].aside.take().is_some() {
            self.lines.unpark(line);
        }
    }
}

/// A place in a line. Dropping it leaves the line, or gives back what it got.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn<K: Clone + Eq + Hash> {
    room: Arc<FairRoom<K>>,
    line: u32,
    number: u64,
    bytes: u64,
    part: Option<Arc<Part<K>>>,
    granted: oneshot::Receiver<()>,
    /// Whether the room is the caller's, or will never come.
    is_over: bool,
}

impl<K: Clone + Eq + Hash> Future for Turn<K> {
    type Output = Result<(), Closed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let granted = std::task::ready!(Pin::new(&mut self.granted).poll(context));
        self.is_over = true;
        Poll::Ready(granted.map_err(|_| Closed))
    }
}

impl<K: Clone + Eq + Hash> Unpin for Turn<K> {}

impl<K: Clone + Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let room = self.room.clone();
        let mut turns = room.lock();
        match self.granted.try_recv() {
            Ok(()) => {
                drop(turns);
                room.give_back(self.bytes, self.part.as_deref());
            }
            Err(oneshot::error::TryRecvError::Empty) => {
                turns.leave(self.line, self.number);
                room.waiting.fetch_sub(1, Ordering::SeqCst);
                // It may have been in the way of others.
                room.grant(&mut turns);
            }
            Err(oneshot::error::TryRecvError::Closed) => {}
        }
    }
}

#[cfg(test)]
mod tests;
