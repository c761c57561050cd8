//! A disk that refuses, beneath a real store: failed syncs and reads, a full disk, a slow one.
#![cfg(test)] // helpers may unwrap, as tests do

use std::error::Error;
use std::time::Duration;

use fastrand::Rng;
use fila_faults::cuts::{self, Store, StoreShard};
use fila_faults::{Disk, FileSystem, Watch};
use fila_store::{
    Batch, CommitError, Cursor, Engine, FairnessKey, Loaded, Locator, MessageId, Meta, Payload,
    QueueName, Rejected, Shard, Timestamp, Writes,
};
use tempfile::{TempDir, tempdir};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(watch: &Watch) -> (Store, StoreShard) {
    let store = cuts::open(watch.root()).unwrap();
    let name = QueueName::parse("orders").unwrap();
    let queue = store.queue(&name).unwrap();
    let queue = queue.unwrap_or_else(|| store.create_queue(&name, "".into()).unwrap());
    let shard = store.claim(queue.id).unwrap();
    (store, shard)
}

fn body(counter: u64, bytes: usize) -> Vec<u8> {
    let mut body = vec![0; bytes];
    Rng::with_seed(counter).fill(&mut body);
    body
}

fn batch(shard: &StoreShard, counter: u64, bytes: usize) -> (Batch, MessageId) {
    let id = MessageId::new(shard.epoch(), counter).unwrap();
    let meta = Meta::new(FairnessKey::new("k").unwrap(), Timestamp::from_millis(1));
    let mut batch = Batch::new();
    let payload = Payload::new(Vec::new(), body(counter, bytes)).unwrap();
    batch.put(id, meta, payload);
    (batch, id)
}

fn put(shard: &StoreShard, counter: u64, bytes: usize) -> Result<MessageId, CommitError> {
    let (batch, id) = batch(shard, counter, bytes);
    shard.commit(&batch).map(|()| id)
}

/// Returns the messages that there are. Their bodies are what they were.
fn found(shard: &StoreShard, bytes: usize) -> Vec<MessageId> {
    let page = shard.scan(&Cursor::start(), 10_000).unwrap();
    assert_eq!(page.damaged, []);
    let ids: Vec<MessageId> = page.items.iter().map(|entry| entry.id).collect();
    let places: Vec<Locator> = ids.iter().map(|id| place(*id)).collect();
    for (loaded, id) in shard.load(&places).unwrap().into_iter().zip(&ids) {
        let Loaded::Found(payload) = loaded else {
            panic!("{id:?}: {loaded:?}");
        };
        assert_eq!(payload.body(), &body(id.counter(), bytes));
    }
    ids
}

fn place(id: MessageId) -> Locator {
    Locator {
        fairness_key: FairnessKey::new("k").unwrap(),
        id,
    }
}

/// Checks that a store that has failed once takes nothing more, and says so.
fn assert_poisoned(store: &Store, shard: &StoreShard) {
    let refused = put(shard, 9_999, 1).unwrap_err();
    let CommitError::Rejected(Rejected::Poisoned) = &refused else {
        panic!("{refused:?}");
    };
    let said = refused.source().unwrap().to_string();
    assert!(said.contains("check the disk, then open the store again"));
    let name = QueueName::parse("another").unwrap();
    assert!(store.create_queue(&name, "".into()).is_err());
    assert_eq!(store.health().unwrap().writes, Writes::Poisoned);
}

fn watched() -> (TempDir, Watch) {
    let place = tempdir().unwrap();
    let watch = Watch::new(place.path()).unwrap();
    (place, watch)
}

#[test]
fn a_commit_whose_sync_fails_is_unknown_and_the_last_until_the_store_is_opened_again() {
    let (_place, watch) = watched();
    let (store, shard) = open(&watch);
    let confirmed: Vec<_> = (1..=5).map(|n| put(&shard, n, 900).unwrap()).collect();
    watch.fail_sync_after(0);
    let unknown = put(&shard, 6, 900).unwrap_err();
    assert!(matches!(unknown, CommitError::Unknown(_)), "{unknown:?}");
    assert_poisoned(&store, &shard);
    assert_eq!(
        found(&shard, 900),
        confirmed,
        "and what is unknown is not served"
    );
    drop((store, shard));
    let (_store, shard) = open(&watch);
    let after = found(&shard, 900);
    assert_eq!(after[..5], confirmed);
    assert!(after.len() <= 6, "at most the unknown one");
    put(&shard, 7, 900).unwrap();
}

/// Opens the store, looks for all that has been confirmed, and commits more; none if something was refused.
fn work_until_refused(watch: &Watch, confirmed: &mut Vec<MessageId>) -> Option<()> {
    let store = cuts::open(watch.root()).ok()?;
    let name = QueueName::parse("orders").unwrap();
    let queue = match store.queue(&name).unwrap() {
        Some(queue) => queue,
        None => store.create_queue(&name, "".into()).ok()?,
    };
    let shard = store.claim(queue.id).ok()?;
    let before = found(&shard, 60_000);
    assert!(confirmed.iter().all(|id| before.contains(id)), "lost");
    for counter in 0..8 {
        confirmed.push(put(&shard, counter, 60_000).ok()?);
    }
    Some(())
}

