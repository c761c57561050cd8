//! Commits: together or not at all, kept once confirmed, and harmless when repeated.

use std::thread;

use bytes::Bytes;
use fila_store::{
    Batch, CommitError, DeduplicationId, Engine, FairnessKey, Loaded, Locator, MessageId, Meta,
    Payload, Rejected, RememberedName, Shard,
};

use crate::world::{Place, all, at, body, claim, id, ids, key, locator, meta, payload, put};

pub(crate) fn a_confirmed_message_is_there_after_reopening<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let message = id(&shard, 7);
    let mut known = Meta::new(key("tenant"), at(1));
    known.schedule.weight = 5.try_into().unwrap();
    known.schedule.group_weights.set(1, 6.try_into().unwrap());
    known.deliver_after = Some(at(2));
    known.expires_at = Some(at(3));
    known.attempts = 4;
    known.deduplication_id = Some(DeduplicationId::new("once").unwrap());
    let mut batch = Batch::new();
    batch.put(message, known.clone(), payload("body"));
    shard.commit(&batch).unwrap();
    drop((shard, engine));
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let entries = all(&shard, 10);
    known.sizes = payload("body").sizes();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].id, &entries[0].meta), (message, &known));
    let loaded = shard.load(&[entries[0].locator()]).unwrap();
    assert_eq!(loaded, [Loaded::Found(payload("body"))]);
}

pub(crate) fn a_commit_over_several_queues_is_one<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let mut batches = [Batch::new(), Batch::new()];
    for (shard, batch) in [&a, &b].into_iter().zip(&mut batches) {
        batch.put(id(shard, 1), meta("k"), payload("body"));
    }
    engine
        .commit(&[(&a, &batches[0]), (&b, &batches[1])])
        .unwrap();
    drop((a, b, engine));
    let engine = place.open();
    for queue in ["a", "b"] {
        assert_eq!(all(&claim(&engine, queue), 10).len(), 1);
    }
}

pub(crate) fn a_refused_commit_changes_nothing_anywhere<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let mut good = Batch::new();
    good.put(id(&a, 1), meta("k"), payload("body"));
    let mut bad = Batch::new();
    bad.put(id(&b, 1), meta("k"), payload("body"));
    bad.purge(fila_store::Generation::new(9));
    let refused = engine.commit(&[(&a, &good), (&b, &bad)]);
    let Err(CommitError::Rejected(Rejected::Generation { .. })) = refused else {
        panic!("{refused:?}");
    };
    let twice = engine.commit(&[(&a, &good), (&a, &good)]);
    let Err(CommitError::Rejected(Rejected::Twice(_))) = twice else {
        panic!("{twice:?}");
    };
    assert_eq!((all(&a, 10), all(&b, 10)), (vec![], vec![]));
}

pub(crate) fn an_update_leaves_the_payload_alone<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let message = put(&shard, "k", [1])[0];
    let mut known = all(&shard, 1).remove(0).meta;
    known.attempts = 3;
    known.deliver_after = Some(at(99));
    let mut batch = Batch::new();
    batch.update(message, known.clone());
    shard.commit(&batch).unwrap();
    drop((shard, engine));
    let engine = place.open();
    let shard = claim(&engine, "orders");
    assert_eq!(all(&shard, 10).remove(0).meta, known);
    assert_eq!(body(&shard, "k", message), Some(b"1".to_vec()));
}

pub(crate) fn a_repeated_commit_changes_nothing<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let old = put(&shard, "k", [1, 2]);
    let mut batch = Batch::new();
    batch.put(id(&shard, 3), meta("k"), payload("3"));
    batch.delete(locator("k", old[0]));
    batch.update(old[1], meta("k"));
    shard.commit(&batch).unwrap();
    let (after, kept) = (all(&shard, 10), [old[1], id(&shard, 3)]);
    shard.commit(&batch).unwrap();
    assert_eq!(all(&shard, 10), after);
    // As after a commit of unknown outcome: by the next owner.
    drop((shard, engine));
    let engine = place.open();
    let shard = claim(&engine, "orders");
    shard.commit(&batch).unwrap();
    assert_eq!(all(&shard, 10), after);
    // A row that was written twice is deleted once, and stays deleted.
    let mut batch = Batch::new();
    for message in kept {
        batch.delete(locator("k", message));
    }
    shard.commit(&batch).unwrap();
    assert_eq!(all(&shard, 10), []);
    assert_eq!(body(&shard, "k", kept[1]), None);
}

