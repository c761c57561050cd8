//! Printing messages.

use std::io::{self, BufWriter, StdoutLock, Write};

use fila_cli::message_json::ReceivedJson;
use fila_sdk::{Delivery, Error};
use futures_util::future::join_all;

use super::feed::{Feed, Work};
use crate::failure::Failure;
use crate::output::{self, Format, count};

/// How many messages are printed before the run acknowledges them together.
const BATCH: usize = 256;

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
    /// Prints every message. Acknowledges messages only after their text has left this process.
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
        while let Some(first) = feed.next(Work::None).await? {
            let begin = held.len();
            held.push(first);
            while held.len() - begin < BATCH
                && let Some(next) = feed.next_at_once()?
            {
                held.push(next);
            }
            self.write(&held[begin..])?;
            match self.keep {
                Keep::Taken => lost += acknowledge(held.drain(..)).await?,
                Keep::Nothing => {}
            }
        }
        Ok(lost)
    }

    fn write(&self, messages: &[Delivery]) -> Result<(), Failure> {
        // The lock is not held across an await.
        let mut output = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        for message in messages {
            let line = match self.format {
                Format::Json => Some(output::json_line(&ReceivedJson::from(&**message))?),
                Format::Human => None,
            };
            let written = self.write_one(&mut output, line.as_deref().unwrap_or(&message.payload));
            output::written(written)?;
        }
        output::written(output.flush())
    }

    fn write_one(&self, output: &mut BufWriter<StdoutLock<'_>>, bytes: &[u8]) -> io::Result<()> {
        output.write_all(bytes)?;
        match self.format {
            Format::Human if !self.is_raw => output.write_all(b"\n"),
            Format::Human | Format::Json => Ok(()),
        }
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
