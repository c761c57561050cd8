//! The rows of the memtables and of the database, merged.

use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::memtable::{Memtable, Row, RowValue};
use super::segment_dir::SegmentDir;
use super::value_log::{self, BlobSegments};
use crate::Fault;
use crate::rows::{Table, View};

/// Rows that are read from a memtable at once. Commits wait meanwhile.
const CHUNK: usize = 128;

/// All rows at one moment. Writers do not wait for it.
#[derive(Debug)]
pub struct LoggedView<'a, V> {
    /// The newest first.
    pub(super) memtables: Vec<Arc<Memtable>>,
    /// Sequence of the last commit that it sees.
    pub(super) sequence: u64,
    pub(super) database: V,
    /// Where the payloads are that the database has pointers to.
    pub(super) dir: &'a SegmentDir,
    /// Held so that their files stay.
    pub(super) _blobs: BlobSegments,
    /// The number of views, which this one has raised.
    pub(super) views: &'a AtomicUsize,
}

impl<V> Drop for LoggedView<'_, V> {
    fn drop(&mut self) {
        self.views.fetch_sub(1, Ordering::Release);
    }
}

impl<V: View> View for LoggedView<'_, V> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let found = self.memtables.iter().find_map(|memtable| {
            let value = memtable.get(table, key, self.sequence)?;
            Some(memtable.read(value))
        });
        if let Some(found) = found {
            return found;
        }
        self.database
            .get(table, key)?
            .map(|record| self.resolve(table, key, record))
            .transpose()
    }

    fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>> {
        let walks = self.memtables.iter().map(|memtable| Walk {
            memtable,
            table,
            sequence: self.sequence,
            next: (from < to).then(|| Bound::Included(Bytes::copy_from_slice(from))),
            to: Bytes::copy_from_slice(to),
            chunk: Vec::new().into_iter().peekable(),
        });
        let merge = Merge {
            walks: walks.collect(),
            database: self.database.range(table, from, to).peekable(),
        };
        merge.map(move |row| {
            let (key, found) = row?;
            match found {
                MergedValue::Memtable(value) => Ok((key, value)),
                MergedValue::Database(record) => {
                    let record = self.resolve(table, &key, record)?;
                    Ok((key, record))
                }
            }
        })
    }
}

impl<V> LoggedView<'_, V> {
    /// Returns a record of the database, or the one that it points to.
    fn resolve(&self, table: Table, key: &[u8], record: Bytes) -> Result<Bytes, Fault> {
        match table {
            Table::Payloads => value_log::resolve(self.dir, key, record),
            Table::Catalog | Table::Messages | Table::Deduplication => Ok(record),
        }
    }
}

/// The value of a row, by its origin.
enum MergedValue {
    Memtable(Bytes),
    Database(Bytes),
}

/// The rows of a range in one memtable, removed ones too.
struct Walk<'a> {
    memtable: &'a Memtable,
    table: Table,
    sequence: u64,
    /// Where the next chunk begins; none after the last one.
    next: Option<Bound<Bytes>>,
    to: Bytes,
    chunk: Peekable<std::vec::IntoIter<Row>>,
}

impl Walk<'_> {
    fn peek(&mut self) -> Option<&Bytes> {
        while self.chunk.peek().is_none() {
            let next = self.next.take()?;
            let from = next.as_ref().map(|key| &key[..]);
            let range = (from, &self.to[..]);
            let chunk = self.memtable.chunk(self.table, range, self.sequence, CHUNK);
            self.next = chunk.last.map(Bound::Excluded);
            self.chunk = chunk.rows.into_iter().peekable();
        }
        self.chunk.peek().map(|(key, _)| key)
    }

    /// Takes the next row if it has this key.
    fn take(&mut self, key: &[u8]) -> Option<RowValue> {
        let row = self.chunk.next_if(|(next, _)| next[..] == *key);
        row.map(|(_, value)| value)
    }
}

/// Rows of a range in the order of their keys; of those under one key, the newest.
struct Merge<'a, I: Iterator> {
    /// The newest first.
    walks: Vec<Walk<'a>>,
    database: Peekable<I>,
}

impl<I> Merge<'_, I>
where
    I: Iterator<Item = Result<(Bytes, Bytes), Fault>>,
{
    fn next_in_database(&mut self) -> Option<Result<(Bytes, MergedValue), Fault>> {
        let row = self.database.next()?;
        Some(row.map(|(key, record)| (key, MergedValue::Database(record))))
    }
}

impl<I> Iterator for Merge<'_, I>
where
    I: Iterator<Item = Result<(Bytes, Bytes), Fault>>,
{
    type Item = Result<(Bytes, MergedValue), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let first = self.walks.iter_mut().filter_map(Walk::peek).min().cloned();
            let Some(key) = first else {
                return self.next_in_database();
            };
            match self.database.peek() {
                Some(Ok((next, _))) if *next > key => {}
                Some(Ok((next, _))) if *next < key => return self.next_in_database(),
                Some(Err(_)) => return self.next_in_database(),
                // A memtable has a newer version of this row.
                Some(Ok(_)) => drop(self.database.next()),
                None => {}
            }
            let mut newest = None;
            for walk in &mut self.walks {
                let found = walk.take(&key).map(|value| (walk.memtable, value));
                newest = newest.or(found);
            }
            let read = newest.map(|(memtable, value)| memtable.read(value));
            // A removed row is skipped.
            if let Some(value) = read.and_then(Result::transpose) {
                return Some(value.map(|value| (key, MergedValue::Memtable(value))));
            }
        }
    }
}
