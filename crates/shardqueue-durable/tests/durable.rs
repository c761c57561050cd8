//! Durable jobs on a real server inside the process. `fila-cli tests/durable_kill` kills the processes.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila_sdk::{Client, Message, QueueSettings};
use fila_server::Server;
use fila_server::config::{Config, StorageEngine};
use serde::{Deserialize, Serialize};
use shardqueue_durable::{
    DurableContext, DurableError, DurableJob, DurableQueue, JobRegistry, JobRejection,
};
use tokio::sync::Semaphore;

#[derive(Serialize, Deserialize)]
struct AddEntry {
    number: u32,
}

impl DurableJob for AddEntry {
    const NAME: &'static str = "add_entry";
}

#[derive(Serialize, Deserialize)]
struct DeleteEntry {
    number: u32,
}

impl DurableJob for DeleteEntry {
    const NAME: &'static str = "delete_entry";
}

/// The name of `AddEntry`, with other arguments.
#[derive(Serialize, Deserialize)]
struct OldEntry {
    text: String,
}

impl DurableJob for OldEntry {
    const NAME: &'static str = "add_entry";
}

async fn server() -> (Server, Client) {
    let mut config = Config::default();
    config.server.address = ([127, 0, 0, 1], 0).into();
    config.storage.engine = StorageEngine::Memory;
    let server = Server::start(config).await.unwrap();
    let client = Client::connect(server.address().to_string()).await.unwrap();
    (server, client)
}

fn settings() -> QueueSettings {
    QueueSettings::new()
        .retry_attempts_max(2)
        .retry_backoff(Duration::from_millis(1))
}

type Told = (String, u32, String);

/// A registry for `add_entry`, what it has done, what its error handler was told, and a count of both.
#[derive(Clone, Default)]
struct Diary {
    done: Arc<Mutex<Vec<(String, u32)>>>,
    told: Arc<Mutex<Vec<Told>>>,
}

