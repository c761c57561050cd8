//! The state that a store should have, and the state that it has.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use fila_store::{
    ConfigKey, Cursor, DiskOptions, Durability, Engine, Limit, Locator, MessageId, OpenError,
    Queue, QueueName, RememberedName, Shard, StoredMessage, Timestamp, Version,
};

#[cfg(not(feature = "rocksdb"))]
use fila_store::LsmEngine as EngineUnderTest;
#[cfg(feature = "rocksdb")]
use fila_store::RocksEngine as EngineUnderTest;

/// The store under test: the default engine, or RocksDB with the feature `rocksdb`.
pub type Store = EngineUnderTest;

/// The store's side of one queue.
pub type StoreShard = <Store as Engine>::Shard;

/// Opens the store under test: durable on disk, and with memtables so small that they are flushed all the time.
///
/// # Errors
/// If the store is not opened.
pub fn open(path: &Path) -> Result<Store, OpenError> {
    let options = options(path);
    #[cfg(feature = "rocksdb")]
    return options.open_rocksdb();
    #[cfg(not(feature = "rocksdb"))]
    options.open()
}

/// Returns how [`open`] opens the store.
pub fn options(path: &Path) -> DiskOptions {
    DiskOptions::new(path)
        .durability(Durability::Fsync)
        .memtable_bytes(1 << 20)
        .cache_bytes(1 << 20)
}

/// All that a store holds, as its users see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The queues.
    pub queues: BTreeMap<QueueName, Arc<Held>>,
    /// The runtime configuration.
    pub configs: BTreeMap<ConfigKey, (Version, Bytes)>,
}

/// The content of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The queue itself.
    pub queue: Queue,
    /// Its messages, by place.
    pub messages: BTreeMap<Locator, StoredMessage>,
    /// Its deduplication ids.
    pub remembered: BTreeMap<RememberedName, (MessageId, Timestamp)>,
}

impl Held {
    /// Returns what a new queue holds.
    pub fn new(queue: Queue) -> Self {
        Self {
            queue,
            messages: BTreeMap::new(),
            remembered: BTreeMap::new(),
        }
    }
}

impl State {
    /// Returns the greatest epoch in which one of the messages was put.
    pub fn last_epoch(&self) -> Option<u32> {
        let queues = self.queues.values();
        let ids = queues.flat_map(|held| held.messages.values().map(|message| message.id));
        ids.map(MessageId::epoch).max()
    }

    /// Reads everything there is, each message in two ways.
    ///
    /// # Errors
    /// If something cannot be read, is damaged, or is not the same in both ways.
    pub fn read(store: &Store) -> anyhow::Result<(Self, Shards)> {
        let mut state = Self::default();
        let mut shards = Shards::new();
        for entry in store.configs("")? {
            let known = state
                .configs
                .insert(entry.key, (entry.version, entry.value));
            ensure!(known.is_none(), "an entry of the configuration twice");
        }
        for queue in store.queues()? {
            let shard = store.claim(queue.id)?;
            let name = queue.name.clone();
            let held = read_queue(&shard, queue).with_context(|| format!("queue {name:?}"))?;
            shards.insert(name.clone(), shard);
            let known = state.queues.insert(name, Arc::new(held));
            ensure!(known.is_none(), "a queue twice");
        }
        Ok((state, shards))
    }

    /// Says in a few words how another state differs.
    pub fn difference(&self, found: &Self) -> String {
        let mut said = Vec::new();
        if self.configs != found.configs {
            let versions = |state: &Self| -> Vec<Version> {
                state
                    .configs
                    .values()
                    .map(|(version, _)| *version)
                    .collect()
            };
            let (found, expected) = (versions(found), versions(self));
            said.push(format!("configuration {found:?}, not {expected:?}"));
        }
        let names = self.queues.keys().chain(found.queues.keys());
        for name in std::collections::BTreeSet::from_iter(names) {
            match (self.queues.get(name), found.queues.get(name)) {
                (Some(expected), Some(found)) if expected == found => {}
                (Some(expected), Some(found)) => {
                    said.push(format!("{name:?}: {}", expected.difference(found)));
                }
                (expected, _) => said.push(match expected {
                    Some(held) => format!("{name:?} with {} is gone", held.messages.len()),
                    None => format!("{name:?} is back"),
                }),
            }
        }
        said.join("; ")
    }
}

impl Held {
    fn difference(&self, found: &Self) -> String {
        let missing = self.messages.keys();
        let missing = missing.filter(|place| !found.messages.contains_key(place));
        let extra = found.messages.keys();
        let extra = extra.filter(|place| !self.messages.contains_key(place));
        let changed = self.messages.iter();
        let changed = changed.filter(|(place, message)| {
            found
                .messages
                .get(place)
                .is_some_and(|found| found != *message)
        });
        let (missing, extra, changed) = (missing.count(), extra.count(), changed.count());
        format!(
            "of {} messages {missing} missing, {extra} too many, {changed} changed; {} of {} ids remembered; {:?}, not {:?}",
            self.messages.len(),
            found.remembered.len(),
            self.remembered.len(),
            found.queue.version,
            self.queue.version,
        )
    }
}

/// The queues that have been claimed.
pub type Shards = BTreeMap<QueueName, StoreShard>;

fn read_queue(shard: &StoreShard, queue: Queue) -> anyhow::Result<Held> {
    let mut held = Held::new(queue);
    let mut scanned = BTreeMap::new();
    let mut cursor = Some(Cursor::start());
    while let Some(from) = cursor {
        let page = shard.scan(&from, 40)?;
        ensure!(page.damaged.is_empty(), "damaged: {:?}", page.damaged);
        for entry in page.items {
            let place = Locator {
                fairness_key: entry.meta.schedule.fairness_key.clone(),
                id: entry.id,
            };
            let known = scanned.insert(place, entry.meta);
            ensure!(known.is_none(), "a message twice in a scan");
        }
        cursor = page.next;
    }
    let keys = scanned.keys().map(|place| place.fairness_key.clone());
    for key in std::collections::BTreeSet::from_iter(keys) {
        let mut after = None;
        loop {
            let limit = Limit {
                messages: 30,
                bytes: 1 << 20,
            };
            let page = shard.backlog(&key, after, limit)?;
            ensure!(page.damaged.is_empty(), "damaged: {:?}", page.damaged);
            for message in page.items {
                let place = Locator {
                    fairness_key: key.clone(),
                    id: message.id,
                };
                ensure!(
                    scanned.remove(&place).as_ref() == Some(&message.meta),
                    "scan and backlog do not agree on {place:?}"
                );
                held.messages.insert(place, message);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    ensure!(scanned.is_empty(), "in the scan only: {:?}", scanned.keys());
    read_remembered(shard, &mut held)?;
    Ok(held)
}

fn read_remembered(shard: &StoreShard, held: &mut Held) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let page = shard.remembered(after.as_ref(), 40)?;
        ensure!(page.damaged.is_empty(), "damaged: {:?}", page.damaged);
        for entry in page.items {
            let known = (entry.id, entry.expires_at);
            held.remembered.insert(entry.name, known);
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
