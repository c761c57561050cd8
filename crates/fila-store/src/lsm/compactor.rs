//! The thread that merges tables.
//!
//! A merge that finds the disk full is tried again. While the store makes room, the thread merges tables without waiting for
//! more of them, and frees the [files](super::files) that are not needed.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree};

use super::TABLES_MERGED;
use super::files::TableFiles;
use super::snapshots::Snapshots;
use crate::rows::Table;
use crate::{Fault, sync};

/// How long the thread waits before it tries again what found the disk full.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Merges of one tree in a row, at most, to make room.
const EAGER_MAX: usize = 4;

/// Compacts the trees that have new tables.
#[derive(Debug)]
pub(super) struct Compactor {
    requests: Arc<CompactionRequests>,
    files: TableFiles,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct CompactionRequests {
    state: Mutex<CompactionState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CompactionState {
    /// Compactions to run, by table.
    requested: [usize; Table::ALL.len()],
    /// Trees whose unused rows and files are to be removed.
    makes_room: [bool; Table::ALL.len()],
    /// Whether the disk was too full for the last merge.
    is_out_of_room: bool,
    /// The tree of the last merge. The others come before it.
    last: usize,
    is_closing: bool,
    /// Why the thread has stopped.
    fault: Option<Arc<Fault>>,
}

impl Compactor {
    pub(super) fn start(
        trees: [AnyTree; Table::ALL.len()],
        snapshots: Arc<Snapshots>,
        files: TableFiles,
    ) -> io::Result<Self> {
        let requests = Arc::new(CompactionRequests::default());
        let thread = std::thread::Builder::new()
            .name("fila-compact".to_owned())
            .spawn({
                let requests = Arc::clone(&requests);
                let files = files.clone();
                move || requests.serve(&trees, &snapshots, &files)
            })?;
        let compactor = Self {
            requests,
            files,
            thread: Some(thread),
        };
        // A crash may have come between an ingestion and its compaction.
        for table in Table::ALL {
            compactor.request(table);
        }
        Ok(compactor)
    }

    /// Asks for a compaction of a tree that has a new table.
    pub(super) fn request(&self, table: Table) {
        sync::lock(&self.requests.state).requested[table as usize] += 1;
        self.requests.changed.notify_one();
    }

    /// Asks for a merge of all tables of a tree, and frees the files that are not needed.
    pub(super) fn make_room(&self, table: Table) {
        sync::lock(&self.requests.state).makes_room[table as usize] = true;
        self.requests.changed.notify_one();
    }

    /// Returns whether the disk was too full for the last merge.
    pub(super) fn is_out_of_room(&self) -> bool {
        sync::lock(&self.requests.state).is_out_of_room
    }

    /// Runs something that adds tables to a tree.
    pub(super) fn while_files_stay<T>(&self, table: Table, work: impl FnOnce() -> T) -> T {
        self.files.while_they_stay(table, work)
    }

    /// Returns the error that has stopped the thread, if any.
    pub(super) fn check(&self) -> Result<(), Fault> {
        match &sync::lock(&self.requests.state).fault {
            Some(fault) => Err(Fault::new(Arc::clone(fault))),
            None => Ok(()),
        }
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        sync::lock(&self.requests.state).is_closing = true;
        self.requests.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by `check`.
            let _ = thread.join();
        }
    }
}

/// One merge.
#[derive(Clone, Copy, Debug)]
struct Compaction {
    table: usize,
    makes_room: bool,
}

impl CompactionRequests {
    fn serve(&self, trees: &[AnyTree], snapshots: &Snapshots, files: &TableFiles) {
        let _stopped = ReportOnExit(self);
        let usual = Arc::new(Leveled::default().with_l0_threshold(TABLES_MERGED));
        let eager = Arc::new(Leveled::default().with_l0_threshold(1));
        while let Some(Compaction { table, makes_room }) = self.next() {
            let compact = |strategy: &Arc<Leveled>| {
                trees[table]
                    .compact(strategy.clone(), snapshots.watermark())
                    .map_err(|error| files.fault(table, error))
            };
            let mut done = compact(&usual);
            if makes_room {
                // Each call is one merge or one move.
                let has_new = || trees[table].level_table_count(0) > Some(0);
                for _ in 0..EAGER_MAX {
                    if done.is_ok() && has_new() {
                        done = compact(&eager);
                    }
                }
            }
            if makes_room || done.is_err() {
                // What cannot be removed now is removed the next time.
                let _ = files.cut_unused(table);
            }
            match done {
                Ok(()) => sync::lock(&self.state).is_out_of_room = false,
                Err(fault) if fault.is_full() => self.wait_for_room(table),
                Err(fault) => {
                    sync::lock(&self.state).fault = Some(Arc::new(fault));
                    return;
                }
            }
        }
    }

    /// Waits a little, and then lets the same merge be tried again.
    fn wait_for_room(&self, table: usize) {
        let mut state = sync::lock(&self.state);
        state.is_out_of_room = true;
        let is_open = |state: &mut CompactionState| !state.is_closing;
        let waited = self
            .changed
            .wait_timeout_while(state, RETRY_INTERVAL, is_open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.makes_room[table] = true;
    }

    /// Waits for a request; none when the trees are closed.
    fn next(&self) -> Option<Compaction> {
        let is_requested =
            |state: &CompactionState, table| state.requested[table] > 0 || state.makes_room[table];
        let tables = 0..Table::ALL.len();
        let state = self.changed.wait_while(sync::lock(&self.state), |state| {
            !state.is_closing && !tables.clone().any(|table| is_requested(state, table))
        });
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_closing {
            return None;
        }
        let mut turns = tables.map(|turn| (state.last + 1 + turn) % Table::ALL.len());
        let table = turns.find(|&table| is_requested(&state, table))?;
        state.last = table;
        state.requested[table] = state.requested[table].saturating_sub(1);
        let makes_room = std::mem::take(&mut state.makes_room[table]);
        Some(Compaction { table, makes_room })
    }
}

/// Reports that the thread has ended, also by a panic: flushes would wait for it without end.
struct ReportOnExit<'a>(&'a CompactionRequests);

impl Drop for ReportOnExit<'_> {
    fn drop(&mut self) {
        let mut state = sync::lock(&self.0.state);
        let stopped = || Arc::new(Fault::new("the compaction thread has stopped"));
        state.fault.get_or_insert_with(stopped);
    }
}
