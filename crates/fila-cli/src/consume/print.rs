//! Printing messages.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use fila_cli::message_json::ReceivedJson;
use fila_sdk::{Delivery, Error};
use futures_util::future::join_all;

use super::feed::{Feed, Work};
use crate::failure::Failure;
use crate::output::{self, Format, count};

/// The most messages that are printed before the run acknowledges them together. The first batch is one message, and
/// each may be twice as large as the one before: so `| head -1` seldom costs more than the message that it shows.
const BATCH_MAX: usize = 256;

/// How many bytes are written by one call, at least.
const BUFFER_BYTES: usize = 1 << 16;

/// The fate of printed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The run acknowledges them, and the broker deletes them.
    Taken,
    /// The run holds them until its end, so that the broker does not deliver them twice, and then releases them.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Print {
    pub(super) format: Format,
    pub(super) is_raw: bool,
    pub(super) keep: Keep,
}

impl Print {
    /// Prints every message. Acknowledges messages only after their text has left this process, and those that have left
    /// it also if the output is closed behind them.
    pub(super) async fn run(&self, feed: &mut Feed) -> Result<(), Failure> {
        let mut held = Vec::new();
        let printed = self.print_all(feed, &mut held).await;
        // In case of an error, too: messages without an acknowledgement are released untouched.
        join_all(held.into_iter().map(Delivery::release)).await;
        let lost = printed?;
        if lost > 0 {
            return Err(Failure::Other(anyhow::anyhow!(
                "{} of the printed messages had lost their leases; the broker delivers them again",
                count(lost)
            )));
        }
        Ok(())
    }

    async fn print_all(&self, feed: &mut Feed, held: &mut Vec<Delivery>) -> Result<u64, Failure> {
        let mut lost = 0;
        let mut batch = 1;
        while let Some(first) = feed.next(Work::None).await? {
            let begin = held.len();
            held.push(first);
            while held.len() - begin < batch
                && let Some(next) = feed.next_at_once()?
            {
                held.push(next);
            }
            batch = (batch * 2).min(BATCH_MAX);
            let (written, ended) = self.write(&held[begin..])?;
            match self.keep {
                Keep::Taken => lost += acknowledge(held.drain(..written)).await?,
                Keep::Nothing => {}
            }
            output::written(ended)?;
        }
        Ok(lost)
    }

    /// Writes messages, and returns how many of them are written completely.
    fn write(&self, messages: &[Delivery]) -> Result<(usize, io::Result<()>), Failure> {
        let mut output = CountedOutput::default();
        let mut ends = Vec::with_capacity(messages.len());
        for message in messages {
            match self.format {
                Format::Json => {
                    output.add(output::json_line(&ReceivedJson::from(&**message))?.as_bytes());
                }
                Format::Human if self.is_raw => output.add(&message.payload),
                Format::Human => {
                    output.add(&output::value(&message.payload));
                    output.add(b"\n");
                }
            }
            ends.push(output.end());
        }
        let ended = output.flush();
        let written = ends.iter().take_while(|end| **end <= output.written);
        Ok((written.count(), ended))
    }
}

/// The standard output, with the number of bytes that have left this process.
#[derive(Debug, Default)]
struct CountedOutput {
    buffer: Vec<u8>,
    written: u64,
    failed: Option<io::Error>,
}

impl CountedOutput {
    fn add(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES {
            self.write_out();
        }
    }

    /// Returns the position behind the last byte that was added.
    fn end(&self) -> u64 {
        match self.failed {
            Some(_) => u64::MAX,
            None => self.written + self.buffer.len() as u64,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_out();
        self.failed.take().map_or(Ok(()), Err)
    }

    fn write_out(&mut self) {
        // Not by `Stdout`, whose buffer hides how much has left it.
        let output = io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let written = output.and_then(|mut output| self.write_to(&mut output));
        self.failed = self.failed.take().or_else(|| written.err());
        self.buffer.clear();
    }

    fn write_to(&mut self, output: &mut impl Write) -> io::Result<()> {
        let mut rest = &*self.buffer;
        while !rest.is_empty() {
            match output.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.written += length as u64;
                    rest = &rest[length..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Acknowledges messages, and returns how many leases had ended.
async fn acknowledge(messages: impl Iterator<Item = Delivery>) -> Result<u64, Failure> {
    let mut lost = 0;
    for stored in join_all(messages.map(Delivery::ack)).await {
        match stored {
            Ok(()) => {}
            // If the connection broke meanwhile, the acknowledgement may be stored. If it is not, the broker delivers
            // the message again.
            Err(Error::LeaseLost | Error::NoAnswer { cause: Some(_), .. }) => lost += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes this many bytes, and is closed then.
    struct Short(usize);

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let taken = bytes.len().min(self.0).min(3);
            self.0 -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_count_as_written_once_the_output_has_taken_them() {
        for taken in 0..=8 {
            let mut output = CountedOutput::default();
            output.add(b"one\n");
            assert_eq!(output.end(), 4);
            output.add(b"two\n");
            let ended = output.write_to(&mut Short(taken));
            assert_eq!(output.written, taken as u64);
            assert_eq!(ended.is_ok(), taken == 8);
        }
    }
}
