//! Why a key waits: each reason, and whether what was said is what then happens.

#![cfg(test)] // helpers may unwrap, as tests do

mod levels;
mod pace;
mod places;
mod reasons;
#[path = "../support/mod.rs"]
mod support;
mod throttles;

use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{ConsumerId, Delivery, Explanation, Position, Verdict, Waiting};
use fila_store::{QueueId, Timestamp};

use support::{Shell, key, message};

fn weigh(name: &str, weight: u32) -> fila_core::NewMessage {
    let mut new = message(name, "work");
    new.schedule.weight = NonZeroU32::new(weight).unwrap();
    new
}

fn enqueue(shell: &mut Shell, queue: QueueId, name: &str, weight: u32, count: usize) {
    shell.enqueue_all(queue, vec![weigh(name, weight); count]);
}

fn later(shell: &Shell, millis: u64) -> Timestamp {
    shell.now.saturating_add(Duration::from_millis(millis))
}

fn name(delivery: &Delivery) -> String {
    String::from_utf8(delivery.fairness_key.as_bytes().to_vec()).unwrap()
}

/// Delivers and acknowledges one message, and returns whose it was.
fn serve(shell: &mut Shell, queue: QueueId, consumer: ConsumerId) -> String {
    let delivery = shell.next(consumer).expect("a key has messages");
    shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    name(&delivery)
}

fn position(explanation: &Explanation) -> Position {
    match explanation.waiting {
        Waiting::Runnable { position } => position,
        ref other => panic!("{other:?}"),
    }
}

fn at_cap(path: &str, cap: u32) -> Waiting {
    let path = key(path);
    Waiting::AtCap { path, cap }
}
