//! Messages that are sent twice are stored once.

use std::time::Duration;

use fila_core::Enqueued;
use fila_store::DeduplicationId;

use crate::support::{message, queue};

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
