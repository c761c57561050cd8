//! Durable jobs while workers and the server are killed with `kill -9`: every job runs, in order per key, and the only
//! jobs that run again are those that were under way at a kill.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fila_sdk::{Client, QueueSettings};
use program::{Running, fila};
use serde::{Deserialize, Serialize};
use shardqueue_durable::{DurableContext, DurableJob, DurableQueue, JobRegistry};

const QUEUE: &str = "memory-jobs";
const ADDRESS: &str = "FILA_TEST_ADDRESS";
const KEYS: u32 = 6;
const JOBS: u32 = 40;
const CONCURRENCY: usize = 3;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct AddEntry {
    number: u32,
}

impl DurableJob for AddEntry {
    const NAME: &'static str = "add_entry";
}

async fn open(client: &Client) -> DurableQueue {
    let settings = QueueSettings::new().retry_attempts_max(0);
    let opened = tokio::time::timeout(PATIENCE, DurableQueue::open(client, QUEUE, settings));
    opened.await.expect("within patience").unwrap()
}

#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn work() {
    let address = std::env::var(ADDRESS).expect("the test says where the server is");
    let client = Client::builder(address).connect_lazy().unwrap();
    let registry = JobRegistry::new().handle(|job: AddEntry, context: DurableContext| async move {
        // A line is whole or not there: it is one write.
        let line = format!("{} {};\n", context.key, job.number);
        std::io::stdout().write_all(line.as_bytes())?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok::<(), std::io::Error>(())
    });
    let worker = open(&client).await.worker(registry);
    let ended = worker.concurrency(CONCURRENCY);
    ended.run_until(std::future::pending::<()>()).await.unwrap();
}

/// Keys and numbers of the jobs that have begun, in order.
type Log = Arc<Mutex<Vec<(u32, u32)>>>;

/// A worker in a process of its own: this very test program, asked for that part of it.
struct Worker {
    child: Child,
    reading: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(port: u16, log: &Log) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "work", "--nocapture"])
            .env(ADDRESS, format!("127.0.0.1:{port}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let log = Arc::clone(log);
        let reading = std::thread::spawn(move || {
            // The words of the test runner are no jobs.
            for line in output.lines().map_while(Result::ok) {
                let entry = line.strip_suffix(';').and_then(|line| line.split_once(' '));
                if let Some((key, number)) = entry {
                    let entry = (key.parse().unwrap(), number.parse().unwrap());
                    log.lock().unwrap().push(entry);
                }
            }
        });
        Self {
            child,
            reading: Some(reading),
        }
    }

    /// Kills it, and reads what it has printed to the end.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reading) = self.reading.take() {
            reading.join().unwrap();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn server(directory: &Path, port: u16) -> Running {
    let address = format!("127.0.0.1:{port}");
    let args = ["server", "--log", "error", "--address", &address, "--data"];
    Running::start(fila().args(args).arg(directory))
}

/// Waits until so many jobs have begun.
async fn progress(log: &Log, jobs: usize) {
    let begun = async {
        while log.lock().unwrap().len() < jobs {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, begun).await;
    waited.expect("jobs go on within patience");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_survive_kills_of_workers_and_of_the_server_in_order_per_key() {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut running = server(directory.path(), port);
    let client = Client::connect(format!("127.0.0.1:{port}")).await.unwrap();
    let jobs = open(&client).await;
    let log = Log::default();
    let mut worker = Worker::start(port, &log);
    for number in 0..JOBS {
        for key in 0..KEYS {
            let job = AddEntry { number };
            jobs.submit(key.to_string(), &job).await.unwrap();
        }
        match number {
            10 => {
                progress(&log, 20).await;
                worker.kill();
                worker = Worker::start(port, &log);
            }
            20 => {
                progress(&log, 80).await;
                running.kill();
                running = server(directory.path(), port);
            }
            _ => {}
        }
    }
    let drained = async {
        while client.admin().queue(QUEUE).await.unwrap().stats.depth > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, drained).await.unwrap();
    worker.kill();

    let log = log.lock().unwrap();
    for key in 0..KEYS {
        let own = log.iter().filter(|(other, _)| *other == key);
        let mut own: Vec<u32> = own.map(|(_, number)| *number).collect();
        assert!(own.is_sorted(), "key {key}: {own:?}");
        own.dedup();
        assert!(own.into_iter().eq(0..JOBS), "key {key} has lost jobs");
    }
    let again = log.len() - (KEYS * JOBS) as usize;
    assert!(again <= 2 * CONCURRENCY, "{again} jobs ran again");
}
