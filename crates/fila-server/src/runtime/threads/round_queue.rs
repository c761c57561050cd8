//! The rounds that wait for the commit threads of one scheduler.
//!
//! One thread stages at a time, so that rounds are stored in their order. A round wakes one thread, if one sleeps and none
//! is staging: the thread that stages takes the next round, or wakes another thread for it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fila_core::Round;

/// The receiving side, which the commit threads share.
#[derive(Debug)]
pub(crate) struct RoundQueue {
    state: Mutex<RoundQueueState>,
    changed: Condvar,
}

#[derive(Debug)]
struct RoundQueueState {
    rounds: VecDeque<Round>,
    /// A thread has taken a round and has not staged it yet.
    is_staging: bool,
    /// The scheduler has ended.
    is_closed: bool,
    /// Commit threads that have not ended.
    threads: usize,
}

/// The sending side. Dropping it ends the commit threads once they have stored all rounds.
#[derive(Debug)]
pub(crate) struct RoundSender(Arc<RoundQueue>);

/// The right to stage a round. The next round is taken after it was dropped.
#[derive(Debug)]
pub(crate) struct Staging<'a>(&'a RoundQueue);

/// A thread that takes rounds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Attendance<'a>(&'a RoundQueue);

impl RoundQueue {
    /// Returns both sides of a queue for this number of threads.
    pub(crate) fn new(threads: usize) -> (RoundSender, Arc<Self>) {
        let queue = Arc::new(Self {
            state: Mutex::new(RoundQueueState {
                rounds: VecDeque::new(),
                is_staging: false,
                is_closed: false,
                threads,
            }),
            changed: Condvar::new(),
        });
        (RoundSender(queue.clone()), queue)
    }

    /// Notes the end of one of the threads when it is dropped.
    pub(crate) fn attend(&self) -> Attendance<'_> {
        Attendance(self)
    }

    /// Waits for the next round, which the caller stages. Returns `None` after the last one.
    pub(crate) fn next(&self) -> Option<(Round, Staging<'_>)> {
        let waits = |state: &mut RoundQueueState| {
            state.is_staging || state.rounds.is_empty() && !state.is_closed
        };
        let state = self.changed.wait_while(self.state(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let round = state.rounds.pop_front()?;
        state.is_staging = true;
        drop(state);
        Some((round, Staging(self)))
    }

    fn state(&self) -> MutexGuard<'_, RoundQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoundSender {
    /// Adds a round. Gives it back if all threads have ended.
    pub(crate) fn send(&self, round: Round) -> Result<(), Round> {
        let mut state = self.0.state();
        if state.threads == 0 {
            return Err(round);
        }
        state.rounds.push_back(round);
        let wakes = !state.is_staging;
        drop(state);
        if wakes {
            self.0.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for RoundSender {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_staging = false;
        let (waiting, is_closed) = (!state.rounds.is_empty(), state.is_closed);
        drop(state);
        if is_closed {
            self.0.changed.notify_all();
        } else if waiting {
            self.0.changed.notify_one();
        }
    }
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        self.0.state().threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round() -> Round {
        Round {
            batches: Vec::new(),
        }
    }

    #[test]
    fn threads_take_the_rounds_that_are_left_and_then_end() {
        let (sender, queue) = RoundQueue::new(1);
        sender.send(round()).unwrap();
        sender.send(round()).unwrap();
        drop(sender);
        assert!(queue.next().is_some());
        assert!(queue.next().is_some());
        assert!(queue.next().is_none());
    }

    #[test]
    fn the_next_round_is_taken_after_the_one_before_was_staged() {
        let (sender, queue) = RoundQueue::new(2);
        sender.send(round()).unwrap();
        sender.send(round()).unwrap();
        let (_, staging) = queue.next().unwrap();
        let (taken, is_taken) = crossbeam_channel::bounded(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let next = queue.next();
                taken.send(next.is_some()).unwrap();
            });
            assert!(is_taken.is_empty());
            drop(staging);
            assert_eq!(is_taken.recv(), Ok(true));
        });
    }

    #[test]
    fn a_round_is_given_back_if_no_thread_is_left() {
        let (sender, queue) = RoundQueue::new(1);
        let attendance = queue.attend();
        sender.send(round()).unwrap();
        drop(attendance);
        assert!(sender.send(round()).is_err());
    }
}
