//! The paths of the port, while the server starts and after.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Request, State as Given};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fila_proto::v1::ErrorCode;
use http::{HeaderValue, StatusCode, Version, header};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tonic::service::Routes;
use tonic::{Code, Status};

use super::Outbox;
use crate::grpc::{ERROR_METADATA, count_deliveries, unreadable};
use crate::metrics::registry;
use crate::runtime::{Handle, State};

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The pages of the port. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Site(Arc<Pages>);

#[derive(Debug)]
struct Pages {
    starting: Router,
    open: OnceLock<(Router, Handle)>,
}

impl Site {
    /// Returns a site that answers that the server is starting.
    pub(crate) fn starting() -> Self {
        let starting = Router::new()
            .route("/healthz", get(alive))
            .route("/readyz", get(|| async { not_ready("starting") }))
            .fallback(unavailable);
        Self(Arc::new(Pages {
            starting,
            open: OnceLock::new(),
        }))
    }

    /// Replaces the pages by those of a started server. Works once.
    pub(crate) fn open(&self, handle: Handle, grpc: Routes) {
        let pages = health(&handle).merge(metrics(&handle));
        let grpc = grpc.into_axum_router().layer(from_fn(grpc_only));
        let _ = self.0.open.set((pages.merge(grpc), handle));
    }

    /// Replaces the pages by those that a started server has for probes. Works once.
    pub(crate) fn open_to_probes(&self, handle: Handle, has_metrics: bool) {
        let mut pages = health(&handle);
        if has_metrics {
            pages = pages.merge(metrics(&handle));
        }
        let _ = self.0.open.set((pages, handle));
    }

    /// Returns the router for the next request.
    pub(crate) fn router(&self) -> Router {
        let open = self.0.open.get().map(|(router, _)| router);
        open.unwrap_or(&self.0.starting).clone()
    }

    /// Tells whether consumers wait for room that the deliveries of others take.
    pub(crate) fn is_crowded(&self) -> bool {
        let open = self.0.open.get();
        open.is_some_and(|(_, handle)| handle.metrics().is_crowded())
    }
}

fn health(handle: &Handle) -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready).with_state(handle.clone()))
}

fn metrics(handle: &Handle) -> Router {
    let metrics = Arc::new(registry(handle.clone()));
    Router::new().route("/metrics", get(show_metrics).with_state(metrics))
}

async fn alive() -> &'static str {
    "alive\n"
}

async fn ready(Given(handle): Given<Handle>) -> Response {
    match handle.info().state {
        // Consumers must reach a server whose disk is full: they make room.
        State::Ready if handle.info().is_full => {
            "ready; the disk is full, new messages are refused\n".into_response()
        }
        State::Ready => "ready\n".into_response(),
        State::Starting => not_ready("starting"),
        State::Failed => not_ready("out of service; look at the log, then restart"),
        State::Stopping => not_ready("shutting down"),
    }
}

fn not_ready(why: &'static str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

async fn show_metrics(Given(registry): Given<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Answers gRPC calls while the server starts.
async fn unavailable(request: Request) -> Response {
    if !is_grpc(&request) {
        return not_ready("starting");
    }
    let mut status = Status::unavailable("the server is starting; try again in a moment");
    let code = ErrorCode::ShuttingDown.name();
    let code = tonic::metadata::MetadataValue::from_static(code);
    status.metadata_mut().insert(ERROR_METADATA, code);
    status.into_http::<axum::body::Body>()
}

pub(super) fn is_grpc<B>(request: &http::Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Refuses HTTP/1, over which gRPC lacks trailers and two-way streams.
async fn grpc_only(request: Request, next: Next) -> Response {
    if request.version() == Version::HTTP_2 {
        let outbox = request.extensions().get::<Outbox>().cloned();
        return count_deliveries(say_why(next.run(request).await), outbox);
    }
    let text = "there is nothing here for HTTP/1; gRPC is served over HTTP/2\n";
    let mut response = (StatusCode::HTTP_VERSION_NOT_SUPPORTED, text).into_response();
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// Adds the error code to statuses that tonic made before a call reached the services.
fn say_why(response: Response) -> Response {
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() != Code::Ok && !is_explained(&response) => {
            unreadable(status).into_http()
        }
        _ => response,
    }
}

fn is_explained(response: &Response) -> bool {
    response.headers().contains_key(ERROR_METADATA)
}
