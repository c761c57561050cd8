//! Fairness keys as paths: what a queue takes, and what it keeps from before.

use fila_core::{EnqueueError, Enqueued, KeyPathError, KeySeparator, NewMessage, QueueSettings};
use fila_store::{DeduplicationId, FairnessKey, Payload};

use crate::support::{Shell, key, message};

fn separated(by: Option<char>) -> QueueSettings {
    QueueSettings {
        key_separator: by.map(|by| KeySeparator::new(by).unwrap()),
        ..QueueSettings::default()
    }
}

fn of(bytes: &[u8]) -> NewMessage {
    let key = FairnessKey::new(bytes.to_vec()).unwrap();
    NewMessage::new(key, Payload::new(Vec::new(), "").unwrap())
}

fn once(name: &str) -> NewMessage {
    let mut message = message(name, "");
    message.deduplication_id = Some(DeduplicationId::new("once").unwrap());
    message
}

#[test]
fn a_message_whose_key_is_no_path_is_refused_and_says_why() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let separator = KeySeparator::default();
    let empty = |part| EnqueueError::InvalidPath(KeyPathError::EmptyPart { part, separator });
    let deep = |parts| EnqueueError::InvalidPath(KeyPathError::TooDeep { parts, separator });
    let slashes = [b'/'; 256];
    for (bad, error) in [
        (&b"/"[..], empty(1)),
        (b"/acme", empty(1)),
        (b"acme/", empty(2)),
        (b"acme//alice", empty(2)),
        (b"\xff/\x00//", empty(3)),
        (b"a/b/c/d/e", deep(5)),
        (&slashes, empty(1)),
    ] {
        let refused = shell.enqueue_all(queue, vec![of(bad)]);
        assert_eq!(refused, [Err(error)], "{bad:?}");
    }
    assert_eq!(shell.stats(queue).totals.refused, 7);
    for good in [&b""[..], b"acme", b"a/b/c/d", b"\xff/\x00", b"a:b", b" / "] {
        shell.enqueue(queue, of(good));
    }
    assert_eq!(shell.stats(queue).active_keys, 6);
}

#[test]
fn without_a_separator_every_key_is_one_name() {
    let (mut shell, queue) = Shell::with_queue(separated(None));
    for any in ["/", "a//b", "a/b/c/d/e", "a/"] {
        shell.enqueue(queue, message(any, ""));
    }
    shell.update(queue, separated(Some(':')));
    shell.enqueue(queue, message("a//b", ""));
    let refused = shell.enqueue_all(queue, vec![message("a:", "")]);
    assert!(matches!(refused[0], Err(EnqueueError::InvalidPath(_))));
}

#[test]
fn keys_from_before_a_change_of_the_separator_keep_their_messages() {
    let (mut shell, queue) = Shell::with_queue(separated(None));
    let stored = shell.enqueue_all(queue, vec![once("a//b")]);
    let Ok(Enqueued::Stored(id)) = stored[0] else {
        panic!("{stored:?}")
    };
    shell.update(queue, separated(Some('/')));
    let refused = shell.enqueue_all(queue, vec![message("a//b", "")]);
    assert!(matches!(refused[0], Err(EnqueueError::InvalidPath(_))));
    // It was sent again because its answer was lost, and it is there.
    let again = shell.enqueue_all(queue, vec![once("a//b")]);
    assert_eq!(again, [Ok(Enqueued::Duplicate(id))]);
    let consumer = shell.subscribe(queue, 10);
    shell.run();
    let delivered = shell.next(consumer).unwrap();
    assert_eq!(delivered.fairness_key, key("a//b"));
}
