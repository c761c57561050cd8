//! Deliveries on their way: consumers that do not read hold a bounded part of memory, and the others go on.

use std::collections::BTreeSet;

use fila_core::{Command, ConsumerId, Departure};
use fila_store::{MessageId, QueueId};

use crate::support::{Shell, message};

const MIB: usize = 1 << 20;
/// The most bytes on the way to one consumer, before the last message.
const WINDOW: usize = 4 * MIB;
/// The same for a consumer that has not read yet.
const FIRST_WINDOW: usize = 64 << 10;

/// Returns a shell with room for 16 MiB on their way, and with a queue of `count` messages of 1 MiB.
fn backlog(count: usize) -> (Shell, QueueId) {
    let (mut shell, queue) = Shell::with_settings(|it| {
        it.memory_budget = 64 * MIB;
        it.limits.buffered_bytes = usize::MAX;
    });
    for number in 0..count {
        let key = ["a", "b", "c"][number % 3];
        shell.enqueue(queue, message(key, vec![0; MIB]));
    }
    (shell, queue)
}

/// Adds a consumer that does not read.
fn unread(shell: &mut Shell, queue: QueueId) -> ConsumerId {
    let consumer = shell.subscribe(queue, 0);
    shell.stop_reading(consumer);
    shell.tell(Command::Credit {
        consumer,
        more: 1_000,
    });
    consumer
}

/// Adds consumers that read one message and then no more.
fn stopped(shell: &mut Shell, queue: QueueId, count: usize) -> Vec<ConsumerId> {
    let consumers: Vec<ConsumerId> = (0..count).map(|_| shell.subscribe(queue, 1)).collect();
    shell.run();
    for &consumer in &consumers {
        shell.stop_reading(consumer);
        let more = 1_000;
        shell.tell(Command::Credit { consumer, more });
    }
    shell.run();
    consumers
}

fn received(shell: &Shell, consumer: ConsumerId) -> usize {
    let of_consumer = |(to, _): &&(ConsumerId, _)| *to == consumer;
    shell.deliveries.iter().filter(of_consumer).count()
}

#[test]
fn a_consumer_that_does_not_read_gets_a_window_of_bytes_and_another_goes_on() {
    // Half of the messages are in memory, the others in the store only.
    let (mut shell, queue) = backlog(60);
    assert!(shell.stats(queue).stored_only > 20);
    let stuck = unread(&mut shell, queue);
    shell.run();
    assert_eq!(received(&shell, stuck), 1);
    let size = shell.unread[&stuck];
    shell.read(stuck, size);
    shell.run();
    let held = shell.unread[&stuck];
    assert!((WINDOW..WINDOW + size).contains(&held), "{held}");
    assert_eq!(shell.broker.in_transit(), held);
    let got = received(&shell, stuck);
    shell.read(stuck, size);
    shell.run();
    assert_eq!(received(&shell, stuck), got + 1, "one was taken");

    let reading = shell.subscribe(queue, 1_000);
    shell.run();
    assert_eq!(received(&shell, reading), 60 - got - 1);
    let ids: BTreeSet<MessageId> = shell.deliveries.iter().map(|(_, it)| it.message).collect();
    assert_eq!(ids.len(), 60, "each message was delivered once");
}

#[test]
fn small_messages_count_as_well() {
    let (mut shell, queue) = backlog(0);
    shell.enqueue_all(queue, vec![message("a", vec![0; 1_000]); 500]);
    let stuck = unread(&mut shell, queue);
    shell.run();
    let held = shell.unread[&stuck];
    assert!(
        (FIRST_WINDOW..FIRST_WINDOW + 2_000).contains(&held),
        "{held}"
    );
}

