//! The ways to overload a server.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use fila_proto::v1::QueueSettings;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::transport::Endpoint;

use super::TrialScale;
use super::idle::{Idle, is_closed};
use super::traffic::{Keys, Plan, Worker};
use super::trial::{Bounds, DATABASE, QUEUE, Setup, Trial, TrialReport, slow_disk};
use crate::client;

pub(super) const NAMES: [&str; 7] = [
    "slow-disk",
    "deaf-consumers",
    "hoarding-consumers",
    "connections",
    "keys",
    "depth",
    "memory",
];

/// The server's budget for messages, and for unconfirmed ones, in MiB. Small, so that anything unbounded soon exceeds it.
const BUDGET: u64 = 32;
const BUFFERED: u64 = 16;

/// The cache of the database, in MiB.
const CACHE: u64 = 8;

/// How long a slow consumer takes for a message: short enough that the share of each of five keys is more than the quiet
/// tenant sends.
const PACE: Duration = Duration::from_millis(1);

/// The memory that a server may take under any load, on top of its idle memory. Unconfirmed messages count twice: as they
/// were received and as they are written.
const MEMORY: u64 = BUDGET + 2 * BUFFERED + CACHE + DATABASE;

pub(super) async fn play(name: &str, scale: TrialScale) -> anyhow::Result<TrialReport> {
    match name {
        "slow-disk" => slow(scale).await,
        "deaf-consumers" => deaf(scale).await,
        "hoarding-consumers" => hoarding(scale).await,
        "connections" => connections(scale).await,
        "keys" => keys(scale).await,
        "depth" => depth(scale).await,
        "memory" => memory(scale).await,
        other => bail!("there is no scenario `{other}`"),
    }
}

fn setup(name: &'static str, scale: TrialScale) -> Setup {
    Setup {
        name,
        settings: vec![
            format!("storage.memory_budget={BUDGET} MiB"),
            format!("storage.cache={CACHE} MiB"),
            format!("limits.buffered_bytes={BUFFERED} MiB"),
        ],
        calm: if scale.is_quick {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(3)
        },
        ..Setup::default()
    }
}

const BOUNDS: Bounds = Bounds {
    memory: MEMORY,
    quiet: Duration::from_secs(2),
    codes: &[],
    refuses_quiet: false,
};

fn noisy(producer: u64, key: &'static str, messages: u64) -> Plan {
    Plan {
        producer,
        queue: QUEUE,
        keys: Keys::One(key),
        size: 1024,
        messages,
        rate: None,
    }
}

/// Producers at ten times the capacity of the disk.
async fn slow(scale: TrialScale) -> anyhow::Result<TrialReport> {
    const SYNC: Duration = Duration::from_millis(100);
    let directory = tempfile::tempdir()?;
    let delay = directory.path().join("delay");
    std::fs::write(&delay, "0")?;
    let mut setup = setup("slow-disk", scale);
    setup.variables = vec![
        ("LD_PRELOAD", slow_disk(directory.path())?),
        ("FILA_SYNC_DELAY_FILE", delay.clone()),
    ];
    let mut trial = Trial::begin(setup).await?;
    std::fs::write(&delay, SYNC.as_millis().to_string())?;
    // The capacity of the disk: the rate of one producer with as many unconfirmed messages as it may have.
    let before = trial.books.borrow().confirmed;
    trial.add(noisy(1, "probe", u64::MAX));
    let time = scale.time(20);
    let begun = Instant::now();
    sleep(time).await;
    trial.silence().await?;
    let took = trial.books.borrow().confirmed - before;
    let capacity = took as f64 / begun.elapsed().as_secs_f64();
    for (producer, key) in (2..).zip(["loud-1", "loud-2", "loud-3", "loud-4"]) {
        trial.add(Plan {
            rate: Some(capacity * 10.0 / 4.0),
            ..noisy(producer, key, u64::MAX)
        });
    }
    let before = trial.books.borrow().confirmed;
    let begun = Instant::now();
    sleep(scale.time(60)).await;
    let offered = trial.silence().await?;
    let taken = trial.books.borrow().confirmed - before;
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::write(&delay, "0")?;
    let done = format!(
        "every sync takes {} ms more; the disk takes {capacity:.0}/s; 4 producers have {:.0}/s, {:.0}/s are taken",
        SYNC.as_millis(),
        offered as f64 / seconds,
        taken as f64 / seconds,
    );
    // The server admits streams in turns, each with a few messages, so the quiet one waits for a few rounds of the disk.
    // Behind all messages that the others have in flight, it would wait more than ten seconds.
    let bounds = Bounds {
        quiet: SYNC * 50,
        codes: &["BUFFER_FULL"],
        ..BOUNDS
    };
    let report = trial.end(done, bounds).await?;
    ensure!(
        report.loaded.p50 > SYNC / 2,
        "the disk was not slow: {:?}",
        report.loaded
    );
    Ok(report)
}

