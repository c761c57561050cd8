//! A ready-made `/metrics`.

use std::convert::Infallible;
use std::fmt::{self, Display};
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use firq_async::TenantKey;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use tower_service::Service;

use crate::gate::{Gate, Tenant};

/// Answers every request with the layer's statistics, as Prometheus scrapes them. Made by
/// [`metrics_service`](crate::FirqLayer::metrics_service).
pub struct MetricsService<K: Tenant = TenantKey> {
    gate: Arc<Gate<K>>,
}

impl<K: Tenant> MetricsService<K> {
    pub(crate) const fn new(gate: Arc<Gate<K>>) -> Self {
        Self { gate }
    }
}

impl<B, K: Tenant + Display> Service<Request<B>> for MetricsService<K> {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let mut response = Response::new(self.gate.stats().to_prometheus());
        let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        ready(Ok(response))
    }
}

impl<K: Tenant> Clone for MetricsService<K> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.gate))
    }
}

impl<K: Tenant> fmt::Debug for MetricsService<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsService").finish_non_exhaustive()
    }
}
