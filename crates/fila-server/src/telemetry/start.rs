//! Starting and ending telemetry.

use std::time::Duration;

use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::error::TelemetryError;
use super::{export, log};
use crate::config::TelemetryConfig;

/// The telemetry of this process. Spans that have not been exported yet are lost without a
/// [`shutdown`](Self::shutdown).
#[derive(Debug)]
#[must_use]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sends what this process logs to the standard error and, if there is an endpoint, its spans to a collector.
    ///
    /// A collector that cannot be reached delays nothing and stops nothing; it is logged when an export fails.
    ///
    /// # Errors
    /// If the process has a logger already; if there is an endpoint, and no Tokio runtime or no way to use the endpoint.
    pub fn start(config: &TelemetryConfig) -> Result<Self, TelemetryError> {
        let provider = match &config.otlp_endpoint {
            Some(endpoint) => Some(export::provider(config, endpoint)?),
            None => None,
        };
        tracing_subscriber::registry()
            .with(log::layer(config))
            .with(provider.as_ref().map(export::layer))
            .try_init()
            .map_err(|_| TelemetryError::AlreadyStarted)?;
        Ok(Self { provider })
    }

    /// Exports what has not been exported yet, and ends the export, within a time. Log lines go on.
    ///
    /// # Errors
    /// If something was not exported, or not in time.
    ///
    /// # Cancel safety
    /// The export goes on to its end, or to the end of its time, if this future is dropped.
    pub async fn shutdown(self, timeout: Duration) -> Result<(), TelemetryError> {
        let Some(provider) = self.provider else {
            return Ok(());
        };
        // The provider blocks until its thread has exported, which needs this runtime to move bytes.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(timeout));
        match ended.await {
            Ok(result) => result.map_err(TelemetryError::Unflushed),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Ok(()), // The runtime is shutting down, and with it the connection.
        }
    }
}
