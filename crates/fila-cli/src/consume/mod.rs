//! `fila consume`.

mod exec;
mod feed;
mod print;

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::Args;
use fila_sdk::Error;
use tokio::time::timeout;

use self::exec::{Exec, RunningCommands};
use self::feed::{ANSWER_MAX, Ending, Feed, Patience, check_store};
use self::print::{Keep, Print};
use crate::failure::Failure;
use crate::general::{General, Session};
use crate::output::Format;
use crate::{output, signals, values};

/// The default limit for messages that are held until the end and then released.
const HELD_MAX: u64 = 1000;

/// How many messages the consumer may hold at once, waiting or in work.
const PREFETCH: u64 = 256;

/// How long the server may take to store the last results.
const STOP_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila consume orders                             print messages, and release them at the end
  fila consume orders --ack > orders.txt          acknowledge messages once they are written
  fila consume orders --ack --follow --json       wait for more until Ctrl-C, as JSON
  fila consume orders --exec './handle.sh' --concurrency 8

Without --ack and --exec the command leases at most 1,000 messages (--limit), prints them, and releases them at
the end. They do not count as attempts. `fila peek` shows messages without leasing them.

With --exec, `sh -c COMMAND` runs for every message, with the payload as its standard input and FILA_QUEUE,
FILA_MESSAGE_ID, FILA_KEY, FILA_ATTEMPT and FILA_HEADER_<NAME> in its environment. Exit code 0 acknowledges
the message; any other code nacks it, with the last line of its standard error as the reason.

The command ends when no message has come for a while (--idle), or with --follow at Ctrl-C: it then waits for the
running commands. A second Ctrl-C ends it at once, and the running commands with it (SIGTERM).")]
pub(crate) struct ConsumeArguments {
    /// The queue
    queue: String,

    /// Acknowledge messages once they are written, which deletes them
    #[arg(long, conflicts_with = "exec")]
    ack: bool,

    /// Run this command for every message
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,

    /// Number of commands that run at once
    #[arg(long, value_name = "NUMBER", default_value = "1", requires = "exec")]
    concurrency: NonZeroUsize,

    /// Deliver a message again this long after its command has failed, whatever the queue's retry policy says
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true, requires = "exec")]
    retry_delay: Option<Duration>,

    /// Wait for more messages until Ctrl-C
    #[arg(long, short)]
    follow: bool,

    /// End when no message has come for this long
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::duration, allow_hyphen_values = true, conflicts_with = "follow")]
    idle: Duration,

    /// End after this many messages
    #[arg(long, value_name = "NUMBER")]
    limit: Option<NonZeroU64>,

    /// Print payloads without a newline after each
    #[arg(long, conflicts_with_all = ["exec", "json"])]
    raw: bool,
}

pub(crate) fn run(general: &General, arguments: ConsumeArguments) -> Result<(), Failure> {
    if arguments.follow {
        show_warnings();
    }
    let queue = arguments.queue.clone();
    general.talk(Some(&queue), async move |session| {
        let (ended, ending) = arguments.consume(session).await;
        ended?;
        match ending {
            Ending::Interrupted if !arguments.follow => Err(Failure::Interrupted),
            Ending::Interrupted | Ending::Idle | Ending::Limit => Ok(()),
        }
    })
}

/// Prints the warnings of the client, which a user of `--follow` needs when the server is gone. Other runs report a
/// lost server when they end.
fn show_warnings() {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(|| output::SaidLines)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .init();
}

impl ConsumeArguments {
    async fn consume(&self, session: &Session) -> (Result<(), Failure>, Ending) {
        let commands = RunningCommands::default();
        let mut feed = self.feed(session, commands.clone());
        let ended = match &self.exec {
            Some(command) => {
                let exec = Exec {
                    queue: self.queue.clone(),
                    command: command.clone(),
                    concurrency: self.concurrency.get(),
                    retry_delay: self.retry_delay,
                    commands,
                };
                exec.run(&mut feed, session.output).await
            }
            None => {
                let print = Print {
                    format: session.output.format,
                    is_raw: self.raw,
                    keep: self.keep(),
                };
                print.run(&mut feed).await
            }
        };
        let ending = feed.ending();
        let has_any = feed.has_any();
        // Releases waiting deliveries, and waits for the results under way. The server releases the rest when the
        // connection ends.
        let _ = timeout(STOP_MAX, feed.stop()).await;
        let ended = match ended {
            Ok(()) => self.look_back(session, ending, has_any).await,
            failed => failed,
        };
        (ended, ending)
    }

    fn feed(&self, session: &Session, commands: RunningCommands) -> Feed {
        let limit = match (self.limit, self.keep()) {
            (Some(limit), _) => limit.get(),
            (None, Keep::Nothing) if self.exec.is_none() => HELD_MAX,
            (None, _) => u64::MAX,
        };
        let prefetch = match (&self.exec, self.keep()) {
            (Some(_), _) => (self.concurrency.get() as u64).saturating_mul(2),
            (None, Keep::Taken) => PREFETCH,
            // The run holds all messages until its end, so the server must not send more than the limit.
            (None, Keep::Nothing) => limit,
        };
        let prefetch = u32::try_from(prefetch.min(limit)).unwrap_or(u32::MAX);
        let queue = session.client.queue(&self.queue);
        let consumer = queue.consumer().prefetch(prefetch).subscribe();
        let patience = match self.follow {
            true => Patience::Endless(session.client.admin()),
            false => Patience::Idle(self.idle),
        };
        let stop = signals::shutdown_after(move || commands.terminate());
        Feed::new(consumer, limit, patience, stop)
    }

    fn keep(&self) -> Keep {
        if self.ack { Keep::Taken } else { Keep::Nothing }
    }

    /// Checks whether a silent queue is empty.
    ///
    /// A server that has gone away is silent, too, and its silence must not pass for an empty queue.
    async fn look_back(
        &self,
        session: &Session,
        ending: Ending,
        has_any: bool,
    ) -> Result<(), Failure> {
        match ending {
            Ending::Idle => {
                let admin = session.client.admin();
                let queue = timeout(ANSWER_MAX, admin.queue(&self.queue)).await;
                let queue = queue.unwrap_or_else(|_| {
                    Err(Error::Unreachable {
                        address: session.client.address().to_owned(),
                        cause: format!("no answer within {}", output::duration(ANSWER_MAX)),
                    })
                })?;
                check_store(&admin).await?;
                if queue.paused {
                    let name = &self.queue;
                    output::note(format!(
                        "queue `{name}` is paused; `fila queue resume {name}` resumes its deliveries"
                    ));
                } else if !has_any && session.output.format == Format::Human {
                    output::note("the queue has no message to deliver");
                }
            }
            Ending::Limit if self.limit.is_none() => {
                output::note(format!(
                    "stopped at {} messages and released them; --limit shows more, --ack acknowledges them",
                    output::count(HELD_MAX)
                ));
            }
            Ending::Limit | Ending::Interrupted => {}
        }
        Ok(())
    }
}
