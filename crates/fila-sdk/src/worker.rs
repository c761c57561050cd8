//! Workers: consumers that call a handler for every message.

use std::any::Any;
use std::fmt;
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::{Consumer, ConsumerBuilder, Delivery, Error, Received, Verdict};

/// Builds and runs a worker. From [`Queue::worker`](crate::Queue::worker).
///
/// ```
/// use fila_sdk::{Failure, Received};
///
/// async fn handle(order: Received) -> Result<(), Failure> {
///     let text = std::str::from_utf8(&order.payload)?; // any error: the order is nacked with it
///     println!("{}: {text}", order.key);
///     Ok(())                                           // the order is acknowledged
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fila_sdk::Error> {
/// # let broker = fila_sdk::testing::Broker::new();
/// # broker.create_queue("orders");
/// # let client = broker.client();
/// # client.queue("orders").send("seven").await?;
/// # let stop = async { while broker.depth("orders") > 0 { tokio::task::yield_now().await } };
/// let worker = client.queue("orders").worker().concurrency(16);
/// let report = worker.run_until(stop, handle).await?;
/// println!("{} done, {} failed", report.acked, report.nacked);
/// # assert_eq!(report.acked, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a worker does nothing until it runs"]
pub struct WorkerBuilder {
    consumer: ConsumerBuilder,
    concurrency: usize,
    prefetch: Option<u32>,
    grace: Duration,
}

/// The reason why a handler could not process a message. Converts from anything that can be displayed, so `?` works on
/// any error.
///
/// ```
/// use std::time::Duration;
/// use fila_sdk::Failure;
///
/// fn handle(payload: &str) -> Result<u32, Failure> {
///     if payload.is_empty() {
///         return Err(Failure::retry_after("nothing there yet", Duration::from_secs(5)));
///     }
///     Ok(payload.parse()?)
/// }
/// assert!(handle("seven").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    error: String,
    delay: Option<Duration>,
}

impl Failure {
    /// Returns a failure that delays the next delivery of the message by at least this time.
    pub fn retry_after(error: impl fmt::Display, delay: Duration) -> Self {
        Self {
            error: error.to_string(),
            delay: Some(delay),
        }
    }
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        // With the causes of the error: `anyhow` and others print them with `{:#}`.
        Self {
            error: format!("{error:#}"),
            delay: None,
        }
    }
}

/// The counts of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Messages that a handler processed and the broker deleted.
    pub acked: u64,
    /// Deliveries that failed: the handler returned an error, panicked, or did not end within the grace period.
    pub nacked: u64,
    /// Deliveries without a confirmed result. Either the lease had ended, and the broker delivers the message again. Or
    /// the connection broke while the result was on its way, and the broker may deliver it again.
    pub lost: u64,
}

/// The end of one delivery.
#[derive(Debug)]
struct Ended {
    verdict: Verdict,
    stored: Result<(), Error>,
}

impl WorkerBuilder {
    pub(crate) fn new(consumer: ConsumerBuilder) -> Self {
        Self {
            consumer,
            concurrency: 8,
            prefetch: None,
            grace: Duration::from_secs(30),
        }
    }

    /// Sets how many handlers run at once; 8 by default, at least 1.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// Sets how many messages the worker may hold at once, waiting or in work; at least as many as run at once. By
    /// default twice as many as run at once.
    pub fn prefetch(mut self, messages: u32) -> Self {
        self.prefetch = Some(messages);
        self
    }

    /// Sets how long the client extends a lease by itself while a handler works; 1 hour by default.
    pub fn keep_leases(mut self, time: Duration) -> Self {
        self.consumer = self.consumer.keep_leases(time);
        self
    }

    /// Sets how long running handlers may take when the worker stops; 30 s by default. The worker then drops the rest,
    /// and the broker delivers their messages again.
    pub fn grace(mut self, time: Duration) -> Self {
        self.grace = time;
        self
    }

