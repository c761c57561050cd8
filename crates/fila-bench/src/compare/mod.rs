//! Fila and other brokers on the same work, in the same run: durable produce, produce → consume → ack, drain, latency,
//! recovery after `kill -9`, and memory.
//!
//! The benchmark starts all installed servers on loopback, each with its own port and directory, and kills them at the end.
//! The clients share one runtime of several threads. All servers run at the same time and take turns for each piece of work,
//! so that the compared figures are from the same minute. Before each turn the benchmark waits until the other servers are
//! idle. A figure is the median of the rounds, a ratio the median of the rounds' ratios.

mod contestant;
mod driver;
mod fairness;
mod figures;
mod fila;
#[cfg(feature = "peers")]
mod nats;
mod output;
mod plot;
#[cfg(feature = "peers")]
mod process;
#[cfg(feature = "peers")]
mod rabbit;
#[cfg(feature = "peers")]
mod redis;
mod report;
mod workloads;

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail, ensure};
use contestant::Contestant;
use driver::{Driver, Load};
use fairness::Fairness;
use figures::{Figures, Metric};
use lab::{Latencies, Table};
use tokio::signal::unix::{SignalKind, signal};
use workloads::in_time;

use crate::key_shape::KeyShape;

/// Bytes of a payload.
const SIZES: [usize; 2] = [64, 1024];

/// Fairness keys of the messages for Fila. The other servers have none.
const KEYS: u64 = 10;

const DEEP: u64 = 1_000_000;

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArguments {
    /// A short run: few messages, one round
    #[arg(long)]
    quick: bool,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Only these servers: fila, nats, redis, rabbit, or one of their settings, such as fila-fsync
    #[arg(long, value_delimiter = ',', value_name = "PEER,...")]
    only: Vec<String>,
    /// Only this work
    #[arg(long, value_delimiter = ',', value_enum, value_name = "WORK,...")]
    work: Vec<Workload>,
    /// Only payloads of these sizes, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = SIZES, value_name = "BYTES,...")]
    size: Vec<usize>,
    /// Messages in each piece of work
    #[arg(long, default_value_t = 100_000)]
    messages: u64,
    /// Messages in the backlog when a server is killed
    #[arg(long, default_value_t = 200_000)]
    backlog: u64,
    /// Also kill Fila with a backlog of a million messages
    #[arg(long)]
    deep: bool,
    /// Number of threads for the clients
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Directory for the servers' data, on a real disk [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// A `fila` with the feature `fifo`: a raw FIFO, the baseline of `fairness` [default: one key of the same server]
    #[arg(long, value_name = "PROGRAM")]
    fifo: Option<PathBuf>,
    /// Also write all samples as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw the figures, as compare-speed.svg and compare-latency.svg
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
}

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// Fill a queue with 256 messages unconfirmed, and drain it with 1 and 4 consumers
    Drain,
    /// Produce, consume and acknowledge at the same time, with 1 and 4 consumers
    Lifecycle,
    /// 1,000 messages a second
    Latency,
    /// Memory, and the first delivery after kill -9
    Recovery,
    /// Fairness keys, from one to many, against a raw FIFO
    Fairness,
}

impl CompareArguments {
    fn has(&self, work: Workload) -> bool {
        self.work.is_empty() || self.work.contains(&work)
    }

    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// Scales a number of messages down for a quick run.
    fn scaled(&self, messages: u64) -> u64 {
        if self.quick { messages / 20 } else { messages }
    }

    fn load(&self, size: usize) -> Load {
        Load {
            messages: self.scaled(self.messages),
            size,
            keys: KeyShape::flat(KEYS),
        }
    }
}

