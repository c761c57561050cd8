//! The hooks and their inputs.

use std::fmt;

/// A function that a script may define.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Called when a message is enqueued; decides how the broker schedules it.
    OnEnqueue,
    /// Called when a message has failed; decides whether the broker delivers it again.
    OnFailure,
}

impl Hook {
    /// Returns the name of the function.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnEnqueue => "on_enqueue",
            Self::OnFailure => "on_failure",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The input of `on_enqueue`.
#[derive(Clone, Copy, Debug)]
pub struct EnqueueInput<'a> {
    /// The headers of the message. If a name occurs twice, the last one counts.
    pub headers: &'a [(String, String)],
    /// Bytes of its payload.
    pub payload_size: usize,
    /// The name of its queue.
    pub queue: &'a str,
}

/// The input of `on_failure`.
#[derive(Clone, Copy, Debug)]
pub struct FailureInput<'a> {
    /// The headers of the message. If a name occurs twice, the last one counts.
    pub headers: &'a [(String, String)],
    /// Its id, as users see it.
    pub id: &'a str,
    /// The number of its deliveries, including the attempt that failed.
    pub attempts: u32,
    /// The name of its queue.
    pub queue: &'a str,
    /// Why the attempt failed.
    pub error: &'a str,
}
