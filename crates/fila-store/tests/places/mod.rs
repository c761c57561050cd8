//! The engines that keep everything in a directory, and how to get at their rows behind their backs.

use std::path::Path;

use fila_store::rows::Table;
use fila_store::{DiskOptions, Durability, Engine, LsmEngine, OpenError};
use lsm_tree::{AbstractTree, AnyTree, Config, Guard, SeqNo, SequenceNumberCounter};

/// An engine on disk.
pub(crate) trait OnDisk {
    type Engine: Engine + std::fmt::Debug;

    /// Rows of the catalogue that every store has.
    #[allow(dead_code, reason = "not every test binary tampers")]
    const NUMBERS: usize;

    /// Opens a store that collects this many bytes of a table in memory.
    fn open(
        path: &Path,
        durability: Durability,
        memtable_bytes: u64,
    ) -> Result<Self::Engine, OpenError>;

    /// Writes rows of a table behind the engine's back; `change` gets every row and says what becomes of it.
    #[allow(dead_code, reason = "not every test binary tampers")]
    fn tamper(path: &Path, table: Table, change: impl FnMut(&[u8], Vec<u8>) -> Option<Vec<u8>>);

    /// Writes one row, into a database that is created if need be.
    #[allow(dead_code, reason = "not every test binary tampers")]
    fn insert(path: &Path, table: Table, key: &str, value: &str);
}

pub(crate) struct InLsm;

impl InLsm {
    /// Opens a tree, past the engine.
    fn tree(path: &Path, table: Table) -> AnyTree {
        let next = SequenceNumberCounter::default();
        let folder = path.join("tables").join(table.name());
        let config = Config::new(folder, next.clone(), SequenceNumberCounter::default());
        let tree = config.open().unwrap();
        next.set(tree.get_highest_seqno().map_or(0, |last| last + 1));
        tree
    }
}

impl OnDisk for InLsm {
    type Engine = LsmEngine;

    /// Four, and how far its log is flushed.
    const NUMBERS: usize = 6;

    fn open(
        path: &Path,
        durability: Durability,
        memtable_bytes: u64,
    ) -> Result<LsmEngine, OpenError> {
        let options = DiskOptions::new(path).durability(durability);
        options.memtable_bytes(memtable_bytes).open()
    }

    fn tamper(
        path: &Path,
        table: Table,
        mut change: impl FnMut(&[u8], Vec<u8>) -> Option<Vec<u8>>,
    ) {
        let tree = Self::tree(path, table);
        let mut ingestion = tree.ingestion().unwrap();
        for row in tree.iter(SeqNo::MAX, None) {
            let (key, value) = row.into_inner().unwrap();
            match change(&key, value.to_vec()) {
                Some(changed) => ingestion.write(key, changed).unwrap(),
                None => ingestion.write_tombstone(key).unwrap(),
            }
        }
        ingestion.finish().unwrap();
    }

    fn insert(path: &Path, table: Table, key: &str, value: &str) {
        let [tree, ..] = Table::ALL.map(|table| Self::tree(path, table));
        assert_eq!(table, Table::ALL[0]);
        let mut ingestion = tree.ingestion().unwrap();
        ingestion.write(key, value).unwrap();
        ingestion.finish().unwrap();
    }
}

#[cfg(feature = "rocksdb")]
pub(crate) struct InRocks;

#[cfg(feature = "rocksdb")]
impl InRocks {
    fn database(path: &Path) -> rocksdb::DB {
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        rocksdb::DB::open_cf(&options, path, Table::ALL.map(Table::name)).unwrap()
    }
}

#[cfg(feature = "rocksdb")]
impl OnDisk for InRocks {
    type Engine = fila_store::RocksEngine;

    const NUMBERS: usize = 4;

    fn open(
        path: &Path,
        durability: Durability,
        memtable_bytes: u64,
    ) -> Result<fila_store::RocksEngine, OpenError> {
        let options = DiskOptions::new(path).durability(durability);
        options.memtable_bytes(memtable_bytes).open_rocksdb()
    }

    fn tamper(
        path: &Path,
        table: Table,
        mut change: impl FnMut(&[u8], Vec<u8>) -> Option<Vec<u8>>,
    ) {
        let database = Self::database(path);
        let family = database.cf_handle(table.name()).unwrap();
        for row in database.iterator_cf(family, rocksdb::IteratorMode::Start) {
            let (key, value) = row.unwrap();
            match change(&key, value.to_vec()) {
                Some(changed) => database.put_cf(family, key, changed).unwrap(),
                None => database.delete_cf(family, key).unwrap(),
            }
        }
    }

    fn insert(path: &Path, table: Table, key: &str, value: &str) {
        let database = Self::database(path);
        let family = database.cf_handle(table.name()).unwrap();
        database.put_cf(family, key, value).unwrap();
    }
}
