//! The state of the server.

use std::sync::atomic::{AtomicBool, Ordering};

use fila_store::Writes;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// A state of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The server is reading queues from the store.
    Starting,
    /// The server accepts calls.
    Ready,
    /// A write or a thread has failed. The server writes nothing more until an operator restarts it.
    Failed,
    /// The server was told to stop.
    Stopping,
}

/// The present state, which other tasks can watch. It never goes back. Beside it, whether the disk is full, which passes.
#[derive(Debug)]
pub(crate) struct Status {
    state: watch::Sender<State>,
    is_full: AtomicBool,
}

impl Status {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::new(State::Starting),
            is_full: AtomicBool::new(false),
        }
    }

    pub(crate) fn state(&self) -> State {
        *self.state.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Returns whether the disk was full when a thread last looked.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Notes what the store takes, and logs a change.
    pub(super) fn note(&self, writes: Writes) {
        let is_full = match writes {
            Writes::Full => true,
            Writes::Taken => false,
            // That is another state, which the commit threads report.
            Writes::Poisoned => return,
        };
        if self.is_full() == is_full || self.is_full.swap(is_full, Ordering::Relaxed) == is_full {
            return;
        }
        if is_full {
            warn!("the disk is full: new messages are refused until there is room");
        } else {
            info!("the disk has room again: new messages are taken");
        }
    }

    pub(super) fn ready(&self) {
        if self.advance(State::Starting, State::Ready) {
            info!("ready");
        }
    }

    /// Takes the server out of service until it is restarted.
    pub(super) fn fail(&self, what: &str) {
        error!(
            what,
            "out of service; look for the cause above, then restart"
        );
        self.advance(State::Starting, State::Failed);
        self.advance(State::Ready, State::Failed);
    }

    pub(super) fn stop(&self) {
        self.state.send_replace(State::Stopping);
    }

    fn advance(&self, from: State, to: State) -> bool {
        self.state.send_if_modified(|state| {
            let moves = *state == from;
            if moves {
                *state = to;
            }
            moves
        })
    }
}

/// Takes the server out of service if the thread that holds it panics.
#[derive(Debug)]
pub(super) struct PanicGuard {
    pub(super) status: std::sync::Arc<Status>,
    pub(super) thread: &'static str,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.status.fail(self.thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_server_is_never_ready_again() {
        let status = Status::new();
        status.fail("a test");
        status.ready();
        assert_eq!(status.state(), State::Failed);
        status.stop();
        status.fail("a test");
        assert_eq!(status.state(), State::Stopping);
    }

    #[test]
    fn a_thread_that_panics_takes_the_server_out_of_service() {
        let status = std::sync::Arc::new(Status::new());
        let guard = PanicGuard {
            status: status.clone(),
            thread: "a test",
        };
        let ended = std::thread::spawn(move || {
            let _guard = guard;
            panic!("as planned");
        });
        ended.join().unwrap_err();
        assert_eq!(status.state(), State::Failed);
    }
}
