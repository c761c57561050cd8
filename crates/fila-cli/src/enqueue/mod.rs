//! `fila enqueue`.

mod source;
mod tally;

use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use clap::Args;
use fila_cli::message_json::LineJson;
use fila_sdk::{Error, ErrorCode, Message, Queue, QuotaPool, Sent};
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use serde::Serialize;

use self::source::{Piece, Source};
use self::tally::Tally;
use crate::failure::Failure;
use crate::general::General;
use crate::output::{self, Format, Output, Progress};
use crate::{signals, values};

/// How many messages, and how many bytes of them, may be unconfirmed. The limit bounds memory, however long the input
/// is.
const IN_FLIGHT_MAX: usize = 8192;
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila enqueue orders 'hello' --key acme
  fila enqueue orders --file order.json --header tenant=acme --delay 5m
  generate-orders | fila enqueue orders --lines --key acme
  fila enqueue orders x --count 1000 --key 'tenant-{\x1b[0mn}'    a thousand keys
  fila consume other --exec 'fila enqueue orders --file - --key \"$FILA_KEY\"'

The command prints the id of every message, or with --lines, --json-lines and --count their number. If the
server refuses messages, it sends the others, reports the reasons, and ends with the exit code 1.")]
pub(crate) struct EnqueueArguments {
    /// The queue
    queue: String,

    /// Payloads, one message each; `-` has the effect of --lines
    #[arg(value_name = "PAYLOAD")]
    payloads: Vec<String>,

    /// A file whose content is a payload; `-` is the standard input; may be repeated
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,

    /// Read the standard input: every line is a payload
    #[arg(long)]
    lines: bool,

    /// Read the standard input: every line is a message in JSON, as `{"key":"acme","headers":{},"payload":"x"}`
    #[arg(long, conflicts_with = "lines")]
    json_lines: bool,

    /// The fairness key, whose share of the queue the message uses [server's default: default]
    #[arg(long)]
    key: Option<String>,

    /// A header; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::header)]
    header: Vec<(String, String)>,

    /// The weight of the fairness key, from now on
    #[arg(long, value_name = "NUMBER")]
    weight: Option<u32>,

    /// Deliver the message only after this time, as `5m`
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true)]
    delay: Option<Duration>,

    /// Do not deliver the message after this time, as `1h`; 0 means no limit, whatever the queue's setting is
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true)]
    ttl: Option<Duration>,

    /// The message's id for deduplication: the queue stores one message of an id within its deduplication window
    #[arg(long, value_name = "ID")]
    deduplication_id: Option<String>,

    /// A throttle key: each delivery takes a token from its bucket; may be repeated
    #[arg(long, value_name = "KEY")]
    throttle_key: Vec<String>,

    // Clap's help renders the plain placeholder as a line break, so an invisible escape stands within its braces.
    #[doc = "Send everything this many times; `{\x1b[0mn}` in --key and --deduplication-id is then replaced by 1, 2, 3, …"]
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["lines", "json_lines"])]
    count: Option<u64>,

    /// Print all ids, also with --lines, --json-lines and --count
    #[arg(long)]
    ids: bool,
}

/// The output for a message.
#[derive(Debug, Serialize)]
struct SentJson<'a> {
    id: &'a str,
    deduplicated: bool,
}

pub(crate) fn run(general: &General, arguments: &EnqueueArguments) -> Result<(), Failure> {
    let source = arguments.source()?;
    general.talk(Some(&arguments.queue), async |session| {
        let queue = session.client.queue(&arguments.queue);
        send_all(session.output, &queue, arguments, source).await
    })
}

impl EnqueueArguments {
    /// Determines the source of the messages, and checks it.
    fn source(&self) -> Result<Source, Failure> {
        let is_stdin = |path: &PathBuf| path.as_os_str() == "-";
        let has_dash = self.payloads.iter().any(|payload| payload == "-");
        let reads_lines = self.lines || self.json_lines || has_dash;
        let readers =
            usize::from(reads_lines) + self.file.iter().filter(|path| is_stdin(path)).count();
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        if readers > 1 {
            return usage(
                "the standard input can be read once: choose one of --lines, --json-lines, `-` and --file -",
            );
        }
        if has_dash && self.count.is_some() {
            return usage("--count cannot repeat the lines of `-`; use --file - or payloads");
        }
        let payloads = self.payloads.iter().filter(|payload| *payload != "-");
        let payloads = payloads.map(|payload| payload.clone().into_bytes());
        let mut pieces: Vec<Vec<u8>> = payloads.collect();
        for path in &self.file {
            pieces.push(source::read_file(path)?);
        }
        if pieces.is_empty() && !reads_lines {
            return usage(
                "there is nothing to send: give payloads, --file PATH, or --lines to read the standard input",
            );
        }
        let repeats = self.count.unwrap_or(1);
        Ok(Source::new(pieces, repeats, reads_lines))
    }

    /// Returns whether the messages may be so numerous that the command prints a summary and no ids.
    fn is_many(&self) -> bool {
        let reads_lines = self.lines || self.json_lines;
        let reads_lines = reads_lines || self.payloads.iter().any(|payload| payload == "-");
        !self.ids && (reads_lines || self.count.is_some())
    }

