//! Rows in [`fjall`], a log-structured merge tree in pure Rust, behind a [log](Logged) of our own: the default engine.
//!
//! Almost everything gets here a segment of the log at a time, as tables that are sorted already; its own journal and
//! memtables have small remains only.
//!
//! # What is done about its known traps
//! - A keyspace that nobody writes to keeps old journals from being deleted ([fjall#288]). There are four keyspaces
//!   and never more, [`maintain`](Rows::maintain) rotates the memtables of those that are idle while a sealed journal
//!   waits, and the number of journals is part of [`Health`](crate::Health).
//! - Commits stall when flushing falls behind ([fjall#293]), and have stalled after a recovery ([fjall#257]): the
//!   server is to watch the latency of commits, and the crash test writes after every recovery.
//! - Of several workers, the first passes every request to merge tables on to the next as fast as it can, for as long as
//!   that is busy: a quarter of the processor's time of a server under load. There is one worker.
//! - Options of a keyspace are fixed when it is created. Changing one is a change of schema.
//! - Its recovery refuses what a power cut may leave, and takes some damage for the end of a journal: see `mend`.
//! - The directory of a new keyspace is made and filled, but its own name is never synced: after a power cut the
//!   keyspace may be gone, and with it, in silence, what the journal holds for it. So all directories are synced
//!   when the store is opened, before anything is confirmed.
//!
//! # What always holds
//! A batch is journalled, then synced, then made visible: nothing can be read that is not as durable as the engine's
//! level says. Reads go through a snapshot, since reading without one may see half a batch. Rows are removed by
//! full tombstones: a weak one revives the older of two versions of a row, and a repeated commit writes a second.
//!
//! [fjall#288]: https://github.com/fjall-rs/fjall/issues/288
//! [fjall#293]: https://github.com/fjall-rs/fjall/issues/293
//! [fjall#257]: https://github.com/fjall-rs/fjall/issues/257

mod mend;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, FilterPolicy};
use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable, Snapshot,
};

use crate::activity::Activity;
use crate::rows::{Figures, Rows, Table, View, Write, WriteError};
use crate::{Durability, Embedded, Fault, FlushTarget, Logged, OpenError};

/// Bytes that the database itself collects of a table; what it gets so is little.
const MEMTABLE_BYTES: u64 = 4 << 20;

/// Bytes of the database's own journals; it does not take less.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Tables that overlap before they are merged. To merge sooner makes ranges cheaper to read, for each of these tables is
/// looked at; but every row is merged the more often, and while a backlog grows that takes more of the processor than
/// anything else. With sixteen, a backlog of 100,000 keys was drained a quarter more slowly, and none grew much faster.
const TABLES_MERGED: u8 = 8;

/// Tables that overlap, at most. While there are more, nothing is filed.
const TABLES_UNMERGED: usize = 2 * TABLES_MERGED as usize;

/// A store in a directory of its own, which it locks.
///
/// It is closed, and the directory free, when the engine and all its shards have been dropped.
pub type FjallEngine = Embedded<Logged<FjallRows>>;

/// How a [`FjallEngine`] is opened.
#[derive(Clone, Debug)]
#[must_use]
pub struct FjallOptions {
    path: PathBuf,
    durability: Durability,
    cache_bytes: u64,
    memtable_bytes: u64,
    worker_threads: usize,
}

impl FjallOptions {
    /// Returns the defaults for this directory: durable on disk, a cache of 32 MiB, memtables of 16 MiB.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            durability: Durability::Fsync,
            cache_bytes: 32 << 20,
            memtable_bytes: 16 << 20,
            worker_threads: 1,
        }
    }

    /// Sets how far a confirmed commit gets.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how many bytes of blocks are kept in memory for reading.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets how many bytes of commits are collected in memory, and in a segment of the log, before they are filed; at
    /// least 16 KiB. There are up to five times as many while the disk is behind, and the log keeps as many files for
    /// later.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = bytes.max(16 << 10);
        self
    }

    /// Sets how many threads merge tables; at least one, which is the default. Of several, one does nothing but wait for
    /// memtables to flush, and spins while the others merge; what comes from the log needs no flushing.
    pub fn worker_threads(mut self, threads: usize) -> Self {
        self.worker_threads = threads.max(1);
        self
    }

    /// Opens the store, or creates it if the directory is empty or missing.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if it is open somewhere; if it is not ours, too new, or broken.
    pub fn open(self) -> Result<FjallEngine, OpenError> {
        // Written by RocksDB, beside which a database of fjall's would be empty.
        if self.path.join("CURRENT").exists() {
            return Err(OpenError::Unrecognised);
        }
        mend::mend(&self.path, self.durability)?;
        let rows = FjallRows::open(&self).map_err(|error| match error {
            fjall::Error::Locked => OpenError::Locked(self.path.clone()),
            error => OpenError::Fault(Fault::new(error)),
        })?;
        Embedded::recognise(&rows)?;
        let logged = Logged::open(rows, &self.path, self.memtable_bytes, self.durability)?;
        Embedded::start(logged, self.durability)
    }
}

/// The rows of a database of fjall's.
pub struct FjallRows {
    database: Database,
    keyspaces: [Keyspace; Table::ALL.len()],
    activity: Activity,
}

impl std::fmt::Debug for FjallRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallRows")
            .field("activity", &self.activity)
            .finish_non_exhaustive()
    }
}

