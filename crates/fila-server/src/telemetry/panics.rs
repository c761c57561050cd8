//! Panics as log lines.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::thread;

use tracing::error;

/// Reports panics of this process as log lines from now on.
///
/// The report that Rust prints by default waits for the reader of standard error, so a reader that is stuck would keep
/// the thread that panics from ending, and with it the server.
pub fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let message = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let location = panic.location().map(ToString::to_string);
        // Captures something only if RUST_BACKTRACE asks for it.
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured)
            .then(|| tracing::field::display(backtrace));
        error!(
            thread = thread.name(),
            panic = message.unwrap_or("no message"),
            location,
            backtrace,
            "a thread panicked; please report this"
        );
    }));
}
