//! Keeping panics of a user's code where they belong: a job's to its attempt, a hook's to its call.
//!
//! Everything of the user's that the executor calls, polls or drops on its own account goes through here.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::failure::JobPanic;

/// Calls a function of the user's, and turns a panic into its message.
pub(crate) fn call<R>(function: impl FnOnce() -> R) -> Result<R, JobPanic> {
    // The function cannot reach our state, and its own state belongs to the user.
    catch_unwind(AssertUnwindSafe(function)).map_err(message)
}

/// Drops something of the user's, whose `drop` may panic.
pub(crate) fn discard<T>(value: T) {
    if let Err(panic) = call(move || drop(value)) {
        tracing::error!(panic = %panic, "shardqueue: panic while dropping a job: {panic}");
    }
}

/// Returns a future that resolves to an error where the one that `make` returns would panic.
///
/// Making, polling and dropping it are contained; it is dropped before the result is returned.
pub(crate) const fn contain<M, F>(make: M) -> Contained<M, F>
where
    M: FnOnce() -> F,
    F: Future,
{
    Contained {
        make: Some(make),
        future: None,
    }
}

pin_project! {
    pub(crate) struct Contained<M, F> {
        make: Option<M>,
        #[pin]
        future: Option<F>,
    }
}

impl<M, F> Future for Contained<M, F>
where
    M: FnOnce() -> F,
    F: Future,
{
    type Output = Result<F::Output, JobPanic>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        poll(this.future, this.make.take(), |output| output, cx)
    }
}

/// Polls a future of the user's in a slot, into which `make` puts it first, if given; when it is ready, empties
/// the slot and passes its output through `finish`. A panic in any of this is the result.
#[inline]
pub(crate) fn poll<M, F, R>(
    mut slot: Pin<&mut Option<F>>,
    make: Option<M>,
    finish: impl FnOnce(F::Output) -> R,
    cx: &mut Context<'_>,
) -> Poll<Result<R, JobPanic>>
where
    M: FnOnce() -> F,
    F: Future,
{
    let polled = catch_unwind(AssertUnwindSafe(|| {
        if let Some(make) = make {
            slot.set(Some(make()));
        }
        let Some(future) = slot.as_mut().as_pin_mut() else {
            return Poll::Pending; // it was never made, or has resolved already
        };
        future.poll(cx).map(finish)
    }));
    let result = match polled {
        Ok(poll) => Ok(ready!(poll)),
        Err(payload) => Err(message(payload)),
    };
    let emptied = catch_unwind(AssertUnwindSafe(|| slot.set(None)));
    Poll::Ready(match emptied {
        Ok(()) => result,
        Err(payload) => Err(message(payload)),
    })
}

/// Returns the message of a panic.
fn message(payload: Box<dyn Any + Send>) -> JobPanic {
    let text = match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(other) => {
                // A payload of the user's own type, whose drop might panic again.
                if catch_unwind(AssertUnwindSafe(|| drop(other))).is_err() {
                    "a panic whose payload panicked when it was dropped".to_owned()
                } else {
                    "a panic without a message".to_owned()
                }
            }
        },
    };
    JobPanic::new(text)
}
