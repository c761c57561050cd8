//! Moving a message from one queue to another: it is in one of them at any time, and what it carries goes with it.

use std::sync::Arc;

use fila_store::{
    Batch, Death, DeathReason, Engine, EngineError, ErrorText, Generation, History, Limit, Loaded,
    MessageId, Meta, Origin, Shard, StoredMessage,
};

use crate::world::{
    Place, ShardOf, all, at, body, claim, id, ids, key, locator, meta, name, payload, put, sweep,
};

/// Returns the two batches that move a message, to be committed together.
fn moving<P: Place>(
    (from, message): (&ShardOf<P>, MessageId),
    (to, new): (&ShardOf<P>, MessageId),
    known: Meta,
) -> (Batch, Batch) {
    let (mut leaving, mut coming) = (Batch::new(), Batch::new());
    let locator = locator("k", message);
    leaving.delete(locator.clone());
    let origin = Origin {
        queue: from.queue(),
        generation: from.generation(),
        locator,
    };
    assert!(to.queue() != from.queue());
    coming.adopt(new, known, origin);
    (leaving, coming)
}

fn history() -> History {
    History {
        last_error: ErrorText::new("no route to host"),
        first_failed_at: at(5),
        last_failed_at: at(7),
        death: Some(Death {
            reason: DeathReason::AttemptsExhausted,
            queue: name("orders"),
            message: MessageId::from_number(1 << 40 | 3),
            attempts: 10,
            died_at: at(7),
            enqueued_at: at(1),
        }),
    }
}

pub(crate) fn a_moved_message_is_in_the_other_queue_with_all_it_carries<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "orders"), claim(&engine, "orders.dlq"));
    let message = put(&a, "k", [1])[0];
    let mut known = all(&a, 1).remove(0).meta;
    // Under another fairness key, even.
    known.schedule.fairness_key = key("other");
    known.history = Some(Arc::new(history()));
    let new = id(&b, 9);
    let (leaving, coming) = moving::<P>((&a, message), (&b, new), known.clone());
    engine.commit(&[(&a, &leaving), (&b, &coming)]).unwrap();
    drop((a, b, engine));
    let engine = place.open();
    let (a, b) = (claim(&engine, "orders"), claim(&engine, "orders.dlq"));
    assert_eq!(all(&a, 10), []);
    assert_eq!(body(&a, "k", message), None);
    let moved = all(&b, 10).remove(0);
    assert_eq!((moved.id, &moved.meta), (new, &known));
    let loaded = b.load(&[moved.locator()]).unwrap();
    assert_eq!(loaded, [Loaded::Found(payload("1"))]);
    let limit = Limit {
        messages: 10,
        bytes: 1000,
    };
    let page = b.backlog(&key("other"), None, limit).unwrap();
    assert_eq!((page.items.len(), page.damaged), (1, vec![]));
}

pub(crate) fn a_repeated_move_keeps_what_was_moved<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let message = put(&a, "k", [1])[0];
    let known = all(&a, 1).remove(0).meta;
    let (leaving, coming) = moving::<P>((&a, message), (&b, id(&b, 1)), known);
    let new = id(&b, 1);
    for _ in 0..2 {
        engine.commit(&[(&a, &leaving), (&b, &coming)]).unwrap();
        assert_eq!((ids(&a), ids(&b)), (vec![], vec![new]));
        assert_eq!(body(&b, "k", new), Some(b"1".to_vec()));
    }
    // As after a commit of unknown outcome: by the next owner.
    drop((a, b, engine));
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    engine.commit(&[(&a, &leaving), (&b, &coming)]).unwrap();
    assert_eq!((ids(&a), ids(&b)), (vec![], vec![new]));
    assert_eq!(body(&b, "k", new), Some(b"1".to_vec()));
}

