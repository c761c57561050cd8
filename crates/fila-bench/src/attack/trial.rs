//! One attack on one server: phases, memory, and the row of the table.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use fila_proto::v1::CreateQueueRequest;
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use lab::millis;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::{Attack, bodies, floods, log, slow, unread};
use crate::client;
use crate::honest::{self, Honest, HonestFigures, HonestPlan, NoisyWork};
use crate::server::{self, Server, ServerLog, StartOptions};

/// The queue that attackers send to and consume from.
pub(super) const BIG: &str = "big";

/// How many connections the server allows when the attack is on that limit.
pub(super) const CONNECTIONS: usize = 200;

/// How long a server may take to shut down, with its own limit of 10 s.
const SHUTDOWN_MAX: Duration = Duration::from_secs(15);

const PLAN: HonestPlan = HonestPlan {
    tenants: 2,
    rate: 50.0,
    has_newcomers: true,
    noisy_work: NoisyWork::Succeeds,
};

#[derive(Clone, Debug)]
pub(super) struct AttackSetup {
    pub(super) program: Option<PathBuf>,
    pub(super) is_quick: bool,
    pub(super) memory_max: u64,
}

impl AttackSetup {
    fn settings(&self, attack: Attack) -> Vec<String> {
        let mut settings = Vec::new();
        if self.is_quick {
            settings.extend(["storage.memory_budget=16 MiB", "storage.cache=8 MiB"]);
            settings.push("limits.buffered_bytes=16 MiB");
        }
        let mut settings: Vec<String> = settings.into_iter().map(str::to_owned).collect();
        match attack {
            Attack::HalfPrefaces
            | Attack::HalfRequests
            | Attack::SlowHeaders
            | Attack::SlowBodies => settings.push(format!("limits.connections={CONNECTIONS}")),
            Attack::StalledCalls
            | Attack::StalledConnections
            | Attack::LargeBatches
            | Attack::UnreadStreams
            | Attack::UnreadConsumers
            | Attack::StuckLog
            | Attack::RapidResets
            | Attack::Pings
            | Attack::Settings => {}
        }
        settings
    }

    /// Returns how long the calm and the attack are measured, and how long after it the memory.
    fn phases(&self, attack: Attack) -> [Duration; 3] {
        let seconds = match (self.is_quick, attack) {
            (true, _) => [1, 3, 2],
            // Longer than a call may stall, and than a ping and its timeout take.
            (
                false,
                Attack::HalfPrefaces
                | Attack::HalfRequests
                | Attack::SlowHeaders
                | Attack::SlowBodies
                | Attack::StalledCalls
                | Attack::StalledConnections
                | Attack::LargeBatches,
            ) => [4, 55, 10],
            (false, _) => [4, 15, 10],
        };
        seconds.map(Duration::from_secs)
    }
}

/// The server as the attacker sees it.
#[derive(Clone, Debug)]
pub(super) struct Victim {
    pub(super) address: String,
    /// The address without the scheme.
    pub(super) socket: String,
    pub(super) is_quick: bool,
    pub(super) counts: Arc<AttackCounts>,
}

/// What the attacker did and saw.
#[derive(Debug, Default)]
pub(super) struct AttackCounts {
    pub(super) connections: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) calls: AtomicU64,
    /// Calls that the server answered or reset.
    pub(super) answered: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl AttackCounts {
    /// Returns how many of the connections are open.
    fn open(&self) -> u64 {
        let closed = self.closed.load(Ordering::Relaxed);
        self.connections
            .load(Ordering::Relaxed)
            .saturating_sub(closed)
    }

    fn text(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} connections, {} closed; {} calls, {} answered; {} MiB sent",
            of(&self.connections),
            of(&self.closed),
            of(&self.calls),
            of(&self.answered),
            of(&self.bytes) >> 20,
        )
    }
}

pub(super) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// The row of one attack.
#[derive(Debug)]
pub(super) struct AttackReport {
    attack: Attack,
    /// In MiB: idle, at the peak, at the end of the attack, and some time after it.
    memory: [u64; 4],
    bound: u64,
    was_stopped: bool,
    calm: HonestFigures,
    attacked: HonestFigures,
    attacker: String,
    /// Whether the server ended when it was asked to.
    ended: bool,
}

