//! The thread that merges tables.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree};

use super::TABLES_MERGED;
use super::snapshots::Snapshots;
use crate::rows::Table;
use crate::{Fault, sync};

/// Compacts the trees that have new tables.
#[derive(Debug)]
pub(super) struct Compactor {
    requests: Arc<CompactionRequests>,
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
    is_closing: bool,
    /// Why the thread has stopped.
    fault: Option<Arc<Fault>>,
}

impl Compactor {
    pub(super) fn start(
        trees: [AnyTree; Table::ALL.len()],
        snapshots: Arc<Snapshots>,
    ) -> io::Result<Self> {
        let requests = Arc::new(CompactionRequests::default());
        let thread = std::thread::Builder::new()
            .name("fila-compact".to_owned())
            .spawn({
                let requests = Arc::clone(&requests);
                move || requests.serve(&trees, &snapshots)
            })?;
        let compactor = Self {
            requests,
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

impl CompactionRequests {
    fn serve(&self, trees: &[AnyTree], snapshots: &Snapshots) {
        let _stopped = ReportOnExit(self);
        let strategy = Arc::new(Leveled::default().with_l0_threshold(TABLES_MERGED));
        while let Some(table) = self.next() {
            let tree = &trees[table];
            if let Err(error) = tree.compact(strategy.clone(), snapshots.watermark()) {
                sync::lock(&self.state).fault = Some(Arc::new(Fault::new(error)));
                return;
            }
        }
    }

    /// Waits for a request; none when the trees are closed.
    fn next(&self) -> Option<usize> {
        let state = self.changed.wait_while(sync::lock(&self.state), |state| {
            !state.is_closing && state.requested.iter().all(|&count| count == 0)
        });
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_closing {
            return None;
        }
        let table = state.requested.iter().position(|&count| count > 0)?;
        state.requested[table] -= 1;
        Some(table)
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
