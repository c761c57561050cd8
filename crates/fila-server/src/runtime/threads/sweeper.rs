//! The sweeper thread: it removes rows that purges, deletions and expired deduplication ids have left in the store, and
//! reports the store's health to the metrics.

use std::fmt::Display;
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
        let (mut sweeping, mut looking) = (Trouble::default(), Trouble::default());
        while stop.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let writes = self.engine.writes();
            self.status.note(writes);
            let swept = self.engine.sweep(self.clock.now(), ROWS);
            if let Some(error) = sweeping.news(&swept) {
                warn!(%error, "a sweep failed; sweeps go on at the usual interval");
            }
            let more = swept.is_ok_and(|swept| {
                self.metrics.swept(swept.rows);
                swept.more
            });
            if !more {
                self.look_after(&mut looking);
            }
            wait = match (more, writes) {
                (true, _) => Duration::ZERO,
                // Sweeping makes room.
                (false, Writes::Full) => self.interval.min(INTERVAL_FULL),
                (false, Writes::Taken | Writes::Poisoned) => self.interval,
            };
        }
    }

    fn look_after(&self, trouble: &mut Trouble) {
        let health = self.engine.health();
        if let Some(error) = trouble.news(&health) {
            warn!(%error, "the store's health cannot be read");
        }
        if let Ok(health) = health {
            self.metrics.store_health(&health);
        }
    }
}

/// The last failure of a task that is repeated, so that the log has one line about it and not one for each attempt.
#[derive(Debug, Default)]
struct Trouble(Option<String>);

impl Trouble {
    /// Takes a result, and returns its failure unless the result before had the same.
    fn news<T, E: Display>(&mut self, result: &Result<T, E>) -> Option<&str> {
        let failure = result.as_ref().err().map(ToString::to_string);
        if failure == self.0 {
            return None;
        }
        self.0 = failure;
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_news_until_it_is_known_and_again_after_a_success() {
        let mut trouble = Trouble::default();
        let results = [Err("a"), Err("a"), Err("b"), Ok(()), Ok(()), Err("b")];
        let news = results.map(|result| trouble.news(&result).map(str::to_owned));
        let news = news.each_ref().map(Option::as_deref);
        assert_eq!(news, [Some("a"), None, Some("b"), None, None, Some("b")]);
    }
}
