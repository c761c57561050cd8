//! The default engine: four [`lsm_tree`] trees, one for each table, beneath a [log](Logged) of our own.
//!
//! The trees have no journal and no memtable in use: the log's flush thread ingests sorted rows as new tables, and a thread
//! of this module [compacts](compactor) them. The log provides atomicity over the four trees: a view reads the memtable of a
//! segment until the last of its rows is ingested, and recovery ingests a segment again that has no flush mark.
//!
//! # Files
//! The trees are in the folder `tables` of the store. A new store makes them in `tables.new`, syncs them, and renames the
//! folder, so after a power cut either all of them exist or none. An existing tree must have its [manifest].
//!
//! # What always holds
//! Rows are removed by full tombstones: a weak one revives the older of two versions of a row, and a repeated commit writes
//! a second one.

mod compactor;
mod files;
mod manifest;
mod snapshots;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry,
    RestartIntervalPolicy,
};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, SeqNo, SequenceNumberCounter,
};

use crate::damage::{DamagedPart, StoreDamage};
use crate::directory::{DirectoryLock, at, sync_names};
use crate::embedded;
use crate::log::FlushTarget;
use crate::repair::Aside;
use crate::rows::{Table, View};
use crate::{DiskOptions, Embedded, Fault, Logged, OpenError};
use compactor::Compactor;
use files::TableFiles;
use manifest::TreeFolder;
use snapshots::Snapshots;

/// Tables of level 0 before they are merged. Each is read for a range, so merging sooner makes ranges cheaper; but then rows
/// are merged more often, which takes most of the CPU while a backlog grows. With sixteen, a backlog of 100,000 keys drained
/// a quarter more slowly, and none grew much faster.
const TABLES_MERGED: u8 = 8;

/// Tables of level 0, at most. While there are more, flushes wait.
const TABLES_UNMERGED: usize = 2 * TABLES_MERGED as usize;

/// Files of tables that are held open.
const OPEN_FILES: usize = 900;

/// Bytes that one merge may need, at most. Merges of several levels take a part of each.
const MERGE_MAX: u64 = 1 << 30;

/// A store in a directory, which it locks.
///
/// It closes, and unlocks the directory, when the engine and all its shards have been dropped.
pub type LsmEngine = Embedded<Logged<LsmTables>>;

impl DiskOptions {
    /// Opens the store, or creates it if the directory is empty or missing.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if it is open somewhere; if it is not ours, too new, or broken.
    pub fn open(self) -> Result<LsmEngine, OpenError> {
        self.open_unexplained().map_err(explained)
    }

    fn open_unexplained(self) -> Result<LsmEngine, OpenError> {
        // Files of RocksDB's, beside which a new store would be empty.
        if self.path.join("CURRENT").exists() {
            return Err(OpenError::Unrecognised);
        }
        let tables = LsmTables::open(&self.path, self.cache_bytes)?;
        embedded::recognise(&tables.view())?;
        let logged = Logged::open(tables, &self.path, self.segment_bytes(), self.durability)?;
        Embedded::start(logged, self.durability)
    }
}

/// Finds the damaged file behind an error of the database.
fn explained(error: OpenError) -> OpenError {
    let OpenError::Fault(fault) = error else {
        return error;
    };
    match fault.into_damage() {
        Ok(damage) => OpenError::Damage(damage),
        Err(fault) => OpenError::Fault(fault),
    }
}

/// Reads every file of the trees, and reports the first that is damaged. Does nothing where there are no trees.
pub(crate) fn verify(store: &Path) -> Result<(), OpenError> {
    if store.join("tables").exists() {
        for table in Table::ALL {
            TreeFolder::of(store, table).verify()?;
        }
    }
    Ok(())
}

/// Opens the trees of a store without its log.
pub(crate) fn tables(store: &Path) -> Result<LsmTables, OpenError> {
    LsmTables::open(store, 0)
}

/// Finds the manifest of a tree whose file `current` is damaged. Returns whether there is one.
pub(crate) fn find_current(store: &Path, table: Table, aside: &Aside) -> io::Result<bool> {
    let tree = TreeFolder::of(store, table);
    aside.take(&tree.path.join("current"))?;
    tree.find_current()
}

