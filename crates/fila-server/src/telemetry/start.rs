//! Starting and ending telemetry.

use std::time::Duration;

use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::error::TelemetryError;
use super::{export, log, log_writer};
use crate::config::TelemetryConfig;

/// The telemetry of this process. Without a [`shutdown`](Self::shutdown) the last spans are lost.
#[derive(Debug)]
#[must_use]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sends the log lines of this process to standard error and, if there is an endpoint, its spans to a collector.
    ///
    /// An unreachable collector delays and stops nothing; a failed export is logged.
    ///
    /// # Errors
    /// If the process has a logger already, or the thread that writes log lines does not start, or there is an endpoint without a Tokio runtime, or the endpoint is invalid.
    pub fn start(config: &TelemetryConfig) -> Result<Self, TelemetryError> {
        let provider = match &config.otlp_endpoint {
            Some(endpoint) => Some(export::provider(config, endpoint)?),
            None => None,
        };
        let writer = log_writer::start().map_err(TelemetryError::LogWriter)?;
        tracing_subscriber::registry()
            .with(log::layer(config, writer))
            .with(provider.as_ref().map(export::layer))
            .try_init()
            .map_err(|_| TelemetryError::AlreadyStarted)?;
        Ok(Self { provider })
    }

    /// Exports the last spans and ends the export, within a time. Log lines go on.
    ///
    /// # Errors
    /// If spans were not exported in time.
    ///
    /// # Cancel safety
    /// If this future is dropped, the export still goes on until it ends or its time is over.
    pub async fn shutdown(self, timeout: Duration) -> Result<(), TelemetryError> {
        let Some(provider) = self.provider else {
            return Ok(());
        };
        // The provider blocks until its thread has exported, which needs this runtime for its connection.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(timeout));
        match ended.await {
            Ok(result) => result.map_err(TelemetryError::Unflushed),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Ok(()), // The runtime is shutting down, and with it the connection.
        }
    }
}
