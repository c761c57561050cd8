//! The rows of one commit, in one buffer: as the body of a frame of the log, in which they are encoded once.
//!
//! A row is a byte for its table, to which [`SET`] is added unless it is removed and [`SAME_KEY`] if it has the key of
//! the row before; then the length of its key (four bytes) and the key, unless that is the same; then, if it is set, the
//! length of its value (four bytes) and the value. Numbers are big-endian.

use std::ops::Range;

use crate::rows::Table;

/// Bytes before the first row: room for the head of a frame.
pub(crate) const HEAD: usize = 32;

pub(crate) const SET: u8 = 0x80;
pub(crate) const SAME_KEY: u8 = 0x40;

/// Bytes that the buffer of an emptied set keeps, at most.
const KEPT_MAX: usize = 4 << 20;

/// Rows to be set or removed, in one commit.
///
/// It allocates for the commit and not for a row, and a set that is cleared and filled again does not
/// allocate.
#[derive(Clone)]
pub struct WriteSet {
    /// Room for a head, then the rows.
    bytes: Vec<u8>,
    spans: Vec<RowSpan>,
}

/// A row to be set, or removed.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// Its table.
    pub table: Table,
    /// Its key. A set has no key twice.
    pub key: &'a [u8],
    /// Its new value; none removes the row.
    pub value: Option<&'a [u8]>,
    /// Whether it is certain that no row has ever had this key. If such a row is removed before the flush, the flush can
    /// skip it.
    pub is_new: bool,
    /// Where its value begins in the frame; 0 if it has none.
    pub(crate) at: usize,
}

/// Where the parts of a row are in the buffer.
#[derive(Clone, Debug)]
struct RowSpan {
    table: Table,
    is_new: bool,
    key: Range<usize>,
    value: Option<Range<usize>>,
}

impl Default for WriteSet {
    fn default() -> Self {
        Self::new()
    }
}

impl WriteSet {
    /// Returns a set without rows.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; HEAD],
            spans: Vec::new(),
        }
    }

    /// Sets a row.
    pub fn set(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.set_with(table, key, |bytes| bytes.extend_from_slice(value));
    }

    /// Sets a row to the bytes that `encode` appends.
    pub(crate) fn set_with(&mut self, table: Table, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        self.push(table, key, Some(encode));
    }

    /// Sets a row of which it is certain that no row has ever had its key.
    pub(crate) fn set_new(&mut self, table: Table, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        self.push(table, key, Some(encode)).is_new = true;
    }

    /// Removes a row.
    pub fn unset(&mut self, table: Table, key: &[u8]) {
        self.push(table, key, None::<fn(&mut Vec<u8>)>);
    }

    fn push(
        &mut self,
        table: Table,
        key: &[u8],
        encode: Option<impl FnOnce(&mut Vec<u8>)>,
    ) -> &mut RowSpan {
        let bytes = &mut self.bytes;
        let before = self.spans.last().map(|span| &span.key);
        let same = before.filter(|before| bytes[(*before).clone()] == *key);
        let set = if encode.is_some() { SET } else { 0 };
        let key = match same.cloned() {
            Some(same) => {
                bytes.push(table as u8 | set | SAME_KEY);
                same
            }
            None => {
                bytes.push(table as u8 | set);
                framed(bytes, |bytes| bytes.extend_from_slice(key))
            }
        };
        let value = encode.map(|encode| framed(bytes, encode));
        self.spans.push(RowSpan {
            table,
            is_new: false,
            key,
            value,
        });
        self.spans.last_mut().expect("a span was just pushed")
    }

    /// Says of no row any more that its key is certainly new.
    pub(crate) fn forget_new(&mut self) {
        self.spans.iter_mut().for_each(|span| span.is_new = false);
    }

    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns how many of the rows are removed.
    pub(crate) fn removed(&self) -> usize {
        let removed = self.spans.iter().filter(|span| span.value.is_none());
        removed.count()
    }

    /// Returns the rows in their order.
    pub fn iter(&self) -> impl Iterator<Item = Write<'_>> {
        self.spans.iter().map(|span| Write {
            table: span.table,
            key: &self.bytes[span.key.clone()],
            value: span.value.clone().map(|value| &self.bytes[value]),
            is_new: span.is_new,
            at: span.value.as_ref().map_or(0, |value| value.start),
        })
    }

    /// Returns the bytes of the rows, with [`HEAD`] bytes before them.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the same, to write a head.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Removes all rows, and keeps the memory, unless it is much.
    pub(crate) fn clear(&mut self) {
        self.spans.clear();
        self.bytes.truncate(HEAD);
        self.bytes.shrink_to(KEPT_MAX);
        self.spans
            .shrink_to(KEPT_MAX / std::mem::size_of::<RowSpan>());
    }
}

/// Appends bytes after their length, and returns where they are. A frame that is too long for lengths of four bytes is
/// refused as a whole.
fn framed(bytes: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
    bytes.extend_from_slice(&[0; 4]);
    let start = bytes.len();
    encode(bytes);
    let end = bytes.len();
    let length = ((end - start) as u32).to_be_bytes();
    bytes[start - 4..start].copy_from_slice(&length);
    start..end
}

impl std::fmt::Debug for WriteSet {
    /// Shows the tables and the sizes, and never the content.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl std::fmt::Debug for Write<'_> {
    /// Shows the table and the sizes, and never the content.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("table", &self.table)
            .field("key_bytes", &self.key.len())
            .field("value_bytes", &self.value.map(<[u8]>::len))
            .finish()
    }
}