/// How long a message stays with a consumer that does nothing.
const LEASE: Duration = Duration::from_secs(2);

fn with_short_leases(name: &'static str, scale: TrialScale) -> Setup {
    Setup {
        queue: QueueSettings {
            visibility_timeout_ms: Some(LEASE.as_millis() as u64),
            // A message that a consumer took and never answered must not become a dead letter here.
            retry_attempts_max: Some(1_000),
            retry_backoff_ms: Some(1),
            retry_backoff_max_ms: Some(1),
            ..QueueSettings::default()
        },
        ..setup(name, scale)
    }
}

/// Consumers that ask for thousands of messages and read none.
async fn deaf(scale: TrialScale) -> anyhow::Result<TrialReport> {
    let mut trial = Trial::begin(with_short_leases("deaf-consumers", scale)).await?;
    let messages = scale.of(200_000);
    // These consumers get half of the messages. The quiet tenant's messages among them come back when their leases expire,
    // and these consumers have no credit left for them.
    let consumers = 20;
    let credit = messages / 2 / consumers;
    trial.pace.set(PACE);
    trial.add(Plan {
        size: 4096,
        ..noisy(1, "loud", messages)
    });
    trial.finish_sending().await?;
    let mut workers = Vec::new();
    for _ in 0..consumers {
        let channel = Endpoint::from_shared(trial.server.address.clone())?
            .connect()
            .await?;
        workers.push(Worker::on(&channel, QUEUE, credit as u32).await?);
    }
    sleep(scale.time(20).max(LEASE)).await;
    // The bytes that a server has in flight to one consumer: a window, and the frames around it.
    let each = 8 + 2;
    let done = format!(
        "{consumers} consumers ask for {credit} messages of 4 KiB each and read none; {messages} are there"
    );
    let bounds = Bounds {
        memory: MEMORY + consumers * each,
        quiet: LEASE * 3,
        codes: &["BUFFER_FULL", "LEASE_NOT_FOUND"],
        ..BOUNDS
    };
    let report = trial.end(done, bounds).await;
    drop(workers);
    report
}

/// Consumers that read all deliveries and never answer.
async fn hoarding(scale: TrialScale) -> anyhow::Result<TrialReport> {
    let mut trial = Trial::begin(with_short_leases("hoarding-consumers", scale)).await?;
    let messages = scale.of(200_000);
    let consumers = 20;
    let credit = messages / 2 / consumers;
    trial.pace.set(PACE);
    trial.add(noisy(1, "loud", messages));
    trial.finish_sending().await?;
    let mut hoarders = Vec::new();
    for _ in 0..consumers {
        let mut worker = Worker::open(&trial.server.address, QUEUE, credit as u32).await?;
        hoarders.push(tokio::task::spawn_local(async move {
            while let Ok(Some(_)) = worker.responses.message().await {}
        }));
    }
    sleep(scale.time(20).max(LEASE)).await;
    let done = format!(
        "{consumers} consumers take {credit} messages of 1 KiB each and never answer; {messages} are there"
    );
    let bounds = Bounds {
        quiet: LEASE * 3,
        codes: &["BUFFER_FULL", "LEASE_NOT_FOUND"],
        ..BOUNDS
    };
    let report = trial.end(done, bounds).await;
    for hoarder in hoarders {
        hoarder.abort();
    }
    report
}

