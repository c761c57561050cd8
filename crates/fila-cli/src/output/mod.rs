//! What commands print, for people and for programs.
//!
//! Results go to the standard output; notes, questions and bars to the standard error, so that a pipe carries results
//! and nothing else. Colours and bars are for terminals only.

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

    /// Prints a result: as JSON if it was asked for, else as people read it.
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

    /// Prints a list: as one JSON object per line if it was asked for, else as people read it.
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

/// Prints text with a newline, in colour where colours are wanted. Nothing, if it is empty.
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

/// Tells people something that is no result.
pub(crate) fn note(text: impl Display) {
    // Whoever has closed it does not want to know.
    let _ = writeln!(io::stderr(), "note: {text}");
}

/// Whoever has closed our output has seen enough: that is no error to talk about.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        result => Ok(result.context("cannot write to the standard output")?),
    }
}