    /// Calls the handler for every message, without an end.
    ///
    /// Each call runs in its own task. `Ok` acknowledges the message; an error nacks it with the error's text. A panic
    /// counts as an error.
    ///
    /// # Errors
    /// If the server refuses the subscription, as for a queue that does not exist.
    ///
    /// # Cancel safety
    /// A drop also drops the running handlers, nacks their messages and releases waiting ones. Use
    /// [`run_until`](Self::run_until) to let handlers finish.
    pub async fn run<F, E>(
        self,
        handler: impl Fn(Received) -> F + Send + Sync + 'static,
    ) -> Result<Report, Error>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.run_until(pending::<()>(), handler).await
    }

    /// Calls the handler for every message until `stop` completes. It then releases waiting messages, lets running
    /// handlers finish, and returns the counts.
    ///
    /// # Errors
    /// If the server refuses the subscription, as for a queue that does not exist. Running handlers finish first.
    ///
    /// # Cancel safety
    /// As for [`run`](Self::run).
    pub async fn run_until<S, F, E>(
        self,
        stop: impl Future<Output = S>,
        handler: impl Fn(Received) -> F + Send + Sync + 'static,
    ) -> Result<Report, Error>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        let concurrency = self.concurrency;
        let at_once = u32::try_from(concurrency).unwrap_or(u32::MAX);
        let prefetch = self.prefetch.unwrap_or_else(|| at_once.saturating_mul(2));
        let mut consumer = self.consumer.prefetch(prefetch.max(at_once)).subscribe();
        let mut crew = Crew {
            handler: Arc::new(handler),
            running: JoinSet::new(),
            report: Report::default(),
        };
        let ended = crew.work(&mut consumer, concurrency, stop).await;
        // Waiting messages go to other consumers at once.
        let closed = consumer.close();
        crew.finish(self.grace).await;
        // The server has heard of all of them when the worker returns, so the program may end then.
        closed.await;
        ended.map(|()| crew.report)
    }
}

/// The running handlers.
struct Crew<H> {
    handler: Arc<H>,
    running: JoinSet<Ended>,
    report: Report,
}

impl<H, F, E> Crew<H>
where
    H: Fn(Received) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Failure>,
{
    async fn work<S>(
        &mut self,
        consumer: &mut Consumer,
        concurrency: usize,
        stop: impl Future<Output = S>,
    ) -> Result<(), Error> {
        tokio::pin!(stop);
        loop {
            let has_room = self.running.len() < concurrency;
            tokio::select! {
                biased;
                _ = &mut stop => return Ok(()),
                Some(ended) = self.running.join_next() => self.note(ended),
                delivery = consumer.next(), if has_room => match delivery {
                    Some(Ok(delivery)) => self.begin(delivery),
                    Some(Err(error)) => return Err(error),
                    None => return Err(Error::Closed),
                },
            }
        }
    }

    fn begin(&mut self, delivery: Delivery) {
        let handler = self.handler.clone();
        self.running.spawn(async move {
            let (received, mut handle) = delivery.split();
            let verdict = attempt(handler, received).await;
            let stored = handle.settle(verdict.clone()).await;
            Ended { verdict, stored }
        });
    }

    /// Waits for the running handlers, for the grace period at most.
    async fn finish(&mut self, grace: Duration) {
        let end = async {
            while let Some(ended) = self.running.join_next().await {
                self.note(ended);
            }
        };
        if timeout(grace, end).await.is_err() {
            let left = self.running.len();
            tracing::warn!(
                left,
                "handlers did not end within the grace period; the broker delivers their messages again"
            );
            self.report.nacked += left as u64;
            self.running.shutdown().await;
        }
    }

    fn note(&mut self, ended: Result<Ended, JoinError>) {
        let Ok(ended) = ended else {
            // Only the worker's own abort ends a task like this, because the task catches panics.
            return;
        };
        match (ended.stored, ended.verdict) {
            (Ok(()), Verdict::Ack) => self.report.acked += 1,
            (Ok(()), _) => self.report.nacked += 1,
            (Err(error), _) => {
                tracing::debug!(error = %error, "the server did not confirm a result");
                self.report.lost += 1;
            }
        }
    }
}

/// Calls the handler, and catches its panic.
async fn attempt<H, F, E>(handler: Arc<H>, received: Received) -> Verdict
where
    H: Fn(Received) -> F,
    F: Future<Output = Result<(), E>>,
    E: Into<Failure>,
{
    // The handler's future is never polled again after a panic, so its half-done state is out of reach.
    let call = AssertUnwindSafe(async move { handler(received).await.map_err(Into::into) });
    let failure = match call.catch_unwind().await {
        Ok(Ok(())) => return Verdict::Ack,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::from(words(&*panic)),
    };
    Verdict::Nack {
        error: failure.error,
        delay: failure.delay,
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("no message"))
}
