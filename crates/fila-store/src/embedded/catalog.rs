//! The catalogue: queues by name and id, claims, the runtime configuration, and the health of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;

use super::{
    Core, Embedded, EmbeddedShard, Ownership, commit, commit_error, generation, number, set_number,
    sweep,
};
use crate::names::within;
use crate::record::{self, DecodeError};
use crate::rows::{Rows, Table, View, WriteSet};
use crate::{
    Batch, CONFIG_MAX, CommitError, ConfigEntry, ConfigKey, DEFINITION_MAX, Engine, EngineError,
    Expected, Health, MessageId, Queue, QueueId, QueueName, ReadError, Swept, Timestamp, Version,
    Writes, keys,
};

impl<R: Rows> Engine for Embedded<R> {
    type Shard = EmbeddedShard<R>;

    fn create_queue(&self, name: &QueueName, definition: Bytes) -> Result<Queue, EngineError> {
        within_definition(&definition)?;
        let mut catalog = self.0.catalog();
        if self.0.id_of(name)?.is_some() {
            return Err(EngineError::AlreadyExists(name.clone()));
        }
        let id = QueueId::new(catalog.next_queue);
        let next_queue = catalog.next_queue.checked_add(1);
        let next_queue = next_queue.ok_or(EngineError::Exhausted("queue ids"))?;
        let version = catalog.next_version()?;
        self.0.change(|writes| {
            set_queue(writes, id, version, name, &definition);
            set_number(writes, &keys::name(name), id.get());
            set_number(writes, keys::NEXT_QUEUE, next_queue);
            set_number(writes, keys::REVISION, version.get());
        })?;
        catalog.next_queue = next_queue;
        catalog.revision = version.get();
        Ok(Queue {
            id,
            name: name.clone(),
            version,
            definition,
        })
    }

    fn update_queue(
        &self,
        queue: QueueId,
        expected: Expected,
        definition: Bytes,
    ) -> Result<Version, EngineError> {
        within_definition(&definition)?;
        let mut catalog = self.0.catalog();
        let found = self.0.queue_of(queue)?;
        let found = found.ok_or(EngineError::UnknownQueue(queue))?;
        matching(expected, Some(found.version))?;
        let version = catalog.next_version()?;
        self.0.change(|writes| {
            set_queue(writes, queue, version, &found.name, &definition);
            set_number(writes, keys::REVISION, version.get());
        })?;
        catalog.revision = version.get();
        Ok(version)
    }

    fn delete_queues(&self, queues: &[QueueId]) -> Result<(), EngineError> {
        let mut catalog = self.0.catalog();
        let mut writes = self.0.rows.write_set();
        for (index, &queue) in queues.iter().enumerate() {
            if queues[..index].contains(&queue) {
                continue; // a list of writes has no key twice
            }
            let found = self.0.queue_of(queue)?;
            let found = found.ok_or(EngineError::UnknownQueue(queue))?;
            let last = generation(&self.0.rows.view(), queue)?;
            let leftover = keys::leftover(queue, last);
            writes.unset(Table::Catalog, &keys::queue(queue));
            writes.unset(Table::Catalog, &keys::name(&found.name));
            writes.unset(Table::Catalog, &keys::generation(queue));
            set_number(&mut writes, &leftover, u64::from(last.get()));
        }
        self.0.change_by(writes)?;
        for queue in queues {
            if let Some(ownership) = catalog.owners.remove(queue) {
                ownership.epoch.store(0, Ordering::Release);
            }
        }
        Ok(())
    }

    fn queue(&self, name: &QueueName) -> Result<Option<Queue>, ReadError> {
        let view = self.0.rows.view();
        let Some(id) = id_of(&view, name)? else {
            return Ok(None);
        };
        let Some(queue) = queue_of(&view, id)? else {
            return Err(ReadError::Damaged {
                what: format!("the definition of queue `{name}`"),
                source: DecodeError::Missing,
            });
        };
        Ok(Some(queue))
    }

