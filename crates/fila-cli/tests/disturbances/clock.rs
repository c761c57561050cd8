//! A wall clock that jumps by an hour, while the server runs and between two servers.
//!
//! The real program reads a clock that the test sets: `wall_clock.c`, which is compiled here and loaded before the C
//! library.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use fila_sdk::{Client, Consumer, Expected, Message, Ordering, QueueSettings};
use tempfile::TempDir;

use crate::program::Running;
use crate::{PATIENCE, QUEUE, client_of, inspect, server_on, soon, take};

const HOUR: i64 = 60 * 60;
const HALF_AN_HOUR: Duration = Duration::from_secs(30 * 60);

/// The broker's clock ticks in milliseconds: what began between two ticks has begun with the first.
const TICK: Duration = Duration::from_millis(1);

/// The wall clock as the server sees it.
struct Wall {
    directory: TempDir,
    library: PathBuf,
    cell: File,
}

impl Wall {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("wall_clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/disturbances/wall_clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        let compiled = compiler.arg(&library).arg(source).output();
        let compiled = compiled.expect("a C compiler, as for building fila itself");
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let cell = options.open(directory.path().join("cell")).unwrap();
        cell.set_len(16).unwrap();
        Self {
            directory,
            library,
            cell,
        }
    }

    /// Sets it ahead of the real time by this many seconds.
    fn set(&self, seconds: i64) {
        self.cell.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// Returns how often it was read.
    fn reads(&self) -> i64 {
        let mut bytes = [0; 8];
        self.cell.read_exact_at(&mut bytes, 8).unwrap();
        i64::from_ne_bytes(bytes)
    }

    /// Starts a server that lives by it.
    fn server(&self, data: &Path) -> Running {
        let mut command = server_on(data);
        command.env("LD_PRELOAD", &self.library);
        command.env("WALL_CLOCK_FILE", self.directory.path().join("cell"));
        let before = self.reads();
        let running = Running::start(&mut command);
        assert!(
            self.reads() > before,
            "it is this clock that the server reads"
        );
        running
    }
}

/// Returns how far a moment that the server told is ahead of the real time, in seconds.
fn ahead(moment: SystemTime) -> i64 {
    match moment.duration_since(SystemTime::now()) {
        Ok(ahead) => ahead.as_secs() as i64,
        Err(behind) => -(behind.duration().as_secs() as i64),
    }
}

fn is_about(seconds: i64, expected: i64) -> bool {
    (seconds - expected).unsigned_abs() <= 2 * PATIENCE.as_secs()
}

async fn create(client: &Client, queue: &str, settings: QueueSettings) {
    let admin = client.admin();
    soon(admin.create_queue(queue, settings)).await.unwrap();
}

async fn send(client: &Client, queue: &str, message: Message) {
    soon(client.queue(queue).send(message)).await.unwrap();
}

fn consumer(client: &Client, queue: &str) -> Consumer {
    let consumer = client.queue(queue).consumer();
    consumer.keep_leases(Duration::ZERO).subscribe()
}

/// A lease lasts as long as it should: no shorter, and not for an hour.
async fn leases(client: &Client) {
    let lease = Duration::from_secs(1);
    let settings = QueueSettings::new().visibility_timeout(lease);
    let settings = settings.retry_backoff(Duration::ZERO);
    create(client, "leases", settings).await;
    send(client, "leases", Message::new("held")).await;
    let begun = Instant::now();
    let mut consumer = consumer(client, "leases");
    let held = soon(consumer.next()).await.unwrap().unwrap();
    let again = soon(consumer.next()).await.unwrap().unwrap();
    assert!(begun.elapsed() + TICK >= lease, "{:?}", begun.elapsed());
    assert_eq!((held.attempt, again.attempt), (1, 2));
    // It was accepted by a clock that has not jumped.
    let accepted = ahead(again.enqueued_at);
    assert!(is_about(accepted, 0), "{accepted}");
    soon(again.ack()).await.unwrap();
}

/// Delays and retries take their time, and what is to be forgotten in half an hour is not.
async fn delays(client: &Client) {
    create(client, "delays", QueueSettings::new()).await;
    let time = Duration::from_millis(600);
    let begun = Instant::now();
    send(client, "delays", Message::new("late").delay(time)).await;
    let mortal = Message::new("mortal").time_to_live(HALF_AN_HOUR);
    send(client, "delays", mortal).await;
    let mut consumer = consumer(client, "delays");
    let mortal = soon(consumer.next()).await.unwrap().unwrap();
    assert_eq!(&mortal.payload[..], b"mortal");
    soon(mortal.ack()).await.unwrap();
    let late = soon(consumer.next()).await.unwrap().unwrap();
    assert!(begun.elapsed() + TICK >= time, "{:?}", begun.elapsed());
    let begun = Instant::now();
    soon(late.nack_after("not yet", time)).await.unwrap();
    let again = soon(consumer.next()).await.unwrap().unwrap();
    assert!(begun.elapsed() + TICK >= time, "{:?}", begun.elapsed());
    soon(again.ack()).await.unwrap();
}

/// A throttle lets through what it should: no more, and not nothing.
async fn throttles(client: &Client) {
    let (rate, burst) = (40.0, 5.0);
    create(client, "calls", QueueSettings::new()).await;
    let admin = client.admin();
    for (key, value) in [("throttle:slow:burst", burst), ("throttle:slow:rate", rate)] {
        let set = admin.set_config(key, value, Expected::Any);
        soon(set).await.unwrap();
    }
    let calls = (0..50).map(|number| Message::new(number.to_string()).throttle_key("slow"));
    for sent in soon(client.queue("calls").send_all(calls)).await {
        sent.unwrap();
    }
    let begun = Instant::now();
    let mut consumer = consumer(client, "calls");
    for count in 1..=50 {
        let call = soon(consumer.next()).await.unwrap().unwrap();
        let allowed = burst + rate * (begun.elapsed().as_secs_f64() + 0.001);
        assert!(f64::from(count) <= allowed, "{count} of {allowed:.1}");
        soon(call.ack()).await.unwrap();
    }
}

/// The queue still remembers deduplication ids and delivers ready messages, a hundred times over.
async fn copies(client: &Client) {
    create(client, "copies", QueueSettings::new()).await;
    let copies = client.queue("copies");
    let mut consumer = consumer(client, "copies");
    for number in 0..100 {
        for is_copy in [false, true] {
            let id = format!("id {number}");
            let message = Message::new(number.to_string()).deduplication_id(id);
            let sent = soon(copies.send(message)).await.unwrap();
            assert_eq!(sent.deduplicated, is_copy);
        }
        let taken = take(&mut consumer, 1).await;
        assert_eq!(taken.get(&number.to_string()), Some(&1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jumps_of_the_wall_clock_while_the_server_runs_change_nothing() {
    let (wall, data) = (Wall::new(), tempfile::tempdir().unwrap());
    let server = wall.server(data.path());
    let client = client_of(&server).await;
    let jumps = async {
        for seconds in [HOUR, 0, -HOUR, HOUR, -HOUR, 0].into_iter().cycle() {
            wall.set(seconds);
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    };
    let checks = async {
        tokio::join!(
            leases(&client),
            delays(&client),
            throttles(&client),
            copies(&client)
        );
    };
    tokio::select! {
        () = jumps => unreachable!("the jumps never end"),
        () = checks => {}
    }
}

/// A queue in order with twenty messages, and another one with everything that time has to do with.
async fn prepare(client: &Client) {
    let settings = QueueSettings::new().retry_backoff(Duration::ZERO);
    create(client, QUEUE, settings.clone()).await;
    create(client, "strict", settings.ordering(Ordering::Key)).await;
    send(client, QUEUE, Message::new("failed")).await;
    let mut consumer = consumer(client, QUEUE);
    let failed = soon(consumer.next()).await.unwrap().unwrap();
    let failed = failed.nack_after("in half an hour", HALF_AN_HOUR);
    soon(failed).await.unwrap();
    soon(consumer.stop()).await;
    send(client, QUEUE, Message::new("ready")).await;
    let delayed = Message::new("delayed").delay(HALF_AN_HOUR);
    send(client, QUEUE, delayed).await;
    let mortal = Message::new("mortal").time_to_live(HALF_AN_HOUR);
    send(client, QUEUE, mortal).await;
    let once = Message::new("once").deduplication_id("once");
    send(client, QUEUE, once).await;
    for number in 0..20 {
        send(client, "strict", Message::new(number.to_string())).await;
    }
}

/// Sends more to the queue in order, and takes all of it.
async fn in_order(client: &Client) {
    for number in 20..25 {
        send(client, "strict", Message::new(number.to_string())).await;
    }
    let mut consumer = consumer(client, "strict");
    for number in 0..25 {
        let next = soon(consumer.next()).await.unwrap().unwrap();
        assert_eq!(next.payload, number.to_string());
        soon(next.ack()).await.unwrap();
    }
}

/// Sends what was sent before under the same id, and returns whether it is known.
async fn is_remembered(client: &Client) -> bool {
    let once = Message::new("once again").deduplication_id("once");
    let sent = soon(client.queue(QUEUE).send(once)).await.unwrap();
    sent.deduplicated
}

async fn texts(client: &Client, count: usize) -> Vec<String> {
    let mut consumer = consumer(client, QUEUE);
    let taken = take(&mut consumer, count).await;
    soon(consumer.stop()).await;
    taken.into_keys().collect()
}

/// Starts a server by a wall clock that has been set, and checks that it goes by it.
async fn restart(wall: &Wall, data: &Path, seconds: i64) -> (Running, Client) {
    wall.set(seconds);
    let server = wall.server(data);
    let client = client_of(&server).await;
    let started = soon(client.admin().server()).await.unwrap().started_at;
    let started = ahead(started);
    assert!(is_about(started, seconds), "{started}");
    (server, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_the_wall_clock_an_hour_ahead_is_as_if_an_hour_had_passed() {
    let (wall, data) = (Wall::new(), tempfile::tempdir().unwrap());
    let (mut server, client) = restart(&wall, data.path(), 0).await;
    prepare(&client).await;
    server.kill();
    let (_server, client) = restart(&wall, data.path(), HOUR).await;
    in_order(&client).await;
    assert!(!is_remembered(&client).await, "it was for five minutes");
    let taken = texts(&client, 5).await;
    assert_eq!(taken, ["delayed", "failed", "once", "once again", "ready"]);
    let stats = inspect(&client, QUEUE).await.stats;
    assert_eq!((stats.depth, stats.totals.expired), (0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_the_wall_clock_an_hour_back_loses_nothing_and_holds_up_nothing_that_is_ready()
 {
    let (wall, data) = (Wall::new(), tempfile::tempdir().unwrap());
    let (mut server, client) = restart(&wall, data.path(), 0).await;
    prepare(&client).await;
    server.kill();
    let (mut server, client) = restart(&wall, data.path(), -HOUR).await;
    in_order(&client).await;
    assert!(is_remembered(&client).await);
    assert_eq!(texts(&client, 3).await, ["mortal", "once", "ready"]);
    // What waits for a moment waits for it.
    let stats = inspect(&client, QUEUE).await.stats;
    assert_eq!((stats.depth, stats.totals.expired), (2, 0));
    server.kill();
    // The moment has come by a clock that is right again, or beyond.
    let (_server, client) = restart(&wall, data.path(), HOUR).await;
    assert_eq!(texts(&client, 2).await, ["delayed", "failed"]);
    assert_eq!(inspect(&client, QUEUE).await.stats.depth, 0);
}
