//! The services of a server without its port, for the fuzzer and for the test that replays its corpus.
//!
//! Not part of the public interface.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};

pub use axum::Router;

use crate::grpc::{self, Tracing};
use crate::http::Site;
use crate::intake::{Receiving, receive};
use crate::runtime::Handle;

/// Returns the router that answers the requests of a connection, with the gRPC codec, the budget of bodies and all layers.
pub fn answering(handle: &Handle) -> Router {
    let (_, health) = tonic_health::server::health_reporter();
    let site = Site::starting();
    site.open(handle.clone(), grpc::routes(handle, Tracing::Off, health));
    let limits = handle.limits();
    let budget = limits.receiving_bytes.bytes();
    let receiving = Arc::new(Receiving::new(budget, grpc::request_bytes_max(limits)));
    let share = Arc::new(receiving.share());
    site.router()
        .layer(from_fn(move |request: Request, next: Next| {
            let (request, receipt) = receive(&share, grpc::is_streamed, request);
            async move {
                let _receipt = receipt;
                next.run(request.map(Body::new)).await
            }
        }))
}
