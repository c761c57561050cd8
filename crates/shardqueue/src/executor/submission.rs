//! A submission under way: from the call until its answer has reached the caller.
//!
//! The submitter is a future, so it may be dropped at any point. If it is dropped before it has learned that its job
//! was accepted, the job is withdrawn, or cancelled if it was accepted meanwhile.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use crate::contain;
use crate::error::{Refusal, SubmitError};
use crate::handle::JobHandle;

#[derive(Debug)]
pub(super) struct Submission {
    /// `None` once the caller has it, or knows that there is none.
    handle: Option<JobHandle>,
}

impl From<JobHandle> for Submission {
    fn from(handle: JobHandle) -> Self {
        Self {
            handle: Some(handle),
        }
    }
}

/// The first event of a waiting submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Answered,
    TimedOut,
    Unwanted,
}

impl Submission {
    /// Waits until there is an answer, the time is up, or the caller's token is cancelled.
    pub(super) async fn wait(&self, mut timeout: Pin<&mut Sleep>) -> Event {
        let Some(handle) = &self.handle else {
            return Event::Answered;
        };
        let ticket = &handle.ticket;
        let mut unwanted = std::pin::pin!(cancelled(ticket.caller()));
        poll_fn(|cx| {
            if ticket.poll_answered(cx).is_ready() {
                return Poll::Ready(Event::Answered);
            }
            if timeout.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::TimedOut);
            }
            unwanted.as_mut().poll(cx).map(|()| Event::Unwanted)
        })
        .await
    }

    /// Ends the submission, after some event or before any: with its answer, or by giving up.
    pub(super) fn conclude(mut self, event: Event) -> Result<JobHandle, SubmitError> {
        let handle = self.handle.take();
        let handle = handle.expect("a submission is concluded once");
        let (shard, place) = (handle.shard(), handle.id().place);
        let given_up = match event {
            Event::Answered => None,
            Event::TimedOut => shard
                .time_out(place)
                .map(|(job, full)| (Refusal::QueueFull(full), job)),
            Event::Unwanted => shard.withdraw(place).map(|job| (Refusal::Cancelled, job)),
        };
        // A submission that is not in line any more has been answered meanwhile.
        match given_up.or_else(|| {
            handle
                .ticket
                .take_refused()
                .map(|job| (Refusal::Closed, job))
        }) {
            Some((refusal, job)) => Err(SubmitError::new(refusal, job)),
            None => Ok(handle),
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        match handle.shard().withdraw(handle.id().place) {
            Some(job) => contain::discard(job),
            None => {
                handle.cancel();
            }
        }
    }
}

/// Waits until a token is cancelled; without a token, forever.
pub(super) async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}
