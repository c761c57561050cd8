//! gRPC: `fila.v1` over a [`Handle`](crate::runtime::Handle), health and reflection.
//!
//! Wire types end here: what comes in is parsed once, what goes out is made at the last moment. A call that is refused
//! as a whole ends with a status that fits and an entry `fila-error` with the name of its code; in batches and streams
//! every message has a result of its own.

mod admin;
mod config;
mod consume;
mod delivery_buffer;
mod explain;
mod message;
mod peek;
mod produce;
mod redrive;
mod refusal;
mod service;
mod settings;
mod trace;
mod work;

use fila_proto::v1::fila_admin_server::FilaAdminServer;
use fila_proto::v1::fila_service_server::FilaServiceServer;
pub(crate) use refusal::{ERROR_METADATA, unreadable};
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

pub(crate) use trace::Tracing;

use crate::config::LimitsConfig;
use crate::message_id as id;
use crate::runtime::Handle;

/// The least that a request may have, in bytes, whatever the limits of a message are.
const REQUEST_BYTES_MIN: usize = 16 << 20;

/// What of a request is neither payload nor headers, for each message: keys, ids, times and the frame around them.
const MESSAGE_OVERHEAD: usize = 4 << 10;

/// The names under which health is asked for.
pub(crate) const SERVICES: [&str; 3] = ["", "fila.v1.FilaService", "fila.v1.FilaAdmin"];

/// Returns all gRPC services.
pub(crate) fn routes(
    handle: &Handle,
    tracing: Tracing,
    health: HealthServer<impl Health>,
) -> Routes {
    let largest = request_bytes_max(handle.limits());
    let messages = service::Messages {
        handle: handle.clone(),
        tracing,
    };
    let admin = admin::Admin {
        handle: handle.clone(),
    };
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(fila_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let described = "our own descriptors are sound";
    let mut routes = Routes::new(
        FilaServiceServer::new(messages)
            .max_decoding_message_size(largest)
            .max_encoding_message_size(usize::MAX),
    )
    .add_service(FilaAdminServer::new(admin).max_encoding_message_size(usize::MAX))
    .add_service(health);
    routes = routes.add_service(reflection().build_v1().expect(described));
    routes.add_service(reflection().build_v1alpha().expect(described))
}

/// Returns how large a request may be: one message of the largest size fits in any case, a batch of small ones too.
fn request_bytes_max(limits: &LimitsConfig) -> usize {
    let message = limits
        .message
        .payload_bytes
        .as_usize()
        .saturating_add(limits.message.header_bytes.as_usize())
        .saturating_add(MESSAGE_OVERHEAD);
    message.max(REQUEST_BYTES_MIN)
}
