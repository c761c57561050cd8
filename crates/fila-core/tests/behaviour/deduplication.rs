//! Messages that are sent twice are stored once.

use std::time::Duration;

use fila_core::{DeduplicationScope, Enqueued, QueueSettings};
use fila_store::{DeduplicationId, MessageId, QueueId};

use crate::support::{Shell, message, queue};

/// Sends `invoice-17` under a key, and returns whether it was stored, and the id.
fn send_invoice(shell: &mut Shell, queue: QueueId, key: &str) -> (bool, MessageId) {
    let mut invoice = message(key, "");
    invoice.deduplication_id = Some(DeduplicationId::new("invoice-17").unwrap());
    match shell.enqueue_all(queue, vec![invoice])[..] {
        [Ok(Enqueued::Stored(id))] => (true, id),
        [Ok(Enqueued::Duplicate(id))] => (false, id),
        ref refused => panic!("{refused:?}"),
    }
}

#[test]
fn an_id_counts_for_its_key_alone_also_after_a_restart() {
    let (mut shell, queue) = queue();
    let (is_stored, of_mallory) = send_invoice(&mut shell, queue, "mallory");
    assert!(is_stored);
    let (is_stored, of_acme) = send_invoice(&mut shell, queue, "acme");
    assert!(is_stored && of_acme != of_mallory);
    for _ in 0..2 {
        let again = ["acme", "mallory"].map(|key| send_invoice(&mut shell, queue, key));
        assert_eq!(again, [(false, of_acme), (false, of_mallory)]);
        shell.restart();
    }
}

#[test]
fn an_id_counts_for_the_whole_queue_if_the_queue_says_so() {
    let mut definition = QueueSettings::default();
    definition.deduplication_scope = DeduplicationScope::Queue;
    let (mut shell, queue) = Shell::with_queue(definition);
    let (_, first) = send_invoice(&mut shell, queue, "acme");
    for _ in 0..2 {
        assert_eq!(send_invoice(&mut shell, queue, "globex"), (false, first));
        shell.restart();
    }
}

#[test]
fn an_id_counts_for_the_whole_path_of_its_key_and_not_for_the_group() {
    let (mut shell, queue) = queue();
    let paths = ["acme/alice", "acme/bob", "acme", "globex/alice"];
    let stored = paths.map(|path| send_invoice(&mut shell, queue, path));
    assert!(stored.iter().all(|(is_stored, _)| *is_stored), "{stored:?}");
    for _ in 0..2 {
        let again = paths.map(|path| send_invoice(&mut shell, queue, path));
        assert_eq!(again, stored.map(|(_, id)| (false, id)));
        shell.restart();
    }
    // Another separator changes nothing for the ids.
    let mut definition = QueueSettings::default();
    definition.key_separator = None;
    shell.update(queue, definition);
    let again = paths.map(|path| send_invoice(&mut shell, queue, path));
    assert_eq!(again, stored.map(|(_, id)| (false, id)));
}

#[test]
fn an_id_that_counts_for_the_queue_counts_for_all_paths() {
    let mut definition = QueueSettings::default();
    definition.deduplication_scope = DeduplicationScope::Queue;
    let (mut shell, queue) = Shell::with_queue(definition);
    let (_, first) = send_invoice(&mut shell, queue, "acme/alice");
    for path in ["acme/bob", "acme", "globex"] {
        assert_eq!(send_invoice(&mut shell, queue, path), (false, first));
    }
}

#[test]
fn a_change_of_the_scope_counts_for_what_is_sent_after_it() {
    let set = |shell: &mut Shell, queue, scope| {
        let mut definition = QueueSettings::default();
        definition.deduplication_scope = scope;
        shell.update(queue, definition);
    };
    // From the queue to the key: the id of another key suppresses nothing any more, and its message stays secret.
    for is_restarted in [false, true] {
        let mut definition = QueueSettings::default();
        definition.deduplication_scope = DeduplicationScope::Queue;
        let (mut shell, queue) = Shell::with_queue(definition);
        let (_, of_acme) = send_invoice(&mut shell, queue, "acme");
        if is_restarted {
            shell.restart();
        }
        set(&mut shell, queue, DeduplicationScope::Key);
        let (is_stored, of_globex) = send_invoice(&mut shell, queue, "globex");
        assert!(is_stored && of_globex != of_acme);
        assert_eq!(send_invoice(&mut shell, queue, "acme"), (false, of_acme));
    }
    // From the key to the queue: ids that were sent before go on to count for their keys.
    let (mut shell, queue) = queue();
    let (_, of_acme) = send_invoice(&mut shell, queue, "acme");
    set(&mut shell, queue, DeduplicationScope::Queue);
    assert_eq!(send_invoice(&mut shell, queue, "acme"), (false, of_acme));
    let (is_stored, of_globex) = send_invoice(&mut shell, queue, "globex");
    assert!(is_stored);
    let initech = send_invoice(&mut shell, queue, "initech");
    assert_eq!(initech, (false, of_globex), "that one was sent after");
}

#[test]
fn a_duplicate_gets_the_id_of_the_first_also_before_that_is_durable() {
    let (mut shell, queue) = queue();
    let mut once = message("a", "once");
    once.deduplication_id = Some(DeduplicationId::new("d").unwrap());
    let results = shell.enqueue_all(queue, vec![once.clone(), once.clone()]);
    let [Ok(Enqueued::Stored(first)), Ok(Enqueued::Duplicate(second))] = results[..] else {
        panic!("{results:?}");
    };
    assert_eq!(first, second);
    shell.restart();
    let again = shell.enqueue_all(queue, vec![once.clone()]);
    assert_eq!(again, [Ok(Enqueued::Duplicate(first))]);
    shell.advance(Duration::from_secs(300));
    let anew = shell.enqueue_all(queue, vec![once]);
    assert!(matches!(anew[..], [Ok(Enqueued::Stored(id))] if id > first));
}

#[test]
fn a_duplicate_is_not_confirmed_before_the_first_is_durable() {
    let (mut shell, queue) = queue();
    let mut once = message("a", "once");
    once.deduplication_id = Some(DeduplicationId::new("d").unwrap());
    for _ in 0..2 {
        shell.send(queue, vec![once.clone()]);
    }
    shell.seal();
    assert!(shell.answers.is_empty(), "a crash now loses both");
    shell.commit();
    assert_eq!(shell.answers.len(), 2);
}
