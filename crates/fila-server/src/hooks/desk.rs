//! The sandboxes of one worker.
//!
//! One for each script that the worker has run of late, and no more than a fixed number. A sandbox belongs to its thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fila_lua::{Sandbox, Settings};
use foldhash::fast::RandomState;
use tokio::sync::watch;

use super::queue_hooks::Loaded;
use crate::runtime_config::Entries;

/// How many scripts a worker is ready to run. Each takes some 100 KiB, and what its script holds.
const SANDBOXES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Desk<'a> {
    sandboxes: HashMap<u64, Kept, RandomState>,
    /// The script that was asked for last.
    present: u64,
    turn: u64,
    config: watch::Receiver<Arc<Entries>>,
    snapshot: Rc<RefCell<Arc<Entries>>>,
    /// Up to which retirement the sandboxes are swept.
    pub(super) swept: u64,
    count: &'a AtomicUsize,
}

#[derive(Debug)]
struct Kept {
    loaded: Arc<Loaded>,
    sandbox: Sandbox,
    used: u64,
}

/// The runtime configuration as it was when the call began.
struct Snapshot(Rc<RefCell<Arc<Entries>>>);

impl Settings for Snapshot {
    fn value(&self, key: &str) -> Option<String> {
        self.0.borrow().get(key).map(str::to_owned)
    }
}

impl<'a> Desk<'a> {
    pub(super) fn new(config: &watch::Receiver<Arc<Entries>>, count: &'a AtomicUsize) -> Self {
        let mut config = config.clone();
        let snapshot = config.borrow_and_update().clone();
        Self {
            sandboxes: HashMap::default(),
            present: 0,
            turn: 0,
            config,
            snapshot: Rc::new(RefCell::new(snapshot)),
            swept: 0,
            count,
        }
    }

    /// Returns a sandbox for a script, and makes room for it.
    pub(super) fn sandbox(&mut self, loaded: &Arc<Loaded>) -> &mut Sandbox {
        self.turn += 1;
        self.present = loaded.number;
        if !self.sandboxes.contains_key(&loaded.number) {
            if self.sandboxes.len() >= SANDBOXES_MAX {
                let oldest = self.sandboxes.iter().min_by_key(|(_, kept)| kept.used);
                let oldest = oldest.map(|(number, _)| *number);
                if let Some(number) = oldest {
                    self.sandboxes.remove(&number);
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        let (turn, snapshot) = (self.turn, &self.snapshot);
        let kept = self.sandboxes.entry(loaded.number).or_insert_with(|| Kept {
            loaded: loaded.clone(),
            sandbox: Sandbox::new(&loaded.script, Snapshot(snapshot.clone())),
            used: turn,
        });
        kept.used = turn;
        &mut kept.sandbox
    }

    /// Returns the sandbox that was asked for last, and lets it see the runtime configuration as it is now.
    pub(super) fn at_present(&mut self) -> &mut Sandbox {
        // If nobody can change it any more, it is as it was.
        if self.config.has_changed().unwrap_or(false) {
            let now = self.config.borrow_and_update().clone();
            self.snapshot.replace(now);
        }
        let kept = self.sandboxes.get_mut(&self.present);
        &mut kept.expect("a sandbox that was asked for is kept").sandbox
    }

    /// Drops sandboxes of scripts that were retired.
    pub(super) fn sweep(&mut self) {
        let before = self.sandboxes.len();
        self.sandboxes.retain(|_, kept| !kept.loaded.is_retired());
        let gone = before - self.sandboxes.len();
        self.count.fetch_sub(gone, Ordering::Relaxed);
    }
}

impl Drop for Desk<'_> {
    fn drop(&mut self) {
        self.count
            .fetch_sub(self.sandboxes.len(), Ordering::Relaxed);
    }
}
