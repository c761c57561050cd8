#![cfg(test)] // helpers may unwrap, as tests do
//! A collector that does not answer delays no request. One test, since a process has one logger.

use std::time::Duration;

use fila_server::config::Loader;
use fila_server::telemetry::{Telemetry, TelemetryError};
use tokio::net::TcpListener;

#[test]
fn an_export_needs_a_runtime_and_a_silent_collector_does_not_hold_up_the_shutdown() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // The system accepts connections, and the listener never answers them.
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let config = Loader::new()
        .set(format!("telemetry.otlp_endpoint=http://{address}"))
        .set("telemetry.log=off")
        .load()
        .unwrap();

    let outside = Telemetry::start(&config.telemetry);
    assert!(matches!(outside, Err(TelemetryError::NoRuntime)));

    runtime.block_on(async {
        let telemetry = Telemetry::start(&config.telemetry).unwrap();
        tracing::info_span!(target: "fila_server", "step").in_scope(|| {});
        let ended = telemetry.shutdown(Duration::from_millis(50)).await;
        assert!(
            matches!(ended, Err(TelemetryError::Unflushed(_))),
            "{ended:?}"
        );
    });
}
