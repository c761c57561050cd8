//! What a handler waits for: something elsewhere that answers after an exact time.
//!
//! Tokio's own timers go off on whole milliseconds, all together. Handlers that wait for them end in step, which no
//! real database does, and which hides queueing or makes it look worse, as it happens. This one is a thread that
//! sleeps until the next answer is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Somewhere else. Clones are the same place.
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
    /// Starts the thread. It ends when the last clone has gone.
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
                        let _ = answer.send(()); // whoever asked may have gone
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