/// Idle connections: as many as the server allows, and then more.
async fn connections(scale: TrialScale) -> anyhow::Result<TrialReport> {
    // The connections of the quiet tenant, of its consumer, and of the admin client.
    const OURS: u64 = 3;
    // Bytes that a connection may take: its task and its buffers.
    const EACH: u64 = 48 << 10;
    let room = open_files_max()?.saturating_sub(500);
    let count = scale.of(10_000).min(room);
    let mut setup = setup("connections", scale);
    // All come from one address, which gets three quarters of the places.
    let places = (count + OURS) * 4 / 3;
    setup.settings.push(format!("limits.connections={places}"));
    let trial = Trial::begin(setup).await?;
    let address = trial
        .server
        .address
        .trim_start_matches("http://")
        .to_owned();
    let (to_holder, told) = std::sync::mpsc::channel();
    let holder = apart({
        let address = address.clone();
        move || hold(&address, count, &told)
    });
    let waited = wait_for(&trial, count + OURS).await;
    if let Err(error) = waited {
        // If the task has ended, its own error is better.
        if holder.is_finished() {
            holder.await??;
        }
        return Err(error);
    }
    // In a full run, longer than the interval of the server's pings.
    sleep(scale.time(30)).await;
    let beyond = 50;
    let trying = apart({
        let address = address.clone();
        move || count_closed(&address, beyond)
    });
    let closed = trying.await?;
    let open = trial.info().await?.connections;
    ensure!(open == count + OURS, "{open} connections are open");
    to_holder.send(())?;
    holder.await??;
    wait_for(&trial, OURS).await?;
    let refused = apart(move || is_closed(&address)).await?;
    ensure!(!refused, "there is room again, and a connection is refused");
    let done = format!(
        "{count} connections of HTTP/2 are idle; of {beyond} more {closed} are turned away"
    );
    let bounds = Bounds {
        memory: DATABASE + ((count * EACH) >> 20),
        ..BOUNDS
    };
    let mut report = trial.end(done, bounds).await?;
    if closed < beyond {
        let left = beyond - closed;
        let fault = format!("{left} connections beyond the limit were not closed");
        report.faults.push(fault);
    }
    Ok(report)
}

/// Returns how many of this many connections the server turns away.
fn count_closed(address: &str, count: usize) -> usize {
    std::thread::scope(|scope| {
        let tries: Vec<_> = (0..count)
            .map(|_| scope.spawn(|| is_closed(address)))
            .collect();
        let closed = tries.into_iter().filter_map(|it| it.join().ok());
        closed.filter(|&is_closed| is_closed).count()
    })
}

/// Opens connections and answers their pings until it is told to close them.
fn hold(address: &str, count: u64, told: &Receiver<()>) -> anyhow::Result<()> {
    // The size of the system's queue of connections that the server has not accepted yet. A connection that finds no room
    // there tries again seconds later, and the others wait for it.
    const AT_ONCE: u64 = 250;
    let mut open: Vec<Idle> = Vec::new();
    loop {
        let left = count - open.len() as u64;
        for _ in 0..left.min(AT_ONCE) {
            open.push(Idle::open(address)?);
        }
        for connection in &mut open {
            connection.answer()?;
        }
        let pause = Duration::from_millis(if left > 0 { 20 } else { 200 });
        if told.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
    }
}

/// Runs a blocking function on another thread.
fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Waits until the server has this many open connections.
async fn wait_for(trial: &Trial, connections: u64) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(100);
    let begun = Instant::now();
    loop {
        let info = trial.info().await?;
        if info.connections == connections {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "{} connections are open, not {connections}",
            info.connections
        );
        sleep(Duration::from_millis(20)).await;
    }
}

fn open_files_max() -> anyhow::Result<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3));
    let soft = soft.context("/proc/self/limits says nothing of open files")?;
    // The limit may be `unlimited`.
    Ok(soft.parse().unwrap_or(u64::MAX))
}

