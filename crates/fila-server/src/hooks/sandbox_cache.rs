//! The sandboxes of one worker: one for each script that it ran recently, up to a fixed number. A sandbox belongs to its
//! thread.

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

/// The number of sandboxes of a worker. Each takes some 100 KiB, and the data of its script.
const SANDBOXES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct SandboxCache<'a> {
    sandboxes: HashMap<u64, CachedSandbox, RandomState>,
    /// The script of the last call of `sandbox`.
    current: u64,
    turn: u64,
    config: watch::Receiver<Arc<Entries>>,
    snapshot: Rc<RefCell<Arc<Entries>>>,
    /// The number of retirements at the last sweep.
    swept: u64,
    count: &'a AtomicUsize,
}

#[derive(Debug)]
struct CachedSandbox {
    loaded: Arc<Loaded>,
    sandbox: Sandbox,
    used: u64,
}

/// The runtime configuration at the start of the call.
struct Snapshot(Rc<RefCell<Arc<Entries>>>);

impl Settings for Snapshot {
    fn value(&self, key: &str) -> Option<String> {
        self.0.borrow().get(key).map(str::to_owned)
    }
}

impl<'a> SandboxCache<'a> {
    pub(super) fn new(config: &watch::Receiver<Arc<Entries>>, count: &'a AtomicUsize) -> Self {
        let mut config = config.clone();
        let snapshot = config.borrow_and_update().clone();
        Self {
            sandboxes: HashMap::default(),
            current: 0,
            turn: 0,
            config,
            snapshot: Rc::new(RefCell::new(snapshot)),
            swept: 0,
            count,
        }
    }

    /// Returns a sandbox for a script, in place of the least recently used one if there are too many.
    pub(super) fn sandbox(&mut self, loaded: &Arc<Loaded>) -> &mut Sandbox {
        self.turn += 1;
        self.current = loaded.number;
        if !self.sandboxes.contains_key(&loaded.number) {
            if self.sandboxes.len() >= SANDBOXES_MAX {
                let oldest = self.sandboxes.iter().min_by_key(|(_, cached)| cached.used);
                let oldest = oldest.map(|(number, _)| *number);
                if let Some(number) = oldest {
                    self.sandboxes.remove(&number);
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        let (turn, snapshot) = (self.turn, &self.snapshot);
        let cached = self
            .sandboxes
            .entry(loaded.number)
            .or_insert_with(|| CachedSandbox {
                loaded: loaded.clone(),
                sandbox: Sandbox::new(&loaded.script, Snapshot(snapshot.clone())),
                used: turn,
            });
        cached.used = turn;
        &mut cached.sandbox
    }

    /// Returns the sandbox of the last call of `sandbox`, with the present runtime configuration.
    pub(super) fn current(&mut self) -> &mut Sandbox {
        // After the sender is gone, the configuration cannot change.
        if self.config.has_changed().unwrap_or(false) {
            let now = self.config.borrow_and_update().clone();
            self.snapshot.replace(now);
        }
        let cached = self.sandboxes.get_mut(&self.current);
        &mut cached.expect("the last sandbox is in the cache").sandbox
    }

    /// Drops the sandboxes of retired scripts, if there are more retirements than at the last sweep.
    pub(super) fn sweep_up_to(&mut self, retired: u64) {
        if self.swept != retired {
            self.swept = retired;
            self.sweep();
        }
    }

    /// Drops the sandboxes of retired scripts.
    pub(super) fn sweep(&mut self) {
        let before = self.sandboxes.len();
        self.sandboxes
            .retain(|_, cached| !cached.loaded.is_retired());
        let gone = before - self.sandboxes.len();
        self.count.fetch_sub(gone, Ordering::Relaxed);
    }
}

impl Drop for SandboxCache<'_> {
    fn drop(&mut self) {
        self.count
            .fetch_sub(self.sandboxes.len(), Ordering::Relaxed);
    }
}
