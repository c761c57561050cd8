//! Webhooks for many merchants. Some of their endpoints are slow, flaky, or dead.
//!
//! ```sh
//! cargo run -p firq-examples --bin webhooks
//! ```
//!
//! You will learn how to
//!
//! - give each merchant its turn with a [`Dispatcher`], charged for the time that its endpoint takes;
//! - try again later without occupying a slot meanwhile: a retry is a new task for the same delivery;
//! - give every delivery a deadline, and get the expired ones (`on_drop`);
//! - limit how many deliveries of *one* merchant are in flight (`pause_tenant`, `resume_tenant`), so that an endpoint
//!   that hangs cannot take all slots.
//!
//! The scenario: `acorn` works, `birch` is slow, `flora` fails every third delivery at first. `cedar` works in the first
//! round. In the second its endpoint accepts connections and never answers.
//!
//! Look at the first three rows of the two rounds. They should be alike: the failure of `cedar` affects `cedar` alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firq_async::firq_core::{DropReason, Dropped};
use firq_async::{AsyncScheduler, Dispatcher, Priority, SchedulerConfig, Task};
use firq_examples::{BoxError, Latencies, Table, Verdict, millis};
use tokio::time::{Instant, sleep, timeout};

/// The number of slots: how many deliveries may be in flight, for all merchants together.
const IN_FLIGHT_LIMIT: usize = 8;
/// The most slots of one merchant.
const PER_MERCHANT_LIMIT: usize = 3;
/// How long an endpoint may take to answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(80);
/// The most attempts for one delivery.
const ATTEMPTS_MAX: u32 = 3;
/// How long to wait before the first retry; twice as long before each further one.
const BACKOFF: Duration = Duration::from_millis(40);
/// How old an event may be when its turn comes. In production this is hours; here it is a moment.
const AGE_MAX: Duration = Duration::from_millis(400);
/// How long events arrive.
const TRAFFIC: Duration = Duration::from_millis(1_000);

type Merchant = &'static str;

/// An event to deliver to a merchant.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    event: u32,
    created: Instant,
    attempt: u32,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!(
        "4 merchants, {IN_FLIGHT_LIMIT} deliveries at once. First everybody is well, then `cedar` is not."
    );
    let well = play(Endpoint::Answers(5)).await?;
    println!("\nEverybody is well:\n\n{}", table(&well));
    let down = play(Endpoint::Hangs).await?;
    print!("`cedar` does not answer:\n\n{}", table(&down));

    let mut verdict = Verdict::new();
    for merchant in ["acorn", "birch", "flora"] {
        let (before, after) = (&well[merchant].delivered, &down[merchant].delivered);
        let accepted = down[merchant].accepted;
        verdict.lesson(
            after.len() * 10 >= accepted * 9
                && after.p50() <= before.p50() + Duration::from_millis(50),
            format!(
                "`{merchant}`: {} of {accepted} delivered beside a dead endpoint, p50 {} (was {})",
                after.len(),
                millis(after.p50()),
                millis(before.p50())
            ),
        );
    }
    let cedar = &down["cedar"];
    verdict.lesson(
        cedar.delivered.is_empty() && cedar.expired > 0,
        format!(
            "`cedar` lost its {} events itself: {} grew too old in the queue, {} failed {ATTEMPTS_MAX} times",
            cedar.accepted, cedar.expired, cedar.gave_up
        ),
    );
    verdict.lesson(
        [&well, &down]
            .iter()
            .all(|round| round.values().all(Account::is_settled)),
        "every event ended in exactly one way: delivered, given up, or expired",
    );
    verdict.conclude()
}

