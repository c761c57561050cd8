//! Rows in [RocksDB], a log-structured merge tree in C++: for those who know how to run it. Needs the feature
//! `rocksdb`.
//!
//! # What is done about its known traps
//! - A column family that nobody writes to keeps old journals, which RocksDB calls write-ahead logs, until there are
//!   [too many bytes](RocksOptions::journal_bytes) of them. As with fjall, [`maintain`](Rows::maintain) flushes those that
//!   are idle while a sealed journal waits, and the number of journals is part of [`Health`](crate::Health).
//! - After some failed writes, as on a full disk, it resumes by itself. Whoever asked for the write has been told that
//!   its outcome is unknown, so nothing may follow it: the flag that says so is set under the lock of the write.
//! - That a directory is in use it says in words only. The file `fila.lock` beside its own is locked first.
//! - It creates column families in any database that it is told to open, and a database beside anything. What is
//!   not ours is recognised before.
//!
//! # What always holds
//! A batch is journalled, then synced, then made visible: nothing can be read that is not as durable as the engine's
//! level says. Reads go through a snapshot. A journal is replayed up to its first damaged record, which is where a
//! crash has cut it.
//!
//! [RocksDB]: https://rocksdb.org

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRecoveryMode, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, IteratorMode, LogLevel, Options,
    ReadOptions, Snapshot, WriteBatch, WriteOptions,
};

use crate::activity::Activity;
use crate::rows::{Figures, Rows, Table, View, Write, WriteError};
use crate::{Durability, Embedded, Fault, OpenError};

/// A store in a directory of its own, which it locks.
///
/// It is closed, and the directory free, when the engine and all its shards have been dropped.
pub type RocksEngine = Embedded<RocksRows>;

/// How a [`RocksEngine`] is opened.
#[derive(Clone, Debug)]
#[must_use]
pub struct RocksOptions {
    path: PathBuf,
    durability: Durability,
    cache_bytes: u64,
    memtable_bytes: u64,
    journal_bytes: u64,
    worker_threads: usize,
}

impl RocksOptions {
    /// Fewer bytes of journals than this are not taken, as with fjall.
    const JOURNAL_BYTES_MIN: u64 = 64 << 20;

    /// Memtables of one table: one that is filled, and those that wait to be flushed.
    const MEMTABLES: i32 = 4;

    /// Files of tables that are held open.
    const OPEN_FILES: i32 = 256;

    /// Bits per key of a filter, which is wrong about one absent key in a hundred.
    const FILTER_BITS: f64 = 10.0;

    /// Bytes of a log file of RocksDB's own, of which there are two.
    const LOG_BYTES: usize = 1 << 20;

