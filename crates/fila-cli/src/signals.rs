//! Signals that end a command: the first lets it end in order, the second ends it at once.

use std::process;

use fila_server::telemetry;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{error, info};

/// The exit code that shells give a process after SIGINT: 128 plus the signal's number.
const ENDED_BY_SIGNAL: i32 = 130;

/// Listens for SIGINT and SIGTERM from now on, and returns a future that completes with the first of them. The second
/// ends the process at once, and so does the first after the future was dropped.
pub(crate) fn shutdown() -> impl Future<Output = ()> {
    shutdown_after(|| {})
}

/// As [`shutdown`], with an action just before the process ends at once.
///
/// The signals have a task of their own: the second one must end a command that is not ready for the first.
pub(crate) fn shutdown_after(last_act: impl FnOnce() + Send + 'static) -> impl Future<Output = ()> {
    let signals = (on(SignalKind::interrupt()), on(SignalKind::terminate()));
    let (to_command, first) = oneshot::channel();
    tokio::spawn(async move {
        let (Some(mut interrupt), Some(mut terminate)) = signals else {
            // Signals keep their default effect, which is as safe as a crash.
            return;
        };
        either(&mut interrupt, &mut terminate).await;
        if to_command.send(()).is_ok() {
            info!("shutting down; a second signal ends the process at once");
            either(&mut interrupt, &mut terminate).await;
        }
        error!("ended at once by a signal");
        last_act();
        telemetry::flush_log();
        process::exit(ENDED_BY_SIGNAL);
    });
    async {
        if first.await.is_err() {
            std::future::pending().await
        }
    }
}

/// Calls `act` in a thread for blocking work at each SIGHUP from now on.
pub(crate) fn on_hangup(act: impl Fn() + Clone + Send + 'static) {
    let Some(mut hangups) = on(SignalKind::hangup()) else {
        return;
    };
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let acted = tokio::task::spawn_blocking(act.clone()).await;
            drop(acted);
        }
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