    fn queues(&self) -> Result<Vec<Queue>, ReadError> {
        let (from, to) = keys::queues();
        let view = self.0.rows.view();
        let rows = view.range(Table::Catalog, &from, &to);
        rows.map(|row| {
            let (key, record) = row?;
            decode_queue(&key, &record)
        })
        .collect()
    }

    fn claim(&self, queue: QueueId) -> Result<Self::Shard, EngineError> {
        let mut catalog = self.0.catalog();
        let present = {
            let view = self.0.rows.view();
            let row = view.get(Table::Catalog, &keys::queue(queue));
            if row.map_err(ReadError::Fault)?.is_none() {
                return Err(EngineError::UnknownQueue(queue));
            }
            generation(&view, queue)?
        };
        let (epoch, ownership) = match catalog.owners.get(&queue).cloned() {
            // It has not been claimed since the store was opened, and every earlier epoch is smaller.
            None => {
                let first = MessageId::new(catalog.epoch, 0).map_or(u64::MAX, MessageId::get);
                let ownership = Arc::new(Ownership {
                    epoch: AtomicU32::new(catalog.epoch.get()),
                    generation: AtomicU32::new(present.get()),
                    next_id: AtomicU64::new(first),
                });
                catalog.owners.insert(queue, Arc::clone(&ownership));
                (catalog.epoch, ownership)
            }
            Some(ownership) => {
                let epoch = catalog.epoch.next();
                let epoch = epoch.ok_or(EngineError::Exhausted("epochs"))?;
                let number = u64::from(epoch.get());
                self.0
                    .change(|writes| set_number(writes, keys::EPOCH, number))?;
                catalog.epoch = epoch;
                ownership.epoch.store(epoch.get(), Ordering::Release);
                (epoch, ownership)
            }
        };
        Ok(EmbeddedShard::new(
            Arc::clone(&self.0),
            queue,
            epoch,
            ownership,
        ))
    }

    fn stage(&self, batches: &[(&Self::Shard, &Batch)]) -> Result<(), CommitError> {
        commit::stage(&self.0, batches)
    }

    fn settle(&self) -> Result<(), CommitError> {
        // The store does not know which of the staged commits has failed.
        self.0.settle().map_err(commit_error)
    }

    fn set_config(
        &self,
        key: &ConfigKey,
        expected: Expected,
        value: Bytes,
    ) -> Result<Version, EngineError> {
        within("bytes of a config value", value.len(), 0, CONFIG_MAX)?;
        let mut catalog = self.0.catalog();
        matching(expected, self.config(key)?.map(|entry| entry.version))?;
        let version = catalog.next_version()?;
        let row = keys::config(key);
        self.0.change(|writes| {
            writes.set_with(Table::Catalog, &row, |bytes| {
                record::encode_config(bytes, &row, version, &value);
            });
            set_number(writes, keys::REVISION, version.get());
        })?;
        catalog.revision = version.get();
        Ok(version)
    }

    fn remove_config(&self, key: &ConfigKey, expected: Expected) -> Result<(), EngineError> {
        let _catalog = self.0.catalog();
        matching(expected, self.config(key)?.map(|entry| entry.version))?;
        self.0
            .change(|writes| writes.unset(Table::Catalog, &keys::config(key)))
    }

    fn config(&self, key: &ConfigKey) -> Result<Option<ConfigEntry>, ReadError> {
        let row = keys::config(key);
        let record = self.0.rows.view().get(Table::Catalog, &row)?;
        record
            .map(|record| decode_config(key.clone(), &row, &record))
            .transpose()
    }

    fn configs(&self, prefix: &str) -> Result<Vec<ConfigEntry>, ReadError> {
        let (from, to) = keys::configs(prefix);
        let view = self.0.rows.view();
        let rows = view.range(Table::Catalog, &from, &to);
        rows.map(|row| {
            let (row, record) = row?;
            let key = keys::parse_config(&row).ok_or_else(|| ReadError::Damaged {
                what: "the key of a config entry".to_owned(),
                source: DecodeError::OutOfRange("config key"),
            })?;
            decode_config(key, &row, &record)
        })
        .collect()
    }

