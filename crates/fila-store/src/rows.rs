//! The interface between [`Embedded`](crate::Embedded) and a database: ordered rows in four tables, written together or
//! not at all.
//!
//! An embedded database implements [`Rows`]. [`Embedded`](crate::Embedded) decides what the rows mean, which owner may
//! write them and how they are swept, in the same way for all databases.

use bytes::Bytes;

use crate::{Durability, Fault, TornLog};

/// The four tables of every store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The format version, the queues, the runtime configuration, and the leftovers.
    Catalog,
    /// The metadata of messages. Read in ranges only.
    Messages,
    /// The payloads of messages.
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

pub use crate::write_set::{Write, WriteSet};

/// A database of ordered rows.
pub trait Rows: Send + Sync + 'static {
    /// All rows at one moment.
    type View<'a>: View
    where
        Self: 'a;

    /// Returns all rows as they are now. A view lives for one call of the store.
    fn view(&self) -> Self::View<'_>;

    /// Returns a set without rows, to be filled and written. It may have the memory of an earlier one.
    fn write_set(&self) -> WriteSet {
        WriteSet::new()
    }

    /// Writes all rows or none, with the given durability. The rows become visible when they are durable.
    ///
    /// # Errors
    /// Says whether something may have been written.
    fn write(&self, writes: WriteSet, durability: Durability) -> Result<(), WriteError>;

    /// Takes rows that the next [`settle`](Self::settle) writes, after all rows that were staged before. The database never
    /// writes rows that were staged later without these.
    ///
    /// A database that cannot stage writes at once.
    ///
    /// # Errors
    /// Says whether something may have been written.
    fn stage(&self, writes: WriteSet, durability: Durability) -> Result<(), WriteError> {
        self.write(writes, durability)
    }

    /// Writes all rows that were staged before the call, with the durability given then. The rows become visible when they
    /// are durable. Other threads can stage more rows meanwhile.
    ///
    /// # Errors
    /// All rows may have been written, or only those that were staged first.
    fn settle(&self) -> Result<(), WriteError> {
        Ok(())
    }

    /// Runs the periodic maintenance of the database.
    ///
    /// # Errors
    /// If the database fails.
    fn maintain(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns whether the disk has room for more rows. Without it, the database still writes rows that remove others, or
    /// that are small. Takes a moment only.
    fn has_room(&self) -> bool {
        true
    }

    /// Returns whether a write may have to wait because the database is behind with its own work. Takes a moment only.
    fn may_wait(&self) -> bool {
        false
    }

    /// Returns the commits that were dropped when the database was opened.
    fn torn(&self) -> Option<TornLog> {
        None
    }

    /// Returns how much space it uses.
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
    /// Nothing was written: another engine has opened the database since.
    #[error("opened by somebody else")]
    Superseded,
    /// Nothing was written: an earlier write has failed.
    #[error("an earlier write has failed; check the disk")]
    Poisoned,
    /// All rows may have been written, or none. The database takes no more writes.
    #[error("the write failed")]
    Unknown(#[source] Fault),
}

/// How much space a database uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes on disk, or in memory.
    pub bytes: u64,
    /// Journals.
    pub journals: usize,
}
