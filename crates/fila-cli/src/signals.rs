//! Signals that end a server: the first shuts it down, the second ends it at once.

use std::process;

use fila_server::telemetry;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

/// The exit code that shells give a process after SIGINT: 128 plus the signal's number.
const ENDED_BY_SIGNAL: i32 = 130;

/// Listens for SIGINT and SIGTERM from now on, and returns a future that completes with the first of them. From then
/// on, the next signal ends the process at once.
pub(crate) fn shutdown() -> impl Future<Output = ()> {
    let signals = (on(SignalKind::interrupt()), on(SignalKind::terminate()));
    async move {
        let (Some(mut interrupt), Some(mut terminate)) = signals else {
            // Signals keep their default effect, which is as safe as a crash.
            return std::future::pending().await;
        };
        either(&mut interrupt, &mut terminate).await;
        info!("shutting down; a second signal ends the process at once");
        tokio::spawn(async move {
            either(&mut interrupt, &mut terminate).await;
            error!("second signal, ending at once");
            telemetry::flush_log();
            process::exit(ENDED_BY_SIGNAL);
        });
    }
}

fn on(kind: SignalKind) -> Option<Signal> {
    match signal(kind) {
        Ok(signal) => Some(signal),
        Err(error) => {
            error!(%error, "signals cannot be received");
            None
        }
    }
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
