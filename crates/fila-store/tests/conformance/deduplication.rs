//! Deduplication ids: remembered until they expire, by the clock that is passed in.

use fila_store::{Batch, Remembered, Shard};

use crate::world::{Place, at, claim, id, once, sweep};

fn remember(shard: &impl Shard, name: &str, counter: u64, expires_at: u64) {
    let mut batch = Batch::new();
    batch.remember(once(name), id(shard, counter), at(expires_at));
    shard.commit(&batch).unwrap();
}

pub(crate) fn an_id_is_remembered_until_it_expires<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let message = id(&shard, 1);
    remember(&shard, "d", 1, 100);
    let lookup = |shard: &<P::Engine as fila_store::Engine>::Shard, name, now| {
        shard.deduplicated(&once(name), at(now)).unwrap()
    };
    assert_eq!(lookup(&shard, "d", 99), Some(message));
    assert_eq!(lookup(&shard, "d", 100), None);
    assert_eq!(lookup(&shard, "other", 1), None);
    drop((shard, engine));
    let engine = place.open();
    assert_eq!(lookup(&claim(&engine, "orders"), "d", 99), Some(message));
}

pub(crate) fn remembered_ids_are_listed_in_pages<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    remember(&claim(&engine, "other"), "z", 1, 1);
    let mut expected = Vec::new();
    for (counter, name) in ["a", "b", "b\0", "c", "d"].into_iter().enumerate() {
        remember(&shard, name, counter as u64, 100);
        expected.push(Remembered {
            name: once(name),
            id: id(&shard, counter as u64),
            expires_at: at(100),
        });
    }
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = shard.remembered(after.as_ref(), 2).unwrap();
        assert_eq!(page.damaged, []);
        found.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
}

pub(crate) fn a_sweep_removes_what_has_expired_and_nothing_else<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    for counter in 0..10 {
        remember(&shard, &counter.to_string(), counter, 100 + counter);
    }
    // Two rows for each of those that expire at 100 to 104.
    assert_eq!(sweep(&engine, at(104)), 10);
    let left = shard.remembered(None, 100).unwrap().items;
    assert_eq!(left.len(), 5);
    assert!(left.iter().all(|entry| entry.expires_at > at(104)));
    assert_eq!(sweep(&engine, at(104)), 0);
}

pub(crate) fn an_id_remembered_anew_outlives_its_first_expiry<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    remember(&shard, "d", 1, 100);
    remember(&shard, "d", 2, 200);
    assert_eq!(sweep(&engine, at(150)), 1, "only the note of the first");
    let found = shard.deduplicated(&once("d"), at(150)).unwrap();
    assert_eq!(found, Some(id(&shard, 2)));
    assert_eq!(sweep(&engine, at(200)), 2);
    assert_eq!(shard.remembered(None, 10).unwrap().items, []);
}

pub(crate) fn a_purge_forgets<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    remember(&shard, "d", 1, 100);
    let mut batch = Batch::new();
    batch.purge(shard.generation().next().unwrap());
    shard.commit(&batch).unwrap();
    assert_eq!(shard.deduplicated(&once("d"), at(1)).unwrap(), None);
    assert_eq!(shard.remembered(None, 10).unwrap().items, []);
    // The entry, the note of its expiry, and the leftover: long before it is due.
    assert_eq!(sweep(&engine, at(1)), 3);
    assert_eq!(sweep(&engine, at(100)), 0);
}