/// Runs a round, and returns the results of each merchant's events.
async fn play(cedar: Endpoint) -> Result<BTreeMap<Merchant, Account>, BoxError> {
    let ledger = Arc::new(Ledger::default());
    let config = SchedulerConfig {
        // A merchant may be this far behind. Beyond it, the scheduler refuses new events, and their producer learns it at
        // once.
        max_per_tenant: 500,
        ..SchedulerConfig::fair()
    };
    // The scheduler never delivers a task after its deadline. It passes it to this observer instead, which could write
    // a dead letter. Any thread that uses the scheduler may call it, without a lock, so it should be quick.
    let config = config.with_on_drop({
        let ledger = Arc::clone(&ledger);
        move |dropped: Dropped<Delivery, Merchant>| {
            if dropped.reason == DropReason::Expired {
                ledger.with(dropped.tenant, |account| account.expired += 1);
            }
        }
    });
    let courier = Arc::new(Courier {
        scheduler: AsyncScheduler::new(config)?,
        ledger,
        in_flight: Mutex::default(),
        cedar,
    });

    let dispatching = tokio::spawn({
        let courier = Arc::clone(&courier);
        Dispatcher::new(courier.scheduler.clone())
            .in_flight_limit(IN_FLIGHT_LIMIT)
            // Merchants share the time of the slots, not the number of deliveries: if an endpoint takes ten times as long, the
            // dispatcher calls it a tenth as often.
            .settle_by_elapsed(Duration::from_millis(1))
            .run(move |merchant, task| deliver(Arc::clone(&courier), merchant, task.payload))
    });

    // Events arrive for every merchant.
    let traffic = [("acorn", 6), ("birch", 40), ("flora", 12), ("cedar", 6)];
    let producing: Vec<_> = traffic
        .map(|(merchant, every)| tokio::spawn(produce(Arc::clone(&courier), merchant, every)))
        .into();
    for producer in producing {
        producer.await?;
    }

    // A retry waits in a timer, not in the scheduler. So the scheduler may be empty before the work is done; the ledger
    // counts. `expire` drops expired tasks even if no worker dequeues them, as for a paused merchant. After this time every
    // event is delivered or expired, so the loop ends.
    let patience = Instant::now() + 4 * AGE_MAX;
    let scheduler = courier.scheduler.scheduler();
    while !courier.ledger.is_settled() && Instant::now() < patience {
        scheduler.expire();
        sleep(Duration::from_millis(10)).await;
    }
    courier.scheduler.close_drain();
    dispatching.await?;
    Ok(courier.ledger.take())
}

/// The context of deliveries.
struct Courier {
    scheduler: AsyncScheduler<Delivery, Merchant>,
    ledger: Arc<Ledger>,
    /// The number of deliveries in flight, by merchant.
    in_flight: Mutex<BTreeMap<Merchant, usize>>,
    cedar: Endpoint,
}

/// Creates events for a merchant at a fixed interval in milliseconds.
async fn produce(courier: Arc<Courier>, merchant: Merchant, every: u64) {
    let mut ticks = tokio::time::interval(Duration::from_millis(every));
    let end = Instant::now() + TRAFFIC;
    let mut event = 0;
    while ticks.tick().await < end {
        courier
            .ledger
            .with(merchant, |account| account.accepted += 1);
        courier.enqueue(
            merchant,
            Delivery {
                event,
                created: Instant::now(),
                attempt: 1,
            },
        );
        event += 1;
    }
}

