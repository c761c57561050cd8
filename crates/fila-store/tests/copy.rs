//! A store copied from one engine to another has everything, and nothing else is overwritten.
#![cfg(test)] // helpers may unwrap, as tests do

use std::fs;

use bytes::Bytes;
use fila_store::{
    Batch, ConfigKey, CopyError, Cursor, DeduplicationId, DiskEngine, DiskOptions, Engine,
    Expected, FairnessKey, Loaded, MessageId, Meta, Payload, QueueName, Shard, Timestamp,
};
use tempfile::{TempDir, tempdir};

/// Messages in the store, small ones and ones that stay in the segments of the log.
const MESSAGES: u64 = 300;

fn body(number: u64) -> Bytes {
    let length = if number.is_multiple_of(2) { 10 } else { 3_000 };
    vec![u8::try_from(number % 251).unwrap(); length].into()
}

fn options(path: &std::path::Path) -> DiskOptions {
    DiskOptions::new(path).memtable_bytes(64 << 10)
}

/// Fills a store of any engine.
fn fill(engine: &impl Engine) {
    let name = QueueName::parse("orders").unwrap();
    let queue = engine
        .create_queue(&name, "settings and hooks".into())
        .unwrap();
    let key = ConfigKey::parse("throttle:mail:rate").unwrap();
    engine
        .set_config(&key, Expected::Absent, "10".into())
        .unwrap();
    let shard = engine.claim(queue.id).unwrap();
    for number in 1..=MESSAGES {
        let mut batch = Batch::new();
        let id = MessageId::new(shard.epoch(), number).unwrap();
        let payload = Payload::new(Vec::new(), body(number)).unwrap();
        let mut meta = Meta::new(
            FairnessKey::new("acme").unwrap(),
            Timestamp::from_millis(number),
        );
        meta.sizes = payload.sizes();
        let once = DeduplicationId::new(number.to_be_bytes().to_vec()).unwrap();
        batch.remember(once, id, Timestamp::from_millis(u64::MAX));
        batch.put(id, meta, payload);
        shard.commit(&batch).unwrap();
    }
}

/// Checks that a store of any engine has everything.
fn check(engine: &impl Engine) {
    let name = QueueName::parse("orders").unwrap();
    let queue = engine.queue(&name).unwrap().unwrap();
    assert_eq!(queue.definition, "settings and hooks");
    let key = ConfigKey::parse("throttle:mail:rate").unwrap();
    assert_eq!(engine.config(&key).unwrap().unwrap().value, "10");
    let shard = engine.claim(queue.id).unwrap();
    let page = shard.scan(&Cursor::start(), 1_000).unwrap();
    assert_eq!(page.items.len() as u64, MESSAGES);
    let places: Vec<_> = page.items.iter().map(|message| message.locator()).collect();
    for (number, loaded) in (1..).zip(shard.load(&places).unwrap()) {
        let Loaded::Found(payload) = loaded else {
            panic!("{number}: {loaded:?}");
        };
        assert_eq!(*payload.body(), body(number));
    }
    let remembered = shard.remembered(None, 1_000).unwrap();
    assert_eq!(remembered.items.len() as u64, MESSAGES);
    assert!(
        shard.epoch().get() > 1,
        "an epoch of the first store would come again"
    );
}

fn filled() -> TempDir {
    let place = tempdir().unwrap();
    fill(&options(place.path()).open().unwrap());
    place
}

#[test]
fn a_copy_has_everything_and_the_store_stays() {
    let from = filled();
    let place = tempdir().unwrap();
    let to = place.path().join("copy");
    let copied = options(from.path()).copy_to(&to, DiskEngine::Lsm).unwrap();
    assert_eq!((copied.queues, copied.config_entries), (1, 1));
    assert_eq!(
        (copied.messages, copied.deduplication_ids),
        (MESSAGES, MESSAGES)
    );
    check(&options(&to).open().unwrap());
    check(&options(from.path()).open().unwrap());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
#[cfg(feature = "rocksdb")]
fn a_store_goes_to_rocksdb_and_back() {
    let from = filled();
    let place = tempdir().unwrap();
    let (there, back) = (place.path().join("there"), place.path().join("back"));
    let first = options(from.path())
        .copy_to(&there, DiskEngine::Rocksdb)
        .unwrap();
    check(&options(&there).open_rocksdb().unwrap());
    let second = options(&there).copy_to(&back, DiskEngine::Lsm).unwrap();
    assert_eq!(first, second);
    check(&options(&back).open().unwrap());
}

#[test]
fn a_directory_with_anything_in_it_is_not_copied_to() {
    let from = filled();
    let to = tempdir().unwrap();
    fs::write(to.path().join("note"), "mine").unwrap();
    let refused = options(from.path()).copy_to(to.path(), DiskEngine::Lsm);
    assert!(
        matches!(refused, Err(CopyError::NotEmpty(_))),
        "{refused:?}"
    );
    assert_eq!(fs::read(to.path().join("note")).unwrap(), b"mine");
}

#[test]
fn a_directory_without_a_store_is_not_copied() {
    let (from, place) = (tempdir().unwrap(), tempdir().unwrap());
    let to = place.path().join("copy");
    let refused = options(from.path()).copy_to(&to, DiskEngine::Lsm);
    assert!(matches!(refused, Err(CopyError::NoStore(_))), "{refused:?}");
    assert!(!to.exists());
}
