//! Messages that are not tried any more: they are in one queue or the other, at any time.

#![cfg(test)] // helpers may unwrap, as tests do

mod groups;
mod moving;
mod redriving;
mod room;
#[path = "../support/mod.rs"]
mod support;

use std::num::NonZeroU32;

use fila_core::{Departure, QueueSettings, Settings, Verdict};
use fila_store::{Cursor, ErrorText, Loaded, QueueId, Shard, StoredMessage};

use support::{Shell, trying_again_at_once};

fn failed() -> Verdict {
    Verdict::Nack {
        delay: None,
        error: Some(ErrorText::new("no")),
    }
}

fn trying(attempts: u32) -> QueueSettings {
    let mut definition = trying_again_at_once();
    definition.retry.attempts_max = NonZeroU32::new(attempts);
    definition
}

fn pair(definition: QueueSettings) -> (Shell, QueueId, QueueId) {
    let mut shell = Shell::new(Settings::default());
    let (queue, letters) = shell.create_with_dead_letters("orders", definition);
    (shell, queue, letters)
}

/// Lets the next delivery fail.
fn fail_next(shell: &mut Shell, queue: QueueId) {
    let consumer = shell.subscribe(queue, 1);
    shell.run();
    let (_, delivery) = shell.deliveries.pop_front().expect("something to fail");
    shell.settle(queue, delivery.lease, failed()).unwrap();
    shell.unsubscribe(consumer, Departure::Closed);
    shell.run();
}

/// Returns everything that is stored of a queue, with what it carries.
fn stored(shell: &Shell, queue: QueueId) -> Vec<(StoredMessage, String)> {
    let shard = &shell.shards[&queue];
    let entries = shard.scan(&Cursor::start(), usize::MAX).unwrap().items;
    let body = |entry: &StoredMessage| match shard.load(&[entry.locator()]).unwrap().remove(0) {
        Loaded::Found(payload) => String::from_utf8(payload.body().to_vec()).unwrap(),
        lost => panic!("{lost:?}"),
    };
    entries
        .into_iter()
        .map(|it| (it.clone(), body(&it)))
        .collect()
}

fn entries(shell: &Shell, queue: QueueId) -> Vec<StoredMessage> {
    stored(shell, queue).into_iter().map(|it| it.0).collect()
}

fn bodies(shell: &Shell, queue: QueueId) -> Vec<String> {
    stored(shell, queue).into_iter().map(|it| it.1).collect()
}
