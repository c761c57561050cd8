//! The submitter's handle: a future of the job's outcome, which can also cancel the job and look it up.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::outcome::{CancelResult, JobId, JobStatus, Outcome};
use crate::shard::Shard;
use crate::ticket::Ticket;

/// A job that was accepted.
///
/// Awaiting it gives the job's [`Outcome`]. Dropping it does not affect the job. To cancel the job when
/// the handle is dropped, turn it into a [`CancelOnDrop`].
///
/// # Cancel safety
/// It can be polled, dropped and polled again in a `select!` (`&mut handle`) without losing the outcome, which
/// it keeps.
pub struct JobHandle {
    id: JobId,
    pub(crate) ticket: Arc<Ticket>,
}

impl JobHandle {
    pub(crate) const fn new(id: JobId, ticket: Arc<Ticket>) -> Self {
        Self { id, ticket }
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        self.ticket.shard()
    }

    /// Returns the job's id.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.id
    }

    /// Cancels the job.
    ///
    /// A job that is queued or backs off ends at once as [`Outcome::Cancelled`]. Its room is free, and the error handler
    /// has been told, when this returns. One that runs is told through its [context](crate::JobContext) and ends as it likes, but is not
    /// attempted again.
    pub fn cancel(&self) -> CancelResult {
        self.shard().cancel(self.id.place, &self.ticket)
    }

    /// Returns how the job is.
    ///
    /// Takes time in proportion to the jobs of its key that are queued before it.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        self.shard().status(self.id.place).unwrap_or_else(|| {
            let outcome = self.ticket.outcome();
            JobStatus::Ended(outcome.expect("a job leaves its shard and ends under one lock"))
        })
    }

    /// Returns a task that cancels the job when its submitter's token is cancelled, if there is a token. It ends
    /// with the job.
    pub(crate) fn watch(&self) -> Option<impl Future<Output = ()> + Send + 'static> {
        let token = self.ticket.caller()?.clone();
        let (ticket, place) = (Arc::clone(&self.ticket), self.id.place);
        Some(async move {
            let mut cancelled = std::pin::pin!(token.cancelled());
            poll_fn(|cx| match ticket.poll_ended(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => cancelled.as_mut().poll(cx).map(|()| {
                    ticket.shard().cancel(place, &ticket);
                }),
            })
            .await;
        })
    }

    /// Makes the job end with its handle: cancels it when the handle is dropped.
    pub const fn cancel_on_drop(self) -> CancelOnDrop {
        CancelOnDrop(self)
    }
}

impl Future for JobHandle {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.ticket.poll_outcome(cx)
    }
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A [`JobHandle`] that cancels its job when it is dropped.
#[derive(Debug)]
#[must_use = "dropping it cancels the job"]
pub struct CancelOnDrop(JobHandle);

impl CancelOnDrop {
    /// Returns the handle.
    #[must_use]
    pub const fn handle(&self) -> &JobHandle {
        &self.0
    }
}

impl Future for CancelOnDrop {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