pub(crate) fn a_message_whose_payload_is_gone_moves_and_is_reported<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let (never, new) = (id(&a, 7), id(&b, 1));
    let (leaving, coming) = moving::<P>((&a, never), (&b, new), meta("k"));
    engine.commit(&[(&a, &leaving), (&b, &coming)]).unwrap();
    assert_eq!(ids(&b), [new]);
    let loaded = b.load(&[locator("k", new)]).unwrap();
    assert_eq!(loaded, [Loaded::Missing]);
    let limit = Limit {
        messages: 10,
        bytes: 1000,
    };
    let page = b.backlog(&key("k"), None, limit).unwrap();
    assert_eq!((page.items.len(), page.damaged.len()), (0, 1));
    assert_eq!(page.damaged[0].message, Some(locator("k", new)));
}

pub(crate) fn a_message_moves_out_of_a_queue_that_is_purged_in_the_same_commit<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let message = put(&a, "k", [1, 2])[0];
    let known = all(&a, 1).remove(0).meta;
    let (_, coming) = moving::<P>((&a, message), (&b, id(&b, 1)), known);
    let mut purge = Batch::new();
    purge.purge(Generation::new(1));
    for _ in 0..2 {
        engine.commit(&[(&a, &purge), (&b, &coming)]).unwrap();
        assert_eq!((ids(&a), ids(&b)), (vec![], vec![id(&b, 1)]));
        assert_eq!(body(&b, "k", id(&b, 1)), Some(b"1".to_vec()));
        sweep(&engine, at(1));
    }
}

pub(crate) fn a_move_that_is_refused_moves_nothing<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let message = put(&a, "k", [1])[0];
    let known = all(&a, 1).remove(0).meta;
    let (leaving, coming) = moving::<P>((&a, message), (&b, id(&b, 1)), known.clone());
    let _other_owner = claim(&engine, "b");
    let fenced = engine.commit(&[(&a, &leaving), (&b, &coming)]);
    assert!(fenced.is_err());
    assert_eq!(ids(&a), [message]);
    assert_eq!(body(&a, "k", message), Some(b"1".to_vec()));
    // Its payload counts, wherever it is stored.
    let mut large = known;
    large.sizes.body = u32::MAX;
    let mut batch = Batch::new();
    let origin = Origin {
        queue: b.queue(),
        generation: b.generation(),
        locator: locator("k", id(&b, 1)),
    };
    batch.adopt(id(&a, 2), large, origin);
    assert!(a.commit(&batch).is_err());
    assert_eq!(ids(&a), [message]);
}

pub(crate) fn an_adopted_message_is_updated_and_deleted_like_any_other<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let message = put(&a, "k", [1])[0];
    let known = all(&a, 1).remove(0).meta;
    let new = id(&b, 1);
    let (leaving, mut coming) = moving::<P>((&a, message), (&b, new), known.clone());
    let mut tried = known.clone();
    tried.attempts = 4;
    coming.update(new, tried.clone());
    engine.commit(&[(&a, &leaving), (&b, &coming)]).unwrap();
    assert_eq!(all(&b, 10).remove(0).meta, tried);
    assert_eq!(body(&b, "k", new), Some(b"1".to_vec()));
    let taken: Vec<_> = coming.take_puts().collect();
    assert_eq!(
        taken,
        [StoredMessage {
            id: new,
            meta: tried,
            payload: None
        }]
    );
    let mut batch = Batch::new();
    batch.delete(locator("k", new));
    b.commit(&batch).unwrap();
    assert_eq!((ids(&b), body(&b, "k", new)), (vec![], None));
}

pub(crate) fn queues_are_deleted_together_or_not_at_all<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    put(&a, "k", [1]);
    let gone = claim(&engine, "gone");
    engine.delete_queue(gone.queue()).unwrap();
    let refused = engine.delete_queues(&[a.queue(), gone.queue()]);
    let Err(EngineError::UnknownQueue(unknown)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(unknown, gone.queue());
    assert_eq!(ids(&a).len(), 1);
    // Naming one twice is no more than naming it once.
    let both = [a.queue(), b.queue(), a.queue()];
    engine.delete_queues(&both).unwrap();
    assert_eq!(engine.queues().unwrap(), []);
    for shard in [&a, &b] {
        assert!(shard.commit(&Batch::new()).is_err(), "it has no owner");
    }
}
