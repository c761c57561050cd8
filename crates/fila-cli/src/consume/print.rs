//! Printing messages.

use std::io::{self, BufWriter, StdoutLock, Write};

use fila_cli::message_json::ReceivedJson;
use fila_sdk::{Delivery, Error};
use futures_util::future::join_all;

use super::feed::{Feed, Work};
use crate::failure::Failure;
use crate::output::{self, Format, count};

/// How many messages are written before they are acknowledged together.
const BATCH: usize = 256;

/// What becomes of messages that were printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// They are taken: acknowledged, and deleted.
    Taken,
    /// They are held until the end, so that they do not come again and again, and then given back.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Print {
    pub(super) format: Format,
    pub(super) is_raw: bool,
    pub(super) keep: Keep,
}

impl Print {
    /// Prints what comes. Messages are acknowledged only after what was printed has left this process.
    pub(super) async fn run(&self, feed: &mut Feed) -> Result<(), Failure> {
        let mut held = Vec::new();
        let printed = self.print_all(feed, &mut held).await;
        // Whether all went well or not: what was not acknowledged was not touched.
        join_all(held.into_iter().map(Delivery::release)).await;
        let lost = printed?;
        if lost > 0 {
            return Err(Failure::Other(anyhow::anyhow!(
                "{} of the messages were printed, but their leases had ended: they are delivered again",
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
        // Not locked while others are awaited.
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

/// Acknowledges messages, and returns how many were no longer ours.
async fn acknowledge(messages: impl Iterator<Item = Delivery>) -> Result<u64, Failure> {
    let mut lost = 0;
    for stored in join_all(messages.map(Delivery::ack)).await {
        match stored {
            Ok(()) => {}
            // If the connection broke meanwhile, it may be stored; if not, the message comes again.
            Err(Error::LeaseLost | Error::NoAnswer { cause: Some(_), .. }) => lost += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(lost)
}