    /// Returns the defaults for this directory: durable on disk, a cache of 32 MiB, memtables of 32 MiB.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            durability: Durability::Fsync,
            cache_bytes: 32 << 20,
            memtable_bytes: 32 << 20,
            journal_bytes: 512 << 20,
            worker_threads: 2,
        }
    }

    /// Sets how far a confirmed commit gets.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how many bytes of blocks, their indexes and filters included, are kept in memory for reading.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets how many bytes of a table are collected in memory before they are flushed. There are up to four such
    /// memtables for a busy table, one of which is being filled.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = bytes.max(1 << 20);
        self
    }

    /// Sets how many bytes of journals there may be before tables are flushed for their sake; at least 64 MiB.
    pub fn journal_bytes(mut self, bytes: u64) -> Self {
        self.journal_bytes = bytes.max(Self::JOURNAL_BYTES_MIN);
        self
    }

    /// Sets how many threads file and merge tables; at least one for each of the two.
    pub fn worker_threads(mut self, threads: usize) -> Self {
        self.worker_threads = threads.max(1);
        self
    }

    /// Opens the store, or creates it if the directory is empty or missing.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if it is open somewhere; if it is not ours, too new, or broken.
    pub fn open(self) -> Result<RocksEngine, OpenError> {
        let rows = RocksRows::open(&self)?;
        Embedded::start(rows, self.durability)
    }

    /// Returns what goes for the whole database.
    fn of_database(&self) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        options.set_manual_wal_flush(self.buffers_journal());
        options.set_max_total_wal_size(self.journal_bytes);
        options.set_max_background_jobs(self.worker_threads.try_into().unwrap_or(i32::MAX));
        options.set_max_open_files(Self::OPEN_FILES);
        options.set_log_level(LogLevel::Warn);
        options.set_max_log_file_size(Self::LOG_BYTES);
        options.set_keep_log_file_num(2);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options
    }

    /// Returns what goes for one table.
    fn of_table(&self, table: Table, cache: &Cache) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(cache);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        match table {
            // Read in ranges only, for which filters are of no use.
            Table::Messages => {}
            // Whoever asks for a payload has seen its message.
            Table::Payloads => {
                blocks.set_bloom_filter(Self::FILTER_BITS, false);
                options.set_optimize_filters_for_hits(true);
            }
            Table::Catalog | Table::Deduplication => {
                blocks.set_bloom_filter(Self::FILTER_BITS, false);
            }
        }
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(size(self.memtable_bytes));
        options.set_max_write_buffer_number(Self::MEMTABLES);
        options
    }

    /// Tells whether the journal is kept back in this process until it is worth a call to the system.
    fn buffers_journal(&self) -> bool {
        match self.durability {
            Durability::Memory => true,
            Durability::Os | Durability::Fsync => false,
        }
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The rows of a database of RocksDB's.
pub struct RocksRows {
    database: DB,
    buffers_journal: bool,
    /// Whether a write has failed. Locked by every write until its outcome is known, so that none comes after.
    poisoned: Mutex<bool>,
    activity: Activity,
    /// Held, and dropped after the database, so that a free directory is really free.
    _lock: File,
}

impl std::fmt::Debug for RocksRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksRows")
            .field("activity", &self.activity)
            .finish_non_exhaustive()
    }
}

impl RocksRows {
    fn open(options: &RocksOptions) -> Result<Self, OpenError> {
        let fault = |error: rocksdb::Error| OpenError::Fault(Fault::new(error));
        let lock = lock(&options.path)?;
        let of_database = options.of_database();
        if is_foreign(&of_database, &options.path)? {
            return Err(OpenError::Unrecognised);
        }
        let cache = Cache::new_lru_cache(size(options.cache_bytes));
        let families = Table::ALL.map(|table| {
            ColumnFamilyDescriptor::new(table.name(), options.of_table(table, &cache))
        });
        let database = DB::open_cf_descriptors(&of_database, &options.path, families);
        Ok(Self {
            database: database.map_err(fault)?,
            buffers_journal: options.buffers_journal(),
            poisoned: Mutex::new(false),
            activity: Activity::default(),
            _lock: lock,
        })
    }

    fn family(&self, table: Table) -> &ColumnFamily {
        let family = self.database.cf_handle(table.name());
        family.expect("all tables are opened with the database")
    }

    fn families(&self) -> [&ColumnFamily; Table::ALL.len()] {
        Table::ALL.map(|table| self.family(table))
    }
}

/// Takes the directory for this process, having made it if need be.
fn lock(path: &Path) -> Result<File, OpenError> {
    let fault = |error: io::Error| OpenError::Fault(Fault::new(error));
    fs::create_dir_all(path).map_err(fault)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.join("fila.lock"))
        .map_err(fault)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(fault(error)),
    }
}

/// Tells whether somebody else's data is in this directory, without changing anything.
fn is_foreign(options: &Options, path: &Path) -> Result<bool, OpenError> {
    let fault = |error: rocksdb::Error| OpenError::Fault(Fault::new(error));
    // The file that names the present state of a database of RocksDB's.
    if !path.join("CURRENT").exists() {
        // There is none to open. Where fjall keeps its keyspaces none is to be created, either.
        return Ok(path.join("keyspaces").exists());
    }
    let families = DB::list_cf(options, path).map_err(fault)?;
    let ours = |family: &String| Table::ALL.iter().any(|table| table.name() == family);
    if families.iter().any(ours) {
        let known = |family: &String| ours(family) || family == DEFAULT_COLUMN_FAMILY_NAME;
        return Ok(!families.iter().all(known));
    }
    // Ours before its tables were created, or anybody's. Ours has nothing where everybody else has everything.
    if families != [DEFAULT_COLUMN_FAMILY_NAME] {
        return Ok(true);
    }
    let database = DB::open_for_read_only(&Options::default(), path, false).map_err(fault)?;
    let first = database.iterator(IteratorMode::Start).next().transpose();
    Ok(first.map_err(fault)?.is_some())
}

