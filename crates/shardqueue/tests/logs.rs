//! The exact log events.
//!
//! This is a separate file because there is one subscriber for the whole process: subscribers of single threads miss
//! events while others come and go.
#![cfg(test)] // helpers may unwrap, as tests do

use std::fmt::Debug;
use std::future::ready;
use std::sync::{Arc, Mutex, Once};
use std::thread::{self, ThreadId};

use shardqueue::{Config, JobContext, Permanent, ShardExecutor};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static EVENTS: Mutex<Vec<(ThreadId, Level, String)>> = Mutex::new(Vec::new());

/// Notes every event of the crate, with the thread that it came from: each test has one to itself.
struct Capture;

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("shardqueue")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let entry = (thread::current().id(), *event.metadata().level(), message.0);
        EVENTS.lock().unwrap().push(entry);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

fn one_shard(config: Config) -> ShardExecutor {
    static CAPTURE: Once = Once::new();
    CAPTURE.call_once(|| tracing::subscriber::set_global_default(Capture).unwrap());
    ShardExecutor::new(Config {
        shards: 1,
        ..config
    })
    .unwrap()
}

fn logged() -> Vec<(Level, String)> {
    let events = EVENTS.lock().unwrap();
    let own = events
        .iter()
        .filter(|event| event.0 == thread::current().id());
    own.map(|(_, level, text)| (*level, text.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn the_texts_are_those_of_the_specification() {
    let executor = one_shard(Config::default().with_error_handler(|_| panic!("no pen")));
    let permanent = |_| async { Err(Permanent::new("gone")) };
    let _ = executor.submit("key", permanent).await.unwrap().await;
    let odd = |context: JobContext| async move { assert!(context.attempt() > 1, "torn paper") };
    assert!(executor.submit("key", odd).await.unwrap().await.is_done());
    let (begun, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, held) = (Arc::clone(&begun), Arc::clone(&gate));
    let job = move |_| {
        told.notify_one();
        Arc::clone(&held).notified_owned()
    };
    executor.submit("key", job).await.unwrap();
    begun.notified().await;
    for _ in 0..3 {
        executor.submit("key", |_| ready(())).await.unwrap();
    }
    executor.close();
    gate.notify_one();
    executor.stop().await;
    executor.stop().await;
    let (error, info) = (Level::ERROR, Level::INFO);
    let expected = [
        (error, "shardqueue: error handler panic: no pen"),
        (error, "shardqueue: worker 0 panic: torn paper"),
        (info, "shardqueue: stopping executor, draining 1 shards"),
        (info, "shardqueue: worker 0 draining 3 remaining jobs"),
    ];
    assert_eq!(
        logged(),
        expected.map(|(level, text)| (level, text.to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn an_executor_with_nothing_left_says_only_that_it_stops() {
    let executor = one_shard(Config::default());
    let failing = |_| ready(Err::<(), _>("down"));
    let _ = executor.submit("key", failing).await.unwrap().await;
    executor.stop().await;
    let expected = "shardqueue: stopping executor, draining 1 shards".to_owned();
    assert_eq!(logged(), [(Level::INFO, expected)]);
}
