//! One scenario: its own server, a quiet tenant with a consumer during the overload, and the verdict.
//!
//! ```text
//! calm ──▶ overload ──▶ drain to the last message ──▶ calm again
//! ```
//!
//! The quiet tenant sends some messages a second throughout. Under any load, the consumer takes every confirmed message
//! exactly once, the server's memory stays within the bound, and afterwards the server is as fast as before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::{CreateQueueRequest, QueueSettings, ServerInfoRequest, ServerInfoResponse};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::transport::Channel;

pub(super) use super::books::QuietTimes;
use super::books::{Books, QUIET};
use super::traffic::{self, Keys, Plan};
use crate::client;
use crate::server::{Server, StartOptions};

pub(super) const QUEUE: &str = "q";

/// How many messages the quiet tenant sends in a second.
const QUIET_RATE: f64 = 20.0;

/// How much slower the quiet tenant may always be afterwards: on a shared machine, a few milliseconds mean nothing.
const CALM_SLACK: Duration = Duration::from_millis(50);

/// How long a server may take to recover after the load has ended.
const RECOVERY_MAX: Duration = Duration::from_secs(20);

/// How long a backlog may take to drain on a busy machine.
const DRAIN_MAX: Duration = Duration::from_secs(300);

/// The configuration of the server, and the bounds that follow from it.
#[derive(Clone, Debug, Default)]
pub(super) struct Setup {
    pub(super) name: &'static str,
    pub(super) settings: Vec<String>,
    pub(super) queue: QueueSettings,
    pub(super) variables: Vec<(&'static str, PathBuf)>,
    /// How long the quiet tenant is measured without load, before and after.
    pub(super) calm: Duration,
}

/// The bounds of a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The memory that the server's process may take on top of its idle memory, in MiB.
    pub(super) memory: u64,
    /// The longest allowed p99 latency of the quiet tenant.
    pub(super) quiet: Duration,
    /// The codes of refusals that the scenario allows. Others break it.
    pub(super) codes: &'static [&'static str],
    /// Whether the server may also refuse the quiet tenant, because the queue is full.
    pub(super) refuses_quiet: bool,
}

pub(super) struct Trial {
    pub(super) server: Server,
    pub(super) channel: Channel,
    pub(super) books: Rc<RefCell<Books>>,
    /// The consumer's processing time for each message.
    pub(super) pace: Rc<Cell<Duration>>,
    setup: Setup,
    idle: u64,
    calm: QuietTimes,
    pub(super) overload_began: Instant,
    /// All tasks but the quiet tenant and the consumer.
    noise: Vec<JoinHandle<anyhow::Result<u64>>>,
    stop_noise: Rc<Cell<bool>>,
    quiet: JoinHandle<anyhow::Result<u64>>,
    stop_quiet: Rc<Cell<bool>>,
    consumer: JoinHandle<anyhow::Result<()>>,
    stop_consumer: Rc<Cell<bool>>,
    _directory: TempDir,
}

/// The results of a scenario.
#[derive(Debug)]
pub(super) struct TrialReport {
    pub(super) name: &'static str,
    pub(super) done: String,
    /// In MiB: idle, peak, afterwards, and the bound.
    pub(super) memory: [u64; 4],
    pub(super) refusals: BTreeMap<String, u64>,
    pub(super) calm: QuietTimes,
    pub(super) loaded: QuietTimes,
    pub(super) confirmed: u64,
    pub(super) recovered: Option<Duration>,
    /// The broken bounds, in words.
    pub(super) faults: Vec<String>,
}

/// Starts a server with the queue of the scenario.
async fn start_server(directory: &Path, setup: &Setup) -> anyhow::Result<(Server, Channel)> {
    let variables = setup.variables.iter();
    let variables: Vec<_> = variables
        .map(|(name, path)| (*name, path.as_path()))
        .collect();
    let options = StartOptions {
        settings: &setup.settings,
        variables: &variables,
        ..StartOptions::default()
    };
    let server = Server::start_with(directory, options)?;
    let channel = client::connect(&server.address).await?;
    let request = CreateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(setup.queue.clone()),
    };
    FilaAdminClient::new(channel.clone())
        .create_queue(request)
        .await?;
    Ok((server, channel))
}

