//! Runs calls on another thread and waits for them, so that a call that hangs fails its test and not the suite.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use fila_lua::{EnqueueInput, HookError, Limits, Sandbox, Scheduling, Script, ScriptError};

/// Far longer than any call may take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The result of a script.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Refused(ScriptError),
    Called(Result<Scheduling, HookError>),
}

/// Compiles a script, calls its `on_enqueue` and drops the sandbox. Returns the result and the time of the slowest of the
/// three steps.
pub(crate) fn end_of(source: &str) -> (End, Duration) {
    end_within(source, Limits::default())
}

/// Does the same within other limits.
pub(crate) fn end_within(source: &str, limits: Limits) -> (End, Duration) {
    let source = source.to_owned();
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        let start = Instant::now();
        let script = match Script::compile(source, limits) {
            Ok(script) => script,
            Err(error) => {
                let _gone = sender.send((End::Refused(error), start.elapsed()));
                return;
            }
        };
        let mut longest = start.elapsed();
        let mut sandbox = Sandbox::new(&script, |_: &str| None);
        let start = Instant::now();
        let result = sandbox.on_enqueue(&EnqueueInput {
            headers: &[("tenant".to_owned(), "acme".to_owned())],
            payload_size: 100,
            queue: "orders",
        });
        longest = longest.max(start.elapsed());
        let start = Instant::now();
        drop(sandbox);
        longest = longest.max(start.elapsed());
        let _gone = sender.send((End::Called(result), longest));
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(end) => end,
        Err(RecvTimeoutError::Timeout) => panic!("the script is still running"),
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sent nothing"))
        }
    }
}
