//! The rows of one segment of the log, in memory and in order.
//!
//! A row keeps its older versions while views exist: a view reads the rows of the moment at which it was made, however long
//! it lives. Without views a newer version replaces the older one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::RwLock;

use bytes::Bytes;

use crate::rows::{Table, Write};
use crate::sync;

/// A key and its value; none if it was removed.
pub(super) type Row = (Bytes, Option<Bytes>);

type MemtableRows = [BTreeMap<Bytes, RowVersion>; Table::ALL.len()];

#[derive(Debug)]
pub(super) struct Memtable {
    /// The number of its segment.
    pub(super) number: u64,
    tables: RwLock<MemtableRows>,
}

#[derive(Debug)]
struct RowVersion {
    /// Sequence of the commit that wrote it.
    sequence: u64,
    /// Whether this key exists in no older memtable and not in the database.
    is_new: bool,
    /// Where its value is in the segment; 0 if it has none, or its offset is unknown.
    offset: u32,
    value: Option<Bytes>,
    older: Option<Box<Self>>,
}

impl RowVersion {
    /// Returns whether the row was created and removed here, so that it need not be flushed.
    fn is_over(&self) -> bool {
        self.is_new && self.value.is_none()
    }

    /// Returns the value after this commit; the outer none if the row was first written later.
    fn at(&self, sequence: u64) -> Option<&Option<Bytes>> {
        let mut version = self;
        while version.sequence > sequence {
            version = version.older.as_deref()?;
        }
        Some(&version.value)
    }
}

/// Some rows of a range, and where to go on.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) rows: Vec<Row>,
    /// The last key that was visited, if there may be more.
    pub(super) last: Option<Bytes>,
}

