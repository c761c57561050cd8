//! The acceptance criteria of the story "Deficit Round Robin Scheduler", by number.
//!
//! One thing is finer than in the story's example: deficit is counted in thousandths of a message, so a quantum of
//! 1000 is one message, and a visit serves `weight` messages in a round instead of `weight × 1000`.

#![cfg(test)] // helpers may unwrap, as tests do

mod support;

use std::num::NonZeroU32;

use drr::Quantum;
use fila_core::{Charge, Command, ConsumerId, QueueSettings, Verdict};
use fila_store::QueueId;

use support::{Shell, message};

struct Story {
    shell: Shell,
    queue: QueueId,
    consumer: ConsumerId,
}

impl Story {
    fn with_quantum(quantum: u64) -> Self {
        let (mut shell, queue) =
            Shell::with_settings(|it| it.quantum = Quantum::new(quantum).unwrap());
        let consumer = shell.subscribe(queue, 0);
        Self {
            shell,
            queue,
            consumer,
        }
    }

    fn new() -> Self {
        Self::with_quantum(1000)
    }

    fn enqueue(&mut self, key: &str, weight: u32, count: usize) {
        let mut new = message(key, "work");
        new.schedule.weight = NonZeroU32::new(weight).unwrap();
        let messages = std::iter::repeat_with(|| new.clone()).take(count).collect();
        self.shell.enqueue_all(self.queue, messages);
    }

    /// Delivers and acknowledges `count` messages, and returns their keys.
    fn deliver(&mut self, count: u32) -> Vec<String> {
        let consumer = self.consumer;
        self.shell.tell(Command::Credit {
            consumer,
            more: count,
        });
        self.shell.run();
        let deliveries = std::mem::take(&mut self.shell.deliveries);
        let mut keys = Vec::new();
        for (_, delivery) in deliveries {
            let settled = self.shell.settle(self.queue, delivery.lease, Verdict::Ack);
            settled.unwrap();
            let key = delivery.fairness_key.as_bytes().to_vec();
            keys.push(String::from_utf8(key).unwrap());
        }
        keys
    }

    fn active_keys(&mut self) -> u64 {
        self.shell.stats(self.queue).active_keys
    }
}

fn count(keys: &[String], key: &str) -> usize {
    keys.iter().filter(|found| *found == key).count()
}

#[test]
fn ac1_each_active_key_gets_weight_times_quantum_in_a_round() {
    let mut story = Story::new();
    for (key, weight) in [("one", 1), ("two", 2), ("three", 3)] {
        story.enqueue(key, weight, 100);
    }
    // Newcomers are served once ahead of the ring; after that every round is the same.
    story.deliver(12);
    for round in 0..20 {
        let keys = story.deliver(6);
        let served = ["one", "two", "three"].map(|key| count(&keys, key));
        assert_eq!(served, [1, 2, 3], "round {round}: {keys:?}");
    }
}

#[test]
fn ac2_a_key_is_served_until_its_deficit_is_exhausted_and_then_the_next() {
    let mut story = Story::with_quantum(4000);
    story.enqueue("a", 1, 100);
    story.enqueue("b", 1, 100);
    story.deliver(16);
    let keys = story.deliver(24);
    let turns: Vec<usize> = keys
        .chunk_by(|one, next| one == next)
        .map(<[_]>::len)
        .collect();
    assert_eq!(turns, [4; 6], "{keys:?}");
}

#[test]
fn ac3_only_keys_with_pending_messages_take_part() {
    let mut story = Story::new();
    story.enqueue("busy", 1, 10);
    story.enqueue("done", 1000, 1);
    assert_eq!(count(&story.deliver(3), "done"), 1);
    assert_eq!(story.active_keys(), 1);
    // A key without messages takes no turns, however heavy it is.
    assert_eq!(count(&story.deliver(8), "busy"), 8);
}

#[test]
fn ac4_a_key_whose_messages_are_exhausted_is_removed_from_the_active_set() {
    let mut story = Story::new();
    story.enqueue("a", 1, 2);
    story.enqueue("b", 1, 5);
    assert_eq!(story.active_keys(), 2);
    story.deliver(4);
    assert_eq!(story.active_keys(), 1);
    story.deliver(3);
    assert_eq!(story.active_keys(), 0);
    assert!(story.deliver(1).is_empty());
}

#[test]
fn ac5_a_key_that_gets_messages_again_is_back_in_the_active_set() {
    let mut story = Story::new();
    story.enqueue("a", 1, 1);
    story.enqueue("b", 1, 50);
    story.deliver(20);
    assert_eq!(story.active_keys(), 1);
    story.enqueue("a", 1, 10);
    assert_eq!(story.active_keys(), 2);
    let keys = story.deliver(20);
    assert_eq!((count(&keys, "a"), count(&keys, "b")), (10, 10), "{keys:?}");
}

