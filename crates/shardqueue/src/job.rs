//! Jobs: the trait that users implement, and the form in which the executor holds them.
//!
//! A job and the future of its attempt live in one allocation, whose type is erased. A closure stays beside the
//! future that it made. A job with an `async fn` is inside the future, which borrows it; when the attempt ends,
//! also by a panic, it comes out again and can be attempted once more, handed back, or dropped.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::contain::{self, contain};
use crate::context::JobContext;
use crate::failure::JobError;

/// A unit of work.
///
/// It is attempted until it succeeds, or until the [retry policy](crate::RetryPolicy) gives up; so an attempt
/// that was interrupted half-way must be safe to repeat. Closures that return a future are jobs, where the
/// future's output is `()` or a `Result` with any error.
///
/// ```
/// use shardqueue::{Job, JobContext, JobError};
///
/// struct AddEntry { memory: String, text: String }
///
/// impl Job for AddEntry {
///     async fn run(&mut self, context: JobContext) -> Result<(), JobError> {
///         println!("attempt {} to add {:?} to {}", context.attempt(), self.text, self.memory);
///         Ok(())
///     }
/// }
/// ```
pub trait Job: Send + Sized + 'static {
    /// Makes one attempt.
    ///
    /// An error, and likewise a panic, is a failed attempt. An error marked as
    /// [`Permanent`](crate::Permanent) is not retried.
    fn run(
        &mut self,
        context: JobContext,
    ) -> impl Future<Output = Result<(), JobError>> + Send + '_;

    /// Returns the job with its type erased.
    fn boxed(self) -> BoxJob {
        BoxJob::new(self)
    }
}

impl<F, Fut> Job for F
where
    F: FnMut(JobContext) -> Fut + Send + 'static,
    Fut: Future<Output: IntoResult> + Send + 'static,
{
    async fn run(&mut self, context: JobContext) -> Result<(), JobError> {
        self(context).await.into_result()
    }

    fn boxed(self) -> BoxJob {
        BoxJob(Box::pin(ClosureCell {
            closure: self,
            attempt: None,
        }))
    }
}

/// The return types of a closure's future: nothing, or a result with any error.
pub trait IntoResult: sealed::Sealed {
    #[doc(hidden)]
    fn into_result(self) -> Result<(), JobError>;
}

impl IntoResult for () {
    fn into_result(self) -> Result<(), JobError> {
        Ok(())
    }
}

impl<E: Into<JobError>> IntoResult for Result<(), E> {
    fn into_result(self) -> Result<(), JobError> {
        self.map_err(Into::into)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
}

/// A job of any type. It is a [`Job`] itself, so one that was refused or handed back can be submitted again.
#[must_use = "a job that is dropped does not run"]
pub struct BoxJob(Pin<Box<dyn Attempts>>);

impl BoxJob {
    fn new<J: Job>(job: J) -> Self {
        Self(Box::pin(JobCell {
            job: Some(job),
            begin: |mut job: J, context| async move {
                let result = contain(|| job.run(context)).await;
                (job, result.unwrap_or_else(|panic| Err(panic.into())))
            },
            attempt: None,
        }))
    }

    /// Goes on with an attempt, which is begun with the context if that is still there.
    #[inline]
    pub(crate) fn poll_attempt(
        &mut self,
        cx: &mut Context<'_>,
        context: &mut Option<JobContext>,
    ) -> Poll<Result<(), JobError>> {
        self.0.as_mut().poll_attempt(cx, context)
    }
}

impl Job for BoxJob {
    async fn run(&mut self, context: JobContext) -> Result<(), JobError> {
        let mut context = Some(context);
        poll_fn(|cx| self.poll_attempt(cx, &mut context)).await
    }

    fn boxed(self) -> BoxJob {
        self
    }
}

impl fmt::Debug for BoxJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxJob(..)")
    }
}

/// The operations of the executor on a job of any type.
trait Attempts: Send {
    fn poll_attempt(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        context: &mut Option<JobContext>,
    ) -> Poll<Result<(), JobError>>;
}

pin_project! {
    /// A closure, and the future that it made.
    struct ClosureCell<F, A> {
        closure: F,
        #[pin]
        attempt: Option<A>,
    }
}

impl<F, A> Attempts for ClosureCell<F, A>
where
    F: FnMut(JobContext) -> A + Send,
    A: Future<Output: IntoResult> + Send,
{
    fn poll_attempt(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        context: &mut Option<JobContext>,
    ) -> Poll<Result<(), JobError>> {
        let this = self.project();
        let begin = context.take().map(|context| || (this.closure)(context));
        contain::poll(this.attempt, begin, IntoResult::into_result, cx)
            .map(|result| result.unwrap_or_else(|panic| Err(panic.into())))
    }
}

pin_project! {
    /// A job, and the future that it is in during an attempt.
    struct JobCell<J, B, A> {
        // Here between attempts.
        job: Option<J>,
        begin: B,
        #[pin]
        attempt: Option<A>,
    }
}

impl<J, B, A> Attempts for JobCell<J, B, A>
where
    J: Send,
    B: Fn(J, JobContext) -> A + Send,
    A: Future<Output = (J, Result<(), JobError>)> + Send,
{
    fn poll_attempt(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        context: &mut Option<JobContext>,
    ) -> Poll<Result<(), JobError>> {
        let mut this = self.project();
        if let Some(context) = context.take()
            && let Some(job) = this.job.take()
        {
            this.attempt.set(Some((this.begin)(job, context)));
        }
        let Some(attempt) = this.attempt.as_mut().as_pin_mut() else {
            return Poll::Pending; // no attempt was begun, so nothing will ever come of it
        };
        attempt.poll(cx).map(|(job, result)| {
            *this.job = Some(job);
            this.attempt.set(None);
            result
        })
    }
}
