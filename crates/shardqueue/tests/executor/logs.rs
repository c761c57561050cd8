//! What is logged, to the letter.

use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::support::{Journal, failing, idle, occupy, one_shard, plain};

/// Notes every event's level and message.
struct Capture(Journal<(Level, String)>);

impl Subscriber for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        if event.metadata().target().starts_with("shardqueue") {
            self.0.note((*event.metadata().level(), message.0));
        }
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

#[tokio::test(start_paused = true)]
async fn the_texts_are_those_of_the_specification() {
    let journal = Journal::new();
    let _guard = tracing::subscriber::set_default(Capture(journal.clone()));
    let config = plain().with_error_handler(|_| panic!("no pen"));
    let executor = one_shard(config);
    let permanent = |_| async { Err(shardqueue::Permanent::new("gone")) };
    let _ = executor.submit("key", permanent).await.unwrap().await;
    let odd = |context: shardqueue::JobContext| async move {
        assert!(context.attempt() > 1, "torn paper")
    };
    assert!(executor.submit("key", odd).await.unwrap().await.is_done());
    let (gate, _held) = occupy(&executor, "key").await;
    for _ in 0..3 {
        executor.submit("key", idle).await.unwrap();
    }
    executor.close();
    gate.open(1);
    executor.stop().await;
    executor.stop().await;
    let (error, info) = (Level::ERROR, Level::INFO);
    let expected = [
        (error, "shardqueue: error handler panic: no pen"),
        (error, "shardqueue: worker 0 panic: torn paper"),
        (info, "shardqueue: stopping executor, draining 1 shards"),
        (info, "shardqueue: worker 0 draining 3 remaining jobs"),
    ];
    let logged = journal.take();
    let logged: Vec<(Level, &str)> = logged
        .iter()
        .map(|(level, text)| (*level, text.as_str()))
        .collect();
    assert_eq!(logged, expected);
}

#[tokio::test(start_paused = true)]
async fn an_idle_executor_says_only_that_it_stops() {
    let journal = Journal::new();
    let _guard = tracing::subscriber::set_default(Capture(journal.clone()));
    let executor = one_shard(plain());
    let _ = executor.submit("key", failing("down")).await.unwrap().await;
    executor.stop().await;
    let logged = journal.take();
    assert_eq!(
        logged,
        [(
            Level::INFO,
            "shardqueue: stopping executor, draining 1 shards".to_owned()
        )]
    );
}