impl Rows for RocksRows {
    type View<'a> = RocksView<'a>;

    fn view(&self) -> RocksView<'_> {
        RocksView {
            families: self.families(),
            snapshot: self.database.snapshot(),
        }
    }

    fn write(&self, writes: Vec<Write>, durability: Durability) -> Result<(), WriteError> {
        let mut options = WriteOptions::default();
        options.set_sync(match durability {
            Durability::Memory => false,
            // Without a sync it reaches the system at once, unless the journal is kept back.
            Durability::Os => self.buffers_journal,
            Durability::Fsync => true,
        });
        self.activity.note(&writes);
        let families = self.families();
        let mut batch = WriteBatch::with_capacity_bytes(writes.iter().map(room).sum());
        for Write {
            table, key, value, ..
        } in writes
        {
            let family = families[table as usize];
            match value {
                Some(value) => batch.put_cf(family, key, value),
                None => batch.delete_cf(family, key),
            }
        }
        let poisoned = self.poisoned.lock();
        let mut poisoned = poisoned.unwrap_or_else(PoisonError::into_inner);
        if *poisoned {
            return Err(WriteError::Poisoned);
        }
        let written = self.database.write_opt(batch, &options);
        written.map_err(|error| {
            *poisoned = true;
            WriteError::Unknown(Fault::new(error))
        })
    }

    fn maintain(&self) -> Result<(), Fault> {
        let journal_waits = self.figures()?.journals > 1;
        let mut options = FlushOptions::default();
        options.set_wait(false);
        for table in self.activity.idle().filter(|_| journal_waits) {
            let flushed = self.database.flush_cf_opt(self.family(table), &options);
            flushed.map_err(Fault::new)?;
        }
        Ok(())
    }

    fn figures(&self) -> Result<Figures, Fault> {
        let mut figures = Figures::default();
        for file in fs::read_dir(self.database.path()).map_err(Fault::new)? {
            let file = file.map_err(Fault::new)?;
            match file.metadata() {
                Ok(metadata) => figures.bytes += metadata.len(),
                // Files come and go while they are counted.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Fault::new(error)),
            }
            let is_journal = Path::new(&file.file_name())
                .extension()
                .is_some_and(|extension| extension == "log");
            figures.journals += usize::from(is_journal);
        }
        Ok(figures)
    }
}

/// Returns how many bytes a write takes in a batch: its words, their lengths, and where it goes.
fn room(write: &Write) -> usize {
    const FRAME: usize = 16;
    FRAME + write.key.len() + write.value.as_ref().map_or(0, Bytes::len)
}

/// A snapshot of the database.
pub struct RocksView<'a> {
    families: [&'a ColumnFamily; Table::ALL.len()],
    snapshot: Snapshot<'a>,
}

impl std::fmt::Debug for RocksView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksView").finish_non_exhaustive()
    }
}

impl View for RocksView<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let value = self.snapshot.get_cf(self.families[table as usize], key);
        Ok(value.map_err(Fault::new)?.map(Bytes::from))
    }

    fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>> {
        let family = self.families[table as usize];
        let rows = (from < to).then(|| {
            let mut options = ReadOptions::default();
            options.set_iterate_lower_bound(from);
            options.set_iterate_upper_bound(to);
            self.snapshot
                .iterator_cf_opt(family, options, IteratorMode::Start)
        });
        rows.into_iter().flatten().map(|row| {
            let (key, value) = row.map_err(Fault::new)?;
            Ok((key.into(), value.into()))
        })
    }
}
