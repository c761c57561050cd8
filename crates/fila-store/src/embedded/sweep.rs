//! Sweeping: removes rows that can no longer be read, a bounded number at a time.
//!
//! Purges, deletions and expiry only make rows unreadable; a sweep removes them. It continues after a crash: the row that
//! names a leftover is removed together with the leftover's last rows. Removed rows leave tombstones, so the sweeper
//! remembers where it stopped instead of walking over the tombstones of the last sweep.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{Core, commit_error};
use crate::rows::{Rows, Table, View, WriteSet};
use crate::sync;
use crate::{EngineError, Generation, QueueId, ReadError, Swept, Timestamp, keys, record};

/// The tables in which a queue leaves rows, in the order in which they are swept.
const SWEPT: [Table; 3] = [Table::Messages, Table::Payloads, Table::Deduplication];

/// Where the last sweep stopped.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    at: Option<SweepCursor>,
}

#[derive(Debug)]
struct SweepCursor {
    leftover: Bytes,
    /// Index into `SWEPT`; the tables before are done.
    table: usize,
    /// The first key that has not been visited; none at the beginning of the table.
    from: Option<Vec<u8>>,
}

pub(super) fn sweep<R: Rows>(
    core: &Core<R>,
    now: Timestamp,
    budget: usize,
) -> Result<Swept, EngineError> {
    let mut sweeper = sync::lock(&core.sweeper);
    let budget = budget.max(1);
    let mut rows = expire(core, now, budget)?;
    while rows < budget {
        let Some((leftover, queue, upto)) = first_leftover(core)? else {
            break;
        };
        let at = sweeper.at.take().filter(|at| at.leftover == leftover);
        let cursor = at.unwrap_or(SweepCursor {
            leftover,
            table: 0,
            from: None,
        });
        let (swept, next) = clear(core, cursor, queue, upto, budget - rows)?;
        rows += swept;
        sweeper.at = next;
    }
    core.rows.maintain().map_err(ReadError::Fault)?;
    Ok(Swept {
        rows,
        more: rows >= budget,
    })
}

/// No caller waits for a sweep to be durable. It is synced all the same, since a database may rely on each write being synced
/// before the next one begins.
fn write<R: Rows>(core: &Core<R>, writes: WriteSet) -> Result<(), EngineError> {
    if writes.is_empty() {
        return Ok(());
    }
    core.write(writes)
        .map_err(|error| commit_error(error).into())
}

/// Removes expired deduplication ids, two rows for each. An id that was remembered anew stays; the lock keeps commits from
/// renewing one between the read and the removal.
fn expire<R: Rows>(core: &Core<R>, now: Timestamp, budget: usize) -> Result<usize, EngineError> {
    let _catalog = core.catalog();
    let (from, to) = keys::expired(now);
    let mut expired = BTreeSet::new();
    {
        let view = core.rows.view();
        let rows = view.range(Table::Deduplication, &from, &to);
        for row in rows.take(budget.div_ceil(2)) {
            let (key, _) = row.map_err(ReadError::Fault)?;
            if let Some((_, row)) = keys::parse_expiry(&key) {
                let found = view.get(Table::Deduplication, &row);
                let found = found.map_err(ReadError::Fault)?;
                let renewed = found.as_ref().is_some_and(|record| {
                    record::decode_remembered(&row, record)
                        .is_ok_and(|(_, expires_at)| expires_at > now)
                });
                if found.is_some() && !renewed {
                    expired.insert(Bytes::from(row));
                }
            }
            expired.insert(key);
        }
    }
    let rows = expired.len();
    let mut writes = core.rows.write_set();
    for key in &expired {
        writes.unset(Table::Deduplication, key);
    }
    write(core, writes)?;
    Ok(rows)
}

fn first_leftover<R: Rows>(
    core: &Core<R>,
) -> Result<Option<(Bytes, QueueId, Generation)>, ReadError> {
    let (from, to) = keys::all_leftovers();
    let view = core.rows.view();
    let Some(row) = view.range(Table::Catalog, &from, &to).next() else {
        return Ok(None);
    };
    let (key, record) = row?;
    // Rows are removed because of this one, so its checksum must hold.
    let damaged = |source| ReadError::Damaged {
        what: "the row of a leftover".to_owned(),
        source,
    };
    record::decode_number(&key, &record).map_err(damaged)?;
    let (queue, upto) = keys::parse_leftover(&key)
        .ok_or_else(|| damaged(record::DecodeError::OutOfRange("key of a leftover")))?;
    Ok(Some((key, queue, upto)))
}

/// Removes up to `budget` rows of a leftover, and its own row with the last of them. Returns how many rows, and where to
/// continue.
fn clear<R: Rows>(
    core: &Core<R>,
    mut cursor: SweepCursor,
    queue: QueueId,
    upto: Generation,
    budget: usize,
) -> Result<(usize, Option<SweepCursor>), EngineError> {
    let mut writes = core.rows.write_set();
    {
        let view = core.rows.view();
        while let Some(&table) = SWEPT.get(cursor.table) {
            let (start, to) = match table {
                Table::Deduplication => keys::remembered_leftovers(queue, upto),
                Table::Catalog | Table::Messages | Table::Payloads => keys::leftovers(queue, upto),
            };
            let from = cursor.from.take().unwrap_or(start);
            let mut rows = view.range(table, &from, &to);
            let mut last = None;
            while writes.len() < budget
                && let Some(row) = rows.next()
            {
                let (key, record) = row.map_err(ReadError::Fault)?;
                last = Some(key.clone());
                if table == Table::Deduplication
                    && let Ok((_, expires_at)) = record::decode_remembered(&key, &record)
                {
                    writes.unset(table, &keys::expiry_of(&key, expires_at));
                }
                writes.unset(table, &key);
            }
            if writes.len() >= budget {
                cursor.from = last.map(|last| keys::following(&last));
                break;
            }
            cursor.table += 1;
        }
    }
    let rows = writes.len();
    let done = cursor.table == SWEPT.len();
    if done {
        writes.unset(Table::Catalog, &cursor.leftover);
    }
    write(core, writes)?;
    // The row of a finished leftover counts, so that a thousand empty ones are not swept at once.
    Ok(if done {
        (rows + 1, None)
    } else {
        (rows, Some(cursor))
    })
}