impl Trial {
    /// Starts a server with a quiet tenant and a consumer, and measures the tenant without load.
    pub(super) async fn begin(setup: Setup) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let (server, channel) = start_server(directory.path(), &setup).await?;
        let idle = server.memory()?.0;
        let books = Rc::new(RefCell::new(Books::default()));
        let pace = Rc::new(Cell::new(Duration::ZERO));
        let (stop_noise, stop_quiet, stop_consumer) = Default::default();
        let plan = Plan {
            producer: QUIET,
            queue: QUEUE,
            keys: Keys::One("quiet"),
            size: 64,
            messages: u64::MAX,
            rate: Some(QUIET_RATE),
        };
        let address = || server.address.clone();
        let consumer = traffic::consume(
            address(),
            QUEUE,
            Rc::clone(&pace),
            books.clone(),
            Rc::clone(&stop_consumer),
        );
        let consumer = tokio::task::spawn_local(consumer);
        let quiet = traffic::produce(address(), plan, books.clone(), Rc::clone(&stop_quiet));
        let quiet = tokio::task::spawn_local(quiet);
        let mut trial = Self {
            channel,
            books,
            pace,
            idle,
            calm: QuietTimes::default(),
            overload_began: Instant::now(),
            noise: Vec::new(),
            stop_noise,
            quiet,
            stop_quiet,
            consumer,
            stop_consumer,
            setup,
            server,
            _directory: directory,
        };
        // The first messages of a connection take longer.
        trial.look(Duration::from_millis(300)).await?;
        trial.calm = trial.look(trial.setup.calm).await?;
        trial.overload_began = Instant::now();
        Ok(trial)
    }

    /// Measures the quiet tenant for a while.
    async fn look(&self, time: Duration) -> anyhow::Result<QuietTimes> {
        let from = Instant::now();
        sleep(time).await;
        let to = Instant::now();
        self.all_well()?;
        Ok(self.books.borrow().quiet_times(from, to))
    }

    /// Adds a producer.
    pub(super) fn add(&mut self, plan: Plan) {
        let books = self.books.clone();
        let stop = Rc::clone(&self.stop_noise);
        let produce = traffic::produce(self.server.address.clone(), plan, books, stop);
        self.noise.push(tokio::task::spawn_local(produce));
    }

    /// Stops all producers but the quiet one, and waits until they have their answers. Returns how many messages were due.
    pub(super) async fn silence(&mut self) -> anyhow::Result<u64> {
        self.stop_noise.set(true);
        let mut due = 0;
        for producer in self.noise.drain(..) {
            due += producer.await??;
        }
        self.stop_noise.set(false);
        Ok(due)
    }

    /// Waits until the producers with a fixed number of messages have all their answers.
    pub(super) async fn finish_sending(&mut self) -> anyhow::Result<()> {
        for producer in self.noise.drain(..) {
            producer.await??;
        }
        Ok(())
    }

    pub(super) async fn info(&self) -> anyhow::Result<ServerInfoResponse> {
        let mut admin = FilaAdminClient::new(self.channel.clone());
        let answer = admin.server_info(ServerInfoRequest {}).await?;
        Ok(answer.into_inner())
    }

    fn all_well(&self) -> anyhow::Result<()> {
        if self.quiet.is_finished() || self.consumer.is_finished() {
            bail!("the quiet tenant or the consumer has lost its stream");
        }
        Ok(())
    }

    /// Ends the load, drains the queue, and checks the bounds.
    pub(super) async fn end(mut self, done: String, bounds: Bounds) -> anyhow::Result<TrialReport> {
        self.silence().await?;
        let ended = Instant::now();
        self.pace.set(Duration::ZERO);
        self.drain().await?;
        let loaded = self.books.borrow().quiet_times(self.overload_began, ended);
        let recovered = self.recover(ended).await?;
        self.stop_quiet.set(true);
        (&mut self.quiet).await??;
        self.drain().await?;
        self.stop_consumer.set(true);
        (&mut self.consumer).await??;
        let (after, peak) = self.server.memory()?;
        let books = self.books.borrow();
        let mut report = TrialReport {
            name: self.setup.name,
            done,
            memory: [self.idle, peak, after, self.idle + bounds.memory],
            refusals: books.refusals.clone(),
            calm: self.calm,
            loaded,
            confirmed: books.confirmed,
            recovered,
            faults: Vec::new(),
        };
        report.judge(&books, bounds);
        Ok(report)
    }

    /// Waits until the queue is empty, except for the latest messages of the quiet tenant.
    async fn drain(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            self.all_well_but_quiet()?;
            let stats = client::stats(&self.channel, QUEUE).await?;
            let under_way = self.books.borrow().confirmed - self.books.borrow().acked;
            let allowed = if self.stop_quiet.get() {
                0
            } else {
                QUIET_RATE as u64
            };
            if stats.depth <= allowed && under_way <= allowed {
                return Ok(());
            }
            if begun.elapsed() > DRAIN_MAX {
                bail!(
                    "{} messages are left after {DRAIN_MAX:?}: {stats:?}",
                    stats.depth
                );
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn all_well_but_quiet(&self) -> anyhow::Result<()> {
        if self.consumer.is_finished() {
            bail!("the consumer has lost its stream");
        }
        Ok(())
    }

    /// Measures until the quiet tenant is served as before. Returns how long that took since the load ended.
    async fn recover(&self, ended: Instant) -> anyhow::Result<Option<Duration>> {
        let begun = Instant::now();
        while begun.elapsed() < RECOVERY_MAX {
            let looked_at = ended.elapsed();
            let times = self.look(self.setup.calm).await?;
            if times.count > 0 && times.p50 <= self.calm.p50 * 3 + CALM_SLACK {
                return Ok(Some(looked_at));
            }
        }
        Ok(None)
    }
}

impl TrialReport {
    fn judge(&mut self, books: &Books, bounds: Bounds) {
        let [_, peak, _, allowed] = self.memory;
        let mut fault = |is_so: bool, text: String| {
            if is_so {
                self.faults.push(text);
            }
        };
        fault(
            peak > allowed,
            format!("{peak} MiB, {allowed} MiB are allowed"),
        );
        for (code, times) in &self.refusals {
            let known = bounds.codes.contains(&code.as_str());
            fault(
                !known,
                format!("{code} {times} times, which does not belong here"),
            );
        }
        let quiet_refused = books.quiet_refused;
        fault(
            quiet_refused > 0 && !bounds.refuses_quiet,
            format!("the quiet tenant was refused {quiet_refused} times"),
        );
        let (loaded, calm) = (self.loaded, self.calm);
        fault(
            calm.count == 0,
            "the quiet tenant was not served before".to_owned(),
        );
        fault(
            loaded.count == 0,
            "the quiet tenant was not served under load".to_owned(),
        );
        fault(
            loaded.p99 > bounds.quiet,
            format!(
                "the quiet tenant waited {:?} at p99, {:?} are allowed",
                loaded.p99, bounds.quiet
            ),
        );
        let (lost, unasked) = books.astray();
        fault(
            lost > 0,
            format!("{lost} messages were confirmed and are lost"),
        );
        fault(
            unasked > 0,
            format!("{unasked} messages came that were refused"),
        );
        fault(
            self.recovered.is_none(),
            format!("not as before within {RECOVERY_MAX:?} after the load"),
        );
    }
}

/// The memory of the database without its cache, in MiB: its tables in memory, including those that wait to be written,
/// and its buffers. `scripts/deep-backlog` allows the same on top of the budget.
pub(super) const DATABASE: u64 = 256;

/// Compiles the library that makes the disk slow, and returns its path.
pub(super) fn slow_disk(into: &std::path::Path) -> anyhow::Result<PathBuf> {
    let (source, library) = (into.join("slow_sync.c"), into.join("slow_sync.so"));
    std::fs::write(&source, include_str!("slow_sync.c"))?;
    let compiled = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .status()
        .context("a C compiler is needed to make the disk slow; install `cc`")?;
    anyhow::ensure!(compiled.success(), "`cc` ended with {compiled}");
    Ok(library)
}