/// A fairness key for each message, and a few keys with very many messages.
async fn keys(scale: TrialScale) -> anyhow::Result<TrialReport> {
    // Bytes that a key may take in memory while it has messages, without the messages.
    const EACH: u64 = 2 << 10;
    let (keys, hot) = (scale.of(100_000), scale.of(50_000));
    let mut trial = Trial::begin(setup("keys", scale)).await?;
    // Slow enough that all keys have a message at the same time.
    trial.pace.set(Duration::from_millis(20));
    trial.add(Plan {
        keys: Keys::Own,
        size: 64,
        ..noisy(1, "", keys)
    });
    for (producer, key) in (2..).zip(["hot-1", "hot-2", "hot-3", "hot-4"]) {
        trial.add(noisy(producer, key, hot / 4));
    }
    trial.finish_sending().await?;
    let stats = client::stats(&trial.channel, QUEUE).await?;
    ensure!(
        stats.active_keys > keys / 2,
        "{} keys are active",
        stats.active_keys
    );
    // Every key has a turn before the quiet one has its next: the quiet tenant may wait as long as it takes to serve all.
    trial.pace.set(Duration::ZERO);
    let begun = Instant::now();
    while client::stats(&trial.channel, QUEUE).await?.active_keys > 10 {
        ensure!(begun.elapsed() < Duration::from_secs(200), "keys are left");
        sleep(Duration::from_millis(20)).await;
    }
    let round = begun.elapsed();
    let done = format!(
        "{} keys have messages at once, 4 of them {hot} together; one round takes {:.1} s",
        stats.active_keys,
        round.as_secs_f64()
    );
    let sending = begun.duration_since(trial.overload_began);
    let bounds = Bounds {
        memory: MEMORY + ((keys * EACH) >> 20),
        quiet: sending + round * 2 + Duration::from_secs(2),
        codes: &["BUFFER_FULL"],
        ..BOUNDS
    };
    trial.end(done, bounds).await
}

/// Keys at their depth limit, then the queue at its depth limit.
async fn depth(scale: TrialScale) -> anyhow::Result<TrialReport> {
    let per_key = scale.of(20_000);
    let mut setup = setup("depth", scale);
    setup.queue = QueueSettings {
        depth_max: Some(per_key * 4),
        key_depth_max: Some(per_key),
        ..QueueSettings::default()
    };
    let mut trial = Trial::begin(setup).await?;
    trial.pace.set(PACE);
    // Three keys at their limit leave room for the quiet one.
    for (producer, key) in (1..).zip(["loud-1", "loud-2", "loud-3"]) {
        trial.add(noisy(producer, key, u64::MAX));
    }
    wait_for_refusals(&trial, "KEY_FULL").await?;
    sleep(scale.time(20)).await;
    ensure!(
        trial.books.borrow().quiet_refused == 0,
        "the quiet tenant was refused beside full keys"
    );
    // Two more fill the queue for all keys.
    for (producer, key) in (4..).zip(["loud-4", "loud-5"]) {
        trial.add(noisy(producer, key, u64::MAX));
    }
    wait_for_refusals(&trial, "QUEUE_FULL").await?;
    sleep(scale.time(20)).await;
    let depth = client::stats(&trial.channel, QUEUE).await?.depth;
    ensure!(
        depth <= per_key * 4,
        "{depth} messages are in a queue for {}",
        per_key * 4
    );
    let done = format!(
        "keys for {per_key} messages are full, then the queue for {}",
        per_key * 4
    );
    let bounds = Bounds {
        codes: &["KEY_FULL", "QUEUE_FULL", "BUFFER_FULL"],
        refuses_quiet: true,
        ..BOUNDS
    };
    trial.end(done, bounds).await
}

async fn wait_for_refusals(trial: &Trial, code: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !trial.books.borrow().refusals.contains_key(code) {
        ensure!(
            begun.elapsed() < Duration::from_secs(100),
            "never refused with {code}"
        );
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A backlog many times larger than the memory budget, and a consumer that is far behind.
async fn memory(scale: TrialScale) -> anyhow::Result<TrialReport> {
    let messages = scale.of(400_000);
    let mut trial = Trial::begin(setup("memory", scale)).await?;
    trial.pace.set(PACE);
    for (producer, key) in (1..).zip(["loud-1", "loud-2", "loud-3", "loud-4"]) {
        trial.add(Plan {
            size: 4096,
            ..noisy(producer, key, messages / 4)
        });
    }
    trial.finish_sending().await?;
    sleep(scale.time(20)).await;
    let stats = client::stats(&trial.channel, QUEUE).await?;
    let info = trial.info().await?;
    ensure!(
        info.memory_used_bytes <= info.memory_budget_bytes,
        "{} bytes are held, {} are the budget",
        info.memory_used_bytes,
        info.memory_budget_bytes
    );
    let done = format!(
        "a backlog of {} MiB with a budget of {BUDGET} MiB; {} messages are in the store only",
        stats.bytes >> 20,
        stats.stored_only
    );
    // While the producers fill the backlog, the disk is saturated, and the quiet tenant waits for some of its rounds.
    let bounds = Bounds {
        quiet: Duration::from_secs(5),
        codes: &["BUFFER_FULL"],
        ..BOUNDS
    };
    trial.end(done, bounds).await
}
