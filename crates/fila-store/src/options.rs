//! How a store on disk is opened.

use std::path::{Path, PathBuf};

use crate::Durability;

/// How a store on disk is opened: [`open`](Self::open) for the default engine.
#[derive(Clone, Debug)]
#[must_use]
pub struct DiskOptions {
    pub(crate) path: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) cache_bytes: u64,
    pub(crate) memtable_bytes: Option<u64>,
}

impl DiskOptions {
    /// Returns the defaults for this directory: durable on disk, with a cache of 32 MiB.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            durability: Durability::Fsync,
            cache_bytes: 32 << 20,
            memtable_bytes: None,
        }
    }

    /// Sets how far a confirmed commit gets.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how many bytes of blocks are cached for reading.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets how many bytes of commits are collected in memory before they are flushed. The default engine takes at least 16
    /// KiB, and 16 MiB by default, which is also the size of a segment of its log; it uses up to five times as much memory
    /// while the disk is behind. RocksDB takes at least 1 MiB, and 32 MiB by default, for each table; it uses up to four
    /// times as much for a busy table.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Returns how many bytes a segment of the default engine's log has.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.memtable_bytes.unwrap_or(16 << 20).max(16 << 10)
    }
}
