//! Where engines are opened, and short words for what tests do with them.

use fila_store::{
    Batch, Cursor, DiskOptions, Durability, Engine, FairnessKey, Loaded, Locator, LsmEngine,
    MemoryDisk, MemoryEngine, MessageId, Meta, Payload, QueueName, RememberedName, Shard,
    StoredMessage, Timestamp,
};
use tempfile::TempDir;

/// What stays when an engine is closed. Only one engine is open at a time.
pub(crate) trait Place {
    type Engine: Engine + Clone;

    fn new() -> Self;

    /// Opens an engine at this place.
    fn open(&self) -> Self::Engine;
}

pub(crate) type ShardOf<P> = <<P as Place>::Engine as Engine>::Shard;

pub(crate) struct InMemory(MemoryDisk);

impl Place for InMemory {
    type Engine = MemoryEngine;

    fn new() -> Self {
        Self(MemoryDisk::default())
    }

    fn open(&self) -> MemoryEngine {
        MemoryEngine::open(&self.0).unwrap()
    }
}

pub(crate) struct InLsm(TempDir);

impl Place for InLsm {
    type Engine = LsmEngine;

    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The requirements of the suite do not depend on the level, and most tests are quicker without the sync.
    fn open(&self) -> LsmEngine {
        let options = DiskOptions::new(self.0.path());
        options.durability(Durability::Os).open().unwrap()
    }
}

/// The same with segments of the log that are full, and flushed, all the time.
pub(crate) struct InSmallSegments(TempDir);

impl Place for InSmallSegments {
    type Engine = LsmEngine;

    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> LsmEngine {
        let options = DiskOptions::new(self.0.path());
        let options = options.memtable_bytes(0); // the least there is
        options.durability(Durability::Os).open().unwrap()
    }
}

#[cfg(feature = "rocksdb")]
pub(crate) struct InRocks(TempDir);

#[cfg(feature = "rocksdb")]
impl Place for InRocks {
    type Engine = fila_store::RocksEngine;

    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> fila_store::RocksEngine {
        let options = DiskOptions::new(self.0.path());
        options.durability(Durability::Os).open_rocksdb().unwrap()
    }
}

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn name(name: &str) -> QueueName {
    QueueName::parse(name).unwrap()
}

pub(crate) fn key(key: &str) -> FairnessKey {
    FairnessKey::new(key.as_bytes().to_vec()).unwrap()
}

pub(crate) fn once(id: &str) -> RememberedName {
    RememberedName::new(id.as_bytes().to_vec()).unwrap()
}

pub(crate) fn meta(fairness_key: &str) -> Meta {
    Meta::new(key(fairness_key), at(1))
}

pub(crate) fn payload(body: impl Into<Vec<u8>>) -> Payload {
    Payload::new(vec![("kind".into(), "test".into())], body.into()).unwrap()
}

pub(crate) fn locator(fairness_key: &str, id: MessageId) -> Locator {
    Locator {
        fairness_key: key(fairness_key),
        id,
    }
}

/// Claims the queue of this name, which is created if need be.
pub(crate) fn claim<E: Engine>(engine: &E, queue: &str) -> E::Shard {
    let queue = name(queue);
    let found = engine.queue(&queue).unwrap();
    let found = found.unwrap_or_else(|| engine.create_queue(&queue, "".into()).unwrap());
    engine.claim(found.id).unwrap()
}

/// Returns the id that this owner counts as `counter`.
pub(crate) fn id(shard: &impl Shard, counter: u64) -> MessageId {
    MessageId::new(shard.epoch(), counter).unwrap()
}

/// Commits messages of one key, numbered from `first` on; the body is the counter.
pub(crate) fn put(
    shard: &impl Shard,
    fairness_key: &str,
    counters: impl IntoIterator<Item = u64>,
) -> Vec<MessageId> {
    let mut batch = Batch::new();
    let mut ids = Vec::new();
    for counter in counters {
        let id = id(shard, counter);
        batch.put(id, meta(fairness_key), payload(counter.to_string()));
        ids.push(id);
    }
    shard.commit(&batch).unwrap();
    ids
}

/// Returns everything there is, page by page; nothing may be damaged.
pub(crate) fn all(shard: &impl Shard, page: usize) -> Vec<StoredMessage> {
    let mut entries = Vec::new();
    let mut cursor = Cursor::start();
    loop {
        let page = shard.scan(&cursor, page).unwrap();
        assert_eq!(page.damaged, []);
        entries.extend(page.items);
        match page.next {
            Some(next) => cursor = next,
            None => return entries,
        }
    }
}

pub(crate) fn ids(shard: &impl Shard) -> Vec<MessageId> {
    all(shard, 100).into_iter().map(|entry| entry.id).collect()
}

/// Returns what a message carries, if it is there.
pub(crate) fn body(shard: &impl Shard, fairness_key: &str, id: MessageId) -> Option<Vec<u8>> {
    match shard.load(&[locator(fairness_key, id)]).unwrap().remove(0) {
        Loaded::Found(payload) => Some(payload.body().to_vec()),
        Loaded::Missing => None,
        Loaded::Damaged(error) => panic!("damaged: {error}"),
    }
}

/// Sweeps until there is no more, and returns how many rows that were.
pub(crate) fn sweep(engine: &impl Engine, now: Timestamp) -> usize {
    let mut rows = 0;
    loop {
        let swept = engine.sweep(now, 50).unwrap();
        rows += swept.rows;
        if !swept.more {
            return rows;
        }
    }
}