impl AttackReport {
    pub(super) const HEADER: [&'static str; 9] = [
        "attack",
        "MiB idle / peak / end / after",
        "bound, MiB",
        "refusals of honest clients",
        "enqueue p50, p99 calm → attacked",
        "deliver p50, p99 calm → attacked",
        "newcomers served / locked out, first served after",
        "SIGTERM",
        "the attacker",
    ];

    pub(super) fn cells(&self) -> Vec<String> {
        let [idle, peak, end, after] = self.memory;
        let stopped = if self.was_stopped { " (stopped)" } else { "" };
        let refusals = self.attacked.refusals.iter();
        let refusals: Vec<_> = refusals.map(|(code, n)| format!("{n} {code}")).collect();
        let times = |of: fn(&HonestFigures) -> &lab::Latencies| {
            let [calm, attacked] = [of(&self.calm), of(&self.attacked)]
                .map(|times| format!("{}, {}", millis(times.p50()), millis(times.p99())));
            format!("{calm} → {attacked}")
        };
        let newcomers = self.attacked.newcomers;
        let first = newcomers.first_served.map_or_else(
            || "never".to_owned(),
            |time| format!("{:.1} s", time.as_secs_f64()),
        );
        vec![
            self.attack.name().to_owned(),
            format!("{idle} / {peak}{stopped} / {end} / {after}"),
            self.bound.to_string(),
            match refusals.as_slice() {
                [] => "none".to_owned(),
                some => some.join(", "),
            },
            times(|figures| &figures.enqueue),
            times(|figures| &figures.deliver),
            format!("{} / {}, {first}", newcomers.served, newcomers.locked_out),
            if self.ended { "ended" } else { "did not end" }.to_owned(),
            self.attacker.clone(),
        ]
    }

    /// Returns the broken bounds. None of them depends on the speed of the machine.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let peak = self.memory[1];
        let allowed = self.bound + self.bound / 2;
        if peak > allowed || self.was_stopped {
            faults.push(format!("{peak} MiB, {allowed} MiB are allowed"));
        }
        // Connections are refused at the limit, until a timeout makes room.
        let refused = self.attacked.refused();
        if refused > 0 {
            faults.push(format!(
                "honest clients were refused: {:?}",
                self.attacked.refusals
            ));
        }
        if self.attacked.newcomers.served == 0 {
            faults.push("no newcomer was served".to_owned());
        }
        if self.attacked.deliver.is_empty() {
            faults.push("nothing was delivered".to_owned());
        }
        if !self.ended {
            faults.push(format!("SIGTERM did not end it within {SHUTDOWN_MAX:?}"));
        }
        faults
    }
}

pub(super) async fn play(attack: Attack, setup: &AttackSetup) -> anyhow::Result<AttackReport> {
    let directory = tempfile::tempdir()?;
    let settings = setup.settings(attack);
    let mut server = Server::start_with(
        directory.path(),
        StartOptions {
            program: setup.program.as_deref(),
            settings: &settings,
            log: match attack {
                Attack::StuckLog => ServerLog::Read,
                _ => ServerLog::Discarded,
            },
            ..StartOptions::default()
        },
    )?;
    let victim = Victim {
        address: server.address.clone(),
        socket: server.socket().to_owned(),
        is_quick: setup.is_quick,
        counts: Arc::default(),
    };
    let fresh = server.memory()?.0;
    prepare(attack, &victim).await?;
    let honest = Honest::start(&server.address, PLAN).await?;
    let [calm_time, attack_time, rest] = setup.phases(attack);
    // The first calls of a connection take longer.
    sleep(Duration::from_millis(300)).await;
    honest.begin();
    sleep(calm_time).await;
    let calm = honest.figures();
    let idle = server.memory()?.0;
    server.reset_peak()?;
    server.stop_reading_its_log();
    honest.begin();
    let attacker = Attacker::start(attack, victim.clone())?;
    let was_stopped = watch_memory(&server, attack_time, setup.memory_max).await?;
    let attacked = honest.figures();
    let (end, peak) = server.memory()?;
    let bound = bound(setup.program.as_deref(), &settings, victim.counts.open())?;
    attacker.hang_up().await?;
    drop(honest);
    sleep(rest).await;
    let after = server.memory()?.0;
    let ended = server.terminate(SHUTDOWN_MAX).await?;
    Ok(AttackReport {
        attack,
        memory: [idle, peak, end, after],
        bound: fresh + bound,
        was_stopped,
        calm,
        attacked,
        attacker: victim.counts.text(),
        ended,
    })
}