impl FjallRows {
    fn open(options: &FjallOptions) -> fjall::Result<Self> {
        let database = Database::builder(&options.path)
            .cache_size(options.cache_bytes)
            // What is filed goes past its journal; it gets small remains only.
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(options.worker_threads)
            .manual_journal_persist(true)
            .open()?;
        let keyspace = |table: Table| {
            database.keyspace(table.name(), || {
                let merging = Leveled::default().with_l0_threshold(TABLES_MERGED);
                let keyspace = KeyspaceCreateOptions::default()
                    .compaction_strategy(Arc::new(merging))
                    .manual_journal_persist(true)
                    .max_memtable_size(MEMTABLE_BYTES);
                match table {
                    // Read in ranges only, for which filters are of no use.
                    Table::Messages => keyspace.filter_policy(FilterPolicy::disabled()),
                    // Whoever asks for a payload has seen its message. Backlogs are read in ranges, and the index of
                    // large blocks is small.
                    Table::Payloads => keyspace
                        .expect_point_read_hits(true)
                        .data_block_size_policy(BlockSizePolicy::all(16 << 10)),
                    Table::Catalog | Table::Deduplication => keyspace,
                }
            })
        };
        let [catalog, messages, payloads, deduplication] = Table::ALL.map(keyspace);
        let keyspaces = [catalog?, messages?, payloads?, deduplication?];
        // The keyspaces exist before anything is confirmed in them.
        database.persist(PersistMode::SyncAll)?;
        sync_names(&options.path)?;
        Ok(Self {
            database,
            keyspaces,
            activity: Activity::default(),
        })
    }

    fn keyspace(&self, table: Table) -> &Keyspace {
        &self.keyspaces[table as usize]
    }
}

/// Makes the names durable of all that lies in the directory, and its own.
#[cfg(unix)]
fn sync_names(directory: &Path) -> std::io::Result<()> {
    fn sync(directory: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                sync(&entry.path())?;
            }
        }
        std::fs::File::open(directory)?.sync_all()
    }
    let directory = directory.canonicalize()?;
    sync(&directory)?;
    match directory.parent().map(std::fs::File::open) {
        Some(Ok(parent)) => parent.sync_all(),
        // Whoever may not look into the directory above has not made this one.
        Some(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        Some(Err(error)) => Err(error),
        None => Ok(()),
    }
}

/// Elsewhere, directories cannot be synced.
#[cfg(not(unix))]
fn sync_names(_directory: &Path) -> std::io::Result<()> {
    Ok(())
}

impl Rows for FjallRows {
    type View<'a> = FjallView<'a>;

    fn view(&self) -> FjallView<'_> {
        FjallView {
            rows: self,
            snapshot: self.database.snapshot(),
        }
    }

    fn write(&self, writes: Vec<Write>, durability: Durability) -> Result<(), WriteError> {
        let mode = match durability {
            Durability::Memory => None,
            Durability::Os => Some(PersistMode::Buffer),
            Durability::Fsync => Some(PersistMode::SyncData),
        };
        let mut batch =
            OwnedWriteBatch::with_capacity(self.database.clone(), writes.len()).durability(mode);
        self.activity.note(&writes);
        for Write {
            table, key, value, ..
        } in writes
        {
            match value {
                Some(value) => batch.insert(self.keyspace(table), key, value),
                None => batch.remove(self.keyspace(table), key),
            }
        }
        batch.commit().map_err(|error| match error {
            fjall::Error::Poisoned => WriteError::Poisoned,
            error => WriteError::Unknown(Fault::new(error)),
        })
    }

    fn maintain(&self) -> Result<(), Fault> {
        let journal_waits = self.database.journal_count() > 1;
        for table in self.activity.idle().filter(|_| journal_waits) {
            let keyspace = self.keyspace(table);
            keyspace.rotate_memtable().map_err(Fault::new)?;
        }
        Ok(())
    }

    fn figures(&self) -> Result<Figures, Fault> {
        Ok(Figures {
            bytes: self.database.disk_space().map_err(Fault::new)?,
            journals: self.database.journal_count(),
        })
    }
}

impl FlushTarget for FjallRows {
    fn ingest(
        &self,
        table: Table,
        rows: &mut dyn Iterator<Item = (Bytes, Option<Bytes>)>,
    ) -> Result<(), Fault> {
        let mut rows = rows.peekable();
        // Begun for nothing, it would leave an empty file behind.
        if rows.peek().is_none() {
            return Ok(());
        }
        let mut ingestion = self.keyspace(table).start_ingestion().map_err(Fault::new)?;
        for (key, value) in rows {
            let written = match value {
                Some(value) => ingestion.write(key, value),
                None => ingestion.write_tombstone(key),
            };
            written.map_err(Fault::new)?;
        }
        ingestion.finish().map_err(Fault::new)
    }

    fn is_behind(&self) -> bool {
        let tables = self.keyspaces.iter().map(Keyspace::l0_table_count);
        tables.max() > Some(TABLES_UNMERGED)
    }
}

/// A snapshot of the database.
pub struct FjallView<'a> {
    rows: &'a FjallRows,
    snapshot: Snapshot,
}

impl std::fmt::Debug for FjallView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallView").finish_non_exhaustive()
    }
}

impl View for FjallView<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let value = self.snapshot.get(self.rows.keyspace(table), key);
        Ok(value.map_err(Fault::new)?.map(Bytes::from))
    }

    fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>> {
        let keyspace = self.rows.keyspace(table);
        let rows = (from < to).then(|| self.snapshot.range(keyspace, from..to));
        rows.into_iter().flatten().map(|row| {
            let (key, value) = row.into_inner().map_err(Fault::new)?;
            Ok((key.into(), value.into()))
        })
    }
}
