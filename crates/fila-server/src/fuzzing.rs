//! The services of a server without its port, for the fuzzer and for the test that replays its corpus.
//!
//! Not part of the public interface.

pub use axum::Router;

use crate::grpc::{self, Tracing};
use crate::http::Site;
use crate::runtime::Handle;

/// Returns the router that answers the requests of a connection, with the gRPC codec and all layers.
pub fn answering(handle: &Handle) -> Router {
    let (_, health) = tonic_health::server::health_reporter();
    let site = Site::starting();
    site.open(handle.clone(), grpc::routes(handle, Tracing::Off, health));
    site.router()
}
