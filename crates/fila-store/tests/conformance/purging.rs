//! Purges and deletions: done at once, cleared away later.

use fila_store::{Batch, CommitError, Engine, Generation, Limit, Rejected, Shard};

use crate::world::{
    Place, all, at, body, claim, id, ids, key, locator, meta, name, once, payload, put, sweep,
};

fn purge(shard: &impl Shard) -> Batch {
    let mut batch = Batch::new();
    batch.purge(shard.generation().next().unwrap());
    batch
}

pub(crate) fn a_purged_queue_is_empty_at_once_and_after_reopening<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let messages = put(&shard, "k", 0..10);
    let cursor = shard
        .scan(&fila_store::Cursor::start(), 5)
        .unwrap()
        .next
        .unwrap();
    shard.commit(&purge(&shard)).unwrap();
    assert_eq!(shard.generation(), Generation::new(1));
    assert_eq!(all(&shard, 10), []);
    assert_eq!(shard.scan(&cursor, 10).unwrap().items, []);
    assert_eq!(body(&shard, "k", messages[0]), None);
    let limit = Limit {
        messages: 9,
        bytes: 9,
    };
    let backlog = shard.backlog(&key("k"), None, limit).unwrap();
    assert_eq!(backlog.items, []);
    drop((shard, engine));
    let engine = place.open();
    let shard = claim(&engine, "orders");
    assert_eq!(shard.generation(), Generation::new(1));
    assert_eq!(all(&shard, 10), []);
}

pub(crate) fn a_purge_comes_before_the_puts_of_its_batch<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    put(&shard, "k", 0..3);
    let mut batch = Batch::new();
    batch.put(id(&shard, 9), meta("k"), payload("new"));
    batch.purge(Generation::new(1));
    shard.commit(&batch).unwrap();
    assert_eq!(ids(&shard), [id(&shard, 9)]);
    assert_eq!(body(&shard, "k", id(&shard, 9)), Some(b"new".to_vec()));
}

pub(crate) fn a_repeated_purge_purges_once<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    put(&shard, "k", 0..3);
    let mut batch = purge(&shard);
    batch.put(id(&shard, 9), meta("k"), payload("new"));
    shard.commit(&batch).unwrap();
    shard.commit(&batch).unwrap();
    assert_eq!(shard.generation(), Generation::new(1));
    assert_eq!(ids(&shard), [id(&shard, 9)]);
}

pub(crate) fn a_purge_to_another_generation_than_the_next_is_refused<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let kept = put(&shard, "k", 0..3);
    let mut batch = Batch::new();
    batch.purge(Generation::new(2));
    let refused = shard.commit(&batch);
    let Err(CommitError::Rejected(Rejected::Generation { to, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(to, Generation::new(2));
    assert_eq!(ids(&shard), kept);
}

pub(crate) fn a_queue_created_anew_has_nothing_of_the_old_one<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let message = put(&shard, "k", [1])[0];
    let mut batch = Batch::new();
    batch.remember(once("d"), message, at(100));
    shard.commit(&batch).unwrap();
    engine.delete_queue(shard.queue()).unwrap();
    let empty = |engine: &P::Engine| {
        let shard = claim(engine, "orders");
        assert_eq!(all(&shard, 10), []);
        assert_eq!(body(&shard, "k", message), None);
        assert_eq!(shard.deduplicated(&once("d"), at(1)).unwrap(), None);
    };
    empty(&engine);
    drop((shard, engine));
    let engine = place.open();
    empty(&engine);
    sweep(&engine, at(1));
    empty(&engine);
}

pub(crate) fn a_sweep_removes_leftovers_within_its_budget<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    put(&shard, "k", 0..20);
    shard.commit(&purge(&shard)).unwrap();
    put(&shard, "k", 20..30);
    shard.commit(&purge(&shard)).unwrap();
    let gone = claim(&engine, "gone");
    put(&gone, "k", 0..5);
    engine.delete_queue(gone.queue()).unwrap();
    assert_eq!(engine.health().unwrap().leftovers, 3);
    let mut rows = 0;
    loop {
        let swept = engine.sweep(at(1), 7).unwrap();
        assert!(swept.rows <= 7);
        rows += swept.rows;
        if !swept.more {
            break;
        }
    }
    // A message has two rows, a leftover has one.
    assert_eq!(rows, 35 * 2 + 3);
    assert_eq!(engine.health().unwrap().leftovers, 0);
    assert_eq!(engine.sweep(at(1), 7).unwrap().rows, 0);
}

pub(crate) fn a_sweep_goes_on_after_reopening<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    put(&shard, "k", 0..20);
    shard.commit(&purge(&shard)).unwrap();
    assert_eq!(engine.sweep(at(1), 10).unwrap().rows, 10);
    drop((shard, engine));
    let engine = place.open();
    assert_eq!(engine.health().unwrap().leftovers, 1);
    assert_eq!(sweep(&engine, at(1)), 20 * 2 - 10 + 1);
    assert_eq!(engine.health().unwrap().leftovers, 0);
}

pub(crate) fn a_sweep_touches_nothing_that_lives<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let neighbours = ["a", "m", "z"].map(|queue| claim(&engine, queue));
    for shard in &neighbours {
        let message = put(shard, "k", 0..10)[0];
        let mut batch = Batch::new();
        batch.remember(once("d"), message, at(100));
        shard.commit(&batch).unwrap();
    }
    let [before, purged, after] = &neighbours;
    let mut batch = purge(purged);
    let fresh = id(purged, 99);
    batch.put(fresh, meta("k"), payload("fresh"));
    batch.remember(once("e"), fresh, at(100));
    purged.commit(&batch).unwrap();
    sweep(&engine, at(50));
    assert_eq!((ids(before).len(), ids(after).len()), (10, 10));
    for shard in [before, after] {
        let first = Some(id(shard, 0));
        assert_eq!(shard.deduplicated(&once("d"), at(50)).unwrap(), first);
        assert_eq!(body(shard, "k", id(shard, 3)), Some(b"3".to_vec()));
    }
    assert_eq!(ids(purged), [fresh]);
    assert_eq!(purged.deduplicated(&once("d"), at(50)).unwrap(), None);
    assert_eq!(
        purged.deduplicated(&once("e"), at(50)).unwrap(),
        Some(fresh)
    );
    assert_eq!(engine.queues().unwrap().len(), 3);
    assert!(engine.queue(&name("m")).unwrap().is_some());
    let mut batch = Batch::new();
    batch.delete(locator("k", fresh));
    purged.commit(&batch).unwrap();
    assert_eq!(ids(purged), []);
}