#[test]
fn unread_bytes_count_as_memory_until_they_are_taken_even_if_the_consumer_is_gone() {
    let (mut shell, queue) = backlog(1);
    let stuck = unread(&mut shell, queue);
    shell.run();
    let bare = shell.broker.memory_used() - shell.broker.in_transit();
    assert!(shell.unread[&stuck] > MIB && bare < MIB);
    shell.unsubscribe(stuck, Departure::Lost);
    assert_eq!(shell.broker.in_transit(), shell.unread[&stuck]);
    shell.read(stuck, shell.unread[&stuck]);
    assert_eq!(shell.broker.in_transit(), 0);
}

#[test]
fn consumers_that_never_read_hold_an_eighth_of_memory_and_those_that_read_go_on() {
    let (mut shell, queue) = backlog(200);
    let reading = shell.subscribe(queue, 1);
    shell.run();
    let stuck: Vec<ConsumerId> = (0..100).map(|_| unread(&mut shell, queue)).collect();
    shell.run();
    let held: usize = shell.unread.values().sum();
    assert!((7 * MIB..=9 * MIB).contains(&held), "{held}");
    assert_eq!(shell.broker.in_transit(), held);
    assert!(shell.broker.memory_used() <= 64 * MIB);
    assert!(shell.broker.is_crowded());

    shell.tell(Command::Credit {
        consumer: reading,
        more: 1_000,
    });
    shell.run();
    assert_eq!(received(&shell, reading), 200 - held / MIB);
    for consumer in stuck {
        shell.tell(Command::Drain { consumer });
        shell.read(consumer, shell.unread[&consumer]);
    }
    shell.run();
    assert_eq!(shell.broker.in_transit(), 0);
    assert!(!shell.broker.is_crowded());
}

#[test]
fn consumers_that_stop_reading_are_bounded_and_one_that_reads_goes_on_beside_them() {
    let (mut shell, queue) = backlog(200);
    stopped(&mut shell, queue, 20);
    let held: usize = shell.unread.values().sum();
    // Each has one message; together they have more than the pool of 16 MiB, so none gets a second one.
    assert!((20 * MIB..21 * MIB).contains(&held), "{held}");
    assert_eq!(shell.broker.in_transit(), held);
    assert!(shell.broker.is_crowded());

    let other = shell.create("other", fila_core::QueueSettings::default());
    shell.enqueue_all(other, vec![message("a", vec![0; MIB]); 30]);
    let quiet = shell.subscribe(other, 1_000);
    shell.run();
    assert_eq!(received(&shell, quiet), 30, "it reads, and goes on");
    assert_eq!(shell.broker.in_transit(), held);
}

#[test]
fn consumers_that_read_everything_and_stop_hold_three_eighths_of_memory_and_one_message() {
    let (mut shell, queue) = backlog(200);
    let stuck = stopped(&mut shell, queue, 60);
    let held: usize = shell.unread.values().sum();
    assert!((24 * MIB..=26 * MIB).contains(&held), "{held}");

    // A consumer of another queue waits for room, and is not forgotten.
    let other = shell.create("other", fila_core::QueueSettings::default());
    shell.enqueue(other, message("a", "small"));
    let quiet = shell.subscribe(other, 1);
    shell.run();
    let mut turns = 0;
    while received(&shell, quiet) == 0 {
        let full = stuck.iter().find(|it| shell.unread[it] > 0).unwrap();
        shell.read(*full, shell.unread[full]);
        shell.run();
        assert!(shell.broker.in_transit() <= 26 * MIB);
        turns += 1;
        assert!(turns <= 3, "queues take turns");
    }
}

#[test]
fn a_purge_and_a_closed_queue_leave_no_trace() {
    let (mut shell, queue) = backlog(60);
    let stuck: Vec<ConsumerId> = (0..20).map(|_| unread(&mut shell, queue)).collect();
    shell.run();
    shell.purge(queue);
    shell.run();
    shell.enqueue(queue, message("a", "after"));
    shell.delete(queue);
    for consumer in stuck {
        shell.read(consumer, shell.unread[&consumer]);
    }
    shell.run();
    assert_eq!(
        (shell.broker.memory_used(), shell.broker.in_transit()),
        (0, 0)
    );
}
