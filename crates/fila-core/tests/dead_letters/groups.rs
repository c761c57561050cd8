//! Messages of groups that die, come back, and outlive the broker: the path and the share of the group stay.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use fila_core::{
    Departure, GroupStats, KeyCursor, NewMessage, QueueSettings, RedriveStamp, Verdict,
};
use fila_store::{FairnessKey, QueueId};

use crate::redriving::redrive;
use crate::support::{Shell, key, message};
use crate::{entries, fail_next, pair, trying};

/// Returns a message for which a hook has named the weight of its top group.
fn of_group(name: &str, weight: u32) -> NewMessage {
    let mut message = message(name, "");
    let weight = NonZeroU32::new(weight).unwrap();
    message.schedule.group_weights.set(0, weight);
    message
}

fn groups(shell: &mut Shell, queue: QueueId) -> BTreeMap<FairnessKey, GroupStats> {
    let (now, start) = (shell.now, KeyCursor::start());
    let (groups, _) = shell.broker.groups(now, queue, start, usize::MAX).unwrap();
    let named = groups.into_iter().map(|group| (group.path.clone(), group));
    named.collect()
}

/// Delivers this many messages, gives them back, and returns how many of them were in the group `acme`.
fn share_of_acme(shell: &mut Shell, queue: QueueId, messages: u32) -> usize {
    let consumer = shell.subscribe(queue, messages);
    shell.run();
    let mut of_acme = 0;
    for (_, delivery) in std::mem::take(&mut shell.deliveries) {
        of_acme += usize::from(delivery.fairness_key.as_bytes().starts_with(b"acme/"));
        shell
            .settle(queue, delivery.lease, Verdict::Release)
            .unwrap();
    }
    shell.unsubscribe(consumer, Departure::Closed);
    shell.run();
    of_acme
}

#[track_caller]
fn assert_near(found: usize, expected: usize) {
    let error = found.abs_diff(expected);
    assert!(error <= 2, "{found} in place of {expected}");
}

#[test]
fn a_message_that_dies_is_redriven_and_survives_restarts_keeps_its_path_and_the_share_of_its_group()
{
    let (mut shell, queue, letters) = pair(trying(1));
    for name in ["acme/alice", "acme/bob", "acme/team/carol"] {
        shell.enqueue_all(queue, vec![of_group(name, 3); 20]);
    }
    shell.enqueue_all(queue, vec![message("globex", ""); 60]);
    for _ in 0..120 {
        fail_next(&mut shell, queue);
    }
    assert!(groups(&mut shell, queue).is_empty());
    let check = |shell: &mut Shell, queue| {
        for _ in 0..2 {
            let found = groups(shell, queue);
            let paths: Vec<&FairnessKey> = found.keys().collect();
            assert_eq!(paths, [&key("acme"), &key("acme/team")]);
            let acme = &found[&key("acme")];
            assert_eq!((acme.ready, acme.active_keys, acme.weight), (60, 3, 3));
            assert_near(share_of_acme(shell, queue, 40), 30);
            shell.restart();
        }
    };
    // As dead letters, and again in their queue.
    check(&mut shell, letters);
    let ways = (letters, queue);
    let (_, stamp) = redrive(&mut shell, ways, RedriveStamp::default(), vec![]);
    let dead = entries(&shell, letters);
    let (results, _) = redrive(&mut shell, ways, stamp, dead);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(groups(&mut shell, letters).is_empty());
    check(&mut shell, queue);
    let paths = entries(&shell, queue);
    let of_alice = paths
        .iter()
        .filter(|it| it.meta.schedule.fairness_key == key("acme/alice"));
    assert_eq!(of_alice.count(), 20);
}

#[test]
fn the_dead_letters_of_one_group_do_not_shut_out_those_of_others() {
    let (mut shell, queue, letters) = pair(trying(1));
    let mut small = QueueSettings::default();
    small.depth_max = Some(8);
    shell.update(letters, small);
    let greedy = (0..8).map(|n| message(&format!("greedy/{n}"), ""));
    shell.enqueue_all(queue, greedy.collect());
    for _ in 0..8 {
        fail_next(&mut shell, queue);
    }
    // Six are the part of the group, as of a key. The others stay where they are.
    assert_eq!(shell.stats(letters).depth(), 6);
    let stats = shell.stats(queue);
    assert_eq!((stats.depth(), stats.totals.dead_letters_refused), (2, 2));
    shell.enqueue(queue, message("quiet/0", ""));
    fail_next(&mut shell, queue);
    assert_eq!(shell.stats(letters).depth(), 7);
    assert_eq!(shell.stats(queue).depth(), 2);
}
