//! Memtables that are flushed together.
//!
//! A flush makes a table of the database for each kind of row, syncs it, and has it merged with the others later. That is
//! cheaper for a few large tables than for many small ones. Rows that are created in one memtable of the lot and removed in
//! another are not flushed at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::flush::{FlushMark, FlushTarget, FrozenMemtable};
use super::memtable::{self, FlushedRow, Memtable, RowValue};
use super::value_log::{self, PayloadCounts};
use crate::Fault;
use crate::record::{self, ValuePointer};
use crate::rows::Table;

/// Frozen memtables of consecutive segments, at least one.
#[derive(Debug)]
pub(super) struct FlushLot {
    /// The oldest first.
    pub(super) frozen: Vec<FrozenMemtable>,
}

impl FlushLot {
    pub(super) fn contains(&self, memtable: &Arc<Memtable>) -> bool {
        let mut memtables = self.frozen.iter().map(|frozen| &frozen.memtable);
        memtables.any(|it| Arc::ptr_eq(it, memtable))
    }

    /// Returns how many bytes of payloads are in each segment and not removed in this lot.
    pub(super) fn live_bytes(&self) -> BTreeMap<u64, u64> {
        let mut live = BTreeMap::new();
        self.newest(Table::Payloads, |rows| {
            for row in rows {
                if let RowValue::InSegment { length, .. } = row.value {
                    *live.entry(row.memtable.number).or_default() += u64::from(length);
                }
            }
        });
        live
    }

    /// Flushes the rows, then the mark. Of the segments that stay as blobs, pointers stand for the payloads; other payloads
    /// are flushed themselves.
    pub(super) fn flush<D: FlushTarget>(
        &self,
        database: &D,
        blobs: &BTreeSet<u64>,
    ) -> Result<PayloadCounts, Fault> {
        self.ingest(database, Table::Deduplication, |row| row.read())?;
        let counts = self.flush_payloads(database, blobs)?;
        self.ingest(database, Table::Messages, |row| row.read())?;
        let catalog = self.newest(Table::Catalog, |rows| {
            rows.map(|row| Ok((row.key.clone(), row.read()?)))
                .collect::<Result<BTreeMap<_, _>, Fault>>()
        });
        let mut catalog = catalog?;
        for frozen in &self.frozen {
            let number = frozen.memtable.number;
            let mark = FlushMark {
                segment: number,
                sequence: frozen.sequence,
            };
            // The last one stays.
            catalog.extend(mark.rows());
            if blobs.contains(&number) {
                catalog.extend([value_log::listed(number, frozen.bytes)]);
            }
        }
        database.ingest(Table::Catalog, &mut catalog.into_iter())?;
        Ok(counts)
    }

    fn flush_payloads<D: FlushTarget>(
        &self,
        database: &D,
        blobs: &BTreeSet<u64>,
    ) -> Result<PayloadCounts, Fault> {
        let mut counts = PayloadCounts::default();
        self.ingest(database, Table::Payloads, |row| {
            counts.note(row.value != RowValue::Removed);
            let segment = row.memtable.number;
            match row.value {
                RowValue::InSegment { at, length } if blobs.contains(&segment) => {
                    let pointer = ValuePointer {
                        segment,
                        at,
                        length,
                    };
                    let key = &row.key;
                    let record =
                        record::encoded(|bytes| record::encode_value_pointer(bytes, key, pointer));
                    Ok(Some(record))
                }
                _ => row.read(),
            }
        })?;
        Ok(counts)
    }

    /// Ingests the newest rows of a table, with the values that `value` returns.
    fn ingest<D: FlushTarget>(
        &self,
        database: &D,
        table: Table,
        mut value: impl FnMut(&FlushedRow<'_>) -> Result<Option<Bytes>, Fault>,
    ) -> Result<(), Fault> {
        let mut failure = None;
        self.newest(table, |rows| {
            let mut rows = rows.map_while(|row| match value(&row) {
                Ok(value) => Some((row.key, value)),
                Err(fault) => {
                    failure = Some(fault);
                    None
                }
            });
            database.ingest(table, &mut rows)
        })?;
        // The rows before the failure are written, which does no harm: the mark is not.
        failure.map_or(Ok(()), Err)
    }

    fn newest<T>(
        &self,
        table: Table,
        take: impl FnOnce(&mut dyn Iterator<Item = FlushedRow<'_>>) -> T,
    ) -> T {
        let memtables = self.frozen.iter().map(|frozen| &*frozen.memtable);
        memtable::newest(&memtables.collect::<Vec<_>>(), table, take)
    }
}