/// Takes a file out of a tree.
pub(crate) fn leave_out(store: &Path, table: Table, file: u64, aside: &Aside) -> io::Result<()> {
    let tree = TreeFolder::of(store, table);
    tree.copy_manifest(aside)?;
    aside.take(&tree.file(file))?;
    tree.leave_out(file)
}

/// Takes a tree out of the store, and begins an empty one.
pub(crate) fn begin_anew(store: &Path, table: Table, aside: &Aside) -> io::Result<()> {
    let folder = TreeFolder::of(store, table).path;
    aside.take(&folder)?;
    let counter = SequenceNumberCounter::default();
    let config = Config::new(&folder, counter.clone(), counter);
    match configured(table, config).open() {
        Ok(_) => sync_names(&folder),
        Err(lsm_tree::Error::Io(error)) => Err(at(&folder)(error)),
        Err(_) => Err(at(&folder)(io::Error::other(
            "an empty table cannot be made",
        ))),
    }
}

/// The trees.
pub struct LsmTables {
    trees: [AnyTree; Table::ALL.len()],
    folders: [TreeFolder; Table::ALL.len()],
    snapshots: Arc<Snapshots>,
    compactor: Compactor,
    /// Held, and released after the trees are closed.
    _lock: DirectoryLock,
}

impl std::fmt::Debug for LsmTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LsmTables").finish_non_exhaustive()
    }
}

impl LsmTables {
    fn open(path: &Path, cache_bytes: u64) -> Result<Self, OpenError> {
        let lock = DirectoryLock::take(path)?;
        let folder = path.join("tables");
        let folders = Table::ALL.map(|table| TreeFolder::of(path, table));
        if folder.exists() {
            for tree in &folders {
                tree.check()?;
            }
        } else if path.join("log").exists() {
            // The folder of the log is created after that of the tables.
            return Err(OpenError::Damage(StoreDamage {
                store: path.to_owned(),
                path: folder,
                how: "is missing",
                part: DamagedPart::Tables,
            }));
        } else {
            create(path, &folder).map_err(|error| folders[0].opening(error))?;
        }
        let (trees, visible) = open_trees(&folder, cache_bytes)
            .map_err(|(table, error)| folders[table as usize].opening(error))?;
        let snapshots = Arc::new(Snapshots::new(visible));
        let files = TableFiles::new(folders.clone(), trees.clone(), Arc::clone(&snapshots));
        let compactor = Compactor::start(trees.clone(), Arc::clone(&snapshots), files)
            .map_err(|error| OpenError::Fault(Fault::new(error)))?;
        Ok(Self {
            trees,
            folders,
            snapshots,
            compactor,
            _lock: lock,
        })
    }

    fn tree(&self, table: Table) -> &AnyTree {
        &self.trees[table as usize]
    }

    /// Returns an error that names the damaged file, if it can be told.
    fn fault(&self, table: Table, error: lsm_tree::Error) -> Fault {
        self.folders[table as usize].fault(error)
    }
}

/// Makes the trees of a new store: all of them, or none after a power cut.
fn create(path: &Path, folder: &Path) -> lsm_tree::Result<()> {
    let unfinished = path.join("tables.new");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    open_trees(&unfinished, 0).map_err(|(_, error)| error)?;
    sync_names(&unfinished)?;
    fs::rename(&unfinished, folder)?;
    Ok(sync_names(path)?)
}

/// The trees, with the counter of the sequence numbers that are visible.
type OpenTrees = ([AnyTree; Table::ALL.len()], SequenceNumberCounter);

/// Opens the trees, and returns them with the counter of the sequence numbers that are visible.
///
/// Every flush and every compaction has a sequence number. The trees share the counters, so one number is a snapshot of all
/// four.
fn open_trees(folder: &Path, cache_bytes: u64) -> Result<OpenTrees, (Table, lsm_tree::Error)> {
    let cache = Arc::new(Cache::with_capacity_bytes(cache_bytes));
    let files = Arc::new(DescriptorTable::new(OPEN_FILES));
    let next = SequenceNumberCounter::default();
    let visible = SequenceNumberCounter::default();
    let tree = |table: Table| {
        let config = Config::new(folder.join(table.name()), next.clone(), visible.clone())
            .use_cache(Arc::clone(&cache))
            .use_descriptor_table(Some(Arc::clone(&files)));
        let tree = configured(table, config).open();
        tree.map_err(|error| (table, error))
    };
    let [catalog, messages, payloads, deduplication] = Table::ALL.map(tree);
    let trees = [catalog?, messages?, payloads?, deduplication?];
    for tree in &trees {
        let following = tree.get_highest_seqno().map_or(0, |last| last + 1);
        next.fetch_max(following);
        visible.fetch_max(following);
    }
    Ok((trees, visible))
}

