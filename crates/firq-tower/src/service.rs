//! The service that lets requests through the gate.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use firq_async::TenantKey;
use tower_service::Service;

use crate::answer::{Answer, JsonAnswer};
use crate::future::{Call, ResponseFuture};
use crate::gate::{Entry, Tenant};
use crate::layer::Shared;

/// A service whose requests take turns between tenants. Made by [`FirqLayer`](crate::FirqLayer).
///
/// It is ready when the service inside is: queueing starts when a request is there, since only the request says
/// whose it is. The service that was ready is the one that is called, though later; a clone has no part in its
/// readiness, and shares nothing with it but the gate.
pub struct FirqService<S, Req, K: Tenant = TenantKey, A = JsonAnswer> {
    inner: S,
    shared: Arc<Shared<Req, K, A>>,
}

impl<S, Req, K: Tenant, A> FirqService<S, Req, K, A> {
    pub(crate) const fn new(inner: S, shared: Arc<Shared<Req, K, A>>) -> Self {
        Self { inner, shared }
    }

    /// Returns the service inside.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Returns the call of the service that is ready, to be made later. A clone takes its place.
    fn later(&mut self, request: Req) -> Call<S, Req, K, A>
    where
        S: Clone,
    {
        let next = self.inner.clone();
        Call {
            service: std::mem::replace(&mut self.inner, next),
            request,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S, Req, K, A> Service<Req> for FirqService<S, Req, K, A>
where
    S: Service<Req> + Clone,
    K: Tenant,
    A: Answer<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, Req, K, A>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        match self.shared.gate.enter(self.shared.order(&request)) {
            Entry::Granted(grant) => ResponseFuture::granted(grant, self.later(request)),
            Entry::Queued(turn) => ResponseFuture::queued(turn, self.later(request)),
            Entry::Waiting(entering) => ResponseFuture::entering(entering, self.later(request)),
            Entry::Refused(refusal) => ResponseFuture::refused(refusal, Arc::clone(&self.shared)),
        }
    }
}

impl<S: Clone, Req, K: Tenant, A> Clone for FirqService<S, Req, K, A> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.shared))
    }
}

impl<S: fmt::Debug, Req, K: Tenant, A> fmt::Debug for FirqService<S, Req, K, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirqService")
            .field("inner", &self.inner)
            .field("gate", &self.shared.gate)
            .finish()
    }
}
