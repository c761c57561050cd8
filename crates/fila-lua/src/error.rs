//! The errors of scripts and hooks.

use std::fmt;
use std::time::Duration;

use crate::Hook;

/// Why a script was rejected when it was set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The source is too long.
    #[error("the script has {bytes} bytes; at most {bytes_max} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The source is not Lua.
    #[error("the script is not valid Lua: {0}")]
    Syntax(Fault),
    /// Its top level, which runs when the script is loaded, has failed.
    #[error("the script failed while it was loaded: {0}")]
    Failed(Fault),
    /// Its top level has run for too long.
    #[error(
        "the script took longer than {limit:?} to load; define functions and leave the work to them"
    )]
    Timeout {
        /// The limit.
        limit: Duration,
    },
    /// It takes too much memory, even before it is called.
    #[error("the script takes more than {limit} bytes of memory; hold less data in it")]
    Memory {
        /// The limit.
        limit: usize,
    },
    /// It defines no hook.
    #[error(
        "the script defines neither `on_enqueue` nor `on_failure`; define one of them as a global function"
    )]
    NoHook,
}

/// Why a call of a hook gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// It ran for too long.
    #[error(
        "the hook ran longer than {limit:?}; let it do less, or raise `lua.default_timeout_ms`"
    )]
    Timeout {
        /// The limit.
        limit: Duration,
    },
    /// It used too much memory.
    #[error(
        "the hook used more than {limit} bytes of memory; let it hold less, or raise `lua.default_memory_limit_bytes`"
    )]
    Memory {
        /// The limit.
        limit: usize,
    },
    /// It raised an error.
    #[error("the hook failed: {0}")]
    Failed(Fault),
    /// The script does not define it.
    #[error("the script defines no function `{0}`")]
    Missing(Hook),
    /// Its answer cannot be used.
    #[error("`{hook}` returned {mistake}")]
    Answer {
        /// The hook.
        hook: Hook,
        /// The mistake in the answer.
        mistake: AnswerError,
    },
}

impl HookError {
    /// Returns whether the script itself has failed. An answer that cannot be used is no failure: the headers of one
    /// message may be its cause, so it says nothing about the next message.
    pub const fn is_failure(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Memory { .. } | Self::Failed(_) | Self::Missing(_) => true,
            Self::Answer { .. } => false,
        }
    }
}

/// A mistake in the answer of a hook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} as {field}; {allowed}")]
pub struct AnswerError {
    /// The field, in backticks, or a word for the whole answer.
    pub field: String,
    /// The value of the field.
    pub found: String,
    /// The values that the field may have.
    pub allowed: String,
}

/// A mistake in a script: its line and Lua's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line of the script, counted from one, if it is known.
    pub line: Option<u32>,
    /// Lua's message; at most some hundred bytes.
    pub message: String,
}

impl Fault {
    /// The longest message, in bytes. A script may raise texts as long as its memory.
    const MESSAGE_MAX: usize = 500;

    /// Parses a message of Lua, which may begin with the chunk's name and the line.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.split("\nstack traceback:").next().unwrap_or(text);
        let mut line = None;
        let mut message = text;
        if let Some((number, rest)) = text
            .strip_prefix(crate::vm::CHUNK_PREFIX)
            .and_then(|rest| rest.split_once(": "))
            && let Ok(number) = number.parse()
        {
            line = Some(number);
            message = rest;
        }
        // A line of `library.lua` does not help the author of a script.
        if let Some((number, rest)) = message
            .strip_prefix("library:")
            .and_then(|rest| rest.split_once(": "))
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            message = rest;
        }
        let mut end = message.len().min(Self::MESSAGE_MAX);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            line,
            message: message[..end].to_owned(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_knows_its_line() {
        let fault = Fault::parse("script:3: attempt to index a nil value (local 'x')");
        assert_eq!(fault.line, Some(3));
        assert_eq!(
            fault.to_string(),
            "line 3: attempt to index a nil value (local 'x')"
        );
        assert_eq!(Fault::parse("script: no line").message, "script: no line");
    }

    #[test]
    fn a_fault_is_short() {
        let fault = Fault::parse(&"ä".repeat(10_000));
        assert!(fault.message.len() <= Fault::MESSAGE_MAX);
    }
}
