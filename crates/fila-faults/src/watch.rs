//! Watching a directory, and making things go wrong in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::gate::Gate;
use crate::recording::{Op, Recording};
use crate::watched::Watched;
use crate::{calls, symbols};

/// A directory whose files this program reaches through us, for as long as this lives.
///
/// Syncs of its files succeed without reaching the disk, unless they are to fail or to wait: only this crate cuts the power.
#[derive(Debug)]
#[must_use = "the directory is watched while this lives"]
pub struct Watch {
    id: u64,
    root: PathBuf,
}

impl Watch {
    /// Watches an existing directory, so that faults can be injected.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn new(root: &Path) -> io::Result<Self> {
        Self::start(root, false)
    }

    /// Watches an existing directory and records all that is done to it. The files that are there already count as synced.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn recording(root: &Path) -> io::Result<Self> {
        Self::start(root, true)
    }

    fn start(root: &Path, records: bool) -> io::Result<Self> {
        symbols::are_linked();
        let root = root.canonicalize()?;
        let id = calls::register(Watched::new(root.clone(), records)?);
        Ok(Self { id, root })
    }

    /// Returns the directory, by the one path under which it is watched.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Notes that the driver has reached a point of its own.
    pub fn mark(&self, point: u64) {
        calls::with(self.id, |watched| watched.record(Op::Mark(point)));
    }

    /// Returns how many syncs there have been.
    pub fn syncs(&self) -> u64 {
        calls::with(self.id, |watched| watched.syncs).unwrap_or_default()
    }

    /// Lets `syncs` syncs succeed and the next one fail; those after it succeed again, as they do on Linux, whether or not
    /// the data are there.
    pub fn fail_sync_after(&self, syncs: u64) {
        calls::with(self.id, |watched| {
            watched.faults.syncs_left = Some(syncs);
        });
    }

    /// Makes reads fail, or succeed again.
    pub fn set_unreadable(&self, unreadable: bool) {
        calls::with(self.id, |watched| watched.faults.unreadable = unreadable);
    }

    /// Sets by how many bytes files can grow before the disk is full; none for as many as there are. Files that are removed
    /// or cut off make room again.
    pub fn set_room(&self, room: Option<u64>) {
        calls::with(self.id, |watched| watched.faults.room = room);
    }

    /// Returns how much room there is, if it was set.
    pub fn room(&self) -> Option<u64> {
        calls::with(self.id, |watched| watched.faults.room)?
    }

    /// Makes syncs wait until what is returned is dropped.
    pub fn hold_syncs(&self) -> HeldSyncs {
        let gate = calls::with(self.id, |watched| Arc::clone(&watched.faults.gate));
        let gate = gate.unwrap_or_default();
        gate.set_held(true);
        HeldSyncs(gate)
    }

    /// Stops watching and returns what was recorded.
    pub fn finish(self) -> Recording {
        let watched = calls::unregister(self.id);
        watched.map(|watched| watched.recording).unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        calls::unregister(self.id);
    }
}

/// Syncs that wait until this is dropped.
#[derive(Debug)]
#[must_use = "syncs go on when this is dropped"]
pub struct HeldSyncs(Arc<Gate>);

impl HeldSyncs {
    /// Waits until `count` syncs wait; false if they have not come in time.
    pub fn await_waiting(&self, count: usize, patience: Duration) -> bool {
        self.0.await_waiting(count, patience)
    }
}

impl Drop for HeldSyncs {
    fn drop(&mut self) {
        self.0.set_held(false);
    }
}
