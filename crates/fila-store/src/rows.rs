//! The seam beneath [`Embedded`](crate::Embedded): ordered rows in a few tables, written together or not at all.
//!
//! An embedded database is put behind the store by implementing [`Rows`]: what rows mean, who may write them and
//! how they are swept is decided above, once for all databases.

use bytes::Bytes;

use crate::{Durability, Fault};

/// The tables, of which there are always these four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// What the store is, its queues, its runtime configuration, its leftovers.
    Catalog,
    /// What scheduling needs to know of messages. Read in ranges only.
    Messages,
    /// What messages carry.
    Payloads,
    /// Deduplication ids, and when they expire.
    Deduplication,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 4] = [
        Self::Catalog,
        Self::Messages,
        Self::Payloads,
        Self::Deduplication,
    ];

    /// Returns the name under which a database keeps the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Catalog => "catalog",
            Self::Messages => "messages",
            Self::Payloads => "payloads",
            Self::Deduplication => "deduplication",
        }
    }
}

/// A row to be set, or removed.
#[derive(Clone)]
pub struct Write {
    /// In which table.
    pub table: Table,
    /// Under which key. A list of writes has no key twice.
    pub key: Bytes,
    /// To what; none removes it.
    pub value: Option<Bytes>,
    /// Whether no row has ever had this key, for certain. Such a row need not be flushed if it is removed before.
    pub is_new: bool,
}

impl Write {
    /// Sets a row, or removes it.
    pub fn new(table: Table, key: impl Into<Bytes>, value: Option<Bytes>) -> Self {
        Self {
            table,
            key: key.into(),
            value,
            is_new: false,
        }
    }
}

impl std::fmt::Debug for Write {
    /// Shows where, and how much; never what.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("table", &self.table)
            .field("key_bytes", &self.key.len())
            .field("value_bytes", &self.value.as_ref().map(Bytes::len))
            .finish()
    }
}

/// A database of ordered rows.
pub trait Rows: Send + Sync + 'static {
    /// All rows at one moment.
    type View<'a>: View
    where
        Self: 'a;

    /// Returns all rows as they are now. Views are short-lived: one call of the store.
    fn view(&self) -> Self::View<'_>;

    /// Writes all of it or nothing, as durably as asked; not visible before it is.
    ///
    /// # Errors
    /// Says whether something may have been written.
    fn write(&self, writes: Vec<Write>, durability: Durability) -> Result<(), WriteError>;

    /// Takes in what is to be written by the next [`settle`](Self::settle), after all that was staged before it. What is
    /// staged later is written in no case without it.
    ///
    /// A database without halves writes at once.
    ///
    /// # Errors
    /// Says whether something may have been written.
    fn stage(&self, writes: Vec<Write>, durability: Durability) -> Result<(), WriteError> {
        self.write(writes, durability)
    }

    /// Writes what has been staged by now, as durably as asked; not visible before it is. More can be staged by others
    /// meanwhile.
    ///
    /// # Errors
    /// All of it may have been written, or a part: the first of what was staged.
    fn settle(&self) -> Result<(), WriteError> {
        Ok(())
    }

    /// Does what the database needs from time to time.
    ///
    /// # Errors
    /// If the database fails.
    fn maintain(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns how much room it takes.
    ///
    /// # Errors
    /// If the database cannot say.
    fn figures(&self) -> Result<Figures, Fault>;
}

/// All rows at one moment.
pub trait View {
    /// Returns the row under this key.
    ///
    /// # Errors
    /// If the database fails.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault>;

    /// Returns the rows from the first key on, up to and without the second, in order.
    fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>>;
}

/// Why rows were not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was written: the database has been opened by somebody else since.
    #[error("opened by somebody else")]
    Superseded,
    /// Nothing was written: an earlier write has failed.
    #[error("an earlier write has failed; check the disk")]
    Poisoned,
    /// All of it may have been written, or nothing. No more writes are taken.
    #[error("the write failed")]
    Unknown(#[source] Fault),
}

/// How much room a database takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes on disk, or in memory.
    pub bytes: u64,
    /// Journals.
    pub journals: usize,
}
