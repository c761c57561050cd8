//! The output of commands, for people and for programs.
//!
//! Results go to the standard output; notes, questions and progress go to the standard error, so that a pipe carries
//! results only. Colours and progress are for terminals only.
//!
//! Every text for people leaves the command through here, and no character of it steers a terminal: see [`printable`].

mod fit;
mod human;
mod progress;
mod table;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anstyle::Style;
use anyhow::Context;
use serde::Serialize;

pub(crate) use fila_cli::printable;
use fila_cli::{printable_json, printable_lines};

pub(crate) use self::fit::{LeftOut, cut};
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
            Format::Json => write(json_line(json)?.as_bytes()),
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
                let mut lines = String::new();
                for item in items {
                    lines += &json_line(&item)?;
                }
                write(lines.as_bytes())
            }
            Format::Human => print(human()),
        }
    }
}

/// Returns a value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string(value).context("cannot be written as JSON")?;
    Ok(printable_json(json) + "\n")
}

/// Marks in a text for people: bold begins and ends. Foreign text with these can be bold, and no more.
const BOLD: char = '\u{fdd0}';
const PLAIN: char = '\u{fdd1}';

/// Returns a text that is bold where the user wants it.
pub(crate) fn bold(text: &str) -> String {
    format!("{BOLD}{text}{PLAIN}")
}

/// Returns text with the colours of terminals for its marks.
fn styled(text: &str) -> String {
    let bold = Style::new().bold();
    let text = printable_lines(text);
    let text = text.replace(BOLD, &bold.render().to_string());
    text.replace(PLAIN, &bold.render_reset().to_string())
}

/// Prints text with a newline, in colour where the user wants it. Prints nothing if the text is empty.
fn print(text: impl Display) -> Result<(), Failure> {
    let text = text.to_string();
    if text.is_empty() {
        return Ok(());
    }
    let mut stdout = anstream::stdout().lock();
    written(writeln!(stdout, "{}", styled(&text)).and_then(|()| stdout.flush()))
}

/// Prints bytes as they are.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    written(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// Returns a value as it is, for pipes and files; on a terminal as text that the terminal only shows.
pub(crate) fn value(bytes: &[u8]) -> Cow<'_, [u8]> {
    match io::stdout().is_terminal() {
        true => shown(bytes).into_bytes().into(),
        false => bytes.into(),
    }
}

fn shown(bytes: &[u8]) -> String {
    printable_lines(&String::from_utf8_lossy(bytes))
}

/// Prints a note for people on the standard error.
pub(crate) fn note(text: impl Display) {
    say(&format!("note: {text}\n"));
}

/// Prints an error to the standard error.
pub(crate) fn error(text: impl Display) {
    say(&format!("error: {text}\n"));
}

/// Prints text for people to the standard error.
pub(crate) fn say(text: &str) {
    // The reader may have closed the standard error.
    let _ = io::stderr().write_all(printable_lines(text).as_bytes());
}

/// Writes the lines of a log to the standard error.
#[derive(Debug)]
pub(crate) struct SaidLines;

/// A log writes each line by one call.
impl Write for SaidLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        say(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts the result of a write. A closed output is a failure that prints nothing.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        result => Ok(result.context("cannot write to the standard output")?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_control_sequences_of_a_text_are_our_own() {
        let text = format!("{}\nname \x1b[31m\u{9b}2J", bold("TITLE"));
        assert_eq!(
            styled(&text),
            "\x1b[1mTITLE\x1b[0m\nname \\u{1b}[31m\\u{9b}2J"
        );
    }

    #[test]
    fn a_payload_on_a_terminal_is_only_shown() {
        assert_eq!(shown(b"{\n\t\"a\": 1\n}"), "{\n\t\"a\": 1\n}");
        assert_eq!(shown(b"\x1b[2J\xff"), "\\u{1b}[2J\u{fffd}");
    }
}
