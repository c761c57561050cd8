//! A commit is checked, encoded, fenced and staged, in this order.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Core, EmbeddedShard, commit_error, set_number, unset};
use crate::batch::{Operation, Origin};
use crate::rows::{Rows, Table, View, Write, WriteError};
use crate::{
    Batch, CommitError, Generation, MessageId, Meta, Payload, QueueId, Rejected, StoredMessage,
    keys, record,
};

type Batches<'a, R> = &'a [(&'a EmbeddedShard<R>, &'a Batch)];

pub(super) fn stage<R: Rows>(
    core: &Arc<Core<R>>,
    batches: Batches<'_, R>,
) -> Result<(), CommitError> {
    check(core, batches)?;
    loop {
        let targets: Vec<Generation> = batches
            .iter()
            .map(|(shard, batch)| {
                batch
                    .purged_to()
                    .unwrap_or_else(|| shard.ownership().generation())
            })
            .collect();
        let mut writes = encode(core, batches, &targets)?;
        let _catalog = core.catalog();
        for (shard, _) in batches {
            if !shard.ownership().is_of(shard.id().1) {
                return Err(CommitError::Fenced {
                    queue: shard.id().0,
                });
            }
        }
        // Another thread has purged the queue while we encoded for the generation before.
        let overtaken = batches
            .iter()
            .zip(&targets)
            .any(|((shard, batch), target)| {
                batch.purged_to().is_none() && shard.ownership().generation() != *target
            });
        if overtaken {
            continue;
        }
        for (shard, batch) in batches {
            purge(shard, batch, &mut writes)?;
        }
        let next_ids: Vec<_> = batches
            .iter()
            .map(|(shard, batch)| next_id(shard, batch))
            .collect();
        if next_ids.contains(&None) {
            writes.iter_mut().for_each(|write| write.is_new = false);
        }
        if !writes.is_empty() {
            core.stage(writes).map_err(|error| failed(error, batches))?;
        }
        for (((shard, _), target), next_id) in batches.iter().zip(&targets).zip(next_ids) {
            let ownership = shard.ownership();
            ownership.generation.store(target.get(), Ordering::Release);
            let next_id = next_id.unwrap_or_default();
            ownership.next_id.fetch_max(next_id, Ordering::Relaxed);
        }
        return Ok(());
    }
}

/// Refuses what can be refused without a read.
fn check<R: Rows>(core: &Arc<Core<R>>, batches: Batches<'_, R>) -> Result<(), Rejected> {
    let mut queues = HashSet::new();
    for (shard, _) in batches {
        let (queue, _) = shard.id();
        if !shard.is_of(core) {
            return Err(Rejected::Foreign(queue));
        }
        if batches.len() > 1 && !queues.insert(queue) {
            return Err(Rejected::Twice(queue));
        }
    }
    let operations = batches.iter().map(|(_, batch)| batch.len()).sum();
    let bytes = batches.iter().map(|(_, batch)| batch.bytes()).sum();
    if operations > Batch::OPERATIONS_MAX || bytes > Batch::BYTES_MAX {
        return Err(Rejected::TooLarge { operations, bytes });
    }
    Ok(())
}

fn failed<R: Rows>(error: WriteError, batches: Batches<'_, R>) -> CommitError {
    match (error, batches.first()) {
        // The whole store has another owner: any queue is an example.
        (WriteError::Superseded, Some((shard, _))) => CommitError::Fenced {
            queue: shard.id().0,
        },
        (error, _) => commit_error(error),
    }
}

/// Adds the rows of a purge: the new generation, and a leftover row for the old one. A purge to the present generation has
/// happened before, and adds none.
fn purge<R: Rows>(
    shard: &EmbeddedShard<R>,
    batch: &Batch,
    writes: &mut Vec<Write>,
) -> Result<(), Rejected> {
    let Some(to) = batch.purged_to() else {
        return Ok(());
    };
    let (queue, _) = shard.id();
    let present = shard.ownership().generation();
    if present == to {
        return Ok(());
    }
    if present.next() != Some(to) {
        return Err(Rejected::Generation { queue, present, to });
    }
    writes.push(set_number(keys::generation(queue), u64::from(to.get())));
    writes.push(set_number(
        keys::leftover(queue, present),
        u64::from(present.get()),
    ));
    Ok(())
}

