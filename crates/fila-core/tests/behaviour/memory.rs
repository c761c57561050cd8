//! Memory: backlogs, quiet keys and passing keys stay within the budget.

use fila_core::{Command, KeyCursor, Settlement, Verdict};

use crate::support::{SECOND, Shell, message, queue};

#[test]
fn a_backlog_far_beyond_memory_is_delivered_in_order_and_within_the_budget() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    let payload = vec![7; 1024];
    for _ in 0..40 {
        let batch = (0..100).map(|n| message(["a", "b", "c"][n % 3], payload.clone()));
        let batch = batch.collect();
        shell.enqueue_all(queue, batch);
    }
    assert!(shell.broker.memory_used() <= 64 << 10);
    let stats = shell.stats(queue);
    assert!(stats.stored_only > 3900, "{stats:?}");
    let consumer = shell.subscribe(queue, 0);
    let mut last = std::collections::BTreeMap::new();
    let mut most = 0;
    for turn in 0..4000 {
        let delivery = shell.next(consumer).unwrap();
        let before = last.insert(delivery.fairness_key.clone(), delivery.message);
        assert!(before < Some(delivery.message), "in order");
        most = most.max(shell.broker.memory_used());
        if turn < 3000 {
            assert!(last.len() == 3 || turn < 3, "all keys take part");
        }
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
    }
    // A chunk per key on top of the budget, however long the backlog.
    assert!(most <= (64 << 10) + 3 * (20 << 10), "{most}");
    assert_eq!(shell.stats(queue).depth(), 0);
    assert_eq!(shell.broker.memory_used(), 0);
}

#[test]
fn backlogs_of_many_keys_take_a_handful_of_messages_each_beyond_the_budget() {
    const KEYS: usize = 400;
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    for _ in 0..40 {
        let batch = (0..KEYS).map(|n| message(&format!("key-{n}"), "small"));
        shell.enqueue_all(queue, batch.collect());
    }
    let consumer = shell.subscribe(queue, 0);
    let mut most = 0;
    for _ in 0..40 * KEYS {
        let delivery = shell.next(consumer).unwrap();
        shell.settle(queue, delivery.lease, Verdict::Ack).unwrap();
        most = most.max(shell.broker.memory_used());
    }
    assert!(most <= (64 << 10) + KEYS * 4 * 640, "{most}");
    assert_eq!(shell.stats(queue).depth(), 0);
}

#[test]
fn a_quiet_key_is_kept_in_memory_beside_a_noisy_one() {
    let (mut shell, queue) = Shell::with_settings(|it| it.memory_budget = 64 << 10);
    let payload = vec![7; 1024];
    shell.enqueue_all(queue, vec![message("noisy", payload.clone()); 200]);
    let before = shell.stats(queue).stored_only;
    shell.enqueue(queue, message("quiet", payload));
    assert_eq!(shell.stats(queue).stored_only, before);
}

#[test]
fn a_million_keys_that_came_and_went_leave_nothing() {
    let (mut shell, queue) = queue();
    let consumer = shell.subscribe(queue, 0);
    let rounds = 20;
    let mut places = 0;
    for round in 0..rounds {
        let batch = (0..1000).map(|n| message(&format!("{round}/{n}"), "once"));
        let batch = batch.collect();
        shell.enqueue_all(queue, batch);
        shell.tell(Command::Credit {
            consumer,
            more: 1000,
        });
        shell.run();
        let ticket = shell.ticket();
        let results = std::mem::take(&mut shell.deliveries)
            .into_iter()
            .map(|(_, delivery)| Settlement {
                lease: delivery.lease,
                message: None,
                verdict: Verdict::Ack,
            })
            .collect();
        shell.tell(Command::Settle {
            queue,
            results,
            by: None,
            ticket,
        });
        shell.run();
        let after = KeyCursor::from_number(2200);
        let page = shell.broker.keys(shell.now, queue, after, usize::MAX);
        let (_, next) = page.unwrap();
        places = next.map_or(0, KeyCursor::get);
    }
    assert_eq!(shell.stats(queue).active_keys, 0);
    assert_eq!(places, 0, "places are used again");
}

#[test]
fn what_waits_for_its_time_leaves_its_payload_in_the_store() {
    let (mut shell, queue) = queue();
    let mut delayed = message("a", vec![1; 100_000]);
    delayed.delay = SECOND;
    shell.enqueue(queue, delayed);
    assert!(shell.broker.memory_used() < 1000);
}
