//! The reads of a queue's owner.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Core, Ownership, commit, commit_error};
use crate::keys::MessageKeys;
use crate::record::{self, DecodeError};
use crate::rows::{Rows, Table, View};
use crate::{
    Batch, CommitError, Cursor, Damaged, Epoch, FairnessKey, Fault, Generation, Limit, Loaded,
    Locator, MessageId, Page, QueueId, ReadError, Remembered, RememberedName, Shard, StoredMessage,
    Timestamp, keys,
};

/// The durable side of one owned queue in an embedded database.
///
/// The store stays open as long as one of its shards exists.
pub struct EmbeddedShard<R: Rows> {
    core: Arc<Core<R>>,
    queue: QueueId,
    epoch: Epoch,
    ownership: Arc<Ownership>,
}

impl<R: Rows> fmt::Debug for EmbeddedShard<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedShard")
            .field("queue", &self.queue)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl<R: Rows> EmbeddedShard<R> {
    pub(super) fn new(
        core: Arc<Core<R>>,
        queue: QueueId,
        epoch: Epoch,
        ownership: Arc<Ownership>,
    ) -> Self {
        Self {
            core,
            queue,
            epoch,
            ownership,
        }
    }

    pub(super) fn id(&self) -> (QueueId, Epoch) {
        (self.queue, self.epoch)
    }

    pub(super) fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    pub(super) fn is_of(&self, core: &Arc<Core<R>>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    /// Returns the generation to read in, unless the queue has another owner.
    fn fenced(&self) -> Result<Generation, ReadError> {
        if self.ownership.is_of(self.epoch) {
            Ok(self.ownership.generation())
        } else {
            Err(ReadError::Fenced { queue: self.queue })
        }
    }
}

impl<R: Rows> Shard for EmbeddedShard<R> {
    fn queue(&self) -> QueueId {
        self.queue
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn generation(&self) -> Generation {
        self.ownership.generation()
    }

    fn commit(&self, batch: &Batch) -> Result<(), CommitError> {
        commit::stage(&self.core, &[(self, batch)])?;
        self.core.settle().map_err(commit_error)
    }

    fn load(&self, messages: &[Locator]) -> Result<Vec<Loaded>, ReadError> {
        let generation = self.fenced()?;
        let view = self.core.rows.view();
        messages
            .iter()
            .map(|Locator { fairness_key, id }| {
                let key = keys::message(self.queue, generation, fairness_key, *id);
                let record = view.get(Table::Payloads, &key)?;
                Ok(record.map_or(Loaded::Missing, |record| {
                    record::decode_payload(&key, &record)
                        .map_or_else(Loaded::Damaged, Loaded::Found)
                }))
            })
            .collect()
    }

    fn scan(&self, after: &Cursor, limit: usize) -> Result<Page<StoredMessage, Cursor>, ReadError> {
        let generation = self.fenced()?;
        let (from, to) = keys::messages(self.queue, generation, after.0.as_deref());
        let view = self.core.rows.view();
        let rows = view.range(Table::Messages, &from, &to);
        let cursor =
            |key: &Bytes| Some(Cursor(Some(Bytes::copy_from_slice(keys::position_of(key)))));
        let mut keys = MessageKeys::default();
        page(rows, limit, cursor, |key, record| {
            decode_meta(&mut keys, &key, &record)
        })
    }

    fn backlog(
        &self,
        key: &FairnessKey,
        after: Option<MessageId>,
        limit: Limit,
    ) -> Result<Page<StoredMessage, MessageId>, ReadError> {
        let generation = self.fenced()?;
        let (from, to) = keys::backlog(self.queue, generation, key, after);
        let view = self.core.rows.view();
        let mut payloads = Payloads::new(view.range(Table::Payloads, &from, &to));
        let mut rows = view.range(Table::Messages, &from, &to);
        let mut page = Page {
            items: Vec::new(),
            damaged: Vec::new(),
            next: None,
        };
        let mut bytes = 0;
        let mut keys = MessageKeys::default();
        while let Some(row) = rows.next() {
            let (key, record) = row?;
            match decode_message(&mut keys, &key, &record, &mut payloads)? {
                Ok(message) => {
                    let sizes = message.meta.sizes;
                    bytes += sizes.headers as usize + sizes.body as usize;
                    page.items.push(message);
                }
                Err(damaged) => page.damaged.push(damaged),
            }
            let read = page.items.len() + page.damaged.len();
            if read >= limit.messages || bytes >= limit.bytes {
                let more = rows.next().transpose()?.is_some();
                let last = keys::parse_message(&key).ok().map(|(_, id)| id);
                page.next = last.filter(|_| more);
                break;
            }
        }
        Ok(page)
    }

    fn deduplicated(
        &self,
        name: &RememberedName,
        now: Timestamp,
    ) -> Result<Option<MessageId>, ReadError> {
        let generation = self.fenced()?;
        let row = keys::remembered(self.queue, generation, name);
        let Some(record) = self.core.rows.view().get(Table::Deduplication, &row)? else {
            return Ok(None);
        };
        let (message, expires_at) =
            record::decode_remembered(&row, &record).map_err(|source| ReadError::Damaged {
                what: format!("a deduplication row of queue {}", self.queue),
                source,
            })?;
        Ok((expires_at > now).then_some(message))
    }

    fn remembered(
        &self,
        after: Option<&RememberedName>,
        limit: usize,
    ) -> Result<Page<Remembered, RememberedName>, ReadError> {
        let generation = self.fenced()?;
        let (from, to) = keys::all_remembered(self.queue, generation, after);
        let view = self.core.rows.view();
        let rows = view.range(Table::Deduplication, &from, &to);
        let cursor = |key: &Bytes| keys::parse_remembered(key).ok();
        page(rows, limit, cursor, |key, record| {
            let damaged = |error| Damaged {
                record: "deduplication row",
                message: None,
                error,
            };
            let name = keys::parse_remembered(&key).map_err(damaged)?;
            let (id, expires_at) = record::decode_remembered(&key, &record).map_err(damaged)?;
            Ok(Remembered {
                name,
                id,
                expires_at,
            })
        })
    }
}

/// Fills a page from rows, up to `limit` of them and at least one; `next` is where it ended, if there is more.
fn page<T, C>(
    mut rows: impl Iterator<Item = Result<(Bytes, Bytes), Fault>>,
    limit: usize,
    cursor: impl Fn(&Bytes) -> Option<C>,
    mut decode: impl FnMut(Bytes, Bytes) -> Result<T, Damaged>,
) -> Result<Page<T, C>, ReadError> {
    let mut page = Page {
        items: Vec::new(),
        damaged: Vec::new(),
        next: None,
    };
    while let Some(row) = rows.next() {
        let (key, record) = row?;
        match decode(key.clone(), record) {
            Ok(item) => page.items.push(item),
            Err(damaged) => page.damaged.push(damaged),
        }
        if page.items.len() + page.damaged.len() >= limit {
            if rows.next().transpose()?.is_some() {
                page.next = cursor(&key);
            }
            break;
        }
    }
    Ok(page)
}

fn decode_meta(
    keys: &mut MessageKeys,
    key: &[u8],
    record: &[u8],
) -> Result<StoredMessage, Damaged> {
    let (fairness_key, id) = keys.parse(key).map_err(|error| Damaged {
        record: "key of a message",
        message: None,
        error,
    })?;
    match record::decode_meta(key, record, fairness_key.clone()) {
        Ok(meta) => Ok(StoredMessage {
            id,
            meta,
            payload: None,
        }),
        Err(error) => Err(Damaged {
            record: "message",
            message: Some(Locator { fairness_key, id }),
            error,
        }),
    }
}

fn decode_message<I>(
    keys: &mut MessageKeys,
    key: &[u8],
    record: &[u8],
    payloads: &mut Payloads<I>,
) -> Result<Result<StoredMessage, Damaged>, Fault>
where
    I: Iterator<Item = Result<(Bytes, Bytes), Fault>>,
{
    // Also taken for a damaged message, so that the next one gets its own payload.
    let payload = payloads.take(key)?;
    let mut message = match decode_meta(keys, key, record) {
        Ok(message) => message,
        Err(damaged) => return Ok(Err(damaged)),
    };
    let payload = payload.ok_or(DecodeError::Missing);
    Ok(
        match payload.and_then(|record| record::decode_payload(key, &record)) {
            Ok(payload) => {
                message.payload = Some(payload);
                Ok(message)
            }
            Err(error) => Err(Damaged {
                record: "payload",
                message: Some(message.locator()),
                error,
            }),
        },
    )
}

/// The payloads of a range, read beside its messages.
struct Payloads<I: Iterator> {
    rows: I,
    ahead: Option<(Bytes, Bytes)>,
}

impl<I> Payloads<I>
where
    I: Iterator<Item = Result<(Bytes, Bytes), Fault>>,
{
    fn new(rows: I) -> Self {
        Self { rows, ahead: None }
    }

    /// Returns the payload under this key. Keys are asked for in order.
    fn take(&mut self, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        loop {
            let Some((found, payload)) = self
                .ahead
                .take()
                .map_or_else(|| self.rows.next().transpose(), |ahead| Ok(Some(ahead)))?
            else {
                return Ok(None);
            };
            if found[..] == *key {
                return Ok(Some(payload));
            }
            if found[..] > *key {
                self.ahead = Some((found, payload));
                return Ok(None);
            }
        }
    }
}
