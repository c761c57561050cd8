//! A commit is checked, encoded, fenced and staged, in this order.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Core, EmbeddedShard, commit_error, set_number};
use crate::batch::{Operation, Origin};
use crate::rows::{Rows, Table, View, WriteError, WriteSet};
use crate::{
    Batch, CommitError, Generation, Meta, Payload, QueueId, Rejected, StoredMessage, keys, record,
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
            writes.forget_new();
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
    writes: &mut WriteSet,
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
    set_number(writes, &keys::generation(queue), u64::from(to.get()));
    let leftover = keys::leftover(queue, present);
    set_number(writes, &leftover, u64::from(present.get()));
    Ok(())
}

/// Encodes the rows of a commit, for the generation of each queue.
fn encode<R: Rows>(
    core: &Core<R>,
    batches: Batches<'_, R>,
    targets: &[Generation],
) -> Result<WriteSet, CommitError> {
    let mut writes = core.rows.write_set();
    let mut key = Vec::new();
    for ((shard, batch), generation) in batches.iter().zip(targets) {
        let (queue, _) = shard.id();
        for operation in batch.operations() {
            let place = (queue, *generation);
            encode_operation(core, place, operation, &mut key, &mut writes)?;
        }
        for entry in batch.remembered() {
            let name = &entry.name;
            let row = keys::remembered(queue, *generation, name);
            writes.set_with(Table::Deduplication, &row, |bytes| {
                record::encode_remembered(bytes, &row, entry.id, entry.expires_at);
            });
            let expiry = keys::expiry(entry.expires_at, queue, *generation, name);
            writes.set(Table::Deduplication, &expiry, &[]);
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

/// Sets the rows of a new message. `stage` forgets that they are new if the commit may be a repeated one.
fn put(writes: &mut WriteSet, key: &[u8], meta: &Meta, payload: Option<&Payload>) {
    writes.set_new(Table::Messages, key, |bytes| {
        record::encode_meta(bytes, key, meta);
    });
    if let Some(payload) = payload {
        writes.set_new(Table::Payloads, key, |bytes| {
            record::encode_payload(bytes, key, payload);
        });
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

/// Encodes the rows of an operation. `key` is a buffer for the key of its message.
fn encode_operation<R: Rows>(
    core: &Core<R>,
    (queue, generation): (QueueId, Generation),
    operation: &Operation,
    key: &mut Vec<u8>,
    writes: &mut WriteSet,
) -> Result<(), CommitError> {
    let (fairness_key, id) = match operation {
        Operation::Put(StoredMessage { id, meta, .. })
        | Operation::Adopt(id, meta, _)
        | Operation::Update(id, meta) => (&meta.schedule.fairness_key, *id),
        Operation::Delete(locator) => (&locator.fairness_key, locator.id),
    };
    key.clear();
    keys::append_message(key, queue, generation, fairness_key, id);
    match operation {
        Operation::Put(StoredMessage { meta, payload, .. }) => {
            put(writes, key, meta, payload.as_ref());
        }
        Operation::Adopt(_, meta, origin) => {
            // A missing original means that this commit is a repeated one: the copy exists and stays as it is.
            put(writes, key, meta, payload_of(core, origin)?.as_ref());
        }
        Operation::Update(_, meta) => writes.set_with(Table::Messages, key, |bytes| {
            record::encode_meta(bytes, key, meta);
        }),
        Operation::Delete(_) => {
            writes.unset(Table::Messages, key);
            writes.unset(Table::Payloads, key);
        }
    }
    Ok(())
}
