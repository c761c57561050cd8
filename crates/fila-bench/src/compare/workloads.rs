//! The workloads, each run by one contestant at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::time::MissedTickBehavior;

use super::contestant::Contestant;
use super::driver::{self, Driver, Goal, Load};

/// The interval between messages when latency is measured: a thousand messages a second.
const INTERVAL: Duration = Duration::from_millis(1);

/// How long a piece of work may take. A workload that hangs fails and does not delay the others.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(120);

/// How long a consumer waits for the first message after a start before it tries again: a quorum queue that gets the
/// request before it has elected a leader answers only after minutes.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Fails if the work takes too long.
pub(crate) async fn in_time<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.with_context(|| format!("not done after {PATIENCE:?}"))?
}

fn rate(load: Load, begun: Instant) -> f64 {
    load.messages as f64 / begun.elapsed().as_secs_f64()
}

/// Returns the rate at which messages are sent and confirmed, in messages a second.
pub(crate) async fn produce(driver: &dyn Driver, queue: &str, load: Load) -> anyhow::Result<f64> {
    let begun = Instant::now();
    driver.produce(queue, load).await?;
    Ok(rate(load, begun))
}

/// Returns the rate at which consumers take and acknowledge a backlog, in messages a second.
pub(crate) async fn drain(
    driver: &dyn Driver,
    queue: &str,
    load: Load,
    consumers: usize,
) -> anyhow::Result<f64> {
    let goal = Goal::new(load.messages);
    let begun = Instant::now();
    try_join_all((0..consumers).map(|_| driver.consume(queue, &goal))).await?;
    let rate = rate(load, begun);
    goal.check()?;
    Ok(rate)
}

/// Returns the rate from the first message sent to the last one acknowledged, in messages a second. The consumers are
/// connected before.
pub(crate) async fn lifecycle(
    driver: &dyn Driver,
    queue: &str,
    load: Load,
    consumers: usize,
) -> anyhow::Result<f64> {
    let goal = Goal::new(load.messages);
    let consume = try_join_all((0..consumers).map(|_| driver.consume(queue, &goal)));
    let begun = Instant::now();
    tokio::try_join!(driver.produce(queue, load), consume)?;
    let rate = rate(load, begun);
    goal.check()?;
    Ok(rate)
}

/// Returns the latencies from sending to receiving at a thousand messages a second, the shortest first.
pub(crate) async fn latency(
    driver: &dyn Driver,
    queue: &str,
    load: Load,
) -> anyhow::Result<Vec<Duration>> {
    let goal = Goal::timed(load.messages);
    let sender: Arc<dyn driver::Sender> = driver.sender(queue).await?.into();
    let send = async {
        let mut body = driver::body(load.size);
        let mut pace = tokio::time::interval(INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut sent = Vec::with_capacity(load.messages as usize);
        for number in 0..load.messages {
            pace.tick().await;
            let sender = sender.clone();
            goal.stamp(number, &mut body);
            let payload = Bytes::copy_from_slice(&body);
            sent.push(tokio::spawn(async move { sender.send(payload).await }));
        }
        for sent in sent {
            sent.await??;
        }
        Ok(())
    };
    tokio::try_join!(send, driver.consume(queue, &goal))?;
    goal.check()?;
    Ok(goal.into_times())
}

/// The duration of a restart, and the memory of a backlog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    /// The time from the start of the program to the first message.
    pub(crate) recovery: Duration,
    pub(crate) idle: u64,
    pub(crate) full: u64,
}

/// Starts a server, fills it, kills it with `kill -9`, and starts it again.
pub(crate) async fn restart(
    contestant: &Contestant,
    directory: &std::path::Path,
    load: Load,
) -> anyhow::Result<Restart> {
    let driver = contestant.start(directory).await?;
    let idle = driver.process().memory()?;
    driver.create("backlog").await?;
    driver.produce("backlog", load).await?;
    let full = driver.process().memory()?;
    drop(driver);
    let begun = Instant::now();
    let driver = contestant.start(directory).await?;
    let first = until("the first message", async || {
        let goal = Goal::new(1);
        let consumed = tokio::time::timeout(ATTEMPT, driver.consume("backlog", &goal));
        consumed.await.context("nothing came in time")??;
        goal.first().context("nothing came")
    });
    Ok(Restart {
        recovery: first.await?.duration_since(begun),
        idle,
        full,
    })
}

/// Tries until it succeeds: a server does not answer at once after its start.
pub(crate) async fn until<T, E: std::fmt::Display>(
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => ensure!(begun.elapsed() < START, "{what}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the servers are nearly idle, at most some seconds: leftover work of one would slow the next.
pub(crate) async fn quiet(drivers: &[(&'static Contestant, Box<dyn Driver>)]) {
    const LOOK: Duration = Duration::from_millis(200);
    const LOOKS: usize = 25;
    let time = || -> anyhow::Result<Duration> {
        drivers
            .iter()
            .map(|(_, driver)| driver.process().processor_time())
            .sum()
    };
    let Ok(mut before) = time() else { return };
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        let Ok(now) = time() else { return };
        if now.saturating_sub(before) <= LOOK / 10 {
            return;
        }
        before = now;
    }
}
