//! The interface to every server under test: send messages until they are confirmed, consume and acknowledge them.
//!
//! A driver uses its server in the fastest way that is usual for it: it batches where it can, and waits only where it has
//! to. All drivers do the same work: the same number of messages, at most [`OUTSTANDING`] of them unconfirmed, the same
//! payloads, one connection for the producer and one or two for each consumer.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use tokio::sync::watch;

use crate::key_shape::KeyShape;

/// Messages that a producer has unconfirmed, and that a consumer has in flight.
pub(crate) const OUTSTANDING: usize = 256;

/// The future of a driver's operation.
pub(crate) type BoxFuture<'a, T = ()> =
    Pin<Box<dyn Future<Output = anyhow::Result<T>> + Send + 'a>>;

/// A running server and its client. Dropping it ends the server with `kill -9`.
pub(crate) trait Driver: Send + Sync {
    /// Creates a durable queue.
    fn create<'a>(&'a self, queue: &'a str) -> BoxFuture<'a>;

    /// Sends messages on one connection with at most [`OUTSTANDING`] unconfirmed, until all are confirmed.
    fn produce<'a>(&'a self, queue: &'a str, load: Load) -> BoxFuture<'a>;

    /// Returns a connection for single messages.
    fn sender<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Box<dyn Sender>>;

    /// Takes and acknowledges messages until all consumers together have taken enough and the server has the
    /// acknowledgements.
    fn consume<'a>(&'a self, queue: &'a str, goal: &'a Goal) -> BoxFuture<'a>;

    /// Returns the server's process.
    fn process(&self) -> &dyn Running;
}

/// The process of a server under test, with its child processes. Dropping it ends them with `kill -9`.
pub(crate) trait Running {
    /// Returns its memory, in MiB.
    fn memory(&self) -> anyhow::Result<u64>;

    /// Returns the processor time that it has used so far.
    fn processor_time(&self) -> anyhow::Result<Duration>;
}

/// A connection for single messages, many of them at the same time.
pub(crate) trait Sender: Send + Sync {
    /// Sends a message and waits until it is confirmed.
    fn send(&self, payload: Bytes) -> BoxFuture<'_>;
}

/// The messages to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) messages: u64,
    pub(crate) size: usize,
    /// Fairness keys, for servers that have them.
    pub(crate) keys: KeyShape,
}

impl Load {
    /// Returns the payloads: a number, followed by bytes that cannot be compressed.
    pub(crate) fn payloads(self) -> impl Iterator<Item = (u64, Bytes)> + Send {
        let mut body = body(self.size);
        (0..self.messages).map(move |number| {
            body[..8].copy_from_slice(&number.to_be_bytes());
            (number, Bytes::copy_from_slice(&body))
        })
    }

    /// Returns the fairness key of a message.
    pub(crate) fn key(self, number: u64) -> String {
        self.keys.path(number % self.keys.count)
    }
}

/// Returns bytes that cannot be compressed, with room for a number and a time.
pub(crate) fn body(size: usize) -> Vec<u8> {
    let mut body = vec![0; size.max(16)];
    fastrand::Rng::with_seed(7).fill(&mut body);
    body
}

/// How many messages the consumers take together, and the messages that they have taken.
#[derive(Debug)]
pub(crate) struct Goal {
    messages: u64,
    taken: AtomicU64,
    sum: AtomicU64,
    reached: watch::Sender<bool>,
    first: OnceLock<Instant>,
    /// The origin of the times in payloads, and the latency of each message in nanoseconds.
    clock: Instant,
    times: Option<Mutex<Vec<u64>>>,
}

impl Goal {
    pub(crate) fn new(messages: u64) -> Self {
        Self {
            messages,
            taken: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            reached: watch::Sender::new(false),
            first: OnceLock::new(),
            clock: Instant::now(),
            times: None,
        }
    }

    /// Also measures the latency of each message since it was [stamped](Self::stamp).
    pub(crate) fn timed(messages: u64) -> Self {
        Self {
            times: Some(Mutex::new(Vec::with_capacity(messages as usize))),
            ..Self::new(messages)
        }
    }

    /// Writes the number of the message and the current time into a payload.
    pub(crate) fn stamp(&self, number: u64, body: &mut [u8]) {
        body[..8].copy_from_slice(&number.to_be_bytes());
        body[8..16].copy_from_slice(&self.now().to_be_bytes());
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts a message that a consumer received.
    pub(crate) fn take(&self, payload: &[u8]) -> anyhow::Result<()> {
        self.first.get_or_init(Instant::now);
        let number = number(payload, 0)?;
        if let Some(times) = &self.times {
            let time = self.now().saturating_sub(self::number(payload, 8)?);
            times
                .lock()
                .expect("no thread panics while it holds the lock")
                .push(time);
        }
        self.sum.fetch_add(number, Ordering::Relaxed);
        if self.taken.fetch_add(1, Ordering::Relaxed) + 1 >= self.messages {
            self.reached.send_replace(true);
        }
        Ok(())
    }

    /// Returns when the first message came.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.first.get().copied()
    }

    pub(crate) fn is_reached(&self) -> bool {
        *self.reached.borrow()
    }

    /// Waits until the consumers have taken enough messages.
    pub(crate) async fn reached(&self) {
        let mut reached = self.reached.subscribe();
        // This cannot fail: `self` owns the sender.
        let _ = reached.wait_for(|reached| *reached).await;
    }

    /// Checks that the consumers took each message once.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let taken = self.taken.load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed);
        ensure!(
            taken == self.messages && sum == self.messages * self.messages.saturating_sub(1) / 2,
            "{taken} messages were taken of {}, or not each of them once",
            self.messages
        );
        Ok(())
    }

    /// Returns the latencies, the shortest first.
    pub(crate) fn into_times(self) -> Vec<Duration> {
        let times = self.times.map(|times| times.into_inner());
        let mut times = times.and_then(Result::ok).unwrap_or_default();
        times.sort_unstable();
        times.into_iter().map(Duration::from_nanos).collect()
    }
}

fn number(payload: &[u8], at: usize) -> anyhow::Result<u64> {
    let bytes = payload.get(at..at + 8).and_then(|it| it.try_into().ok());
    bytes.map(u64::from_be_bytes).context("a short payload")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_reached_by_every_message_once() {
        let load = Load {
            messages: 3,
            size: 64,
            keys: KeyShape::flat(2),
        };
        let goal = Goal::new(3);
        for (_, payload) in load.payloads() {
            assert!(!goal.is_reached());
            goal.take(&payload).unwrap();
        }
        assert!(goal.is_reached());
        goal.check().unwrap();
    }

    #[test]
    fn a_message_taken_twice_for_another_is_noticed() {
        let load = Load {
            messages: 2,
            size: 64,
            keys: KeyShape::flat(1),
        };
        let goal = Goal::new(2);
        let (_, first) = load.payloads().next().unwrap();
        goal.take(&first).unwrap();
        goal.take(&first).unwrap();
        assert!(goal.is_reached() && goal.check().is_err());
    }

    #[test]
    fn times_are_counted_from_the_stamp() {
        let goal = Goal::timed(1);
        let mut body = body(16);
        goal.stamp(0, &mut body);
        goal.take(&body).unwrap();
        let times = goal.into_times();
        assert!(times.len() == 1 && times[0] < Duration::from_secs(5));
    }
}
