//! What is in the log and what is beneath it, as one.

use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::kept::{self, Kept};
use super::memtable::{Memtable, Row};
use super::shelf::Shelf;
use crate::Fault;
use crate::rows::{Table, View};

/// Rows that are read from a memtable at once; its writer waits meanwhile.
const CHUNK: usize = 128;

/// All rows at one moment. Writers do not wait for it.
#[derive(Debug)]
pub struct LoggedView<'a, V> {
    /// The newest first.
    pub(super) memtables: Vec<Arc<Memtable>>,
    /// Of the last commit to be seen.
    pub(super) sequence: u64,
    pub(super) beneath: V,
    /// Where payloads are whose places are beneath.
    pub(super) shelf: &'a Shelf,
    /// So that they stay there.
    pub(super) _kept: Kept,
    /// How many views there are.
    pub(super) views: &'a AtomicUsize,
}

impl<V> Drop for LoggedView<'_, V> {
    fn drop(&mut self) {
        self.views.fetch_sub(1, Ordering::Release);
    }
}

impl<V: View> View for LoggedView<'_, V> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let found = self
            .memtables
            .iter()
            .find_map(|memtable| memtable.get(table, key, self.sequence));
        if let Some(found) = found {
            return Ok(found);
        }
        let record = self.beneath.get(table, key)?;
        let record = record.map(|record| self.resolved(table, key, record));
        record.transpose()
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
            beneath: self.beneath.range(table, from, to).peekable(),
        };
        merge.map(move |row| {
            let (key, found) = row?;
            match found {
                Found::Here(value) => Ok((key, value)),
                Found::Beneath(record) => {
                    let record = self.resolved(table, &key, record)?;
                    Ok((key, record))
                }
            }
        })
    }
}

impl<V> LoggedView<'_, V> {
    /// Returns a record that was found beneath, or the one whose place it is.
    fn resolved(&self, table: Table, key: &[u8], record: Bytes) -> Result<Bytes, Fault> {
        match table {
            Table::Payloads => kept::resolve(self.shelf, key, record),
            Table::Catalog | Table::Messages | Table::Deduplication => Ok(record),
        }
    }
}

/// The value of a row, and where it was.
enum Found {
    Here(Bytes),
    Beneath(Bytes),
}

/// The rows of a range in one memtable, removed ones too.
struct Walk<'a> {
    memtable: &'a Memtable,
    table: Table,
    sequence: u64,
    /// Where the next chunk begins; none if there is none.
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

    /// Takes the row under this key, if that is next.
    fn take(&mut self, key: &[u8]) -> Option<Option<Bytes>> {
        let row = self.chunk.next_if(|(next, _)| next[..] == *key);
        row.map(|(_, value)| value)
    }
}

/// Rows of a range in the order of their keys; of those under one key, the newest.
struct Merge<'a, I: Iterator> {
    /// The newest first.
    walks: Vec<Walk<'a>>,
    beneath: Peekable<I>,
}

impl<I> Merge<'_, I>
where
    I: Iterator<Item = Result<(Bytes, Bytes), Fault>>,
{
    fn next_beneath(&mut self) -> Option<Result<(Bytes, Found), Fault>> {
        let row = self.beneath.next()?;
        Some(row.map(|(key, record)| (key, Found::Beneath(record))))
    }
}

impl<I> Iterator for Merge<'_, I>
where
    I: Iterator<Item = Result<(Bytes, Bytes), Fault>>,
{
    type Item = Result<(Bytes, Found), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let first = self.walks.iter_mut().filter_map(Walk::peek).min().cloned();
            let Some(key) = first else {
                return self.next_beneath();
            };
            match self.beneath.peek() {
                Some(Ok((beneath, _))) if *beneath > key => {}
                // Nothing newer is under this key; nor is there anything to be told apart if it cannot be read.
                Some(Ok((beneath, _))) if *beneath < key => return self.next_beneath(),
                Some(Err(_)) => return self.next_beneath(),
                Some(Ok(_)) => drop(self.beneath.next()),
                None => {}
            }
            let mut newest = None;
            for walk in &mut self.walks {
                let found = walk.take(&key);
                newest = newest.or(found);
            }
            // What was removed is passed over.
            if let Some(value) = newest.flatten() {
                return Some(Ok((key, Found::Here(value))));
            }
        }
    }
}
