//! Jobs per second beside the simplest thing that keeps order per shard: a `tokio::sync::mpsc` channel per
//! shard, and a worker that takes jobs from it one by one.
//!
//! Jobs do nothing, for 10,000 keys in four shards; all sides box a job that captures a number, and hold at most
//! 1,024 jobs per shard. The channels know no keys, handles, retries, cancellation, fairness or statistics; in a
//! second floor each job has a `oneshot` channel for its outcome, which is dropped as our handles are. Machines are
//! shared and noisy, so they are measured in alternating samples, the best sample of each counts, and what is
//! reported is the ratio to the first floor.
//!
//! `cargo bench -p shardqueue` prints the tables; `-- --quick` takes a tenth of the time.

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use shardqueue::{Config, JobError, JobHandle, ShardExecutor};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Barrier, mpsc, oneshot};

const KEYS: u64 = 10_000;
const SHARDS: usize = 4;
const QUEUE_SIZE: usize = 1024;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (samples, jobs) = if quick { (3, 100_000) } else { (15, 500_000) };
    throughput(samples, jobs);
    latency(if quick { 20_000 } else { 200_000 });
    memory();
}

/// How producers and workers share the machine.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    threads: usize,
    producers: usize,
}

const SETTINGS: [Setting; 3] = [
    Setting {
        name: "1 thread, 1 producer",
        threads: 1,
        producers: 1,
    },
    Setting {
        name: "1 thread, 4 producers",
        threads: 1,
        producers: 4,
    },
    Setting {
        name: "2 threads, 4 producers",
        threads: 2,
        producers: 4,
    },
];

impl Setting {
    fn runtime(self) -> Runtime {
        let mut builder = match self.threads {
            1 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        builder.worker_threads(self.threads).enable_time();
        builder.build().expect("a runtime")
    }
}

fn throughput(samples: usize, jobs: u64) {
    println!("million jobs per second, best of {samples} alternating samples of {jobs} jobs\n");
    println!("| setting | mpsc | mpsc, oneshot | shardqueue | ratio |");
    println!("|---|---:|---:|---:|---:|");
    let keys: Arc<[String]> = (0..KEYS).map(|key| format!("memory-{key}")).collect();
    for setting in SETTINGS {
        let (mut floor, mut answering, mut ours) = (Duration::MAX, Duration::MAX, Duration::MAX);
        for _ in 0..samples {
            for (best, answer) in [
                (&mut floor, Answer::None),
                (&mut answering, Answer::Oneshot),
            ] {
                let run = channels(setting, jobs, &keys, answer);
                *best = (*best).min(setting.runtime().block_on(run));
            }
            ours = ours.min(setting.runtime().block_on(executor(setting, jobs, &keys)));
        }
        let rate = |took: Duration| jobs as f64 / took.as_secs_f64() / 1e6;
        let ratio = rate(ours) / rate(floor);
        let rates = [floor, answering, ours].map(|took| format!("{:.2}", rate(took)));
        println!("| {} | {} | {ratio:.2} |", setting.name, rates.join(" | "));
    }
    println!();
}

/// A job as the channels hold it.
type Boxed = Box<dyn FnMut() -> Pin<Box<dyn Future<Output = Result<(), JobError>> + Send>> + Send>;

/// The answer that a submitter gets from the channels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    None,
    Oneshot,
}

async fn channels(setting: Setting, jobs: u64, keys: &Arc<[String]>, answer: Answer) -> Duration {
    let mut senders = Vec::new();
    let mut workers = Vec::new();
    for _ in 0..SHARDS {
        let (sender, mut receiver) = mpsc::channel::<Message>(QUEUE_SIZE);
        senders.push(sender);
        workers.push(tokio::spawn(async move {
            while let Some((mut job, answer)) = receiver.recv().await {
                let result = job().await;
                if let Some(answer) = answer {
                    let _ = answer.send(result);
                }
            }
        }));
    }
    let began = Instant::now();
    let mut producers = Vec::new();
    for producer in 0..setting.producers {
        let (senders, keys) = (senders.clone(), Arc::clone(keys));
        producers.push(tokio::spawn(async move {
            for number in numbers(setting, producer, jobs) {
                let shard = fnv1a(keys[(number % KEYS) as usize].as_bytes()) as usize % SHARDS;
                let job: Boxed = Box::new(move || {
                    Box::pin(async move {
                        black_box(number);
                        Ok(())
                    })
                });
                let (sender, handle) = match answer {
                    Answer::None => (None, None),
                    Answer::Oneshot => {
                        let (sender, receiver) = oneshot::channel();
                        (Some(sender), Some(receiver))
                    }
                };
                assert!(senders[shard].send((job, sender)).await.is_ok());
                drop(handle);
            }
        }));
    }
    drop(senders);
    for task in producers.into_iter().chain(workers) {
        task.await.expect("it does not panic");
    }
    began.elapsed()
}

