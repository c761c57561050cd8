//! Errors of telemetry.

use std::io;

use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::error::OTelSdkError;

/// Why telemetry did not start, or did not end in time.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Log lines already go elsewhere.
    #[error(
        "this process has a logger already; start telemetry once, and before anything else that logs"
    )]
    AlreadyStarted,
    /// The thread that writes log lines did not start.
    #[error("log lines cannot be written to standard error; check the limits on threads and files")]
    LogWriter(#[source] io::Error),
    /// An export needs a runtime for its connection.
    #[error("traces are exported from within a Tokio runtime; start telemetry inside of one")]
    NoRuntime,
    /// The endpoint does not make an exporter.
    #[error("traces cannot be exported; check telemetry.otlp_endpoint")]
    Exporter(#[from] ExporterBuildError),
    /// The last spans were not exported in time.
    #[error("the last traces were not exported; check that the collector is up")]
    Unflushed(#[source] OTelSdkError),
}
