//! The source of messages: the command line, files, or the lines of the standard input.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::thread;

use anyhow::Context;
use fila_cli::lines::{LINE_BYTES_MAX, read_line};
use tokio::sync::mpsc;

use crate::failure::Failure;

/// How many lines the reader is ahead.
const LINES_AHEAD: usize = 64;

/// The raw form of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// From the command line or a file, with the number of the repetition.
    Payload { payload: Vec<u8>, number: u64 },
    /// From the standard input, with the number of the line.
    Line { line: Vec<u8>, number: u64 },
    /// The reason why the source could not be read.
    Unreadable(String),
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Payload { payload, .. } => payload.len(),
            Self::Line { line, .. } => line.len(),
            Self::Unreadable(_) => 0,
        }
    }
}

/// The pieces, one after the other.
#[derive(Debug)]
pub(super) struct Source {
    pieces: Vec<Vec<u8>>,
    repeats: u64,
    given: u64,
    lines: Option<mpsc::Receiver<Piece>>,
}

impl Source {
    /// Returns a source of these pieces, repeated, and then of the lines of the standard input if `reads_lines`.
    pub(super) fn new(pieces: Vec<Vec<u8>>, repeats: u64, reads_lines: bool) -> Self {
        Self {
            pieces,
            repeats,
            given: 0,
            lines: reads_lines.then(|| read_ahead(io::stdin())),
        }
    }

    /// Returns how many pieces there are, if the number is known.
    pub(super) fn len(&self) -> Option<u64> {
        let all = self.repeats.checked_mul(self.pieces.len() as u64);
        all.filter(|_| self.lines.is_none())
    }

    /// Waits for the next piece.
    ///
    /// # Cancel safety
    /// May be dropped at any time without losing a piece.
    pub(super) async fn next(&mut self) -> Option<Piece> {
        let length = self.pieces.len() as u64;
        if length > 0 && self.given / length < self.repeats {
            let place = usize::try_from(self.given % length).ok()?;
            let number = self.given / length + 1;
            self.given += 1;
            let payload = self.pieces[place].clone();
            return Some(Piece::Payload { payload, number });
        }
        self.lines.as_mut()?.recv().await
    }
}

/// Reads a file as one payload.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    if path.as_os_str() == "-" {
        let mut payload = Vec::new();
        let mut limited = io::stdin().lock().take(LINE_BYTES_MAX as u64);
        limited
            .read_to_end(&mut payload)
            .context("cannot read the standard input")?;
        return Ok(payload);
    }
    let payload = fs::read(path);
    Ok(payload.with_context(|| format!("cannot read {}", path.display()))?)
}

/// Reads lines in its own thread, a few ahead. The thread ends with the process.
fn read_ahead(input: impl Read + Send + 'static) -> mpsc::Receiver<Piece> {
    let (to_us, lines) = mpsc::channel(LINES_AHEAD);
    thread::spawn(move || {
        let mut input = io::BufReader::with_capacity(1 << 16, input);
        for number in 1.. {
            let piece = match read_line(&mut input, number) {
                Some(Ok(line)) => Piece::Line { line, number },
                Some(Err(wrong)) => Piece::Unreadable(wrong),
                None => return,
            };
            let is_over = matches!(piece, Piece::Unreadable(_));
            if to_us.blocking_send(piece).is_err() || is_over {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_are_repeated_in_rounds() {
        let mut source = Source::new(vec![b"a".to_vec(), b"b".to_vec()], 2, false);
        assert_eq!(source.len(), Some(4));
        let mut seen = Vec::new();
        while let Some(Piece::Payload { payload, number }) = source.next().await {
            seen.push((payload, number));
        }
        let round = |number| [(b"a".to_vec(), number), (b"b".to_vec(), number)];
        assert_eq!(seen, [round(1), round(2)].concat());
    }
}
