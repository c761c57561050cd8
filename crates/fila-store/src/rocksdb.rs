//! Rows in [RocksDB], a log-structured merge tree in C++, for operators who know how to run it. Needs the feature `rocksdb`.
//!
//! # Its known traps
//! - An idle column family keeps old journals (write-ahead logs) until they have too many bytes.
//!   [`maintain`](Rows::maintain) flushes the idle ones while a sealed journal waits, and the number of journals is part of
//!   [`Health`](crate::Health).
//! - After some failed writes, as on a full disk, it resumes by itself. The caller of the failed write was told that its
//!   outcome is unknown, so no write may follow it: a flag that is set under the lock of the write prevents that.
//! - It reports a directory that is in use only in words. We lock the file `fila.lock` first.
//! - It creates column families in any database, and a database beside any files. We look for foreign files before.
//!
//! # What always holds
//! A batch is journalled, then synced, then made visible: nothing can be read that is not as durable as the engine's
//! level says. Reads go through a snapshot. Recovery replays a journal up to its first damaged record, where a crash has
//! cut it.
//!
//! [RocksDB]: https://rocksdb.org

mod activity;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRecoveryMode, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, IteratorMode, LogLevel, Options,
    ReadOptions, Snapshot, WriteBatch, WriteOptions,
};

use activity::Activity;

use crate::directory::DirectoryLock;
use crate::rows::{Figures, Rows, Table, View, Write, WriteError, WriteSet};
use crate::{DiskOptions, Durability, Embedded, Fault, OpenError, sync};

/// A store in a directory, which it locks.
///
/// It closes, and unlocks the directory, when the engine and all its shards have been dropped.
pub type RocksEngine = Embedded<RocksRows>;

/// Memtables of one table: the one in use, and those that wait to be flushed.
const MEMTABLES: i32 = 4;

/// Bytes of journals before tables are flushed to free them.
const JOURNAL_BYTES: u64 = 512 << 20;

/// Threads that flush and compact.
const WORKERS: i32 = 2;

/// Files of tables that are held open.
const OPEN_FILES: i32 = 256;

/// Bits per key of a filter, which is wrong about one absent key in a hundred.
const FILTER_BITS: f64 = 10.0;

/// Bytes of a log file of RocksDB's own. There are two.
const LOG_BYTES: usize = 1 << 20;

impl DiskOptions {
    /// Opens the store in RocksDB, or creates it if the directory is empty or missing.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if it is open somewhere; if it is not ours, too new, or broken.
    pub fn open_rocksdb(self) -> Result<RocksEngine, OpenError> {
        let rows = RocksRows::open(&self)?;
        Embedded::start(rows, self.durability)
    }

    /// Returns the options of the whole database.
    fn of_database(&self) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        options.set_manual_wal_flush(self.buffers_journal());
        options.set_max_total_wal_size(JOURNAL_BYTES);
        options.set_max_background_jobs(WORKERS);
        options.set_max_open_files(OPEN_FILES);
        options.set_log_level(LogLevel::Warn);
        options.set_max_log_file_size(LOG_BYTES);
        options.set_keep_log_file_num(2);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options
    }

    /// Returns the options of one table.
    fn of_table(&self, table: Table, cache: &Cache) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(cache);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        match table {
            // Read in ranges only, for which filters are of no use.
            Table::Messages => {}
            // A reader of a payload has seen its message.
            Table::Payloads => {
                blocks.set_bloom_filter(FILTER_BITS, false);
                options.set_optimize_filters_for_hits(true);
            }
            Table::Catalog | Table::Deduplication => {
                blocks.set_bloom_filter(FILTER_BITS, false);
            }
        }
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::None);
        let memtable_bytes = self.memtable_bytes.unwrap_or(32 << 20).max(1 << 20);
        options.set_write_buffer_size(size(memtable_bytes));
        options.set_max_write_buffer_number(MEMTABLES);
        options
    }

    /// Returns whether RocksDB buffers its journal in this process.
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

/// The rows of a RocksDB database.
pub struct RocksRows {
    database: DB,
    buffers_journal: bool,
    /// Whether a write has failed. Every write holds the lock until its outcome is known, so that none follows a failed one.
    poisoned: Mutex<bool>,
    activity: Activity,
    /// Held, and released after the database is closed.
    _lock: DirectoryLock,
}

impl std::fmt::Debug for RocksRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksRows")
            .field("activity", &self.activity)
            .finish_non_exhaustive()
    }
}

impl RocksRows {
    fn open(options: &DiskOptions) -> Result<Self, OpenError> {
        let fault = |error: rocksdb::Error| OpenError::Fault(Fault::new(error));
        let lock = DirectoryLock::take(&options.path)?;
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

/// Returns whether the directory has foreign data, without changing anything.
fn is_foreign(options: &Options, path: &Path) -> Result<bool, OpenError> {
    let fault = |error: rocksdb::Error| OpenError::Fault(Fault::new(error));
    // The file that names the present state of a RocksDB database.
    if !path.join("CURRENT").exists() {
        // There is none to open. Beside the trees of the default engine none may be created, either.
        return Ok(path.join("tables").exists());
    }
    let families = DB::list_cf(options, path).map_err(fault)?;
    let ours = |family: &String| Table::ALL.iter().any(|table| table.name() == family);
    if families.iter().any(ours) {
        let known = |family: &String| ours(family) || family == DEFAULT_COLUMN_FAMILY_NAME;
        return Ok(!families.iter().all(known));
    }
    // Ours before its tables were created, or a foreign one. Ours has no rows in the default family.
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

    fn write(&self, writes: WriteSet, durability: Durability) -> Result<(), WriteError> {
        let mut options = WriteOptions::default();
        options.set_sync(match durability {
            Durability::Memory => false,
            // Without a sync the write reaches the system at once, unless the journal is buffered.
            Durability::Os => self.buffers_journal,
            Durability::Fsync => true,
        });
        self.activity.note(&writes);
        let families = self.families();
        let mut batch = WriteBatch::with_capacity_bytes(writes.iter().map(room).sum());
        for Write {
            table, key, value, ..
        } in writes.iter()
        {
            let family = families[table as usize];
            match value {
                Some(value) => batch.put_cf(family, key, value),
                None => batch.delete_cf(family, key),
            }
        }
        let mut poisoned = sync::lock(&self.poisoned);
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

/// Returns how many bytes a write takes in a batch.
fn room(write: Write<'_>) -> usize {
    const FRAME: usize = 16;
    FRAME + write.key.len() + write.value.map_or(0, <[u8]>::len)
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
