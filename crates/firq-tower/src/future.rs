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
use crate::gate::{Entry, Tenant};
use crate::layer::Shared;
use crate::permit::Permit;
use crate::turn::{Entering, Turn};

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
        state: ResponseState<S::Future, S, Req, K>,
        shared: Arc<Shared<Req, K, A>>,
    }
}

pin_project! {
    #[project = ResponseStateProjection]
    enum ResponseState<F, S, Req, K>
    where
        K: Tenant,
    {
        // Waits for room in the queue.
        Entering { entering: Entering<K>, call: Option<Call<S, Req>> },
        // Waits for its turn.
        Queued { turn: Turn<K>, call: Option<Call<S, Req>> },
        // The permit is held for its drop: it is free when the response is there or is abandoned.
        Running { #[pin] future: F, permit: Permit<K> },
        Refused { refusal: Refusal },
        Done,
    }
}

/// The call that is made when the turn has come: the service that was ready, and the request.
struct Call<S, Req> {
    service: S,
    request: Req,
}

impl<S, Req, K, A> ResponseFuture<S, Req, K, A>
where
    S: Service<Req>,
    K: Tenant,
{
    pub(crate) fn new(
        entry: Entry<K>,
        service: S,
        request: Req,
        shared: Arc<Shared<Req, K, A>>,
    ) -> Self {
        let call = Some(Call { service, request });
        let state = match entry {
            Entry::Queued(turn) => ResponseState::Queued { turn, call },
            Entry::Waiting(entering) => ResponseState::Entering { entering, call },
            Entry::Refused(refusal) => ResponseState::Refused { refusal },
        };
        Self { state, shared }
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
                    match ready!(entering.poll_turn(context)) {
                        Ok(turn) => ResponseState::Queued {
                            turn,
                            call: call.take(),
                        },
                        Err(refusal) => ResponseState::Refused { refusal },
                    }
                }
                ResponseStateProjection::Queued { turn, call } => {
                    match ready!(turn.poll_permit(context)) {
                        Ok(permit) => {
                            let call = call.take().expect("a turn comes once");
                            let Call {
                                mut service,
                                request,
                            } = call;
                            ResponseState::Running {
                                future: service.call(request),
                                permit,
                            }
                        }
                        Err(refusal) => ResponseState::Refused { refusal },
                    }
                }
                ResponseStateProjection::Running { future, permit } => {
                    let response = ready!(future.poll(context));
                    permit.served();
                    this.state.set(ResponseState::Done); // frees the permit
                    return Poll::Ready(response);
                }
                ResponseStateProjection::Refused { refusal } => {
                    let answer = this.shared.answer.answer(*refusal);
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
