//! One world in which everything happens at once, on one data directory that lives through all kills: producers,
//! consumers that fail, forget and leave, dead letters and redrives, rates that change and one that does not, caps,
//! weights, pauses, the runtime configuration, queues that are made, purged and deleted.
//!
//! After every kill the accounts are exact: whatever was accepted is acknowledged, there, or dead, and in one place
//! only; whatever was set is set. Order, rates, caps and pauses are watched with every delivery, across all restarts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::{CreateQueueRequest, Ordering, QueueSettings, SetConfigRequest};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Status;

use super::chance::Chance;
use super::consumer::{Consumer, Desk, Habit, Watch};
use super::fates::{Balance, Fates, Order};
use super::ledger::Ledger;
use super::outbox::Outbox;
use super::process::{self, Server};
use super::settings::Operator;
use super::traffic::{self, KEYS, Producer, QUEUE};
use super::{config, failures, number, runtime, scratch, settings};

/// A queue in which order is strict, one with a single consumer, and one with caps and a throttle.
const STRICT: &str = "strict";
const FIFO: &str = "fifo";
const LIMITED: &str = "limited";
const LIMITED_PRODUCER: u64 = 4;

/// The throttle that never changes. Two keys go by it, and have somewhat more than it lets through.
const RATE: f64 = 80.0;
const BURST: f64 = 10.0;
const THROTTLES: &[&str] = &["steady", "", "", "", "steady", "", "", ""];

/// So often all that is there is acknowledged, to the last message.
const DRAINED_EVERY: u64 = 20;

/// A queue, who sends to it, who takes from it, and their books.
struct Line {
    desk: Desk,
    outboxes: Vec<Producer>,
    consumers: Vec<Habit>,
    settings: QueueSettings,
}

struct World {
    orders: Line,
    others: Vec<Line>,
    rules: Watch,
    operator: settings::Shared,
    config: config::Books,
    scratch: scratch::Shared,
    chance: Chance,
}

fn line(
    queue: &'static str,
    order: Order,
    rules: &Watch,
    outboxes: Vec<Outbox>,
    consumers: &[Habit],
    settings: QueueSettings,
) -> Line {
    Line {
        desk: Desk {
            queue,
            books: Arc::new(Mutex::new(Ledger::new(false))),
            fates: Arc::new(Mutex::new(Fates::ordered(order))),
            rules: rules.clone(),
        },
        outboxes: outboxes.into_iter().map(|it| Arc::new(it.into())).collect(),
        consumers: consumers.to_vec(),
        settings,
    }
}

fn orders(rules: &Watch) -> Line {
    let pace = Duration::from_millis(6);
    let outboxes = (0..failures::PRODUCERS).map(|number| {
        let outbox = Outbox::new(number).throttled(failures::THROTTLES);
        outbox.paced(pace)
    });
    let settings = failures::settings();
    line(QUEUE, Order::Any, rules, outboxes.collect(), &[], settings)
}

fn strict(rules: &Watch) -> Line {
    let settings = QueueSettings {
        ordering: Some(Ordering::Key.into()),
        visibility_timeout_ms: Some(100),
        retry_attempts_max: Some(0),
        retry_backoff_ms: Some(2),
        retry_backoff_max_ms: Some(20),
        ..QueueSettings::default()
    };
    let outbox = Outbox::new(2).to(STRICT).paced(Duration::from_millis(20));
    let consumers = [Habit::Careless; 2];
    line(
        STRICT,
        Order::Strict,
        rules,
        vec![outbox],
        &consumers,
        settings,
    )
}

fn fifo(rules: &Watch) -> Line {
    let settings = QueueSettings {
        retry_attempts_max: Some(0),
        retry_backoff_ms: Some(5),
        retry_backoff_max_ms: Some(20),
        ..QueueSettings::default()
    };
    let outbox = Outbox::new(3).to(FIFO).paced(Duration::from_millis(6));
    let (order, consumers) = (Order::FirstAttempts, [Habit::Steady]);
    line(FIFO, order, rules, vec![outbox], &consumers, settings)
}

fn limited(rules: &Watch) -> Line {
    let settings = QueueSettings {
        key_concurrency: Some(settings::CAP),
        retry_attempts_max: Some(0),
        retry_backoff_ms: Some(5),
        retry_backoff_max_ms: Some(20),
        ..QueueSettings::default()
    };
    let outbox = Outbox::new(LIMITED_PRODUCER).to(LIMITED);
    let outbox = outbox.throttled(THROTTLES).paced(Duration::from_millis(20));
    let consumers = [Habit::Slow; 3];
    line(
        LIMITED,
        Order::Any,
        rules,
        vec![outbox],
        &consumers,
        settings,
    )
}