/// Returns the memory that the documented bounds add up to, in MiB, by the configuration in effect.
fn bound(program: Option<&Path>, settings: &[String], connections: u64) -> anyhow::Result<u64> {
    /// Commits that are not flushed yet, which no setting bounds.
    const FLUSHING: u64 = 80;
    /// What the client of each connection may have sent ahead, in KiB.
    const CONNECTION: u64 = 144;
    let configuration = server::configuration(program, settings)?;
    let size = |key: &str| configuration.get(key).map(|size| mebibytes(size));
    let fixed = BOUNDS.iter().filter_map(|key| size(key)).sum::<u64>();
    // Requests count once as they are received, and once as bytes that were sent ahead.
    let received = size("limits.receiving_bytes").map_or(0, |receiving| {
        2 * receiving + ((connections * CONNECTION) >> 10)
    });
    Ok(FLUSHING + fixed + received)
}

/// The settings that bound memory. A version of the server that lacks one has no such bound.
const BOUNDS: [&str; 4] = [
    "storage.memory_budget",
    "storage.cache",
    "limits.buffered_bytes",
    "limits.config_bytes",
];

/// Returns a size such as `"64 MiB"` in MiB, rounded down.
fn mebibytes(size: &str) -> u64 {
    let (number, unit) = size
        .trim_matches('"')
        .split_once(' ')
        .unwrap_or((size, "B"));
    let number: u64 = number.replace('_', "").parse().unwrap_or(0);
    match unit {
        "GiB" => number << 10,
        "MiB" => number,
        "KiB" => number >> 10,
        _ => number >> 20,
    }
}

/// Creates the queues, and fills the one that an attack consumes from.
async fn prepare(attack: Attack, victim: &Victim) -> anyhow::Result<()> {
    let channel = client::connect(&victim.address).await?;
    let mut admin = FilaAdminClient::new(channel.clone());
    for name in [honest::QUEUE, BIG] {
        let request = CreateQueueRequest {
            name: name.to_owned(),
            settings: None,
        };
        admin.create_queue(request).await?;
    }
    match attack {
        Attack::UnreadStreams | Attack::UnreadConsumers => unread::fill(&channel, victim).await,
        _ => Ok(()),
    }
}

/// Waits while the attack goes on. Returns early, with `true`, if the server takes too much memory.
async fn watch_memory(server: &Server, time: Duration, max: u64) -> anyhow::Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if server.memory()?.0 > max {
            return Ok(true);
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}

/// The attacker's thread.
struct Attacker {
    stop: watch::Sender<bool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Attacker {
    fn start(attack: Attack, victim: Victim) -> anyhow::Result<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            // Dropping the set closes the connections.
            runtime.block_on(LocalSet::new().run_until(async {
                tokio::select! {
                    failed = act_to_the_end(attack, &victim) => failed,
                    _ = stopped.wait_for(|stop| *stop) => Ok(()),
                }
            }))
        });
        Ok(Self { stop, thread })
    }

    async fn hang_up(self) -> anyhow::Result<()> {
        self.stop.send(true).ok();
        while !self.thread.is_finished() {
            sleep(Duration::from_millis(10)).await;
        }
        let ended = self.thread.join();
        ended.ok().context("the attacker panicked")?
    }
}

/// Attacks, and does not return unless the attack cannot be made.
async fn act_to_the_end(attack: Attack, victim: &Victim) -> anyhow::Result<()> {
    act(attack, victim).await?;
    std::future::pending().await
}

async fn act(attack: Attack, victim: &Victim) -> anyhow::Result<()> {
    match attack {
        Attack::StalledCalls => bodies::stalled(victim, bodies::FEW).await,
        Attack::StalledConnections => bodies::stalled(victim, bodies::MANY).await,
        Attack::LargeBatches => bodies::large_batches(victim).await,
        Attack::UnreadStreams => unread::streams(victim).await,
        Attack::UnreadConsumers => unread::consumers(victim).await,
        Attack::HalfPrefaces => slow::half_prefaces(victim).await,
        Attack::HalfRequests => slow::half_requests(victim).await,
        Attack::SlowHeaders => slow::slow_headers(victim).await,
        Attack::SlowBodies => slow::slow_bodies(victim).await,
        Attack::StuckLog => log::many_changes(victim).await,
        Attack::RapidResets => floods::rapid_resets(victim).await,
        Attack::Pings => floods::pings(victim).await,
        Attack::Settings => floods::settings(victim).await,
    }
}
