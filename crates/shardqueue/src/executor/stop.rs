//! Stopping: the running job finishes, and queued jobs run in order or are handed back.
//!
//! Once an executor stops, each job that it has accepted has one of these endings:
//!
//! | job | `stop` | `stop_with_deadline`, when time is up |
//! |---|---|---|
//! | runs | finishes; a failure is final | is told through its context, goes on, and is named in the report |
//! | backs off | fails with its last error, without another attempt | the same |
//! | is queued | runs, in order; a failure is final | is handed back, having never run |
//!
//! Submissions that wait for room are refused as closed.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ShardExecutor;
use crate::job::BoxJob;
use crate::outcome::JobId;

impl ShardExecutor {
    /// Stops: accepts no more jobs, and waits until those that were accepted have ended.
    ///
    /// Jobs that run finish, jobs that are queued run in order, jobs that back off fail with their last error;
    /// no job is attempted again. It can be called any number of times, from any number of tasks; all of them
    /// wait. A job must not wait for it: it would wait for itself.
    ///
    /// # Cancel safety
    /// Dropping the future ends the waiting, not the stopping.
    pub async fn stop(&self) {
        self.close();
        self.workers.wait().await;
    }

    /// Runs a future, and stops when it has ended, whatever it returns: also with an error, by `?`.
    ///
    /// ```
    /// use shardqueue::{Config, ShardExecutor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let executor = ShardExecutor::new(Config::default())?;
    /// let result = executor.stop_after(async {
    ///     executor.submit("memory-123", |_| async {}).await?;
    ///     "seven".parse::<u32>()?; // an error ends the block early
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// });
    /// assert!(result.await.is_err());
    /// assert_eq!(executor.stats().ran, 1); // the job has run all the same
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the given one, and does not stop the executor.
    pub async fn stop_after<F: Future>(&self, body: F) -> F::Output {
        let output = body.await;
        self.stop().await;
        output
    }

    /// Stops, and hands back the jobs that have not run when the time is up.
    ///
    /// Up to then it is as [`stop`](Self::stop). Then jobs that are still queued are taken out: they are in the
    /// report, in order of acceptance, and have never been attempted. Jobs that run are told through their
    /// [context](crate::JobContext), and named in the report; they end in their own time, which
    /// [`stop`](Self::stop) can be called to wait for. If several tasks call this, a job is handed back to
    /// exactly one of them: the one whose time is up first.
    ///
    /// # Cancel safety
    /// Dropping the future ends the waiting, not the stopping: queued jobs then run, as with `stop`.
    pub async fn stop_with_deadline(&self, within: Duration) -> StopReport {
        self.close();
        let timer = {
            let _entered = self.runtime.enter();
            tokio::time::timeout(within, self.workers.wait())
        };
        let mut report = StopReport::default();
        if timer.await.is_ok() {
            return report;
        }
        for shard in self.shards.iter() {
            let (queued, failed) = shard.hand_back();
            for (job, failure) in failed {
                shard.hooks.failed(failure, job);
            }
            report
                .returned
                .extend(queued.into_iter().map(|leaver| ReturnedJob {
                    id: shard.id(leaver.place),
                    key: leaver.key,
                    job: leaver.job.job,
                }));
            for facts in shard.running_jobs() {
                facts.ticket.cancel();
                report.running.push(RunningJob {
                    id: facts.id,
                    key: facts.key,
                    attempt: facts.attempt,
                });
            }
        }
        report
    }

    /// Begins to stop, as [`stop`](Self::stop) does, and does not wait.
    pub fn close(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let shards = self.shards.len();
        tracing::info!(
            shards,
            "shardqueue: stopping executor, draining {shards} shards"
        );
        for shard in self.shards.iter() {
            let number = shard.number;
            if let Some(jobs @ 1..) = shard.stop() {
                tracing::info!(
                    shard = number,
                    jobs,
                    "shardqueue: worker {number} draining {jobs} remaining jobs"
                );
            }
        }
    }

    /// Returns whether the executor has been told to stop.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

/// The jobs that had not ended when the time was up.
#[derive(Debug, Default)]
#[must_use = "the jobs that did not run are in here"]
#[non_exhaustive]
pub struct StopReport {
    /// Jobs that were never attempted; those of a shard are in order of acceptance.
    pub returned: Vec<ReturnedJob>,
    /// Jobs that were running. They have been told, and are counted when they end.
    pub running: Vec<RunningJob>,
}

impl StopReport {
    /// Returns whether everything had ended in time.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.returned.is_empty() && self.running.is_empty()
    }
}

/// A job that was accepted, never attempted, and handed back.
#[non_exhaustive]
pub struct ReturnedJob {
    /// Its id.
    pub id: JobId,
    /// Its key.
    pub key: Arc<str>,
    /// The job itself.
    pub job: BoxJob,
}

impl fmt::Debug for ReturnedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReturnedJob")
            .field("id", &self.id)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// A job that was running when the time was up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// Its id.
    pub id: JobId,
    /// Its key.
    pub key: Arc<str>,
    /// Which attempt it was: 1 for the first.
    pub attempt: u32,
}
