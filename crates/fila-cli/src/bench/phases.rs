//! The phases of a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use fila_sdk::{Error, Message, Queue};
use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::output::Progress;

/// The prefetch of a consumer: enough to hide the round trip to the server.
const PREFETCH: u32 = 2048;

/// The load of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) queue: Queue,
    pub(super) messages: u64,
    pub(super) payload: Bytes,
    pub(super) keys: u64,
    pub(super) tasks: usize,
    pub(super) consumers: u32,
}

/// The duration of a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) time: Duration,
    /// The latency of sends, in phases that send.
    pub(super) latency: Option<Latency>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

impl Load {
    pub(super) async fn produce(&self) -> Result<Measured, Failure> {
        let began = Instant::now();
        let latency = self.send("producing").await?;
        Ok(Measured {
            time: began.elapsed(),
            latency: Some(latency),
        })
    }

    pub(super) async fn drain(&self) -> Result<Measured, Failure> {
        let began = Instant::now();
        let progress = Progress::new("draining", Some(self.messages));
        self.consume(progress).await?;
        Ok(Measured {
            time: began.elapsed(),
            latency: None,
        })
    }

    pub(super) async fn through(&self) -> Result<Measured, Failure> {
        let began = Instant::now();
        let (latency, ()) =
            tokio::try_join!(self.send("through"), self.consume(Progress::hidden()))?;
        Ok(Measured {
            time: began.elapsed(),
            latency: Some(latency),
        })
    }

    /// Sends all messages, and returns the latency of each.
    async fn send(&self, what: &'static str) -> Result<Latency, Failure> {
        let progress = Arc::new(Progress::new(what, Some(self.messages)));
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..self.tasks {
            let (load, next, progress) = (self.clone(), next.clone(), progress.clone());
            tasks.spawn(async move { load.send_in_turn(&next, &progress).await });
        }
        let mut all = histogram()?;
        while let Some(ended) = tasks.join_next().await {
            let latencies = ended.context("a task has ended")??;
            all.add(latencies).context("latencies do not add up")?;
        }
        let quantile = |quantile| Duration::from_micros(all.value_at_quantile(quantile));
        Ok(Latency {
            p50: quantile(0.5),
            p99: quantile(0.99),
        })
    }

    async fn send_in_turn(
        &self,
        next: &AtomicU64,
        progress: &Progress,
    ) -> Result<Histogram<u64>, Failure> {
        let mut latencies = histogram()?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.messages {
                return Ok(latencies);
            }
            let key = format!("key-{}", number % self.keys);
            let message = Message::new(self.payload.clone()).key(key);
            let began = Instant::now();
            self.queue.send(message).await?;
            let micros = u64::try_from(began.elapsed().as_micros());
            latencies.saturating_record(micros.unwrap_or(u64::MAX));
            progress.advance(1);
        }
    }

    /// Consumes and acknowledges all messages.
    async fn consume(&self, progress: Progress) -> Result<(), Failure> {
        let (taken, watched) = watch::channel(0);
        let taken = Arc::new(taken);
        let mut tasks = JoinSet::new();
        for _ in 0..self.consumers {
            let (load, taken) = (self.clone(), taken.clone());
            tasks.spawn(async move { load.consume_in_turn(&taken).await });
        }
        let show = async {
            let mut watched = watched;
            let mut shown = 0;
            while watched.changed().await.is_ok() {
                let now = *watched.borrow_and_update();
                progress.advance(now - shown);
                shown = now;
            }
        };
        drop(taken);
        let work = async {
            while let Some(ended) = tasks.join_next().await {
                ended.context("a task has ended")??;
            }
            Ok(())
        };
        let ((), worked) = tokio::join!(show, work);
        worked
    }

    async fn consume_in_turn(&self, taken: &watch::Sender<u64>) -> Result<(), Failure> {
        let mut watched = taken.subscribe();
        let mut consumer = self.queue.consumer().prefetch(PREFETCH).subscribe();
        loop {
            tokio::select! {
                biased;
                all = watched.wait_for(|taken| *taken >= self.messages) => {
                    all.context("nobody counts")?;
                    break;
                }
                delivery = consumer.next() => {
                    let delivery = delivery.unwrap_or(Err(Error::Closed))?;
                    // The client sends the acknowledgement at once; below, the consumer waits until the server has
                    // stored all of them.
                    drop(delivery.ack());
                    taken.send_modify(|taken| *taken += 1);
                }
            }
        }
        consumer.stop().await;
        Ok(())
    }
}

/// Returns a histogram of microseconds with two exact digits. Longer values count as its maximum.
fn histogram() -> Result<Histogram<u64>, Failure> {
    let longest = 10 * 60 * 1_000_000;
    Ok(Histogram::new_with_max(longest, 2).context("a histogram cannot be made")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_come_out_as_they_went_in() {
        let mut latencies = histogram().unwrap();
        for micros in [3, 1_500, 2_000_000] {
            latencies.saturating_record(micros);
        }
        let median = latencies.value_at_quantile(0.5);
        assert!((1_485..=1_515).contains(&median), "{median}");
        assert!(latencies.max() >= 1_980_000);
        latencies.saturating_record(u64::MAX);
        assert!(latencies.max() >= 600_000_000);
    }
}