fn configured(table: Table, config: Config) -> Config {
    let config = config
        .data_block_restart_interval_policy(RestartIntervalPolicy::new([10, 16]))
        .filter_policy(FilterPolicy::new([
            FilterPolicyEntry::Bloom(BloomConstructionPolicy::FalsePositiveRate(0.0001)),
            FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0)),
        ]));
    match table {
        // Read in ranges only, for which filters are of no use.
        Table::Messages => config.filter_policy(FilterPolicy::disabled()),
        // A reader of a payload has seen its message. Backlogs are read in ranges, and the index of large blocks is small.
        Table::Payloads => config
            .expect_point_read_hits(true)
            .data_block_size_policy(BlockSizePolicy::all(16 << 10)),
        Table::Catalog | Table::Deduplication => config,
    }
}

impl FlushTarget for LsmTables {
    type View<'a> = LsmView<'a>;

    fn view(&self) -> LsmView<'_> {
        LsmView {
            tables: self,
            sequence: self.snapshots.open(),
        }
    }

    fn ingest(
        &self,
        table: Table,
        rows: &mut dyn Iterator<Item = (Bytes, Option<Bytes>)>,
    ) -> Result<(), Fault> {
        self.compactor.check()?;
        let mut rows = rows.peekable();
        // An ingestion without rows would leave an empty file behind.
        if rows.peek().is_none() {
            return Ok(());
        }
        let ingested = self.compactor.while_files_stay(table, || {
            let mut ingestion = self.tree(table).ingestion()?;
            for (key, value) in rows {
                match value {
                    Some(value) => ingestion.write(key, value)?,
                    None => ingestion.write_tombstone(key)?,
                }
            }
            ingestion.finish()
        });
        if let Err(error) = ingested {
            // What it has written is of no use.
            self.compactor.make_room(table);
            return Err(self.fault(table, error));
        }
        self.compactor.request(table);
        Ok(())
    }

    fn is_behind(&self) -> bool {
        let tables = |tree: &AnyTree| tree.level_table_count(0).unwrap_or_default();
        let is_behind = self.trees.iter().any(|tree| tables(tree) > TABLES_UNMERGED);
        // A compactor that has failed does not catch up; the next flush reports it. One that has no room may get some by
        // the next flush.
        is_behind && self.compactor.check().is_ok() && !self.is_out_of_room()
    }

    fn bytes(&self) -> u64 {
        self.trees.iter().map(AbstractTree::disk_space).sum()
    }

    fn merge_bytes(&self) -> u64 {
        let largest = self.trees.iter().map(AbstractTree::disk_space).max();
        largest.unwrap_or_default().min(MERGE_MAX)
    }

    fn is_out_of_room(&self) -> bool {
        self.compactor.is_out_of_room()
    }

    fn make_room(&self) {
        for table in Table::ALL {
            self.compactor.make_room(table);
        }
    }
}

/// A snapshot of the trees.
pub struct LsmView<'a> {
    tables: &'a LsmTables,
    sequence: SeqNo,
}

impl std::fmt::Debug for LsmView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LsmView").finish_non_exhaustive()
    }
}

impl Drop for LsmView<'_> {
    fn drop(&mut self) {
        self.tables.snapshots.close(self.sequence);
    }
}

impl View for LsmView<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let value = self.tables.tree(table).get(key, self.sequence);
        let value = value.map_err(|error| self.tables.fault(table, error))?;
        Ok(value.map(Bytes::from))
    }

    fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>> {
        let tree = self.tables.tree(table);
        let rows = (from < to).then(|| tree.range(from..to, self.sequence, None));
        rows.into_iter().flatten().map(move |row| {
            let (key, value) = row
                .into_inner()
                .map_err(|error| self.tables.fault(table, error))?;
            Ok((key.into(), value.into()))
        })
    }
}