pub(crate) async fn run(arguments: CompareArguments) -> anyhow::Result<()> {
    let contestants = contestants(&arguments)?;
    let directory = match &arguments.directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    let mut bench = Bench {
        contestants,
        figures: Figures::default(),
        fairness: Fairness::default(),
        directory: directory.path().to_owned(),
        failures: 0,
        queues: 0,
        arguments,
    };
    // A signal must end this function, not the process: dropping the servers kills them, and each has its own process group.
    let mut terminate = signal(SignalKind::terminate())?;
    for round in 0..bench.arguments.rounds() {
        eprintln!("round {} of {}", round + 1, bench.arguments.rounds());
        tokio::select! {
            played = Box::pin(bench.round(round)) => played?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminate.recv() => bail!("terminated"),
        }
    }
    bench.report()?;
    ensure!(
        bench.failures == 0,
        "{} pieces of work failed",
        bench.failures
    );
    Ok(())
}

/// Returns the contestants that are installed, and prints the others.
fn contestants(arguments: &CompareArguments) -> anyhow::Result<Vec<&'static Contestant>> {
    for name in &arguments.only {
        if !contestant::ALL.iter().any(|it| it.is_meant_by(name)) {
            bail!("`{name}` is unknown; choose fila, nats, redis or rabbit");
        }
    }
    let is_wanted = |contestant: &&Contestant| {
        let mut only = arguments.only.iter();
        arguments.only.is_empty() || only.any(|name| contestant.is_meant_by(name))
    };
    let mut there = Vec::new();
    let mut table = Table::new([
        "",
        "version",
        "setting",
        "a confirmed message is",
        "and survives",
    ]);
    for contestant in contestant::ALL.iter().filter(is_wanted) {
        match contestant.version() {
            Ok(version) => {
                let texts = [contestant.setting, contestant.confirms, contestant.survives];
                let name = [contestant.name.to_owned(), version].into_iter();
                table.row(name.chain(texts.map(str::to_owned)));
                there.push(contestant);
            }
            Err(why) => println!("{} is left out: {why}", contestant.name),
        }
    }
    ensure!(!there.is_empty(), "no server is installed to measure");
    println!("{table}");
    Ok(there)
}

struct Bench {
    arguments: CompareArguments,
    contestants: Vec<&'static Contestant>,
    figures: Figures,
    fairness: Fairness,
    directory: PathBuf,
    failures: u32,
    queues: u32,
}

