//! Turns the errors that a script raises into texts.

use mlua::{Error, Value};

use crate::Fault;
use crate::meter::Stop;
use crate::vm::CHUNK_PREFIX;

/// The error that Lua raises when it is out of memory.
const NO_MEMORY: &[u8] = b"not enough memory";

/// Returns whether a script has run out of memory.
pub(crate) fn is_memory(raised: &Value) -> bool {
    match raised {
        Value::String(text) => *text.as_bytes() == *NO_MEMORY,
        Value::Error(error) => is_memory_error(error),
        _ => false,
    }
}

pub(crate) fn is_memory_error(error: &Error) -> bool {
    match error {
        Error::MemoryError(_) => true,
        Error::CallbackError { cause, .. }
        | Error::BadArgument { cause, .. }
        | Error::WithContext { cause, .. } => is_memory_error(cause),
        Error::ExternalError(cause) => cause.downcast_ref() == Some(&Stop::Memory),
        _ => false,
    }
}

/// Converts the error that a script has raised.
pub(crate) fn of(raised: &Value) -> Fault {
    match raised {
        Value::String(text) => Fault::parse(&text.to_string_lossy()),
        Value::Error(error) => Fault::parse(&text(error)),
        Value::Integer(number) => Fault::parse(&number.to_string()),
        Value::Number(number) => Fault::parse(&number.to_string()),
        other => Fault::parse(&format!("it raised a {}", other.type_name())),
    }
}

/// Returns the text of an error from Rust as stock Lua would write it, with the line of the script in front.
pub(crate) fn text(error: &Error) -> String {
    match error {
        Error::CallbackError { traceback, cause } => {
            let line = traceback.split(CHUNK_PREFIX).nth(1).and_then(|rest| {
                let digits = rest.find(|other: char| !other.is_ascii_digit())?;
                (digits > 0).then(|| &rest[..digits])
            });
            let cause = text(cause);
            match line {
                Some(line) if !cause.starts_with(CHUNK_PREFIX) => {
                    format!("{CHUNK_PREFIX}{line}: {cause}")
                }
                _ => cause,
            }
        }
        Error::RuntimeError(message) => message.clone(),
        Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}
