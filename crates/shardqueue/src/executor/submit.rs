//! Submitting jobs: one or many, waiting for room or not.

use std::pin::pin;

use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use super::ShardExecutor;
use super::submission::{Event, Submission};
use crate::core::Patience;
use crate::error::{Refusal, SubmitError};
use crate::handle::JobHandle;
use crate::job::Job;
use crate::options::JobOptions;
use crate::shard::{NewJob, Submitted};

impl ShardExecutor {
    /// Submits a job: it runs after all jobs that were submitted for its key before.
    ///
    /// If its shard has no room, waits for up to `enqueue_timeout`. Submissions for one key are accepted in the
    /// order in which they began to wait, and none overtakes one that waits. The handle can be dropped: the job
    /// runs all the same.
    ///
    /// # Errors
    /// If the executor has been stopped, there was no room in time, or the key is [no path](crate::KeyError) although the
    /// executor has a `key_separator`. The job is in the error.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the job does not run; or, if it has just begun, is told that
    /// it was cancelled. A job that was not accepted yet is dropped silently. One that was accepted meanwhile counts as
    /// cancelled, and the error handler is told.
    pub async fn submit(
        &self,
        key: impl AsRef<str>,
        job: impl Job,
    ) -> Result<JobHandle, SubmitError> {
        match self.apply(key.as_ref(), job, JobOptions::new(), Patience::Waits)? {
            Applied::Accepted(handle) => Ok(handle),
            Applied::Waiting(submission) => Box::pin(self.wait(submission)).await,
        }
    }