    /// Makes a message of a piece of the source.
    fn message(&self, piece: Piece) -> Result<Message, String> {
        match piece {
            Piece::Payload { payload, number } => Ok(self.template(payload, number)),
            Piece::Line { line, number } if self.json_lines => LineJson::parse(&line)
                .and_then(|line| line.into_message(|payload| self.template(payload, number)))
                .map_err(|wrong| format!("line {number} {wrong}")),
            Piece::Line { line, number } => Ok(self.template(line, number)),
            Piece::Unreadable(wrong) => Err(wrong),
        }
    }

    fn template(&self, payload: Vec<u8>, number: u64) -> Message {
        let filled = |text: &String| match self.count {
            Some(_) => text.replace("{n}", &number.to_string()),
            None => text.clone(),
        };
        let mut message = Message::new(payload).headers(self.header.iter().cloned());
        if let Some(key) = &self.key {
            message = message.key(filled(key));
        }
        if let Some(weight) = self.weight {
            message = message.weight(weight);
        }
        if let Some(delay) = self.delay {
            message = message.delay(delay);
        }
        match self.ttl {
            Some(Duration::ZERO) => message = message.without_ttl(),
            Some(ttl) => message = message.time_to_live(ttl),
            None => {}
        }
        if let Some(id) = &self.deduplication_id {
            message = message.deduplication_id(filled(id));
        }
        for key in &self.throttle_key {
            message = message.throttle_key(key);
        }
        message
    }
}

/// Sends all pieces of the source in their order, many at once, and prints the outcome.
async fn send_all(
    output: Output,
    queue: &Queue,
    arguments: &EnqueueArguments,
    mut source: Source,
) -> Result<(), Failure> {
    let began = Instant::now();
    let is_many = arguments.is_many();
    let progress = is_many.then(|| Progress::new("sending", source.len()));
    let mut tally = Tally::default();
    let mut in_flight = FuturesOrdered::new();
    let mut in_flight_bytes = 0;
    let mut stop = pin!(signals::shutdown());
    let mut is_open = true;
    let mut interrupted = false;
    while is_open || !in_flight.is_empty() {
        let has_room = in_flight.len() < IN_FLIGHT_MAX && in_flight_bytes < IN_FLIGHT_BYTES_MAX;
        tokio::select! {
            biased;
            Some((size, sent)) = in_flight.next(), if !in_flight.is_empty() => {
                in_flight_bytes -= size;
                if let Some(progress) = &progress {
                    progress.advance(1);
                } else if let Ok(sent) = &sent {
                    print(output, sent)?;
                }
                count_sent(&mut tally, sent)?;
            }
            piece = source.next(), if is_open && has_room => match piece {
                None => is_open = false,
                Some(piece) => {
                    let size = piece.len();
                    match arguments.message(piece) {
                        Ok(message) => {
                            in_flight_bytes += size;
                            in_flight.push_back(async move { (size, queue.send(message).await) });
                        }
                        Err(wrong) => tally.add(Err(wrong)),
                    }
                }
            },
            () = &mut stop, if !interrupted => {
                // The client still sends the messages that are under way.
                is_open = false;
                interrupted = true;
            }
        }
    }
    drop(progress);
    if is_many {
        let took = began.elapsed();
        output.result(&tally.json(), || tally.summary(queue.name(), took))?;
    }
    if interrupted {
        return Err(Failure::Interrupted);
    }
    tally.into_result()
}

/// Returns the reason of a refusal, without figures that differ from message to message.
fn reason(error: &Error) -> String {
    let Some(quota) = error.quota() else {
        return error.to_string();
    };
    let holds = match quota.pool {
        QuotaPool::Depth => "the fairness key holds its part of the queue's messages",
        QuotaPool::Delayed => "the fairness key holds its part of the queue's delayed messages",
        QuotaPool::DeduplicationIds => {
            "the fairness key holds its part of the queue's deduplication ids"
        }
        QuotaPool::Keys => "this address holds its part of the queue's fairness keys",
        QuotaPool::HookCalls => "this producer holds its part of the calls that wait for the hook",
        QuotaPool::HookKib => "this producer holds its part of the KiB that wait for the hook",
        QuotaPool::Unspecified => return error.to_string(),
    };
    format!("{holds}; the rest is for others: try again later, or let consumers take some")
}

/// Counts a result. Fails if every further message would fail in the same way.
fn count_sent(tally: &mut Tally, sent: Result<Sent, Error>) -> Result<(), Failure> {
    match sent {
        Err(error) if is_final(&error) => Err(tally.given_up(error)),
        sent => {
            tally.add(sent.map_err(|error| reason(&error)));
            Ok(())
        }
    }
}

fn print(output: Output, sent: &Sent) -> Result<(), Failure> {
    let id = sent.id.as_str();
    match output.format {
        Format::Json => {
            let deduplicated = sent.deduplicated;
            output::write(output::json_line(&SentJson { id, deduplicated })?.as_bytes())
        }
        Format::Human => output::write(format!("{id}\n").as_bytes()),
    }
}

/// Returns whether every further message would fail in the same way.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Refused(refusal) => matches!(
            refusal.code,
            ErrorCode::QueueNotFound | ErrorCode::QueueDeleted | ErrorCode::InvalidQueueName
        ),
        _ => true,
    }
}
