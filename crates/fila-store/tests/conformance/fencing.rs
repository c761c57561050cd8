//! One owner at a time, and the last to claim is the one.

use fila_store::{Batch, CommitError, Cursor, Engine, ReadError, Shard};

use crate::world::{Place, claim, id, ids, meta, payload, put};

pub(crate) fn an_epoch_grows_by_one_per_opening<P: Place>() {
    let place = P::new();
    for epoch in 1..=3 {
        let engine = place.open();
        assert_eq!(claim(&engine, "a").epoch().get(), epoch);
        assert_eq!(claim(&engine, "b").epoch().get(), epoch);
    }
}

pub(crate) fn a_new_owner_fences_the_old_one<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let old = claim(&engine, "orders");
    let kept = put(&old, "k", [1]);
    let new = claim(&engine, "orders");
    assert!(new.epoch() > old.epoch());
    let mut batch = Batch::new();
    batch.put(id(&old, 2), meta("k"), payload("late"));
    let refused = old.commit(&batch);
    assert!(matches!(refused, Err(CommitError::Fenced { queue }) if queue == old.queue()));
    let refused = old.scan(&Cursor::start(), 1);
    assert!(matches!(refused, Err(ReadError::Fenced { queue }) if queue == old.queue()));
    assert_eq!(ids(&new), kept);
    put(&new, "k", [1]);
    let last = new.epoch();
    drop((old, new, engine));
    // The epochs of claims are not given again either.
    assert!(claim(&place.open(), "orders").epoch() > last);
}

pub(crate) fn a_fenced_queue_keeps_the_others_from_being_committed<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (ours, theirs) = (claim(&engine, "ours"), claim(&engine, "theirs"));
    let _owner = claim(&engine, "theirs");
    let mut batch = Batch::new();
    batch.put(id(&ours, 1), meta("k"), payload("body"));
    let refused = engine.commit(&[(&ours, &batch), (&theirs, &batch)]);
    assert!(matches!(refused, Err(CommitError::Fenced { queue }) if queue == theirs.queue()));
    assert_eq!(ids(&ours), []);
    engine.commit(&[(&ours, &batch)]).unwrap();
    assert_eq!(ids(&ours).len(), 1);
}

pub(crate) fn a_deleted_queue_takes_and_gives_nothing<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    put(&shard, "k", [1]);
    engine.delete_queue(shard.queue()).unwrap();
    let refused = shard.commit(&Batch::new());
    assert!(matches!(refused, Err(CommitError::Fenced { .. })));
    let refused = shard.scan(&Cursor::start(), 1);
    assert!(matches!(refused, Err(ReadError::Fenced { .. })));
}
