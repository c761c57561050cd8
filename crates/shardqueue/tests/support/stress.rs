//! Random submits, cancels, panics, retries and stops, with the books kept beside the executor's.
//!
//! All random choices come from the seed; the order of two simultaneous events does not. The checks hold in any order:
//!
//! - every accepted job ends, in exactly one way, and the executor's counts are equal to the counts here;
//! - a returned job never ran, and nothing is leaked;
//! - no two jobs of a key run at the same time, and jobs of a key that were submitted one after the other begin
//!   in that order.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardqueue::{
    Config, ExponentialBackoff, JobContext, JobError, JobHandle, JobOptions, Outcome, Permanent,
    ShardExecutor, Stats,
};
use tokio_util::sync::CancellationToken;

const KEYS: usize = 24;

/// What happened, as the jobs, the handlers and the handles saw it.
#[derive(Debug, Default)]
struct Books {
    made: AtomicU64,
    dropped: AtomicU64,
    attempts: AtomicU64,
    succeeded: AtomicU64,
    told: AtomicU64,
    buried: AtomicU64,
    handed_back: AtomicU64,
    busy: [AtomicBool; KEYS],
    /// The last job that has begun, by key and submitter.
    begun: Mutex<HashMap<(usize, u64), u64>>,
    /// What must never be.
    violations: Mutex<Vec<String>>,
}

impl Books {
    /// Notes what must never be. A panic would not do: it is what the executor contains.
    fn violation(&self, text: String) {
        let mut violations = self.violations.lock().expect("no panic under this lock");
        violations.push(text);
    }
}

/// The sums of one or more rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) rounds: u64,
    pub(crate) attempts: u64,
    pub(crate) stats: Stats,
}

