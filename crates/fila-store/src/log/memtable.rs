//! The rows of one segment of the log, in memory and in order.
//!
//! Keys and small values are copied into chunks of memory that many rows share. Of a large payload a row says where it is
//! in the segment: most payloads are never read from here, and those that are come from the system's cache of the file.
//!
//! The rows of a message and of its payload have the same key, and are one entry: a commit finds its place once.
//!
//! A row keeps its older versions while views exist: a view reads the rows of the moment at which it was made, however long
//! it lives. Without views a newer version replaces the older one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::RwLock;

use bytes::{Bytes, BytesMut};

use super::segment_dir::AppendedFile;
use crate::rows::{Table, Write};
use crate::{Fault, sync};

/// Bytes of memory that an entry takes beside its key and values, about. Few in tests, so that small memtables are flushed
/// together.
const ENTRY: u64 = if cfg!(test) { 0 } else { 192 };

/// Bytes of a chunk of memory. It is freed with the last of its rows.
const CHUNK: usize = 64 << 10;

/// A key and its value.
pub(super) type Row = (Bytes, RowValue);

/// The value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowValue {
    /// The row was removed.
    Removed,
    /// In memory.
    Kept(Bytes),
    /// In the segment.
    InSegment {
        /// Its first byte.
        at: u32,
        /// Its bytes.
        length: u32,
    },
}

#[derive(Debug)]
pub(super) struct Memtable {
    /// The number of its segment.
    pub(super) number: u64,
    file: AppendedFile,
    /// Bytes of the smallest payload that stays in the segment.
    pointer_min: u64,
    rows: RwLock<MemtableRows>,
}

#[derive(Debug, Default)]
struct MemtableRows {
    trees: [RowTree; TREES],
    keeper: Keeper,
}

/// Where keys and values go.
#[derive(Debug, Default)]
struct Keeper {
    chunk: BytesMut,
    /// Bytes of all keys and values so far.
    bytes: u64,
}

type RowTree = BTreeMap<Bytes, RowSlots>;

/// The rows under one key. A table has its slot.
type RowSlots = [Option<RowVersion>; 2];

const TREES: usize = 3;

/// Returns in which tree a table is, and in which slot of its entries.
const fn place(table: Table) -> (usize, usize) {
    match table {
        Table::Catalog => (0, 0),
        Table::Messages => (1, 0),
        Table::Payloads => (1, 1),
        Table::Deduplication => (2, 0),
    }
}

#[derive(Debug)]
struct RowVersion {
    /// Sequence of the commit that wrote it.
    sequence: u64,
    /// Whether this key exists in no older memtable and not in the database.
    is_new: bool,
    value: RowValue,
    older: Option<Box<Self>>,
}

impl RowVersion {
    /// Returns whether the row was created and removed here, so that it need not be flushed.
    fn is_over(&self) -> bool {
        self.is_new && self.value == RowValue::Removed
    }

    /// Returns the value after this commit; none if the row was first written later.
    fn at(&self, sequence: u64) -> Option<&RowValue> {
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

impl Keeper {
    /// Copies bytes into a chunk of memory that many rows share.
    fn keep(&mut self, bytes: &[u8]) -> Bytes {
        self.bytes += bytes.len() as u64;
        if bytes.len() > CHUNK / 4 {
            return Bytes::copy_from_slice(bytes);
        }
        if self.chunk.capacity() < bytes.len() {
            self.chunk = BytesMut::with_capacity(CHUNK);
        }
        self.chunk.extend_from_slice(bytes);
        self.chunk.split().freeze()
    }
}

/// Writes a version of a row. The older ones stay if a view may read them.
fn set(slot: &mut Option<RowVersion>, mut version: RowVersion, keeps_older: bool) {
    if let Some(older) = slot.take() {
        version.is_new = older.is_new;
        if version.is_over() && !keeps_older {
            return;
        }
        version.older = keeps_older.then(|| Box::new(older));
    }
    *slot = Some(version);
}

impl Memtable {
    /// Returns a memtable for a segment. Payloads of at least `pointer_min` bytes stay in its file.
    pub(super) fn new(number: u64, file: AppendedFile, pointer_min: u64) -> Self {
        Self {
            number,
            file,
            pointer_min,
            rows: RwLock::default(),
        }
    }

    /// Applies a commit whose frame begins at `start` in the segment. Older versions stay if a view may read them.
    pub(super) fn apply<'a>(
        &self,
        sequence: u64,
        start: u64,
        writes: impl Iterator<Item = Write<'a>>,
        keeps_older: bool,
    ) {
        let mut rows = sync::write(&self.rows);
        let MemtableRows { trees, keeper } = &mut *rows;
        let mut writes = writes.peekable();
        while let Some(first) = writes.next() {
            let (tree, _) = place(first.table);
            let version_of = |write: Write<'_>, keeper: &mut Keeper| RowVersion {
                sequence,
                is_new: write.is_new,
                value: self.value(start, write, keeper),
                older: None,
            };
            let mut entry = trees[tree].entry(keeper.keep(first.key));
            let mut vacant = RowSlots::default();
            let slots = match &mut entry {
                Entry::Vacant(_) => &mut vacant,
                Entry::Occupied(entry) => entry.get_mut(),
            };
            let mut next = Some(first);
            while let Some(write) = next {
                let (_, slot) = place(write.table);
                set(&mut slots[slot], version_of(write, keeper), keeps_older);
                next = writes.next_if(|next| next.key == first.key && place(next.table).0 == tree);
            }
            let is_empty = slots.iter().all(Option::is_none);
            match entry {
                Entry::Vacant(entry) => drop(entry.insert(vacant)),
                Entry::Occupied(entry) if is_empty => drop(entry.remove()),
                Entry::Occupied(_) => {}
            }
        }
    }

