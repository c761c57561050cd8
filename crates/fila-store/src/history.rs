//! The failures of a message, and its origin if it is a dead letter.
//!
//! Most messages never fail and have no history. The store rewrites a history with every failed attempt, so a history is
//! bounded: it holds the last error, not all errors.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::{MessageId, QueueName, Timestamp};

/// The failures of a message so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The last error.
    pub last_error: ErrorText,
    /// When its first attempt failed.
    pub first_failed_at: Timestamp,
    /// When its last attempt failed.
    pub last_failed_at: Timestamp,
    /// How it became a dead letter, if it is one, or was one and has gone back to its queue.
    pub death: Option<Death>,
}

impl History {
    /// Returns the bytes that it takes beside itself.
    pub fn bytes(&self) -> usize {
        let name = self
            .death
            .as_ref()
            .map_or(0, |death| death.queue.as_str().len());
        size_of::<Self>() + self.last_error.as_str().len() + name
    }
}

/// How a message became a dead letter. If that has happened several times, the last time, with the first id and the
/// attempts of all times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Why it is not tried again.
    pub reason: DeathReason,
    /// The queue that it was in.
    pub queue: QueueName,
    /// Its id in that queue when it was first accepted, which it keeps.
    pub message: MessageId,
    /// How many of its deliveries from that queue failed, of all times together.
    pub attempts: u32,
    /// When it became a dead letter.
    pub died_at: Timestamp,
    /// When that queue first accepted it.
    pub enqueued_at: Timestamp,
}

/// Why a message is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeathReason {
    /// All attempts that its queue allows have failed.
    AttemptsExhausted,
    /// The failure hook of its queue decided it.
    Hook,
}

impl DeathReason {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::AttemptsExhausted, Self::Hook];

    /// Returns the word for it: the same on the wire, in logs and in the output of commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Hook => "hook",
        }
    }

    /// Returns the byte for it, which is never zero.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::AttemptsExhausted => 1,
            Self::Hook => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl fmt::Display for DeathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text of an error: up to [`MAX`](Self::MAX) bytes of text.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorText(Arc<str>);

impl ErrorText {
    /// The longest text, in bytes.
    pub const MAX: usize = 1024;

    /// Keeps the text, or the whole characters in its first [`MAX`](Self::MAX) bytes if it is longer.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(Self::MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(text[..end].into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for ErrorText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ErrorText({:?})", self.0)
    }
}

impl fmt::Display for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let text = "ä".repeat(ErrorText::MAX);
        assert_eq!(ErrorText::new(&text).as_str().len(), ErrorText::MAX);
        let text = format!("x{text}");
        let cut = ErrorText::new(&text);
        assert_eq!(cut.as_str().len(), ErrorText::MAX - 1);
        assert!(text.starts_with(cut.as_str()));
    }

    #[test]
    fn every_reason_has_a_byte_of_its_own_and_none_is_zero() {
        for reason in DeathReason::ALL {
            assert_eq!(DeathReason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(DeathReason::from_code(0), None);
    }
}
