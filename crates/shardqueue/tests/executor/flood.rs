//! The law of the noisy key: one that sends a hundred times what it may, from many tasks, with short and long jobs that
//! all fail, causes no refusal for the other keys of its shard, and delays them by at most a tenth more than a busy
//! neighbour does. Time is paused, so every run is exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use shardqueue::{Config, JobError, Permanent, ShardExecutor};
use tokio::time::{Instant, sleep, sleep_until};

use super::support::{Journal, one_shard};

const QUIET: u32 = 9;
const QUIET_JOBS: u32 = 400;
const MILLISECOND: Duration = Duration::from_millis(1);

/// The load beside the quiet keys.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// A key that always has two jobs queued, which succeed: the same load without a flood.
    Busy,
    /// Tasks that submit jobs of one key all the time. The jobs fail and are attempted again.
    Fails { submitters: u32 },
    /// The jobs fail and are not attempted again, so that the key never backs off.
    FailsForGood { submitters: u32 },
}

/// What the quiet keys saw.
struct Seen {
    waits: Vec<Duration>,
    refused: u64,
}

impl Seen {
    fn p99(&self) -> Duration {
        let mut sorted = self.waits.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * 99 / 100]
    }
}

/// Submits jobs of the noisy key until the end, as fast as they are answered.
async fn make_noise(
    executor: Arc<ShardExecutor>,
    noise: Noise,
    work: Duration,
    end: Arc<AtomicBool>,
) {
    while !end.load(Ordering::Relaxed) {
        let job = move |_| async move {
            sleep(work).await;
            match noise {
                Noise::Busy => Ok(()),
                Noise::Fails { .. } => Err(JobError::from("down")),
                Noise::FailsForGood { .. } => Err(Permanent::new("refused").into()),
            }
        };
        let answer = executor.submit("noisy", job).await;
        if let (Noise::Busy, Ok(handle)) = (noise, answer) {
            let _ = handle.await;
        }
    }
}

/// Plays quiet keys beside a noisy one, whose jobs take this long.
async fn play(noise: Noise, work: Duration) -> Seen {
    let executor = Arc::new(one_shard(Config::default()));
    let end = Arc::new(AtomicBool::new(false));
    let tasks = match noise {
        Noise::Busy => 2,
        Noise::Fails { submitters } | Noise::FailsForGood { submitters } => submitters,
    };
    for _ in 0..tasks {
        tokio::spawn(make_noise(
            Arc::clone(&executor),
            noise,
            work,
            Arc::clone(&end),
        ));
    }
    let (waits, refused) = (Journal::new(), Arc::new(AtomicU64::new(0)));
    let start = Instant::now() + Duration::from_secs(1);
    let mut quiet = Vec::new();
    let mut at = start;
    for number in 0..QUIET_JOBS {
        at += (work + MILLISECOND) * (1 + number * 7919 % 5); // a third of the turns
        let (executor, waits, refused) =
            (Arc::clone(&executor), waits.clone(), Arc::clone(&refused));
        quiet.push(tokio::spawn(async move {
            sleep_until(at).await;
            let key = format!("quiet {}", number * 31 % QUIET);
            match executor.submit(key, |_| sleep(MILLISECOND)).await {
                Ok(handle) => assert!(handle.await.is_done()),
                Err(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
            }
            waits.note(at.elapsed());
        }));
    }
    for task in quiet {
        task.await.unwrap();
    }
    end.store(true, Ordering::Relaxed);
    let refused = refused.load(Ordering::Relaxed);
    Seen {
        waits: waits.take(),
        refused,
    }
}

async fn check(noise: fn(u32) -> Noise) {
    for work in [MILLISECOND, 50 * MILLISECOND] {
        let busy = play(Noise::Busy, work).await.p99();
        for submitters in [1, 100, 1_000] {
            let seen = play(noise(submitters), work).await;
            let at = format!("{:?} with jobs of {work:?}", noise(submitters));
            assert_eq!(seen.refused, 0, "{at}");
            let p99 = seen.p99();
            assert!(
                p99 <= busy * 11 / 10,
                "{at}: {p99:?}, beside a neighbour {busy:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_floods_and_fails_is_refused_alone_and_delays_no_other() {
    check(|submitters| Noise::Fails { submitters }).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_floods_and_fails_for_good_is_refused_alone_and_delays_no_other() {
    check(|submitters| Noise::FailsForGood { submitters }).await;
}
