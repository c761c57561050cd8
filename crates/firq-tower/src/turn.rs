//! Waiting: for room in the queue, and for one's turn.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use firq_async::firq_core::Clock;
use firq_async::{Rejected, Task, TaskHandle, TokioClock};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::error::{Cause, Refusal};
use crate::gate::{Gate, Seat, Tenant, Verdict};
use crate::permit::Permit;

/// A permit that a request has got before its response was first polled.
pub(crate) struct Grant<K: Tenant> {
    permit: Permit<K>,
    deadline: Option<Instant>,
}

impl<K: Tenant> Grant<K> {
    pub(crate) const fn new(permit: Permit<K>, deadline: Option<Instant>) -> Self {
        Self { permit, deadline }
    }

    /// Returns the permit, unless the deadline has passed since it was granted.
    pub(crate) fn redeem(self, gate: &Gate<K>) -> Result<Permit<K>, Refusal> {
        match self.deadline {
            Some(deadline) if deadline < TokioClock.now() => {
                drop(self.permit);
                Err(gate.refuse(Cause::Expired))
            }
            Some(_) | None => Ok(self.permit),
        }
    }
}

/// A request that is queued. Dropping it takes the request out of the queue.
pub(crate) struct Turn<K: Tenant> {
    gate: Arc<Gate<K>>,
    /// None when the verdict is there.
    handle: Option<TaskHandle>,
    verdict: oneshot::Receiver<Verdict<K>>,
    deadline: Option<Instant>,
    alarm: Alarm,
}

/// What rings when the deadline passes.
enum Alarm {
    Unset,
    Set(Pin<Box<Sleep>>),
    Rung,
}

impl<K: Tenant> Turn<K> {
    pub(crate) fn new(
        gate: &Arc<Gate<K>>,
        handle: TaskHandle,
        deadline: Option<Instant>,
        verdict: oneshot::Receiver<Verdict<K>>,
    ) -> Self {
        Self {
            gate: Arc::clone(gate),
            handle: Some(handle),
            verdict,
            deadline,
            alarm: Alarm::Unset,
        }
    }

    /// Resolves to a permit, or to why there is none.
    pub(crate) fn poll_permit(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Permit<K>, Refusal>> {
        let verdict = match Pin::new(&mut self.verdict).poll(context) {
            Poll::Ready(verdict) => verdict,
            Poll::Pending => {
                ready!(self.poll_deadline(context));
                // No other call may have met it yet.
                self.gate.scheduler.scheduler().expire();
                ready!(Pin::new(&mut self.verdict).poll(context))
            }
        };
        self.handle = None;
        Poll::Ready(match verdict {
            Ok(Verdict::Granted(permit)) => Grant::new(permit, self.deadline).redeem(&self.gate),
            Ok(Verdict::Dropped { tenant, reason }) => {
                Err(self.gate.refuse_dropped(reason, &tenant))
            }
            // The scheduler hands a task out or to its observer. Were it to vanish, this is what it means.
            Err(_) => Err(self.gate.refuse(Cause::Closed)),
        })
    }

    /// Resolves once, when the deadline has passed.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (Some(deadline), Alarm::Unset | Alarm::Set(_)) = (self.deadline, &self.alarm) else {
            return Poll::Pending;
        };
        if let Alarm::Unset = self.alarm {
            // The deadline itself is in time.
            let passed = deadline
                .checked_add(Duration::from_nanos(1))
                .unwrap_or(deadline);
            self.alarm = Alarm::Set(Box::pin(tokio::time::sleep_until(passed.into())));
        }
        if let Alarm::Set(timer) = &mut self.alarm {
            ready!(timer.as_mut().poll(context));
        }
        self.alarm = Alarm::Rung;
        Poll::Ready(())
    }
}

impl<K: Tenant> Drop for Turn<K> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle {
            // If it has just been granted, the permit is in the channel and comes back with it.
            let _ = self.gate.scheduler.cancel(handle);
        }
    }
}

impl<K: Tenant> fmt::Debug for Turn<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("handle", &self.handle)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

type Submission<K> = Pin<Box<dyn Future<Output = Submitted<K>> + Send>>;

/// How a submission ended, and its tenant.
type Submitted<K> = (Result<TaskHandle, Rejected<Seat<K>>>, K);

/// A request that waits for room in the queue.
pub(crate) struct Entering<K: Tenant> {
    gate: Arc<Gate<K>>,
    submission: Submission<K>,
    deadline: Option<Instant>,
    /// None when the request has been queued.
    verdict: Option<oneshot::Receiver<Verdict<K>>>,
}

impl<K: Tenant> Entering<K> {
    pub(crate) fn new(
        gate: &Arc<Gate<K>>,
        tenant: K,
        task: Task<Seat<K>>,
        verdict: oneshot::Receiver<Verdict<K>>,
    ) -> Self {
        let deadline = task.deadline;
        let scheduler = gate.scheduler.clone();
        let submission = async move {
            let submitted = scheduler.enqueue_async(tenant.clone(), task).await;
            (submitted, tenant)
        };
        Self {
            gate: Arc::clone(gate),
            submission: Box::pin(submission),
            deadline,
            verdict: Some(verdict),
        }
    }

    /// Resolves to a place in the queue, or to why there is none.
    pub(crate) fn poll_turn(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Turn<K>, Refusal>> {
        let (submitted, tenant) = ready!(self.submission.as_mut().poll(context));
        let verdict = self.verdict.take().expect("a submission ends once");
        Poll::Ready(match submitted {
            Ok(handle) => {
                let turn = Turn::new(&self.gate, handle, self.deadline, verdict);
                self.gate.arrive();
                Ok(turn)
            }
            Err(rejected) => Err(self.gate.refuse_entry(&rejected, &tenant)),
        })
    }
}

impl<K: Tenant> fmt::Debug for Entering<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entering")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
