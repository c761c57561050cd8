//! shardqueue under the law: one shard, whose noisy key's jobs all fail, and a task for each of its submitters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shardqueue::{Config, JobError, Permanent, ShardExecutor};
use tokio::runtime::Builder;

use super::{Attack, Beside, QUIET, QUIET_WORK, QuietView, spin};

/// How the noisy key's jobs fail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    /// They are attempted again, with the default backoff.
    Retried,
    /// They are not attempted again, so the next one runs at once.
    Permanent,
}

/// The executor under test, and the one that is flooded in its place.
struct ExecutorSide {
    attack: Attack,
    failure: Failure,
    target: ShardExecutor,
    decoy: ShardExecutor,
    is_over: AtomicBool,
    refused: AtomicU64,
    waits: Mutex<Vec<Duration>>,
}

pub(super) fn measure(
    failure: Failure,
    attack: Attack,
    beside: Beside,
    time: Duration,
) -> QuietView {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    let view = runtime.block_on(measured((attack, failure), beside, time));
    runtime.shutdown_background();
    view
}

async fn measured(
    (attack, failure): (Attack, Failure),
    beside: Beside,
    time: Duration,
) -> QuietView {
    let side = Arc::new(ExecutorSide {
        attack,
        failure,
        target: executor(),
        decoy: executor(),
        is_over: AtomicBool::new(false),
        refused: AtomicU64::new(0),
        waits: Mutex::default(),
    });
    // The decoy runs nothing: its load is the flood of submissions alone.
    let blocked = side.decoy.submit("decoy", |_| std::future::pending::<()>());
    blocked.await.expect("it is empty");
    for _ in 0..attack.submitters {
        tokio::spawn(Arc::clone(&side).flood(beside));
    }
    if beside == Beside::Neighbour {
        for _ in 0..2 {
            tokio::spawn(Arc::clone(&side).keep_busy());
        }
    }
    side.trickle(time).await;
    side.is_over.store(true, Ordering::Relaxed);
    let waits = std::mem::take(&mut *side.waits.lock().unwrap_or_else(PoisonError::into_inner));
    QuietView {
        waits,
        refused: side.refused.load(Ordering::Relaxed),
    }
}

fn executor() -> ShardExecutor {
    let config = Config {
        shards: 1,
        ..Config::default()
    };
    ShardExecutor::new(config).expect("a valid configuration")
}

impl ExecutorSide {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    async fn flood(self: Arc<Self>, beside: Beside) {
        let victim = match beside {
            Beside::Flood => &self.target,
            Beside::Neighbour => &self.decoy,
        };
        let (work, failure) = (self.attack.work, self.failure);
        let (pause, burst) = self.attack.pace();
        while !self.is_over() {
            for _ in 0..burst {
                let job = move |_| {
                    spin(work);
                    std::future::ready(Err::<(), JobError>(match failure {
                        Failure::Retried => "down".into(),
                        Failure::Permanent => Permanent::new("refused").into(),
                    }))
                };
                drop(victim.try_submit("noisy", job)); // most are refused
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Keeps a job queued at all times.
    async fn keep_busy(self: Arc<Self>) {
        let work = self.attack.work;
        while !self.is_over() {
            let job = move |_| async move { spin(work) };
            if let Ok(handle) = self.target.submit("neighbour", job).await {
                let _ = handle.await;
            }
        }
    }

    /// Sends for the quiet keys for a while.
    async fn trickle(self: &Arc<Self>, time: Duration) {
        let begin = Instant::now();
        let mut jobs = Vec::new();
        for number in 0.. {
            let key = u64::from(number) % QUIET;
            if begin.elapsed() > time {
                break;
            }
            let is_warm = begin.elapsed() > time / 10;
            jobs.push(tokio::spawn(Arc::clone(self).run_quiet(key, is_warm)));
            tokio::time::sleep(self.attack.quiet_pause(number)).await;
        }
        for job in jobs {
            let _ = job.await;
        }
    }

    async fn run_quiet(self: Arc<Self>, key: u64, is_warm: bool) {
        let (begin, noted) = (Instant::now(), Arc::clone(&self));
        let job = move |_| {
            noted.note(is_warm.then(|| begin.elapsed()));
            async { spin(QUIET_WORK) }
        };
        let Ok(handle) = self.target.submit(format!("quiet {key}"), job).await else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let _ = handle.await;
    }

    fn note(&self, wait: Option<Duration>) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.extend(wait);
    }
}
