//! A simulated dependency of a handler, which answers after an exact time.
//!
//! Tokio's timers fire on whole milliseconds, many at the same time. Handlers that wait for them end in step. A real
//! database does not do that, and it can hide queueing or exaggerate it. This dependency is a thread that sleeps until the
//! next answer is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// The dependency. Clones share the thread.
#[derive(Clone, Debug)]
pub(crate) struct Downstream {
    calls: Sender<Call>,
}

#[derive(Debug)]
struct Call {
    due: Instant,
    answer: oneshot::Sender<()>,
}

impl Downstream {
    /// Starts the thread. It ends when the last clone is dropped.
    pub(crate) fn start() -> Self {
        let (calls, incoming) = mpsc::channel::<Call>();
        std::thread::spawn(move || {
            let mut waiting: BinaryHeap<Reverse<(Instant, u64)>> = BinaryHeap::new();
            let mut answers = std::collections::HashMap::new();
            let mut number = 0;
            loop {
                let next = waiting.peek().map(|Reverse((due, _))| *due);
                let wait = next.map_or(Duration::MAX, |due| {
                    due.saturating_duration_since(Instant::now())
                });
                match incoming.recv_timeout(wait) {
                    Ok(call) => {
                        number += 1;
                        waiting.push(Reverse((call.due, number)));
                        answers.insert(number, call.answer);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                let now = Instant::now();
                while let Some(Reverse((due, number))) = waiting.peek().copied()
                    && due <= now
                {
                    waiting.pop();
                    if let Some(answer) = answers.remove(&number) {
                        let _ = answer.send(()); // the handler may have been dropped
                    }
                }
            }
        });
        Self { calls }
    }

    /// Waits for an answer that takes this long.
    pub(crate) async fn call(&self, takes: Duration) {
        let (answer, answered) = oneshot::channel();
        let due = Instant::now() + takes;
        if self.calls.send(Call { due, answer }).is_ok() {
            let _ = answered.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_come_when_they_are_due() {
        let downstream = Downstream::start();
        let begun = Instant::now();
        let times = [3, 1, 2].map(Duration::from_millis);
        let calls = times.map(|time| {
            let downstream = downstream.clone();
            tokio::spawn(async move { downstream.call(time).await })
        });
        for (call, time) in calls.into_iter().zip(times) {
            call.await.expect("no panics");
            assert!(begun.elapsed() >= time);
        }
    }
}