impl Memtable {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            tables: RwLock::default(),
        }
    }

    /// Applies a commit whose values have these offsets in the segment. Older versions stay if a view may read them.
    pub(super) fn apply(
        &self,
        sequence: u64,
        writes: Vec<Write>,
        offsets: &[u32],
        keeps_older: bool,
    ) {
        let mut tables = sync::write(&self.tables);
        let offsets = offsets.iter().copied().chain(std::iter::repeat(0));
        for (write, offset) in writes.into_iter().zip(offsets) {
            let mut version = RowVersion {
                sequence,
                is_new: write.is_new,
                offset,
                value: write.value,
                older: None,
            };
            match tables[write.table as usize].entry(write.key) {
                Entry::Vacant(entry) => drop(entry.insert(version)),
                Entry::Occupied(mut entry) => {
                    version.is_new = entry.get().is_new;
                    if version.is_over() && !keeps_older {
                        entry.remove();
                        continue;
                    }
                    let older = entry.insert(version);
                    if keeps_older {
                        entry.get_mut().older = Some(Box::new(older));
                    }
                }
            }
        }
    }

    /// Returns the value under this key after this commit; the outer none if this memtable does not know the key.
    pub(super) fn get(&self, table: Table, key: &[u8], sequence: u64) -> Option<Option<Bytes>> {
        let tables = sync::read(&self.tables);
        let version = tables[table as usize].get(key)?;
        version.at(sequence).cloned()
    }

    /// Returns up to `limit` rows of a range as they were after this commit.
    pub(super) fn chunk(
        &self,
        table: Table,
        (from, to): (Bound<&[u8]>, &[u8]),
        sequence: u64,
        limit: usize,
    ) -> Chunk {
        let tables = sync::read(&self.tables);
        let mut chunk = Chunk::default();
        let rows = tables[table as usize].range::<[u8], _>((from, Bound::Excluded(to)));
        for (visited, (key, version)) in rows.enumerate() {
            if let Some(value) = version.at(sequence) {
                chunk.rows.push((key.clone(), value.clone()));
            }
            if visited + 1 == limit {
                chunk.last = Some(key.clone());
                break;
            }
        }
        chunk
    }

    /// Passes the newest rows of a table to `take`, in order. For a frozen memtable.
    pub(super) fn newest<T>(
        &self,
        table: Table,
        take: impl FnOnce(&mut dyn Iterator<Item = Row>) -> T,
    ) -> T {
        self.newest_with_offsets(table, |rows| take(&mut rows.map(|(row, _)| row)))
    }

    /// Passes the newest rows of a table, with the offset of each value, to `take`, in order. For a frozen memtable.
    pub(super) fn newest_with_offsets<T>(
        &self,
        table: Table,
        take: impl FnOnce(&mut dyn Iterator<Item = (Row, u32)>) -> T,
    ) -> T {
        let tables = sync::read(&self.tables);
        let rows = tables[table as usize].iter();
        let rows = rows.filter(|(_, version)| !version.is_over());
        take(&mut rows.map(|(key, version)| {
            let row = (key.clone(), version.value.clone());
            (row, version.offset)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &'static str, value: &'static str) -> Write {
        Write::new(Table::Messages, key, Some(value.into()))
    }

    fn unset(key: &'static str) -> Write {
        Write::new(Table::Messages, key, None)
    }

    fn get(memtable: &Memtable, key: &str, sequence: u64) -> Option<Option<Bytes>> {
        memtable.get(Table::Messages, key.as_bytes(), sequence)
    }

    #[test]
    fn a_view_sees_what_was_there_when_it_was_made() {
        let memtable = Memtable::new(1);
        memtable.apply(1, vec![set("a", "old")], &[], true);
        memtable.apply(2, vec![set("a", "new"), set("b", "new")], &[], true);
        memtable.apply(3, vec![unset("a")], &[], true);
        assert_eq!(get(&memtable, "a", 0), None);
        assert_eq!(get(&memtable, "a", 1), Some(Some("old".into())));
        assert_eq!(get(&memtable, "b", 1), None);
        assert_eq!(get(&memtable, "a", 2), Some(Some("new".into())));
        assert_eq!(get(&memtable, "a", 3), Some(None));
    }

    #[test]
    fn older_versions_go_when_there_is_no_view() {
        let memtable = Memtable::new(1);
        memtable.apply(1, vec![set("a", "old")], &[], false);
        memtable.apply(2, vec![unset("a")], &[], false);
        assert_eq!(get(&memtable, "a", 1), None);
        assert_eq!(get(&memtable, "a", 2), Some(None));
    }

    #[test]
    fn a_new_row_that_was_removed_again_is_not_flushed() {
        for keeps_older in [false, true] {
            let memtable = Memtable::new(1);
            let new = |key| Write {
                is_new: true,
                ..set(key, "new")
            };
            memtable.apply(
                1,
                vec![new("gone"), new("kept"), set("old", "1")],
                &[],
                keeps_older,
            );
            memtable.apply(2, vec![set("gone", "updated")], &[], keeps_older);
            memtable.apply(3, vec![unset("gone"), unset("old")], &[], keeps_older);
            let flushed = memtable.newest(Table::Messages, |rows| rows.collect::<Vec<_>>());
            let expected = [("kept", Some("new")), ("old", None)];
            let expected = expected.map(|(key, value)| (key.into(), value.map(Bytes::from)));
            assert_eq!(flushed, expected);
            assert_eq!(get(&memtable, "gone", 3).flatten(), None);
            let seen_by_an_older_view = keeps_older.then(|| "updated".into());
            assert_eq!(get(&memtable, "gone", 2).flatten(), seen_by_an_older_view);
        }
    }

    #[test]
    fn chunks_of_a_range_join_without_a_gap() {
        let memtable = Memtable::new(1);
        memtable.apply(
            1,
            vec![set("a", "1"), set("c", "1"), set("d", "1")],
            &[],
            true,
        );
        memtable.apply(2, vec![set("b", "2"), unset("c"), set("e", "2")], &[], true);
        let all = |sequence, limit| {
            let mut rows = Vec::new();
            let mut from = Bound::Unbounded;
            loop {
                let range = (from.as_ref().map(|key: &Bytes| &key[..]), &b"e"[..]);
                let chunk = memtable.chunk(Table::Messages, range, sequence, limit);
                rows.extend(chunk.rows);
                match chunk.last {
                    Some(key) => from = Bound::Excluded(key),
                    None => return rows,
                }
            }
        };
        for limit in 1..6 {
            let keys = |sequence| {
                let rows = all(sequence, limit).into_iter();
                rows.map(|(key, value)| (key, value.is_some()))
                    .collect::<Vec<_>>()
            };
            let before = [("a", true), ("c", true), ("d", true)];
            assert_eq!(keys(1), before.map(|(key, set)| (Bytes::from(key), set)));
            let after = [("a", true), ("b", true), ("c", false), ("d", true)];
            assert_eq!(keys(2), after.map(|(key, set)| (Bytes::from(key), set)));
        }
    }
}