/// The servers that run, in the order of their turns.
type Drivers = [(&'static Contestant, Box<dyn Driver>)];

impl Bench {
    async fn round(&mut self, round: u32) -> anyhow::Result<()> {
        let work = [Workload::Drain, Workload::Lifecycle, Workload::Latency];
        if work.iter().any(|work| self.arguments.has(*work)) {
            let directory = self.directory.join(format!("round-{round}"));
            let mut drivers = Vec::new();
            for contestant in &self.contestants {
                let driver = contestant.start(&directory.join(contestant.name)).await;
                drivers.push((*contestant, driver.context(contestant.name)?));
            }
            // Each round begins with a different server.
            let first = round as usize % drivers.len();
            drivers.rotate_left(first);
            for size in self.arguments.size.clone() {
                Box::pin(self.rates(&drivers, size)).await;
                if self.arguments.has(Workload::Latency) {
                    self.latency(&drivers, size).await;
                }
            }
            drop(drivers);
            std::fs::remove_dir_all(&directory)?;
        }
        if self.arguments.has(Workload::Recovery) {
            Box::pin(self.recovery(round)).await;
        }
        let has_ours = self.contestants.iter().any(|it| it.is_ours());
        if self.arguments.has(Workload::Fairness) && has_ours {
            let directory = self.directory.join(format!("fairness-{round}"));
            let messages = 2 * self.arguments.scaled(self.arguments.messages);
            let fifo = self.arguments.fifo.as_deref();
            Box::pin(self.fairness.round(&directory, messages, fifo)).await?;
        }
        Ok(())
    }

    async fn rates(&mut self, drivers: &Drivers, size: usize) {
        let load = self.arguments.load(size);
        for (consumers, metric) in [(1, Metric::Drain1), (4, Metric::Drain4)] {
            if !self.arguments.has(Workload::Drain) {
                continue;
            }
            for (contestant, driver) in drivers {
                let queue = self.queue(driver.as_ref(), drivers).await;
                let filled = in_time(workloads::produce(driver.as_ref(), &queue, load)).await;
                self.note(Metric::Produce, size, contestant, filled);
                workloads::quiet(drivers).await;
                let drained = workloads::drain(driver.as_ref(), &queue, load, consumers);
                let drained = in_time(drained).await;
                self.note(metric, size, contestant, drained);
            }
        }
        for (consumers, metric) in [(1, Metric::Lifecycle1), (4, Metric::Lifecycle4)] {
            if !self.arguments.has(Workload::Lifecycle) {
                continue;
            }
            for (contestant, driver) in drivers {
                let queue = self.queue(driver.as_ref(), drivers).await;
                let through = workloads::lifecycle(driver.as_ref(), &queue, load, consumers);
                let through = in_time(through).await;
                self.note(metric, size, contestant, through);
            }
        }
    }

    async fn latency(&mut self, drivers: &Drivers, size: usize) {
        let load = Load {
            messages: if self.arguments.quick { 1_000 } else { 10_000 },
            ..self.arguments.load(size)
        };
        for (contestant, driver) in drivers {
            let queue = self.queue(driver.as_ref(), drivers).await;
            let times = in_time(workloads::latency(driver.as_ref(), &queue, load)).await;
            let times = times.map(Latencies::from_iter);
            for (metric, part) in Metric::LATENCIES.into_iter().zip([0.5, 0.9, 0.99, 0.999]) {
                let time = match &times {
                    Ok(times) if times.is_empty() => Err(anyhow!("no times were taken")),
                    Ok(times) => Ok(times.percentile(part).as_secs_f64() * 1e6),
                    Err(error) => Err(anyhow!("{error:#}")),
                };
                self.note(metric, size, contestant, time);
            }
        }
    }

    async fn recovery(&mut self, round: u32) {
        let backlogs = [
            (
                self.arguments.scaled(self.arguments.backlog),
                Metric::Recovery,
            ),
            (self.arguments.scaled(DEEP), Metric::DeepRecovery),
        ];
        for (messages, metric) in backlogs {
            for contestant in self.contestants.clone() {
                let is_deep = metric == Metric::DeepRecovery;
                if is_deep && !(self.arguments.deep && contestant.name == contestant::OURS) {
                    continue;
                }
                let load = Load {
                    messages,
                    ..self.arguments.load(1024)
                };
                let name = format!("restart-{round}-{messages}-{}", contestant.name);
                let directory = self.directory.join(name);
                let restart = in_time(workloads::restart(contestant, &directory, load)).await;
                // The data is of no more use.
                let _ = std::fs::remove_dir_all(&directory);
                if let (Ok(restart), false) = (&restart, is_deep) {
                    for (metric, value) in [
                        (Metric::IdleMemory, restart.idle),
                        (Metric::BacklogMemory, restart.full),
                    ] {
                        self.note(metric, 1024, contestant, Ok(value as f64));
                    }
                }
                let recovery = restart.map(|restart| restart.recovery.as_secs_f64());
                self.note(metric, 1024, contestant, recovery);
            }
        }
    }

    /// Creates a new queue for a piece of work, once all servers are idle.
    async fn queue(&mut self, driver: &dyn Driver, drivers: &Drivers) -> String {
        self.queues += 1;
        let queue = format!("queue-{}", self.queues);
        if let Err(error) = in_time(driver.create(&queue)).await {
            eprintln!("  {queue} cannot be made: {error:#}");
        }
        workloads::quiet(drivers).await;
        queue
    }

    /// Records a figure, or prints why there is none.
    fn note(
        &mut self,
        metric: Metric,
        size: usize,
        contestant: &'static Contestant,
        value: anyhow::Result<f64>,
    ) {
        let name = contestant.name;
        let value = value.unwrap_or_else(|error| {
            self.failures += 1;
            eprintln!("  {name}: {} failed: {error:#}", metric.name());
            f64::NAN
        });
        if value.is_finite() {
            let (what, unit) = (metric.name(), metric.unit());
            eprintln!(
                "  {size:>4} bytes, {what:<28} {name:<16} {:>10} {unit}",
                metric.show(value)
            );
        }
        self.figures.add(metric, size, contestant, value);
    }
}