/// Whatever is being synced: the store's first files, a journal, a table that is filed, a directory. How many syncs a
/// round of work takes depends on when its tables are filed, so the one that fails comes later each round until
/// several rounds in a row have needed fewer.
#[test]
fn whichever_sync_fails_nothing_confirmed_is_lost() {
    let (_place, watch) = watched();
    let mut confirmed = Vec::new();
    let (mut failures, mut unharmed) = (0, 0);
    for nth in 0..1_000 {
        watch.fail_sync_after(nth);
        match work_until_refused(&watch, &mut confirmed) {
            Some(()) => unharmed += 1,
            None => (failures, unharmed) = (failures + 1, 0),
        }
        if unharmed == 8 {
            break;
        }
    }
    assert_eq!(unharmed, 8, "no sync is left that could fail");
    assert!(failures > 20, "{failures} syncs have failed");
    assert!(confirmed.len() >= 64, "eight in each round without harm");
    watch.fail_sync_after(u64::MAX);
    let (_store, shard) = open(&watch);
    let after = found(&shard, 60_000);
    assert!(confirmed.iter().all(|id| after.contains(id)));
    put(&shard, 100, 60_000).unwrap();
}

#[test]
fn a_commit_is_confirmed_and_seen_when_its_sync_has_returned_and_the_next_one_waits() {
    let (_place, watch) = watched();
    let (_store, shard) = open(&watch);
    let first = put(&shard, 1, 100).unwrap();
    let held = watch.hold_syncs();
    let (confirmed, confirmations) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for counter in [2, 3] {
            let (shard, confirmed) = (&shard, confirmed.clone());
            scope.spawn(move || confirmed.send(put(shard, counter, 100).unwrap()).unwrap());
        }
        assert!(held.await_waiting(1, PATIENCE));
        assert_eq!(
            found(&shard, 100),
            [first],
            "what is not synced is not seen"
        );
        assert!(confirmations.try_recv().is_err(), "nor confirmed");
        drop(held);
        let done: Vec<MessageId> = confirmations.iter().take(2).collect();
        assert_eq!(done.len(), 2);
    });
    assert_eq!(found(&shard, 100).len(), 3);
}

#[test]
fn a_read_that_fails_is_an_error_and_nothing_wrong_and_works_again_afterwards() {
    let place = tempdir().unwrap();
    let mut rng = Rng::with_seed(5);
    let (recording, states) = cuts::record(&mut rng, place.path(), 300).unwrap();
    let state = states.last().unwrap();
    let place = tempdir().unwrap();
    let mut disk = Disk::new(&recording, FileSystem::Ordered);
    disk.advance(recording.ops.len());
    disk.restore(place.path()).unwrap();
    let watch = Watch::new(place.path()).unwrap();
    let store = cuts::open(watch.root()).unwrap();
    let shards: Vec<_> = state
        .queues
        .values()
        .map(|held| (held, store.claim(held.queue.id).unwrap()))
        .collect();
    let read = |unreadable: bool| {
        watch.set_unreadable(unreadable);
        let (mut right, mut errors) = (0, 0);
        for (held, shard) in &shards {
            for (place, message) in &held.messages {
                match shard.load(std::slice::from_ref(place)) {
                    Err(error) => {
                        errors += 1;
                        assert!(error.to_string().contains("failed"), "{error}");
                    }
                    Ok(loaded) => {
                        right += 1;
                        assert_eq!(loaded, [Loaded::Found(message.payload.clone().unwrap())]);
                    }
                }
            }
        }
        (right, errors)
    };
    let (_, errors) = read(true);
    assert!(errors > 0, "some are read from the disk");
    let (right, errors) = read(false);
    assert!(right > 50);
    assert_eq!(errors, 0);
}

#[test]
fn a_store_whose_files_cannot_be_read_is_not_opened_and_not_harmed() {
    let (_place, watch) = watched();
    let (store, shard) = open(&watch);
    let confirmed: Vec<_> = (1..=5).map(|n| put(&shard, n, 900).unwrap()).collect();
    drop((store, shard));
    watch.set_unreadable(true);
    cuts::open(watch.root()).unwrap_err();
    watch.set_unreadable(false);
    let (_store, shard) = open(&watch);
    assert_eq!(found(&shard, 900), confirmed);
}

#[test]
fn a_payload_that_was_damaged_in_the_log_is_reported_and_its_neighbours_are_there() {
    let (_place, watch) = watched();
    let (store, shard) = open(&watch);
    let confirmed: Vec<_> = (1..=3_000).map(|n| put(&shard, n, 900).unwrap()).collect();
    drop((store, shard));
    let files = std::fs::read_dir(watch.root().join("log")).unwrap();
    let mut kept = files.map(|file| file.unwrap().path());
    let kept = kept.find(|path| path.extension().is_some_and(|name| name == "blob"));
    let kept = kept.expect("more than a segment of payloads stays where it is");
    let mut bytes = std::fs::read(&kept).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x04;
    std::fs::write(&kept, bytes).unwrap();
    let (_store, shard) = open(&watch);
    let places: Vec<Locator> = confirmed.iter().map(|id| place(*id)).collect();
    let loaded = shard.load(&places).unwrap();
    let is_damaged = |loaded: &&Loaded| matches!(loaded, Loaded::Damaged(_));
    assert_eq!(loaded.iter().filter(is_damaged).count(), 1);
    for (loaded, id) in loaded.iter().zip(&confirmed) {
        if let Loaded::Found(payload) = loaded {
            assert_eq!(payload.body(), &body(id.counter(), 900));
        }
    }
}
