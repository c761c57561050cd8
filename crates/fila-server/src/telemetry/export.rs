//! Traces, exported by OTLP over gRPC.

use http::Uri;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::Handle;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use super::error::TelemetryError;
use crate::config::TelemetryConfig;

/// Returns a provider that exports spans to an endpoint in batches, from its own thread.
pub(super) fn provider(
    config: &TelemetryConfig,
    endpoint: &Uri,
) -> Result<SdkTracerProvider, TelemetryError> {
    Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint.to_string())
        .build()?;
    let resource = Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let own_traces = Sampler::TraceIdRatioBased(config.trace_ratio);
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .with_sampler(Sampler::ParentBased(Box::new(own_traces)))
        .build())
}

/// Returns the layer that turns spans into traces.
///
/// It takes only our own spans: the libraries of the export have spans too, and exporting those would never end.
pub(super) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("fila"))
        .with_location(false)
        .with_threads(false)
        .with_filter(Targets::new().with_target("fila", Level::INFO))
}
