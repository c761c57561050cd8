//! One request that becomes many, to several providers, for a caller that may leave before the end.
//!
//! ```sh
//! cargo run -p firq-examples --bin fan_out
//! ```
//!
//! You will learn how to
//!
//! - use a pair as the key: here `(tenant, provider)`, so that a tenant's questions to a slow provider do not delay its
//!   questions to a fast one;
//! - collect results over a channel that ends by itself, even if questions are refused, expire or are cancelled;
//! - cancel queued sub-requests when the caller gives up, with the [`TaskHandle`] of each;
//! - take work in batches, and send all questions for one provider in one call.
//!
//! The scenario: `crawler` asks three providers for 300 items. Meanwhile `shopper` asks them for three items, again and
//! again, and `browser` asks for 100 and leaves after a moment.
//!
//! Look at how long `shopper` waits during `crawler`'s backlog, and how many questions of `browser` were never asked.

use std::collections::BTreeMap;
use std::time::Duration;

use firq_async::{AsyncScheduler, CancelResult, SchedulerConfig, SchedulerStats, Task, TaskHandle};
use firq_examples::{BoxError, Latencies, Table, Verdict, millis};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// The number of workers, and the largest batch.
///
/// The order of a batch is fixed when a worker takes it. So keep batches small: working on one must take less time than a
/// quiet tenant may wait.
const WORKERS: usize = 4;
const BATCH_MAX: usize = 8;

type Tenant = &'static str;

/// Another service, which answers a call of any size after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Provider {
    Atlas,
    Borealis,
    Comet,
}

impl Provider {
    const ALL: [Self; 3] = [Self::Atlas, Self::Borealis, Self::Comet];

    async fn ask(self, items: &[u32]) -> Vec<Price> {
        let millis = match self {
            Self::Atlas => 25,
            Self::Borealis => 15,
            Self::Comet => 5,
        };
        sleep(Duration::from_millis(millis)).await;
        items.iter().map(|item| item * 100).collect()
    }
}

/// To the scheduler each pair is a tenant, with its own queue and its own share.
///
/// So a tenant that asks three providers has three shares. That is right if the providers are the scarce resource. If the
/// workers are, the key should be the tenant alone.
type Key = (Tenant, Provider);

/// A question to one provider about one item, and the channel for the answer.
#[derive(Debug)]
struct SubRequest {
    item: u32,
    answers: mpsc::UnboundedSender<Price>,
}

/// The price of an item, from one provider.
type Price = u32;

type Shared = AsyncScheduler<SubRequest, Key>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!("3 tenants, 3 providers, {WORKERS} workers with batches of up to {BATCH_MAX}.\n");
    let scheduler: Shared = AsyncScheduler::new(SchedulerConfig::fair())?;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(scheduler.clone()));
    }

    let crawler = tokio::spawn(crawl(scheduler.clone()));
    let shopper = tokio::spawn(shop(scheduler.clone()));
    let browser = tokio::spawn(browse(scheduler.clone()));
    let (crawler, shopper, browser) = (crawler.await?, shopper.await?, browser.await?);

    scheduler.close_drain();
    let calls: usize = workers.join_all().await.into_iter().sum();
    let stats = scheduler.stats();

    let mut table = Table::new([
        "tenant",
        "asked",
        "answered",
        "cancelled",
        "time per request",
    ]);
    for (tenant, tally, time) in [
        ("crawler", &crawler, millis(crawler.times.p50())),
        (
            "shopper",
            &shopper,
            format!("{} (p50)", millis(shopper.times.p50())),
        ),
        (
            "browser",
            &browser,
            format!("left after {}", millis(browser.times.p50())),
        ),
    ] {
        table.row([
            tenant.to_owned(),
            tally.asked.to_string(),
            tally.answered.to_string(),
            tally.cancelled.to_string(),
            time,
        ]);
    }
    print!("{table}");

    conclude(&crawler, &shopper, &browser, calls, &stats)
}

/// Checks what the run showed.
fn conclude(
    crawler: &Tally,
    shopper: &Tally,
    browser: &Tally,
    calls: usize,
    stats: &SchedulerStats<Key>,
) -> Result<(), BoxError> {
    let mut verdict = Verdict::new();
    let (small, large) = (shopper.times.p50(), crawler.times.p50());
    verdict.lesson(
        small < large / 4,
        format!(
            "`shopper` has its 9 answers after {}, beside a pile that takes {}",
            millis(small),
            millis(large)
        ),
    );
    verdict.lesson(
        browser.cancelled > browser.asked / 4,
        format!(
            "`browser` left, and {} of its {} questions were never asked; no worker served a caller that had gone",
            browser.cancelled, browser.asked
        ),
    );
    verdict.lesson(
        stats.enqueued == stats.dequeued + stats.cancelled && stats.queue_len_estimate == 0,
        format!(
            "nothing is left behind: {} questions queued = {} worked on + {} cancelled",
            stats.enqueued, stats.dequeued, stats.cancelled
        ),
    );
    verdict.lesson(
        (calls as u64) < stats.dequeued,
        format!(
            "batches put {} questions into {calls} calls to providers",
            stats.dequeued
        ),
    );
    verdict.conclude()
}

