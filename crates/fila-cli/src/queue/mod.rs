//! `fila queue`: create, inspect and change queues while the server runs.

mod dead_letters;
mod settings;
mod text;

use clap::{Args, Subcommand};
use fila_sdk::Admin;
use serde::Serialize;

pub(crate) use self::dead_letters::{DeadLetters, dead_letters_of};
use self::settings::SettingsFlags;
pub(crate) use self::text::{mean_wait, state};
use crate::confirmation::confirm;
use crate::failure::Failure;
use crate::general::General;
use crate::output::{self, Format, Output, count};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct QueueArguments {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Create a queue
    #[command(after_help = "Examples:
  fila queue create orders
  fila queue create orders --visibility-timeout 30000    leased for 30 seconds
  fila queue create mails --ordering key --depth-max 1000000
  fila queue create hooks --retry-attempts-max 5 --retry-backoff 10s    dead letters go to `hooks.dlq`
  fila queue create orders --script hooks.lua            with hooks; try them with `fila hook test`")]
    Create {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        settings: SettingsFlags,
    },
    /// List queues, with how many messages they have
    #[command(after_help = "Examples:
  fila queue list
  fila queue list --prefix orders --json | jq .stats.ready")]
    List {
        /// List only queues whose names begin with this
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
        /// Show queues of dead letters as rows, too; with --json they always are
        #[arg(long)]
        dead_letters: bool,
    },
    /// Show a queue: its settings, its messages and its totals
    #[command(after_help = "Examples:
  fila queue inspect orders
  fila queue inspect orders --json | jq .version")]
    Inspect {
        #[command(flatten)]
        name: Name,
    },
    /// Change settings of a queue; they apply to waiting messages, too
    #[command(after_help = "Examples:
  fila queue update orders --visibility-timeout 5m
  fila queue update orders --key-concurrency 4 --version 7    only if it has not changed since
  fila queue update orders --key-separator off                keys that contain `/` are names, not paths
  fila queue update orders --script hooks.lua --hook-fallback last_good")]
    Update {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        settings: SettingsFlags,
        /// Remove the queue's hooks
        #[arg(long, conflicts_with = "script")]
        no_script: bool,
        /// Change the queue only if it has this version
        #[arg(long, value_name = "NUMBER")]
        version: Option<u64>,
    },
    /// Stop deliveries of a queue; it still accepts messages and results
    #[command(after_help = "Example:
  fila queue pause orders")]
    Pause {
        #[command(flatten)]
        name: Name,
    },
    /// Resume deliveries of a queue
    #[command(after_help = "Example:
  fila queue resume orders")]
    Resume {
        #[command(flatten)]
        name: Name,
    },
    /// Delete all messages of a queue, leased ones too; this cannot be undone
    #[command(after_help = "Examples:
  fila queue purge orders
  fila queue purge orders --yes    without a question; a script needs this")]
    Purge {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        consent: Consent,
    },
    /// Delete a queue, its messages and its dead letters; this cannot be undone
    #[command(after_help = "Examples:
  fila queue delete orders
  fila queue delete orders --yes    without a question; a script needs this")]
    Delete {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        consent: Consent,
    },
}

#[derive(Debug, Args)]
struct Name {
    /// The queue
    #[arg(value_name = "QUEUE")]
    name: String,
}

#[derive(Clone, Copy, Debug, Args)]
struct Consent {
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// The change of a queue, for programs.
#[derive(Debug, Serialize)]
struct QueueDone<'a> {
    name: &'a str,
    done: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    purged: Option<u64>,
}

pub(crate) fn run(general: &General, arguments: QueueArguments) -> Result<(), Failure> {
    let command = arguments.command;
    command.check()?;
    let about = command.queue().map(str::to_owned);
    general.talk(about.as_deref(), async |session| {
        let admin = session.client.admin();
        let output = session.output;
        match command {
            QueueCommand::Create { name, settings } => {
                let queue = admin.create_queue(&name.name, settings.read()?).await?;
                output.result(&queue, || format!("created queue `{}`", queue.name))
            }
            QueueCommand::List {
                prefix,
                dead_letters,
            } => {
                list(
                    &admin,
                    output,
                    &prefix,
                    DeadLetters::from_flag(dead_letters),
                )
                .await
            }
            QueueCommand::Inspect { name } => {
                let queue = admin.queue(&name.name).await?;
                output.result(&queue, || text::inspect(&queue))
            }
            QueueCommand::Update {
                name,
                settings,
                no_script,
                version,
            } => {
                let mut settings = settings.read()?;
                if no_script {
                    settings.script = Some(String::new());
                }
                let queue = admin.update_queue(&name.name, settings, version).await?;
                output.result(&queue, || {
                    format!("queue `{}` is at version {}", queue.name, queue.version)
                })
            }
            QueueCommand::Pause { name } => {
                admin.pause_queue(&name.name).await?;
                done(output, &name.name, "paused")
            }
            QueueCommand::Resume { name } => {
                admin.resume_queue(&name.name).await?;
                done(output, &name.name, "resumed")
            }
            QueueCommand::Purge { name, consent } => {
                purge(&admin, output, &name.name, consent).await
            }
            QueueCommand::Delete { name, consent } => {
                delete(&admin, output, &name.name, consent).await
            }
        }
    })
}

impl QueueCommand {
    /// Checks the arguments, before the first request to the server.
    fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Update {
                settings,
                no_script: false,
                ..
            } if settings.is_empty() => {
                let text = "give a setting to change, as --visibility-timeout 5m; see `fila queue update --help`";
                Err(Failure::Usage(text.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the queue that must exist for the command.
    fn queue(&self) -> Option<&str> {
        match self {
            Self::Create { .. } | Self::List { .. } => None,
            Self::Inspect { name }
            | Self::Update { name, .. }
            | Self::Pause { name }
            | Self::Resume { name }
            | Self::Purge { name, .. }
            | Self::Delete { name, .. } => Some(&name.name),
        }
    }
}

async fn list(
    admin: &Admin,
    output: Output,
    prefix: &str,
    dead_letters: DeadLetters,
) -> Result<(), Failure> {
    let queues = admin.queues(prefix).await?;
    if queues.is_empty() && output.format == Format::Human {
        output::note("there are no queues; create one with `fila queue create NAME`");
        return Ok(());
    }
    output.list(&queues, || text::list(&queues, dead_letters))
}

async fn purge(admin: &Admin, output: Output, name: &str, consent: Consent) -> Result<(), Failure> {
    let depth = admin.queue(name).await?.stats.depth;
    let messages = count(depth);
    confirm(
        &format!("Delete all {messages} messages of queue `{name}`? This cannot be undone."),
        consent.yes,
    )?;
    let purged = admin.purge_queue(name).await?;
    let json = QueueDone {
        name,
        done: "purged",
        purged: Some(purged),
    };
    output.result(&json, || {
        format!("purged {} messages of queue `{name}`", count(purged))
    })
}

async fn delete(
    admin: &Admin,
    output: Output,
    name: &str,
    consent: Consent,
) -> Result<(), Failure> {
    let depth = admin.queue(name).await?.stats.depth;
    let messages = count(depth);
    confirm(
        &format!(
            "Delete queue `{name}`, its {messages} messages and its dead letters? This cannot be undone."
        ),
        consent.yes,
    )?;
    admin.delete_queue(name).await?;
    done(output, name, "deleted")
}

fn done(output: Output, name: &str, done: &'static str) -> Result<(), Failure> {
    let json = QueueDone {
        name,
        done,
        purged: None,
    };
    output.result(&json, || format!("{done} queue `{name}`"))
}
