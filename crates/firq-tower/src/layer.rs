//! The layer, and how its owner looks at it and closes it.

use std::fmt;
use std::sync::Arc;

use firq_async::firq_core::Clock;
use firq_async::{CloseMode, TenantKey, TokioClock};
use tower_layer::Layer;

use crate::answer::JsonAnswer;
use crate::extractors::Extractors;
use crate::gate::{Gate, Order, Tenant};
use crate::metrics::MetricsService;
use crate::service::FirqService;
use crate::stats::FirqStats;

/// Puts a fair queue and a limit on requests in flight in front of a service. Made by
/// [`Firq::build`](crate::Firq::build).
///
/// Clones, and all services that were made by them, share one queue and one limit. Keep a clone to look at
/// the [statistics](Self::stats), to change weights, and to close.
pub struct FirqLayer<Req, K: Tenant = TenantKey, A = JsonAnswer> {
    shared: Arc<Shared<Req, K, A>>,
}

/// State that a layer, its services and their responses share.
pub(crate) struct Shared<Req, K: Tenant, A> {
    pub(crate) gate: Arc<Gate<K>>,
    pub(crate) tenant: Box<dyn Fn(&Req) -> K + Send + Sync>,
    pub(crate) extractors: Extractors<Req>,
    pub(crate) answer: A,
}

impl<Req, K: Tenant, A> Shared<Req, K, A> {
    /// Reads the facts that the gate needs from a request.
    pub(crate) fn order(&self, request: &Req) -> Order<K> {
        let extractors = &self.extractors;
        Order {
            tenant: (self.tenant)(request),
            deadline: extractors.deadline.as_ref().and_then(|read| read(request)),
            priority: extractors
                .priority
                .as_ref()
                .map_or_else(Default::default, |read| read(request)),
            cost: extractors.cost.as_ref().map_or(1, |read| read(request)),
        }
    }
}

impl<Req, K: Tenant, A> FirqLayer<Req, K, A> {
    pub(crate) fn new(shared: Shared<Req, K, A>) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns the layer's counters and its present state.
    #[must_use]
    pub fn stats(&self) -> FirqStats<K> {
        self.gate().stats()
    }

    /// Returns a service that answers with the statistics as Prometheus scrapes them, for a route of its own.
    ///
    /// ```
    /// # use axum::{Router, extract::Request, routing::get};
    /// # use firq_tower::{Firq, TenantKey};
    /// let layer = Firq::new().build(|_: &Request| TenantKey::from(0));
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(layer.clone())
    ///     .route_service("/metrics", layer.metrics_service()); // after the layer: not queued itself
    /// ```
    #[must_use]
    pub fn metrics_service(&self) -> MetricsService<K> {
        MetricsService::new(Arc::clone(self.gate()))
    }

    /// Gives a tenant a share of its own, from now on: one of weight 3 is served three times as much as one of
    /// weight 1.
    pub fn set_tenant_weight(&self, tenant: K, weight: u32) {
        self.gate().set_weight(tenant, weight);
    }

    /// Lets an [adaptive](crate::Adaptive) limit measure the service anew, as after a deployment or a fail-over.
    pub fn reset_limit(&self) {
        self.gate().limit.reset(TokioClock.now());
    }

    /// Takes no more requests, and answers those that are queued: they are refused as closed. Those that run
    /// complete.
    pub fn close_immediate(&self) {
        self.gate().close(CloseMode::Immediate);
    }

    /// Takes no more requests; queued requests have their turn and complete.
    pub fn close_drain(&self) {
        self.gate().close(CloseMode::Drain);
    }

    /// Returns whether the layer takes no more requests.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.gate().scheduler.is_closed()
    }

    /// Waits until the layer is closed and no request is queued or running any more.
    pub async fn drained(&self) {
        self.gate().drained().await;
    }

    fn gate(&self) -> &Arc<Gate<K>> {
        &self.shared.gate
    }
}

impl<S, Req, K: Tenant, A> Layer<S> for FirqLayer<Req, K, A> {
    type Service = FirqService<S, Req, K, A>;

    fn layer(&self, inner: S) -> Self::Service {
        FirqService::new(inner, Arc::clone(&self.shared))
    }
}

impl<Req, K: Tenant, A> Clone for FirqLayer<Req, K, A> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<Req, K: Tenant, A> fmt::Debug for FirqLayer<Req, K, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirqLayer")
            .field("gate", &self.shared.gate)
            .finish_non_exhaustive()
    }
}