impl Totals {
    pub(crate) fn plus(self, other: Self) -> Self {
        let mut stats = self.stats;
        stats.accepted += other.stats.accepted;
        stats.ran += other.stats.ran;
        stats.failed += other.stats.failed;
        stats.cancelled += other.stats.cancelled;
        stats.returned += other.stats.returned;
        stats.retried += other.stats.retried;
        stats.refused_full += other.stats.refused_full;
        Self {
            rounds: self.rounds + other.rounds,
            attempts: self.attempts + other.attempts,
            stats,
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = &self.stats;
        writeln!(f, "rounds     {:>12}", self.rounds)?;
        writeln!(f, "refused    {:>12}  (queue full)", stats.refused_full)?;
        writeln!(
            f,
            "attempts   {:>12}  ({} of them retries)",
            self.attempts, stats.retried
        )?;
        writeln!(f, "ran        {:>12}", stats.ran)?;
        writeln!(f, "failed     {:>12}", stats.failed)?;
        writeln!(f, "cancelled  {:>12}", stats.cancelled)?;
        writeln!(f, "returned   {:>12}", stats.returned)?;
        let ended = stats.ran + stats.failed + stats.cancelled + stats.returned;
        writeln!(f, "sum        {ended:>12}")?;
        write!(f, "accepted   {:>12}", stats.accepted)
    }
}

/// A small seeded generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

/// Plays one round. Returns what happened, or what was wrong.
pub(crate) async fn round(seed: u64, submissions: u64) -> Result<Totals, String> {
    let mut dice = Dice(seed);
    let books = Arc::new(Books::default());
    let executor = Arc::new(make(&mut dice, &books));
    let token = CancellationToken::new();
    let submitters: Vec<_> = (0..4)
        .map(|number| {
            let mut submitter = Submitter {
                number,
                dice: Dice(dice.roll(u64::MAX)),
                executor: Arc::clone(&executor),
                books: Arc::clone(&books),
                token: token.clone(),
                sequence: 0,
                handles: Vec::new(),
            };
            tokio::spawn(async move {
                for _ in 0..submissions {
                    submitter.act().await;
                }
                submitter.handles
            })
        })
        .collect();
    let stops_early = dice.roll(2) == 0;
    if stops_early {
        // In the middle of it: after some of the submissions, whenever that is.
        let enough = dice.roll(2 * submissions);
        while executor.stats().accepted < enough
            && !submitters.iter().all(|task| task.is_finished())
        {
            tokio::task::yield_now().await;
        }
        stop(&executor, &mut dice, &books).await?;
    }
    let mut handles = Vec::new();
    for submitter in submitters {
        handles.extend(submitter.await.map_err(|error| error.to_string())?);
    }
    stop(&executor, &mut dice, &books).await?;
    executor.stop().await;
    let mut seen = [0; 4];
    for handle in handles {
        seen[match handle.await {
            Outcome::Done => 0,
            Outcome::Failed(_) => 1,
            Outcome::Cancelled => 2,
            Outcome::Returned => 3,
            other => return Err(format!("an unknown outcome: {other:?}")),
        }] += 1;
    }
    audit(&executor, &books, seen)
}

fn make(dice: &mut Dice, books: &Arc<Books>) -> ShardExecutor {
    let policy = ExponentialBackoff::new(
        Duration::from_micros(100 + dice.roll(400)),
        Duration::from_millis(3),
        1 + dice.roll(4) as u32,
    );
    let (told, buried) = (Arc::clone(books), Arc::clone(books));
    let config = Config {
        shards: 1 + dice.roll(6) as usize,
        concurrency: 1 + dice.roll(4) as usize,
        queue_size: 1 + dice.roll(64) as usize,
        key_queue_size: dice.roll(3) as usize * 8,
        backoff_size: 1 + dice.roll(16) as usize,
        enqueue_timeout: Duration::from_millis(1 + dice.roll(3)),
        ..Config::default()
    }
    .with_retry_policy(policy.with_jitter(50, dice.roll(u64::MAX)))
    .with_error_handler(move |_| {
        told.told.fetch_add(1, Ordering::Relaxed);
    })
    .with_dead_job_hook(move |dead| {
        buried.buried.fetch_add(1, Ordering::Relaxed);
        drop(dead);
    });
    ShardExecutor::new(config).expect("the configuration is valid")
}

/// Stops in one of several ways, from several tasks.
async fn stop(
    executor: &Arc<ShardExecutor>,
    dice: &mut Dice,
    books: &Arc<Books>,
) -> Result<(), String> {
    let mut tasks = Vec::new();
    for _ in 0..1 + dice.roll(3) {
        let (executor, books) = (Arc::clone(executor), Arc::clone(books));
        let way = dice.roll(3);
        let within = Duration::from_micros(dice.roll(2000));
        tasks.push(tokio::spawn(async move {
            match way {
                0 => executor.stop().await,
                1 => executor.close(),
                _ => {
                    let report = executor.stop_with_deadline(within).await;
                    let returned = report.returned.len() as u64;
                    books.handed_back.fetch_add(returned, Ordering::Relaxed);
                }
            }
        }));
    }
    for task in tasks {
        task.await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

struct Submitter {
    number: u64,
    dice: Dice,
    executor: Arc<ShardExecutor>,
    books: Arc<Books>,
    token: CancellationToken,
    sequence: u64,
    handles: Vec<JobHandle>,
}

impl Submitter {
    async fn act(&mut self) {
        let key = self.dice.roll(KEYS as u64) as usize;
        let name = format!("key {key}");
        match self.dice.roll(20) {
            0..10 => {
                let job = self.job(key);
                let handle = self.executor.submit(&name, job).await;
                self.keep(handle.ok());
            }
            10..13 => {
                let job = self.job(key);
                let handle = self.executor.try_submit(&name, job);
                self.keep(handle.ok());
            }
            13 => {
                let own = self.token.child_token();
                let options = JobOptions::new().cancelled_by(own.clone());
                let job = self.job(key);
                let handle = self.executor.submit_with(&name, job, options).await;
                self.keep(handle.ok());
                tokio::task::yield_now().await;
                own.cancel();
            }
            14 => {
                let mut jobs = Vec::new();
                for _ in 0..1 + self.dice.roll(8) {
                    let key = self.dice.roll(KEYS as u64) as usize;
                    jobs.push((format!("key {key}"), self.job(key)));
                }
                for handle in self.executor.submit_batch(jobs).await {
                    self.keep(handle.ok());
                }
            }
            15 => {
                // A submission that is given up, wherever it is.
                let job = self.job(key);
                let submission = self.executor.submit(&name, job);
                let within = Duration::from_micros(self.dice.roll(300));
                let handle = tokio::time::timeout(within, submission).await;
                self.keep(handle.ok().and_then(Result::ok));
            }
            16 => {
                let within = Duration::from_micros(self.dice.roll(2000));
                let _ = tokio::time::timeout(within, self.executor.barrier(&name)).await;
            }
            17 => {
                if let Some(handle) = self.handles.last() {
                    let _ = (handle.status(), self.executor.status(handle.id()));
                }
            }
            _ => {
                if !self.handles.is_empty() {
                    let at = self.dice.roll(self.handles.len() as u64) as usize;
                    self.handles[at].cancel();
                }
            }
        }
    }

    /// Keeps a handle, or lets go of it.
    fn keep(&mut self, handle: Option<JobHandle>) {
        let Some(handle) = handle else { return };
        match self.dice.roll(10) {
            0 => drop(handle),
            1 => drop(handle.cancel_on_drop()),
            _ => self.handles.push(handle),
        }
    }

    fn job(&mut self, key: usize) -> impl FnMut(JobContext) -> Attempt + use<> {
        self.sequence += 1;
        let (submitter, sequence) = (self.number, self.sequence);
        let load = Load::new(&self.books);
        let plan = self.dice.roll(100);
        move |context| {
            let books = Arc::clone(&load.0);
            Box::pin(async move {
                books.attempts.fetch_add(1, Ordering::Relaxed);
                let was_busy = books.busy[key].swap(true, Ordering::SeqCst);
                if was_busy {
                    books.violation(format!("two jobs of key {key} at the same time"));
                }
                if context.attempt() == 1 {
                    let mut begun = books.begun.lock().expect("no panic under this lock");
                    let last = begun.insert((key, submitter), sequence).unwrap_or(0);
                    drop(begun);
                    if last >= sequence {
                        books.violation(format!("{sequence} of key {key} began after {last}"));
                    }
                }
                let result = attempt(plan, &context).await;
                books.busy[key].store(false, Ordering::SeqCst);
                let result = result.unwrap_or_else(|text| panic!("{text}"));
                if result.is_ok() {
                    books.succeeded.fetch_add(1, Ordering::Relaxed);
                }
                result
            })
        }
    }
}

type Attempt = std::pin::Pin<Box<dyn Future<Output = Result<(), JobError>> + Send>>;

/// Makes an attempt of one of several kinds. The outer error stands for a panic.
async fn attempt(plan: u64, context: &JobContext) -> Result<Result<(), JobError>, &'static str> {
    match plan {
        0..50 => {}
        50..65 => tokio::task::yield_now().await,
        65..70 => tokio::time::sleep(Duration::from_micros(50)).await,
        70..80 if context.attempt() <= 2 => return Ok(Err("not yet".into())),
        80..85 => return Ok(Err("never".into())),
        85..88 => return Ok(Err(Permanent::new("not ever").into())),
        88..93 if context.attempt() == 1 => return Err("stress: not like this"),
        93..95 => return Err("stress: not at all"),
        95..100 => {
            let _ = tokio::time::timeout(Duration::from_millis(1), context.cancelled()).await;
        }
        _ => {}
    }
    Ok(Ok(()))
}

/// Counts the jobs that are alive.
struct Load(Arc<Books>);

impl Load {
    fn new(books: &Arc<Books>) -> Self {
        books.made.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(books))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Compares the executor's books with ours.
fn audit(executor: &ShardExecutor, books: &Books, seen: [u64; 4]) -> Result<Totals, String> {
    let stats = executor.stats();
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let same = |what: &str, ours: u64, theirs: u64| match ours == theirs {
        true => Ok(()),
        false => Err(format!(
            "{what}: {ours} counted, {theirs} in the books: {stats:?}"
        )),
    };
    let violations = books.violations.lock().expect("no panic under this lock");
    if let Some(violation) = violations.first() {
        return Err(violation.clone());
    }
    if !stats.is_balanced() || stats.queued + stats.running + stats.backing_off > 0 {
        return Err(format!("the books do not balance: {stats:?}"));
    }
    same("succeeded", count(&books.succeeded), stats.ran)?;
    same(
        "failed or cancelled",
        count(&books.told),
        stats.failed + stats.cancelled,
    )?;
    same("buried", count(&books.buried), stats.failed)?;
    same("handed back", count(&books.handed_back), stats.returned)?;
    same("jobs alive", count(&books.made) - count(&books.dropped), 0)?;
    let ended = [stats.ran, stats.failed, stats.cancelled, stats.returned];
    if seen.iter().zip(ended).any(|(seen, ended)| *seen > ended) {
        return Err(format!("handles saw {seen:?}, the books say {ended:?}"));
    }
    Ok(Totals {
        rounds: 1,
        attempts: count(&books.attempts),
        stats,
    })
}
