//! The sweeper thread: it removes rows that purges, deletions and expired deduplication ids have left in the store, and
//! reports the store's health to the metrics.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use fila_store::{Engine, Writes};
use tracing::warn;

use crate::metrics::Metrics;
use crate::runtime::Clock;
use crate::runtime::status::Status;

/// Rows per sweep: a few milliseconds, during which commits may have to wait.
const ROWS: usize = 2_000;

/// The longest interval while the disk is full.
const INTERVAL_FULL: Duration = Duration::from_secs(1);

/// The sweeper thread.
#[derive(Debug)]
pub(crate) struct Sweeper<E> {
    pub(crate) engine: Arc<E>,
    pub(crate) clock: Clock,
    pub(crate) interval: Duration,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) status: Arc<Status>,
}

impl<E: Engine> Sweeper<E> {
    /// Sweeps once per interval, and again at once while there is more, until the sender of `stop` is dropped.
    pub(crate) fn run(&self, stop: &Receiver<()>) {
        let mut wait = Duration::ZERO;
        while stop.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let writes = self.engine.writes();
            self.status.note(writes);
            let more = match self.engine.sweep(self.clock.now(), ROWS) {
                Ok(swept) => {
                    self.metrics.swept(swept.rows);
                    swept.more
                }
                Err(error) => {
                    warn!(%error, "a sweep failed; the next one is at the usual interval");
                    false
                }
            };
            if !more {
                self.look_after();
            }
            wait = match (more, writes) {
                (true, _) => Duration::ZERO,
                // Sweeping makes room.
                (false, Writes::Full) => self.interval.min(INTERVAL_FULL),
                (false, Writes::Taken | Writes::Poisoned) => self.interval,
            };
        }
    }

    fn look_after(&self) {
        match self.engine.health() {
            Ok(health) => self.metrics.store_health(&health),
            Err(error) => warn!(%error, "the store's health could not be read"),
        }
    }
}