fn encode<R: Rows>(
    core: &Core<R>,
    batches: Batches<'_, R>,
    targets: &[Generation],
) -> Result<Vec<Write>, CommitError> {
    let operations: usize = batches.iter().map(|(_, batch)| batch.len()).sum();
    let mut writes = Vec::with_capacity(operations * 2);
    for ((shard, batch), generation) in batches.iter().zip(targets) {
        let (queue, _) = shard.id();
        for operation in batch.operations() {
            encode_operation(core, (queue, *generation), operation, &mut writes)?;
        }
        for entry in batch.remembered() {
            let name = &entry.name;
            let row = keys::remembered(queue, *generation, name);
            let record = record::encode_remembered(&row, entry.id, entry.expires_at);
            let expiry = keys::expiry(entry.expires_at, queue, *generation, name);
            for (key, value) in [(row, record), (expiry, Bytes::new())] {
                writes.push(super::set(Table::Deduplication, key, value));
            }
        }
    }
    Ok(writes)
}

/// Reads the payload of a message that moves to another queue. It cannot change meanwhile: its owner is committing. Returns
/// none if it is missing or damaged; a read of the copy reports that. A failing database is an error: nothing has been
/// written yet.
fn payload_of<R: Rows>(core: &Core<R>, origin: &Origin) -> Result<Option<Payload>, CommitError> {
    let Origin {
        queue,
        generation,
        locator,
    } = origin;
    let key = keys::message(*queue, *generation, &locator.fairness_key, locator.id);
    let record = core.rows.view().get(Table::Payloads, &key);
    let record = record.map_err(CommitError::Unreadable)?;
    // The checksum of a record covers its key, so the copy is encoded anew.
    Ok(record.and_then(|record| record::decode_payload(&key, &record).ok()))
}

/// Sets a row of a new message. `stage` clears `is_new` if the commit may be a repeated one.
fn put(table: Table, key: Bytes, record: Bytes) -> Write {
    Write {
        is_new: true,
        ..Write::new(table, key, Some(record))
    }
}

/// Returns the next unused id after this batch; none if an id of the batch may have been used before.
fn next_id<R: Rows>(shard: &EmbeddedShard<R>, batch: &Batch) -> Option<u64> {
    let next_id = shard.ownership().next_id.load(Ordering::Relaxed);
    let put = batch
        .operations()
        .iter()
        .filter_map(|operation| match operation {
            Operation::Put(StoredMessage { id, .. }) | Operation::Adopt(id, ..) => Some(id.get()),
            Operation::Update(..) | Operation::Delete(_) => None,
        });
    put.map(|id| (id >= next_id).then_some(id.saturating_add(1)))
        .try_fold(next_id, |next_id, after| Some(next_id.max(after?)))
}

fn encode_operation<R: Rows>(
    core: &Core<R>,
    (queue, generation): (QueueId, Generation),
    operation: &Operation,
    writes: &mut Vec<Write>,
) -> Result<(), CommitError> {
    let key_of = |id: MessageId, meta: &Meta| {
        keys::message(queue, generation, &meta.schedule.fairness_key, id)
    };
    match operation {
        Operation::Put(StoredMessage { id, meta, payload }) => {
            let key: Bytes = key_of(*id, meta).into();
            let record = record::encode_meta(&key, meta);
            writes.push(put(Table::Messages, key.clone(), record));
            if let Some(payload) = payload {
                let record = record::encode_payload(&key, payload);
                writes.push(put(Table::Payloads, key, record));
            }
        }
        Operation::Adopt(id, meta, origin) => {
            let payload = payload_of(core, origin)?;
            let key: Bytes = key_of(*id, meta).into();
            let record = record::encode_meta(&key, meta);
            writes.push(put(Table::Messages, key.clone(), record));
            // A missing original means that this commit is a repeated one: the copy exists and stays as it is.
            if let Some(payload) = payload {
                let record = record::encode_payload(&key, &payload);
                writes.push(put(Table::Payloads, key, record));
            }
        }
        Operation::Update(id, meta) => {
            let key = key_of(*id, meta);
            let record = record::encode_meta(&key, meta);
            writes.push(super::set(Table::Messages, key, record));
        }
        Operation::Delete(locator) => {
            let key = keys::message(queue, generation, &locator.fairness_key, locator.id);
            let key = Bytes::from(key);
            writes.push(unset(Table::Messages, key.clone()));
            writes.push(unset(Table::Payloads, key));
        }
    }
    Ok(())
}
