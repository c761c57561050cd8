//! The engines that keep everything in a directory, and how to get at their rows behind their backs.

use std::path::Path;

use fila_store::rows::Table;
use fila_store::{Durability, Engine, FjallEngine, FjallOptions, OpenError};

/// An engine on disk.
pub(crate) trait OnDisk {
    type Engine: Engine + std::fmt::Debug;

    /// Rows of the catalogue that every store has.
    #[allow(dead_code, reason = "not every test binary tampers")]
    const NUMBERS: usize;

    /// Opens a store that collects so many bytes of a table in memory.
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

pub(crate) struct InFjall;

impl InFjall {
    fn keyspace(path: &Path, table: Table) -> (fjall::Database, fjall::Keyspace) {
        let database = fjall::Database::builder(path).open().unwrap();
        let keyspace = database.keyspace(table.name(), Default::default).unwrap();
        (database, keyspace)
    }
}

impl OnDisk for InFjall {
    type Engine = FjallEngine;

    /// Four, and how far its log is flushed.
    const NUMBERS: usize = 6;

    fn open(
        path: &Path,
        durability: Durability,
        memtable_bytes: u64,
    ) -> Result<FjallEngine, OpenError> {
        let options = FjallOptions::new(path).durability(durability);
        options.memtable_bytes(memtable_bytes).open()
    }

    fn tamper(
        path: &Path,
        table: Table,
        mut change: impl FnMut(&[u8], Vec<u8>) -> Option<Vec<u8>>,
    ) {
        let (_database, keyspace) = Self::keyspace(path, table);
        for row in keyspace.iter() {
            let (key, value) = row.into_inner().unwrap();
            match change(&key, value.to_vec()) {
                Some(changed) => keyspace.insert(key, changed).unwrap(),
                None => keyspace.remove(key).unwrap(),
            }
        }
    }

    fn insert(path: &Path, table: Table, key: &str, value: &str) {
        let (_database, keyspace) = Self::keyspace(path, table);
        keyspace.insert(key, value).unwrap();
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
        let options = fila_store::RocksOptions::new(path).durability(durability);
        options.memtable_bytes(memtable_bytes).open()
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