type Message = (Boxed, Option<oneshot::Sender<Result<(), JobError>>>);

async fn executor(setting: Setting, jobs: u64, keys: &Arc<[String]>) -> Duration {
    let executor = Arc::new(make(QUEUE_SIZE));
    let began = Instant::now();
    let mut producers = Vec::new();
    for producer in 0..setting.producers {
        let (executor, keys) = (Arc::clone(&executor), Arc::clone(keys));
        producers.push(tokio::spawn(async move {
            for number in numbers(setting, producer, jobs) {
                submit(&executor, &keys[(number % KEYS) as usize], number).await;
            }
        }));
    }
    for task in producers {
        task.await.expect("it does not panic");
    }
    executor.stop().await;
    let took = began.elapsed();
    assert_eq!(executor.stats().ran, jobs);
    took
}

fn make(queue_size: usize) -> ShardExecutor {
    let config = Config {
        shards: SHARDS,
        queue_size,
        enqueue_timeout: Duration::from_secs(60),
        ..Config::default()
    };
    ShardExecutor::new(config).expect("the configuration is valid")
}

async fn submit(executor: &ShardExecutor, key: &str, number: u64) -> JobHandle {
    let job = move |_| async move {
        black_box(number);
        Ok::<(), JobError>(())
    };
    executor.submit(key, job).await.expect("there will be room")
}

/// Returns the numbers of a producer's jobs, which visit the keys in a scattered order.
fn numbers(setting: Setting, producer: usize, jobs: u64) -> impl Iterator<Item = u64> {
    let (producers, producer) = (setting.producers as u64, producer as u64);
    (producer..jobs)
        .step_by(producers as usize)
        .map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)
}

fn fnv1a(bytes: &[u8]) -> u32 {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, mix)
}

/// How long a submission takes while its shard has room, with workers on another thread.
fn latency(jobs: u64) {
    let runtime = SETTINGS[2].runtime();
    let ours = runtime.block_on(async {
        let executor = make(1 << 20);
        let mut times = Vec::with_capacity(jobs as usize);
        for number in 0..jobs {
            let key = format!("memory-{}", number % KEYS);
            let began = Instant::now();
            drop(submit(&executor, &key, number).await);
            times.push(began.elapsed().as_nanos() as u64);
        }
        executor.stop().await;
        times
    });
    let floor = runtime.block_on(async {
        let (sender, mut receiver) = mpsc::channel::<u64>(1 << 20);
        let worker = tokio::spawn(async move {
            while let Some(number) = receiver.recv().await {
                black_box(number);
            }
        });
        let mut times = Vec::with_capacity(jobs as usize);
        for number in 0..jobs {
            let began = Instant::now();
            assert!(sender.send(number).await.is_ok());
            times.push(began.elapsed().as_nanos() as u64);
        }
        drop(sender);
        worker.await.expect("it does not panic");
        times
    });
    println!("| submit with room, ns | p50 | p99 | p99.9 |");
    println!("|---|---:|---:|---:|");
    for (name, mut times) in [("mpsc, a number", floor), ("shardqueue", ours)] {
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!("| {name} | {} | {} | {} |", at(0.5), at(0.99), at(0.999));
    }
    println!();
}

/// The memory of a queued job, counted by the allocator.
fn memory() {
    const JOBS: u64 = 100_000;
    println!("| bytes per queued job | one key | a key each |");
    println!("|---|---:|---:|");
    let mut row = Vec::new();
    for keys in [1, JOBS] {
        let runtime = SETTINGS[0].runtime();
        runtime.block_on(async {
            let executor = make(1 << 20);
            // A job that waits keeps each worker busy, so that the others stay queued.
            let gate = Arc::new(Barrier::new(SHARDS + 1));
            for shard in 0..SHARDS {
                let mut blockers = (0..).map(|number| format!("blocker-{number}"));
                let is_its = |key: &String| executor.shard_for(key) == shard;
                let key = blockers.find(is_its).expect("there are enough");
                let gate = Arc::clone(&gate);
                let job = move |_| {
                    let gate = Arc::clone(&gate);
                    async move {
                        gate.wait().await;
                    }
                };
                drop(executor.submit(key, job).await.expect("there is room"));
            }
            tokio::task::yield_now().await;
            let names: Vec<String> = (0..keys).map(|key| format!("memory-{key}")).collect();
            let queued = measure(|| {
                for number in 0..JOBS {
                    let job = move |_| async move {
                        black_box(number);
                    };
                    let key = &names[(number % keys) as usize];
                    drop(executor.try_submit(key, job).expect("there is room"));
                }
            });
            row.push(queued.bytes_current as f64 / JOBS as f64);
            gate.wait().await;
            executor.stop().await;
        });
    }
    println!("| handle dropped | {:.0} | {:.0} |", row[0], row[1]);
}
