//! The servers: the same handler, behind different layers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::routing::get;
use axum::{Router, serve};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tower::limit::GlobalConcurrencyLimitLayer;

use super::downstream::Downstream;

/// The layer in front of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Bare,
    ConcurrencyLimit,
    Rival,
    Ours,
}

impl Layer {
    pub(crate) const ALL: [Self; 4] = [Self::Bare, Self::ConcurrencyLimit, Self::Rival, Self::Ours];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "Axum alone",
            Self::ConcurrencyLimit => "ConcurrencyLimit",
            Self::Rival => "firq-tower 0.1.3",
            Self::Ours => "firq-tower (ours)",
        }
    }
}

/// The settings of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) in_flight: usize,
    pub(crate) max_per_tenant: usize,
    pub(crate) max_global: usize,
    /// How long the handler waits for its dependency; zero for no wait.
    pub(crate) work: Duration,
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    served: Arc<AtomicU64>,
    _runtime: Runtime,
}

impl Server {
    /// Starts a server on a free port, with its own runtime.
    pub(crate) fn start(layer: Layer, setup: Setup) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let served = Arc::new(AtomicU64::new(0));
        let downstream = (!setup.work.is_zero()).then(Downstream::start);
        let handler = {
            let served = Arc::clone(&served);
            move || {
                let (served, downstream) = (Arc::clone(&served), downstream.clone());
                async move {
                    if let Some(downstream) = downstream {
                        downstream.call(setup.work).await;
                    }
                    served.fetch_add(1, Ordering::Relaxed);
                    "hello"
                }
            }
        };
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        match layer {
            Layer::Rival => {
                let app = rival_app(handler, setup);
                runtime.spawn(async move { axum_rival::serve(listener, app).await });
            }
            Layer::Bare => {
                let app = Router::new().route("/", get(handler));
                runtime.spawn(async move { serve(listener, app).await });
            }
            Layer::ConcurrencyLimit => {
                let limit = GlobalConcurrencyLimitLayer::new(setup.in_flight);
                let app = Router::new().route("/", get(handler)).layer(limit);
                runtime.spawn(async move { serve(listener, app).await });
            }
            Layer::Ours => {
                let layer = firq_tower::Firq::new()
                    .with_in_flight_limit(setup.in_flight)
                    .with_max_per_tenant(setup.max_per_tenant)
                    .with_max_global(setup.max_global)
                    .build(|request: &Request| firq_tower::TenantKey::from(tenant(request)));
                let app = Router::new().route("/", get(handler)).layer(layer);
                runtime.spawn(async move { serve(listener, app).await });
            }
        }
        Ok(Self {
            address,
            served,
            _runtime: runtime,
        })
    }

    /// Returns how many requests the handler has served.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

fn tenant<B>(request: &axum::http::Request<B>) -> u64 {
    let header = request.headers().get("x-tenant-id");
    let number = header.and_then(|header| header.to_str().ok()?.parse().ok());
    number.unwrap_or(0)
}

/// The same behind the published layer, whose errors the application has to turn into responses.
fn rival_app<H, F>(handler: H, setup: Setup) -> axum_rival::Router
where
    H: FnOnce() -> F + Clone + Send + 'static,
    F: Future<Output = &'static str> + Send,
{
    use axum_rival::error_handling::HandleErrorLayer;
    use axum_rival::http::StatusCode;
    use firq_tower_rival::{Firq, TenantKey};

    let layer = Firq::new()
        .with_shards(4)
        .with_in_flight_limit(setup.in_flight)
        .with_max_per_tenant(setup.max_per_tenant)
        .with_max_global(setup.max_global)
        .with_quantum(1)
        .build(|request: &axum_rival::extract::Request| TenantKey::from(tenant(request)));
    let refusal = HandleErrorLayer::new(async |_| StatusCode::TOO_MANY_REQUESTS);
    axum_rival::Router::new()
        .route("/", axum_rival::routing::get(handler))
        .layer(tower::ServiceBuilder::new().layer(refusal).layer(layer))
}