/// However much has been committed and flushed in between.
pub(crate) fn a_commit_that_is_repeated_late_is_still_deleted<P: Place>() {
    let place = P::new();
    for is_reopened in [false, true] {
        let engine = place.open();
        let shard = claim(&engine, "orders");
        let repeated = id(&shard, 1);
        let mut batch = Batch::new();
        batch.put(repeated, meta("k"), payload("twice"));
        shard.commit(&batch).unwrap();
        let other = claim(&engine, "others");
        for counter in 1..=8 {
            put_body(&other, counter, vec![7; 16 << 10]);
        }
        drop(other);
        let (engine, shard) = if is_reopened {
            drop((shard, engine));
            let engine = place.open();
            let shard = claim(&engine, "orders");
            (engine, shard)
        } else {
            (engine, shard)
        };
        shard.commit(&batch).unwrap();
        batch.clear();
        batch.delete(locator("k", repeated));
        shard.commit(&batch).unwrap();
        assert_eq!(body(&shard, "k", repeated), None);
        drop((shard, engine));
        let engine = place.open();
        let shard = claim(&engine, "orders");
        assert_eq!(all(&shard, 10), []);
        assert_eq!(body(&shard, "k", repeated), None);
    }
}

fn put_body(shard: &impl Shard, counter: u64, body: Vec<u8>) {
    let mut batch = Batch::new();
    batch.put(id(shard, counter), meta("k"), payload(body));
    shard.commit(&batch).unwrap();
}

pub(crate) fn deleting_what_is_not_there_is_fine<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let kept = put(&shard, "k", [1]);
    let mut batch = Batch::new();
    batch.delete(locator("k", id(&shard, 2)));
    batch.delete(locator("other", id(&shard, 3)));
    shard.commit(&batch).unwrap();
    assert_eq!(ids(&shard), kept);
}

pub(crate) fn a_put_and_a_delete_in_one_batch_leave_nothing<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let message = id(&shard, 1);
    let mut batch = Batch::new();
    batch.put(message, meta("k"), payload("body"));
    batch.delete(locator("k", message));
    shard.commit(&batch).unwrap();
    assert_eq!(all(&shard, 10), []);
    assert_eq!(body(&shard, "k", message), None);
}

pub(crate) fn a_commit_beyond_the_limits_is_refused<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let body = Bytes::from(vec![0; Payload::BODY_MAX]);
    let mut batch = Batch::new();
    for counter in 0..=Batch::BYTES_MAX / Payload::BODY_MAX {
        // One buffer, counted five times.
        let large = Payload::new(Vec::new(), body.clone()).unwrap();
        batch.put(id(&shard, counter as u64), meta("k"), large);
    }
    let refused = shard.commit(&batch);
    let Err(CommitError::Rejected(Rejected::TooLarge { operations: 5, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(all(&shard, 10), []);
}

pub(crate) fn a_shard_of_another_engine_is_refused<P: Place>() {
    let (one, two) = (P::new(), P::new());
    let (one, two) = (one.open(), two.open());
    let shard = claim(&one, "orders");
    let refused = two.commit(&[(&shard, &Batch::new())]);
    let Err(CommitError::Rejected(Rejected::Foreign(_))) = refused else {
        panic!("{refused:?}");
    };
}

pub(crate) fn the_largest_words_fit<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let name = fila_store::QueueName::parse(&"q".repeat(255)).unwrap();
    let queue = engine.create_queue(&name, "".into()).unwrap();
    let shard = engine.claim(queue.id).unwrap();
    // Nothing but zeros, which take two bytes each.
    let zeros = FairnessKey::new(vec![0; FairnessKey::MAX]).unwrap();
    let once = DeduplicationId::new(vec![0xff; DeduplicationId::MAX]).unwrap();
    let name = RememberedName::new(vec![0xff; RememberedName::MAX]).unwrap();
    let mut known = Meta::new(zeros.clone(), at(u64::MAX));
    known.deduplication_id = Some(once);
    let headers = vec![("n".repeat(1 << 10), "v".repeat(1 << 18)); 3];
    let carried = Payload::new(headers, vec![7; 1 << 20]).unwrap();
    let message = id(&shard, MessageId::COUNTER_MAX);
    let mut batch = Batch::new();
    batch.put(message, known, carried.clone());
    batch.remember(name.clone(), message, at(u64::MAX));
    shard.commit(&batch).unwrap();
    let place = Locator {
        fairness_key: zeros,
        id: message,
    };
    assert_eq!(all(&shard, 10)[0].locator(), place);
    assert_eq!(shard.load(&[place]).unwrap(), [Loaded::Found(carried)]);
    assert_eq!(shard.deduplicated(&name, at(1)).unwrap(), Some(message));
}

pub(crate) fn an_empty_commit_is_confirmed<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    engine.commit(&[]).unwrap();
    shard.commit(&Batch::new()).unwrap();
}

pub(crate) fn commits_of_many_threads_are_all_there<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shards: Vec<_> = ["a", "b", "c", "d"]
        .map(|queue| claim(&engine, queue))
        .into();
    thread::scope(|scope| {
        for shard in &shards {
            scope.spawn(|| {
                for counter in 0..50 {
                    put(shard, "k", [counter]);
                }
            });
        }
    });
    for shard in &shards {
        let expected: Vec<_> = (0..50).map(|counter| id(shard, counter)).collect();
        assert_eq!(ids(shard), expected);
    }
}
