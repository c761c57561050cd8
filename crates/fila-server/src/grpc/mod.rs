//! gRPC: `fila.v1` over a [`Handle`](crate::runtime::Handle), health and reflection.
//!
//! No other module uses wire types: requests are parsed once, responses are built last. A call that is refused as a
//! whole ends with a gRPC status and a metadata entry `fila-error`, which names the error code. In batches and streams
//! every message has its own result.

mod admin;
mod config;
mod consume;
mod delivery_buffer;
mod explain;
mod key_selection;
mod keys;
mod message;
mod page_token;
mod peek;
mod produce;
mod receive;
mod redrive;
mod refusal;
mod response_body;
mod service;
mod settings;
mod trace;
mod whatif;
mod work;

use fila_proto::v1::fila_admin_server::FilaAdminServer;
use fila_proto::v1::fila_service_server::FilaServiceServer;
pub(crate) use refusal::{ERROR_METADATA, status_code, unreadable};
pub(crate) use response_body::count_deliveries;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

pub(crate) use trace::Tracing;

use crate::config::LimitsConfig;
use crate::message_id as id;
use crate::runtime::Handle;

/// A request may always have this many bytes, whatever the limits of a message are.
const REQUEST_BYTES_MIN: usize = 16 << 20;

/// The bytes of a message in a request besides payload and headers: keys, ids, times and framing.
const MESSAGE_OVERHEAD: usize = 4 << 10;

/// The services for which health is reported.
pub(crate) const SERVICES: [&str; 3] = ["", "fila.v1.FilaService", "fila.v1.FilaAdmin"];

/// Tells whether the requests of a call are a stream, which its service reads itself.
pub(crate) fn is_streamed(path: &str) -> bool {
    let method = path.strip_prefix("/fila.v1.FilaService/");
    matches!(method, Some("Produce" | "Work"))
}

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

/// Returns the largest size of a request. A message of the largest size always fits.
pub(crate) fn request_bytes_max(limits: &LimitsConfig) -> usize {
    let message = limits
        .message
        .payload_bytes
        .as_usize()
        .saturating_add(limits.message.header_bytes.as_usize())
        .saturating_add(MESSAGE_OVERHEAD);
    message.max(REQUEST_BYTES_MIN)
}