    fn sweep(&self, now: Timestamp, budget: usize) -> Result<Swept, EngineError> {
        sweep::sweep(&self.0, now, budget)
    }

    fn writes(&self) -> Writes {
        if self.0.poisoned.load(Ordering::Acquire) {
            Writes::Poisoned
        } else if self.0.rows.has_room() {
            Writes::Taken
        } else {
            Writes::Full
        }
    }

    fn may_wait(&self) -> bool {
        self.0.rows.may_wait()
    }

    fn health(&self) -> Result<Health, ReadError> {
        let figures = self.0.rows.figures()?;
        let (from, to) = keys::all_leftovers();
        let leftovers = self.0.rows.view().range(Table::Catalog, &from, &to).count();
        Ok(Health {
            durability: self.0.durability,
            writes: self.writes(),
            bytes: figures.bytes,
            journals: figures.journals,
            leftovers,
            torn: self.0.rows.torn(),
        })
    }
}

impl<R: Rows> Core<R> {
    /// Changes the catalogue; the caller holds the lock of its state.
    fn change(&self, fill: impl FnOnce(&mut WriteSet)) -> Result<(), EngineError> {
        let mut writes = self.rows.write_set();
        fill(&mut writes);
        self.change_by(writes)
    }

    /// Changes the catalogue by these rows; the caller holds the lock of its state.
    fn change_by(&self, writes: WriteSet) -> Result<(), EngineError> {
        self.write(writes)
            .map_err(|error| commit_error(error).into())
    }

    fn id_of(&self, name: &QueueName) -> Result<Option<QueueId>, ReadError> {
        id_of(&self.rows.view(), name)
    }

    fn queue_of(&self, id: QueueId) -> Result<Option<Queue>, ReadError> {
        queue_of(&self.rows.view(), id)
    }
}

fn within_definition(definition: &Bytes) -> Result<(), EngineError> {
    let what = "bytes of a queue's definition";
    Ok(within(what, definition.len(), 0, DEFINITION_MAX)?)
}

fn matching(expected: Expected, found: Option<Version>) -> Result<(), EngineError> {
    if expected.matches(found) {
        Ok(())
    } else {
        Err(EngineError::Conflict { found })
    }
}

fn id_of(view: &impl View, name: &QueueName) -> Result<Option<QueueId>, ReadError> {
    let what = format!("the name of queue `{name}`");
    let id = number(view, &keys::name(name), &what)?;
    Ok(id.map(QueueId::new))
}

fn queue_of(view: &impl View, id: QueueId) -> Result<Option<Queue>, ReadError> {
    let row = keys::queue(id);
    let record = view.get(Table::Catalog, &row)?;
    record.map(|record| decode_queue(&row, &record)).transpose()
}

fn set_queue(
    writes: &mut WriteSet,
    id: QueueId,
    version: Version,
    name: &QueueName,
    definition: &[u8],
) {
    let row = keys::queue(id);
    writes.set_with(Table::Catalog, &row, |bytes| {
        record::encode_queue(bytes, &row, version, name, definition);
    });
}

fn decode_queue(row: &[u8], record: &Bytes) -> Result<Queue, ReadError> {
    let damaged = |source| ReadError::Damaged {
        what: "the definition of a queue".to_owned(),
        source,
    };
    let (version, name, definition) = record::decode_queue(row, record).map_err(damaged)?;
    let id = keys::parse_queue(row).ok_or_else(|| damaged(DecodeError::OutOfRange("queue id")))?;
    Ok(Queue {
        id,
        name,
        version,
        definition,
    })
}

fn decode_config(key: ConfigKey, row: &[u8], record: &Bytes) -> Result<ConfigEntry, ReadError> {
    let (version, value) =
        record::decode_config(row, record).map_err(|source| ReadError::Damaged {
            what: format!("config entry `{key}`"),
            source,
        })?;
    Ok(ConfigEntry {
        key,
        version,
        value,
    })
}
