//! Whose turn it is: weights, what a delivery costs its key, and how many a key may have at once.

use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{Charge, Command, KeySettings, QueueSettings, Verdict};

use crate::support::{SECOND, Shell, key, message, queue};

#[test]
fn a_key_has_no_more_leases_than_its_cap_and_a_raised_cap_acts_at_once() {
    let mut definition = QueueSettings::default();
    definition.key_concurrency = NonZeroU32::new(2);
    let (mut shell, queue) = Shell::with_queue(definition.clone());
    for name in ["a", "b"] {
        for _ in 0..5 {
            shell.enqueue(queue, message(name, "work"));
        }
    }
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 4);
    definition.key_concurrency = NonZeroU32::new(3);
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 6);
}

#[test]
fn an_operators_weight_wins_over_what_producers_say() {
    let mut definition = QueueSettings::default();
    let settings = KeySettings {
        weight: NonZeroU32::new(3),
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    let (mut shell, queue) = Shell::with_queue(definition);
    let mut heavy = message("b", "work");
    heavy.schedule.weight = NonZeroU32::new(1).unwrap();
    let mut modest = message("a", "work");
    modest.schedule.weight = NonZeroU32::new(50).unwrap();
    shell.enqueue_all(queue, vec![modest; 400]);
    shell.enqueue_all(queue, vec![heavy; 400]);
    shell.subscribe(queue, 400);
    shell.run();
    let of_a = shell
        .deliveries
        .iter()
        .filter(|(_, it)| it.fairness_key == key("a"))
        .count();
    assert!((298..=302).contains(&of_a), "{of_a} of 400");
}

#[test]
fn a_queue_that_charges_by_time_shares_time() {
    let mut definition = QueueSettings::default();
    definition.charge = Charge::Time;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue_all(queue, vec![message("slow", "work"); 1000]);
    shell.enqueue_all(queue, vec![message("fast", "work"); 4000]);
    let consumer = shell.subscribe(queue, 0);
    let mut spent = [0u64; 2];
    for _ in 0..1500 {
        let delivery = shell.next(consumer).unwrap();
        let (slot, millis) = if delivery.fairness_key == key("slow") {
            (0, 20)
        } else {
            (1, 2)
        };
        shell.advance(Duration::from_millis(millis));
        spent[slot] += millis;
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    let share = spent[0] as f64 / (spent[0] + spent[1]) as f64;
    assert!((0.48..=0.52).contains(&share), "{spent:?}");
}

#[test]
fn a_slow_key_does_not_get_all_places_before_its_results_are_there() {
    let mut definition = QueueSettings::default();
    definition.charge = Charge::Time;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.enqueue_all(queue, vec![message("slow", "work"); 1000]);
    shell.enqueue_all(queue, vec![message("fast", "work"); 1000]);
    let consumer = shell.subscribe(queue, 0);
    // How long they take becomes known.
    for _ in 0..300 {
        let delivery = shell.next(consumer).unwrap();
        let is_slow = delivery.fairness_key == key("slow");
        shell.advance(Duration::from_millis(if is_slow { 100 } else { 1 }));
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    // A hundred places are free at once, and no result comes.
    shell.deliveries.clear();
    shell.tell(Command::Credit {
        consumer,
        more: 100,
    });
    shell.run();
    let delivered = shell.deliveries.iter();
    let of_slow = delivered.filter(|(_, it)| it.fairness_key == key("slow"));
    assert!(of_slow.count() <= 2);
    assert_eq!(shell.deliveries.len(), 100);
}

#[test]
fn what_producers_say_last_of_a_weight_counts_for_the_whole_backlog() {
    let (mut shell, queue) = queue();
    shell.enqueue_all(queue, vec![message("a", ""); 400]);
    shell.enqueue_all(queue, vec![message("b", ""); 400]);
    let mut heavy = message("a", "");
    heavy.schedule.weight = NonZeroU32::new(3).unwrap();
    shell.enqueue(queue, heavy);
    shell.subscribe(queue, 400);
    shell.run();
    let delivered = shell.deliveries.iter();
    let of_a = delivered.filter(|(_, it)| it.fairness_key == key("a"));
    let of_a = of_a.count();
    assert!((298..=302).contains(&of_a), "{of_a} of 400");
}

#[test]
fn a_key_that_owes_makes_good_for_it_when_it_comes_back() {
    let mut definition = QueueSettings::default();
    definition.charge = Charge::Time;
    definition.visibility_timeout = 1000 * SECOND;
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, 0);
    shell.enqueue(queue, message("slow", ""));
    let slow = shell.next(consumer).unwrap();
    // It has competition while it takes its time.
    shell.enqueue_all(queue, vec![message("other", ""); 100]);
    shell.advance(100 * SECOND);
    shell.settle(queue, slow.lease, Verdict::Ack).unwrap();
    // New keys take the places of those that have nothing, but not of one that owes.
    let passing = (0..10).map(|n| message(&n.to_string(), ""));
    let passing = passing.collect();
    shell.enqueue_all(queue, passing);
    shell.enqueue_all(queue, vec![message("slow", ""); 100]);
    shell.tell(Command::Credit { consumer, more: 60 });
    shell.run();
    let delivered = shell.deliveries.iter();
    let of_slow = delivered.filter(|(_, it)| it.fairness_key == key("slow"));
    assert_eq!(of_slow.count(), 0);
}

#[test]
fn a_raised_cap_reaches_any_number_of_keys() {
    let mut definition = QueueSettings::default();
    definition.key_concurrency = NonZeroU32::new(1);
    let (mut shell, queue) = Shell::with_queue(definition.clone());
    let batch = (0..5000).map(|n| message(&(n / 2).to_string(), ""));
    let batch = batch.collect();
    shell.enqueue_all(queue, batch);
    shell.subscribe(queue, u32::MAX);
    shell.run();
    assert_eq!(shell.deliveries.len(), 2500);
    definition.key_concurrency = None;
    shell.update(queue, definition);
    shell.run();
    assert_eq!(shell.deliveries.len(), 5000);
}