    /// Returns the value that a commit writes, whose frame begins at `start`.
    fn value(&self, start: u64, write: Write<'_>, keeper: &mut Keeper) -> RowValue {
        match (write.value, self.pointer(start, &write)) {
            (None, _) => RowValue::Removed,
            (Some(_), Some((at, length))) => RowValue::InSegment { at, length },
            (Some(value), None) => RowValue::Kept(keeper.keep(value)),
        }
    }

    /// Returns where a value is in the segment, and its length, if it stays there. One beyond the range of an offset does
    /// not.
    fn pointer(&self, start: u64, write: &Write<'_>) -> Option<(u32, u32)> {
        let length = write.value?.len();
        if write.table != Table::Payloads || (length as u64) < self.pointer_min {
            return None;
        }
        let at = u32::try_from(start + write.at as u64).ok()?;
        Some((at, u32::try_from(length).ok()?))
    }

    /// Returns the value under this key after this commit; none if this memtable does not know the key.
    pub(super) fn get(&self, table: Table, key: &[u8], sequence: u64) -> Option<RowValue> {
        let rows = sync::read(&self.rows);
        let (tree, slot) = place(table);
        let version = rows.trees[tree].get(key)?[slot].as_ref()?;
        version.at(sequence).cloned()
    }

    /// Returns a value of this memtable; none if the row was removed.
    ///
    /// # Errors
    /// If the segment cannot be read.
    pub(super) fn read(&self, value: RowValue) -> Result<Option<Bytes>, Fault> {
        match value {
            RowValue::Removed => Ok(None),
            RowValue::Kept(value) => Ok(Some(value)),
            RowValue::InSegment { at, length } => {
                let value = self.file.read_value(at, length);
                value.map(Some).map_err(Fault::new)
            }
        }
    }

    /// Returns up to `limit` rows of a range as they were after this commit.
    pub(super) fn chunk(
        &self,
        table: Table,
        (from, to): (Bound<&[u8]>, &[u8]),
        sequence: u64,
        limit: usize,
    ) -> Chunk {
        let rows = sync::read(&self.rows);
        let mut chunk = Chunk::default();
        let (tree, slot) = place(table);
        let rows = rows.trees[tree].range::<[u8], _>((from, Bound::Excluded(to)));
        for (visited, (key, slots)) in rows.enumerate() {
            if let Some(value) = slots[slot].as_ref().and_then(|it| it.at(sequence)) {
                chunk.rows.push((key.clone(), value.clone()));
            }
            if visited + 1 == limit {
                chunk.last = Some(key.clone());
                break;
            }
        }
        chunk
    }

    /// Returns how many bytes of memory it takes, about.
    pub(super) fn memory(&self) -> u64 {
        let rows = sync::read(&self.rows);
        let entries: usize = rows.trees.iter().map(BTreeMap::len).sum();
        entries as u64 * ENTRY + rows.keeper.bytes
    }
}

/// A row to be flushed.
#[derive(Debug)]
pub(super) struct FlushedRow<'a> {
    pub(super) key: Bytes,
    pub(super) value: RowValue,
    /// The memtable that has the value.
    pub(super) memtable: &'a Memtable,
}

impl FlushedRow<'_> {
    /// Returns the value; none if the row was removed.
    ///
    /// # Errors
    /// If the segment cannot be read.
    pub(super) fn read(&self) -> Result<Option<Bytes>, Fault> {
        self.memtable.read(self.value.clone())
    }
}

