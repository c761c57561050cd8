//! What has gone wrong with a message, and where it came from if it is a dead letter.

use std::fmt;
use std::time::SystemTime;

use fila_proto::v1;

use crate::message::MessageId;
use crate::moment::at;

/// What has gone wrong with a message so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// What went wrong last, in the words of its consumer, up to 1,024 bytes of them; or that its lease ran out, or its
    /// consumer was gone.
    pub last_error: String,
    /// When its first attempt failed.
    pub first_failed_at: SystemTime,
    /// When its last attempt failed.
    pub last_failed_at: SystemTime,
    /// How it became a dead letter, if it is one.
    pub death: Option<Death>,
}

/// How a message became a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Death {
    /// Why it was not tried again.
    pub reason: DeathReason,
    /// The queue that it was in.
    pub queue: String,
    /// What it was called there.
    pub id: MessageId,
    /// How often it was delivered there in vain.
    pub attempts: u32,
    /// When it became a dead letter.
    pub died_at: SystemTime,
    /// When that queue accepted it.
    pub enqueued_at: SystemTime,
}

/// Why a message was not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeathReason {
    /// All attempts that its queue allows have failed.
    AttemptsExhausted,
    /// The queue's hook has said so.
    Hook,
    /// One that this client does not know yet.
    Unknown,
}

impl DeathReason {
    /// Returns a word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Hook => "hook",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for DeathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<v1::History> for History {
    fn from(wire: v1::History) -> Self {
        Self {
            last_error: wire.last_error,
            first_failed_at: at(wire.first_failed_at_ms),
            last_failed_at: at(wire.last_failed_at_ms),
            death: wire.death.map(Death::from),
        }
    }
}

impl From<v1::Death> for Death {
    fn from(wire: v1::Death) -> Self {
        Self {
            reason: match wire.reason() {
                v1::DeathReason::AttemptsExhausted => DeathReason::AttemptsExhausted,
                v1::DeathReason::Hook => DeathReason::Hook,
                v1::DeathReason::Unspecified => DeathReason::Unknown,
            },
            queue: wire.queue,
            id: MessageId::new(wire.message_id),
            attempts: wire.attempts,
            died_at: at(wire.died_at_ms),
            enqueued_at: at(wire.enqueued_at_ms),
        }
    }
}