impl Line {
    fn start(&self, address: &str, chance: &mut Chance, tasks: &mut JoinSet<()>) {
        for outbox in &self.outboxes {
            let (address, books) = (address.to_owned(), self.desk.books.clone());
            let outbox = outbox.clone();
            tasks.spawn(async move {
                // The server's death is how this ends.
                let _ = traffic::produce(&address, &books, &mut *outbox.lock().await, true).await;
            });
        }
        for habit in &self.consumers {
            let mut consumer = Consumer::new(&self.desk, *habit, chance.split());
            let address = address.to_owned();
            tasks.spawn(async move { while consumer.work(&address).await.is_ok() {} });
        }
    }

    fn events(&self) -> u64 {
        // One after the other: consumers take the second of these locks first.
        let accepted = self.desk.books.lock().unwrap().events;
        let settled = self.desk.fates.lock().unwrap().events;
        accepted + settled
    }
}

/// Ends as it should if the server is gone, and in no other way.
fn until_gone(ended: Result<(), Status>) {
    let status = ended.expect_err("it goes on until the server is gone");
    assert!(failures::is_gone(&status), "{status:?}");
}

impl World {
    fn new(seed: u64) -> Self {
        let rules = Watch::default();
        let first_key = LIMITED_PRODUCER * KEYS;
        let operator = Operator::new(LIMITED, first_key, FIFO, rules.clone());
        Self {
            orders: orders(&rules),
            others: vec![strict(&rules), fifo(&rules), limited(&rules)],
            operator: Arc::new(Mutex::new(operator)),
            rules,
            config: config::Books::default(),
            scratch: scratch::Shared::default(),
            chance: Chance::new(seed),
        }
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        std::iter::once(&self.orders).chain(&self.others)
    }

    /// Makes the queues, and sets what never changes.
    async fn create(&self, address: &str) {
        let mut admin = FilaAdminClient::new(traffic::connect(address).await);
        for line in self.lines() {
            let request = CreateQueueRequest {
                name: line.desk.queue.to_owned(),
                settings: Some(line.settings.clone()),
            };
            admin.create_queue(request).await.unwrap();
        }
        let first = LIMITED_PRODUCER * KEYS;
        let keys = BTreeSet::from([first, first + 4]);
        self.rules.lock().unwrap().throttle(keys, RATE, BURST);
        for (what, value) in [("burst", BURST), ("rate", RATE)] {
            let request = SetConfigRequest {
                key: format!("throttle:steady:{what}"),
                value: value.to_string(),
                version: None,
            };
            admin.set_config(request).await.unwrap();
        }
        settings::prepare(address, &self.operator).await;
    }