/// Passes the newest rows of a table to `take`, in order. For frozen memtables of consecutive segments, the oldest first.
pub(super) fn newest<T>(
    memtables: &[&Memtable],
    table: Table,
    take: impl FnOnce(&mut dyn Iterator<Item = FlushedRow<'_>>) -> T,
) -> T {
    let (tree, slot) = place(table);
    let guards: Vec<_> = memtables.iter().map(|it| sync::read(&it.rows)).collect();
    let walks = guards.iter().map(|rows| {
        let rows = rows.trees[tree].iter();
        let rows = rows.filter_map(|(key, slots)| Some((key, slots[slot].as_ref()?)));
        rows.peekable()
    });
    let mut walks: Vec<_> = memtables.iter().zip(walks).collect();
    let mut rows = std::iter::from_fn(|| {
        loop {
            let next = walks.iter_mut().filter_map(|(_, rows)| rows.peek());
            let key = next.map(|(key, _)| *key).min()?;
            let mut is_new = None;
            let mut newest = None;
            for (memtable, rows) in &mut walks {
                if let Some((_, version)) = rows.next_if(|(next, _)| *next == key) {
                    is_new.get_or_insert(version.is_new);
                    newest = Some((*memtable, &version.value));
                }
            }
            let (memtable, value) = newest?;
            // A row that was created and removed here need not be flushed.
            if is_new == Some(true) && *value == RowValue::Removed {
                continue;
            }
            let (key, value) = (key.clone(), value.clone());
            return Some(FlushedRow {
                key,
                value,
                memtable,
            });
        }
    });
    take(&mut rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the smallest payload that stays in the segment.
    const POINTER_MIN: u64 = 8;

    fn memtable() -> Memtable {
        let file = AppendedFile::unnamed(tempfile::tempfile().unwrap());
        Memtable::new(1, file, POINTER_MIN)
    }

    fn set(key: &'static str, value: &'static str) -> Write<'static> {
        Write {
            table: Table::Messages,
            key: key.as_bytes(),
            value: Some(value.as_bytes()),
            is_new: false,
            at: 0,
        }
    }

    fn unset(key: &'static str) -> Write<'static> {
        Write {
            value: None,
            ..set(key, "")
        }
    }

    fn apply(memtable: &Memtable, sequence: u64, writes: &[Write<'_>], keeps_older: bool) {
        memtable.apply(sequence, 0, writes.iter().copied(), keeps_older);
    }

    fn get(memtable: &Memtable, key: &str, sequence: u64) -> Option<Option<Bytes>> {
        let value = memtable.get(Table::Messages, key.as_bytes(), sequence);
        value.map(|value| memtable.read(value).unwrap())
    }

    #[test]
    fn a_view_sees_what_was_there_when_it_was_made() {
        let memtable = memtable();
        apply(&memtable, 1, &[set("a", "old")], true);
        apply(&memtable, 2, &[set("a", "new"), set("b", "new")], true);
        apply(&memtable, 3, &[unset("a")], true);
        assert_eq!(get(&memtable, "a", 0), None);
        assert_eq!(get(&memtable, "a", 1), Some(Some("old".into())));
        assert_eq!(get(&memtable, "b", 1), None);
        assert_eq!(get(&memtable, "a", 2), Some(Some("new".into())));
        assert_eq!(get(&memtable, "a", 3), Some(None));
    }

    #[test]
    fn older_versions_go_when_there_is_no_view() {
        let memtable = memtable();
        apply(&memtable, 1, &[set("a", "old")], false);
        apply(&memtable, 2, &[unset("a")], false);
        assert_eq!(get(&memtable, "a", 1), None);
        assert_eq!(get(&memtable, "a", 2), Some(None));
    }

    #[test]
    fn a_new_row_that_was_removed_again_is_not_flushed() {
        for keeps_older in [false, true] {
            let memtable = memtable();
            let new = |key| Write {
                is_new: true,
                ..set(key, "new")
            };
            apply(
                &memtable,
                1,
                &[new("gone"), new("kept"), set("old", "1")],
                keeps_older,
            );
            apply(&memtable, 2, &[set("gone", "updated")], keeps_older);
            apply(&memtable, 3, &[unset("gone"), unset("old")], keeps_older);
            let flushed = flushed(&[&memtable]);
            let expected = [
                ("kept", RowValue::Kept("new".into())),
                ("old", RowValue::Removed),
            ];
            let expected = expected.map(|(key, value)| (key.into(), value));
            assert_eq!(flushed, expected);
            assert_eq!(get(&memtable, "gone", 3).flatten(), None);
            let seen_by_an_older_view = keeps_older.then(|| "updated".into());
            assert_eq!(get(&memtable, "gone", 2).flatten(), seen_by_an_older_view);
        }
    }

    /// Returns the messages that a flush of these memtables writes.
    fn flushed(memtables: &[&Memtable]) -> Vec<Row> {
        newest(memtables, Table::Messages, |rows| {
            rows.map(|row| (row.key, row.value)).collect()
        })
    }

    #[test]
    fn memtables_that_are_flushed_together_give_the_newest_row_of_each_key() {
        let [first, second, third] = [memtable(), memtable(), memtable()];
        let new = |key| Write {
            is_new: true,
            ..set(key, "1")
        };
        let all = [new("gone"), new("kept"), new("late"), set("old", "1")];
        apply(&first, 1, &all, false);
        apply(&second, 2, &[unset("gone"), set("kept", "2")], false);
        apply(
            &third,
            3,
            &[unset("late"), unset("old"), set("x", "3")],
            false,
        );
        let row = |key: &'static str, value: Option<&'static str>| {
            let value = value.map(|value| RowValue::Kept(value.into()));
            (Bytes::from(key), value.unwrap_or(RowValue::Removed))
        };
        let expected = [
            row("kept", Some("2")),
            row("old", None),
            row("x", Some("3")),
        ];
        assert_eq!(flushed(&[&first, &second, &third]), expected);
        // The rows of the first are in the database then, so the others remove them there.
        let expected = [
            row("gone", None),
            row("kept", Some("2")),
            row("late", None),
            row("old", None),
            row("x", Some("3")),
        ];
        assert_eq!(flushed(&[&second, &third]), expected);
    }

    #[test]
    fn chunks_of_a_range_join_without_a_gap() {
        let memtable = memtable();
        apply(
            &memtable,
            1,
            &[set("a", "1"), set("c", "1"), set("d", "1")],
            true,
        );
        apply(
            &memtable,
            2,
            &[set("b", "2"), unset("c"), set("e", "2")],
            true,
        );
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
                rows.map(|(key, value)| (key, value != RowValue::Removed))
                    .collect::<Vec<_>>()
            };
            let before = [("a", true), ("c", true), ("d", true)];
            assert_eq!(keys(1), before.map(|(key, set)| (Bytes::from(key), set)));
            let after = [("a", true), ("b", true), ("c", false), ("d", true)];
            assert_eq!(keys(2), after.map(|(key, set)| (Bytes::from(key), set)));
        }
    }

    #[test]
    fn a_large_payload_stays_in_the_segment_and_a_small_one_does_not() {
        use std::io::Write as _;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"head, then a large payload").unwrap();
        let memtable = Memtable::new(1, AppendedFile::unnamed(file), POINTER_MIN);
        let payload = |key, value, at| Write {
            table: Table::Payloads,
            at,
            ..set(key, value)
        };
        let writes = [
            payload("large", "a large payload", 7),
            payload("small", "small", 0),
        ];
        memtable.apply(1, 4, writes.into_iter(), false);
        let get = |key: &str| memtable.get(Table::Payloads, key.as_bytes(), 1).unwrap();
        let stays = RowValue::InSegment { at: 11, length: 15 };
        assert_eq!(get("large"), stays);
        assert_eq!(get("small"), RowValue::Kept("small".into()));
        let read = memtable.read(stays).unwrap();
        assert_eq!(read, Some("a large payload".into()));
    }

    #[test]
    fn a_payload_beyond_the_range_of_an_offset_is_kept_in_memory() {
        let memtable = memtable();
        let write = Write {
            table: Table::Payloads,
            ..set("key", "a large payload")
        };
        memtable.apply(1, 1 << 32, std::iter::once(write), false);
        let found = memtable.get(Table::Payloads, b"key", 1);
        assert_eq!(found, Some(RowValue::Kept("a large payload".into())));
    }

    #[test]
    fn a_message_and_its_payload_are_one_entry_that_goes_with_the_last_of_them() {
        let memtable = memtable();
        let payload = |write| Write {
            table: Table::Payloads,
            is_new: true,
            ..write
        };
        let message = |write| Write {
            is_new: true,
            ..write
        };
        let entries = || memtable.rows.read().unwrap().trees[1].len();
        let value = |table| memtable.get(table, b"a", 9);
        apply(
            &memtable,
            1,
            &[message(set("a", "meta")), payload(set("a", "body"))],
            false,
        );
        assert_eq!(entries(), 1);
        assert_eq!(value(Table::Messages), Some(RowValue::Kept("meta".into())));
        assert_eq!(value(Table::Payloads), Some(RowValue::Kept("body".into())));
        apply(&memtable, 2, &[message(unset("a"))], false);
        assert_eq!((value(Table::Messages), entries()), (None, 1));
        assert_eq!(value(Table::Payloads), Some(RowValue::Kept("body".into())));
        apply(&memtable, 3, &[payload(unset("a"))], false);
        assert_eq!((value(Table::Payloads), entries()), (None, 0));
    }
}
