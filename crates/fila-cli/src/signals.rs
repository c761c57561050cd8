//! How a server is told to end: once politely, twice at once.

use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

/// What a shell makes of a process that a signal has ended: 128, and the number of SIGINT.
const ENDED_BY_SIGNAL: i32 = 130;

/// Waits for SIGINT or SIGTERM. From then on, the next of them ends the process at once.
pub(crate) async fn shutdown() {
    let (mut interrupt, mut terminate) =
        match (on(SignalKind::interrupt()), on(SignalKind::terminate())) {
            (Some(interrupt), Some(terminate)) => (interrupt, terminate),
            // Signals then do what they do by default, which is as safe as a crash.
            _ => return std::future::pending().await,
        };
    either(&mut interrupt, &mut terminate).await;
    info!("told to end; again to end at once");
    tokio::spawn(async move {
        either(&mut interrupt, &mut terminate).await;
        error!("told twice, ending at once");
        process::exit(ENDED_BY_SIGNAL);
    });
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
