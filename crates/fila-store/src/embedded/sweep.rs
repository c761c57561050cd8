//! Removing what nobody can read any more, a bounded number of rows at a time.
//!
//! Purges, deletions and expiry only make rows unreadable; the rows go here. A sweep that is cut short by a crash
//! goes on after it: the note that names a leftover is removed together with its last rows. Removed rows leave
//! tombstones, so a sweep remembers where it stopped instead of walking over those of the sweep before.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use bytes::Bytes;

use super::{Core, refused, unset};
use crate::rows::{Rows, Table, View, Write};
use crate::{EngineError, Generation, QueueId, ReadError, Swept, Timestamp, keys, record};

/// The tables in which a queue leaves rows, in the order in which they are swept.
const SWEPT: [Table; 3] = [Table::Messages, Table::Payloads, Table::Deduplication];

/// Where the last sweep has stopped.
#[derive(Debug, Default)]
pub(super) struct Broom {
    at: Option<Place>,
}

#[derive(Debug)]
struct Place {
    leftover: Bytes,
    /// Index into `SWEPT`; the tables before are done.
    table: usize,
    /// The first key that has not been seen; none at the beginning of the table.
    from: Option<Vec<u8>>,
}

pub(super) fn sweep<R: Rows>(
    core: &Core<R>,
    now: Timestamp,
    budget: usize,
) -> Result<Swept, EngineError> {
    let mut broom = core.broom.lock().unwrap_or_else(PoisonError::into_inner);
    let budget = budget.max(1);
    let mut rows = expire(core, now, budget)?;
    while rows < budget {
        let Some((leftover, queue, upto)) = first_leftover(core)? else {
            break;
        };
        let place = broom.at.take().filter(|place| place.leftover == leftover);
        let place = place.unwrap_or(Place {
            leftover,
            table: 0,
            from: None,
        });
        let (swept, place) = clear(core, place, queue, upto, budget - rows)?;
        rows += swept;
        broom.at = place;
    }
    core.rows.tend().map_err(ReadError::Fault)?;
    Ok(Swept {
        rows,
        more: rows >= budget,
    })
}

/// Nobody waits for a sweep; it is synced all the same, since a database may rely on what is written in it being synced
/// before the next write begins.
fn write<R: Rows>(core: &Core<R>, writes: Vec<Write>) -> Result<(), EngineError> {
    if writes.is_empty() {
        return Ok(());
    }
    core.write(writes, core.durability)
        .map_err(|error| refused(error).into())
}

/// Removes deduplication ids that have expired, two rows for each. An id that was remembered anew in the meantime
/// stays; the ledger is locked so that none can be between the look and the removal.
fn expire<R: Rows>(core: &Core<R>, now: Timestamp, budget: usize) -> Result<usize, EngineError> {
    let _ledger = core.ledger();
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
    let writes = expired.into_iter();
    write(
        core,
        writes.map(|key| unset(Table::Deduplication, key)).collect(),
    )?;
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
    // Rows are removed on the word of this one, so it had better be sound.
    let damaged = |source| ReadError::Damaged {
        what: "the note of a leftover".to_owned(),
        source,
    };
    record::decode_number(&key, &record).map_err(damaged)?;
    let (queue, upto) = keys::parse_leftover(&key)
        .ok_or_else(|| damaged(record::DecodeError::OutOfRange("key of a leftover")))?;
    Ok(Some((key, queue, upto)))
}

/// Removes up to `budget` rows of a leftover, and the note with the last of them. Returns how many rows, and where
/// to go on.
fn clear<R: Rows>(
    core: &Core<R>,
    mut place: Place,
    queue: QueueId,
    upto: Generation,
    budget: usize,
) -> Result<(usize, Option<Place>), EngineError> {
    let mut writes = Vec::new();
    {
        let view = core.rows.view();
        while let Some(&table) = SWEPT.get(place.table) {
            let (start, to) = match table {
                Table::Deduplication => keys::remembered_leftovers(queue, upto),
                Table::Catalog | Table::Messages | Table::Payloads => keys::leftovers(queue, upto),
            };
            let from = place.from.take().unwrap_or(start);
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
                    writes.push(unset(table, keys::expiry_of(&key, expires_at)));
                }
                writes.push(unset(table, key));
            }
            if writes.len() >= budget {
                place.from = last.map(|last| keys::following(&last));
                break;
            }
            place.table += 1;
        }
    }
    let rows = writes.len();
    let done = place.table == SWEPT.len();
    if done {
        writes.push(unset(Table::Catalog, place.leftover.clone()));
    }
    write(core, writes)?;
    // The note of a finished leftover counts as a row, so that a thousand empty ones are not swept at once.
    Ok(if done {
        (rows + 1, None)
    } else {
        (rows, Some(place))
    })
}
