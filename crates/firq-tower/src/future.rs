//! The response to a request that passes the gate, or does not.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::answer::Answer;
use crate::error::Refusal;
use crate::gate::Tenant;
use crate::layer::Shared;
use crate::permit::Permit;
use crate::turn::{Entering, Grant, Turn};

pin_project! {
    /// The response to a request, once it has had its turn. Made by [`FirqService`](crate::FirqService).
    ///
    /// Dropping it at any point takes the request out of the queue, or stops it and frees its permit.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, K, A>
    where
        S: Service<Req>,
        K: Tenant,
    {
        #[pin]
        state: ResponseState<S::Future, S, Req, K, A>,
    }
}

pin_project! {
    #[project = ResponseStateProjection]
    enum ResponseState<F, S, Req, K, A>
    where
        K: Tenant,
    {
        // Waits for room in the queue.
        Entering { entering: Entering<K>, call: Option<Call<S, Req, K, A>> },
        // Need not wait; the call is made when the response is first polled.
        Granted { granted: Option<(Grant<K>, Call<S, Req, K, A>)> },
        // Waits for its turn.
        Queued { turn: Turn<K>, call: Option<Call<S, Req, K, A>> },
        // The permit is held for its drop: it is free when the response is there or is abandoned.
        Running { #[pin] future: F, permit: Permit<K> },
        Refused { refusal: Refusal, shared: Arc<Shared<Req, K, A>> },
        Done,
    }
}

/// The call that is made when the turn has come: the service that was ready, and the request. If it is refused
/// instead, the shared state has the answer.
pub(crate) struct Call<S, Req, K: Tenant, A> {
    pub(crate) service: S,
    pub(crate) request: Req,
    pub(crate) shared: Arc<Shared<Req, K, A>>,
}

impl<S, Req, K, A> Call<S, Req, K, A>
where
    S: Service<Req>,
    K: Tenant,
{
    /// Makes the call, if there is a permit for it.
    fn resolve(
        mut self,
        permit: Result<Permit<K>, Refusal>,
    ) -> ResponseState<S::Future, S, Req, K, A> {
        match permit {
            Ok(permit) => ResponseState::Running {
                future: self.service.call(self.request),
                permit,
            },
            Err(refusal) => ResponseState::Refused {
                refusal,
                shared: self.shared,
            },
        }
    }
}

impl<S, Req, K, A> ResponseFuture<S, Req, K, A>
where
    S: Service<Req>,
    K: Tenant,
{
    /// Returns the response to a call that need not wait.
    pub(crate) const fn granted(grant: Grant<K>, call: Call<S, Req, K, A>) -> Self {
        let granted = Some((grant, call));
        let state = ResponseState::Granted { granted };
        Self { state }
    }

    /// Returns the response to a call that is made when it is its turn.
    pub(crate) const fn queued(turn: Turn<K>, call: Call<S, Req, K, A>) -> Self {
        let call = Some(call);
        let state = ResponseState::Queued { turn, call };
        Self { state }
    }

    /// Returns the response to a call that waits for room in the queue.
    pub(crate) const fn entering(entering: Entering<K>, call: Call<S, Req, K, A>) -> Self {
        let call = Some(call);
        let state = ResponseState::Entering { entering, call };
        Self { state }
    }

    /// Returns the response to a call that is not made.
    pub(crate) const fn refused(refusal: Refusal, shared: Arc<Shared<Req, K, A>>) -> Self {
        let state = ResponseState::Refused { refusal, shared };
        Self { state }
    }
}

impl<S, Req, K, A> Future for ResponseFuture<S, Req, K, A>
where
    S: Service<Req>,
    K: Tenant,
    A: Answer<S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                ResponseStateProjection::Entering { entering, call } => {
                    let entered = ready!(entering.poll_turn(context));
                    let call = call.take().expect("room is found once");
                    match entered {
                        Ok(turn) => ResponseState::Queued {
                            turn,
                            call: Some(call),
                        },
                        Err(refusal) => ResponseState::Refused {
                            refusal,
                            shared: call.shared,
                        },
                    }
                }
                ResponseStateProjection::Granted { granted } => {
                    let (grant, call) = granted.take().expect("a call is made once");
                    let permit = grant.redeem(&call.shared.gate);
                    call.resolve(permit)
                }
                ResponseStateProjection::Queued { turn, call } => {
                    let permit = ready!(turn.poll_permit(context));
                    call.take().expect("a turn comes once").resolve(permit)
                }
                ResponseStateProjection::Running { future, permit } => {
                    let response = ready!(future.poll(context));
                    permit.served();
                    this.state.set(ResponseState::Done); // frees the permit
                    return Poll::Ready(response);
                }
                ResponseStateProjection::Refused { refusal, shared } => {
                    let answer = shared.answer.answer(*refusal);
                    this.state.set(ResponseState::Done);
                    return Poll::Ready(answer);
                }
                ResponseStateProjection::Done => panic!("polled after it was ready"),
            };
            this.state.set(next);
        }
    }
}

impl<S, Req, K, A> fmt::Debug for ResponseFuture<S, Req, K, A>
where
    S: Service<Req>,
    K: Tenant,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            ResponseState::Entering { .. } => "Entering",
            ResponseState::Granted { .. } => "Granted",
            ResponseState::Queued { .. } => "Queued",
            ResponseState::Running { .. } => "Running",
            ResponseState::Refused { .. } => "Refused",
            ResponseState::Done => "Done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