    /// Starts all clients, each on a connection of its own.
    fn start(&mut self, address: &str) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let chance = &mut self.chance;
        let orders = &self.orders;
        failures::start(address, &orders.outboxes, &orders.desk, chance, &mut tasks);
        for line in &self.others {
            line.start(address, chance, &mut tasks);
        }
        for writer in 0..config::WRITERS {
            let (address, books) = (address.to_owned(), self.config.clone());
            tasks.spawn(async move { until_gone(config::write(&address, &books, writer).await) });
        }
        let (to, operator, luck) = (address.to_owned(), self.operator.clone(), chance.split());
        tasks.spawn(async move { until_gone(settings::change(&to, &operator, luck).await) });
        let (to, books, luck) = (address.to_owned(), self.scratch.clone(), chance.split());
        tasks.spawn(async move { until_gone(scratch::work(&to, &books, luck).await) });
        tasks
    }

    /// Compares all ledgers with the state of the server, while no client works.
    async fn audit(&self, address: &str) -> Balance {
        let mut sum = failures::audit(address, &self.orders.desk, true).await;
        for line in &self.others {
            sum += failures::audit(address, &line.desk, false).await;
        }
        settings::audit(address, &self.operator).await;
        config::audit(&self.config, &config::entries(address).await);
        scratch::audit(address, &self.scratch).await;
        sum
    }

    fn events(&self) -> u64 {
        self.lines().map(Line::events).sum()
    }

    /// Waits until so much has happened, or for so long.
    async fn until(&self, work: u64, most: Duration) {
        let goal = self.events() + work;
        let wait = async {
            while self.events() < goal {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Either will do: the moment is to be any.
        let _ = tokio::time::timeout(most, wait).await;
    }

    /// Sends what has no answer, brings dead letters back, and acknowledges everything.
    async fn drain(&mut self, address: &str) {
        failures::unthrottle(address).await;
        settings::resume(address, &self.operator).await;
        for line in self.lines() {
            traffic::finish(address, &line.desk.books, &line.outboxes).await;
        }
        self.audit(address).await;
        failures::redrive_all(address).await;
        let lucks: Vec<Chance> = (0..4).map(|_| self.chance.split()).collect();
        for (line, luck) in self.lines().zip(lucks) {
            failures::drain(address, &line.desk, luck).await;
            let lease = line.settings.visibility_timeout_ms.unwrap_or(30_000);
            failures::lease_for(address, line.desk.queue, lease).await;
        }
        let left = self.audit(address).await;
        assert_eq!((left.there, left.dead), (0, 0), "{left}");
    }
}

/// The figures of a round.
struct Round {
    early: u32,
    recovery: Duration,
    ran: Duration,
    events: u64,
    found: Balance,
}

impl World {
    /// Starts the server, perhaps after some that are killed while they recover; checks; lets everybody work; kills.
    async fn round(&mut self, directory: &TempDir, is_first: bool) -> Round {
        let early = self.chance.below(4).saturating_sub(1) as u32;
        for _ in 0..early {
            let after = Duration::from_micros(self.chance.below(40_000));
            process::killed_early(directory.path(), after);
        }
        self.rules.lock().unwrap().begin();
        let begun = Instant::now();
        let mut server = Server::start(directory.path());
        let recovery = begun.elapsed();
        if is_first {
            self.create(&server.address).await;
        }
        let found = self.audit(&server.address).await;
        let before = self.events();
        let begun = Instant::now();
        self.rules.lock().unwrap().consumers_come();
        let tasks = self.start(&server.address);
        let most = Duration::from_millis(1 + self.chance.below(1500));
        let work = 1 + self.chance.below(8000);
        self.until(work, most).await;
        server.kill();
        let ran = begun.elapsed();
        traffic::ended(tasks).await;
        Round {
            early,
            recovery,
            ran,
            events: self.events() - before,
            found,
        }
    }

    fn summary(&self) -> String {
        let fates = self.orders.desk.fates.lock().unwrap();
        let rules = self.rules.lock().unwrap();
        let config: u64 = self
            .config
            .lock()
            .unwrap()
            .values()
            .map(|it| it.changes)
            .sum();
        let settings = self.operator.lock().unwrap().changes();
        let deeds = self.scratch.lock().unwrap().deeds;
        format!(
            "orders: {fates}\nrules: {rules}\nconfiguration changed {config} times, settings {settings} times; \
             queues made, filled, purged or deleted {deeds} times"
        )
    }
}

/// Runs the rounds and checks the ledgers at the end.
fn play(rounds: u64, seed: u64) {
    println!("FILA_CRASH_ROUNDS={rounds} FILA_CRASH_SEED={seed}");
    let directory = TempDir::new().unwrap();
    let mut world = World::new(seed);
    let (mut slowest, mut kills) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let runtime = runtime();
        let Round {
            early,
            recovery,
            ran,
            events,
            found,
        } = runtime.block_on(world.round(&directory, round == 0));
        slowest = slowest.max(recovery);
        kills += 1 + early;
        println!(
            "round {}: {early} killed while starting, up in {recovery:.0?}, {found}; {events} results in {ran:.0?}, killed",
            round + 1
        );
        if (round + 1).is_multiple_of(DRAINED_EVERY) || round + 1 == rounds {
            world.rules.lock().unwrap().begin();
            let server = Server::start(directory.path());
            let drained = runtime.block_on(async {
                world.audit(&server.address).await;
                world.rules.lock().unwrap().consumers_come();
                world.drain(&server.address).await;
                world.audit(&server.address).await
            });
            println!("drained: {drained}");
        }
    }
    println!(
        "{rounds} rounds, {kills} kills, the slowest start took {slowest:.0?}\n{}\nnothing lost, nothing twice, nothing out of order",
        world.summary()
    );
}

#[test]
fn everything_at_once_survives_kill_9_with_exact_accounts() {
    play(number("FILA_CRASH_ROUNDS", 5), number("FILA_CRASH_SEED", 9));
}