impl Courier {
    /// Queues an attempt at a delivery, the first or a later one.
    fn enqueue(&self, merchant: Merchant, delivery: Delivery) {
        // The deadline belongs to the event: a retry does not extend it.
        let deadline = delivery.created + AGE_MAX;
        let task = Task::new(delivery)
            .with_deadline(deadline.into_std())
            .with_cost(5) // an estimate in milliseconds, until the endpoint has answered
            // Retries come before the merchant's first attempts, because their events are older. A priority orders the tasks
            // of one tenant; it never gives the tenant more than its share.
            .with_priority(match delivery.attempt {
                1 => Priority::Normal,
                _ => Priority::High,
            });
        if self.scheduler.try_enqueue(merchant, task).is_err() {
            // No room, or closed. The error contains the task; the example drops it and records that.
            self.ledger.with(merchant, |account| account.gave_up += 1);
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, BTreeMap<Merchant, usize>> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn endpoint(&self, merchant: Merchant) -> Endpoint {
        match merchant {
            "birch" => Endpoint::Answers(40),
            "flora" => Endpoint::FailsAtFirst,
            "cedar" => self.cedar,
            _ => Endpoint::Answers(5),
        }
    }
}

/// The handler: one attempt, and a retry if it failed.
async fn deliver(courier: Arc<Courier>, merchant: Merchant, delivery: Delivery) {
    let _place = Place::take(&courier, merchant);
    // Without this timeout a dead endpoint would never free its slots.
    let attempt = timeout(ATTEMPT_TIMEOUT, courier.endpoint(merchant).post(&delivery));
    let outcome = attempt.await.unwrap_or(Err(Failure::TimedOut));
    match outcome {
        Ok(()) => courier.ledger.with(merchant, |account| {
            account.delivered.record(delivery.created.elapsed());
        }),
        Err(_) if delivery.attempt == ATTEMPTS_MAX => {
            courier
                .ledger
                .with(merchant, |account| account.gave_up += 1);
        }
        Err(Failure::TimedOut | Failure::Refused) => {
            courier
                .ledger
                .with(merchant, |account| account.retries += 1);
            let courier = Arc::clone(&courier);
            // In another task: the handler ends, and its slot is free during the wait.
            tokio::spawn(async move {
                sleep(BACKOFF * 2_u32.pow(delivery.attempt - 1)).await;
                courier.enqueue(
                    merchant,
                    Delivery {
                        attempt: delivery.attempt + 1,
                        ..delivery
                    },
                );
            });
        }
    }
}

/// A slot of a merchant, until it is dropped.
///
/// Fairness decides which merchant gets a free slot, and a dispatcher leaves no slot free while a task waits. So in a quiet
/// moment a merchant whose endpoint hangs would get all slots, and the next event of another merchant would wait until one
/// of them times out. At this limit the example pauses the merchant. Its queued events stay queued, and expire in time.
struct Place {
    courier: Arc<Courier>,
    merchant: Merchant,
}

impl Place {
    fn take(courier: &Arc<Courier>, merchant: Merchant) -> Self {
        let mut in_flight = courier.in_flight();
        let count = in_flight.entry(merchant).or_default();
        *count += 1;
        if *count >= PER_MERCHANT_LIMIT {
            // Under the lock, so that a pause and a resumption cannot overtake each other. Another thread may have taken a task
            // just before; then the merchant is one above its limit for a while.
            courier.scheduler.scheduler().pause_tenant(&merchant);
        }
        Self {
            courier: Arc::clone(courier),
            merchant,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut in_flight = self.courier.in_flight();
        let count = in_flight.entry(self.merchant).or_default();
        *count -= 1;
        if *count < PER_MERCHANT_LIMIT {
            self.courier
                .scheduler
                .scheduler()
                .resume_tenant(&self.merchant);
        }
    }
}

/// The behaviour of a merchant's endpoint.
#[derive(Clone, Copy, Debug)]
enum Endpoint {
    /// After this many milliseconds.
    Answers(u64),
    FailsAtFirst,
    Hangs,
}

#[derive(Debug)]
enum Failure {
    TimedOut,
    Refused,
}

impl Endpoint {
    async fn post(self, delivery: &Delivery) -> Result<(), Failure> {
        let takes = match self {
            Self::Answers(millis) => millis,
            Self::FailsAtFirst => 5,
            Self::Hangs => 60_000,
        };
        sleep(Duration::from_millis(takes)).await;
        match self {
            Self::FailsAtFirst if delivery.attempt == 1 && delivery.event.is_multiple_of(3) => {
                Err(Failure::Refused)
            }
            Self::FailsAtFirst | Self::Answers(_) | Self::Hangs => Ok(()),
        }
    }
}

/// The results of one merchant's events.
#[derive(Clone, Debug, Default)]
struct Account {
    accepted: usize,
    /// How old events were when they were delivered.
    delivered: Latencies,
    retries: usize,
    gave_up: usize,
    expired: usize,
}

impl Account {
    fn is_settled(&self) -> bool {
        self.accepted == self.delivered.len() + self.gave_up + self.expired
    }
}

#[derive(Debug, Default)]
struct Ledger {
    accounts: Mutex<BTreeMap<Merchant, Account>>,
}

impl Ledger {
    fn with<R>(&self, merchant: Merchant, change: impl FnOnce(&mut Account) -> R) -> R {
        change(self.lock().entry(merchant).or_default())
    }

    fn is_settled(&self) -> bool {
        self.lock().values().all(Account::is_settled)
    }

    fn take(&self) -> BTreeMap<Merchant, Account> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Merchant, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn table(accounts: &BTreeMap<Merchant, Account>) -> Table {
    let mut table = Table::new([
        "merchant",
        "events",
        "delivered",
        "retries",
        "gave up",
        "expired",
        "age p50",
        "age p99",
    ]);
    for merchant in ["acorn", "birch", "flora", "cedar"] {
        let account = &accounts[merchant];
        let age = |age| match account.delivered.is_empty() {
            true => "-".to_owned(),
            false => millis(age),
        };
        table.row([
            merchant.to_owned(),
            account.accepted.to_string(),
            account.delivered.len().to_string(),
            account.retries.to_string(),
            account.gave_up.to_string(),
            account.expired.to_string(),
            age(account.delivered.p50()),
            age(account.delivered.p99()),
        ]);
    }
    table
}