    /// Submits a job like [`submit`](Self::submit), with [`JobOptions`].
    ///
    /// # Errors
    /// As [`submit`](Self::submit), or if the options' token is cancelled before there is room.
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit).
    pub async fn submit_with(
        &self,
        key: impl AsRef<str>,
        job: impl Job,
        options: JobOptions,
    ) -> Result<JobHandle, SubmitError> {
        let handle = match self.apply(key.as_ref(), job, options, Patience::Waits)? {
            Applied::Accepted(handle) => handle,
            Applied::Waiting(submission) => Box::pin(self.wait(submission)).await?,
        };
        Ok(self.watched(handle))
    }

    /// Submits a job if there is room for it at once.
    ///
    /// # Errors
    /// If the executor has been stopped, if there is no room, if another submission of the same key waits for room, or if
    /// the key is [no path](crate::KeyError) although the executor has a `key_separator`. The job is in the error.
    pub fn try_submit(
        &self,
        key: impl AsRef<str>,
        job: impl Job,
    ) -> Result<JobHandle, SubmitError> {
        self.try_submit_with(key, job, JobOptions::new())
    }

    /// Submits a job like [`try_submit`](Self::try_submit), with [`JobOptions`].
    ///
    /// # Errors
    /// As [`try_submit`](Self::try_submit), or if the options' token is cancelled.
    pub fn try_submit_with(
        &self,
        key: impl AsRef<str>,
        job: impl Job,
        options: JobOptions,
    ) -> Result<JobHandle, SubmitError> {
        let applied = self.apply(key.as_ref(), job, options, Patience::DoesNotWait)?;
        let handle = match applied {
            Applied::Accepted(handle) => handle,
            Applied::Waiting(submission) => submission.conclude(Event::TimedOut)?,
        };
        Ok(self.watched(handle))
    }

    /// Submits many jobs, taking each shard's lock once. Returns an answer for each job, in the order given.
    ///
    /// Those that find no room wait for it, all together for up to `enqueue_timeout`; then those that still wait
    /// are refused. Among the jobs of one key, the accepted ones come before the refused ones.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, none of the jobs runs that has not begun.
    pub async fn submit_batch<K, J>(
        &self,
        jobs: impl IntoIterator<Item = (K, J)>,
    ) -> Vec<Result<JobHandle, SubmitError>>
    where
        K: AsRef<str>,
        J: Job,
    {
        let mut answers = Batch(Vec::new());
        let mut waiting = Vec::new();
        for (at, answer) in self.apply_batch(jobs).into_iter().enumerate() {
            answers.0.push(match answer {
                Err(error) => Err(error),
                Ok(Applied::Accepted(handle)) => Ok(Submission::from(handle)),
                Ok(Applied::Waiting(submission)) => {
                    waiting.push(at);
                    Ok(submission)
                }
            });
        }
        let mut event = Event::Answered;
        let mut timeout = pin!(self.enqueue_timer());
        for &at in &waiting {
            if let Ok(submission) = &answers.0[at] {
                event = submission.wait(timeout.as_mut()).await;
            }
            if event == Event::TimedOut {
                break;
            }
        }
        // From the last to the first, so that no job is accepted behind one of its key that is refused.
        let conclude = |answer: Result<Submission, SubmitError>| answer?.conclude(event);
        let mut handles: Vec<_> = answers.by_ref().map(conclude).collect();
        handles.reverse();
        handles
    }

    /// Waits for room. Callers box it: hardly ever does it happen, and it is large.
    async fn wait(&self, submission: Submission) -> Result<JobHandle, SubmitError> {
        let event = submission.wait(pin!(self.enqueue_timer())).await;
        submission.conclude(event)
    }

    /// Brings a job to its shard.
    fn apply(
        &self,
        key: &str,
        job: impl Job,
        options: JobOptions,
        patience: Patience,
    ) -> Result<Applied, SubmitError> {
        let job = job.boxed();
        if let Err(error) = self.check(key) {
            return Err(SubmitError::new(error, job));
        }
        let JobOptions { cancel: caller, .. } = options;
        if caller.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return Err(SubmitError::new(Refusal::Cancelled, job));
        }
        let shard = self.shard_of(key);
        let new_job = NewJob {
            key,
            job,
            priority: options.priority,
            cost: options.cost,
            caller,
        };
        answered(shard.submit(new_job, patience))
    }

    /// Brings jobs to their shards, a shard at a time.
    fn apply_batch<K: AsRef<str>, J: Job>(
        &self,
        jobs: impl IntoIterator<Item = (K, J)>,
    ) -> Vec<Result<Applied, SubmitError>> {
        let mut by_shard: Vec<(Vec<_>, Vec<_>)> = Vec::new();
        by_shard.resize_with(self.shards.len(), Default::default);
        let mut answers: Vec<_> = Vec::new();
        for (at, (key, job)) in jobs.into_iter().enumerate() {
            let job = job.boxed();
            if let Err(error) = self.check(key.as_ref()) {
                answers.push((at, Err(SubmitError::new(error, job))));
                continue;
            }
            let (notes, jobs) = &mut by_shard[self.shard_for(&key)];
            notes.push((at, key));
            jobs.push(job);
        }
        let ordinary = JobOptions::new();
        for (shard, (notes, jobs)) in self.shards.iter().zip(by_shard) {
            let jobs = notes.iter().zip(jobs);
            let jobs = jobs.map(|((_, key), job)| NewJob {
                key: key.as_ref(),
                job,
                priority: ordinary.priority,
                cost: ordinary.cost,
                caller: None,
            });
            let submitted = shard.submit_all(jobs.collect());
            for ((at, _), submitted) in notes.into_iter().zip(submitted) {
                answers.push((at, answered(submitted)));
            }
        }
        answers.sort_unstable_by_key(|&(at, _)| at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Returns a timer on the executor's own runtime, wherever the submitter runs.
    pub(super) fn enqueue_timer(&self) -> Sleep {
        let _entered = self.runtime.enter();
        tokio::time::sleep(self.enqueue_timeout)
    }

    /// Sees to it that a job is cancelled with its submitter's token, if there is one.
    pub(super) fn watched(&self, handle: JobHandle) -> JobHandle {
        if let Some(watch) = handle.watch() {
            self.runtime.spawn(watch);
        }
        handle
    }
}

/// The submissions of a batch, from the last to the first: whatever becomes of one, none of its key that was
/// behind it is let in thereby.
struct Batch(Vec<Result<Submission, SubmitError>>);

impl Iterator for Batch {
    type Item = Result<Submission, SubmitError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.pop()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// A submission that has reached its shard and was not refused.
enum Applied {
    Accepted(JobHandle),
    Waiting(Submission),
}

#[inline]
fn answered(submitted: Submitted) -> Result<Applied, SubmitError> {
    match submitted {
        Submitted::Accepted(id, ticket) => Ok(Applied::Accepted(JobHandle::new(id, ticket))),
        Submitted::Waiting(id, ticket) => {
            let handle = JobHandle::new(id, ticket);
            Ok(Applied::Waiting(Submission::from(handle)))
        }
        Submitted::Full(full, job) => Err(SubmitError::new(*full, job)),
        Submitted::Closed(job) => Err(SubmitError::new(Refusal::Closed, job)),
    }
}
