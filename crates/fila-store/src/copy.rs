//! Copies a store that is not in use, from one engine to another.
//!
//! All engines have the same rows, so a copy is a copy of rows: queues, settings, messages, dead letters, deduplication ids.
//! Rows that describe the log of the default engine stay behind, and payloads come out of its segments.
//!
//! # What always holds
//! The copy gets its name when every row is in it and was compared: an interrupted one is never mistaken for a store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::directory::{at, sync_names};
use crate::rows::{Rows, Table, View, WriteError};
use crate::{DiskOptions, Durability, Embedded, Fault, OpenError, keys};

/// Rows and bytes of one write, at most.
const ROWS_MAX: usize = 1_000;
const BYTES_MAX: usize = 4 << 20;

/// An engine that keeps a store on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEngine {
    /// The default engine.
    Lsm,
    /// RocksDB.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

/// The contents of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiedRows {
    /// Queues, with their settings and hooks.
    pub queues: u64,
    /// Entries of the runtime configuration.
    pub config_entries: u64,
    /// Messages, dead letters among them.
    pub messages: u64,
    /// Deduplication ids.
    pub deduplication_ids: u64,
}

/// Why a store was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// There is no store.
    #[error("there is no store in `{}`", .0.display())]
    NoStore(PathBuf),
    /// The engine of the store is not part of this build.
    #[error("`{}` is a store of RocksDB, which is not part of this build", .0.display())]
    Unsupported(PathBuf),
    /// The target is in use for something.
    #[error("`{}` is not empty; name a directory that is empty or does not exist", .0.display())]
    NotEmpty(PathBuf),
    /// One of the stores was not opened.
    #[error("a store was not opened")]
    Open(#[from] OpenError),
    /// A row could not be read.
    #[error("the copy is not complete; the store that it was made from is as it was")]
    Read(#[from] Fault),
    /// A row could not be written.
    #[error("the copy is not complete; the store that it was made from is as it was")]
    Write(#[from] WriteError),
    /// The copy has other rows than the store.
    #[error("the copy differs from the store in table `{}`; check both disks", .0.name())]
    Differs(Table),
}

impl DiskOptions {
    /// Copies the store to a directory that is empty or does not exist, and compares every row. Blocks as long as that takes.
    ///
    /// # Errors
    /// See [`CopyError`]. The store is as it was, but for the number of its openings.
    pub fn copy_to(&self, to: &Path, engine: DiskEngine) -> Result<CopiedRows, CopyError> {
        if self.path.join("CURRENT").exists() {
            #[cfg(feature = "rocksdb")]
            return copy_rows(&self.clone().open_rocksdb()?, to, engine);
            #[cfg(not(feature = "rocksdb"))]
            return Err(CopyError::Unsupported(self.path.clone()));
        }
        if !self.path.join("tables").exists() && !self.path.join("log").exists() {
            return Err(CopyError::NoStore(self.path.clone()));
        }
        copy_rows(&self.clone().open()?, to, engine)
    }
}

fn copy_rows<R: Rows>(
    from: &Embedded<R>,
    to: &Path,
    engine: DiskEngine,
) -> Result<CopiedRows, CopyError> {
    let io_fault = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| CopyError::Read(Fault::new(at(&path)(error)))
    };
    let unfinished = unfinished(to);
    for directory in [to, &unfinished] {
        let is_used = match fs::read_dir(directory) {
            Ok(mut files) => files.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(io_fault(directory)(error)),
        };
        if is_used {
            return Err(CopyError::NotEmpty(directory.to_owned()));
        }
    }
    let options = DiskOptions::new(&unfinished);
    let copied = match engine {
        DiskEngine::Lsm => fill(from.rows(), options.open()?.rows())?,
        #[cfg(feature = "rocksdb")]
        DiskEngine::Rocksdb => fill(from.rows(), options.open_rocksdb()?.rows())?,
    };
    sync_names(&unfinished).map_err(io_fault(&unfinished))?;
    fs::rename(&unfinished, to).map_err(io_fault(to))?;
    sync_names(to).map_err(io_fault(to))?;
    Ok(copied)
}

/// Returns where a copy is until it is complete.
fn unfinished(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    to.with_file_name(name)
}

/// Copies all rows, and compares.
fn fill<A: Rows, B: Rows>(from: &A, to: &B) -> Result<CopiedRows, CopyError> {
    let view = from.view();
    let end = keys::successor(&[]);
    for table in Table::ALL {
        let mut writes = to.write_set();
        let mut bytes = 0;
        for row in rows(&view, table, &end) {
            let (key, value) = row?;
            bytes += key.len() + value.len();
            writes.set(table, &key, &value);
            if writes.len() == ROWS_MAX || bytes >= BYTES_MAX {
                let full = std::mem::replace(&mut writes, to.write_set());
                to.write(full, Durability::Fsync)?;
                bytes = 0;
            }
        }
        if !writes.is_empty() {
            to.write(writes, Durability::Fsync)?;
        }
    }
    compare(&view, &to.view())
}

/// Counts the rows, if both views have the same.
fn compare(from: &impl View, to: &impl View) -> Result<CopiedRows, CopyError> {
    let mut copied = CopiedRows::default();
    let end = keys::successor(&[]);
    for table in Table::ALL {
        let mut copies = rows(to, table, &end);
        for row in rows(from, table, &end) {
            let row = row?;
            copied.count(table, &row.0);
            if copies.next().transpose()? != Some(row) {
                return Err(CopyError::Differs(table));
            }
        }
        if copies.next().transpose()?.is_some() {
            return Err(CopyError::Differs(table));
        }
    }
    Ok(copied)
}

impl CopiedRows {
    fn count(&mut self, table: Table, key: &[u8]) {
        match table {
            Table::Catalog if keys::is_queue(key) => self.queues += 1,
            Table::Catalog if keys::is_config(key) => self.config_entries += 1,
            Table::Messages => self.messages += 1,
            Table::Deduplication if keys::is_remembered(key) => self.deduplication_ids += 1,
            Table::Catalog | Table::Payloads | Table::Deduplication => {}
        }
    }
}

/// Returns the rows of a table that all engines have, up to the end of all keys.
fn rows<'a>(
    view: &'a impl View,
    table: Table,
    end: &'a [u8],
) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>> {
    let rows = view.range(table, &[], end);
    rows.filter(move |row| match row {
        Ok((key, _)) => table != Table::Catalog || !keys::is_of_log(key),
        Err(_) => true,
    })
}
