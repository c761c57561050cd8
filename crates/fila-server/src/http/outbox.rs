//! Deliveries that one connection has not sent yet.
//!
//! A client may keep its socket empty and answer pings, and still not take the deliveries of a stream. That is its right:
//! a slow worker does the same. But while consumers of others wait for the room that these deliveries take, a connection
//! that sends none of them for some time is closed. The task that watches a connection sleeps without a timer while there
//! are no deliveries: most connections of an idle server have none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

/// The chunks of deliveries that wait in one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Chunks>);

#[derive(Debug, Default)]
struct Chunks {
    waiting: AtomicUsize,
    /// How many have left. It may wrap around.
    left: AtomicUsize,
    /// The watching task sleeps until a chunk is added.
    is_asleep: AtomicBool,
    added: Notify,
}

/// A chunk that waits in an outbox, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitingChunk(Outbox);

impl Outbox {
    /// Adds a chunk.
    pub(crate) fn add(&self) -> WaitingChunk {
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        // Either the task sees this chunk before it falls asleep, or this sees that it sleeps.
        if self.0.is_asleep.load(Ordering::SeqCst) {
            self.0.added.notify_one();
        }
        WaitingChunk(self.clone())
    }

    /// Ends when the connection has held chunks for `time` without sending one, while others wait for room.
    pub(crate) async fn holds_up(&self, time: Duration, is_crowded: impl Fn() -> bool) {
        let mut left = self.left();
        loop {
            sleep(time).await;
            let before = std::mem::replace(&mut left, self.left());
            let is_still = before == left;
            if self.0.waiting.load(Ordering::Relaxed) == 0 {
                if is_still {
                    self.sleep_until_added().await;
                }
            } else if is_still && is_crowded() {
                return;
            }
        }
    }

    async fn sleep_until_added(&self) {
        self.0.is_asleep.store(true, Ordering::SeqCst);
        if self.0.waiting.load(Ordering::SeqCst) == 0 {
            self.0.added.notified().await;
        }
        self.0.is_asleep.store(false, Ordering::SeqCst);
    }

    fn left(&self) -> usize {
        self.0.left.load(Ordering::Relaxed)
    }
}

impl Drop for WaitingChunk {
    fn drop(&mut self) {
        self.0.0.left.fetch_add(1, Ordering::Relaxed);
        self.0.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_moves_nothing_holds_others_up_only_while_they_wait() {
        let outbox = Outbox::default();
        let crowded = Arc::new(AtomicBool::new(false));
        let is_crowded = {
            let crowded = crowded.clone();
            move || crowded.load(Ordering::Relaxed)
        };
        let watching = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.holds_up(TIME, is_crowded).await }
        });
        let stuck = outbox.add();
        sleep(10 * TIME).await;
        assert!(!watching.is_finished(), "no consumer waits for room");

        crowded.store(true, Ordering::Relaxed);
        let mut moving = stuck;
        for _ in 0..10 {
            let next = outbox.add();
            drop(std::mem::replace(&mut moving, next));
            sleep(TIME).await;
        }
        assert!(!watching.is_finished(), "it goes on, if slowly");
        drop(moving);
        sleep(10 * TIME).await;
        assert!(!watching.is_finished(), "it holds nothing");
        let is_asleep = outbox.0.is_asleep.load(Ordering::SeqCst);
        assert!(is_asleep, "a connection without deliveries has no timer");

        let _stuck = outbox.add();
        watching.await.unwrap();
    }
}
