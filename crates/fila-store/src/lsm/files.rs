//! The files of tables that no reader needs any more, and that still take room.
//!
//! `lsm-tree` removes a merged table when a later merge of its tree has ended, and leaves behind what a failed ingestion or
//! merge has written until the tree is opened again. On a full disk neither can wait. This module cuts such files to
//! nothing, and removes them the next time if `lsm-tree` has not: it complains about files that it does not find.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::sync::{Arc, RwLock};

use lsm_tree::{AbstractTree, AnyTree};

use super::manifest::TreeFolder;
use super::snapshots::Snapshots;
use crate::rows::Table;
use crate::{Fault, sync};

/// The files of all trees.
#[derive(Clone)]
pub(super) struct TableFiles {
    folders: [TreeFolder; Table::ALL.len()],
    trees: [AnyTree; Table::ALL.len()],
    snapshots: Arc<Snapshots>,
    /// Read while tables are written, written while files are cut.
    locks: Arc<[RwLock<()>; Table::ALL.len()]>,
}

impl std::fmt::Debug for TableFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableFiles")
            .field("folders", &self.folders)
            .finish_non_exhaustive()
    }
}

impl TableFiles {
    pub(super) fn new(
        folders: [TreeFolder; Table::ALL.len()],
        trees: [AnyTree; Table::ALL.len()],
        snapshots: Arc<Snapshots>,
    ) -> Self {
        Self {
            folders,
            trees,
            snapshots,
            locks: Arc::default(),
        }
    }

    /// Returns an error that names the damaged file of a tree, if it can be told.
    pub(super) fn fault(&self, table: usize, error: lsm_tree::Error) -> Fault {
        self.folders[table].fault(error)
    }

    /// Keeps the files of a tree while tables are added to it.
    pub(super) fn while_they_stay<T>(&self, table: Table, work: impl FnOnce() -> T) -> T {
        let _files = sync::read(&self.locks[table as usize]);
        work()
    }

    /// Cuts the files that are in no present version of the tree. Does nothing while a reader may need an older version,
    /// or if the manifest on the disk is of another version: a change that failed in its last sync is on the disk
    /// and not in memory, and the tree is opened with its files the next time.
    ///
    /// The caller merges no tables meanwhile.
    pub(super) fn cut_unused(&self, table: usize) -> io::Result<()> {
        let _files = sync::write(&self.locks[table]);
        // Every later snapshot sees the present version, or one that lacks only tables that were added since.
        let next = self.snapshots.next();
        let version = self.trees[table].current_version();
        let used: HashSet<String> = version
            .iter_tables()
            .map(|table| table.id().to_string())
            .collect();
        let on_disk = self.folders[table].number();
        if on_disk != Some(version.id()) || self.snapshots.has_before(next) {
            return Ok(());
        }
        for file in fs::read_dir(self.folders[table].path.join("tables"))? {
            let file = file?;
            let is_used = file.file_name().to_str().is_none_or(|it| used.contains(it));
            if is_used {
                continue;
            }
            let freed = match file.metadata()?.len() {
                0 => fs::remove_file(file.path()),
                _ => OpenOptions::new()
                    .write(true)
                    .open(file.path())
                    .and_then(|file| file.set_len(0)),
            };
            match freed {
                // It may be removed meanwhile, when the last reader of its version ends.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                freed => freed?,
            }
        }
        Ok(())
    }
}
