//! Submitting a job that needs several keys at once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use tokio_util::sync::CancellationToken;

use super::ShardExecutor;
use super::submission::{Event, cancelled};
use crate::error::{Refusal, SubmitError};
use crate::handle::JobHandle;
use crate::hash;
use crate::job::{BoxJob, Job};
use crate::options::{JobOptions, Priority};
use crate::shard::{NewJob, ShardKeys, Submitted, submit_across};
use crate::ticket::Ticket;

/// The most keys of one job.
const KEYS_MAX: usize = 64;

impl ShardExecutor {
    /// Submits a job that needs several keys: it runs when it is the first of all of them, and holds them until it has
    /// ended, also between attempts.
    ///
    /// It takes its place behind all jobs that were accepted for any of the keys before, and every later job of any of the
    /// keys waits for it. Such jobs never wait for each other in a circle. The first key is the job's own: its
    /// [context](crate::JobContext), its status and its failure name that one, and its shard runs it. It is cancelled and
    /// awaited as any other job. In the [statistics](Self::stats) it counts once for each key, and takes room in the
    /// queue of each key until it has ended.
    ///
    /// If a shard has no room, waits for up to `enqueue_timeout`. Submissions for one key that wait go first.
    ///
    /// ```
    /// use shardqueue::{Config, JobOptions, ShardExecutor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let executor = ShardExecutor::new(Config::default())?;
    /// let transfer = |_| async { /* from one account to the other */ };
    /// let handle = executor.submit_across(["alice", "bob"], transfer, JobOptions::new()).await?;
    /// assert!(handle.await.is_done());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`submit_with`](Self::submit_with); and if there are no keys or more than 64, or the options have another
    /// priority than `Normal`: jobs that overtake each other could wait for each other.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the job has not been accepted, and does not run.
    pub async fn submit_across<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        job: impl Job,
        options: JobOptions,
    ) -> Result<JobHandle, SubmitError> {
        let mut submission = self.gather(keys, job, options)?;
        let mut timeout = pin!(self.enqueue_timer());
        let token = submission.ticket.caller().cloned();
        let mut unwanted = pin!(cancelled(token.as_ref()));
        let event = poll_fn(|cx| {
            if submission.is_answered(Some(cx.waker())) {
                return Poll::Ready(Event::Answered);
            }
            if timeout.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::TimedOut);
            }
            unwanted.as_mut().poll(cx).map(|()| Event::Unwanted)
        })
        .await;
        let handle = submission.conclude(event)?;
        Ok(self.watched(handle))
    }

    /// Submits a job like [`submit_across`](Self::submit_across) if there is room for it at once.
    ///
    /// # Errors
    /// As [`submit_across`](Self::submit_across).
    pub fn try_submit_across<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        job: impl Job,
        options: JobOptions,
    ) -> Result<JobHandle, SubmitError> {
        let handle = self.gather(keys, job, options)?.conclude(Event::TimedOut)?;
        Ok(self.watched(handle))
    }

    /// Checks the keys of a job, and sorts them by their shards.
    fn gather<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        job: impl Job,
        options: JobOptions,
    ) -> Result<AcrossSubmission, SubmitError> {
        let job = job.boxed();
        // One more than is allowed is enough to refuse.
        let keys = keys.into_iter().take(KEYS_MAX + 1);
        let keys: Vec<String> = keys.map(|key| key.as_ref().to_owned()).collect();
        let is_unwanted = || {
            options
                .cancel
                .as_ref()
                .is_some_and(CancellationToken::is_cancelled)
        };
        let refusal = match (keys.len(), options.priority) {
            (1..=KEYS_MAX, Priority::Normal) if !is_unwanted() => {
                let checked = keys.iter().try_for_each(|key| self.check(key));
                checked.err().map(Refusal::Key)
            }
            (1..=KEYS_MAX, Priority::Normal) => Some(Refusal::Cancelled),
            (1..=KEYS_MAX, _) => Some(Refusal::Prioritised),
            _ => Some(Refusal::KeyCount { max: KEYS_MAX }),
        };
        if let Some(refusal) = refusal {
            return Err(SubmitError::new(refusal, job));
        }
        let home = keys[0].clone();
        let ticket = Ticket::new(Arc::clone(self.shard_of(&home)), options.cancel);
        let mut sorted: Vec<(usize, String)> = keys
            .into_iter()
            .map(|key| (hash::shard_for(&key, self.shards.len()), key))
            .collect();
        sorted.sort_unstable();
        sorted.dedup();
        let groups = sorted.chunk_by(|(one, _), (other, _)| one == other);
        let groups = groups.map(|group| ShardKeys {
            shard: Arc::clone(&self.shards[group[0].0]),
            keys: group.iter().map(|(_, key)| key.clone()).collect(),
        });
        Ok(AcrossSubmission {
            groups: groups.collect(),
            home,
            cost: options.cost,
            ticket: Arc::new(ticket),
            job: Some(job),
            answer: None,
        })
    }
}

/// A submission of a job across keys, until it is answered.
struct AcrossSubmission {
    groups: Vec<ShardKeys>,
    home: String,
    cost: drr::Cost,
    ticket: Arc<Ticket>,
    /// Here while there is no room for it.
    job: Option<BoxJob>,
    answer: Option<Result<JobHandle, SubmitError>>,
}

impl AcrossSubmission {
    /// Tries to submit. If there is no room, and a waker, it is called when there may be some.
    fn is_answered(&mut self, waker: Option<&Waker>) -> bool {
        let Some(job) = self.job.take() else {
            return true;
        };
        let new_job = NewJob {
            key: &self.home,
            job,
            priority: Priority::Normal,
            cost: self.cost,
            caller: None, // its ticket has it
        };
        let waker = waker.map(|waker| (self.id(), waker));
        self.answer = match submit_across(&self.groups, new_job, &self.ticket, waker) {
            Submitted::Accepted(id, ticket) | Submitted::Waiting(id, ticket) => {
                Some(Ok(JobHandle::new(id, ticket)))
            }
            Submitted::Closed(job) => Some(Err(SubmitError::new(Refusal::Closed, job))),
            Submitted::Full(_, job) if waker.is_some() => {
                self.job = Some(job);
                None
            }
            Submitted::Full(full, job) => Some(Err(SubmitError::new(*full, job))),
        };
        self.answer.is_some()
    }

    /// Ends the submission after an event: with its answer, or by a last try.
    fn conclude(mut self, event: Event) -> Result<JobHandle, SubmitError> {
        if event == Event::Unwanted
            && let Some(job) = self.job.take()
        {
            return Err(SubmitError::new(Refusal::Cancelled, job));
        }
        self.is_answered(None);
        let answer = self.answer.take();
        answer.expect("a try that does not wait is answered")
    }

    fn id(&self) -> usize {
        Arc::as_ptr(&self.ticket).addr()
    }
}

impl Drop for AcrossSubmission {
    fn drop(&mut self) {
        for group in &self.groups {
            group.shard.forget_waiter(self.id());
        }
        if let Some(job) = self.job.take() {
            crate::contain::discard(job);
        }
    }
}
