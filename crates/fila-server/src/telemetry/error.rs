//! Why there is no telemetry.

use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::error::OTelSdkError;

/// Why telemetry could not be started, or not be ended in time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// Log lines already go elsewhere.
    #[error(
        "this process has a logger already; start telemetry once, and before anything else that logs"
    )]
    AlreadyStarted,
    /// An export needs a runtime for its connection.
    #[error("traces are exported from within a Tokio runtime; start telemetry inside of one")]
    NoRuntime,
    /// The exporter cannot be made of the endpoint.
    #[error("traces cannot be exported; check telemetry.otlp_endpoint")]
    Exporter(#[from] ExporterBuildError),
    /// The last spans did not get through, or not in time.
    #[error("the last traces were not exported; check that the collector is up")]
    Unflushed(#[source] OTelSdkError),
}