fn registry(diary: &Diary, events: &Arc<Semaphore>) -> JobRegistry {
    let (done, told) = (Arc::clone(&diary.done), Arc::clone(&diary.told));
    let (ended, failed) = (Arc::clone(events), Arc::clone(events));
    JobRegistry::new()
        .handle(move |job: AddEntry, context: DurableContext| {
            let (done, ended) = (Arc::clone(&done), Arc::clone(&ended));
            async move {
                tokio::task::yield_now().await;
                if job.number.is_multiple_of(3) && context.attempt == 1 {
                    return Err("not at the first attempt");
                }
                done.lock().unwrap().push((context.key, job.number));
                ended.add_permits(1);
                Ok(())
            }
        })
        .with_error_handler(move |context, rejection| {
            let kind = match rejection {
                JobRejection::NoName { .. } => "no name",
                JobRejection::Unknown { .. } => "unknown",
                JobRejection::Decode { .. } => "decode",
                _ => "failed",
            };
            let entry = (context.key.clone(), context.attempt, kind.to_owned());
            told.lock().unwrap().push(entry);
            failed.add_permits(1);
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_key_run_in_order_also_when_some_are_attempted_again() {
    let (server, client) = server().await;
    let jobs = DurableQueue::open(&client, "jobs", settings())
        .await
        .unwrap();
    for number in 0..20 {
        for key in ["a", "b", "c"] {
            jobs.submit(key, &AddEntry { number }).await.unwrap();
        }
    }
    let (diary, events) = (Diary::default(), Arc::new(Semaphore::new(0)));
    let all = async { drop(events.acquire_many(60 + 3 * 7).await.unwrap()) };
    let worker = jobs.worker(registry(&diary, &events)).concurrency(4);
    let report = worker.run_until(all).await.unwrap();
    assert_eq!((report.acked, report.nacked, report.lost), (60, 21, 0));
    let done = diary.done.lock().unwrap().clone();
    for key in ["a", "b", "c"] {
        let own = done.iter().filter(|(other, _)| other == key);
        assert!(own.map(|(_, number)| *number).eq(0..20), "{done:?}");
    }
    let _ = server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_no_worker_understands_are_dead_letters_and_let_their_key_go_on() {
    let (server, client) = server().await;
    let jobs = DurableQueue::open(&client, "jobs", settings())
        .await
        .unwrap();
    let unknown = jobs
        .submit("key", &DeleteEntry { number: 1 })
        .await
        .unwrap();
    let text = "hello".to_owned();
    jobs.submit("key", &OldEntry { text }).await.unwrap();
    let foreign = Message::new("no job").key("key");
    client.queue("jobs").send(foreign).await.unwrap();
    jobs.submit("key", &AddEntry { number: 1 }).await.unwrap();
    let (diary, events) = (Diary::default(), Arc::new(Semaphore::new(0)));
    let all = async { drop(events.acquire_many(7).await.unwrap()) };
    let worker = jobs.worker(registry(&diary, &events));
    worker.run_until(all).await.unwrap();
    let told = std::mem::take(&mut *diary.told.lock().unwrap());
    let told: Vec<_> = told.iter().map(|(_, n, kind)| (*n, &**kind)).collect();
    let each = ["unknown", "decode", "no name"].map(|kind| [(1, kind), (2, kind)]);
    assert_eq!(told, each.concat());
    assert_eq!(*diary.done.lock().unwrap(), [("key".to_owned(), 1)]);

    let mut dead = client.queue("jobs.dlq").consumer().subscribe();
    let mut errors = Vec::new();
    while errors.len() < 3 {
        let letter = dead.next().await.unwrap().unwrap();
        let history = letter.history.clone().unwrap();
        if letter.header("job") == Some("delete_entry") {
            assert_eq!(history.death.unwrap().id, unknown);
            assert_eq!(&letter.payload[..], br#"{"number":1}"#);
        }
        errors.push(history.last_error);
        letter.ack().await.unwrap();
    }
    errors.sort_unstable();
    assert_eq!(
        errors,
        [
            "no handler for job `delete_entry`; register one, or deploy the version that has it",
            "the arguments of job `add_entry` could not be read: missing field `number` at line 1 column 16",
            "the message is no job: it has no header `job`",
        ]
    );
    let _ = server.shutdown().await;
}

/// The broker's default separator is `/`: keys are paths, and nothing else changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_a_slash_is_a_path_and_order_is_per_whole_key() {
    let (server, client) = server().await;
    let jobs = DurableQueue::open(&client, "jobs", settings())
        .await
        .unwrap();
    let keys = ["acme", "acme/alice", "acme/bob", "globex/a/b/c"];
    for number in 0..10 {
        for key in keys {
            jobs.submit(key, &AddEntry { number }).await.unwrap();
        }
    }
    let (diary, events) = (Diary::default(), Arc::new(Semaphore::new(0)));
    let all = async { drop(events.acquire_many(40 + 4 * 4).await.unwrap()) };
    let worker = jobs.worker(registry(&diary, &events)).concurrency(4);
    let report = worker.run_until(all).await.unwrap();
    assert_eq!((report.acked, report.nacked, report.lost), (40, 16, 0));
    let done = diary.done.lock().unwrap().clone();
    for key in keys {
        let own = done.iter().filter(|(other, _)| other == key);
        assert!(own.map(|(_, number)| *number).eq(0..10), "{key}: {done:?}");
    }
    let _ = server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_with_many_keys_gets_the_turns_of_one() {
    let (server, client) = server().await;
    let jobs = DurableQueue::open(&client, "jobs", settings())
        .await
        .unwrap();
    for number in 0..60 {
        let entry = AddEntry {
            number: 3 * number + 1, // succeeds at the first attempt
        };
        jobs.submit(format!("acme/{number}"), &entry).await.unwrap();
    }
    // A key runs one job at a time, so the worker takes jobs of other keys meanwhile: globex needs a few, too.
    for number in 0..20 {
        let entry = AddEntry {
            number: 3 * number + 1,
        };
        let key = format!("globex/{}", number % 5);
        jobs.submit(key, &entry).await.unwrap();
    }
    let (diary, events) = (Diary::default(), Arc::new(Semaphore::new(0)));
    let all = async { drop(events.acquire_many(80).await.unwrap()) };
    let worker = jobs.worker(registry(&diary, &events)).concurrency(1);
    worker.run_until(all).await.unwrap();
    let done = diary.done.lock().unwrap().clone();
    let of_globex = |(key, _): &&(String, u32)| key.starts_with("globex");
    let globex = done[..40].iter().filter(of_globex).count();
    assert!((15..=20).contains(&globex), "{globex} of 40: {done:?}");
    let _ = server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_no_path_is_refused_with_the_reason() {
    let (server, client) = server().await;
    let jobs = DurableQueue::open(&client, "jobs", settings())
        .await
        .unwrap();
    for (key, reason) in [
        ("acme//alice", "part 2"),
        ("https://example.org", "part 2"),
        ("a/b/c/d/e", "5"),
    ] {
        let refused = jobs.submit(key, &AddEntry { number: 1 }).await;
        let error = refused.expect_err("no path").to_string();
        assert!(error.contains(reason), "{key}: {error}");
        assert!(error.contains("key_separator"), "{key}: {error}");
    }
    assert_eq!(client.admin().queue("jobs").await.unwrap().stats.depth, 0);
    let _ = server.shutdown().await;
}

#[derive(Serialize, Deserialize)]
struct Unwritable {
    map: HashMap<(u8, u8), u8>,
}

impl DurableJob for Unwritable {
    const NAME: &'static str = "unwritable";
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_without_order_and_arguments_that_cannot_be_written_are_refused() {
    let (server, client) = server().await;
    let admin = client.admin();
    let created = admin.create_queue("plain", QueueSettings::new());
    created.await.unwrap();
    let refused = DurableQueue::open(&client, "plain", settings()).await;
    let Err(DurableError::NotOrdered { queue }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(queue, "plain");
    let jobs = DurableQueue::open(&client, "jobs", settings())
        .await
        .unwrap();
    let again = DurableQueue::open(&client, "jobs", settings()).await;
    again.expect("a queue can be opened any number of times");
    let map = HashMap::from([((1, 2), 3)]);
    let refused = jobs.submit("key", &Unwritable { map }).await;
    assert!(matches!(
        refused,
        Err(DurableError::Encode {
            name: "unwritable",
            ..
        })
    ));
    let refused = jobs.submit("k".repeat(1000), &AddEntry { number: 1 }).await;
    assert!(
        matches!(refused, Err(DurableError::Broker(_))),
        "{refused:?}"
    );
    assert_eq!(admin.queue("jobs").await.unwrap().stats.depth, 0);
    let _ = server.shutdown().await;
}
