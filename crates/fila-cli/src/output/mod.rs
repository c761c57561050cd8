//! The output of commands, for people and for programs.
//!
//! Results go to the standard output; notes, questions and progress go to the standard error, so that a pipe carries
//! results only. Colours and progress are for terminals only.

mod human;
mod progress;
mod table;

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;

pub(crate) use fila_cli::printable;

pub(crate) use self::human::{bytes, count, duration, rate};
pub(crate) use self::progress::Progress;
pub(crate) use self::table::{Align, Table};
use crate::failure::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Human,
    Json,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Prints a result: as JSON with `--json`, otherwise as text.
    pub(crate) fn result<T: Display>(
        self,
        json: &impl Serialize,
        human: impl FnOnce() -> T,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => write(&json_line(json)?),
            Format::Human => print(human()),
        }
    }

    /// Prints a list: as one JSON object per line with `--json`, otherwise as text.
    pub(crate) fn list<J: Serialize, T: Display>(
        self,
        items: impl IntoIterator<Item = J>,
        human: impl FnOnce() -> T,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => {
                let mut lines = Vec::new();
                for item in items {
                    lines.extend(json_line(&item)?);
                }
                write(&lines)
            }
            Format::Human => print(human()),
        }
    }
}

/// Returns a value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut line = serde_json::to_vec(value).context("cannot be written as JSON")?;
    line.push(b'\n');
    Ok(line)
}

/// Prints text with a newline, in colour where the user wants it. Prints nothing if the text is empty.
fn print(text: impl Display) -> Result<(), Failure> {
    let text = text.to_string();
    if text.is_empty() {
        return Ok(());
    }
    let mut stdout = anstream::stdout().lock();
    written(writeln!(stdout, "{text}").and_then(|()| stdout.flush()))
}

/// Prints bytes as they are.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    written(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// Prints a note for people on the standard error.
pub(crate) fn note(text: impl Display) {
    // The reader may have closed the standard error.
    let _ = writeln!(io::stderr(), "note: {text}");
}

/// Converts the result of a write. A closed output is a failure that prints nothing.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        result => Ok(result.context("cannot write to the standard output")?),
    }
}
