//! How a server is told to end: once politely, twice at once.

use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

/// What a shell makes of a process that a signal has ended: 128, and the number of SIGINT.
const ENDED_BY_SIGNAL: i32 = 130;

/// Listens for SIGINT and SIGTERM from now on, and returns a future that is done when one has come. From then on, the
/// next of them ends the process at once.
pub(crate) fn shutdown() -> impl Future<Output = ()> {
    let signals = (on(SignalKind::interrupt()), on(SignalKind::terminate()));
    async move {
        let (Some(mut interrupt), Some(mut terminate)) = signals else {
            // Signals then do what they do by default, which is as safe as a crash.
            return std::future::pending().await;
        };
        either(&mut interrupt, &mut terminate).await;
        info!("told to end; again to end at once");
        tokio::spawn(async move {
            either(&mut interrupt, &mut terminate).await;
            error!("told twice, ending at once");
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