#[test]
fn ac6_deficits_live_in_memory_and_a_restart_begins_a_new_round() {
    // A quantum pays for one of the small messages, and the large one costs as much as 200,000 of them.
    let mut story = Story::with_quantum(4);
    let definition = QueueSettings {
        charge: Charge::Bytes,
        ..QueueSettings::default()
    };
    story.queue = story.shell.create("by bytes", definition);
    story.consumer = story.shell.subscribe(story.queue, 0);
    let large = message("a", vec![0; 800_000]);
    story.shell.enqueue_all(story.queue, vec![large]);
    assert_eq!(story.deliver(1), ["a"]);
    story.enqueue("b", 1, 60);
    story.enqueue("a", 1, 30);
    story.deliver(2);
    let keys = story.deliver(20);
    assert_eq!(count(&keys, "a"), 0, "it is deep in debt: {keys:?}");
    story.shell.restart();
    story.consumer = story.shell.subscribe(story.queue, 0);
    // All that was not acknowledged is there, and the keys share again from the first delivery on.
    let keys = story.deliver(20);
    assert_eq!((count(&keys, "a"), count(&keys, "b")), (10, 10), "{keys:?}");
    assert_eq!(story.deliver(100).len(), 90 - 2 - 20 - 20);
}

#[test]
fn ac7_three_keys_of_equal_weight_get_a_third_each() {
    let mut story = Story::new();
    for key in ["a", "b", "c"] {
        story.enqueue(key, 1, 2000);
    }
    // Each portion is acknowledged before the next: an ack that changed the engine would change the shares.
    for portion in [1, 2, 5, 900] {
        let mut keys = Vec::new();
        while keys.len() < 900 {
            keys.extend(story.deliver(portion));
        }
        for key in ["a", "b", "c"] {
            assert_eq!(count(&keys, key), 300, "{key}, in portions of {portion}");
        }
    }
}

#[test]
fn queues_have_rounds_of_their_own() {
    let mut story = Story::new();
    // The same key has had a lot elsewhere, and owes nothing for it here.
    let other = story.shell.create("other", QueueSettings::default());
    story
        .shell
        .enqueue_all(other, vec![message("a", "work"); 500]);
    story.shell.subscribe(other, u32::MAX);
    story.shell.run();
    assert_eq!(std::mem::take(&mut story.shell.deliveries).len(), 500);
    story.enqueue("a", 1, 20);
    story.enqueue("b", 1, 20);
    let keys = story.deliver(20);
    assert_eq!((count(&keys, "a"), count(&keys, "b")), (10, 10), "{keys:?}");
}

#[test]
fn a_single_key_gets_everything_in_the_order_of_acceptance() {
    let mut story = Story::new();
    let texts: Vec<String> = (0..50).map(|number| format!("work {number}")).collect();
    for text in &texts {
        let queue = story.queue;
        story
            .shell
            .enqueue_all(queue, vec![message("default", text.clone())]);
    }
    let consumer = story.consumer;
    story.shell.tell(Command::Credit { consumer, more: 50 });
    story.shell.run();
    let deliveries = std::mem::take(&mut story.shell.deliveries);
    let bodies = deliveries
        .iter()
        .map(|(_, delivery)| delivery.payload.body());
    assert!(bodies.eq(texts.iter().map(String::as_bytes)));
}

#[test]
fn a_key_without_a_consumer_stays_and_one_whose_messages_are_leased_takes_no_turns() {
    let mut story = Story::new();
    story.enqueue("a", 1, 1);
    story.enqueue("b", 1, 5);
    story.shell.run();
    assert!(story.shell.deliveries.is_empty(), "there is no consumer");
    assert_eq!(story.active_keys(), 2);
    let consumer = story.consumer;
    // Not acknowledged, so that the only message of `a` stays leased.
    story.shell.tell(Command::Credit { consumer, more: 2 });
    story.shell.run();
    assert_eq!(story.shell.deliveries.len(), 2, "at once");
    story.shell.deliveries.clear();
    assert_eq!(count(&story.deliver(4), "b"), 4);
}

#[test]
fn a_quiet_key_is_delivered_after_at_most_two_messages_however_many_hot_ones_there_are() {
    for hot in [1, 10, 1000] {
        let mut story = Story::new();
        for key in 0..hot {
            story.enqueue(&format!("hot {key}"), 1, 10);
        }
        story.deliver(hot * 3);
        story.enqueue("quiet", 1, 1);
        let keys = story.deliver(3);
        assert!(
            keys.contains(&"quiet".to_owned()),
            "{hot} hot keys: {keys:?}"
        );
    }
}

#[test]
fn weights_one_to_five_hold_within_one_percent_in_every_window_of_a_thousand() {
    let mut story = Story::new();
    for weight in 1..=5 {
        story.enqueue(&weight.to_string(), weight, 3000);
    }
    let keys = story.deliver(6000);
    for (start, window) in keys.windows(1000).enumerate() {
        for weight in 1..=5 {
            let got = count(window, &weight.to_string()) as f64;
            let share = 1000.0 * f64::from(weight) / 15.0;
            let error = (got - share).abs() / 1000.0;
            assert!(error <= 0.01, "from {start}: weight {weight} got {got}");
        }
    }
}
