//! What the fuzzer and the test that replays its corpus need of a server: all that its port answers, without the port.
//!
//! Not part of the interface. It is here because nobody else has the services without a network.

pub use axum::Router;

use crate::grpc::{self, Tracing};
use crate::http::Site;
use crate::runtime::Handle;

/// Returns what answers the requests of a connection, with the codec of gRPC and all that is around it.
pub fn answering(handle: &Handle) -> Router {
    let (_, health) = tonic_health::server::health_reporter();
    let site = Site::starting();
    site.open(handle.clone(), grpc::routes(handle, Tracing::Off, health));
    site.router()
}