/// A request that has become many. Dropping it cancels the questions that no worker has begun.
///
/// So a caller can give up anywhere: a timeout, a `select!` or a closed connection drops the future that owns this.
struct FanOut {
    scheduler: Shared,
    handles: Vec<TaskHandle>,
    answers: mpsc::UnboundedReceiver<Price>,
}

impl FanOut {
    /// Asks every provider about every item.
    fn start(scheduler: &Shared, tenant: Tenant, items: impl Iterator<Item = u32>) -> Self {
        // There are no more answers than questions, and the scheduler bounds the questions.
        let (sender, answers) = mpsc::unbounded_channel();
        let mut handles = Vec::new();
        for item in items {
            for provider in Provider::ALL {
                let answers = sender.clone();
                let task = Task::new(SubRequest { item, answers });
                // If the scheduler refuses a question, its answer is missing, because its sender is dropped with it. A
                // caller that needs all or nothing would stop here and drop the rest.
                if let Ok(handle) = scheduler.try_enqueue((tenant, provider), task) {
                    handles.push(handle);
                }
            }
        }
        Self {
            scheduler: scheduler.clone(),
            handles,
            answers,
        }
        // The first sender is dropped here. Each clone is in a queued task or with a worker. The channel ends when the last
        // clone is dropped, for whatever reason, so the caller need not count.
    }

    /// Returns the next answer, or `None` after the last.
    async fn next(&mut self) -> Option<Price> {
        self.answers.recv().await
    }

    /// Cancels all questions that are still queued, and returns their number.
    fn give_up(mut self) -> usize {
        self.cancel_rest()
    }

    fn cancel_rest(&mut self) -> usize {
        // A handle cancels its own task only. If the task is served already, cancelling does nothing, so the caller need
        // not know which tasks are still queued.
        let handles = self.handles.drain(..);
        let cancelled =
            handles.filter(|&handle| self.scheduler.cancel(handle) == CancelResult::Cancelled);
        cancelled.count()
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        self.cancel_rest();
    }
}

/// Takes batches, and makes one call to each provider in a batch. Returns the number of calls.
async fn work(scheduler: Shared) -> usize {
    let mut calls = 0;
    let mut batch = Vec::with_capacity(BATCH_MAX);
    // Waits for the first task, and takes others that are queued with it. Zero means closed.
    while scheduler.dequeue_batch_async(BATCH_MAX, &mut batch).await > 0 {
        let mut by_provider = BTreeMap::<Provider, Vec<SubRequest>>::new();
        for ((_, provider), task) in batch.drain(..) {
            by_provider.entry(provider).or_default().push(task.payload);
        }
        calls += by_provider.len();
        let mut under_way = JoinSet::new();
        for (provider, requests) in by_provider {
            under_way.spawn(async move {
                let items: Vec<u32> = requests.iter().map(|request| request.item).collect();
                let prices = provider.ask(&items).await;
                for (request, price) in requests.into_iter().zip(prices) {
                    // An error means that the caller has left, and then the answer is not needed.
                    let _ = request.answers.send(price);
                }
            });
        }
        under_way.join_all().await;
    }
    calls
}

/// The results of a caller.
#[derive(Debug, Default)]
struct Tally {
    asked: usize,
    answered: usize,
    cancelled: usize,
    times: Latencies,
}

/// Wants everything, and waits for it.
async fn crawl(scheduler: Shared) -> Tally {
    let (begun, mut tally) = (Instant::now(), Tally::default());
    let mut fan_out = FanOut::start(&scheduler, "crawler", 0..300);
    tally.asked = fan_out.handles.len();
    while fan_out.next().await.is_some() {
        tally.answered += 1;
    }
    tally.times.record(begun.elapsed());
    tally
}

/// Wants little, often.
async fn shop(scheduler: Shared) -> Tally {
    let mut tally = Tally::default();
    for round in 0..8 {
        sleep(Duration::from_millis(10)).await;
        let begun = Instant::now();
        let mut fan_out = FanOut::start(&scheduler, "shopper", round * 3..round * 3 + 3);
        tally.asked += fan_out.handles.len();
        while fan_out.next().await.is_some() {
            tally.answered += 1;
        }
        tally.times.record(begun.elapsed());
    }
    tally
}

/// Wants much, and does not wait for it.
async fn browse(scheduler: Shared) -> Tally {
    let (begun, mut tally) = (Instant::now(), Tally::default());
    let patience = begun + Duration::from_millis(100);
    let mut fan_out = FanOut::start(&scheduler, "browser", 0..100);
    tally.asked = fan_out.handles.len();
    while let Ok(Some(_)) = timeout_at(patience, fan_out.next()).await {
        tally.answered += 1;
    }
    tally.times.record(begun.elapsed());
    // A drop would do the same; this also returns the number.
    tally.cancelled = fan_out.give_up();
    tally
}
